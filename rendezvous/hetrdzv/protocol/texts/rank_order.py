"""What the settings `rank_order`, `master` and `unit` can say: from their texts to rules that order.py applies."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from hetrdzv.protocol.texts.ids import is_id

MOST_QUOTED = 200
"""How much of a value a message quotes (characters)."""

MOST_LABELS = 8
"""How many labels `topology` takes: nodes are compared by each of them."""


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


@lru_cache(maxsize=32)
def master_rule(text: str) -> MasterRule:
    """What a value of `master` means.

    Raises:
        ValueError: it means nothing; the message says what there is.
    """
    label, equals, value = text.partition("=")
    if equals and label:
        return MasterRule(label=label, value=value)
    if not equals and is_id(text):
        return MasterRule(node_id=text)
    raise ValueError("must be LABEL=VALUE or a node id")


def unit_label(text: str) -> str:
    """The label that a value of `unit` names.

    Raises:
        ValueError: it is no name of a label.
    """
    if not text or "=" in text or "," in text:
        raise ValueError("must be the name of one label, such as rack")
    return text


def clipped_value(text: str) -> str:
    """The value of a setting, no longer than a message can quote."""
    return text if len(text) <= MOST_QUOTED else f"{text[: MOST_QUOTED - 1]}…"
