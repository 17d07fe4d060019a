"""The options of one agent, checked and typed."""

import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hetagent.options.values import Streams

SPOT = "spot"
"""The value of `--watch`."""

SHM = "/dev/shm"
"""Where Linux has memory that looks like files."""

TO_EVERY_S, KEEP = 600, 3
"""How often snapshots are written to disk unless a person says so (seconds), and how many are kept there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchrunOptions:
    """Those of torchrun's options that pass unchanged to torch's agent, each with torchrun's meaning."""

    role: str
    module: bool
    no_python: bool
    run_path: bool
    virtual_local_rank: bool
    numa_binding: str | None
    log_dir: str | None
    log_line_prefix_template: str | None
    logs_specs: str | None
    redirects: Streams
    tee: Streams
    local_ranks_filter: frozenset[int] | None
    duplicate_stdout_filters: tuple[str, ...]
    duplicate_stderr_filters: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOptions:
    """`--snapshot-dir`, `--snapshot-memory` and so on.

    Attributes:
        dir: where the node's folder is made; None: in `SHM`, if there is one.
        memory: what all snapshots of the node may take (bytes); 0: there are none; None: half of what is free.
        every_s: how far apart they are at most (seconds).
        to: the directory that they are written to; None: they are not.
        to_every_s: how often (seconds).
        keep: how many are kept there.
    """

    dir: Path | None
    memory: int | None
    every_s: int
    to: Path | None
    to_every_s: int
    keep: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the person asked for, with defaults from Slurm and the like filled in. None means "not given".

    Attributes:
        given: the names of the flags that were typed; `node_id` if Slurm has said it, too.
        servers: URLs; empty with `standalone`.
        node_id: if it was not given, it is the host name, to which a second agent of the group on this host adds a
            number (node/names.py).
        gpus, nproc_per_node: as given; at most one of them.
        spec: the given settings of the group, by name.
        signals: the agent stops its workers and leaves on these.
        shutdown_timeout_s: seconds between SIGTERM and SIGKILL on this node; None: the group's.
        grace_s: how long this node has from SIGTERM to the agent until it has to be gone (seconds).
        own_graces_s: the same for signals that come earlier than others (seconds).
        script: the training script, module or program; None: the group's command.
        notes: remarks to show at the start.
        preload: what standbys import; empty: there are to be none.
    """

    given: frozenset[str]
    servers: tuple[str, ...]
    group: str
    node_id: str
    gpus: str | None
    nproc_per_node: str | None
    device: str
    token_file: Path | None
    ca_cert: Path | None
    client_cert: Path | None
    client_key: Path | None
    standalone: bool
    local_addr: str | None
    interface: str | None
    port_range: tuple[int, int] | None
    labels: Mapping[str, str]
    weight: float | None
    connect_timeout_s: float
    spec: Mapping[str, object]
    signals: tuple[signal.Signals, ...]
    launch: str
    isolate_gpus: bool
    init_file: Path | None
    report_output: bool
    notice_signal: signal.Signals | None
    require_rendezvous: bool
    exit_codes: str
    shutdown_timeout_s: float | None
    grace_s: float
    own_graces_s: Mapping[signal.Signals, float]
    script: str | None
    script_args: tuple[str, ...]
    notes: tuple[str, ...]
    check: bool
    collapse: bool
    node_check: str | None
    ready_file: Path | None
    watch: str | None
    leave_when: str | None
    preload: Sequence[str]
    snapshots: SnapshotOptions
    torchrun: TorchrunOptions
