"""What hetagent takes from Slurm, in environments recorded from Slurm 22.05: job steps and what looks like one."""

import signal

import pytest

from hetagent.cli.parse import parse_command_line
from hetagent.errors import UsageError
from hetagent.options.model import Options
from hetagent.options.torchrun import SIGNALS
from hetagent.options.values import GRACE_S

SERVER = ("--server", "http://host:29400")
CUSTOMARY = (signal.SIGUSR1, signal.SIGUSR2)

BATCH = {
    "SLURMD_NODENAME": "n1",
    "SLURM_GPUS_ON_NODE": "2",
    "SLURM_GTIDS": "0",
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_LOCALID": "0",
    "SLURM_NNODES": "2",
    "SLURM_NODEID": "0",
    "SLURM_PROCID": "0",
    "SLURM_TASKS_PER_NODE": "2(x2)",
    "SLURM_TASK_PID": "4383",
}
SALLOC = {
    "SLURM_JOB_ID": "17",
    "SLURM_JOB_NUM_NODES": "2",
    "SLURM_NNODES": "2",
    "SLURM_TASKS_PER_NODE": "1(x2)",
}
STEP = BATCH | {
    "SLURM_JOB_ID": "17",
    "SLURM_STEP_ID": "0",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_TASKS_PER_NODE": "1(x2)",
    "SLURM_TASKS_PER_NODE": "1(x2)",
}
SECOND = STEP | {"SLURMD_NODENAME": "n2", "SLURM_GPUS_ON_NODE": "1", "SLURM_GTIDS": "1", "SLURM_NODEID": "1"}
ONE_OF_TWO = STEP | {
    "SLURM_NNODES": "1",
    "SLURM_STEP_NUM_NODES": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1",
    "SLURM_TASKS_PER_NODE": "1",
}
HETEROGENEOUS = STEP | {
    "SLURM_HET_SIZE": "2",
    "SLURM_JOB_ID_HET_GROUP_0": "17",
    "SLURM_JOB_ID_HET_GROUP_1": "18",
    "SLURM_JOB_NUM_NODES_HET_GROUP_0": "1",
    "SLURM_JOB_NUM_NODES_HET_GROUP_1": "1",
}
ONE_COMPONENT = HETEROGENEOUS | ONE_OF_TWO | {"SLURM_JOB_NUM_NODES": "1", "SLURM_HET_SIZE": "2"}
SEVERAL = STEP | {
    "SLURM_GTIDS": "0,1,2,3",
    "SLURM_STEP_TASKS_PER_NODE": "4(x2)",
    "SLURM_TASKS_PER_NODE": "4(x2)",
}
WITHOUT_GPUS = {name: value for name, value in STEP.items() if name != "SLURM_GPUS_ON_NODE"}


@pytest.fixture(autouse=True)
def host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "login")


def options(environ: dict[str, str], *argv: str) -> Options:
    return parse_command_line([*SERVER, *argv, "train.py"], environ)


def nnodes(found: Options) -> tuple[object, object]:
    return found.spec.get("min_nodes"), found.spec.get("max_nodes")


def test_a_step_says_group_node_slots_and_how_many_nodes() -> None:
    first, second = options(STEP), options(SECOND)
    assert (first.group, first.node_id, first.gpus) == ("17", "n1", "2")
    assert (second.group, second.node_id, second.gpus) == ("17", "n2", "1")
    assert nnodes(first) == nnodes(second) == (2, 2)
    assert "node_id" in first.given, "a second agent here is refused, not given another name"
    assert first.notes == ("from Slurm's job step 17.0: group 17, node id n1, 2 GPUs, 2 nodes",)
    assert second.notes == ("from Slurm's job step 17.0: group 17, node id n2, 1 GPU, 2 nodes",)


@pytest.mark.parametrize(
    "environ",
    [
        {},
        BATCH,
        SALLOC,
        BATCH | {"SLURM_STEP_ID": "4294967291"},  # the batch step
        ONE_OF_TWO | {"SLURM_STEP_ID": "4294967290"},  # an interactive step
        # a batch script that is submitted, and salloc, in a step
        BATCH | {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "1"},
        SALLOC | {"SLURM_STEP_ID": "0", "SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "1"},
        SALLOC | {"SLURM_STEP_ID": "0"},  # half of it
        {"SLURM_STEP_ID": "0", "SLURM_CONF": "/etc/slurm/slurm.conf"},
    ],
)
def test_elsewhere_nothing_is_taken(environ: dict[str, str]) -> None:
    found = options(environ)
    assert (found.group, found.node_id, found.gpus, found.spec) == ("default", "login", None, {})
    assert (found.signals, found.notes) == (SIGNALS, ())


def test_flags_and_their_variables_win() -> None:
    found = options(STEP, "--group", "bert", "--node-id", "mine", "--gpus", "2", "--nnodes", "1:2")
    assert (found.group, found.node_id, found.gpus, nnodes(found)) == ("bert", "mine", "2", (1, 2))
    assert found.notes == ()
    assert nnodes(options(STEP, "--nnodes", "1:2")) == (1, 2)
    assert options(STEP, "--nproc-per-node", "2").gpus is None
    assert options(STEP, "--rdzv-id", "bert").group == "bert"
    assert options(STEP, "--world-size-multiple", "2").spec == {"world_size_multiple": 2}
    found = options(STEP | {"PET_NNODES": "1:2", "PET_NPROC_PER_NODE": "2", "PET_RDZV_ID": "gpt"})
    assert (found.group, found.gpus, found.nproc_per_node, nnodes(found)) == ("gpt", None, "2", (1, 2))


UNTOLD = {name: value for name, value in ONE_COMPONENT.items() if "NUM_NODES_HET_GROUP_1" not in name}


@pytest.mark.parametrize(
    ("environ", "flags", "group", "gpus", "there"),
    [
        (STEP, ("--group", "bert"), "bert", "2", None),  # may have nodes from elsewhere
        (STEP | {"HET_GROUP": "bert"}, (), "bert", "2", None),
        (ONE_OF_TWO, (), "17", "2", None),  # a step on some nodes of its job
        (HETEROGENEOUS, (), "17", "2", (2, 2)),  # its components are counted together
        (ONE_COMPONENT, (), "17", "2", None),
        (UNTOLD, (), "17", "2", None),
        (STEP | {"SLURM_ARRAY_JOB_ID": "15", "SLURM_ARRAY_TASK_ID": "1"}, (), "17", "2", (2, 2)),
        (WITHOUT_GPUS, (), "17", None, (2, 2)),
        (STEP | {"SLURM_GPUS_ON_NODE": "0"}, (), "17", None, (2, 2)),
        (STEP, ("--device", "cpu"), "17", "2", (2, 2)),  # as many workers as GPUs
    ],
)
def test_what_a_step_says(
    environ: dict[str, str],
    flags: tuple[str, ...],
    group: str,
    gpus: str | None,
    there: tuple[int, int] | None,
) -> None:
    found = options(environ, *flags)
    assert (found.group, found.gpus, nnodes(found)) == (group, gpus, there or (None, None))
    assert ("2 CPU workers" in found.notes[0]) == ("cpu" in flags)


def test_standalone_takes_no_number_of_nodes() -> None:
    found = parse_command_line(["--standalone", "train.py"], ONE_OF_TWO | {"SLURM_JOB_NUM_NODES": "1"})
    assert (found.group, found.gpus, nnodes(found), len(found.notes)) == ("17", "2", (1, 1), 1)


def test_the_usual_signals_are_handled_in_a_step_unless_others_are_asked_for() -> None:
    """Slurm does not report `#SBATCH --signal=USR1@60`."""
    assert options(STEP).signals == SIGNALS + CUSTOMARY
    assert "SIG" not in options(STEP).notes[0]
    assert options(STEP | {"SBATCH_SIGNAL": "KILL@60"}).signals == SIGNALS + CUSTOMARY
    found = options(STEP | {"SBATCH_SIGNAL": "USR1@60"}, "--signals-to-handle", "SIGTERM")
    assert found.signals == (signal.SIGTERM,)


@pytest.mark.parametrize(
    ("text", "signum", "grace_s"),
    [
        ("USR1@60", signal.SIGUSR1, 55),
        ("SIGUSR2", signal.SIGUSR2, None),
        ("B:usr2@600", signal.SIGUSR2, 595),
        ("R:10@60", signal.SIGUSR1, 55),
        ("BR:XCPU@0", signal.SIGXCPU, 0),
        ("TERM@30", signal.SIGTERM, 25),
    ],
)
def test_an_exported_signal_is_handled_and_noted(
    text: str, signum: signal.Signals, grace_s: int | None
) -> None:
    found = options(STEP | {"SBATCH_SIGNAL": text})
    assert found.signals == tuple(dict.fromkeys((*SIGNALS, *CUSTOMARY, signum)))
    after = "" if grace_s is None else f", {grace_s} s from then on"
    assert found.notes[0].endswith(f", {signum.name} before the end{after}")
    assert (found.grace_s, found.own_graces_s) == (GRACE_S, {} if grace_s is None else {signum: grace_s})
    given = options(STEP | {"SLURM_SIGNAL": text, "HET_GRACE_S": "7"})
    assert (given.grace_s, given.own_graces_s) == (7, {}), "for all signals"


@pytest.mark.parametrize("text", ["USRX@60", "99", "@60", "USR1@soon", "B:", "USR1@60 "])
def test_a_malformed_signal(text: str) -> None:
    with pytest.raises(
        UsageError, match=r"^SLURM_SIGNAL=.* does not name a signal: write it as for srun --signal"
    ):
        options(STEP | {"SLURM_SIGNAL": text})


ONE = "srun starts 4 tasks on n1, but hetagent needs one: add {}--ntasks-per-node=1 to srun"


def test_several_tasks_on_a_node_are_refused_unless_each_has_a_name() -> None:
    for environ, cure in ((SEVERAL, "--ntasks=2 "), (SEVERAL | {"SLURM_HET_SIZE": "2"}, "")):
        with pytest.raises(UsageError) as caught:
            options(environ, "--gpus", "1")
        assert str(caught.value) == ONE.format(cure)
    assert options(SEVERAL, *["--gpus", "1", "--node-id", "n1-0", "--nnodes", "1:8"]).node_id == "n1-0"
