"""Messages are for people: nothing of the product takes one apart to find out what it says."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = (ROOT / "rendezvous" / "hetrdzv", ROOT / "agent" / "hetagent")

FIELDS = {"why", "detail", "message"}
"""The fields that hold a message."""

METHODS = {"startswith", "endswith", "partition", "rpartition", "split", "rsplit", "find", "rfind", "index"}
PATTERNS = {"match", "search", "fullmatch", "sub", "subn", "split", "findall", "finditer"}


def taken_apart(source: str) -> Iterator[int]:
    """The lines in which a field with a message is searched or split."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(value=looked, attr=name)) if name in METHODS:
                looks = [looked]
            case ast.Call(func=ast.Attribute(attr=name), args=looks) if name in PATTERNS:
                pass
            case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=looks):
                pass
            case _:
                continue
        for one in looks:
            # what a worker has said before it failed is its own
            if isinstance(one, ast.Attribute) and one.attr in FIELDS and "failure" not in ast.unparse(one):
                yield node.lineno


def test_nothing_takes_a_message_apart() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for package in PACKAGES
        for path in sorted(package.rglob("*.py"))
        for line in taken_apart(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_one_that_is_taken_apart_is_found() -> None:
    for source in ("reply.why.split(',')", "re.search('x', reason.message)", "'lost' in error.detail"):
        assert list(taken_apart(source)) == [1]
    assert list(taken_apart("print(reason.message); line.partition('=')")) == []
