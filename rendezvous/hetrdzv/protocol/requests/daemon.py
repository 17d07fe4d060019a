"""The one program that a round's master may run on other nodes: orted, the daemon of mpirun (Open MPI 4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from annotated_types import MaxLen

from hetrdzv.protocol.bounds import Body, Count, Id, at_most

PROGRAM = "orted"
"""The program's name. A path before it is ignored: each agent runs its own."""

MAX_WORDS, MAX_CHARACTERS = 1024, 32_768
"""Limits of its command line, which names all hosts: words, and characters in all words together."""


def refusal(words: Sequence[str]) -> str | None:
    """Why a node must not be asked to run these words; None: it may."""
    if not words or words[0].rpartition("/")[2] != PROGRAM:
        given = repr(words[0][:80]) if words else "nothing"
        return f"a round's master may run only {PROGRAM} on other nodes, not {given}"
    if len(words) > MAX_WORDS or sum(map(len, words)) > MAX_CHARACTERS:
        return f"a daemon's command line may have at most {MAX_WORDS} words and {MAX_CHARACTERS} characters"
    if any("\0" in word for word in words):
        return "a word contains a NUL character, which cannot be passed to a program"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonRequest(Body):
    """`POST /v1/groups/{g}/nodes/{n}/daemon`: what the round's master wants node `n` to run."""

    master: Id
    incarnation: Id
    round: Count
    words: Annotated[tuple[Annotated[str, MaxLen(MAX_CHARACTERS)], ...], at_most(MAX_WORDS)]
