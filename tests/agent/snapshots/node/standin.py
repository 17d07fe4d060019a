"""What workers do with a node's folder, without torch: also a program that waits to be asked to save.

python standin.py STEP [why]     it saves STEP, or says why it cannot
"""

import contextlib
import hashlib
import json
import os
import signal
import sys
import threading
import time
import urllib.request
from pathlib import Path
from typing import Any

SHARED_BYTES = 64


def part(folder: Path, slot: int, stamp: tuple[int, int], rank: int = 0, **more: Any) -> dict[str, Any]:
    """Write a rank's part of a snapshot, which a test may change; returns its index."""
    place = folder / str(slot)
    place.mkdir(exist_ok=True)
    slots = folder / "slots.json"
    known = json.loads(slots.read_bytes()) if slots.exists() else {}
    slots.write_text(json.dumps({**known, str(slot): list(stamp)}))
    (place / "shared.bin").write_bytes(os.urandom(SHARED_BYTES))
    (place / f"{rank}.small").write_bytes(b"small")
    index: dict[str, Any] = {"v": 1, "stamp": list(stamp), "rank": rank, "world_size": 2, "sharded": False}
    files = {"shared.bin": [SHARED_BYTES, "0"], f"{rank}.small": [5, "0"]}
    index |= {"shared": True, "tensors": [], "values": 0, "files": files, **more}
    put(place / f"{rank}.json", json.dumps(index))
    return index


def put(path: Path, text: str) -> None:
    new = path.with_name(f"{path.name}.new{os.getpid()}")
    new.write_text(text)
    os.replace(new, path)


def fetched(source: dict[str, str], name: str) -> bytes:
    """A file of a snapshot, from this node's memory or another node.

    Raises:
        OSError: it is not there.
    """
    if source["path"]:
        return (Path(source["path"]) / name.partition("/")[2]).read_bytes()
    request = urllib.request.Request(
        source["url"] + name, headers={"Authorization": f"Bearer {source['key']}"}
    )
    with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=60) as answer:
        content: bytes = answer.read()
    return content


def load(folder: Path) -> None:
    """Say what was loaded, and from where, and wait for the end of the test; returns if there is no snapshot."""
    os.chdir(folder)
    start = json.loads((Path(os.environ["HET_SNAPSHOTS"]) / "start.json").read_bytes())
    if not start:
        return
    for source in start["sources"]:
        with contextlib.suppress(OSError):
            content = fetched(source, f"{start['round']}-{start['step']}/shared.bin")
            break
    told = [start["step"], source["node"], bool(source["path"]), hashlib.sha256(content).hexdigest()]
    put(folder / f"got.{os.environ['HET_NODE_ID']}", json.dumps(told))
    while not (folder / "over").exists():
        time.sleep(0.01)
    sys.exit(0)


def main() -> None:
    if sys.argv[1] == "load":
        load(Path(sys.argv[2]))
        del sys.argv[1:3]
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
