"""The table of optional features."""

from collections.abc import Sequence

from hetagent.check import CheckOnly
from hetagent.feature import Feature
from hetagent.job.announced import LeaveInTime
from hetagent.job.output.collapse import Collapse
from hetagent.job.progress import Watch
from hetagent.job.ready.node_check import SiteCheck
from hetagent.job.ready_file import ReadyFile
from hetagent.job.snapshots import KeepSnapshots
from hetagent.options.slurm import Slurm
from hetagent.sharing import ShareWork
from hetagent.standby import Preload

FEATURES: Sequence[type[Feature]] = (
    CheckOnly,
    Slurm,
    Collapse,
    Watch,
    ShareWork,
    SiteCheck,
    ReadyFile,
    LeaveInTime,
    KeepSnapshots,
    Preload,
)
"""In the order in which they look at the command line."""
