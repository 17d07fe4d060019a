"""Imports go down only, and no circle of files: imports in functions, and those for types only, count as well."""

import ast
import subprocess
import sys
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

MAY_IMPORT: dict[str, set[str]] = {
    "core": {"protocol"},
    "protocol": set(),
    "auth": {"protocol"},
    "storage": {"core", "protocol", "auth.tls", "client.explain"},
    "service": {"core", "protocol", "storage"},
    "api": {"core", "protocol", "storage", "auth", "service", "dashboard"},
    "dashboard": {"core", "protocol", "storage", "auth", "service", "api.errors", "api.views", "api.workers"},
    "client": {"protocol", "auth"},
    "cli": {"core", "protocol", "storage", "auth", "service", "api", "client"},
}
"""By folder of hetrdzv (or module at the top): the others, or single modules of one, that it may import."""

AGENT_MAY_IMPORT = {"auth.files", "auth.tls", "cli.hetctl.printing", "client", "protocol"}
"""What hetagent may import of hetrdzv."""

MAY_IMPORT_ETCD = {"service.leadership"}
"""A single server needs no HTTP client, so only what runs with etcd imports it when it is loaded."""


def modules(package: Path) -> dict[str, Path]:
    """Every module of a package by its full name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


SERVER, AGENT = modules(ROOT / "rendezvous/hetrdzv"), modules(ROOT / "agent/hetagent")


def imports(source: str, known: AbstractSet[str], *, when_loaded: bool = False) -> Iterator[str]:
    """The known modules that a source imports, wherever in it that is, or only when it is loaded."""
    tree = ast.parse(source)
    for node in tree.body if when_loaded else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                name = submodule if submodule in known else node.module
                if name in known:
                    yield name


def graph(found: Mapping[str, Path], known: AbstractSet[str]) -> dict[str, set[str]]:
    """What each module imports of the known ones, but for itself."""
    return {
        name: set(imports(path.read_text(encoding="utf-8"), known)) - {name} for name, path in found.items()
    }


def is_in(name: str, folders: AbstractSet[str]) -> bool:
    """Whether a module of hetrdzv is in, or is, one of these folders or modules."""
    name = name.removeprefix("hetrdzv.")
    return any(name == folder or name.startswith(f"{folder}.") for folder in folders)


# -- the direction -------------------------------------------------------------------------------------------


def test_imports_go_downwards() -> None:
    folders = {name.split(".")[1] for name in SERVER if "." in name}
    assert folders == MAY_IMPORT.keys()
    for name, found in graph(SERVER, SERVER.keys() - {"hetrdzv"}).items():
        folder = name.removeprefix("hetrdzv").lstrip(".").split(".")[0]
        allowed = MAY_IMPORT[folder] | {folder} if folder else set[str]()
        assert {other for other in found if not is_in(other, allowed)} == set(), name


def test_the_agent_imports_what_clients_need_and_the_server_nothing_of_the_agent() -> None:
    for name, found in graph(AGENT, SERVER.keys() - {"hetrdzv"}).items():
        assert {other for other in found if not is_in(other, AGENT_MAY_IMPORT)} == set(), name
    assert not any(graph(SERVER, AGENT.keys()).values())


def test_etcd_is_imported_only_where_it_is_used() -> None:
    etcd = {name for name in SERVER if is_in(name, {"storage.etcd"})}
    for name, path in SERVER.items():
        found = set(imports(path.read_text(encoding="utf-8"), etcd, when_loaded=True))
        assert not found or is_in(name, {"storage.etcd"} | MAY_IMPORT_ETCD), f"{name} imports {found}"


def test_hetctl_imports_the_core_for_plans_only() -> None:
    source = "import sys, hetrdzv.cli.hetctl; sys.exit('hetrdzv.core' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == 0


# -- circles -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("found", [AGENT, SERVER], ids=["agent", "server"])
def test_no_circle_of_files(found: dict[str, Path]) -> None:
    TopologicalSorter(graph(found, found.keys())).prepare()  # or it names one
