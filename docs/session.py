"""Records docs/session.svg, the picture in README: a job on two nodes, from its start over a kill to its end.

    make session

Everything in it happened: each shell is a bash at a terminal of its own, to which this program sends keys. Lines appear
in the picture when they appeared on the terminal. Long pauses are shortened, and tracebacks to their last line. The
picture shows the ends of the terminals, which scroll.
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
from html import escape
from pathlib import Path

import psutil
from rich.console import Console
from rich.terminal_theme import MONOKAI
from rich.text import Text

HERE = Path(__file__).parent
PICTURE = HERE / "session.svg"
TRAIN = HERE.parent / "examples" / "first" / "train.py"
WIDTH = 112
"""Columns of the picture."""
ROWS = {"head": 2, "gpu1": 8, "gpu2": 6, "you": 4}
"""How many rows of each shell are seen at a time: 400 pixels in all."""
LINE, COLUMN, MARGIN = 16, 7.8, 6
"""Pixels of a row, of a column, and around a shell."""
FOREGROUND = "#d9d9d9"
AT_THE_END_S = 6.0
"""How long the end is shown before the recording starts over."""
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
                self.lines += [(time.monotonic(), line) for line in whole]

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
        you.type(f"hetctl {of_server} get default".replace("  ", " "))
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


@dataclass(frozen=True)
class Pane:
    """A shell in the picture.

    Attributes:
        title: its name.
        rows: how many rows of it are seen at a time.
        lines: all of its rows, with when each appears (seconds).
    """

    title: str
    rows: int
    lines: tuple[tuple[float, Text], ...]


def panes(shells: list[Shell]) -> list[Pane]:
    """The shells with the moments of their rows; long pauses are shortened."""
    moments = sorted(at for shell in shells for at, _ in shell.lines)
    when, clock = {}, 0.0
    for before, at in zip([moments[0], *moments], moments, strict=False):
        clock += min(at - before, LONGEST_PAUSE_S)
        when[at] = clock
    console = Console(width=WIDTH, file=io.StringIO())
    found = []
    for shell in shells:
        inside: list[tuple[float, Text]] = []
        for at, line in shell.lines:
            if line and not LEFT_OUT.match(line):
                text = Text.from_ansi(line)
                if WORKERS_ERROR.match(line):
                    text.truncate(WIDTH, overflow="ellipsis")
                if line.startswith(f"{shell.name}$ "):
                    text.stylize("bold")
                inside += [(when[at], row) for row in text.wrap(console, WIDTH)]
        found.append(Pane(shell.name, ROWS[shell.name], tuple(inside)))
    return found


def drawn(text: Text, y: float, console: Console) -> str:
    """A row of a terminal as SVG, as wide with any font."""
    parts = []
    for segment in text.render(console):
        style = segment.style
        colour = style.color.get_truecolor(MONOKAI).hex if style and style.color else FOREGROUND
        weight = ' font-weight="bold"' if style and style.bold else ""
        parts.append(f'<tspan fill="{colour}"{weight}>{escape(segment.text.rstrip(chr(10)))}</tspan>')
    width = len(text.plain) * COLUMN
    return f'<text y="{y:g}" textLength="{width:g}" lengthAdjust="spacingAndGlyphs">{"".join(parts)}</text>'


def picture(shells: list[Pane]) -> str:
    """The panes one below the other, each of which scrolls as it did; where nothing moves, their ends."""
    console = Console(width=WIDTH, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    length = max(at for pane in shells for at, _ in pane.lines) + AT_THE_END_S
    width = WIDTH * COLUMN + 4 * MARGIN
    y, styles, shapes = MARGIN, [], []
    for number, pane in enumerate(shells):
        height = pane.rows * LINE + MARGIN
        moves = [(0.0, pane.rows), *((at, pane.rows - n) for n, (at, _) in enumerate(pane.lines, 1))]
        steps = "".join(f"{100 * at / length:.2f}%{{transform:translateY({LINE * n}px)}}" for at, n in moves)
        end = LINE * moves[-1][1]
        styles.append(
            f"@keyframes p{number}{{{steps}100%{{transform:translateY({end}px)}}}}"
            f"#p{number}{{transform:translateY({end}px);animation:p{number} {length:.1f}s step-end infinite}}"
        )
        rows = "".join(drawn(text, n * LINE + 12, console) for n, (_, text) in enumerate(pane.lines))
        shapes.append(
            f'<g transform="translate({MARGIN},{y:g})"><rect width="{width - 2 * MARGIN:g}" height="{height + 6:g}" '
            f'rx="5" fill="none" stroke="#555"/><text x="12" y="4" font-weight="bold" fill="#aaa" stroke="#111" '
            f'stroke-width="5" paint-order="stroke">{pane.title}</text>'
            f'<svg x="{MARGIN}" y="8" width="{WIDTH * COLUMN:g}" height="{pane.rows * LINE}">'
            f'<g id="p{number}">{rows}</g></svg></g>'
        )
        y += height + MARGIN + 6
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {y:g}" font-size="13" '
        f'font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,DejaVu Sans Mono,monospace">'
        f"<style>text{{white-space:pre}}{''.join(styles)}"
        f"@media (prefers-reduced-motion:reduce){{g{{animation:none!important}}}}</style>"
        f'<rect width="100%" height="100%" rx="8" fill="#111"/>{"".join(shapes)}</svg>\n'
    )


def main() -> None:
    """Record, and write the picture."""
    with tempfile.TemporaryDirectory(prefix="het-") as folder:
        shells = panes(record(Path(folder)))
    svg = picture(shells)
    PICTURE.write_text(svg, encoding="utf-8")
    print(f"{PICTURE}: {len(svg):,} bytes, {sum(len(pane.lines) for pane in shells)} rows")


if __name__ == "__main__":
    main()
