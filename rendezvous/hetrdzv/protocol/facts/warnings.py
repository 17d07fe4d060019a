"""What people should know of the nodes and workers of a group, though it runs: values for `hetrdzv.words.warnings`."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias

from hetrdzv.protocol.differences import Difference
from hetrdzv.protocol.facts.parts import BY_KIND, SHOWN_BY_KIND, Other, Quoted
from hetrdzv.protocol.rooms.snapshots import NotOnDisk, NotTaken, ValuesDiffer
from hetrdzv.protocol.texts.who import Nodes, Ranks


@dataclass(frozen=True, slots=True)
class Part:
    """Something whose version should be the same on all nodes.

    Attributes:
        title: what people call it.
        counts: how much of the version counts: 1 is the major number, 2 the minor one as well, 3 the patch level too;
            0: all of it, which is no number, and only among nodes of a role.
    """

    title: str
    counts: int


PARTS: Mapping[str, Part] = {
    "torch": Part("torch", 3),
    "cuda": Part("CUDA", 3),
    "rocm": Part("ROCm", 3),
    "nccl": Part("NCCL", 3),
    "python": Part("Python", 2),
    "driver": Part("GPU driver", 1),
    "script": Part("a script with checksum", 0),
}
"""By the fact of a node that has it (a key of `Offer.device`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """Nodes that have the same version of something."""

    version: str
    nodes: Nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Differs:
    """Nodes have different versions of something that should be the same.

    Attributes:
        part: of what, one of `PARTS`.
        odd: the first few versions that few have.
        more: how many versions there are besides.
        usual: the version that most have.
        clear: whether more have that than any other.
    """

    kind: Literal["differs"] = "differs"
    part: str
    odd: tuple[Version, ...]
    more: int = 0
    usual: Version
    clear: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class NoLabel:
    """Nodes lack a label by which ranks are ordered, or units are formed."""

    kind: Literal["no_label"] = "no_label"
    label: str
    orders: Literal["ranks", "units"]
    nodes: Nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class NoWeights:
    """`rank_order` is speed, but no node has a weight."""

    kind: Literal["no_weights"] = "no_weights"


@dataclass(frozen=True, slots=True, kw_only=True)
class Unseen:
    """Why a worker's collectives cannot be known.

    Attributes:
        kind: its agent has told nothing of it, or has stopped to; its script has not imported torch; or as its agent
            says (`said`).
    """

    kind: Literal["never", "stale", "no_torch", "told"]
    said: Quoted | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unwatched:
    """Workers of which nobody can tell whether they hang, and why."""

    kind: Literal["unwatched"] = "unwatched"
    ranks: Ranks
    why: Unseen


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A node was refused lately, since it gave other settings than the group's.

    Attributes:
        differences: the first few; long values are cut.
    """

    kind: Literal["refusal"] = "refusal"
    node_id: str
    differences: tuple[Difference, ...]


RoundWarnings = Differs | NoLabel | NoWeights

RoundWarning: TypeAlias = Annotated[RoundWarnings, BY_KIND]
"""What is known of the nodes of a round as it forms."""

_Known = RoundWarnings | ValuesDiffer | NotOnDisk | NotTaken | Unwatched | Refusal

AnyWarning: TypeAlias = Annotated[_Known | Other, SHOWN_BY_KIND]
