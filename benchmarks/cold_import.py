"""`import torch` from a cold and slow disk, as it is and after the agent's read-ahead (root, and cgroups version 1).

    python -m benchmarks.cold_import [--iops 300] [--tries 5]

The disk is a file of this machine behind a loop device with an ext4 of its own, on which torch is copied. It is mounted
anew for each try, so nothing of it is in memory, and its reads are throttled to so many a second, as those of a network
disk are by its provider; the kernel reads 128 KiB ahead, its usual default.
"""

import argparse
import contextlib
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from benchmarks.outcomes import say, table

IMAGE_BYTES = 2 << 30
READ_AHEAD_KIB = 128
CGROUPS = Path("/sys/fs/cgroup/blkio")

OWN_MOUNTS = "HETRDZV_COLD_IMPORT"
"""Set once this program has a mount namespace of its own."""

IMPORT = "import torch"
READ_AHEAD = """
from hetagent.node import page_cache
page_cache.is_remote = lambda folder: True
page_cache.read_ahead().join()
"""


def main() -> None:
    """Measure, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--iops", type=int, default=300, help="reads a second (default: 300)")
    parser.add_argument("--tries", type=int, default=5, help="of each (default: 5)")
    args = parser.parse_args()
    if os.geteuid() != 0 or not CGROUPS.is_dir():
        sys.exit("needs root, for loop devices, and the blkio controller of cgroups version 1")
    if OWN_MOUNTS not in os.environ:
        # A mount that another program's namespace has copied would stay, with its cache.
        os.environ[OWN_MOUNTS] = "1"
        os.execvp(
            "unshare", ["unshare", "--mount", sys.executable, "-m", "benchmarks.cold_import", *sys.argv[1:]]
        )
    seconds: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="hetrdzv-cold-") as name:
        folder = Path(name)
        make(folder / "image", folder / "disk")
        for _ in range(args.tries):
            for what, programs in (
                ("import torch", [IMPORT]),
                ("the read-ahead", [READ_AHEAD]),
                ("import torch, the read-ahead beside it", [READ_AHEAD, IMPORT]),
            ):
                with mounted(folder / "image", folder / "disk", args.iops) as cgroup:
                    taken = run(programs, folder / "disk", cgroup)
                    seconds.setdefault(what, []).append(taken[-1])
                    if programs == [READ_AHEAD]:
                        after = run([IMPORT], folder / "disk", cgroup)
                        seconds.setdefault("import torch, after the read-ahead", []).append(after[-1])
                say(f"{what}: {taken[-1]:.1f} s")
    rows = [
        [what, f"{statistics.median(all_):.1f} s", f"{max(all_):.1f} s"] for what, all_ in seconds.items()
    ]
    print(table([f"from a disk with {args.iops} reads a second", "median", "worst"], rows))


def make(image: Path, disk: Path) -> None:
    """Make the disk, with torch on it."""
    spec = find_spec("torch")
    assert spec is not None
    assert spec.submodule_search_locations
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    disk.mkdir()
    subprocess.run(["mount", "-o", "loop", str(image), str(disk)], check=True)
    try:
        shutil.copytree(spec.submodule_search_locations[0], disk / "torch", symlinks=True)
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@contextlib.contextmanager
def mounted(image: Path, disk: Path, iops: int) -> Iterator[Path]:
    """The disk, cold, for the length of a block; yields the cgroup in which it is slow."""
    subprocess.run(["mount", "-o", "loop,ro", str(image), str(disk)], check=True)
    cgroup = CGROUPS / f"hetrdzv-{os.getpid()}"
    cgroup.mkdir()
    try:
        number = os.stat(disk).st_dev
        device = f"{os.major(number)}:{os.minor(number)}"
        Path(f"/sys/dev/block/{device}/queue/read_ahead_kb").write_text(str(READ_AHEAD_KIB))
        (cgroup / "blkio.throttle.read_iops_device").write_text(f"{device} {iops}")
        yield cgroup
    finally:
        cgroup.rmdir()
        subprocess.run(["umount", str(disk)], check=True)


def run(programs: list[str], disk: Path, cgroup: Path) -> list[float]:
    """Start programs at the same time; how long each took, in seconds."""
    join_cgroup = ["sh", "-c", 'echo $$ > "$0"; exec "$@"', str(cgroup / "cgroup.procs")]
    environ = os.environ | {"PYTHONPATH": str(disk), "PYTHONDONTWRITEBYTECODE": "1"}
    began = time.monotonic()
    running = [
        subprocess.Popen([*join_cgroup, sys.executable, "-c", program], env=environ) for program in programs
    ]
    seconds = {}
    while len(seconds) < len(running):
        for index, process in enumerate(running):
            if index not in seconds and (status := process.poll()) is not None:
                assert status == 0, programs[index]
                seconds[index] = time.monotonic() - began
        time.sleep(0.01)
    return [seconds[index] for index in range(len(running))]


if __name__ == "__main__":
    main()
