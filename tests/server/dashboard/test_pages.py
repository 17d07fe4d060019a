"""The pages through the whole application: who may see and do what, and that nothing in them runs."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from hetrdzv.api.app import create_app
from hetrdzv.auth.token_files import TokenFile
from hetrdzv.auth.tokens import Grant, Role, Tokens
from hetrdzv.core.commands import Cancel, RecordStall
from hetrdzv.core.model import Stall
from hetrdzv.dashboard.sessions import SESSION_LIFETIME_S
from hetrdzv.protocol.worker_output import WorkerOutput
from hetrdzv.service.progress import queries
from hetrdzv.service.service import Service
from tests.support.certificates import put_file
from tests.support.hangs import behind
from tests.support.served import join, serving, settled, two_nodes

TOKENS = {
    "an-admin-token": Grant(Role.ADMIN),
    "a-read-token": Grant(Role.READ),
    "a-team-token": Grant(Role.ADMIN, "g*"),
}
HTML = {"Accept": "text/html"}
OWN = {"HX-Request": "true", "Origin": "http://localhost:29400"}
"""What a browser sends from a page of this server."""
EVIL = "<script>alert(1)</script>\n'\"><img src=x onerror=alert(2)>"


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with serving() as (running, _):
        await two_nodes(running)
        await running.execute("other", join("c", min_nodes=2))
        yield running


def browser(service: Service, tokens: Tokens | None = None, *, secure: bool = False) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_app(service, tokens=tokens, secure=secure))
    url = f"{'https' if secure else 'http'}://localhost:29400"
    return httpx.AsyncClient(transport=transport, base_url=url, headers=HTML)


async def sign_in(client: httpx.AsyncClient, token: str, where: str = "/") -> httpx.Response:
    """Turn a token into a cookie."""
    answer = await client.post("/sign-in", data={"token": token, "where": where})
    assert answer.status_code == 303
    return answer


# -- who sees what -----------------------------------------------------------------------------------------


async def test_without_a_token_pages_are_as_open_as_the_api(service: Service) -> None:
    async with browser(service) as client:
        page = (await client.get("/")).text
        assert 'href="/groups/g"' in page
        assert 'href="/groups/other"' in page
        page = (await client.get("/groups/g")).text
        assert "round 1 runs on 2 nodes, world size 2" in page
        assert 'hx-get="/groups/g/nodes/a/drain"' in page
        assert (await client.get("/", headers={"Host": "evil.example"})).status_code == 403


async def test_a_reader_has_no_buttons_and_may_not_act_without_them(service: Service) -> None:
    async with browser(service, Tokens(TOKENS)) as client:
        await sign_in(client, "a-read-token")
        page = (await client.get("/groups/g")).text
        assert re.findall(r'hx-(?:get|post)="([^"]+)"', page) == ["/sign-out"]
        for path in ("/groups/g/cancel", "/groups/g/nodes/a/drain"):
            assert (await client.get(path)).status_code == 403
            assert (await client.post(path, headers=OWN)).status_code == 403
        assert service.group("g").state == "running"


async def test_what_the_worker_wrote_that_is_waited_for_is_asked_of_its_agent(service: Service) -> None:
    stall = Stall(hang=behind(1, "b"), since=0.0, reported=True, stack="in load")
    async with browser(service, Tokens(TOKENS)) as client:
        await sign_in(client, "an-admin-token")
        assert "Nobody is waited for" in (await client.get("/groups/g/output")).text
        await service.execute("g", RecordStall(round=1, stall=stall))
        assert 'hx-get="/groups/g/output"' in (await client.get("/groups/g")).text
        asked = asyncio.create_task(client.get("/groups/g/output"))
        await settled()
        question = service.queries.next_query("g", "b")
        assert question is not None
        service.queries.on_answer("g", "b", question.asked.number, [WorkerOutput(rank=1, text=EVIL)])
        page = (await asked).text
        assert "What rank 1 wrote last" in page
        assert "<script>" not in page
        assert "&lt;script&gt;" in page
        await sign_in(client, "a-read-token")
        assert (await client.get("/groups/g/output")).status_code == 403
        assert "/output" not in (await client.get("/groups/g")).text


async def test_what_a_round_left_behind_is_a_click_away_for_admins(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "ANSWER_TIMEOUT_S", 0.1)
    async with browser(service, Tokens(TOKENS)) as client:
        await sign_in(client, "an-admin-token")
        assert "has not answered within" in (await client.get("/groups/g/stacks")).text
        assert "has no round 7" in (await client.get("/groups/g/stacks?round=7")).text
        stacks = [
            WorkerOutput(rank=rank, node_id="ab"[rank], text=text)
            for rank, text in enumerate(["in load", EVIL])
        ]
        service.post_mortems.add_stacks("g", 1, 2, stacks)
        quiet = "[rank0] all is well"
        raises = 'Traceback (most recent call last):\n  File "train.py", line 7\nValueError: <odd>'
        for rank, text in enumerate([quiet, raises]):
            service.post_mortems.add_logs(
                service.group("g"), "ab"[rank], 1, [WorkerOutput(rank=rank, text=text)]
            )
        assert "round=1" not in (await client.get("/groups/g")).text, "it runs"
        await service.execute("g", Cancel())
        page = (await client.get("/groups/g")).text
        for what in ("output", "stacks"):
            assert f'hx-get="/groups/g/{what}?round=1" hx-target="#asked-of-round"' in page
        shown = (await client.get("/groups/g/stacks?round=1")).text
        assert "Where rank 0 was" in shown
        assert "<script>" not in shown
        shown = (await client.get("/groups/g/output?round=1")).text
        assert shown.index("ValueError: &lt;odd&gt;") < shown.index("all is well"), "an exception comes first"
        await sign_in(client, "a-read-token")
        assert "round=1" not in (await client.get("/groups/g")).text
        for what in ("output", "stacks"):
            assert (await client.get(f"/groups/g/{what}?round=1")).status_code == 403


# -- acting ------------------------------------------------------------------------------------------------


async def test_an_action_asks_first_with_the_plan(service: Service) -> None:
    async with browser(service) as client:
        question = (await client.get("/groups/g/nodes/b/drain")).text
        assert "Workers of a, b are stopped for good." in question
        assert "Then no round runs" in question
        assert service.group("g").state == "running"
        restart = (await client.get("/groups/g/restart")).text
        assert "Workers of a, b are stopped and started again." in restart
        cancel = (await client.get("/groups/g/cancel")).text
        assert "2 workers on 2 nodes are stopped." in cancel


@pytest.mark.parametrize("tokens", [None, Tokens(TOKENS)], ids=["open", "signed in"])
async def test_only_our_own_pages_can_act(service: Service, tokens: Tokens | None) -> None:
    async with browser(service, tokens) as client:
        if tokens is not None:
            await sign_in(client, "an-admin-token")
        for headers in (
            {},
            {"Origin": "http://localhost:29400"},
            {**OWN, "Origin": "http://evil.example"},
            {**OWN, "Origin": "null"},
        ):
            answer = await client.post("/groups/g/cancel", headers=headers)
            assert answer.status_code == 403
        assert service.group("g").state == "running"
        answer = await client.post("/groups/g/nodes/b/drain", headers=OWN)
        assert (answer.status_code, answer.headers["hx-trigger"]) == (204, "done")
        assert "b" in service.group("g").drained
        assert (await client.post("/groups/g/nodes/b/undrain", headers=OWN)).status_code == 204
        assert (await client.post("/groups/g/cancel", headers=OWN)).status_code == 204
        assert service.group("g").state == "cancelled"


async def test_a_group_whose_job_is_over_can_be_deleted(service: Service) -> None:
    async with browser(service) as client:
        assert "/groups/g/delete" not in (await client.get("/groups/g")).text
        refused = await client.post("/groups/g/delete", headers=OWN)
        assert "still has nodes (a, b)" in refused.text
        await service.execute("g", Cancel())
        assert 'hx-get="/groups/g/delete"' in (await client.get("/groups/g")).text
        question = (await client.get("/groups/g/delete")).text
        assert "Its history" in question
        assert "run the job again" in question
        assert (await client.post("/groups/g/delete")).status_code == 403
        answer = await client.post("/groups/g/delete", headers=OWN)
        assert (answer.status_code, answer.headers["hx-redirect"]) == (204, "/")
        assert (await client.get("/groups/g", headers={"Accept": "text/html"})).status_code == 404


async def test_what_cannot_be_done_is_said_where_it_was_asked(service: Service) -> None:
    async with browser(service) as client:
        answer = await client.post("/groups/g/nodes/nobody/drain", headers=OWN)
        assert answer.status_code == 404
        assert "<html" not in answer.text
        assert "nobody" in answer.text
        assert 'role="alert"' in answer.text
        page = await client.get("/groups/nope")
        assert (page.status_code, "there is no group" in page.text) == (404, True)
        for path in ("/groups/g/nowhere", "/groups/g/output?round=x"):
            assert (await client.get(path)).status_code in (404, 422)


async def test_a_page_whose_session_is_over_gets_no_json_to_show(service: Service) -> None:
    async with browser(service, Tokens(TOKENS)) as client:
        answer = await client.get("/groups/g/restart", headers={"HX-Request": "true", "Accept": "*/*"})
        assert (answer.status_code, answer.headers["content-type"]) == (401, "text/html; charset=utf-8")
        assert 'role="alert"' in answer.text
        assert "reload the page" in answer.text


# -- what is in a page -------------------------------------------------------------------------------------


async def test_pages_load_nothing_from_elsewhere_and_run_only_files(service: Service) -> None:
    async with browser(service) as client:
        for path in ("/", "/groups/g", "/sign-in", "/static/page.js"):
            answer = await client.get(path)
            policy = answer.headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert "//" not in policy
            assert answer.headers["x-content-type-options"] == "nosniff"
        page = (await client.get("/groups/g")).text
        assert re.findall(r'(?:src|href)="(?:https?:)?//', page) == []
        for name in re.findall(r'"/static/([^"]+)"', page):
            assert (await client.get(f"/static/{name}")).status_code == 200
        assert (await client.get("/static/nope.js")).status_code == 404
        assert (await client.get("/static/..%2fpages.py")).status_code == 404


# -- following ---------------------------------------------------------------------------------------------


async def test_an_open_page_is_sent_the_sections_that_have_changed(service: Service) -> None:
    async with browser(service) as client:
        page = await client.get("/groups/g")
        (etag,) = re.findall('data-etag="&#34;(.*?)&#34;"', page.text)
        poll = {"HX-Request": "true", "If-None-Match": f'"{etag}"'}
        again = await client.get("/groups/g", headers=poll)
        assert (again.status_code, again.content) == (304, b"")
        await service.execute("g", Cancel())
        answer = await client.get("/groups/g", headers=poll)
        sent = set(re.findall('<section id="(.*?)" hx-swap-oob="innerHTML">', answer.text))
        assert {"now", "nodes", "history"} <= sent
        assert "cause" not in sent
        poll["If-None-Match"] = answer.headers["etag"]
        assert (await client.get("/groups/g", headers=poll)).status_code == 304


async def test_sections_are_of_a_role_and_a_scope(service: Service) -> None:
    poll = {"HX-Request": "true"}
    async with browser(service, Tokens(TOKENS)) as client:
        for token, drains, sees_other in (
            ("an-admin-token", True, True),
            ("a-read-token", False, True),
            ("a-team-token", True, False),
        ):
            await sign_in(client, token)
            assert ("Drain" in (await client.get("/groups/g", headers=poll)).text) is drains
            assert ("other" in (await client.get("/", headers=poll)).text) is sees_other
            assert (await client.get("/groups/other", headers=poll)).is_success is sees_other


# -- signing in: a token becomes a cookie that stands for it, ends with it and in time, and is of no use elsewhere --

TOKEN, OTHER = "a-token-for-readers-only", "another-token-of-admins"


@pytest.fixture
def token_file(tmp_path: Path) -> TokenFile:
    return TokenFile(put_file(tmp_path / "tokens", f"{TOKEN} read\n{OTHER} admin\n"))


@pytest.mark.parametrize("secure", [False, True])
async def test_a_token_signs_a_browser_in(service: Service, token_file: TokenFile, secure: bool) -> None:
    async with browser(service, token_file, secure=secure) as client:
        asked = await client.get("/groups/g")
        assert asked.status_code == 401
        assert 'name="where" value="/groups/g"' in asked.text
        assert "round 1" not in asked.text
        answer = await sign_in(client, f" {TOKEN}\n", "/groups/g")
        assert (answer.status_code, answer.headers["location"]) == (303, "/groups/g")
        cookie = answer.headers["set-cookie"].lower()
        for part in ("httponly", "samesite=strict", f"max-age={SESSION_LIFETIME_S}"):
            assert part in cookie
        assert ("secure" in cookie) is secure
        assert TOKEN not in cookie
        assert "round 1 runs" in (await client.get("/groups/g")).text


@pytest.mark.parametrize("token", ["", "nope", f"{TOKEN}x", "\ud800", "ä" * 5_000, "x&" * 50_000])
async def test_a_wrong_token_signs_nobody_in(
    service: Service, token_file: TokenFile, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with browser(service, token_file) as client:
        body = b"token=" + token.encode("utf-8", "surrogatepass") + b"&where=/"
        answer = await client.post("/sign-in", content=body)
        assert (answer.status_code, "does not accept that token" in answer.text) == (401, True)
        assert "set-cookie" not in answer.headers
        assert not token or token not in answer.text + caplog.text
        assert "refused POST /sign-in" in caplog.text


@pytest.mark.parametrize(
    "where", ["//evil.example", "https://evil.example", "/groups/a/../..", "/\\evil", ""]
)
async def test_it_leads_to_no_other_site(service: Service, token_file: TokenFile, where: str) -> None:
    async with browser(service, token_file) as client:
        assert (await sign_in(client, TOKEN, where)).headers["location"] == "/"


async def test_another_site_signs_nobody_in(service: Service, token_file: TokenFile) -> None:
    async with browser(service, token_file) as client:
        for origin in ("http://evil.example", "null", "http://localhost:1"):
            answer = await client.post("/sign-in", data={"token": TOKEN}, headers={"Origin": origin})
            assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)


async def test_a_cookie_signs_nothing_but_pages(service: Service, token_file: TokenFile) -> None:
    async with browser(service, token_file) as client:
        await sign_in(client, OTHER)
        assert (await client.get("/")).status_code == 200
        for method, path in (("GET", "/v1/groups"), ("POST", "/v1/groups/g/cancel"), ("GET", "/metrics")):
            assert (await client.request(method, path)).status_code == 401


async def test_a_session_has_an_end(
    service: Service, token_file: TokenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with browser(service, token_file) as client:
        await sign_in(client, TOKEN)
        now = time.time()
        for passed_s, status in ((SESSION_LIFETIME_S - 5, 200), (SESSION_LIFETIME_S + 1, 401)):
            with monkeypatch.context() as patch:
                patch.setattr(time, "time", lambda passed_s=passed_s: now + passed_s)
                assert (await client.get("/")).status_code == status


async def test_a_session_has_the_rights_that_its_token_has_now(
    service: Service, token_file: TokenFile
) -> None:
    async with browser(service, token_file) as client:
        await sign_in(client, TOKEN)
        assert (await client.get("/groups/g/cancel")).status_code == 403
        token_file.path.write_text(f"{TOKEN} admin\n")
        token_file.reload()
        assert (await client.get("/groups/g/cancel")).status_code == 200
        token_file.path.write_text(f"{OTHER} admin\n")
        token_file.reload()
        assert (await client.get("/")).status_code == 401


async def test_a_cookie_of_another_server_or_of_nobody_is_none(
    service: Service, token_file: TokenFile
) -> None:
    async with browser(service, token_file) as client:
        await sign_in(client, TOKEN)
        cookie = client.cookies["hetrdzv"]
    for value in (cookie, cookie[:-1], "x", "a.b.c", ""):
        async with browser(service, token_file) as other:
            answer = await other.get("/", headers={"Cookie": f"hetrdzv={value}"})
            assert answer.status_code == 401


async def test_who_signs_out_is_out(service: Service, token_file: TokenFile) -> None:
    async with browser(service, token_file) as client:
        await sign_in(client, TOKEN)
        assert (await client.post("/sign-out")).status_code == 403, "only a page of this server may"
        answer = await client.post("/sign-out", headers={"HX-Request": "true", **OWN})
        assert (answer.status_code, answer.headers["hx-redirect"]) == (204, "/sign-in")
        assert (await client.get("/")).status_code == 401
