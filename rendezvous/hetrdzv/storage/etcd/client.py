"""A client of an etcd cluster by its JSON gateway (https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/).

A call moves on to the next member if one does not answer.
"""

import asyncio
import json
import ssl
from base64 import b64decode, b64encode
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx

from hetrdzv.client.explain import explain_failed_connect, walk_causes
from hetrdzv.protocol.errors import StorageError
from hetrdzv.storage.etcd.access import EtcdAccess

ATTEMPT_TIMEOUT_S = 1.0
"""How long to wait for one member before asking the next (seconds)."""

SIGN_IN_TIMEOUT_S = 5.0
"""How long a member may take to check a password, which is slow on purpose (seconds)."""

KEYS_PER_PAGE = 2_000
"""How many keys are read at a time."""

RETRY_PAUSE_S = 0.1
"""Pause after no member has answered (seconds)."""

_UNAVAILABLE_GRPC_CODES = (1, 4, 14)
"""gRPC's CANCELLED, DEADLINE_EXCEEDED and UNAVAILABLE: another member may do it."""

_INVALID_TOKEN_MESSAGES = ("invalid auth token", "revision of auth store is old")

Operation = Mapping[str, Any]
"""A put or delete of a transaction, or one of its comparisons, as JSON."""


class EtcdUnavailable(StorageError):
    """No member of the cluster has answered in time: the call may or may not have been done."""


class EtcdRefused(StorageError):
    """etcd refuses the call and will keep refusing until somebody sees to it, or to our configuration."""


class _MemberUnavailable(Exception):
    """One member cannot answer; the text says why."""


@dataclass(frozen=True)
class KeyValue:
    """A key with its value, its revisions and the lease that it is bound to (0: none)."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int


def put_operation(key: bytes, value: bytes, lease: int = 0) -> Operation:
    """Writes a key."""
    return {"request_put": {"key": _encode_base64(key), "value": _encode_base64(value), "lease": lease}}


def delete_operation(key: bytes, end: bytes = b"") -> Operation:
    """Removes a key, or all keys from `key` up to `end`."""
    return {"request_delete_range": {"key": _encode_base64(key), "range_end": _encode_base64(end)}}


def compare_create_revision(key: bytes, revision: int) -> Operation:
    """Compares: the key was made at this revision; 0: there is none."""
    return {"key": _encode_base64(key), "target": "CREATE", "create_revision": revision}


def compare_mod_revision(key: bytes, revision: int) -> Operation:
    """Compares: the key was last written at this revision; 0: there is none."""
    return {"key": _encode_base64(key), "target": "MOD", "mod_revision": revision}


class _PasswordAuth(httpx.Auth):
    """Sends a token with each request; signs in for another when a member does not know it: it forgets in a restart."""

    requires_response_body = True

    def __init__(self, access: EtcdAccess) -> None:
        self._access = access
        self._token: str | None = None

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        for _ in range(2):
            if self._token is None:
                password = {"name": self._access.user, "password": self._access.password}
                url = request.url.copy_with(path="/v3/auth/authenticate")
                timeout = httpx.Timeout(SIGN_IN_TIMEOUT_S)
                sign_in = httpx.Request("POST", url, json=password, extensions={"timeout": timeout.as_dict()})
                self._token = _parse_reply((yield sign_in), self._access)["token"]
            request.headers["Authorization"] = self._token
            response = yield request
            if not any(text in response.text for text in _INVALID_TOKEN_MESSAGES):
                return
            self._token = None


class EtcdClient:
    """A client of a cluster. Every call may raise `EtcdUnavailable`, `EtcdRefused`, or another `StorageError`."""

    def __init__(self, access: EtcdAccess) -> None:
        self.access = access
        self._scheme = "http" if access.tls is None else "https"
        self._http = httpx.AsyncClient(
            auth=_PasswordAuth(access) if access.user is not None else None,
            verify=access.tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            trust_env=False,
            limits=httpx.Limits(max_connections=None),
        )
        self._members = list(access.endpoints)

    async def close(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    def key(self, name: str) -> bytes:
        """The full name of one of our keys."""
        return f"{self.access.prefix}/{name}".encode()

    async def get(self, key: bytes, *, within_s: float) -> KeyValue | None:
        """The newest value of a key, or None."""
        return next(
            iter(_parse_key_values(await self._call("kv/range", {"key": _encode_base64(key)}, within_s))),
            None,
        )

    async def get_all(self, prefix: bytes, *, within_s: float) -> list[KeyValue]:
        """All keys below a prefix, which ends with a slash, as of one moment; `within_s` is for each page of them."""
        pairs: list[KeyValue] = []
        body = {
            "key": _encode_base64(prefix),
            "range_end": _encode_base64(prefix[:-1] + b"0"),
            "limit": KEYS_PER_PAGE,
        }
        while True:
            reply = await self._call("kv/range", body, within_s, within_s)
            pairs += _parse_key_values(reply)
            if not reply.get("more", False):
                return pairs
            body |= {"key": _encode_base64(pairs[-1].key + b"\0")}
            body.setdefault("revision", reply["header"]["revision"])

    async def txn(
        self, compare: Sequence[Operation], success: Sequence[Operation], *, within_s: float
    ) -> int | None:
        """Run a transaction; returns its revision, or None if a comparison failed.

        It may be sent more than once; its comparisons have to make that harmless.
        """
        reply = await self._call("kv/txn", {"compare": compare, "success": success}, within_s)
        return int(reply["header"]["revision"]) if reply.get("succeeded", False) else None

    async def grant_lease(self, ttl_s: int, *, within_s: float) -> tuple[int, int]:
        """Make a lease; returns its id and the seconds that etcd granted, which may be more than asked for."""
        reply = await self._call("lease/grant", {"TTL": ttl_s}, within_s)
        return int(reply["ID"]), int(reply["TTL"])

    async def keep_lease_alive(self, lease: int, *, within_s: float) -> int:
        """Renew a lease; returns how long it lasts from now (seconds), 0 if it is gone."""
        reply = await self._call("lease/keepalive", {"ID": lease}, within_s, within_s)
        return int(reply["result"].get("TTL", 0))

    async def revoke_lease(self, lease: int, *, within_s: float) -> None:
        """End a lease and delete the keys bound to it, if it is there: it ends by itself soon."""
        with suppress(EtcdRefused):
            await self._call("lease/revoke", {"ID": lease}, within_s)

    async def _call(
        self, path: str, body: object, within_s: float, attempt_s: float = ATTEMPT_TIMEOUT_S
    ) -> Any:
        """Try one member after the other, beginning with the one that answered last."""
        loop, content = asyncio.get_running_loop(), json.dumps(body).encode()
        until = loop.time() + within_s
        reasons: dict[str, str] = {}
        while True:
            for member in list(self._members):
                timeout_s = min(attempt_s, until - loop.time())
                if timeout_s <= 0:
                    why = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
                    raise EtcdUnavailable(f"no etcd member answers ({why or 'no time left to ask'})")
                url = f"{self._scheme}://{member}/v3/{path}"
                sign_in_s = SIGN_IN_TIMEOUT_S if self.access.user is not None else 0.0
                try:
                    # httpx's own is for each wait for some bytes
                    async with asyncio.timeout(timeout_s + sign_in_s):
                        response = await self._http.post(url, content=content, timeout=timeout_s)
                    return _parse_reply(response, self.access)
                except (httpx.RequestError, TimeoutError, _MemberUnavailable) as error:
                    # later it has hardly any time
                    reasons.setdefault(member, _explain_failure(error, timeout_s))
                    self._members.remove(member)  # from now on the next one is asked first
                    self._members.append(member)
            await asyncio.sleep(RETRY_PAUSE_S)


def _parse_reply(response: httpx.Response, access: EtcdAccess) -> Any:
    """What a member replied; raises what its error means."""
    try:
        reply = response.json()
        error = reply.get("error")
        if response.is_success and error is None and {"header", "result"}.isdisjoint(reply):
            raise ValueError
    except (ValueError, AttributeError):
        hint = "" if access.tls else ", does it ask for TLS (--etcd-ca-cert)"
        raise _MemberUnavailable(
            f"no answer of etcd's (HTTP {response.status_code}): "
            f"is its gateway on{hint}, or does another program listen there?"
        ) from None
    if response.is_success and error is None:
        return reply
    problem = error if isinstance(error, dict) else reply
    text = str(problem.get("message") or error)
    if problem.get("code", problem.get("grpc_code")) in _UNAVAILABLE_GRPC_CODES:
        raise _MemberUnavailable(text.removeprefix("etcdserver: ")[:200])
    raise _explain_error(text.rpartition("etcdserver: ")[2], access)


def _encode_base64(value: bytes) -> str:
    return b64encode(value).decode()


def _parse_key_values(reply: Mapping[str, Any]) -> list[KeyValue]:
    return [
        KeyValue(
            b64decode(pair["key"]),
            b64decode(pair.get("value", "")),
            *(int(pair.get(name, 0)) for name in ("create_revision", "mod_revision", "lease")),
        )
        for pair in reply.get("kvs", ())
    ]


def _explain_failure(error: BaseException, timeout_s: float) -> str:
    """Why one member did not answer, in a few words."""
    if isinstance(error, _MemberUnavailable):
        return str(error)
    if isinstance(error, httpx.TimeoutException | TimeoutError):
        return f"no answer within {timeout_s:.1f} s"
    for cause in walk_causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return "its certificate is not for this name, or not signed by the CA in --etcd-ca-cert"
        if isinstance(cause, ssl.SSLError):
            return "TLS failed: does it speak TLS, and does it ask for --etcd-cert?"
    return explain_failed_connect(error) or "it closes the connection: does it ask for TLS (--etcd-ca-cert)?"


def _explain_error(text: str, access: EtcdAccess) -> StorageError:
    """What an error of etcd means, and what to do."""
    who = f"user '{access.user}'" if access.user is not None else "a client without a user"
    no_user = "etcd requires a user: give --etcd-user and --etcd-password-file"
    too_low = (
        f"etcd's limits are below its defaults ({text}): "
        f"start it with at least --max-txn-ops=128 and --max-request-bytes=1572864"
    )
    meanings = {
        "user name is empty": no_user,
        "invalid auth token": no_user,
        "authentication failed": f"etcd rejects {who} with this password: check --etcd-user and --etcd-password-file",
        "authentication is not enabled": "etcd has no users (authentication is not enabled): leave out --etcd-user",
        "permission denied": f"etcd does not let {who} access {access.prefix}/: "
        f"etcdctl role grant-permission ROLE --prefix readwrite {access.prefix}/",
        "database space exceeded": "etcd's database is full: compact and defragment it, then `etcdctl alarm disarm` "
        "(https://etcd.io/docs/v3.5/op-guide/maintenance/)",
        "lease not found": "etcd refuses: lease not found",
        "too many operations": too_low,
        "too large": too_low,
        "larger than max": too_low,
    }
    for part, meaning in meanings.items():
        if part in text:
            return EtcdRefused(meaning)
    return StorageError(f"etcd answered with an error: {text[:300]}")
