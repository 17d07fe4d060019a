"""The dashboard in a real browser."""

from pathlib import Path

import pytest

from tests.support.etcd import EtcdCluster, sturdy
from tests.support.failover import serving
from tests.support.servers import Hetserver

pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")

from playwright.sync_api import Browser, expect

from tests.support.browser import ADMIN, READ, Watched, ask, hangs, running

EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def test_a_page_shows_what_happens_and_acts(chromium: Browser, server: Hetserver) -> None:
    running(server, "bert", labels={"rack": EVIL})
    seen = Watched(chromium, server)
    seen.sign_in(ADMIN, "bert")
    page = seen.page
    expect(page.locator("#link")).to_have_text("live")
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
    """Its line of code is in the headline. Once the job is over, names are not crossed out; then the group is gone."""
    running(server, "red")
    hangs(
        server,
        "red",
        behind=3,
        stack='Thread 0x7f (most recent call first):\n  File "/a/train.py", line 12 in load',
    )
    seen = Watched(chromium, server)
    seen.sign_in(ADMIN, "red")
    expect(seen.page.locator("#now .why")).to_contain_text(
        "for rank 3 (gpu2), which is at collective 16 of 17: train.py:12"
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
    seen = Watched(chromium, server, viewport={"width": 400, "height": 800}, color_scheme="dark")
    seen.sign_in(READ, "read")
    page = seen.page
    expect(page.locator("#link")).to_have_text("live")
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
    seen = Watched(chromium, server)
    seen.sign_in(READ, "linked")
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
    seen = Watched(chromium, server)
    seen.sign_in(ADMIN, "kept")
    expect(seen.page.locator("#link")).to_have_text("live")
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


@pytest.mark.long
def test_a_lost_connection_is_said_and_comes_back(chromium: Browser, tmp_path: Path) -> None:
    with Hetserver(f"sqlite:{tmp_path}/state.db") as server:
        running(server, "lost")
        seen = Watched(chromium, server)
        seen.page.goto(f"{server.url}/groups/lost")
        expect(seen.page.locator("#link")).to_have_text("live")
        server.kill()
        expect(seen.page.locator("#link")).to_contain_text("connection lost")
        server.start()
        expect(seen.page.locator("#link")).to_have_text("live", timeout=20_000)
        ask(server, "POST", "/v1/groups/lost/cancel")
        expect(seen.page.locator("#now")).to_contain_text("cancelled")
        unknown = [text for text in seen.complaints if "ERR_" not in text and not text.startswith("htmx:")]
        assert unknown == [], "but for the browser's own lines, and htmx's, about the connection"
        seen.context.close()
