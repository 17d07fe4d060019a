"""Scenarios in words: what nodes and people say, and what must then hold; a step a line, or several with `;`.

running a b max_restarts=1   a group that runs round 1 on a and b (`group ...`: one that nobody has joined)
failed a; wait 3             methods of `Story`, `later 3` (time without a tick); arguments are Python's literals
restarts = 0                 a fact, see `fact`; `~`: about
StaleRound: failed a         is refused, and changes nothing
"""

import ast
import contextlib
import re
from collections.abc import Mapping
from typing import Any

import pytest

from hetrdzv.core.explanations import explain_left_out_node
from hetrdzv.protocol import errors
from hetrdzv.protocol.reasons.reason import Reason
from tests.core.driver import Story, running


def play(script: str) -> Story:
    """Play a script, and return its story as it ends."""
    story: Story | None = None
    for step in re.split(r"[;\n]", script):
        if not (words := step.split("#")[0].split()):
            continue
        try:
            if story is None:
                story = _begin(words)
            else:
                _play(story, words)
        except (AssertionError, errors.HetError) as error:
            error.add_note(f"in: {step.strip()}")
            raise
    assert story is not None
    return story


def _begin(words: list[str]) -> Story:
    nodes, spec = _arguments(words[1:])
    return running(*nodes, **spec) if words[0] == "running" else Story(**spec)


def _play(story: Story, words: list[str]) -> None:
    if words[0].endswith(":"):
        before, refused = story.group, words[0] != "unchanged:"
        with pytest.raises(getattr(errors, words[0][:-1])) if refused else contextlib.nullcontext():
            _play(story, words[1:])
        assert story.group is before
    elif "=" in words:
        place = words.index("=")
        found, wanted = fact(story, *words[:place]), " ".join(words[place + 1 :])
        assert found == wanted, f"{found}, not {wanted}"
    elif words[0] == "later":
        story.now += float(words[1])
    elif words[0] == "obey":
        _obey(story)
    else:
        args, more = _arguments(words[1:])
        getattr(story, words[0])(*args, **more)


def _obey(story: Story) -> None:
    for _ in range(8):
        for node in story.group.live_nodes:
            match story.told(node.node_id).kind:
                case "start" if node.phase == "starting":
                    story.started(node.node_id)
                case "stop":
                    story.join(node.node_id, node.slots)
        story.wait(1.0)


def _arguments(words: list[str]) -> tuple[list[Any], Mapping[str, Any]]:
    pairs = [word.partition("=") for word in words]
    args = [_literal(name) for name, equals, _ in pairs if not equals]
    return args, {name: _literal(value) for name, equals, value in pairs if equals}


def _literal(word: str) -> Any:
    with contextlib.suppress(ValueError, SyntaxError):
        return ast.literal_eval(word)
    return word


def _words(reason: Reason) -> str:
    return " ".join([reason.code, *reason.nodes])


def fact(story: Story, name: str, *args: str) -> str:
    """Something that is so now, in words."""
    group = story.group
    match name:
        case "state" | "restarts" | "job" | "last_round" | "failed_masters":
            return str(getattr(group, name))
        case "spec":  # one of its settings
            return str(getattr(group.spec, args[0]))
        case "ended":
            return str(story.ended)
        case "world":
            return str(story.round.world_size)
        case "data":  # of why
            return str(story.reason.data[args[0]])
        case "order":  # node ids of the newest round, by rank
            return " ".join(story.order)
        case "due":  # in how many seconds
            return "never" if story.deadline_in is None else f"{round(story.deadline_in, 3):g}"
        case "why":  # of the group: code and nodes; of a node: of its directive
            return _words(story.told(args[0]).reason if args else story.reason)
        case "until":  # of that, in how many seconds
            until = (story.told(args[0]).reason if args else story.reason).until
            return "unknown" if until is None else f"{round(until - story.now, 2):g}"
        case "since":  # when the last node went (seconds ago)
            return "unknown" if story.reason.since is None else f"{story.now - story.reason.since:g}"
        case "ended_by":  # why the last round ended, as the state says beside what it waits for
            return _words(story.reason.cause) if story.reason.cause is not None else ""
        case "cause":  # of the job's failure: code and node
            return f"{story.root_cause.reason.code} {story.root_cause.node_id or ''}".strip()
        case "told":  # kind, code and exit status
            told = story.told(args[0])
            return " ".join(str(part) for part in (told.kind, told.code, told.exit_code) if part is not None)
        case "left":  # why a node is not in the round that runs
            return _words(explain_left_out_node(group, story.node(args[0])))
        case "phase" | "port" | "weight":
            return str(getattr(story.node(args[0]), name))
        case "role":  # of a node's start: its first rank in its role, of how many
            return f"{story.start(args[0]).role_offset} of {story.start(args[0]).role_world_size}"
        case "shares":  # of a node's start: how many ranks have which weight
            shares = story.start(args[0]).shares
            assert shares == story.round.shares
            return " ".join(f"{ranks}:{weight:g}" for ranks, weight in shares.weights) if shares else "none"
        case "said":  # how often
            return str(len(story.said(args[0])))
    raise ValueError(f"there is no fact '{name}'")
