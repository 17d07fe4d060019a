"""`make dist`: builds sdist and wheel, checks them, and tries the wheel outside the checkout.

python -m tests.dist [--without-torch]     # leaves the job out

Prints a line for each thing that it checked; stops at the first that is wrong.
"""

import argparse
import email
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath

from markdown_it import MarkdownIt
from packaging.metadata import Metadata

from hetrdzv import __version__
from tests.support.servers import free_port

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
OF_THE_SDIST = {"agent", "rendezvous", "docs", "examples"}
FILES_OF_THE_SDIST = {
    *("CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "constraints.txt", "pyproject.toml", ".gitignore")
}
"""Folders and files at the top of the sdist."""

WAIT_S = 60.0


def say(text: str) -> None:
    """Print what was checked."""
    print(f"ok  {text}", flush=True)


def check(holds: object, complaint: str) -> None:
    """Stop unless it holds."""
    if not holds:
        sys.exit(f"WRONG  {complaint}")


# -- what was built --------------------------------------------------------------------------------------------


def build() -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it, with the pinned backend."""
    shutil.rmtree(DIST, ignore_errors=True)
    environ = os.environ | {"PIP_CONSTRAINT": f"{ROOT}/constraints.txt", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    subprocess.run([sys.executable, "-m", "build", "--outdir", DIST], cwd=ROOT, env=environ, check=True)
    (sdist,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    say(f"built {sdist.name} and {wheel.name}")
    return sdist, wheel


def tracked(*folders: str) -> set[str]:
    """The files of some folders that git knows, or would take."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders]
    listed = subprocess.check_output(command, cwd=ROOT, text=True)
    return {name for name in listed.splitlines() if (ROOT / name).exists()}


def check_contents(sdist: Path, wheel: Path) -> None:
    """Each has what belongs there, and nothing else."""
    sources = {name.partition("/")[2] for name in tracked("rendezvous/hetrdzv", "agent/hetagent")}
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
    check(inside == sources, f"the wheel differs from the sources in {sorted(inside ^ sources)}")
    check({"hetrdzv/py.typed", "hetagent/py.typed"} <= inside, "the wheel has no py.typed")
    say(f"the wheel has the {len(inside)} files of hetrdzv and hetagent, and no others")

    with tarfile.open(sdist) as archive:
        packed = {name.partition("/")[2] for name in archive.getnames()}
    missing = tracked("rendezvous/hetrdzv", "agent/hetagent", "docs", "examples") - packed
    check(not missing, f"the sdist lacks {sorted(missing)}")
    other = {name for name in packed if PurePath(name).parts[0] not in OF_THE_SDIST} - FILES_OF_THE_SDIST
    check(not other, f"the sdist has {sorted(other)}")
    say(f"the sdist has {len(packed)} files of {', '.join(sorted(OF_THE_SDIST))}; no tests")


def check_metadata(wheel: Path) -> None:
    """PyPI would take it, and its page has no links that lead nowhere."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        raw = archive.read(name)
        (entries,) = (name for name in archive.namelist() if name.endswith(".dist-info/entry_points.txt"))
        commands = re.findall(r"^(\w+) = ", archive.read(entries).decode(), re.MULTILINE)
    found = Metadata.from_email(raw, validate=True)
    check(str(found.version) == __version__, f"its version is {found.version}, the checkout's {__version__}")
    check(set(commands) == {"hetagent", "hetctl", "hetserver", "hetrdzv"}, f"its entry points are {commands}")
    text = email.message_from_bytes(raw).get_payload()
    assert isinstance(text, str)
    page = MarkdownIt("commonmark").enable("table").render(text)
    dead = re.findall(r'(?:href|src)="(?!https?://)[^"]*"', page)
    check(page.startswith("<h1>") and not dead, f"the page on PyPI has links into the repository: {dead}")
    whole = "<table>" in page and "](" not in page and "|---" not in page
    check(whole, "the page on PyPI is not rendered as a whole")
    bare = [one for one in found.requires_dist or [] if one.marker is None]
    check(not any(one.name == "torch" for one in bare), "it needs torch without the extra 'agent'")
    say(f"metadata of {found.name} {found.version}: {len(bare)} dependencies, no dead links on its page")


# -- installed -------------------------------------------------------------------------------------------------


class Environment:
    """A virtual environment with the wheel, used from a folder outside the checkout."""

    def __init__(self, folder: Path, wheel: Path, extra: str = "") -> None:
        self._bin = folder / "bin"
        self.work = folder / "work"
        venv.create(folder, with_pip=True)
        self.work.mkdir()
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HET_", "PYTHON"))}
        self.environ = kept | {"XDG_STATE_HOME": str(folder), "PATH": f"{self._bin}:{os.environ['PATH']}"}
        pip = ("-m", "pip", "install", "-q", "--disable-pip-version-check", "-c", ROOT / "constraints.txt")
        subprocess.run([self._bin / "python", *pip, f"{wheel}{extra}"], check=True)

    def run(self, name: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Run one of its programs to its end."""
        command = [str(self._bin / name), *words]
        return subprocess.run(
            command,
            cwd=self.work,
            env=self.environ,
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )

    def python(self, code: str) -> str:
        """What a line of Python prints."""
        done = self.run("python", "-c", code)
        check(done.returncode == 0, f"{code!r} fails: {done.stderr}")
        return done.stdout.strip()

    @contextmanager
    def serving(self) -> Iterator[str]:
        """Run its hetserver; the URL."""
        port = free_port()
        url, command = f"http://127.0.0.1:{port}", [self._bin / "hetserver", "--port", str(port)]
        with subprocess.Popen(command, cwd=self.work, env=self.environ, stdin=subprocess.DEVNULL) as process:
            try:
                end = time.monotonic() + WAIT_S
                while self.run("hetctl", "--server", url, "get").returncode != 0:
                    check(time.monotonic() < end, "hetserver does not answer")
                yield url
            finally:
                process.terminate()


def without_torch(env: Environment) -> None:
    """Server, hetctl and client work; hetagent says what it needs."""
    where = env.python("import hetrdzv; print(hetrdzv.__file__)")
    check(str(ROOT) not in where, f"hetrdzv is the checkout's: {where}")
    check(env.python("import importlib.util as u; print(u.find_spec('torch'))") == "None", "torch is there")
    for name in ("hetserver", "hetctl"):
        said = env.run(name, "--version").stdout
        check(said.strip() == f"{name}, version {__version__}", f"{name} --version says {said!r}")
    with env.serving() as url:
        said = env.run("hetctl", "--server", url, "create", "g", "--nnodes", "2").stdout
        check(said.startswith("group 'g' exists and is waiting"), f"hetctl create says {said!r}")
        code = (
            "import asyncio; from hetrdzv.client import Client\n"
            f"async def main():\n async with Client(['{url}']) as c: print((await c.group('g')).state)\n"
            "asyncio.run(main())"
        )
        check(env.python(code) == "waiting", "the client does not see the group")
    refused = env.run("hetagent", "--standalone", "train.py")
    advice = "pip install 'hetrdzv[agent]'"
    check(advice in refused.stderr and "Traceback" not in refused.stderr, f"hetagent says {refused.stderr!r}")
    say("without torch: hetserver, hetctl and the client work, hetagent says what to install")


def with_torch(env: Environment) -> None:
    """A job of two workers ends well."""
    (env.work / "train.py").write_text(
        "import torch.distributed as dist\ndist.init_process_group('gloo')\ndist.barrier()\n"
        "print(f'rank {dist.get_rank()} of {dist.get_world_size()}', flush=True)\ndist.destroy_process_group()\n"
    )
    done = env.run("hetagent", "--standalone", "--device", "cpu", "--gpus", "2", "train.py")
    ranks = sorted(re.findall(r"rank \d of \d", done.stdout))
    right = (done.returncode, ranks) == (0, ["rank 0 of 2", "rank 1 of 2"])
    check(right, f"the job: {done.stdout}{done.stderr}")
    say("with torch: a job of two workers succeeds")


def main() -> None:
    """Build, check, install, try."""
    parser = argparse.ArgumentParser(description="build and try the distribution; see make dist")
    parser.add_argument("--without-torch", action="store_true", help="leave the job out")
    args = parser.parse_args()
    sdist, wheel = build()
    check_contents(sdist, wheel)
    check_metadata(wheel)
    tries = {"": without_torch} if args.without_torch else {"": without_torch, "[agent]": with_torch}
    for extra, work in tries.items():
        with tempfile.TemporaryDirectory(prefix="hetrdzv-dist-") as folder:
            work(Environment(Path(folder), wheel, extra))


if __name__ == "__main__":
    main()
