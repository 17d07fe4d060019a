"""What an error of the server means to a node: whether to try again, and which directive came with it."""

from pydantic import ValidationError

from hetrdzv.protocol.errors import HetError, Problem
from hetrdzv.protocol.wire import DirectiveReply

STRANGERS = frozenset(
    {"not_hetserver", "version_mismatch", "unauthorized", "forbidden", "certificate_required", "foreign_host"}
)
"""Errors that tell a newcomer that its --server or token is wrong, but a member only that some proxy has a hiccup."""


def is_for_good(error: HetError) -> bool:
    """Whether a server refused, and would refuse again."""
    return isinstance(error, Problem) and 400 <= error.status < 500 and error.status not in (408, 429)


def is_answer(error: HetError) -> bool:
    """Whether a server that works has answered."""
    return isinstance(error, Problem) and error.status < 500


def directive_of(error: HetError) -> DirectiveReply | None:
    """The directive that came with the refusal of a stale report, if it can be read."""
    if not isinstance(error, Problem) or "directive" not in error.body:
        return None
    try:
        return DirectiveReply.model_validate(error.body["directive"])
    except ValidationError:
        return None
