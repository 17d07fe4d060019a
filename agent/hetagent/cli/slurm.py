"""Defaults from Slurm's environment, for an agent that srun started as a task of a job step.

Tried with Slurm 22.05; docs/launch.md says what was found.
"""

import re
import signal
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from hetagent.cli import given
from hetagent.errors import UsageError
from hetagent.node.console import counted
from hetagent.options.torchrun import TORCHRUNS_SIGNALS
from hetagent.options.values import UNHANDLED

FIRST_SPECIAL_STEP = 0xFFFFFFF0
"""From here on, steps are not srun's: the batch script, salloc's shell, the container of sshd."""

EARLY_S = 5
"""So much before Slurm kills a node its agent is gone (seconds)."""

CUSTOMARY_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)
"""What people use in `--signal`. Slurm does not tell a job which it was; unhandled, these kill the agent."""

SAME: Mapping[str, str] = {
    "SLURM_STEP_NUM_NODES": "SLURM_NNODES",
    "SLURM_STEP_TASKS_PER_NODE": "SLURM_TASKS_PER_NODE",
}
"""Variables of a step, and those that have the same value in a step but describe the job elsewhere.

A job that is submitted from within a step inherits the former: its batch script would look like a task.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What the flags say, or variables that stand for flags; None means "not given".

    Attributes:
        gpus: as `--gpus`.
        workers: as `--nproc-per-node`.
        cpu: `--device cpu`.
        nnodes: the bounds of `--nnodes`.
        world_size: the nodes are chosen by their slots, so not all of them need take part.
        signals: `--signals-to-handle`, unless it is torchrun's default.
        grace: whether somebody said how long a node has that has to go.
    """

    group: str | None = None
    node_id: str | None = None
    gpus: str | None = None
    workers: str | None = None
    cpu: bool = False
    nnodes: tuple[int, int] | None = None
    world_size: bool = False
    signals: tuple[signal.Signals, ...] | None = None
    grace: bool = False
    standalone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Defaults:
    """Values for flags that were not given; None where Slurm does not say either.

    Attributes:
        gpus: how many.
        nnodes: how many, if this step has all nodes of the job.
        signals: those to handle besides `--signals-to-handle`.
        own_graces_s: how long a node has from a signal that Slurm sends before others (seconds).
        notes: what was taken, and what looks like a mistake, to show at the start.
    """

    group: str | None = None
    node_id: str | None = None
    gpus: int | None = None
    nnodes: int | None = None
    signals: tuple[signal.Signals, ...] = ()
    own_graces_s: Mapping[signal.Signals, float] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The job step that this process belongs to.

    Attributes:
        job: id of the job; in a heterogeneous job, that of its first component.
        nodes: how many nodes the step has.
        job_nodes: how many the job has; None if Slurm does not say.
        tasks: how many tasks the step has on this node.
        gpus: how many GPUs the step has on this node; None if it was given none.
        preempt: the signal that Slurm sends before the job ends, if somebody exported it.
        preempt_s: how long before that (seconds), if somebody exported it.
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
    preempt_s: int | None = None


def fill(args: Namespace, environ: Mapping[str, str]) -> Sequence[str]:
    """Fill in flags that were not given from the environment of a job step.

    Returns:
        what was taken, and what looks like a mistake.

    Raises:
        UsageError: what the flags ask for cannot work in this step.
    """
    signals = given.signals(args)
    from_slurm = defaults(
        environ,
        Given(
            group=given.group(args, environ),
            node_id=args.node_id,
            gpus=args.gpus,
            workers=args.nproc_per_node,
            cpu=args.device == "cpu",
            nnodes=given.nnodes(args),
            signals=None if args.signals_to_handle == TORCHRUNS_SIGNALS else signals,
            grace=args.grace_s is not None or bool(environ.get("HET_GRACE_S")),
            world_size=args.world_size is not None or args.world_size_multiple is not None,
            standalone=bool(args.standalone),
        ),
    )
    for name in ("group", "node_id", "gpus", "nnodes"):
        if (value := getattr(from_slurm, name)) is not None:
            setattr(args, name, str(value))
    if from_slurm.signals:
        args.signals_to_handle = ",".join(
            dict.fromkeys(each.name for each in (*signals, *from_slurm.signals))
        )
    args.own_graces_s = from_slurm.own_graces_s
    return from_slurm.notes


def defaults(environ: Mapping[str, str], given: Given) -> Defaults:
    """Defaults from Slurm's environment for what was not given; none outside a job step.

    Raises:
        UsageError: what the flags ask for cannot work in this step.
    """
    step = step_of(environ, gpus=given.gpus is None and given.workers is None)
    if step is None:
        return Defaults()
    _refuse_several_tasks(step, given)
    notes = [*_gpu_notes(step, given), *_node_notes(step, given), *_signal_notes(step, given)]
    is_slurms = given.group is None
    taken = Defaults(
        group=step.job if is_slurms else None,
        node_id=step.node if given.node_id is None else None,
        gpus=step.gpus or None if given.gpus is None and given.workers is None else None,
        # otherwise another step of this job, or another job, may add nodes to the group
        nnodes=step.nodes if is_slurms and given.nnodes is None and _alone(step, given) else None,
        signals=_signals(step) if given.signals is None else (),
        own_graces_s={} if given.grace else _own_graces_s(step),
    )
    if told := _told(taken, step, given):
        notes.insert(0, f"from Slurm's job step {step.job}.{step.number}: {told}")
    return replace(taken, notes=tuple(notes))


def step_of(environ: Mapping[str, str], *, gpus: bool = True) -> Step | None:
    """The step in which srun started this process; None elsewhere, as in a batch script or salloc's shell.

    Args:
        gpus: whether an unreadable count of GPUs is an error.

    Raises:
        UsageError: a variable of the step has a value that Slurm would not give it.
    """
    job, number = environ.get("SLURM_JOB_ID"), environ.get("SLURM_STEP_ID", "")
    if not job or not number.isdecimal() or int(number) >= FIRST_SPECIAL_STEP:
        return None
    if any(of_step not in environ or environ[of_step] != environ.get(name) for of_step, name in SAME.items()):
        return None
    preempt, preempt_s = _warning(environ)
    return Step(
        job=job,
        number=number,
        node=environ.get("SLURMD_NODENAME") or None,
        nodes=_number(environ, "SLURM_STEP_NUM_NODES") or 1,
        job_nodes=_job_nodes(environ),
        tasks=len(environ.get("SLURM_GTIDS", "0").split(",")),
        heterogeneous=_components(environ) > 1,
        gpus=_gpus(environ) if gpus else _number(environ, "SLURM_GPUS_ON_NODE"),
        preempt=preempt,
        preempt_s=preempt_s,
    )


# -- reading -------------------------------------------------------------------------------------------------


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else None


def _components(environ: Mapping[str, str]) -> int:
    """How many components a heterogeneous job has; 1 for any other."""
    return _number(environ, "SLURM_HET_SIZE") or 1


def _job_nodes(environ: Mapping[str, str]) -> int | None:
    """The nodes of all components: SLURM_JOB_NUM_NODES counts only those that this step runs on."""
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
        raise UsageError(f"SLURM_GPUS_ON_NODE={text} is not a number of GPUs: give --gpus")
    return count


def _warning(environ: Mapping[str, str]) -> tuple[signal.Signals | None, int | None]:
    """The signal, and how long before the end it comes, in srun's and sbatch's variables for `--signal`,
    `[B:|R:]SIGNAL[@SECONDS]`.

    They are there if the user exported them. Slurm does not report a `--signal` on a command line or in a script.
    """
    for name in ("SLURM_SIGNAL", "SBATCH_SIGNAL"):
        if not (text := environ.get(name)):
            continue
        match = re.fullmatch(r"(?:[BR]+:)?(\w+)(?:@(\d{1,6}))?", text)
        signum = _signal(match[1]) if match is not None else None
        if match is None or signum is None:
            raise UsageError(
                f"{name}={text} does not name a signal: write it as for srun --signal, such as USR1@120"
            )
        return signum, int(match[2]) if match[2] else None
    return None, None


def _signal(text: str) -> signal.Signals | None:
    try:
        if text.isdecimal():
            return signal.Signals(int(text))
        return signal.Signals[f"SIG{text.upper().removeprefix('SIG')}"]
    except (KeyError, ValueError):
        return None


# -- judging -------------------------------------------------------------------------------------------------


def _told(taken: Defaults, step: Step, given: Given) -> str:
    """What was taken, in words; empty if nothing was."""
    told = []
    if taken.group is not None:
        told.append(f"group {taken.group}")
    if taken.node_id is not None:
        told.append(f"node id {taken.node_id}")
    if taken.gpus is not None:
        told.append(counted(taken.gpus, "CPU worker" if given.cpu else "GPU"))
    if taken.nnodes is not None:
        told.append(counted(taken.nnodes, "node"))
    if step.preempt is not None and step.preempt in taken.signals:
        told.append(f"{step.preempt.name} before the end")
        told += [f"{grace_s:g} s from then on" for grace_s in taken.own_graces_s.values()]
    return ", ".join(told)


def _alone(step: Step, given: Given) -> bool:
    """Whether the group will have all of this step's nodes and no others."""
    return not given.standalone and not given.world_size and step.job_nodes == step.nodes


def _signals(step: Step) -> tuple[signal.Signals, ...]:
    if step.preempt is None or step.preempt in UNHANDLED:
        return CUSTOMARY_SIGNALS
    return tuple(dict.fromkeys((*CUSTOMARY_SIGNALS, step.preempt)))


def _own_graces_s(step: Step) -> Mapping[signal.Signals, float]:
    if step.preempt is None or step.preempt_s is None:
        return {}
    return {step.preempt: float(max(0, step.preempt_s - EARLY_S))}


def _refuse_several_tasks(step: Step, given: Given) -> None:
    if step.tasks == 1:
        return
    if given.node_id is not None and (given.gpus is not None or given.workers is not None):
        return  # somebody divides the node up and names every agent
    where = f"on node {step.node}" if step.node else "on this node"
    # srun ignores --ntasks-per-node=1 alone if --ntasks, or sbatch's --ntasks-per-node, asks for more tasks
    cure = "--ntasks-per-node=1" if step.heterogeneous else f"--ntasks={step.nodes} --ntasks-per-node=1"
    raise UsageError(f"srun starts {step.tasks} tasks {where}, but hetagent needs one: add {cure} to srun")


def _gpu_notes(step: Step, given: Given) -> list[str]:
    """Notes on a number of GPUs or workers that differs from Slurm's.

    Raises:
        UsageError: the step has fewer GPUs here.
    """
    if step.gpus is None or given.cpu:
        return []
    here = f"{counted(step.gpus, 'GPU')} on {f'node {step.node}' if step.node else 'this node'}"
    if given.gpus is not None:
        wanted = _wanted(given.gpus)
        if wanted is not None and max(wanted.needed, wanted.count) > step.gpus:
            raise UsageError(
                f"--gpus {given.gpus}, but Slurm gave this job step {here} (SLURM_GPUS_ON_NODE): "
                f"ask Slurm for more, for example sbatch --gpus-per-node={wanted.needed}, or hetagent for fewer"
            )
        if wanted is not None and wanted.count < step.gpus and step.tasks == 1:
            return [f"--gpus {given.gpus}: Slurm gave this job step {here}, the rest stay unused"]
    if given.workers is not None and given.workers.isdecimal() and int(given.workers) != step.gpus:
        return [f"--nproc-per-node {given.workers}: Slurm gave this job step {here}"]
    return []


@dataclass(frozen=True, slots=True)
class _Wanted:
    """How many GPUs `--gpus` asks for, and how many the node must have for that."""

    count: int
    needed: int


def _wanted(gpus: str) -> _Wanted | None:
    """None for `auto`, and for a malformed value, which is refused elsewhere."""
    entries = [entry.strip() for entry in gpus.strip().removesuffix(",").split(",")]
    if not all(entry.isascii() and entry.isdecimal() for entry in entries):
        return None
    if "," in gpus:
        return _Wanted(len(entries), 1 + max(map(int, entries)))
    return _Wanted(int(gpus), int(gpus))


def _node_notes(step: Step, given: Given) -> list[str]:
    """Notes on a number of nodes that differs from Slurm's.

    Raises:
        UsageError: the job has fewer nodes.
    """
    if given.standalone and step.nodes > 1:
        return [f"--standalone: each of this job step's {step.nodes} nodes runs a job of its own"]
    if given.nnodes is None or given.standalone:
        return []
    fewest, most = given.nnodes
    asked = f"--nnodes {fewest}" if fewest == most else f"--nnodes {fewest}:{most}"
    if given.group is None and step.job_nodes is not None and fewest > step.job_nodes:
        raise UsageError(
            f"{asked}, but Slurm's job {step.job}, which is the group, has {counted(step.job_nodes, 'node')}: "
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
        return [f"Slurm sends {name} before the job ends, and no program can handle that"]
    if given.signals is not None and step.preempt not in given.signals:
        sends = f"Slurm sends {name} before the job ends"
        return [f"{sends}, but --signals-to-handle does not list it: it will kill this agent"]
    return []
