"""What workers do with a node's folder, without torch: also a program that waits to be asked to save.

python standin.py STEP [why]     it saves STEP, or says why it cannot
"""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

SHARED_BYTES = 64


def part(folder: Path, slot: int, stamp: tuple[int, int], rank: int = 0, **more: Any) -> dict[str, Any]:
    """Write a rank's part of a snapshot, which a test may change; returns its index."""
    place = folder / str(slot)
    place.mkdir(exist_ok=True)
    named(folder, slot, stamp)
    (place / "shared.bin").write_bytes(os.urandom(SHARED_BYTES))
    (place / f"{rank}.small").write_bytes(b"small")
    index: dict[str, Any] = {"v": 1, "stamp": list(stamp), "rank": rank, "writer": rank, "world_size": 2}
    files = {"shared.bin": [SHARED_BYTES, "0"], f"{rank}.small": [5, "0"]}
    index |= {"sharded": False, "shared": True, "tensors": [], "files": files, **more}
    put(place / f"{rank}.json", json.dumps(index))
    return index


def named(folder: Path, slot: int, stamp: tuple[int, int]) -> None:
    """Give a slot to a snapshot."""
    for path in folder.glob("*-*"):
        if path.is_symlink() and os.readlink(path) == str(slot):
            path.unlink()
    (folder / "{}-{}".format(*stamp)).symlink_to(str(slot))


def put(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.new{os.getpid()}")
    new.write_text(text)
    os.replace(new, path)


def main() -> None:
    folder, rank = Path(os.environ["HET_SNAPSHOTS"]), int(os.environ["RANK"])
    step, why = int(sys.argv[1]), " ".join(sys.argv[2:])
    pipe = folder / "ask" / str(rank)
    os.mkfifo(pipe)
    fd = os.open(pipe, os.O_RDWR)

    def answer() -> None:
        assert os.read(fd, 1)
        if not why:
            part(
                folder,
                0,
                (int(os.environ["HET_ROUND"]), step),
                rank,
                world_size=int(os.environ["WORLD_SIZE"]),
            )
        (folder / "ask" / f"{rank}.step").write_text(f"{step}")
        told = {"step": None if why else step, "why": why}
        put(folder / "ask" / f"{rank}.done", json.dumps(told))

    threading.Thread(target=answer, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0 if (folder / "ask" / f"{rank}.done").exists() else 9))
    Path(f"up.{rank}.{os.environ['HET_ROUND']}").touch()
    while True:
        time.sleep(1)


if __name__ == "__main__":
    main()
