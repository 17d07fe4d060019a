"""What the master of a round may have another member run: the daemon of its launcher, and nothing else."""

from collections.abc import Iterable, Iterator

from hetrdzv.core.model import Group, Node

PROGRAM = "orted"
"""The only program that is run so: mpirun's daemon (Open MPI 4). Whatever path is before it, an agent takes its own."""

MAX_WORDS, MAX_CHARACTERS = 1024, 32_768
"""How many words a daemon may have, and how many characters together: orted is told the names of all hosts."""


def wrong_words(words: Iterable[str]) -> str | None:
    """Why these words are no daemon that a member could be asked to run, or None."""
    words = tuple(words)
    if not words or words[0].rpartition("/")[2] != PROGRAM:
        given = repr(words[0][:80]) if words else "nothing"
        return f"only {PROGRAM} is run for the master of a round, not {given}"
    if len(words) > MAX_WORDS or sum(map(len, words)) > MAX_CHARACTERS:
        return f"a daemon has at most {MAX_WORDS} words of {MAX_CHARACTERS} characters together"
    if any("\0" in word for word in words):
        return "a word has a NUL character, which no program could be given"
    return None


def violations(group: Group, node: Node) -> Iterator[str]:
    """What is wrong with the daemon of a node, one sentence each."""
    if not node.daemon:
        return
    if (why := wrong_words(node.daemon)) is not None:
        yield f"{node.node_id} has a daemon that it must not have: {why}"
    if not node.wants_daemon:
        yield f"{node.node_id} has a daemon, but did not ask for one"
    if node.stopped or node.gone:
        yield f"{node.node_id} has a daemon, but no workers"
    if group.round is not None and group.in_round(node) and group.round.master.node_id == node.node_id:
        yield f"{node.node_id} has a daemon, but is the master of round {group.round.number}"
