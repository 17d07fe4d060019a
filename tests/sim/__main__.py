"""Runs seeds: python -m tests.sim --seeds 1000 --from 0 [--jobs 2]; one seed with its trace: --seeds 1 -v."""

import argparse
import multiprocessing
import sys
import time
from collections import Counter

from tests.sim.world import Outcome, run


def tell(outcome: Outcome, *, lines: int | None = None) -> str:
    """A story, for people: its trace, what failed, and how to see it again."""
    trace = outcome.trace if lines is None else outcome.trace[-lines:]
    text = [f"{moment:9.3f}  {who:<7} {what}" for moment, who, what in trace]
    if outcome.check:
        text += [f"seed {outcome.seed} fails: {outcome.check}: {outcome.what}"]
        text += [f"replay: python -m tests.sim --seeds 1 --from {outcome.seed} -v"]
    else:
        text += [
            f"seed {outcome.seed}: the group is {outcome.state}, {outcome.settled_s:.0f} s after the last fault"
        ]
    return "\n".join(text)


def main() -> int:
    """Returns the exit status: 1 where a check failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.sim", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, metavar="N", help="how many (default: 1000)")
    parser.add_argument("--from", type=int, default=0, metavar="K", dest="first", help="the first one")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes (default: 1)")
    parser.add_argument("--keep-going", action="store_true", help="do not end with the first seed that fails")
    parser.add_argument("-v", "--verbose", action="store_true", help="print every trace")
    args = parser.parse_args()
    began, cpu_before = time.monotonic(), time.process_time()
    faults: Counter[str] = Counter()
    events: Counter[str] = Counter()
    states: Counter[str] = Counter()
    wrong: list[Outcome] = []
    slowest_s, done = 0.0, 0
    seeds = range(args.first, args.first + args.seeds)
    with multiprocessing.Pool(args.jobs) as pool:
        for outcome in pool.imap(run, seeds, chunksize=10) if args.jobs > 1 else map(run, seeds):
            done += 1
            faults += outcome.counts
            events += outcome.events
            states[outcome.state] += 1
            slowest_s = max(slowest_s, outcome.settled_s)
            if args.verbose or (outcome.check and not wrong):
                print(tell(outcome, lines=None if args.verbose else 60), flush=True)
            if outcome.check:
                wrong.append(outcome)
                if not args.keep_going:
                    break
                if len(wrong) > 1:
                    print(f"seed {outcome.seed} fails: {outcome.check}: {outcome.what}", flush=True)
    took_s, cpu_s = time.monotonic() - began, time.process_time() - cpu_before
    print(
        f"{done} seeds in {took_s:.1f} s ({cpu_s:.1f} s of CPU), {len(wrong)} failed; "
        f"the slowest got over it in {slowest_s:.0f} s"
    )
    print("ended " + ", ".join(f"{state}: {number}" for state, number in states.most_common()))
    print("faults: " + ", ".join(f"{name} {number}" for name, number in faults.most_common()))
    print("events: " + ", ".join(f"{name} {number}" for name, number in events.most_common()))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
