"""The optional rooms of the house: what each consists of, and the tests that go with it."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Room:
    """An optional feature.

    Attributes:
        paths: its modules and folders; everything else that knows it does so by a row of a table.
        tests: tests of what the room does, which go with it.
    """

    paths: tuple[str, ...]
    tests: tuple[str, ...] = ()


ROOMS: Mapping[str, Room] = {
    "announced": Room(("agent/hetagent/job/announced",), ("tests/agent/job/announced",)),
    "node-check": Room(("agent/hetagent/job/ready/node_check.py",), ("tests/agent/job/test_ready.py",)),
    "ready-file": Room(("agent/hetagent/job/ready_file.py",), ("tests/agent/job/test_ready_file.py",)),
    "torchrun": Room(("agent/hetagent/torchrun",), ("tests/agent/torchrun", "tests/e2e/test_torchrun.py")),
    "mpi": Room(
        ("agent/hetagent/launch/mpi", "agent/hetagent/worker/rsh.py"),
        ("tests/agent/launch/test_mpi.py", "tests/mpi"),
    ),
    "horovod": Room(
        ("agent/hetagent/launch/horovod.py", "agent/hetagent/worker/horovod_store.py"),
        ("tests/agent/launch/test_horovod.py", "tests/horovod"),
    ),
    "collapse": Room(
        ("agent/hetagent/job/output/collapse.py",), ("tests/agent/job/output/test_collapse.py",)
    ),
    "check": Room(("agent/hetagent/check",), ("tests/agent/check",)),
    "slurm": Room(("agent/hetagent/options/slurm.py",), ("tests/agent/options/test_slurm.py", "tests/slurm")),
    "shares": Room(
        (
            "agent/hetagent/sharing",
            "agent/hetagent/shares.py",
            "agent/hetagent/speeds.py",
            "agent/hetagent/uneven.py",
            "rendezvous/hetrdzv/api/shares.py",
            "rendezvous/hetrdzv/cli/hetctl/shares.py",
            "rendezvous/hetrdzv/core/rooms/shares",
            "rendezvous/hetrdzv/protocol/rooms/shares.py",
            "rendezvous/hetrdzv/service/shares.py",
            "rendezvous/hetrdzv/words/shares.py",
        ),
        (
            "tests/agent/job/test_share_files.py",
            "tests/agent/sharing",
            "tests/agent/test_shares.py",
            "tests/agent/test_uneven.py",
            "tests/core/rooms/machine.py",
            "tests/core/rooms/test_shares.py",
            "tests/core/rooms/test_slow_slots.py",
            "tests/e2e/test_shares.py",
            "tests/e2e/test_speeds.py",
            "tests/e2e/test_uneven.py",
            "tests/server/api/test_shares.py",
            "tests/server/test_shares.py",
            "tests/sim/shares.py",
        ),
    ),
    "snapshots": Room(
        (
            "agent/hetagent/job/snapshots",
            "agent/hetagent/snapshots",
            "examples/snapshots",
            "rendezvous/hetrdzv/api/snapshots.py",
            "rendezvous/hetrdzv/cli/hetctl/snapshots.py",
            "rendezvous/hetrdzv/core/rooms/snapshots",
            "rendezvous/hetrdzv/protocol/rooms/snapshots.py",
            "rendezvous/hetrdzv/service/snapshots.py",
            "rendezvous/hetrdzv/words/snapshots.py",
        ),
        (
            "benchmarks/snapshots.py",
            "tests/agent/job/snapshots",
            "tests/agent/snapshots",
            "tests/core/rooms/test_copies.py",
            "tests/core/rooms/test_snapshot_work.py",
            "tests/core/rooms/test_snapshots.py",
            "tests/server/api/test_snapshots.py",
            "tests/server/test_snapshots.py",
            "tests/sim/snapshots.py",
            "tests/support/workload/snapped.py",
            "tests/words/test_snapshots.py",
        ),
    ),
    "watching": Room(
        (
            "agent/hetagent/job/progress",
            "agent/hetagent/worker/torch_server.py",
            "rendezvous/hetrdzv/cli/hetctl/stacks.py",
            "rendezvous/hetrdzv/core/health/stall.py",
            "rendezvous/hetrdzv/core/health/stragglers.py",
            "rendezvous/hetrdzv/core/health/waits.py",
            "rendezvous/hetrdzv/service/progress/hangs.py",
            "rendezvous/hetrdzv/service/progress/slow.py",
            "rendezvous/hetrdzv/service/progress/unseen.py",
        ),
        (
            "tests/agent/job/progress",
            "tests/agent/worker/test_torch_server.py",
            "tests/core/health/test_places.py",
            "tests/core/health/test_stall.py",
            "tests/core/health/test_stragglers.py",
            "tests/cuda",
            "tests/e2e/test_hangs.py",
            "tests/netns/test_hangs.py",
            "tests/server/test_progress.py",
            "tests/server/test_stacks.py",
        ),
    ),
    "standbys": Room(
        ("agent/hetagent/standby",),
        ("tests/agent/standby", "tests/e2e/test_standby.py", "tests/support/standbys.py"),
    ),
    "dashboard": Room(
        (
            "rendezvous/hetrdzv/dashboard",
            "rendezvous/hetrdzv/cli/hetctl/dashboard.py",
            "rendezvous/hetrdzv/protocol/rooms/dashboard.py",
        ),
        ("tests/server/dashboard",),
    ),
    "etcd": Room(
        (
            "rendezvous/hetrdzv/storage/etcd",
            "rendezvous/hetrdzv/service/leadership.py",
            "rendezvous/hetrdzv/cli/etcd.py",
        ),
        ("tests/storage/test_etcd.py", "tests/server/test_leadership.py"),
    ),
}
"""By name, as `python -m tests.rooms NAME` takes it."""
