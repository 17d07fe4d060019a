"""The dashboard in a real browser, with many nodes, ranks and groups, and on a phone."""

import re
from typing import Any

import pytest

from tests.support.servers import Hetserver

pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")

from playwright.sync_api import Browser, Page, expect

from tests.support.browser import READ, SPEC, Watched, ask, join, report, running

DESKTOP: Any = {"viewport": {"width": 1280, "height": 900}}
PHONE: Any = {"width": 390, "height": 844}
SLOTS = 2


def fleet(server: Hetserver, group: str, nodes: int, **said: Any) -> None:
    """Make a group that runs on many nodes, whose workers have told how far they are; rank 5 waits for nobody."""
    names = [f"gpu{number:03}" for number in range(nodes)]
    for name in names:
        join(server, group, name, spec={**SPEC, "min_nodes": nodes, "max_nodes": nodes}, slots=SLOTS)
    for name in names:
        report(server, group, name, "started")
    for number, name in enumerate(names):
        ranks = range(number * SLOTS, (number + 1) * SLOTS)
        workers = [{"rank": rank, "waiting": 0.0 if rank == 5 else 0.4, **said} for rank in ranks]
        told = {"incarnation": "1", "progress": {"round": 1, "workers": workers}}
        ask(server, "POST", f"/v1/groups/{group}/nodes/{name}/directive", told)


def opened(chromium: Browser, server: Hetserver, group: str, **options: Any) -> Watched:
    seen = Watched(chromium, server, **options)
    seen.sign_in(READ, group)
    expect(seen.page.locator("#link")).to_have_text("live")
    return seen


def height(page: Page) -> int:
    return int(page.evaluate("document.documentElement.scrollHeight"))


def fits_the_width(page: Page) -> bool:
    return bool(page.evaluate("document.documentElement.scrollWidth === window.innerWidth"))


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


def test_nodes_that_need_attention_have_rows_above_the_map(chromium: Browser, server: Hetserver) -> None:
    fleet(server, "odd", 20)
    seen = opened(chromium, server, "odd", **DESKTOP)
    rows = seen.page.locator("#nodes tbody tr")
    expect(rows).to_have_count(0)
    for number in range(20):
        ranks = range(number * SLOTS, (number + 1) * SLOTS)
        told = {"round": 1, "workers": [stands(rank, behind=rank == 30) for rank in ranks]}
        body = {"incarnation": "1", "progress": told}
        ask(server, "POST", f"/v1/groups/odd/nodes/gpu{number:03}/directive", body)
    expect(rows).to_have_text([re.compile("gpu015")])
    expect(seen.page.locator(".map .behind")).to_contain_text("gpu015")
    expect(seen.page.locator(".paces tr").filter(has_text="waited for")).to_contain_text("gpu015")
    ask(server, "DELETE", "/v1/groups/odd/nodes/gpu007?incarnation=1&reason=power")
    expect(rows.filter(has_text="gpu007")).to_contain_text("left")
    expect(seen.page.locator(".map .state-left")).to_contain_text("gpu007")
    seen.context.close()


def stands(rank: int, *, behind: bool) -> dict[str, Any]:
    """A worker that has stood still for long, one collective behind the others or not."""
    lane = {
        "name": "0",
        "size": 40,
        "enqueued": 16 if behind else 17,
        "completed": 16,
        "op": "all_reduce [[1]]",
    }
    return {"rank": rank, "still": True, "idle_s": 30.0, "collectives": [lane]}


def test_columns_without_values_are_not_shown(chromium: Browser, server: Hetserver) -> None:
    fleet(server, "plain", 2)
    seen = opened(chromium, server, "plain", **DESKTOP)
    page = seen.page
    expect(page.locator(".paces thead th")).to_have_text(["rank", "node", "waits for others"])
    expect(page.locator("#rounds thead th")).to_have_text(["round", "formed", "trained", "ended"])
    ask(server, "DELETE", "/v1/groups/plain/nodes/gpu000?incarnation=1&reason=power")
    expect(page.locator("#facts dt")).to_have_text(["nodes", "round", "restarts used", "time training"])
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
        for node in ("gpu1", "gpu2"):
            join(server, "long", node, after=number, spec=spec)
        for node in ("gpu1", "gpu2"):
            report(server, "long", node, "started", round=number + 1)
    seen = opened(chromium, server, "long", **DESKTOP)
    page = seen.page
    expect(page.locator("#rounds tbody tr:visible")).to_have_count(5)
    page.get_by_text("3 earlier rounds").click()
    expect(page.locator("#rounds tbody tr:visible")).to_have_count(8)
    ask(server, "DELETE", "/v1/groups/long/nodes/gpu2?incarnation=1&reason=power")
    expect(page.locator("#rounds")).to_contain_text("power")
    expect(page.locator("#rounds tbody tr:visible")).to_have_count(8)
    seen.context.close()
