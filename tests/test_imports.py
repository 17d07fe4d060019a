"""No circle of files: imports in functions, and those for types only, count as well."""

import ast
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

PACKAGES = ("agent/hetagent", "rendezvous/hetrdzv")


def modules(package: Path) -> dict[str, Path]:
    """Every module of a package by its full name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(source: str, known: AbstractSet[str]) -> Iterator[str]:
    """The known modules that a source imports, wherever in it that is."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                name = submodule if submodule in known else node.module
                if name in known:
                    yield name


def graph(package: Path) -> dict[str, set[str]]:
    """What each module of a package imports of it."""
    found = modules(package)
    return {
        name: set(imports(path.read_text(encoding="utf-8"), found.keys())) - {name}
        for name, path in found.items()
    }


def circles(edges: Mapping[str, AbstractSet[str]]) -> set[frozenset[str]]:
    """The strongly connected components of more than one node (Tarjan)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: set[frozenset[str]] = set()

    def visit(node: str) -> None:
        number[node] = lowest[node] = len(number)
        stack.append(node)
        for other in edges[node]:
            if other not in number:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in stack:
                lowest[node] = min(lowest[node], number[other])
        if lowest[node] == number[node]:
            component = stack[stack.index(node) :]
            del stack[-len(component) :]
            if len(component) > 1:
                found.add(frozenset(component))

    for node in edges:
        if node not in number:
            visit(node)
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_no_circle_of_files(package: str) -> None:
    assert [sorted(circle) for circle in circles(graph(ROOT / package))] == []


@pytest.mark.parametrize(
    ("edges", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, set()),
        ({"a": {"b"}, "b": {"a"}}, {frozenset("ab")}),
        ({"a": {"b"}, "b": {"c"}, "c": {"d", "b"}, "d": {"a"}}, {frozenset("abcd")}),
        ({"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"c"}}, {frozenset("ab"), frozenset("cd")}),
    ],
)
def test_a_circle_is_found(edges: dict[str, set[str]], found: set[frozenset[str]]) -> None:
    assert circles(edges) == found


@pytest.mark.parametrize(
    "source",
    [
        "from p.a import x",
        "from p import a",
        "import p.a",
        "def f():\n    from p.a import x",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p.a import x",
    ],
)
def test_an_import_is_found_wherever_it_is(source: str) -> None:
    assert list(imports(source, {"p.a", "p.b"})) == ["p.a"]
