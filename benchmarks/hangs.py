"""What is said of workers that hang, how soon, and whether the right one is blamed.

    python -m benchmarks.hangs [--tries 20] [--timeout-s 5] [--kind sleeps ...]

Three workers on two nodes, with standbys; each round hangs (benchmarks/hanging.py), is ended by `--hang-timeout-s`, and
the next one hangs. Seconds run from the moment at which the victim does it. A worker that is only slow must not end its
round.
"""

import argparse
import json
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.support.cluster import Cluster

from benchmarks.tables import Table, median

NODES = {"a": 2, "b": 1}

KINDS = (
    "sleeps",
    "holds the GIL",
    "is stopped",
    "blocks in the kernel",
    "waits elsewhere",
    "asks for something else",
    "is slow",
)

SCRIPT = Path(__file__).with_name("hanging.py")

WATCHED_S = 60.0
"""For how long one that is slow is looked at (seconds)."""


class Job:
    """One job that hangs again and again in the same way."""

    def __init__(self, folder: Path, kind: str, timeout_s: float) -> None:
        flags = ["--nnodes", "2", "--hang-timeout-s", f"{timeout_s:g}", "--max-restarts", "1000"]
        flags += ["--restart-wait-s", "0"]  # one hang after another
        flags += ["--stop-timeout-s", "1", "--preload", "torch"]
        self._folder, self._kind = folder, kind
        self._cluster = Cluster(folder, *flags)

    def run(self, tries: int, limit_s: float) -> tuple[list[dict[str, Any]], list[dict[str, Any]], Any]:
        """Let it hang so many times; the hangs, the events, and the group in the end."""
        with self._cluster as job:
            for name, slots in NODES.items():
                job.agent(name, slots, script=str(SCRIPT), args=[self._kind, str(self._folder)])
            until = time.monotonic() + limit_s
            while time.monotonic() < until and len(self._ended(job)) < tries:
                time.sleep(0.2)
            return self._hangs(), job.events(), job.group()

    def _ended(self, job: Cluster) -> list[str]:
        return job.told("round_ended") if job.group() else []

    def _hangs(self) -> list[dict[str, Any]]:
        path = self._folder / "hangs"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _is_named(reason: Mapping[str, Any], rank: int) -> bool:
    """Whether a rank is blamed, or stands alone at its place where some wait for each other."""
    alone = re.search(rf"\brank {rank}\b", reason["message"]) is not None
    return reason["ranks"] == [[rank, rank]] or alone


def main() -> None:
    """Run every kind, print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tries", type=int, default=20, help="of each kind (default: 20)")
    parser.add_argument("--timeout-s", type=float, default=5.0, help="--hang-timeout-s (default: 5)")
    parser.add_argument("--kind", action="append", choices=KINDS, help="only this one; may be repeated")
    args = parser.parse_args()
    table = Table(
        f"Hangs of one of three workers on two nodes, `--hang-timeout-s {args.timeout_s:g}`",
        "the worker",
        "tried",
        "right rank named",
        "round ended after: median, worst",
        "said",
    )
    folder = Path(tempfile.mkdtemp(prefix="hetrdzv-hangs-"))
    wrong = 0
    for kind in args.kind or KINDS:
        place = folder / kind.replace(" ", "-")
        place.mkdir()
        limit_s = WATCHED_S if kind == "is slow" else args.tries * (args.timeout_s + 30)
        hangs, events, group = Job(place, kind, args.timeout_s).run(args.tries, limit_s)
        ended = {one["reason"]["round"]: one for one in events if one["reason"]["code"] == "round_ended"}
        if kind == "is slow":
            what = "not ended" if not ended else f"ended {len(ended)} times"
            table.row(kind, 1, "-", what, group["reason"]["message"])
            wrong += bool(ended) or "runs on" not in group["reason"]["message"]
            continue
        seconds, right, said = [], 0, ""
        for hang in hangs[: args.tries]:
            end = ended.get(hang["round"])
            if end is None:
                continue
            seconds.append(datetime.fromisoformat(end["at"]).timestamp() - hang["at"])
            named = _is_named(end["reason"]["cause"], hang["rank"])
            right += named
            said = end["reason"]["message"] if named or not said else said
        wrong += right < args.tries
        worst = max(seconds, default=float("nan"))
        table.row(kind, len(seconds), right, f"{median(seconds):.1f} s, {worst:.1f} s", said)
    table.show()
    if wrong:
        print(f"logs are in {folder}")
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
