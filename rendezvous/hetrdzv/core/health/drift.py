"""What differs between the nodes of a group and matters: versions of torch, NCCL, CUDA, Python and the driver.

GPUs of different types are what a group is for, so they are no difference here. A node that does not say what it has
is left out.
"""

import re
from collections.abc import Iterable, Mapping, Sequence

from hetrdzv.core.model import Node
from hetrdzv.core.phrasing import names
from hetrdzv.protocol.ids import natural_key
from hetrdzv.protocol.rank_order import OrderKind, rank_order
from hetrdzv.protocol.settings import GroupSpec

PARTS: Mapping[str, tuple[str, int]] = {
    "torch": ("torch", 3),
    "cuda": ("CUDA", 3),
    "rocm": ("ROCm", 3),
    "nccl": ("NCCL", 3),
    "python": ("Python", 2),
    "driver": ("GPU driver", 1),
}
"""The facts (keys of `Offer.device`) that should be the same, each with its name and how much of a version counts:
1 is the major number, 2 the minor one as well, 3 the patch level too."""

MOST_VALUES = 3
"""How many versions beside the usual one a sentence names; the others are counted."""

MOST_CHARACTERS = 400
"""The longest sentence."""


def drift(nodes: Iterable[Node]) -> tuple[str, ...]:
    """A sentence for each difference that matters: `gpu3 has torch 2.12.1, the others 2.13.0`.

    However many nodes there are, there is at most one sentence of `MOST_CHARACTERS` for each of `PARTS`.
    """
    alike: dict[tuple[str, ...], list[str]] = {}
    for node in nodes:
        device = node.device
        alike.setdefault(tuple([device.get(name, "") for name in PARTS]), []).append(node.node_id)
    found = []
    for place, (what, parts) in enumerate(PARTS.values()):
        having: dict[str, list[str]] = {}
        for facts, node_ids in alike.items():
            if version := _version(facts[place], parts):
                having.setdefault(version, []).extend(node_ids)
        if len(having) > 1:
            found.append(_sentence(what, having))
    return tuple(found)


def unordered(spec: GroupSpec, nodes: Sequence[Node]) -> tuple[str, ...]:
    """A sentence for each label that `rank_order` or `unit` names and nodes lack, or for weights that nobody has."""
    order = rank_order(spec.rank_order)
    found = []
    if order.kind is OrderKind.SPEED and len(nodes) > 1 and all(node.weight == 1 for node in nodes):
        found.append("rank_order is speed, but no node has a --weight: ranks are sticky")
    for label in order.labels:
        without = [node.node_id for node in nodes if label not in node.labels]
        if without:
            text = f"{names(without)} {_have(without)} no label {label}, by which ranks are ordered"
            found.append(f"{text}: {_come(without)} last")
    if spec.unit is not None:
        without = [node.node_id for node in nodes if spec.unit not in node.labels]
        if without:
            each = "it is a unit by itself" if len(without) == 1 else "each is a unit by itself"
            found.append(
                f"{names(without)} {_have(without)} no label {spec.unit}, by which units are formed: {each}"
            )
    return tuple(found)


def _version(text: str, parts: int) -> str:
    """The first numbers of a version, without what follows them (`2.13.0+cu130`); empty if it has none."""
    found = re.match(r"\d+(?:\.\d+)*", text)
    return ".".join(found[0][:64].split(".")[:parts]) if found is not None else ""


def _sentence(what: str, having: Mapping[str, Sequence[str]]) -> str:
    """Which nodes have another version than most; where no version has a majority, all are named."""
    versions = sorted(
        having, key=lambda version: (len(having[version]), min(map(natural_key, having[version])))
    )
    *odd, usual = versions
    shown = [
        f"{names(having[version])} {_have(having[version])} {what} {version}" for version in odd[:MOST_VALUES]
    ]
    shown = [shown[0], *(text.replace(f" {what}", "", 1) for text in shown[1:])]
    if len(odd) > MOST_VALUES:
        shown.append(f"{len(odd) - MOST_VALUES} more versions on other nodes")
    rest = having[usual]
    is_clear = len(rest) > max(len(having[version]) for version in odd)
    shown.append(f"the others {usual}" if is_clear else f"{names(rest)} {_have(rest)} {usual}")
    text = ", ".join(shown)
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"


def _come(node_ids: Sequence[str]) -> str:
    return "it comes" if len(node_ids) == 1 else "they come"


def _have(node_ids: Sequence[str]) -> str:
    return "has" if len(node_ids) == 1 else "have"
