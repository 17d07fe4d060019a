"""Profiles the server while nodes poll: cProfile's list of functions by their own time, for as long as is asked for.

    python -m benchmarks.profiled [--nodes 400] [--groups 1] [--state waiting|running|joining|starting] [--seconds 20]

cProfile makes everything slower, small functions most of all, so shares mean something and seconds do not;
`benchmarks.poll` has those. Where py-spy is allowed, `py-spy record -d 20 -p PID -o poll.svg` on a server under
`benchmarks.idle` says it without that.
"""

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

from benchmarks.load import Fleet, plans
from benchmarks.poll import RAMP_S, SETTLE_S, settled
from benchmarks.serving import hetserver, raise_file_limit
from benchmarks.tables import machine


async def _profile(options: argparse.Namespace) -> str:
    launcher = (sys.executable, str(Path(__file__).with_name("profiler.py")))
    with hetserver(options.nodes, options.store, launcher=launcher) as server:
        spare = options.state in ("waiting", "joining")
        fleet = Fleet(server.port, plans("profile", options.nodes, options.groups, spare=spare))
        once = {"joining": "waiting", "starting": "running"}.get(options.state)  # the way there
        if once is None and not await settled(fleet, options.state, options.within):
            return f"not {options.state} within {options.within:g} s"
        await asyncio.sleep(SETTLE_S)
        polls = fleet.counts.polls
        os.kill(server.pid, signal.SIGUSR1)
        if once is not None:
            await settled(fleet, once, options.seconds)
        else:
            await asyncio.sleep(options.seconds)
        os.kill(server.pid, signal.SIGUSR1)
        polls = fleet.counts.polls - polls
        async with asyncio.timeout(30):
            while "\nprofiled" not in server.log:  # noqa: ASYNC110 - another process writes it
                await asyncio.sleep(0.05)
        await fleet.close()
        return (
            f"{server.log}\n{polls} polls of {options.nodes} nodes, {fleet.counts.joins} joins ({machine()})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--nodes", type=int, default=400)
    parser.add_argument("--groups", type=int, default=1)
    parser.add_argument("--state", choices=("waiting", "running", "joining", "starting"), default="waiting")
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument(
        "--within", type=float, default=RAMP_S, help="how long nodes may take to join (seconds)"
    )
    parser.add_argument("--store", default="sqlite")
    options = parser.parse_args()
    raise_file_limit(options.nodes + 200)
    print(asyncio.run(_profile(options)))


if __name__ == "__main__":
    main()
