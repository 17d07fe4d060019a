"""What people should know of the nodes and workers of a group, in a sentence each."""

from hetrdzv.protocol.facts import warnings
from hetrdzv.protocol.facts.warnings import PARTS, AnyWarning, Differs, Unseen, Unwatched, Version
from hetrdzv.protocol.texts.phrasing import count, have, one_or_more, ranked
from hetrdzv.protocol.texts.who import Ranks
from hetrdzv.words import snapshots
from hetrdzv.words.clauses import refused

MOST_CHARACTERS = 400
"""The longest sentence about versions, which agents send."""

_UNSEEN = {
    "never": ("its agent has not reported on it", "their agents have not reported on them"),
    "stale": ("its agent has stopped reporting on it", "their agents have stopped reporting on them"),
    "no_torch": ("its script has not imported torch", "their script has not imported torch"),
}
"""Of one worker, and of several."""


def warning(value: AnyWarning) -> str:
    """The sentence for a warning; empty for one that only newer servers know."""
    if (text := snapshots.WARNINGS.get(type(value))) is not None:
        return text(value)
    match value:
        case warnings.Differs():
            return _differs(value)
        case warnings.NoLabel(label=label, orders="units", nodes=nodes):
            each = one_or_more(nodes, "it", "each")
            return f"{have(nodes)} no label {label}, by which units are formed: {each} is a unit by itself"
        case warnings.NoLabel(label=label, nodes=nodes):
            come = one_or_more(nodes, "it comes", "they come")
            return f"{have(nodes)} no label {label}, by which ranks are ordered: {come} last"
        case warnings.NoWeights():
            return "rank_order is speed, but no node has a --weight: ranks are sticky"
        case warnings.Unwatched():
            return unwatched(value)
        case warnings.Refusal(node_id=node, differences=differences):
            return refused(node, differences)
        case _:
            return ""


def unwatched(value: Unwatched) -> str:
    """Whose hang nobody would notice, and why."""
    return f"{ranked(value.ranks)} cannot be watched: {unseen(value.why, value.ranks)}"


def unseen(value: Unseen | None, ranks: Ranks | None = None) -> str:
    """Why the collectives of workers cannot be known; empty: they are.

    Args:
        ranks: of several; None: of one.
    """
    if value is None:
        return ""
    if (known := _UNSEEN.get(value.kind)) is not None:
        return known[0] if ranks is None else one_or_more(ranks, *known)
    return value.said or ""


def _differs(value: Differs) -> str:
    """Which nodes have another version than most; where no version has a majority, all are named."""
    (first, *others), what = value.odd, PARTS[value.part].title if value.part in PARTS else value.part
    shown = [f"{have(first.nodes)} {what} {first.version}", *map(_has_version, others)]
    if value.more:
        shown.append(f"{count(value.more, 'more version')} on other nodes")
    shown.append(f"the others {value.usual.version}" if value.clear else _has_version(value.usual))
    text = ", ".join(shown)
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"


def _has_version(version: Version) -> str:
    return f"{have(version.nodes)} {version.version}"
