"""Signing in: a token becomes a cookie that stands for it, ends with it and in time, and is of no use elsewhere."""

import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from hetrdzv.api.app import create_app
from hetrdzv.auth.token_files import TokenFile
from hetrdzv.dashboard.sessions import SESSION_S
from hetrdzv.service.service import Service
from tests.support.served import serving, two_nodes

TOKEN, OTHER = "a-token-for-readers-only", "another-token-of-admins"
OWN = {"Origin": "http://localhost:29400"}


@pytest.fixture
async def service() -> AsyncIterator[Service]:
    async with serving() as (running, _):
        await two_nodes(running)
        yield running


@pytest.fixture
def tokens(tmp_path: Path) -> TokenFile:
    path = tmp_path / "tokens"
    path.write_text(f"{TOKEN} read\n{OTHER} admin\n")
    path.chmod(0o600)
    return TokenFile(path)


def browser(service: Service, tokens: TokenFile, *, secure: bool = False) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(create_app(service, tokens=tokens, secure=secure))
    scheme = "https" if secure else "http"
    return httpx.AsyncClient(transport=transport, base_url=f"{scheme}://localhost:29400")


async def sign_in(client: httpx.AsyncClient, token: str = TOKEN, where: str = "/") -> httpx.Response:
    return await client.post("/sign-in", data={"token": token, "where": where})


@pytest.mark.parametrize("secure", [False, True])
async def test_a_token_signs_a_browser_in(service: Service, tokens: TokenFile, secure: bool) -> None:
    async with browser(service, tokens, secure=secure) as client:
        asked = await client.get("/groups/g")
        assert asked.status_code == 401
        assert 'name="where" value="/groups/g"' in asked.text
        assert "round 1" not in asked.text
        answer = await sign_in(client, f" {TOKEN}\n", "/groups/g")
        assert (answer.status_code, answer.headers["location"]) == (303, "/groups/g")
        cookie = answer.headers["set-cookie"].lower()
        for part in ("httponly", "samesite=strict", f"max-age={SESSION_S}"):
            assert part in cookie
        assert ("secure" in cookie) is secure
        assert TOKEN not in cookie
        assert "round 1 runs" in (await client.get("/groups/g")).text


@pytest.mark.parametrize("token", ["", "nope", f"{TOKEN}x", "\ud800", "ä" * 5_000, "x&" * 50_000])
async def test_a_wrong_token_signs_nobody_in(
    service: Service, tokens: TokenFile, token: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with browser(service, tokens) as client:
        body = b"token=" + token.encode("utf-8", "surrogatepass") + b"&where=/"
        answer = await client.post("/sign-in", content=body)
        assert (answer.status_code, "does not accept that token" in answer.text) == (401, True)
        assert "set-cookie" not in answer.headers
        assert not token or token not in answer.text + caplog.text
        assert "refused POST /sign-in" in caplog.text


@pytest.mark.parametrize(
    "where", ["//evil.example", "https://evil.example", "/groups/a/../..", "/\\evil", ""]
)
async def test_it_leads_to_no_other_site(service: Service, tokens: TokenFile, where: str) -> None:
    async with browser(service, tokens) as client:
        assert (await sign_in(client, where=where)).headers["location"] == "/"


async def test_another_site_signs_nobody_in(service: Service, tokens: TokenFile) -> None:
    async with browser(service, tokens) as client:
        for origin in ("http://evil.example", "null", "http://localhost:1"):
            answer = await client.post("/sign-in", data={"token": TOKEN}, headers={"Origin": origin})
            assert (answer.status_code, "set-cookie" in answer.headers) == (403, False)


async def test_a_cookie_signs_nothing_but_pages(service: Service, tokens: TokenFile) -> None:
    async with browser(service, tokens) as client:
        await sign_in(client, OTHER)
        assert (await client.get("/")).status_code == 200
        for method, path in (("GET", "/v1/groups"), ("POST", "/v1/groups/g/cancel"), ("GET", "/metrics")):
            assert (await client.request(method, path)).status_code == 401


async def test_a_session_has_an_end(
    service: Service, tokens: TokenFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with browser(service, tokens) as client:
        await sign_in(client)
        now = time.time()
        for passed_s, status in ((SESSION_S - 5, 200), (SESSION_S + 1, 401)):
            with monkeypatch.context() as patch:
                patch.setattr(time, "time", lambda passed_s=passed_s: now + passed_s)
                assert (await client.get("/")).status_code == status


async def test_a_session_has_the_rights_that_its_token_has_now(service: Service, tokens: TokenFile) -> None:
    async with browser(service, tokens) as client:
        await sign_in(client)
        assert (await client.get("/groups/g/cancel")).status_code == 403
        tokens.path.write_text(f"{TOKEN} admin\n")
        tokens.reload()
        assert (await client.get("/groups/g/cancel")).status_code == 200
        tokens.path.write_text(f"{OTHER} admin\n")
        tokens.reload()
        assert (await client.get("/")).status_code == 401


async def test_a_cookie_of_another_server_or_of_nobody_is_none(service: Service, tokens: TokenFile) -> None:
    async with browser(service, tokens) as client:
        await sign_in(client)
        cookie = client.cookies["hetrdzv"]
    for value in (cookie, cookie[:-1], "x", "a.b.c", ""):
        async with browser(service, tokens) as other:
            answer = await other.get("/", headers={"Cookie": f"hetrdzv={value}"})
            assert answer.status_code == 401


async def test_who_signs_out_is_out(service: Service, tokens: TokenFile) -> None:
    async with browser(service, tokens) as client:
        await sign_in(client)
        assert (await client.post("/sign-out")).status_code == 403, "only a page of this server may"
        answer = await client.post("/sign-out", headers={"HX-Request": "true", **OWN})
        assert (answer.status_code, answer.headers["hx-redirect"]) == (204, "/sign-in")
        assert (await client.get("/")).status_code == 401
