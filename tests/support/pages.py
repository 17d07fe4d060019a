"""The commands of README and the guides, and a desk at which tests type them."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

from tests.support.cluster import NO_STANDBYS, RUN, T, wait_for

ROOT = Path(__file__).parents[2]


def commands(page: str, *titles: str) -> list[str]:
    """The lines of the code blocks of some sections of a page, without comments; of the whole page if none is named.

    Lines of Python code, and drawings, are left out.
    """
    text = (ROOT / page).read_text(encoding="utf-8")
    parts = re.split(r"^#+ (.*)\n", text, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert not set(titles) - sections.keys(), f"{page} has no such section"
    wanted = [text] if not titles else [sections[title] for title in titles]
    lines = re.findall(r"(?<=\n) {4,8}(\S.*)\n", "".join(wanted))
    typed = (
        r"(?:[A-Z_]+=\S+ )*(?:curl|export|het\w+|ip|kill|make|new/bin/\w+|pip|python3|rm|cp|sqlite3|sysctl) "
    )
    return [line.partition("  #")[0].rstrip() for line in lines if re.match(typed, f"{line} ")]


class Typed:
    """A command that runs; its output goes to a file."""

    def __init__(self, line: str, process: subprocess.Popen[bytes], output: Path) -> None:
        self.line = line
        self.process = process
        self._output = output

    @property
    def output(self) -> str:
        """What it has written so far."""
        return self._output.read_text(encoding="utf-8", errors="replace")

    def says(self, pattern: str, timeout_s: float = 100) -> re.Match[str]:
        """Wait until its output matches a pattern."""
        return self.wait_for(lambda: re.search(pattern, self.output), f"'{pattern}'", timeout_s)

    def wait_for(self, found: Callable[[], T | None], what: str, timeout_s: float = 100) -> T:
        """Wait for something; the error shows the output."""
        try:
            return wait_for(found, what, timeout_s)
        except TimeoutError as error:
            raise TimeoutError(f"{error}\n$ {self.line}\n{self.output}") from None

    def ctrl_c(self) -> int:
        """Press Ctrl-C; returns the exit status."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.ends()

    def ends(self, timeout_s: float = 100) -> int:
        """Its exit status, once it has ended."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(f"$ {self.line}\n{self.output}") from None


class Desk:
    """A home and a working directory of its own, in which `examples` is that of the checkout.

    Args:
        folder: the home.
        swaps: what is typed instead of what stands in the page, such as another port.
    """

    def __init__(self, folder: Path, swaps: Mapping[str, str] = {}) -> None:
        self.folder = folder
        self.swaps = dict(swaps)
        self._typed: list[Typed] = []
        (folder / "examples").symlink_to(ROOT / "examples")

    def type(self, line: str) -> Typed:
        """Type a command in a terminal of its own."""
        for old, new in self.swaps.items():
            line = line.replace(old, new)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HET_", "XDG_"))}
        own = {
            "HOME": str(self.folder),
            "XDG_RUNTIME_DIR": str(self.folder),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "OMP_NUM_THREADS": "1",
            "HETRDZV_TEST_RUN": RUN,
        }
        output = self.folder / f"output-{len(self._typed)}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                ["bash", "-c", line],
                cwd=self.folder,
                env=kept | NO_STANDBYS | own,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._typed.append(typed := Typed(line, process, output))
        return typed

    def run(self, *lines: str) -> str:
        """Type commands one after the other in one terminal; they must succeed. Returns their output."""
        typed = self.type("\n".join(("set -e", *lines)))
        assert typed.ends() == 0, f"$ {typed.line}\n{typed.output}"
        return typed.output

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End whatever still runs."""
        for typed in self._typed:
            if typed.process.poll() is None:
                os.killpg(typed.process.pid, signal.SIGTERM)
        for typed in self._typed:
            try:
                typed.process.wait(20)
            except subprocess.TimeoutExpired:
                os.killpg(typed.process.pid, signal.SIGKILL)
                typed.process.wait()
