"""What people should know of the nodes and workers of a group, though it runs."""

from collections.abc import Mapping, Sequence

from hetrdzv.protocol.reasons.reason import Reason, ReasonCode, reason
from hetrdzv.protocol.texts.phrasing import count, have, singular_or_plural
from hetrdzv.protocol.texts.who import Nodes

PARTS: Mapping[str, tuple[str, int]] = {
    "torch": ("torch", 3),
    "cuda": ("CUDA", 3),
    "rocm": ("ROCm", 3),
    "nccl": ("NCCL", 3),
    "python": ("Python", 2),
    "driver": ("GPU driver", 1),
    "script": ("a script with checksum", 0),
}
"""What should be the same on all nodes, and how many numbers of its version, by its key in `Offer.device`."""

Version = tuple[str, Nodes]
"""A version of something, and the nodes that have it."""


def versions_differ(part: str, versions: Sequence[Version], more: int = 0) -> Reason:
    """Nodes have different versions of something that should be the same: the rarest first, `more` are not named."""
    (first, of_first), *others = versions
    shown = [f"{have(of_first)} {PARTS[part][0]} {first}"]
    shown += [f"{have(nodes)} {version}" for version, nodes in others]
    if more:
        shown.append(f"{count(more, 'more version')} on other nodes")
    return reason(ReasonCode.VERSIONS_DIFFER, ", ".join(shown), nodes=of_first, part=part)


def no_label(label: str, nodes: Nodes, *, units: bool = False) -> Reason:
    """Nodes lack a label by which ranks are ordered, or units are formed."""
    if units:
        by, so = "units are formed", f"{singular_or_plural(nodes, 'it', 'each')} is a unit by itself"
    else:
        by, so = "ranks are ordered", f"{singular_or_plural(nodes, 'it comes', 'they come')} last"
    text = f"{have(nodes)} no label {label}, by which {by}: {so}"
    return reason(ReasonCode.NO_LABEL, text, nodes=nodes, label=label)
