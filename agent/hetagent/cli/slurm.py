"""Defaults from Slurm's environment, for an agent that srun started as a task of a job step.

Tried with Slurm 22.05; docs/launch.md says what was found.
"""

import re
import signal
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hetagent.errors import UsageError
from hetagent.options.torchrun import TORCHRUNS_SIGNALS
from hetagent.options.values import UNHANDLED
from hetrdzv.protocol.texts.phrasing import count as counted

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
    is_heterogeneous: bool
    gpus: int | None
    preempt: signal.Signals | None
    preempt_s: int | None = None

    @property
    def place(self) -> str:
        """This node, in words."""
        return f"node {self.node}" if self.node else "this node"


def fill(
    args: Namespace,
    environ: Mapping[str, str],
    group: str | None,
    nnodes: tuple[int, int] | None,
    signals: Sequence[signal.Signals],
) -> Sequence[str]:
    """Fill in flags that were not given from the environment of a job step.

    Args:
        group, nnodes: as given; None: they were not.
        signals: those of `--signals-to-handle`, given or not.

    Returns:
        what was taken, and what looks like a mistake.

    Raises:
        UsageError: what the flags ask for cannot work in this step.
    """
    args.own_graces_s = {}
    is_counted = args.gpus is not None or args.nproc_per_node is not None
    step = step_of(environ, reads_gpus=not is_counted)
    if step is None:
        return ()
    _refuse_several_tasks(step, args)
    notes = [
        *_gpu_notes(step, args),
        *_node_notes(step, args, group, nnodes),
        *_signal_notes(step, args, signals),
    ]
    taken = []
    if group is None:
        args.group = step.job
        taken.append(f"group {step.job}")
    if args.node_id is None and step.node is not None:
        args.node_id = step.node
        taken.append(f"node id {step.node}")
    if not is_counted and step.gpus:
        args.gpus = str(step.gpus)
        taken.append(counted(step.gpus, "CPU worker" if args.device == "cpu" else "GPU"))
    # otherwise another step of this job, or another job, may add nodes to the group; or not all take part
    is_whole = not args.standalone and args.world_size is None and args.world_size_multiple is None
    if group is None and nnodes is None and is_whole and step.job_nodes == step.nodes:
        args.nnodes = str(step.nodes)
        taken.append(counted(step.nodes, "node"))
    return _take_signal(step, args, environ, signals, taken, notes)


def _take_signal(
    step: Step,
    args: Namespace,
    environ: Mapping[str, str],
    signals: Sequence[signal.Signals],
    taken: list[str],
    notes: list[str],
) -> Sequence[str]:
    """Handle Slurm's signal, and say what was taken."""
    has_grace = args.grace_s is not None or environ.get("HET_GRACE_S")
    if step.preempt is not None and step.preempt_s is not None and not has_grace:
        args.own_graces_s = {step.preempt: float(max(0, step.preempt_s - EARLY_S))}
    if args.signals_to_handle == TORCHRUNS_SIGNALS:
        sent = () if step.preempt is None or step.preempt in UNHANDLED else (step.preempt,)
        every = dict.fromkeys((*signals, *CUSTOMARY_SIGNALS, *sent))
        args.signals_to_handle = ",".join(each.name for each in every)
        taken += [f"{each.name} before the end" for each in sent]
        taken += [f"{grace_s:g} s from then on" for grace_s in args.own_graces_s.values() if sent]
    if taken:
        notes.insert(0, f"from Slurm's job step {step.job}.{step.number}: {', '.join(taken)}")
    return notes


def step_of(environ: Mapping[str, str], *, reads_gpus: bool) -> Step | None:
    """The step in which srun started this process; None elsewhere, as in a batch script or salloc's shell.

    Args:
        reads_gpus: whether an unreadable count of GPUs is an error.

    Raises:
        UsageError: a variable of the step has a value that Slurm would not give it.
    """
    job, number = environ.get("SLURM_JOB_ID"), environ.get("SLURM_STEP_ID", "")
    if not job or not number.isdecimal() or int(number) >= FIRST_SPECIAL_STEP:
        return None
    if any(of_step not in environ or environ[of_step] != environ.get(name) for of_step, name in SAME.items()):
        return None
    preempt, preempt_s = _warning(environ)
    gpus = _number(environ, "SLURM_GPUS_ON_NODE")
    if reads_gpus and gpus is None and (text := environ.get("SLURM_GPUS_ON_NODE")):
        raise UsageError(f"SLURM_GPUS_ON_NODE={text} is not a number of GPUs: give --gpus")
    components = _number(environ, "SLURM_HET_SIZE") or 1
    return Step(
        job=job,
        number=number,
        node=environ.get("SLURMD_NODENAME") or None,
        nodes=_number(environ, "SLURM_STEP_NUM_NODES") or 1,
        job_nodes=_job_nodes(environ, components),
        tasks=len(environ.get("SLURM_GTIDS", "0").split(",")),
        is_heterogeneous=components > 1,
        gpus=gpus,
        preempt=preempt,
        preempt_s=preempt_s,
    )


# -- reading -------------------------------------------------------------------------------------------------


def _number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else None


def _job_nodes(environ: Mapping[str, str], components: int) -> int | None:
    """The nodes of all components: SLURM_JOB_NUM_NODES counts only those that this step runs on."""
    if components == 1:
        return _number(environ, "SLURM_JOB_NUM_NODES")
    counts = [_number(environ, f"SLURM_JOB_NUM_NODES_HET_GROUP_{index}") for index in range(components)]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == components else None


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


def _refuse_several_tasks(step: Step, args: Namespace) -> None:
    is_divided = args.node_id is not None and (args.gpus is not None or args.nproc_per_node is not None)
    if step.tasks == 1 or is_divided:  # by somebody who names every agent
        return
    # srun ignores --ntasks-per-node=1 alone if --ntasks, or sbatch's --ntasks-per-node, asks for more tasks
    cure = "--ntasks-per-node=1" if step.is_heterogeneous else f"--ntasks={step.nodes} --ntasks-per-node=1"
    raise UsageError(
        f"srun starts {step.tasks} tasks on {step.place}, but hetagent needs one: add {cure} to srun"
    )


def _gpu_notes(step: Step, args: Namespace) -> list[str]:
    """Notes on a number of GPUs or workers that differs from Slurm's.

    Raises:
        UsageError: the step has fewer GPUs here.
    """
    if step.gpus is None or args.device == "cpu":
        return []
    here = f"{counted(step.gpus, 'GPU')} on {step.place}"
    if args.gpus is not None and (wanted := _wanted(args.gpus)) is not None:
        count, needed = wanted
        if needed > step.gpus:
            raise UsageError(
                f"--gpus {args.gpus}, but Slurm gave this job step {here} (SLURM_GPUS_ON_NODE): "
                f"ask Slurm for more, for example sbatch --gpus-per-node={needed}, or hetagent for fewer"
            )
        if count < step.gpus and step.tasks == 1:
            return [f"--gpus {args.gpus}: Slurm gave this job step {here}, the rest stay unused"]
    workers = args.nproc_per_node
    if workers is not None and workers.isdecimal() and int(workers) != step.gpus:
        return [f"--nproc-per-node {workers}: Slurm gave this job step {here}"]
    return []


def _wanted(gpus: str) -> tuple[int, int] | None:
    """How many GPUs `--gpus` asks for, and how many the node must have for that; None for `auto`, or no number."""
    entries = [entry.strip() for entry in gpus.strip().removesuffix(",").split(",")]
    if not all(entry.isascii() and entry.isdecimal() for entry in entries):
        return None
    return (len(entries), 1 + max(map(int, entries))) if "," in gpus else (int(gpus), int(gpus))


def _node_notes(step: Step, args: Namespace, group: str | None, nnodes: tuple[int, int] | None) -> list[str]:
    """Notes on a number of nodes that differs from Slurm's.

    Raises:
        UsageError: the job has fewer nodes.
    """
    if args.standalone and step.nodes > 1:
        return [f"--standalone: each of this job step's {step.nodes} nodes runs a job of its own"]
    if nnodes is None or args.standalone:
        return []
    fewest, most = nnodes
    asked = f"--nnodes {fewest}" if fewest == most else f"--nnodes {fewest}:{most}"
    if group is None and step.job_nodes is not None and fewest > step.job_nodes:
        raise UsageError(
            f"{asked}, but Slurm's job {step.job}, which is the group, has {counted(step.job_nodes, 'node')}: "
            f"ask Slurm for {fewest} (sbatch --nodes={fewest}), or name the group that others join (--group)"
        )
    if most < step.nodes:
        return [f"{asked}: srun starts hetagent on {step.nodes} nodes; those beyond {most} are spares"]
    return []


def _signal_notes(step: Step, args: Namespace, signals: Sequence[signal.Signals]) -> list[str]:
    if step.preempt is None:
        return []
    sends = f"Slurm sends {step.preempt.name} before the job ends"
    if step.preempt in UNHANDLED:
        return [f"{sends}, and no program can handle that"]
    if args.signals_to_handle != TORCHRUNS_SIGNALS and step.preempt not in signals:
        return [f"{sends}, but --signals-to-handle does not list it: it will kill this agent"]
    return []
