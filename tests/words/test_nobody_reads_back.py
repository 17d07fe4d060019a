"""Sentences are shown, and never read back: no pattern and no search over what `hetrdzv.words` or a server has said."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [
    path
    for package in ("rendezvous/hetrdzv", "agent/hetagent")
    for path in sorted((ROOT / package).rglob("*.py"))
]

SAID = {"why", "text", "detail", "restarted_by"}
"""Attributes of replies, reasons and errors that hold sentences, or words of others."""

NO_SENTENCES = {"cli/hetctl/stacks.py": "stacks of one kind are shown once, whatever addresses they have"}
"""Modules whose texts are no sentences, and what they search them for."""

SEARCHES = {
    "partition",
    "rpartition",
    "split",
    "rsplit",
    "removeprefix",
    "removesuffix",
    "replace",
    "find",
    "index",
}
SEARCHES |= {"startswith", "endswith", "match", "search", "fullmatch", "findall", "finditer", "sub", "subn"}


def readings(source: str) -> Iterator[str]:
    """Where a module searches a sentence, or cuts it up."""
    tree = ast.parse(source)
    words = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hetrdzv.words")
        for alias in node.names
    }
    for scope in ast.walk(tree):
        if not isinstance(scope, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        made = {
            target.id
            for node in ast.walk(scope)
            if isinstance(node, ast.Assign) and _is_said(node.value, words, set())
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        for node in ast.walk(scope):
            searched: list[ast.expr] = []
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in SEARCHES
            ):
                searched = [node.func.value, *node.args]
            elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In | ast.NotIn):
                searched = (
                    [node.comparators[0]] if isinstance(node.left, ast.Constant | ast.JoinedStr) else []
                )
            if any(_is_said(one, words, made) for one in searched):
                yield f"line {node.lineno}: {ast.unparse(node)}"


def _is_said(value: ast.expr, words: set[str], made: set[str]) -> bool:
    """Whether an expression is a sentence: what a function of words returns, or a reply holds."""
    match value:
        case ast.Call(func=ast.Name(id=name)):
            return name in words
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name))):
            return name in words
        case ast.Attribute(attr=name):
            return name in SAID
        case ast.Name(id=name):
            return name in made
        case _:
            return False


def test_no_module_reads_a_sentence_back() -> None:
    found = {
        str(path): lines for path in SOURCES if (lines := list(readings(path.read_text(encoding="utf-8"))))
    }
    assert len(found) == len(NO_SENTENCES), found
    assert all(path.endswith(tuple(NO_SENTENCES)) for path in found), found


@pytest.mark.parametrize(
    "line",
    [
        "return re.search(r'world size (\\d+)', event.text)",
        "return event.text.partition(': ')[2]",
        "return 'starts in' in reply.why",
        "return _PATTERN.sub('', answer.why)",
        "return why(reason, clock).removesuffix('.')",
        "text = event_text(event)\n    return text.split(' because ')",
        "return words.why(reason).startswith('waiting')",
    ],
)
def test_such_a_reading_is_seen(line: str) -> None:
    source = (
        "from hetrdzv.words import why as words\nfrom hetrdzv.words.why import why\n"
        f"from hetrdzv.words.events import event_text\ndef f(event, reply, answer, reason, clock):\n    {line}\n"
    )
    assert len(list(readings(source))) == 1


@pytest.mark.parametrize(
    "line",
    [
        "return reply.why or 'nothing'",
        "return f'it says: {event.text}'",
        "return event.text.splitlines()",
        "return name in words",
    ],
)
def test_showing_is_none(line: str) -> None:
    assert list(readings(f"def f(event, reply, name, words):\n    {line}\n")) == []
