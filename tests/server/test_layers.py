"""Direction of imports: each folder of hetrdzv imports only what is below it, hetagent only what clients need."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MAY_IMPORT: dict[str, set[str]] = {
    "core": {"protocol"},
    "protocol": set(),
    "settings": {"protocol"},
    "auth": {"protocol"},
    "storage": {"core", "protocol", "auth.tls", "client.explain"},
    "service": {"core", "protocol", "settings", "storage"},
    "api": {"core", "protocol", "settings", "storage", "auth", "service", "dashboard"},
    "dashboard": {
        "core",
        "protocol",
        "storage",
        "auth",
        "service",
        "api.views",
        "api.workers",
    },
    "client": {"protocol", "auth"},
    "cli": {"core", "protocol", "settings", "storage", "auth", "service", "api", "client"},
}
"""By folder (or module at the top): the folders, or single modules of one, that it may import besides itself."""

AGENT_MAY_IMPORT = {"auth", "client", "protocol"}
"""What hetagent may import of hetrdzv; of auth, what a client needs."""

AGENT_AUTH = {"auth.client_token", "auth.files", "auth.tls"}

ETCD = "storage.etcd"
MAY_IMPORT_ETCD = {"service.leadership"}
"""A single server needs no HTTP client, so only what runs with etcd imports it when it is loaded."""


def modules(folder: str, package: str) -> list[tuple[str, Path]]:
    """Every module of a package, by its name below the package."""
    top = ROOT / folder / package
    return sorted((".".join(path.relative_to(top).with_suffix("").parts), path) for path in top.rglob("*.py"))


def imports(source: str, package: str = "hetrdzv", *, when_loaded: bool = False) -> Iterator[str]:
    """The modules of a package that a source imports, by their names below the package.

    Args:
        when_loaded: leave out imports in functions.
    """
    tree = ast.parse(source)
    nodes = tree.body if when_loaded else ast.walk(tree)
    for node in nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            # `from hetrdzv.service import leadership` may name a module
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.removeprefix(f"{package}.") for name in names if name.startswith(f"{package}."))


def is_in(name: str, allowed: str) -> bool:
    return name == allowed or name.startswith(f"{allowed}.")


def complaints(module: str, source: str, allowed: set[str]) -> list[str]:
    """The imports of a module that are in none of the allowed folders or modules."""
    return [
        f"{module} imports {name}"
        for name in imports(source)
        if name != "__version__" and not any(is_in(name, one) for one in allowed)
    ]


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_imports_go_downwards(room: str) -> None:
    inside = [(name, path) for name, path in modules("rendezvous", "hetrdzv") if is_in(name, room)]
    assert inside, f"there is no {room}"
    for name, path in inside:
        assert complaints(name, path.read_text(encoding="utf-8"), MAY_IMPORT[room] | {room}) == []


def test_every_folder_is_in_the_table() -> None:
    assert {name.split(".")[0] for name, _ in modules("rendezvous", "hetrdzv")} == {*MAY_IMPORT, "__init__"}


def test_the_agent_imports_what_clients_need() -> None:
    for name, path in modules("agent", "hetagent"):
        source = path.read_text(encoding="utf-8")
        assert complaints(name, source, AGENT_MAY_IMPORT) == []
        for imported in imports(source):
            assert not is_in(imported, "auth") or any(is_in(imported, one) for one in AGENT_AUTH), (
                f"{name} imports {imported}"
            )


def test_nothing_of_the_server_imports_the_agent() -> None:
    for name, path in modules("rendezvous", "hetrdzv"):
        assert list(imports(path.read_text(encoding="utf-8"), "hetagent")) == [], name


def test_etcd_is_imported_only_where_it_is_used() -> None:
    for name, path in modules("rendezvous", "hetrdzv"):
        found = [
            one for one in imports(path.read_text(encoding="utf-8"), when_loaded=True) if is_in(one, ETCD)
        ]
        assert not found or is_in(name, ETCD) or name in MAY_IMPORT_ETCD, f"{name} imports {found}"


@pytest.mark.parametrize(
    ("program", "late"),
    [
        ("hetrdzv.cli.hetctl.main", "hetrdzv.core"),  # plans without a server
    ],
)
def test_what_few_ask_for_is_imported_when_somebody_does(program: str, late: str) -> None:
    source = f"import sys, {program}; sys.exit({late!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", source], check=False).returncode == 0


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import hetrdzv.api.views", "api.views"),
        ("from hetrdzv.api import views", "api.views"),
        ("from hetrdzv import api", "api"),
        ("def f():\n    from hetrdzv.api.views import poll_s", "api.views.poll_s"),
    ],
)
def test_an_import_upwards_is_found(source: str, found: str) -> None:
    assert complaints("service.polls", source, MAY_IMPORT["service"]) == [f"service.polls imports {found}"]


def test_an_import_within_bounds_is_none() -> None:
    source = "import os\nfrom hetrdzv import __version__\nfrom hetrdzv.core.model import Group"
    assert complaints("service.polls", source, MAY_IMPORT["service"]) == []
