"""Sentences are for people: nothing of the product takes one apart again to find out what it says.

A sentence is what `hetrdzv.protocol.reasons` returns, and what a field holds that is called like one, of whatever
object. Whoever needs a fact takes it from the code and the fields of a reason. Looked for are expressions, variables of
the same function, and what is passed to a function of ours that looks into that parameter, by the function's name.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = (ROOT / "rendezvous" / "hetrdzv", ROOT / "agent" / "hetagent")

FIELDS = {"why", "text", "detail", "message", "quote"}
"""The fields that hold a sentence."""

LISTS = {"notices", "_notices"}
"""The fields that hold several."""

QUOTES = {
    "cli/hetctl/tables.py": "segment.text",
    "protocol/stacks.py": "stack.text",
}
"""Where a field of such a name holds something else: a stack, what a worker has written, a piece of a table."""

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
    """The names by which a module knows functions and modules of `hetrdzv.protocol.reasons`."""
    return {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hetrdzv.protocol.reasons")
        for alias in node.names
        if alias.name.islower()
    }


Lookers = Mapping[str, set[int]]
"""Functions that look into their arguments: by name, and which ones (`self` counts)."""


def taken_apart(source: str, lookers: Lookers | None = None) -> Iterator[tuple[int, str]]:
    """The sentences that a module looks into, or passes to one of `lookers`: line, and which one."""
    tree = ast.parse(source)
    words = of_words(tree)
    lookers = lookers_of([tree]) if lookers is None else lookers
    inside: set[ast.AST] = set()
    for scope in ast.walk(tree):
        if isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef) and scope not in inside:
            inside.update(ast.walk(scope))
            yield from _in(scope, words, lookers)
    yield from _in(ast.Module([one for one in tree.body if one not in inside], []), words, lookers)


def lookers_of(trees: Iterable[ast.AST]) -> Lookers:
    """The functions that look into a parameter."""
    lookers: dict[str, set[int]] = {}
    for tree in trees:
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                parameters = [one.arg for one in (*function.args.posonlyargs, *function.args.args)]
                for looked in looked_into(ast.walk(function)):
                    if isinstance(looked, ast.Name) and looked.id in parameters:
                        lookers.setdefault(function.name, set()).add(parameters.index(looked.id))
    return lookers


def looked_into(nodes: Iterable[ast.AST]) -> Iterator[ast.expr]:
    """What is searched, split, or compared with a text that is written there."""
    for node in nodes:
        match node:
            case ast.Call(func=ast.Attribute(value=value, attr=method), args=args):
                yield from [value] if method in METHODS else []
                yield from args if method in PATTERNS else []
            case ast.Compare(left=left, ops=ops, comparators=comparators):
                for one, op, other in zip([left, *comparators], ops, comparators, strict=False):
                    if isinstance(op, ast.In | ast.NotIn):
                        yield other
                    elif isinstance(op, ast.Eq | ast.NotEq) and (is_text(one) or is_text(other)):
                        yield other if is_text(one) else one
            case ast.Match(subject=subject, cases=cases):
                patterns = [part for case in cases for part in ast.walk(case.pattern)]
                yield from (
                    [subject]
                    if any(isinstance(one, ast.MatchValue) and is_text(one.value) for one in patterns)
                    else []
                )
            case ast.Subscript(value=value, slice=ast.Constant()):
                yield value


def is_text(node: ast.AST) -> bool:
    """Whether an expression is a text that is not empty."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value != ""


def _in(scope: ast.AST, words: set[str], lookers: Lookers) -> Iterator[tuple[int, str]]:
    nodes = list(ast.walk(scope))
    made: set[str] = set()
    for node in nodes:
        match node:
            case ast.Assign(targets=targets, value=value) if is_sentence(value, words, set()):
                made.update(target.id for target in targets if isinstance(target, ast.Name))
            case ast.NamedExpr(target=ast.Name(id=name), value=value) if is_sentence(value, words, set()):
                made.add(name)
            case ast.For(target=ast.Name(id=name), iter=ast.Attribute(attr=many)) if many in LISTS:
                made.add(name)
            case ast.comprehension(target=ast.Name(id=name), iter=ast.Attribute(attr=many)) if many in LISTS:
                made.add(name)
    for one in [*looked_into(nodes), *passed_on(nodes, lookers)]:
        if is_sentence(one, words, made):
            yield one.lineno, ast.unparse(one)


def passed_on(nodes: Iterable[ast.AST], lookers: Lookers) -> Iterator[ast.expr]:
    """What is passed to a function that looks into it."""
    for node in nodes:
        match node:
            case ast.Call(func=ast.Name(id=name), args=args):
                yield from (one for place, one in enumerate(args) if place in lookers.get(name, ()))
            case ast.Call(func=ast.Attribute(attr=name), args=args):
                places = lookers.get(name, set())  # of a method, or of a function of a module
                yield from (one for place, one in enumerate(args) if {place, place + 1} & places)


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
        case ast.BoolOp(values=values):
            return any(is_sentence(one, words, made) for one in values)
    return False


def modules() -> Iterator[tuple[str, str]]:
    for package in PACKAGES:
        for path in sorted(package.rglob("*.py")):
            yield str(path.relative_to(package)), path.read_text(encoding="utf-8")


@cache
def in_the_product() -> Sequence[tuple[str, int, str]]:
    """Every sentence that a module takes apart: module, line, and which one."""
    lookers = lookers_of(ast.parse(source) for _, source in modules())
    return [
        (name, line, sentence)
        for name, source in modules()
        for line, sentence in taken_apart(source, lookers)
    ]


def test_nothing_takes_a_sentence_apart() -> None:
    assert [one for one in in_the_product() if QUOTES.get(one[0]) != one[2]] == []


def test_the_exceptions_are_needed() -> None:
    assert QUOTES.items() <= {(name, sentence) for name, _, sentence in in_the_product()}


def test_no_pattern_is_needed_to_make_a_sentence() -> None:
    sources = {name: source for name, source in modules() if name.startswith("protocol/reasons/")}
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
        "from hetrdzv.protocol.reasons.reason import shown\nx = shown(reason, clock).removeprefix('round ')",
        "from hetrdzv.protocol.reasons import ends\nx = 'lost' in ends.briefly(reason)",
        "reply.why[0]",
        "def f():\n    why = reply.why\n    return 'lost' in why",
        "from hetrdzv.protocol.reasons.ends import briefly\ndef f():\n    x = briefly(why)\n    return x.split(',')",
        "import re\ndef as_options(text):\n    return re.sub('x', 'y', text)\nshow(as_options(directive.why))",
        "class A:\n    def look(self, text):\n        return 'lost' in text\nA().look(event.text)",
        "if event.text == 'the server is back': pass",
        "match reply.why:\n    case 'drained': pass",
        "x = [one for one in reply.warnings if one.message.startswith('rank')]",
        "(reply.why or reply.detail).split()",
        "if why := reply.why: why.split()",
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
        "x = one.why == other.why or one.why != ''",
        "def look(text):\n    return text.split()\nlook(path)",
    ],
)
def test_showing_or_comparing_one_is_fine(source: str) -> None:
    assert list(taken_apart(source)) == []
