"""Records docs/session.svg, the picture in README: a job on two nodes, from its start over a kill to its end.

    make session

Everything in it happened: each shell is a bash at a terminal of its own, to which this program sends keys. Lines appear
in the picture when they appeared on the terminal. Long pauses are shortened, and tracebacks to their last line.
"""

import io
import os
import pty
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from rich.console import Console, Group, RenderableType
from rich.panel import Panel
from rich.terminal_theme import MONOKAI
from rich.text import Text

from hetagent.node.console import ERASE

HERE = Path(__file__).parent
PICTURE = HERE / "session.svg"
TRAIN = HERE.parent / "examples" / "first" / "train.py"
WIDTH = 112
"""Columns of the picture."""
LONGEST_PAUSE_S = 1.5
LAST_LINE_S = 0.3
"""How long after the last line the recording ends."""
PORT = 29400
LEFT_OUT = re.compile(r"\[rank\d+\]: (Traceback|  )|\[rank\d+\]: *\^*$|.*hetserver: this process may open")
"""Lines of tracebacks before the last, and a remark about this machine's limits."""
WORKERS_ERROR = re.compile(r"\[rank\d+\]: \w")


@dataclass
class Shell:
    """A bash at a terminal of its own.

    Attributes:
        lines: what was on it, with when each line was complete (seconds).
        over: what comes now is no part of the story.
    """

    name: str
    home: Path
    lines: list[tuple[float, str]] = field(default_factory=list)
    over: bool = False

    def __post_init__(self) -> None:
        keys = self.home / "inputrc"
        keys.write_text("set enable-bracketed-paste off\n")
        environment = os.environ | {
            "HOME": str(self.home),
            "XDG_RUNTIME_DIR": str(self.home),
            "INPUTRC": str(keys),
            "PS1": f"{self.name}$ ",
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "TERM": "xterm-256color",
            "COLUMNS": str(2 * WIDTH),
        }
        for name in [name for name in environment if name.startswith("HET_")]:
            del environment[name]
        self._terminal, side = pty.openpty()
        subprocess.run(["stty", "cols", str(2 * WIDTH), "rows", "50"], stdin=side, check=True)
        self.process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            cwd=self.home,
            env=environment,
            stdin=side,
            stdout=side,
            stderr=side,
            start_new_session=True,
        )
        os.close(side)
        self._rest = ""
        threading.Thread(target=self._read, daemon=True).start()
        self.prompt()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._terminal, 65536)
            except OSError:
                return
            *whole, self._rest = (self._rest + data.decode(errors="replace").replace("\r\n", "\n")).split(
                "\n"
            )
            if not self.over:
                # of a live line that was taken away nothing stays
                self.lines += [(time.monotonic(), line.rpartition(ERASE)[2]) for line in whole]

    @property
    def text(self) -> str:
        """Everything on the terminal, without colours."""
        return re.sub(r"\x1b\[[\d;]*m", "", "\n".join([*(line for _, line in self.lines), self._rest]))

    def prompt(self) -> None:
        """Wait until the shell asks for a command."""
        wait_for(lambda: self._rest.endswith(f"{self.name}$ "), f"a prompt of {self.name}")

    def type(self, line: str) -> None:
        """Type a command."""
        os.write(self._terminal, f"{line}\n".encode())

    def says(self, pattern: str, times: int = 1) -> None:
        """Wait until the terminal shows a pattern."""
        found = re.compile(pattern)
        try:
            wait_for(lambda: len(found.findall(self.text)) >= times, f"{self.name}: {pattern}")
        except SystemExit:
            print(self.text)
            raise

    def close(self) -> None:
        """Hang up, and wait for what still runs."""
        children = psutil.Process(self.process.pid).children()
        for child in children:
            child.send_signal(signal.SIGINT)
        psutil.wait_procs(children, timeout=20)
        self.process.kill()
        self.process.wait()


def wait_for(found: Callable[[], object], what: str, timeout_s: float = 300) -> None:
    """Wait until something is found.

    Raises:
        SystemExit: it was not within `timeout_s` seconds.
    """
    until = time.monotonic() + timeout_s
    while not found():
        if time.monotonic() > until:
            sys.exit(f"session: {what}: not within {timeout_s:g} s")
        time.sleep(0.01)


def worker_of(shell: Shell) -> int:
    """The pid of a worker that runs under a shell."""
    for process in psutil.Process(shell.process.pid).children(recursive=True):
        try:
            if "HET_INCARNATION" in process.environ() and process.status() != psutil.STATUS_ZOMBIE:
                return process.pid
        except psutil.Error:
            continue
    sys.exit(f"session: {shell.name} has no worker")


def server_flags() -> tuple[str, str]:
    """What hetserver and hetagent are given: nothing and an address if the usual port is free, else another port."""
    with socket.socket() as probe:
        if probe.connect_ex(("127.0.0.1", PORT)) != 0:
            return "", "--server 127.0.0.1"
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
    return f" --port {port}", f"--server 127.0.0.1:{port}"


def record(folder: Path) -> list[Shell]:
    """Run the session in a folder; returns its shells when all is over."""
    shutil.copy(TRAIN, folder / "train.py")
    port, server = server_flags()
    head, big, small, you = shells = [Shell(name, folder) for name in ("head", "gpu1", "gpu2", "you")]
    try:
        head.type(f"hetserver{port}")
        head.says("listening on")
        command = f"hetagent {server} --nnodes 2 --device cpu --gpus %d --node-id %s train.py --pause 0.15"
        big.type(command % (2, "gpu1"))
        big.says("joining")
        small.type(command % (1, "gpu2"))
        big.says("epoch  1")
        of_server = server if port else ""
        you.type(f"hetctl {of_server} status default".replace("  ", " "))
        you.says(r"gpu2 +running")
        you.prompt()
        you.type(f"kill -9 {worker_of(small)}  # a worker of gpu2")
        big.says("epoch 10")
        for shell in (big, small):
            shell.says("outcome")
            shell.prompt()
        time.sleep(LAST_LINE_S)
        for shell in shells:
            shell.over = True
        return shells
    finally:
        for shell in shells:
            shell.close()


def shown(shells: list[Shell]) -> tuple[RenderableType, list[float]]:
    """The shells one below the other, and for each row of the picture when it appears (seconds; 0 for frames)."""
    moments = sorted(at for shell in shells for at, _ in shell.lines)
    when, clock = {}, 0.0
    for before, at in zip([moments[0], *moments], moments, strict=False):
        clock += min(at - before, LONGEST_PAUSE_S)
        when[at] = clock
    console = Console(width=WIDTH, file=io.StringIO())
    panels, rows = [], []
    for shell in shells:
        inside: list[Text] = []
        times: list[float] = []
        for at, line in shell.lines:
            if line and not LEFT_OUT.match(line):
                text = Text.from_ansi(line)
                if WORKERS_ERROR.match(line):
                    text.truncate(WIDTH - 4, overflow="ellipsis")
                wrapped = text.wrap(console, WIDTH - 4)
                inside += wrapped
                times += [when[at]] * len(wrapped)
                if line.startswith(f"{shell.name}$ "):
                    for row in wrapped:
                        row.stylize("bold")
        panels.append(Panel(Group(*inside), title=shell.name, border_style="grey50"))
        rows += [0.0, *times, 0.0]
    return Group(*panels), rows


def animated(svg: str, rows: list[float]) -> str:
    """Let each row of rich's picture appear at its time. Where nothing moves (print, reduced motion) all are there."""
    style = (
        "@keyframes later{0%{opacity:0}}"
        "@media (prefers-reduced-motion:reduce){text{animation:none!important}}"
    )
    svg = re.sub(r"@font-face \{.*?\}\n?", "", svg, flags=re.DOTALL)
    svg = svg.replace("<style>", f"<style>{style}", 1)

    def later(match: re.Match[str]) -> str:
        at = rows[int(match["row"])]
        frame = match["text"].strip() in ("│", "")
        return (
            match[0]
            if frame or not at
            else match[0].replace("<text ", f'<text style="animation:later {at:.1f}s step-end" ', 1)
        )

    return re.sub(r"<text (?=[^>]*-line-(?P<row>\d+)\))[^>]*>(?P<text>[^<]*)</text>", later, svg)


def main() -> None:
    """Record, and write the picture."""
    with tempfile.TemporaryDirectory(prefix="het-") as folder:
        shells = record(Path(folder))
    picture, rows = shown(shells)
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    console.print(picture)
    svg = animated(console.export_svg(title="one job, two nodes", theme=MONOKAI), rows)
    PICTURE.write_text(svg, encoding="utf-8")
    print(f"{PICTURE}: {len(svg):,} bytes, {len(rows)} rows, {max(rows):.0f} s")


if __name__ == "__main__":
    main()
