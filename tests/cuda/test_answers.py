"""What torch's CUDA builds answer the agent: `make test-cuda` asks the real thing, on a machine without a GPU.

No group of NCCL or nccl2 can be made there, so NCCL's answers have the right form and no groups. nccl2 has no recorder
of its own: torch attaches to its groups one that serves any backend. Here it is attached to torch's `fake` backend,
which needs no GPU. docs/torch.md has the table of what was found.
"""

import json
import os
import subprocess
import sys
import time

import pytest

from hetagent.monitor.flight_recorder import FlightRecorderParser
from hetagent.monitor.sources import BACKENDS, make_sources
from hetagent.monitor.stall_detector import WorkerTrack
from hetagent.monitor.worker_probe import NO_PROCESS_GROUP_REASON, WorkerProbe
from tests.cuda.conftest import Start
from tests.support.cluster import wait_for

Release = tuple[int, int]

IMPORTS = "import torch, torch.distributed as dist"

GLOO = f"""{IMPORTS}
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
for _ in range(3):
    dist.all_reduce(torch.ones(10))
side = dist.new_group([0], backend="gloo")
dist.all_reduce(torch.ones(2, 5), group=side)
"""

FIELDS = {"version", "pg_config", "pg_status", "nccl_comm_state"}
ENTRY = {
    "collective_seq_id",
    "input_sizes",
    "is_p2p",
    "op_id",
    "pg_id",
    "process_group",
    "profiling_name",
    "retired",
    "time_created_ns",
}
"""The fields of an entry that are read."""


def told_of(release: Release) -> set[str]:
    """The backends of which a release's server tells, as docs/torch.md has it."""
    told = {"nccl"}
    if release >= (2, 11):
        told.add("gloo")
    if release >= (2, 15):
        told.add("nccl2")
    return told


def test_its_handlers_say_of_which_backends_it_tells(start: Start, release: Release) -> None:
    handlers = start(IMPORTS).handlers
    assert {"dump_nccl_trace_json", "dump_nccl_trace_pickle", "dump_traceback", "ping"} <= set(handlers)
    assert ("fr_trace_json" in handlers) == (release >= (2, 10))
    assert ("fr_dump_file" in handlers) == (release >= (2, 15))
    told = {source.name for source in make_sources(handlers, 2)}
    assert told == told_of(release) | ({"gloo"} if release == (2, 10) else set())  # which records nothing


def test_backends_of_this_build(release: Release) -> None:
    import torch.distributed as dist

    names = ("gloo", "nccl", "nccl2", "nccl-lazy", "nccl-legacy", "xccl", "mpi", "ucc")
    newer = {"nccl2", "nccl-lazy", "nccl-legacy"} if release >= (2, 14) else set()
    assert {name for name in names if dist.is_backend_available(name)} == {"gloo", "nccl", *newer}


@pytest.mark.parametrize("backend", sorted(BACKENDS))
def test_each_question_of_the_agent_is_answered_and_read(
    start: Start, release: Release, backend: str
) -> None:
    if backend not in told_of(release):
        pytest.skip(f"torch {release[0]}.{release[1]} does not tell of {backend}")
    answer = start(IMPORTS).tells(BACKENDS[backend].question)
    assert answer.keys() - {"comm_lib_version", "nccl_version"} == FIELDS  # none in 2.6; the second until 2.8
    seen = FlightRecorderParser(2, counts_operations=BACKENDS[backend].counts_operations).parse(
        json.dumps(answer).encode()
    )
    assert (seen.groups, seen.counts, seen.has_groups) == ([], {}, False)


def test_gloo_is_seen_with_torchs_own_settings(start: Start, release: Release) -> None:
    """The recorder is on unless TORCH_FR_BUFFER_SIZE is 0."""
    if "gloo" not in told_of(release):
        pytest.skip("this torch does not tell of gloo")
    answer = start(GLOO).tells("fr_trace_json")
    assert all(entry.keys() >= ENTRY for entry in answer["entries"])
    first, second = FlightRecorderParser(1).parse(json.dumps(answer).encode()).groups
    assert (first.name, first.enqueued, first.completed, first.op) == ("0", 3, 3, "all_reduce [[10]]")
    assert (second.name, second.enqueued, second.op) == ("1", 1, "all_reduce [[2,5]]")


def test_a_recorder_that_is_off_knows_of_no_group(start: Start, release: Release) -> None:
    if "gloo" not in told_of(release):
        pytest.skip("this torch does not tell of gloo")
    answer = start(GLOO, TORCH_FR_BUFFER_SIZE="0").tells("fr_trace_json")
    assert not FlightRecorderParser(1).parse(json.dumps(answer).encode()).has_groups


HOOKED = f"""{IMPORTS}
import torch.testing._internal.distributed.fake_pg
from torch._C._distributed_c10d import FlightRecorderHook
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
group = dist.new_group([0], backend="fake")
hook = FlightRecorderHook.attach(group, [0])
"""
LINES = {
    "reduces": "dist.all_reduce(torch.ones(10), group=group)",
    "sends": "group.send([torch.ones(3)], 0, 0)",
}


@pytest.mark.parametrize(
    "does",
    [("reduces",), ("reduces", "sends"), ("sends", "reduces"), ("reduces", "sends", "sends", "reduces")],
)
def test_sends_and_receives_of_nccl2_are_told_from_collectives(
    start: Start, release: Release, does: tuple[str, ...]
) -> None:
    if "nccl2" not in told_of(release):
        pytest.skip("this torch has no recorder for nccl2")
    answer = start(HOOKED + "\n".join(LINES[one] for one in does)).tells("fr_trace_json?backend=fake")
    assert all(entry.keys() >= ENTRY for entry in answer["entries"])
    assert [entry["op_id"] for entry in answer["entries"]] == list(range(len(does))), "numbers begin with 0"
    assert {status["last_started_collective"] for status in answer["pg_status"].values()} == {"-1"}
    assert [entry["is_p2p"] for entry in answer["entries"]] == [one == "sends" for one in does]
    (group,) = FlightRecorderParser(2, "/fake").parse(json.dumps(answer).encode()).groups
    assert (group.enqueued, group.size, group.op) == (does.count("reduces"), 1, "all_reduce [[10]]")


DEVICES = """
import os, types
import torch, torch.distributed.distributed_c10d as c10d
torch.cuda.device_count = lambda: 4
def chosen(rank, local_rank=None):
    os.environ.pop("LOCAL_RANK", None)
    if local_rank is not None:
        os.environ["LOCAL_RANK"] = str(local_rank)
    group = types.SimpleNamespace(bound_device_id=None)
    options = types.SimpleNamespace(
        enable_reconfigure=False, process_group=group, global_ranks_in_group=[], group_rank=rank
    )
    return c10d._nccl2_device(options).index
print([chosen(rank) for rank in (3, 4, 5, 6)], [chosen(3 + one, one) for one in range(4)])
c10d._register_builtin_nccl_backend()
print(c10d.Backend._plugins["NCCL"].creator_fn.__name__)
"""


@pytest.mark.parametrize(
    ("environ", "creator"),
    [
        ({}, "_create_nccl2_process_group"),
        ({"TORCH_DIST_USE_NCCL2": "0"}, "_create_nccl_process_group"),
    ],
    ids=["default", "TORCH_DIST_USE_NCCL2=0"],
)
def test_which_nccl_and_which_gpu_a_script_gets_without_set_device(
    release: Release, environ: dict[str, str], creator: str
) -> None:
    """Four workers after three on other nodes: see docs/launch.md."""
    if release < (2, 15):
        pytest.skip("before 2.15 torch takes nccl2 only where it is asked for")
    done = subprocess.run(
        [sys.executable, "-c", DEVICES], env=os.environ | environ, capture_output=True, text=True, check=True
    )
    assert done.stdout == f"[3, 0, 1, 2] [0, 1, 2, 3]\n{creator}\n"


def test_an_agent_sees_a_worker_as_far_as_its_torch_tells(start: Start, release: Release) -> None:
    server = start(GLOO)
    probe = WorkerProbe(
        WorkerTrack(time.monotonic(), pid=server.worker.pid), 1, str(server.path.with_suffix("")), cpu=True
    )
    try:

        def looked() -> bool:
            probe.probe(time.monotonic())
            while probe.query is not None:
                probe.read_answer()
            return probe.sources is not None and all(one.dump is not None for one in probe.sources)

        wait_for(looked, "answers")
        why = probe.unknown_reason(time.monotonic())
    finally:
        probe.close()
    if "gloo" in told_of(release):
        assert why == ""
        assert [one.name for one in probe.track.groups] == ["0", "1"]
    else:
        assert why == NO_PROCESS_GROUP_REASON


def test_it_shows_stacks(start: Start) -> None:
    status, body = start(IMPORTS).ask("dump_traceback")
    assert status == "200"
    assert b"script.py" in body
