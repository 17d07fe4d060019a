"""Defaults from Slurm's environment, for an agent that srun started as a task of a job step.

Tried with Slurm 22.05; docs/launch.md says what was found.
"""

import re
import signal
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hetagent.errors import UsageError
from hetagent.options.torchrun import SIGNALS
from hetagent.options.values import UNHANDLED
from hetrdzv.protocol.texts.phrasing import count_text as counted

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
class JobStep:
    """The job step that this process belongs to.

    Attributes:
        job: id of the job; in a heterogeneous job, that of its first component.
        job_nodes: how many the job has; None if Slurm does not say.
        tasks, gpus: of this node; None: it was given no GPUs.
        preempt, preempt_s: the signal that Slurm sends before the job ends, and how long before (seconds), if somebody
            exported it.
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
    preempt_s: int | None


def fill_defaults(args: Namespace, environ: Mapping[str, str]) -> Sequence[str]:
    """Fill in flags that were not given from the environment of a job step.

    Returns:
        what was taken, as a note.

    Raises:
        UsageError: several agents on one node would have the same name.
    """
    args.own_graces_s = {}
    is_counted = args.gpus is not None or args.nproc_per_node is not None
    step = find_job_step(environ)
    if step is None:
        return ()
    if step.tasks > 1 and not (is_counted and args.node_id is not None):  # by somebody who names every agent
        # srun ignores --ntasks-per-node=1 alone if --ntasks, or sbatch's --ntasks-per-node, asks for more tasks
        cure = "" if step.is_heterogeneous else f"--ntasks={step.nodes} "
        raise UsageError(
            f"srun starts {step.tasks} tasks on {step.node or 'this node'}, but hetagent needs one: "
            f"add {cure}--ntasks-per-node=1 to srun"
        )
    taken = []
    # otherwise another step of this job, or another job, may add nodes to the group; or not all take part
    is_whole = not args.standalone and args.world_size is None and args.world_size_multiple is None
    if args.group is None:
        args.group = step.job
        taken.append(f"group {step.job}")
    else:
        is_whole = False
    if args.node_id is None and step.node is not None:
        args.node_id = step.node
        args.given |= {"node_id"}  # no second agent is to get another name here
        taken.append(f"node id {step.node}")
    if not is_counted and step.gpus:
        args.gpus = str(step.gpus)
        taken.append(counted(step.gpus, "CPU worker" if args.device == "cpu" else "GPU"))
    if args.nnodes is None and is_whole and step.job_nodes == step.nodes:
        args.nnodes = (step.nodes, step.nodes)
        taken.append(counted(step.nodes, "node"))
    if step.preempt is not None and step.preempt_s is not None and args.grace_s is None:
        args.own_graces_s = {step.preempt: float(max(0, step.preempt_s - EARLY_S))}
    if args.signals_to_handle is None:
        sent = () if step.preempt is None or step.preempt in UNHANDLED else (step.preempt,)
        args.signals_to_handle = tuple(dict.fromkeys((*SIGNALS, *CUSTOMARY_SIGNALS, *sent)))
        taken += [f"{each.name} before the end" for each in sent]
        taken += [f"{grace_s:g} s from then on" for grace_s in args.own_graces_s.values() if sent]
    return [f"from Slurm's job step {step.job}.{step.number}: {', '.join(taken)}"] if taken else ()


def find_job_step(environ: Mapping[str, str]) -> JobStep | None:
    """The step in which srun started this process; None elsewhere, as in a batch script or salloc's shell.

    Raises:
        UsageError: a variable of the step has a value that Slurm would not give it.
    """
    job, number = environ.get("SLURM_JOB_ID"), environ.get("SLURM_STEP_ID", "")
    if not job or not number.isdecimal() or int(number) >= FIRST_SPECIAL_STEP:
        return None
    if any(of_step not in environ or environ[of_step] != environ.get(name) for of_step, name in SAME.items()):
        return None
    preempt, preempt_s = _read_signal(environ)
    components = _read_number(environ, "SLURM_HET_SIZE") or 1
    return JobStep(
        job=job,
        number=number,
        node=environ.get("SLURMD_NODENAME") or None,
        nodes=_read_number(environ, "SLURM_STEP_NUM_NODES") or 1,
        job_nodes=_count_job_nodes(environ, components),
        tasks=len(environ.get("SLURM_GTIDS", "0").split(",")),
        is_heterogeneous=components > 1,
        gpus=_read_number(environ, "SLURM_GPUS_ON_NODE"),
        preempt=preempt,
        preempt_s=preempt_s,
    )


def _read_number(environ: Mapping[str, str], name: str) -> int | None:
    text = environ.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() else None


def _count_job_nodes(environ: Mapping[str, str], components: int) -> int | None:
    """The nodes of all components: SLURM_JOB_NUM_NODES counts only those that this step runs on."""
    if components == 1:
        return _read_number(environ, "SLURM_JOB_NUM_NODES")
    counts = [_read_number(environ, f"SLURM_JOB_NUM_NODES_HET_GROUP_{index}") for index in range(components)]
    return None if None in counts else sum(filter(None, counts))


def _read_signal(environ: Mapping[str, str]) -> tuple[signal.Signals | None, int | None]:
    """The signal, and how long before the end it comes, in srun's and sbatch's variables for `--signal`,
    `[B:|R:]SIGNAL[@SECONDS]`.

    They are there if the user exported them. Slurm does not report a `--signal` on a command line or in a script.
    """
    name = next((name for name in ("SLURM_SIGNAL", "SBATCH_SIGNAL") if environ.get(name)), None)
    if name is None:
        return None, None
    match = re.fullmatch(r"(?:[BR]+:)?(?:SIG)?(\w+)(?:@(\d{1,6}))?", environ[name].upper())
    try:
        text = match[1] if match is not None else ""
        known = signal.Signals(int(text)) if text.isdecimal() else signal.Signals[f"SIG{text}"]
    except (KeyError, ValueError):
        raise UsageError(
            f"{name}={environ[name]} does not name a signal: write it as for srun --signal, such as USR1@120"
        ) from None
    return known, int(match[2]) if match is not None and match[2] else None
