"""What the settings `rank_order`, `master` and `unit` can say: from their texts to rules that order.py applies."""

from collections.abc import Mapping
from functools import lru_cache

from hetrdzv.protocol.texts.ids import is_id

MOST_LABELS = 8
"""How many labels `topology` takes: nodes are compared by each of them."""


@lru_cache(maxsize=32)
def order_labels(text: str) -> tuple[str, ...]:
    """The labels that a value of `rank_order` names, the widest first; none: ranks are sticky.

    Raises:
        ValueError: it means nothing; the message says what there is.
    """
    if text == "sticky":
        return ()
    kind, _, rest = text.partition(":")
    labels = tuple(rest.split(","))
    if kind != "topology" or not all(labels):
        raise ValueError("must be sticky or topology:LABEL[,LABEL]")
    if len(set(labels)) < len(labels):
        raise ValueError("names a label twice")
    if len(labels) > MOST_LABELS:
        raise ValueError(f"names {len(labels)} labels, but may name {MOST_LABELS}")
    return labels


def check_master(text: str) -> None:
    """Whether `master` can have this value.

    Raises:
        ValueError: it cannot; the message says what there is.
    """
    label, equals, _ = text.partition("=")
    if not (label if equals else is_id(text)):
        raise ValueError("must be LABEL=VALUE or a node id")


def allows_master(rule: str, node_id: str, labels: Mapping[str, str]) -> bool:
    """Whether a value of `master` allows a node with these labels to be master."""
    label, equals, value = rule.partition("=")
    return labels.get(label) == value if equals else node_id == rule


def check_unit(text: str) -> None:
    """Whether `unit` can have this value.

    Raises:
        ValueError: it is no name of a label.
    """
    if not text or "=" in text or "," in text:
        raise ValueError("must be the name of one label, such as rack")
