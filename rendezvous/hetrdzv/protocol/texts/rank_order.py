"""What the settings `rank_order`, `master` and `unit` can say: from their texts to rules that order.py applies."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property, lru_cache

from hetrdzv.protocol.texts.ids import is_id

MOST_QUOTED = 200
"""How much of a value a message quotes (characters)."""

MOST_LABELS = 8
"""How many labels `topology` takes: nodes are compared by each of them."""

REST = "*"
"""In a list of node ids: all nodes that it does not name."""


class OrderKind(StrEnum):
    """By what the ranks of a round are ordered."""

    STICKY = "sticky"
    SPEED = "speed"
    TOPOLOGY = "topology"
    LISTED = "listed"


@dataclass(frozen=True)
class RankOrder:
    """What `rank_order` says.

    Attributes:
        labels: with `topology`: the labels, the widest first.
        node_ids: with a list: the node ids in order, with `REST` once among them.
    """

    kind: OrderKind
    labels: tuple[str, ...] = ()
    node_ids: tuple[str, ...] = ()

    @cached_property
    def places(self) -> Mapping[str, int]:
        """Where a list puts its node ids and `REST`."""
        return {node_id: place for place, node_id in enumerate(self.node_ids)}


@dataclass(frozen=True, slots=True)
class MasterRule:
    """Who may be master: one node, or every node that has a label with this value."""

    node_id: str | None = None
    label: str = ""
    value: str = ""

    def allows(self, node_id: str, labels: Mapping[str, str]) -> bool:
        """Whether a node with these labels may be master."""
        return node_id == self.node_id if self.node_id is not None else labels.get(self.label) == self.value


@lru_cache(maxsize=32)
def rank_order(text: str) -> RankOrder:
    """What a value of `rank_order` means.

    Raises:
        ValueError: it means nothing; the message quotes it and says what there is.
    """
    kind, colon, rest = text.partition(":")
    if text in (OrderKind.STICKY, OrderKind.SPEED):
        return RankOrder(OrderKind(text))
    words = tuple((rest if colon else text).split(","))
    twice = _repeated(words)
    if colon and kind == OrderKind.TOPOLOGY and all(words):
        if twice is not None:
            raise ValueError(f"{_quoted(text)} names label {_quoted(twice)} twice")
        if len(words) > MOST_LABELS:
            raise ValueError(f"{_quoted(text)} names {len(words)} labels, but may name {MOST_LABELS}")
        return RankOrder(OrderKind.TOPOLOGY, labels=words)
    if REST in words and all(word == REST or is_id(word) for word in words):
        if twice is not None:
            raise ValueError(f"{_quoted(text)} names {twice!r} twice")
        return RankOrder(OrderKind.LISTED, node_ids=words)
    raise ValueError(
        f"{_quoted(text)} must be sticky, speed, topology:LABEL[,LABEL], or node ids with * for all others, such as "
        "gpu7,gpu2,*"
    )


def _repeated(words: Iterable[str]) -> str | None:
    return next((word for word, times in Counter(words).items() if times > 1), None)


@lru_cache(maxsize=32)
def master_rule(text: str) -> MasterRule:
    """What a value of `master` means.

    Raises:
        ValueError: it means nothing; the message quotes it and says what there is.
    """
    label, equals, value = text.partition("=")
    if equals and label:
        return MasterRule(label=label, value=value)
    if not equals and is_id(text):
        return MasterRule(node_id=text)
    raise ValueError(f"{_quoted(text)} must be LABEL=VALUE or a node id")


def unit_label(text: str) -> str:
    """The label that a value of `unit` names.

    Raises:
        ValueError: it is no name of a label; the message quotes it.
    """
    if not text or "=" in text or "," in text:
        raise ValueError(f"{_quoted(text)} must be the name of one label, such as rack")
    return text


def contradicts_master(order: str, master: str | None) -> str | None:
    """What is wrong with two values that are right each by itself, in a sentence; None: nothing."""
    parsed, wanted = rank_order(order), master_rule(master).node_id if master is not None else None
    if parsed.kind is not OrderKind.LISTED or wanted is None:
        return None
    first = parsed.node_ids[0]
    if first == wanted or (first == REST and wanted not in parsed.places):
        return None
    whom = "other nodes" if first == REST else first
    return (
        f"rank_order is {clipped_value(order)}, which puts {whom} first, but master is {master}, and the master is "
        f"always first: begin rank_order with {wanted}, or leave one of the two out"
    )


def _quoted(text: str) -> str:
    return repr(clipped_value(text))


def clipped_value(text: str) -> str:
    """The value of a setting, no longer than a message can quote."""
    return text if len(text) <= MOST_QUOTED else f"{text[: MOST_QUOTED - 1]}…"
