"""Pages in Chromium, driven by playwright, of a server whose groups are driven over HTTP, without agents.

Without them: apt-get install chromium fonts-dejavu-core; pip install playwright
"""

import http.client
import json
import time
from contextlib import closing
from typing import Any

import pytest

from tests.support.servers import Hetserver

pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")

from playwright.sync_api import Browser, Page

ADMIN, READ = "a-token-for-admins-only", "a-token-for-readers-only"
SPEC = {"lease_s": 600, "last_call_s": 0, "min_nodes": 2, "max_nodes": 2}


class Watched:
    """A page of which everything is noted that it should not do."""

    def __init__(self, chromium: Browser, server: Hetserver, **options: Any) -> None:
        self.server = server
        self.complaints: list[str] = []
        self.context = chromium.new_context(**options)
        self.page: Page = self.context.new_page()
        self.page.on("pageerror", lambda error: self.complaints.append(f"script error: {error}"))
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type == "error" else None)
        self.page.on(
            "request", lambda r: None if r.url.startswith(server.url) else self.complaints.append(r.url)
        )

    def sign_in(self, token: str, group: str) -> None:
        """Open the page of a group and enter a token there."""
        self.page.goto(f"{self.server.url}/groups/{group}")
        self.page.get_by_label("Token").fill(token)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(f"**/groups/{group}")
        self.complaints.clear()  # the browser's line about the 401 that the form came with


def ask(server: Hetserver, method: str, path: str, body: object = None, token: str = ADMIN) -> Any:
    with closing(http.client.HTTPConnection("127.0.0.1", server.port, timeout=20)) as connection:
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        response = connection.getresponse()
        content = response.read()
        assert response.status < 300, content
        return json.loads(content) if content else None


def join(server: Hetserver, group: str, node: str, after: int = 0, **more: Any) -> None:
    offer = {
        "incarnation": "1",
        "slots": 2,
        "address": "10.0.0.1",
        "port": 4000,
        "after_round": after,
        "spec": SPEC,
    }
    ask(server, "PUT", f"/v1/groups/{group}/nodes/{node}", {**offer, **more})


def report(server: Hetserver, group: str, node: str, kind: str, **more: object) -> None:
    body = {"incarnation": "1", "round": 1, "kind": kind, **more}
    ask(server, "POST", f"/v1/groups/{group}/nodes/{node}/report", body)


def running(server: Hetserver, group: str, **more: Any) -> None:
    for node in ("gpu1", "gpu2"):
        join(server, group, node, **more)
    for node in ("gpu1", "gpu2"):
        report(server, group, node, "started")


def hangs(server: Hetserver, group: str, behind: int, stack: str) -> None:
    """Round 1 of two nodes of two slots hangs: one rank is a collective behind the others, and all stacks are known."""
    for node, first in (("gpu1", 0), ("gpu2", 2)):
        workers = []
        for rank in (first, first + 1):
            at = {
                "name": "0",
                "size": 4,
                "enqueued": 17 - (rank == behind),
                "completed": 16,
                "op": "all_reduce",
            }
            workers.append({"rank": rank, "collectives": [at], "still": True, "idle_s": 60.0})
        told = {"incarnation": "1", "progress": {"round": 1, "known_s": 60.0, "workers": workers}}
        ask(server, "POST", f"/v1/groups/{group}/nodes/{node}/directive", told)
    until, answered = time.monotonic() + 30, set[str]()
    while len(answered) < 2:
        assert time.monotonic() < until, "nobody noticed the hang"
        for node in ("gpu1", "gpu2"):
            where = f"/v1/groups/{group}/nodes/{node}"
            asked = ask(server, "POST", f"{where}/directive", {"incarnation": "1"}).get("stacks")
            if asked is not None:
                stacks = [{"rank": rank, "text": stack} for rank in asked["ranks"]]
                answer = {"incarnation": "1", "number": asked["number"], "stacks": stacks}
                ask(server, "POST", f"{where}/stacks", answer)
                answered.add(node)
