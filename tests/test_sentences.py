"""Sentences are for people: nothing of the product takes one apart again to find out what it says.

A sentence is what `hetrdzv.words` returns, and what a field holds that is called like one, of whatever object. Whoever
needs a fact takes it from the value that the sentence was made of.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = (ROOT / "rendezvous" / "hetrdzv", ROOT / "agent" / "hetagent")

FIELDS = {"why", "text", "detail", "message", "restarted_by"}
"""The fields that hold a sentence."""

QUOTES = {
    "cli/hetctl/look/logs.py": "one.text",
    "cli/hetctl/stacks.py": "one.text",
}
"""Where a field of such a name holds words of others: a stack, or what a worker has written."""

METHODS = {
    "startswith",
    "endswith",
    "partition",
    "rpartition",
    "split",
    "rsplit",
    "splitlines",
    "find",
    "rfind",
    "index",
}
METHODS |= {"rindex", "count", "removeprefix", "removesuffix", "replace", "translate"}
"""Methods of a text that look for something in it."""

PATTERNS = {"match", "search", "fullmatch", "sub", "subn", "split", "findall", "finditer"}
"""Functions of `re`, and methods of its patterns."""


def of_words(tree: ast.AST) -> set[str]:
    """The names by which a module knows functions and modules of `hetrdzv.words`."""
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hetrdzv.words")
        for alias in node.names
    }


def taken_apart(source: str) -> Iterator[tuple[int, str]]:
    """The sentences that a module looks into: line, and which one."""
    tree = ast.parse(source)
    words = of_words(tree)
    inside: set[ast.AST] = set()
    for scope in ast.walk(tree):
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef) and scope not in inside:
            inside.update(ast.walk(scope))
            yield from _in(scope, words)
    yield from _in(ast.Module([one for one in tree.body if one not in inside], []), words)


def _in(scope: ast.AST, words: set[str]) -> Iterator[tuple[int, str]]:
    made = {
        target.id
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign) and is_sentence(node.value, words, set())
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(scope):
        looked_into: list[ast.AST] = []
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr=method), args=args):
                looked_into += [value] if method in METHODS else []
                looked_into += args if method in PATTERNS else []
            case ast.Compare(ops=ops, comparators=comparators):
                pairs = zip(ops, comparators, strict=True)
                looked_into += [one for op, one in pairs if isinstance(op, ast.In | ast.NotIn)]
            case ast.Subscript(value=value, slice=ast.Constant()):
                looked_into.append(value)
        for one in looked_into:
            if is_sentence(one, words, made):
                yield one.lineno, ast.unparse(one)  # type: ignore[attr-defined]


def is_sentence(node: ast.AST, words: set[str], made: set[str]) -> bool:
    """Whether an expression is one: what a function of words returns (`made`: variables that have it), or a field."""
    match node:
        case ast.Call(func=ast.Name(id=name) | ast.Attribute(value=ast.Name(id=name))):
            return name in words
        case ast.Name(id=name):
            return name in made
        case ast.Attribute(value=of, attr=name):
            # what a worker has said before it failed is its own
            return name in FIELDS and not ast.unparse(of).endswith("failure")
    return False


def modules() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            yield str(path.relative_to(package)), path.read_text(encoding="utf-8")


def test_nothing_takes_a_sentence_apart() -> None:
    found = [
        f"{name}, line {line}: {sentence}"
        for name, source in modules()
        for line, sentence in taken_apart(source)
        if QUOTES.get(name) != sentence
    ]
    assert found == []


def test_the_exceptions_are_needed() -> None:
    found = {(name, sentence) for name, source in modules() for _, sentence in taken_apart(source)}
    assert QUOTES.items() <= found


def test_no_pattern_is_needed_to_make_a_sentence() -> None:
    sources = {name: source for name, source in modules() if name.startswith("words/")}
    assert len(sources) > 4
    assert [name for name, source in sources.items() if "import re\n" in source] == []


@pytest.mark.parametrize(
    "source",
    [
        "import re\nre.sub('x', '', reply.why)",
        "PATTERN.search(directive.why)",
        "event.text.partition(': ')",
        "if 'lost' in error.detail: pass",
        "x = [one.why.split()[3] for one in found]",
        "cause.message.startswith('rank')",
        "from hetrdzv.words.why import told\nx = told(reason, '', clock).removeprefix('round ')",
        "from hetrdzv.words import why as words\nx = 'lost' in words.why(reason, clock)",
        "reply.why[0]",
        "def f():\n    why = reply.why\n    return 'lost' in why",
        "from hetrdzv.words.events import event_text\ndef f():\n    x = event_text(event)\n    return x.split(', ')",
    ],
)
def test_one_that_is_taken_apart_is_found(source: str) -> None:
    assert len(list(taken_apart(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        "show(f'{group.state}: {group.why}')",
        "known = told(reason, reply.why, clock) or reply.why",
        "failure.message.rstrip().splitlines()",
        "line.partition('=')",
        "reasons = {one.why for one in found}",
        "short = one.why[:MOST]",
    ],
)
def test_showing_or_comparing_one_is_fine(source: str) -> None:
    assert list(taken_apart(source)) == []
