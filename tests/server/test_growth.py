"""A day of joins and leaves, in virtual time: nothing in the server's memory only ever grows."""

import gc
import types
from collections import Counter, deque
from collections.abc import Iterator, Mapping

import pytest

from hetrdzv.service import ledger, retention
from hetrdzv.service import service as service_module
from tests.fuzz.virtual import VirtualServer

HOUR_S = 3_600.0
WARM_H, DAY_H = 3, 27
"""The first hours fill what is kept by number (events)."""

JOBS_PER_HOUR = 6
OFFER = {"slots": 1, "address": "10.0.0.1", "port": 4000}
HELD_BY_DESIGN = 100
"""How many more of something may be there at one moment than at another."""


NOT_LOOKED_INTO = (str, bytes, int, float, type, types.ModuleType, types.CodeType, types.FrameType)


def inside(value: object, name: str) -> Iterator[tuple[str, object]]:
    """What a value refers to, each with a name that is the same for all values of its kind."""
    if isinstance(value, Mapping):
        for key, one in list(value.items()):
            yield f"{name}[key]", key
            yield f"{name}[]", one
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from ((f"{name}[]", one) for one in list(value))
    elif isinstance(value, types.FunctionType):
        yield from ((f"{name}()", cell.cell_contents) for cell in value.__closure__ or ())
    else:
        kind = type(value).__qualname__
        held = list(getattr(value, "__dict__", {}).items())
        held += [(slot, getattr(value, slot, None)) for slot in getattr(type(value), "__slots__", ())]
        for attribute, one in held:
            yield f"{kind}.{attribute}", one
        known = {id(one) for _, one in held}
        for one in gc.get_referents(value):
            if id(one) not in known:
                yield f"{kind}>{type(one).__qualname__}", one


def sizes(*roots: object) -> Counter[str]:
    """How many items there are in all containers of a kind that can be reached."""
    found: Counter[str] = Counter()
    seen: set[int] = set()
    due = deque(("", root) for root in roots)
    while due:
        name, value = due.popleft()
        if id(value) in seen or value is None or isinstance(value, NOT_LOOKED_INTO):
            continue
        seen.add(id(value))
        if isinstance(value, dict | list | set | frozenset | deque):
            found[name] += len(value)
        due.extend(inside(value, name))
    return found


def live_an_hour(server: VirtualServer, hour: int) -> None:
    """Jobs that end well, and one that goes on, whose nodes come, go, are lost and are replaced."""
    jobs = "/v1/groups/g/nodes"
    for n in range(JOBS_PER_HOUR):
        name = f"h{hour}n{n}"
        job = f"/v1/groups/{name}/nodes/{name}"
        for path, spec in ((f"{jobs}/{name}", {}), (job, {"min_nodes": 1, "max_nodes": 1})):
            offer = {**OFFER, "incarnation": "1", "spec": spec}
            reply = server.send("PUT", path, json=offer)
            assert reply.status_code == 200, reply.text
            said = {"incarnation": "1", "progress": {"round": 1, "workers": [{"rank": 0, "step": n}]}}
            assert server.send("POST", f"{path}/directive", json=said).status_code == 200
            assert server.send("GET", f"{path}/directive?incarnation=1&wait=1").status_code == 200
        for kind in ("started", "succeeded"):
            report = {"incarnation": "1", "round": 1, "kind": kind}
            assert server.send("POST", f"{job}/report", json=report).status_code == 200
        server.send("GET", job + "/directive?incarnation=1")
        assert server.send("DELETE", f"{job}?incarnation=1").status_code == 204
        for node in (name, f"{name}.2"):  # one comes again, another is lost
            server.send("PUT", f"{jobs}/{node}", json={**OFFER, "incarnation": "2", "spec": {}})
        server.send("DELETE", f"{jobs}/{name}?incarnation=2")
        server.send("GET", f"/v1/groups/{name}-unknown")
        server.send("GET", f"/{name}")
        server.send("GET", "/metrics")
        server.send("GET", f"/groups/{name}")
        server.stand_still(0.45)
        server.pass_time(HOUR_S / JOBS_PER_HOUR)
    server.forget_commits()


@pytest.mark.long
def test_nothing_only_ever_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service_module, "BEAT_INTERVAL_S", 0.5)  # half of the work
    monkeypatch.setattr(retention, "KEEP_IDLE_S", 600.0)
    monkeypatch.setattr(ledger, "MAX_STORED_EVENTS", 50)  # full when the day begins
    with VirtualServer(keep_finished_s=600.0) as server:
        stays = {**OFFER, "incarnation": "1", "spec": {"min_nodes": 1, "max_nodes": 4, "lease_s": 60}}
        assert server.send("PUT", "/v1/groups/other/nodes/stays", json=stays).status_code == 200
        roots = (server.app, server.replica)
        for hour in range(WARM_H):
            live_an_hour(server, hour)
        before = sizes(*roots)
        for hour in range(WARM_H, DAY_H):
            live_an_hour(server, hour)
        after = sizes(*roots)
    grown = {
        name: (before[name], number)
        for name, number in after.items()
        if number > before[name] + max(HELD_BY_DESIGN, before[name] // 2)
    }
    assert not grown
    assert len(after) > 50
