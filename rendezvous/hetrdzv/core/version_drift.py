"""What differs between the nodes of a group and matters: versions of torch, NCCL, CUDA, Python, driver and script.

GPUs of different types are what a group is for, so they are no difference here. A node that does not say what it has
is left out.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache

from hetrdzv.core.model import Node
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode, make_reason
from hetrdzv.protocol.settings import GroupSpec, parse_rank_order
from hetrdzv.protocol.texts.ids import natural_key
from hetrdzv.protocol.texts.node_rank_lists import NodeList
from hetrdzv.protocol.texts.phrasing import count_text, nodes_have

COMPARED_VERSIONS: Mapping[str, tuple[str, int]] = {
    "torch": ("torch", 3),
    "cuda": ("CUDA", 3),
    "rocm": ("ROCm", 3),
    "nccl": ("NCCL", 3),
    "python": ("Python", 2),
    "driver": ("GPU driver", 1),
    "script": ("a script with checksum", 0),
}
"""What should be the same on all nodes, and how many numbers of its version, by its key in `Offer.device`."""

MAX_LISTED_VERSIONS = 4
"""How many versions a warning names; the others are counted."""

MAX_VERSION_CHARACTERS = 16
"""How much of a version, or of what is none, is told."""


def find_version_differences(nodes: Sequence[Node]) -> tuple[Reason, ...]:
    """Each difference that matters: `gpu3 has torch 2.12.1, gpu1, gpu2 have 2.13.0`; scripts only within a role."""
    differences = []
    for name, (_, counts) in COMPARED_VERSIONS.items():
        having: defaultdict[str, defaultdict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
        for node in nodes:
            if version := _shorten_version(node.device.get(name, ""), counts):
                having["" if counts else node.role][version].append(node.node_id)
        differences += [
            describe_version_differences(name, of_role) for of_role in having.values() if len(of_role) > 1
        ]
    return tuple(differences)


def describe_missing_labels(spec: GroupSpec, nodes: Sequence[Node]) -> tuple[Reason, ...]:
    """The labels that `rank_order` or `unit` names and nodes lack."""
    needed = [("rank_order", label) for label in parse_rank_order(spec.rank_order)]
    if spec.unit is not None:
        needed.append(("unit", spec.unit))
    return tuple(
        ReasonCode.NO_LABEL.reason(*without, label=label, setting=setting)
        for setting, label in needed
        if (without := [node.node_id for node in nodes if label not in node.labels])
    )


@lru_cache(maxsize=256)
def _shorten_version(text: str, parts: int) -> str:
    """The first numbers of a version, without what follows them (`2.13.0+cu130`); with no parts, how a text begins."""
    match = re.match(rf"\d+(?:\.\d+){{0,{parts - 1}}}" if parts else ".*", text)
    return match[0][:MAX_VERSION_CHARACTERS] if match is not None else ""


def describe_version_differences(part: str, having: Mapping[str, Sequence[str]]) -> Reason:
    """Which nodes have which version of something that should be the same, the rarest first."""
    versions = sorted(
        having.items(), key=lambda version: (len(version[1]), min(map(natural_key, version[1])))
    )
    (first, of_first), *others = [
        (version, NodeList.of(names)) for version, names in versions[:MAX_LISTED_VERSIONS]
    ]
    shown = [f"{nodes_have(of_first)} {COMPARED_VERSIONS[part][0]} {first}"]
    shown += [f"{nodes_have(nodes)} {version}" for version, nodes in others]
    if more := len(versions) - len(shown):
        shown.append(f"{count_text(more, 'more version')} on other nodes")
    return make_reason(ReasonCode.VERSIONS_DIFFER, ", ".join(shown), nodes=of_first, part=part)
