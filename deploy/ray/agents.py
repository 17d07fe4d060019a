"""Starts a hetagent on each of several unlike nodes of a Ray cluster, and again where it dies (docs/others.md).

    hetctl create bert --nnodes 2:3 --server http://head:29400 --token-file token
    python agents.py --bundles 8,4,4 -- --server http://head:29400 --token-file token --group bert train.py

Each number is a bundle of a placement group: that many GPUs (`--resource CPU`: CPUs) of one node. What stands after
`--` goes to hetagent, which has to be installed in the nodes' Python. Run it on the head node, or with
`ray job submit`: if it ends, so do the agents. The job is made beforehand, so that it stays finished when it is: an
agent that is started again too late ends as the job did.
"""

import argparse
import os
import subprocess
import sys
import time

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

DRAINED = 4
FINAL = (0, 1, 2, 3, DRAINED)
"""Exit statuses of hetagent after which it makes no sense to try again (docs/flags.md)."""

RESUME = 75
"""An announced stop: the node's machine may be about to go."""

PAUSE_S = 5.0
"""Before an agent is started again (seconds)."""


@ray.remote(max_retries=-1)  # where the node is lost, Ray gives the bundle another one, and runs this there
def run_agent(command: list[str], resume_after_s: float) -> int:
    """Run one agent after another until a status is final."""
    # Ray sets it to the CPUs of the bundle, which is too many for each of several workers
    env = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    while True:
        with subprocess.Popen([sys.executable, "-m", "hetagent", *command], env=env) as agent:
            try:
                status = agent.wait()
            except BaseException:  # Ray stops this worker, or somebody has cancelled the task
                agent.terminate()  # an announced stop, for as long as Ray lets it last
                raise
        if status in FINAL:
            return status
        pause_s = resume_after_s if status == RESUME else PAUSE_S
        print(f"hetagent ended with {status}: starting it again in {pause_s:g} s", flush=True)
        time.sleep(pause_s)


def main() -> int:
    """Run all agents; returns 0, or what the first one that did not succeed has ended with."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bundles", required=True, help="how many GPUs each node gives, as 8,4,4")
    parser.add_argument("--resource", choices=("GPU", "CPU"), default="GPU")
    parser.add_argument(
        "--resume-after-s",
        type=float,
        default=150.0,
        help="after an announced stop, if the machine is still there then (default: 150)",
    )
    parser.add_argument("hetagent", nargs="+", help="arguments of hetagent, the script, its arguments")
    args = parser.parse_args()
    sizes = [int(size) for size in args.bundles.split(",")]
    device = ["--device", "cpu"] if args.resource == "CPU" else []

    ray.init()
    # CPUs beside GPUs: a task wants one
    bundles = [{"CPU": 1.0} | {args.resource: float(size)} for size in sizes]
    group = placement_group(bundles, strategy="SPREAD")
    running = []
    for index, (size, bundle) in enumerate(zip(sizes, bundles, strict=True)):
        # the id is the bundle's: it outlives the node, so that whoever takes its place has its ranks
        own = ["--node-id", f"ray{index}", "--gpus", str(size), "--exit-codes", "agent", *device]
        where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
        task = run_agent.options(
            num_cpus=bundle["CPU"],
            num_gpus=bundle.get("GPU", 0),
            scheduling_strategy=where,
            name=f"hetagent {index}",
        )
        running.append(task.remote([*own, *args.hetagent], args.resume_after_s))
    statuses = ray.get(running)
    print("hetagents ended with", *statuses)
    return next((status for status in statuses if status not in (0, DRAINED)), 0)


if __name__ == "__main__":
    sys.exit(main())
