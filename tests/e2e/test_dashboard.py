"""The dashboard in Chromium, driven by playwright; groups are driven over HTTP, without agents.

Without them: apt-get install chromium fonts-dejavu-core; pip install playwright
"""

import http.client
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest

from tests.support.etcd import EtcdCluster, sturdy
from tests.support.failover import serving
from tests.support.needs import program
from tests.support.servers import Hetserver

pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")

from playwright.sync_api import Browser, Page, expect, sync_playwright

ADMIN, READ = "a-token-for-admins-only", "a-token-for-readers-only"
SPEC = {"lease_s": 600, "last_call_s": 0, "min_nodes": 2, "max_nodes": 2}
EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
DESKTOP: Any = {"viewport": {"width": 1280, "height": 900}}
PHONE: Any = {"width": 390, "height": 844}
SLOTS = 2


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    path = program("chromium")
    if path is None:
        pytest.skip("needs Chromium: apt-get install chromium fonts-dejavu-core")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hetserver]:
    """A server that wants tokens."""
    path = tmp_path_factory.mktemp("dashboard") / "tokens"
    path.write_text(f"{ADMIN} admin\n{READ} read\n")
    path.chmod(0o600)
    with Hetserver("memory", 0, path) as running:
        yield running
        assert ADMIN not in running.log
        assert "Traceback" not in running.log


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
        "slots": SLOTS,
        "address": "10.0.0.1",
        "port": 4000,
        "after_round": after,
        "spec": SPEC,
    }
    ask(server, "PUT", f"/v1/groups/{group}/nodes/{node}", {**offer, **more})


def report(server: Hetserver, group: str, node: str, kind: str, **more: object) -> None:
    body = {"incarnation": "1", "round": 1, "kind": kind, **more}
    ask(server, "POST", f"/v1/groups/{group}/nodes/{node}/report", body)


def running(
    server: Hetserver, group: str, nodes: Sequence[str] = ("gpu1", "gpu2"), number: int = 1, **more: Any
) -> None:
    """Nodes join, and start the workers of a round."""
    for node in nodes:
        join(server, group, node, after=number - 1, **more)
    for node in nodes:
        report(server, group, node, "started", round=number)


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


def fleet(server: Hetserver, group: str, nodes: int, **said: Any) -> None:
    """Make a group that runs on many nodes, whose workers have told how far they are; rank 5 waits for nobody."""
    names = [f"gpu{number:03}" for number in range(nodes)]
    running(server, group, names, spec={**SPEC, "min_nodes": nodes, "max_nodes": nodes})
    for number, name in enumerate(names):
        ranks = range(number * SLOTS, (number + 1) * SLOTS)
        workers = [{"rank": rank, "waiting": 0.0 if rank == 5 else 0.4, **said} for rank in ranks]
        told = {"incarnation": "1", "progress": {"round": 1, "workers": workers}}
        ask(server, "POST", f"/v1/groups/{group}/nodes/{name}/directive", told)


def opened(chromium: Browser, server: Hetserver, group: str, token: str = READ, **options: Any) -> Watched:
    seen = Watched(chromium, server, **options)
    seen.sign_in(token, group)
    expect(seen.page.locator("#link")).to_have_text("live")
    return seen


def height(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollHeight"))


def fits_the_width(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth === window.innerWidth"))


def test_a_page_shows_what_happens_and_acts(chromium: Browser, server: Hetserver) -> None:
    running(server, "bert", labels={"rack": EVIL})
    seen = opened(chromium, server, "bert", ADMIN)
    page = seen.page
    expect(page.locator("#now")).to_contain_text("round 1 runs on 2 nodes, world size 4")
    expect(page.locator("#nodes")).to_contain_text(EVIL)

    # a node dies, and the page shows it without being reloaded, though it leaves alone what a person does
    page.evaluate("window.same = true")
    drain = page.get_by_role("button", name="Drain gpu1")
    drain.focus()
    ask(server, "DELETE", "/v1/groups/bert/nodes/gpu2?incarnation=1&reason=power")
    expect(page.locator("#nodes tr.state-left")).to_contain_text("gpu2")
    expect(page.locator("#now")).to_contain_text("waiting")
    expect(page.locator("#history")).to_contain_text("power")

    # an action asks first; going back changes nothing
    expect(drain).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_contain_text("Drain gpu1?")
    expect(page.get_by_role("dialog").get_by_role("button").first).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    expect(drain).to_be_focused()
    page.locator("#cancel").click()
    page.get_by_role("button", name="Cancel the job").click()
    expect(page.locator("#now")).to_contain_text("the job was cancelled by an admin")
    expect(page.get_by_role("dialog")).to_be_hidden()
    assert page.evaluate("window.same") is True
    assert ADMIN not in page.content()

    # signing out ends it, and all other pages of the browser
    other = seen.context.new_page()
    other.goto(server.url)
    expect(other.locator("#link")).to_have_text("live")
    page.get_by_role("button", name="Sign out").click()
    page.wait_for_url("**/sign-in")
    assert seen.complaints == []
    expect(other.get_by_role("heading", level=1)).to_have_text("Sign in", timeout=20_000)
    assert ADMIN not in server.log
    assert page.title() != "owned"
    page.get_by_label("Token").fill("something else")
    page.get_by_role("button", name="Sign in").click()
    expect(page.get_by_role("alert")).to_contain_text("does not accept that token")
    page.goto(f"{server.url}/groups/bert")
    expect(page.get_by_role("heading")).to_have_text("Sign in")
    seen.context.close()


def test_of_a_hang_only_the_rank_that_is_waited_for_is_red(chromium: Browser, server: Hetserver) -> None:
    """Once the job is over, names are not crossed out; then the group is gone."""
    running(server, "red")
    hangs(
        server,
        "red",
        behind=3,
        stack='Thread 0x7f (most recent call first):\n  File "/a/train.py", line 12 in load',
    )
    seen = opened(chromium, server, "red", ADMIN)
    expect(seen.page.locator("#now .why")).to_contain_text(
        "for rank 3 (gpu2), which is at collective 16 of 17"
    )
    cells = seen.page.locator("#nodes .cells .cell")
    colours = cells.evaluate_all("all => all.map(cell => [cell.textContent, getComputedStyle(cell).color])")
    assert [rank for rank, colour in colours if colour != colours[0][1]] == ["3!"]
    ask(server, "POST", "/v1/groups/red/cancel")
    for node in ("gpu1", "gpu2"):
        ask(server, "DELETE", f"/v1/groups/red/nodes/{node}?incarnation=1")
    expect(seen.page.locator("#nodes tr.state-left")).to_have_count(2)
    names = seen.page.locator("#nodes .name")
    lines = names.evaluate_all("all => all.map(name => getComputedStyle(name).textDecorationLine)")
    assert lines == ["none", "none"]
    assert seen.complaints == []
    ask(server, "DELETE", "/v1/groups/red")
    expect(seen.page.get_by_role("heading", level=1)).to_have_text("Not Found", timeout=20_000)
    seen.page.get_by_role("link", name="All groups").click()
    expect(seen.page.locator("#link")).to_have_text("live")
    seen.context.close()


def test_a_reader_sees_and_does_nothing_else(chromium: Browser, server: Hetserver) -> None:
    running(server, "read")
    seen = opened(chromium, server, "read", viewport={"width": 400, "height": 800}, color_scheme="dark")
    page = seen.page
    expect(page.get_by_role("button")).to_have_text(["Sign out"])
    assert page.evaluate("document.documentElement.scrollWidth") == 400
    page.get_by_role("link", name="hetrdzv").click()
    expect(page.get_by_role("link", name="read")).to_be_visible()
    assert seen.complaints == []
    # even script of somebody else's would reach no other host
    page.evaluate("fetch('http://203.0.113.9/').catch(() => { window.refused = true })")
    page.wait_for_function("window.refused")
    assert any("Content Security Policy" in text for text in seen.complaints)
    seen.context.close()


@pytest.mark.long
def test_a_link_on_another_site_is_one_click_away(chromium: Browser, server: Hetserver) -> None:
    """A chat, a wiki, a terminal in the browser: the strict cookie comes only with the next click."""
    running(server, "linked")
    seen = opened(chromium, server, "linked")
    link = f"<a href='{server.url}/groups/linked'>go</a>"
    seen.context.route(
        "http://wiki.example/", lambda route: route.fulfill(body=link, content_type="text/html")
    )
    seen.page.goto("http://wiki.example/")
    seen.page.get_by_role("link").click()
    expect(seen.page.get_by_role("heading", level=1)).to_have_text("Sign in")
    seen.page.get_by_role("link", name="Go on").click()
    expect(seen.page.locator("#now")).to_contain_text("round 1 runs on 2 nodes")
    seen.context.close()


def test_another_site_can_do_nothing_with_the_cookie(chromium: Browser, server: Hetserver) -> None:
    running(server, "kept")
    seen = opened(chromium, server, "kept", ADMIN)
    attack = f"<form method=post action='{server.url}/groups/kept/cancel'><button>x</button></form>"
    seen.context.route(
        "http://evil.example/", lambda route: route.fulfill(body=attack, content_type="text/html")
    )
    other = seen.context.new_page()
    other.goto("http://evil.example/")
    with other.expect_response(f"{server.url}/groups/kept/cancel") as answer:
        other.evaluate("document.querySelector('form').submit()")
    assert answer.value.status == 401  # a strict cookie stays at home
    assert ask(server, "GET", "/v1/groups/kept")["state"] == "running"
    seen.context.close()


@pytest.mark.long
def test_a_page_goes_on_at_the_server_that_leads(chromium: Browser) -> None:
    with EtcdCluster(sturdy()) as etcd, serving(etcd, "page", 2) as servers:
        leader = servers.leader()
        running(leader, "moved")
        seen = Watched(chromium, leader)
        seen.page.goto(f"{leader.url}/groups/moved")
        expect(seen.page.locator("#link")).to_have_text("live")
        leader.kill()
        expect(seen.page.locator("#link")).to_contain_text("connection lost")
        other, _ = servers.await_leader(but=leader)
        servers.heal()  # the first one is back, and follows
        seen.page.wait_for_url(f"{other.url}/groups/moved", timeout=30_000)
        expect(seen.page.locator("#link")).to_have_text("live")
        expect(seen.page.locator("#now")).to_contain_text("round 1 runs on 2 nodes")
        seen.context.close()


# -- many nodes, ranks and groups ---------------------------------------------------------------------------


def test_sixty_nodes_fit_two_screens_and_a_phone_without_scrolling_sideways(
    chromium: Browser, server: Hetserver
) -> None:
    fleet(server, "sixty", 60, step=7)
    seen = opened(chromium, server, "sixty", **DESKTOP)
    page = seen.page
    assert height(page) <= 2 * 900
    expect(page.locator(".map")).to_contain_text("gpu059")
    expect(page.locator("#nodes tbody tr")).to_have_count(0)
    rows = page.locator(".paces tbody tr")
    expect(rows).to_have_count(7)  # the six that others wait for most, and what is usual
    expect(rows.filter(has_text="gpu002").last).to_have_text("5gpu00270 %")
    expect(rows.last).to_contain_text("the median of 120")
    tops = [page.locator(part).bounding_box() for part in ("#timeline", ".map", "#pace", "#rounds")]
    assert [box["y"] for box in tops if box] == sorted(box["y"] for box in tops if box)
    page.locator("#pace").get_by_role("link", name="All of them").click()
    expect(page.locator(".paces tbody tr")).to_have_count(120)
    expect(page.locator("#nodes tbody tr")).to_have_count(60)
    page.get_by_role("link", name="In brief").click()
    expect(page.locator("#nodes tbody tr")).to_have_count(0)
    page.set_viewport_size(PHONE)
    assert fits_the_width(page)
    assert page.evaluate("document.querySelector('#pace-wide').scrollWidth <= window.innerWidth")
    expect(page.locator(".paces thead")).to_be_hidden()  # each number has its name beside it instead
    named = "row => [...row.querySelectorAll('td')].map(cell => getComputedStyle(cell, '::before').content)"
    assert rows.first.evaluate(named) == ["none", '"step "', '"waits "']
    assert seen.complaints == []
    seen.context.close()


def test_groups_are_searched_and_counted_and_a_choice_holds(chromium: Browser, server: Hetserver) -> None:
    for number in range(8):
        running(server, f"list-{number}")
    for number in range(3):
        ask(server, "POST", f"/v1/groups/list-{number}/cancel")
    seen = opened(chromium, server, "list-7", **DESKTOP)
    page = seen.page
    page.goto(server.url)
    expect(page.locator("#link")).to_have_text("live")
    rows = page.locator(".groups tbody tr:visible")
    find = page.get_by_role("searchbox")
    find.fill("LIST- runs")
    expect(rows).to_have_count(5)
    ask(server, "POST", "/v1/groups/list-3/cancel")  # the table is drawn again
    expect(rows).to_have_count(4)
    expect(find).to_be_focused()
    find.fill("nothing of the kind")
    expect(page.get_by_text("No group matches.")).to_be_visible()
    expect(page.locator(".groups")).to_be_hidden()
    find.fill("list-")
    button = page.get_by_role("button", name="cancelled")
    button.click()
    expect(button).to_have_attribute("aria-pressed", "true")
    expect(rows).to_have_count(4)
    ask(server, "POST", "/v1/groups/list-4/cancel")
    expect(rows).to_have_count(5)
    expect(button).to_have_attribute("aria-pressed", "true")
    page.set_viewport_size(PHONE)
    assert fits_the_width(page)
    assert seen.complaints == []
    seen.context.close()


def test_what_a_person_unfolds_stays_so(chromium: Browser, server: Hetserver) -> None:
    spec = {**SPEC, "max_restarts": 50, "restart_wait_s": 0}
    running(server, "long", spec=spec)
    for number in range(1, 8):
        failure = {"local_rank": 0, "rank": 0, "exit_code": 1}
        report(server, "long", "gpu1", "failed", round=number, failure=failure)
        running(server, "long", number=number + 1, spec=spec)
    seen = opened(chromium, server, "long", **DESKTOP)
    page = seen.page
    expect(page.locator("#rounds tbody tr:visible")).to_have_count(5)
    page.get_by_text("3 earlier rounds").click()
    expect(page.locator("#rounds tbody tr:visible")).to_have_count(8)
    ask(server, "DELETE", "/v1/groups/long/nodes/gpu2?incarnation=1&reason=power")
    expect(page.locator("#rounds")).to_contain_text("power")
    expect(page.locator("#rounds tbody tr:visible")).to_have_count(8)
    seen.context.close()
