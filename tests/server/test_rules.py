"""Each access rule, with requests that try to break it, against a real server with several tokens."""

import http.client
import json
import re
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from hetrdzv.dashboard.app import PAGE_PATHS
from tests.support.certificates import put_file
from tests.support.routes import is_open, role_of, routes
from tests.support.servers import ROOT, Hetserver
from tests.test_docs import quoted, rows

TOKENS = {
    "admin": "a-token-for-all-admin",
    "agent": "a-token-for-all-agent",
    "read": "a-token-for-all-read",
    "admin of team-a": "a-token-for-team-a-admin",
    "agent of team-a": "a-token-for-team-a-agent",
    "read of team-a": "a-token-for-team-a-read",
}
FILE = "".join(
    f"{token} {who.split()[0]}{' group=team-a-*' if 'team' in who else ''}\n" for who, token in TOKENS.items()
)
RANK = ["read", "agent", "admin"]
OFFER = {"incarnation": "i", "slots": 1, "address": "10.0.0.1", "port": 4000}
REPORT = {"incarnation": "i", "round": 1, "kind": "started"}
DAEMON = {"master": "m", "incarnation": "i", "round": 1, "words": ["orted"]}


class Answer(NamedTuple):
    """A reply of the server."""

    status: int
    body: Any

    @property
    def code(self) -> str:
        refused = self.status >= 400 and isinstance(self.body, dict)  # a directive has a code, too
        return str(self.body.get("code", "")) if refused else ""


@contextmanager
def served(tokens: str = FILE, *args: str) -> Iterator[tuple[Hetserver, Path]]:
    """A server with these tokens, and their file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "tokens")
        path.write_text(tokens)
        path.chmod(0o600)
        with Hetserver("memory", 0, path, *args) as server:
            yield server, path


@pytest.fixture(scope="module")
def server() -> Iterator[Hetserver]:
    with served() as (running, _):
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.log
        for token in TOKENS.values():
            assert token not in running.log


def ask(server: Hetserver, method: str, path: str, token: str | None = None, body: object = None) -> Answer:
    """A reply with its JSON, or with the beginning of a body that is not JSON."""
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) as connection:
        headers = {"Content-Type": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        response = connection.getresponse()
        content = response.read().decode()
        is_json = "json" in (response.headers["content-type"] or "")
        return Answer(response.status, json.loads(content) if is_json and content else content[:40])


# -- every route, every role, in the scope and out of it ---------------------------------------------------


ROLES = {name: role for name, route in routes().items() if (role := role_of(route)) is not None}


def told() -> dict[str, str]:
    """The role of every route but pages, as docs/api.md says; tests/server/dashboard asks for these."""
    table = rows((ROOT / "docs/api.md").read_text())
    found = {route: cells[1] for cells in table for route in quoted([cells[0]]) if " /" in route}
    return {route: role for route, role in found.items() if not PAGE_PATHS.fullmatch(route.partition(" ")[2])}


def test_the_table_has_every_route() -> None:
    assert told().keys() == routes().keys()
    open_routes = {name for name, route in routes().items() if is_open(route)}
    assert {route for route, role in told().items() if role == "none"} == open_routes
    assert {route: str(role) for route, role in ROLES.items()} == {
        route: quoted([role]).pop() for route, role in told().items() if role != "none"
    }


def request_of(route: str, group: str) -> tuple[str, str, object]:
    method, _, path = route.partition(" ")
    path = path.replace("{group_id}", group).replace("{node_id}", "n")
    if path.endswith("/directive") or (method == "DELETE" and "/nodes/" in path):
        path += "?incarnation=i"
    posted = REPORT if "report" in path else DAEMON if "daemon" in path else None
    body = {"PUT": OFFER if "/nodes/" in path else {}, "POST": posted}.get(method)
    return method, path, body


@pytest.mark.parametrize("who", TOKENS)
@pytest.mark.parametrize("route", sorted(routes()))
def test_each_role_may_do_what_the_table_says_and_no_more(server: Hetserver, route: str, who: str) -> None:
    role = told()[route]
    needed = 0 if role == "none" else min(RANK.index(word) for word in quoted([role]) & {*RANK})
    strong = role == "none" or RANK.index(who.split()[0]) >= needed
    for group in ("team-a-bert", "team-b-bert"):
        method, path, body = request_of(route, group)
        if "{group_id}" in route:
            may = strong and ("team" not in who or group.startswith("team-a-"))
        else:
            may = strong and (route != "GET /metrics" or "team" not in who)
        answer = ask(server, method, path, TOKENS[who], body)
        assert (answer.code == "forbidden") is not may, answer
        assert (answer.status == 403) is not may, answer
        if not may:
            assert f"its role is {who.split()[0]}" in answer.body["detail"]
            assert "use another token" in answer.body["detail"]
            assert not any(token in json.dumps(answer.body) for token in TOKENS.values())


# -- rules, and what was tried -----------------------------------------------------------------------------


COMMAND = {**OFFER, "spec": {"command": ["evil.py"]}}
NO_COMMAND = {**OFFER, "spec": {"command": None}}
A, B = "/v1/groups/team-a-x", "/v1/groups/team-b-x"
READER = "read of team-a"
RULES: list[tuple[str, str, str, str, object, int, str]] = [
    ("health needs no token", "nobody", "GET", "/healthz", None, 200, ""),
    ("... a page beside it does", "nobody", "GET", "/healthz/", None, 401, "unauthorized"),
    ("an agent makes groups by joining", "agent", "PUT", f"{B}-new/nodes/n", OFFER, 200, ""),
    ("... but not by PUT", "agent", "PUT", f"{B}-put", {"command": ["x"]}, 403, "forbidden"),
    ("... nor a command by a join", "agent", "PUT", f"{B}/nodes/n", COMMAND, 403, "forbidden"),
    ("... nor an empty one", "agent", "PUT", f"{B}/nodes/n", NO_COMMAND, 403, "forbidden"),
    ("... which an admin may", "admin", "PUT", f"{A}-cmd/nodes/n", COMMAND, 200, ""),
    ("only members have a daemon run", "agent", "POST", f"{B}/nodes/n/daemon", DAEMON, 404, "not_found"),
    ("a scope holds", "agent of team-a", "PUT", "/v1/groups/team-c/nodes/n", OFFER, 403, "forbidden"),
    ("... case counts", READER, "GET", "/v1/groups/TEAM-A-x", None, 403, "forbidden"),
    ("... its prefix is not enough", READER, "GET", "/v1/groups/xteam-a-x", None, 403, "forbidden"),
    ("... encoded name", READER, "GET", "/v1/groups/%74eam-b-x", None, 403, "forbidden"),
    ("... encoded slash", READER, "GET", "/v1/groups/team-a-%2f..%2fteam-b-x", None, 404, "no_such_route"),
    ("... dots", READER, "GET", f"{A}/../team-b-x", None, 404, "no_such_route"),
    ("... doubled slash", READER, "GET", "/v1/groups//team-b-x", None, 404, "no_such_route"),
    ("... absolute URL", READER, "GET", f"http://localhost{B}", None, 403, "forbidden"),
    ("... parameter", READER, "GET", f"{B}?group_id=team-a-x", None, 403, "forbidden"),
    ("... newline behind the id", READER, "GET", f"{A}%0a", None, 422, "invalid_request"),
    ("... newline behind an order", READER, "POST", f"{A}/cancel%0a", None, 403, "forbidden"),
    ("another method does nothing", READER, "POST", A, None, 405, "method_not_allowed"),
    ("... nor does HEAD", READER, "HEAD", B, None, 405, ""),
    ("no route", "agent", "GET", "/v1/nothing", None, 404, "no_such_route"),
    ("access comes before the body", "read", "PUT", A, {"no such": "field"}, 403, "forbidden"),
]


@pytest.fixture(scope="module")
def filled(server: Hetserver) -> Hetserver:
    """A server with a group of each team."""
    for group in (A, B):
        assert ask(server, "PUT", group, TOKENS["admin"], {}).status == 200
    return server


@pytest.mark.parametrize(("rule", "who", "method", "path", "body", "status", "code"), RULES)
def test_a_rule_holds(
    filled: Hetserver, rule: str, who: str, method: str, path: str, body: object, status: int, code: str
) -> None:
    answer = ask(filled, method, path, TOKENS.get(who), body)
    assert (answer.status, answer.code) == (status, code), (rule, answer)


def test_the_list_of_groups_shows_those_of_the_token(filled: Hetserver) -> None:
    def shown(who: str) -> set[str]:
        listed = ask(filled, "GET", "/v1/groups", TOKENS[who]).body["groups"]
        return {re.sub(r"-[^-]*$", "", group["group_id"]) for group in listed} & {"team-a", "team-b"}

    for who in TOKENS:
        assert shown(who) == ({"team-a"} if "team" in who else {"team-a", "team-b"})


def until_status(server: Hetserver, token: str, status: int) -> float:
    """How long it takes until a token gets a status (seconds)."""
    began = time.monotonic()
    while ask(server, "GET", "/v1/groups", token).status != status:
        assert time.monotonic() < began + 10, server.log
        time.sleep(0.05)
    return time.monotonic() - began


def test_tokens_change_without_a_restart_and_a_broken_file_changes_nothing() -> None:
    with served("the-first-token-of-all\n") as (server, path):
        until_status(server, "the-first-token-of-all", 200)
        ask(server, "PUT", "/v1/groups/g", "the-first-token-of-all", {})
        put_file(path, "the-first-token-of-all admin\nthe-other-token-of-all admin\n")
        assert until_status(server, "the-other-token-of-all", 200) < 3
        assert ask(server, "GET", "/v1/groups", "the-first-token-of-all").status == 200
        put_file(path, "the-other-token-of-all admin\n")
        assert until_status(server, "the-first-token-of-all", 401) < 3
        put_file(path, "the-other-token-of-all admin\nthe-third-token-of-all admni\n")
        server.process.send_signal(1)
        time.sleep(1.5)
        assert ask(server, "GET", "/v1/groups", "the-other-token-of-all").status == 200
        assert ask(server, "GET", "/v1/groups", "the-third-token-of-all").status == 401
        path.unlink()
        time.sleep(1.5)
        assert ask(server, "GET", "/v1/groups", "the-other-token-of-all").status == 200
        put_file(path, "the-third-token-of-all\n")
        server.process.send_signal(1)
        assert until_status(server, "the-third-token-of-all", 200) < 1
        assert server.stop() == 0
        assert server.log.count("line 2: write TOKEN ROLE") == 1
        assert server.log.count("the previous tokens stay valid") == 2
        assert "cannot be read: No such file or directory" in server.log
        assert "token-of-all" not in server.log
        assert "Traceback" not in server.log
