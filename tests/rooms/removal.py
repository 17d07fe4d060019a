"""Takes a room out of a copy of the project: its modules, what imports them, and the rows that name those.

A row is an element of a list, tuple, set or dict that is written down as such. Values may also have a field for a room
(of a dataclass), or a union a member. Whoever knows a room by anything else cannot do without it, which is an error
here.
"""

import ast
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

PACKAGES = ("rendezvous/hetrdzv", "agent/hetagent")

TESTS = ("tests/core", "tests/sim")
"""Tests that know rooms by rows, too."""


class NotARow(Exception):
    """Something outside of a room knows it by more than a row; says where."""


@dataclass(frozen=True, slots=True)
class _Span:
    """A piece of a file, in characters."""

    begin: int
    end: int


def modules(folder: Path) -> Iterator[Path]:
    """The modules of the product in a copy of the project, and of tests that know rooms."""
    for package in PACKAGES + TESTS:
        yield from sorted((folder / package).rglob("*.py"))


def remove(folder: Path, paths: Sequence[str]) -> list[str]:
    """Take out a room.

    Args:
        paths: its modules and folders, and its tests.

    Returns:
        the modules of the product that had a row of a table for it.

    Raises:
        NotARow: it is not that easy.
    """
    gone = [one for one in modules(folder) if _is_in(one.relative_to(folder), paths)]
    if not gone:
        raise NotARow(f"there is nothing at {', '.join(paths)}")
    names = {_module(one.relative_to(folder)) for one in gone}
    for path in paths:
        shutil.rmtree(folder / path) if (folder / path).is_dir() else (folder / path).unlink()
    tables, wrong = [], []
    for one in modules(folder):
        place = str(one.relative_to(folder))
        try:
            if _without(one, names, place) and not place.startswith(TESTS):
                tables.append(place)
        except NotARow as error:
            wrong.append(str(error))
    if wrong:
        raise NotARow("\n".join(wrong))
    return tables


def _is_in(place: Path, paths: Iterable[str]) -> bool:
    return any(place == Path(path) or Path(path) in place.parents for path in paths)


def _module(place: Path) -> str:
    parts = place.with_suffix("").parts
    parts = parts if parts[0] == "tests" else parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _without(path: Path, names: set[str], place: str) -> bool:
    """Rewrite a module so that it does without some others; returns whether a table of it had a row for them."""
    source = path.read_text()
    tree = ast.parse(source)
    lines = _Lines(source)
    spans: list[_Span] = []
    aliases: set[str] = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom | ast.Import):
            continue
        out = [one for one in node.names if _comes_from(node, one.name, names)]
        if not out:
            continue
        aliases |= {one.asname or one.name for one in out}
        if len(out) == len(node.names):
            spans.append(lines.whole(node))
        else:
            spans += [lines.element(one) for one in out]
    if not aliases:
        return False
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    rows: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and node.id in aliases:
            rows.add(_row_of(node, parents, place))
    for row in rows:
        if isinstance(row, ast.stmt):
            spans.append(lines.whole(row))
        elif isinstance(union := parents[row], ast.BinOp):
            spans.append(lines.operand(union, row))
        else:
            spans.append(lines.element(row, _key_of(row, parents)))
    for span in sorted(spans, key=lambda span: span.begin, reverse=True):
        source = source[: span.begin] + source[span.end :]
    ast.parse(source)
    path.write_text(source)
    return any(not isinstance(row, ast.stmt) and not isinstance(parents[row], ast.BinOp) for row in rows)


def _comes_from(node: ast.ImportFrom | ast.Import, name: str, modules: set[str]) -> bool:
    if isinstance(node, ast.Import):
        return name in modules
    return node.module in modules or f"{node.module}.{name}" in modules


def _row_of(node: ast.AST, parents: dict[ast.AST, ast.AST], place: str) -> ast.AST:
    """The element of a table that a name is in: of the outermost one; or a member of a union, or a field.

    What is assigned a single element is a table, too.
    """
    child, parent = node, parents.get(node)
    row = None
    while parent is not None and not isinstance(parent, ast.stmt):
        whole = isinstance(parents.get(parent), ast.Assign | ast.AnnAssign)
        if isinstance(parent, ast.List | ast.Tuple | ast.Set | ast.Dict) and (
            whole or len(_elements(parent)) > 1
        ):
            key = isinstance(parent, ast.Dict) and child in parent.keys
            row = parent.values[parent.keys.index(child)] if key else child  # type: ignore[attr-defined,arg-type]
        child, parent = parent, parents.get(parent)
    if (
        isinstance(parent, ast.AnnAssign)
        and child is parent.annotation
        and isinstance(parents[parent], ast.ClassDef)
    ):
        return parent
    if row is None and isinstance(parent, ast.Assign):
        row = _member(node, parents)
    if row is not None:
        return row
    name = getattr(node, "id", "?")
    raise NotARow(f"{place}:{getattr(node, 'lineno', 0)} knows {name} by more than a row of a table")


def _member(node: ast.AST, parents: dict[ast.AST, ast.AST]) -> ast.AST | None:
    """The member of a union that a name is in: `events.Moved` in `Joined | events.Moved | Left`."""
    while not isinstance(parents.get(node), ast.BinOp | ast.stmt | None):
        node = parents[node]
    return node if isinstance(parents.get(node), ast.BinOp) else None


def _elements(table: ast.AST) -> Sequence[ast.AST]:
    return table.values if isinstance(table, ast.Dict) else getattr(table, "elts", ())


def _key_of(row: ast.AST, parents: dict[ast.AST, ast.AST]) -> ast.AST | None:
    table = parents[row]
    if not isinstance(table, ast.Dict) or row not in table.values:
        return None
    return table.keys[table.values.index(row)]  # type: ignore[arg-type]


class _Lines:
    """Where the nodes of a module are in its text."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def _at(self, line: int, column: int) -> int:
        start = self._starts[line - 1]
        text = self._source[start : self._starts[line]].encode()[:column].decode()
        return start + len(text)

    def whole(self, node: ast.stmt) -> _Span:
        """A statement with its lines."""
        return _Span(self._starts[node.lineno - 1], self._starts[node.end_lineno or node.lineno])

    def element(self, node: ast.AST, key: ast.AST | None = None) -> _Span:
        """An element, with the comma behind it, or before it if it is the last."""
        first = key or node
        begin = self._at(first.lineno, first.col_offset)  # type: ignore[attr-defined]
        end = self._at(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]
        rest = self._source[end:]
        after = rest.lstrip()
        if after.startswith(","):
            return _Span(begin, end + len(rest) - len(after) + 1)
        before = self._source[:begin].rstrip()
        return _Span(len(before) - 1 if before.endswith(",") else begin, end)

    def operand(self, of: ast.BinOp, node: ast.AST) -> _Span:
        """A member of a union, with the bar before it, or behind it if it is the first."""
        begin = self._at(of.left.lineno, of.left.col_offset)
        end = self._at(of.left.end_lineno or 0, of.left.end_col_offset or 0)
        if node is of.left:
            return _Span(begin, self._at(of.right.lineno, of.right.col_offset))
        return _Span(end, self._at(of.right.end_lineno or 0, of.right.end_col_offset or 0))
