"""What Slurm's environment tells a task of a job step: changes when Slurm's variables, or what they mean here, do.

Tried with Slurm 22.05; docs/slurm.md has what was found there.
"""

import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace

FIRST_SPECIAL_STEP = 0xFFFFFFF0
"""Steps from here on are none that srun was asked for: the batch script, salloc's shell, the container of sshd."""

CUSTOMARY_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
"""What people name in `--signal`. Slurm does not tell a job what it was; unhandled, these kill the agent."""

UNHANDLED = (signal.SIGKILL, signal.SIGSTOP)
"""No program can handle these."""


class SlurmError(ValueError):
    """Slurm's variables make no sense, or not together with the flags; the text says what to change."""


SAME: Mapping[str, str] = {
    "SLURM_STEP_NUM_NODES": "SLURM_NNODES",
    "SLURM_STEP_TASKS_PER_NODE": "SLURM_TASKS_PER_NODE",
}
"""Variables of a step, with those that are equal to them in a step and speak of the job elsewhere.

A job that is submitted from within a step inherits the first: its batch script would look like a task.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What flags, or variables that stand for flags, say; None stands for: nothing.

    Attributes:
        gpus: as `--gpus`.
        workers: as `--nproc-per-node`.
        cpu: `--device cpu`.
        nnodes: the bounds of `--nnodes`.
        signals: `--signals-to-handle`, where that is not torchrun's default.
    """

    group: str | None = None
    node_id: str | None = None
    gpus: str | None = None
    workers: str | None = None
    cpu: bool = False
    nnodes: tuple[int, int] | None = None
    signals: tuple[signal.Signals, ...] | None = None
    standalone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """What stands in for flags that were not given; None: Slurm does not say either.

    Attributes:
        gpus: how many.
        nnodes: how many, where this step has all nodes of the job.
        signals: that the agent handles beside those of `--signals-to-handle`.
        notes: what was taken, and what may not be meant, to be told at the start.
    """

    group: str | None = None
    node_id: str | None = None
    gpus: int | None = None
    nnodes: int | None = None
    signals: tuple[signal.Signals, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The job step that this process is a task of.

    Attributes:
        job: id of the job; of a heterogeneous one, that of its first component, on all of them.
        nodes: how many nodes the step has.
        job_nodes: how many the job has, None where that is not told.
        tasks: how many tasks the step has on this node.
        gpus: how many GPUs the step has on this node, None where it was given none.
        preempt: the signal that comes before the end, where somebody exported it.
    """

    job: str
    number: str
    node: str | None
    nodes: int
    job_nodes: int | None
    tasks: int
    heterogeneous: bool
    gpus: int | None
    preempt: signal.Signals | None


def defaults(environ: Mapping[str, str], given: Given) -> Defaults:
    """What to take from Slurm's environment where nothing else was given; nothing outside of a job step.

    Raises:
        SlurmError: what the flags want cannot work in this step.
    """
    step = step_of(environ, gpus=given.gpus is None and given.workers is None)
    if step is None:
        return Defaults()
    _refuse_several_tasks(step, given)
    notes = [*_gpu_notes(step, given), *_node_notes(step, given), *_signal_notes(step, given)]
    ours = given.group is None
    taken = Defaults(
        group=step.job if ours else None,
        node_id=step.node if given.node_id is None else None,
        gpus=step.gpus or None if given.gpus is None and given.workers is None else None,
        # another step of this job, or another job, may bring more nodes to the group
        nnodes=step.nodes if ours and given.nnodes is None and _alone(step, given) else None,
        signals=_signals(step) if given.signals is None else (),
    )
    if told := _told(taken, step, given):
        notes.insert(0, f"from Slurm's job step {step.job}.{step.number}: {told}")
    return replace(taken, notes=tuple(notes))


def step_of(environ: Mapping[str, str], *, gpus: bool = True) -> Step | None:
    """The step that this process was started in by srun; None elsewhere, also in a batch script or salloc's shell.

    Args:
        gpus: whether a count of GPUs that cannot be read is an error.

    Raises:
        SlurmError: a variable of the step has no value that Slurm would give it.
    """
    job, number = environ.get("SLURM_JOB_ID"), environ.get("SLURM_STEP_ID", "")
    if not job or not number.isdecimal() or int(number) >= FIRST_SPECIAL_STEP:
        return None
    if any(of_step not in environ or environ[of_step] != environ.get(name) for of_step, name in SAME.items()):
        return None
    return Step(
        job=job,
        number=number,
        node=environ.get("SLURMD_NODENAME") or None,
        nodes=_number(environ, "SLURM_STEP_NUM_NODES") or 1,
        job_nodes=_job_nodes(environ),
        tasks=len(environ.get("SLURM_GTIDS", "0").split(",")),
        heterogeneous=_components(environ) > 1,
        gpus=_gpus(environ) if gpus else _number(environ, "SLURM_GPUS_ON_NODE"),
        preempt=_preempt_signal(environ),
    )


# -- reading -------------------------------------------------------------------------------------------------


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else None


def _components(environ: Mapping[str, str]) -> int:
    """Of how many jobs a heterogeneous job is made."""
    return _number(environ, "SLURM_HET_SIZE") or 1


def _job_nodes(environ: Mapping[str, str]) -> int | None:
    """Of all components: SLURM_JOB_NUM_NODES counts those that this step was started on only."""
    size = _components(environ)
    if size == 1:
        return _number(environ, "SLURM_JOB_NUM_NODES")
    counts = [_number(environ, f"SLURM_JOB_NUM_NODES_HET_GROUP_{index}") for index in range(size)]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == size else None


def _gpus(environ: Mapping[str, str]) -> int | None:
    text = environ.get("SLURM_GPUS_ON_NODE")
    count = _number(environ, "SLURM_GPUS_ON_NODE")
    if text and count is None:
        raise SlurmError(f"SLURM_GPUS_ON_NODE={text} is no number of GPUs: give --gpus")
    return count


def _preempt_signal(environ: Mapping[str, str]) -> signal.Signals | None:
    """From the variables that stand for `--signal` of srun and sbatch, `[B:|R:]SIGNAL[@SECONDS]`.

    Slurm hands down what the user exported. It tells nothing of a `--signal` on a command line or in a script.
    """
    for name in ("SLURM_SIGNAL", "SBATCH_SIGNAL"):
        if not (text := environ.get(name)):
            continue
        found = re.fullmatch(r"(?:[BR]+:)?(\w+)(?:@\d+)?", text)
        signum = _signal(found[1]) if found is not None else None
        if signum is None:
            raise SlurmError(f"{name}={text} names no signal: it must be as in srun --signal, say USR1@120")
        return signum
    return None


def _signal(text: str) -> signal.Signals | None:
    try:
        if text.isdecimal():
            return signal.Signals(int(text))
        return signal.Signals[f"SIG{text.upper().removeprefix('SIG')}"]
    except (KeyError, ValueError):
        return None


# -- judging -------------------------------------------------------------------------------------------------


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"


def _told(taken: Defaults, step: Step, given: Given) -> str:
    """What was taken, in words; empty where nothing was."""
    told = []
    if taken.group is not None:
        told.append(f"group {taken.group}")
    if taken.node_id is not None:
        told.append(f"node id {taken.node_id}")
    if taken.gpus is not None:
        told.append(_count(taken.gpus, "CPU worker" if given.cpu else "GPU"))
    if taken.nnodes is not None:
        told.append(_count(taken.nnodes, "node"))
    if step.preempt is not None and step.preempt in taken.signals:
        told.append(f"{step.preempt.name} ahead of the end")
    return ", ".join(told)


def _alone(step: Step, given: Given) -> bool:
    """Whether this step's nodes are all that the group will have."""
    return not given.standalone and step.job_nodes == step.nodes


def _signals(step: Step) -> tuple[signal.Signals, ...]:
    if step.preempt is None or step.preempt in UNHANDLED:
        return CUSTOMARY_SIGNALS
    return tuple(dict.fromkeys((*CUSTOMARY_SIGNALS, step.preempt)))


def _refuse_several_tasks(step: Step, given: Given) -> None:
    if step.tasks == 1:
        return
    if given.node_id is not None and (given.gpus is not None or given.workers is not None):
        return  # somebody shares out the node, and gives every agent a name
    where = f"on node {step.node}" if step.node else "on this node"
    # alone, --ntasks-per-node=1 is ignored where --ntasks, or sbatch's --ntasks-per-node, asks for more tasks
    cure = "--ntasks-per-node=1" if step.heterogeneous else f"--ntasks={step.nodes} --ntasks-per-node=1"
    raise SlurmError(f"srun starts {step.tasks} tasks {where}, hetagent wants one: add {cure} to srun")


def _gpu_notes(step: Step, given: Given) -> list[str]:
    """What to say of a number of GPUs, or of workers, that is not Slurm's.

    Raises:
        SlurmError: it is more GPUs than the step has here.
    """
    if step.gpus is None or given.cpu:
        return []
    here = f"{_count(step.gpus, 'GPU')} on node {step.node or 'this'}"
    if given.gpus is not None:
        wanted = _wanted(given.gpus)
        if wanted is not None and max(wanted.needed, wanted.count) > step.gpus:
            raise SlurmError(
                f"--gpus {given.gpus}, but Slurm gave this job step {here} (SLURM_GPUS_ON_NODE): "
                f"ask Slurm for more, for example sbatch --gpus-per-node={wanted.needed}, or hetagent for fewer"
            )
        if wanted is not None and wanted.count < step.gpus and step.tasks == 1:
            return [f"--gpus {given.gpus}: Slurm gave this job step {here}, the others stay unused"]
    if given.workers is not None and given.workers.isdecimal() and int(given.workers) != step.gpus:
        return [f"--nproc-per-node {given.workers}: Slurm gave this job step {here}"]
    return []


@dataclass(frozen=True, slots=True)
class _Wanted:
    """How many GPUs `--gpus` asks for, and how many there must be for that."""

    count: int
    needed: int


def _wanted(gpus: str) -> _Wanted | None:
    """None for `auto`, and for what is malformed, which is told elsewhere."""
    entries = [entry.strip() for entry in gpus.strip().removesuffix(",").split(",")]
    if not all(entry.isascii() and entry.isdecimal() for entry in entries):
        return None
    if "," in gpus:
        return _Wanted(len(entries), 1 + max(map(int, entries)))
    return _Wanted(int(gpus), int(gpus))


def _node_notes(step: Step, given: Given) -> list[str]:
    """What to say of a number of nodes that is not Slurm's.

    Raises:
        SlurmError: it is more nodes than the job has.
    """
    if given.standalone and step.nodes > 1:
        return [f"--standalone: each of this job step's {step.nodes} nodes has a job of its own"]
    if given.nnodes is None or given.standalone:
        return []
    fewest, most = given.nnodes
    asked = f"--nnodes {fewest}" if fewest == most else f"--nnodes {fewest}:{most}"
    if given.group is None and step.job_nodes is not None and fewest > step.job_nodes:
        raise SlurmError(
            f"{asked}, but Slurm's job {step.job}, which is the group, has {_count(step.job_nodes, 'node')}: "
            f"ask Slurm for {fewest} (sbatch --nodes={fewest}), or name the group that others join (--group)"
        )
    if most < step.nodes:
        return [f"{asked}: srun starts hetagent on {step.nodes} nodes; those beyond {most} are spares"]
    return []


def _signal_notes(step: Step, given: Given) -> list[str]:
    if step.preempt is None:
        return []
    name = step.preempt.name
    if step.preempt in UNHANDLED:
        return [f"no program can handle {name}, which comes ahead of the end of Slurm's job"]
    if given.signals is not None and step.preempt not in given.signals:
        comes = f"{name} comes ahead of the end of Slurm's job"
        return [f"{comes}, but --signals-to-handle lacks it: it kills this agent"]
    return []
