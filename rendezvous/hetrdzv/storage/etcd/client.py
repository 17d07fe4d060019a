"""A client of an etcd cluster by its JSON gateway (https://etcd.io/docs/v3.5/dev-guide/api_grpc_gateway/).

A call moves on to the next member if one does not answer.
"""

import asyncio
import json
import ssl
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import httpx

from hetrdzv.client.explain import causes, connection_error
from hetrdzv.protocol.errors import StorageError
from hetrdzv.storage.etcd.access import EtcdAccess

ATTEMPT_S = 1.0
"""How long to wait for one member before asking the next (seconds)."""

SIGN_IN_S = 5.0
"""How long a member may take to check a password, which is slow on purpose (seconds)."""

PAUSE_S = 0.1
"""Pause after no member has answered (seconds)."""

_AWAY = (1, 4, 14)
"""gRPC's CANCELLED, DEADLINE_EXCEEDED and UNAVAILABLE: another member may do it."""

_NO_TOKEN = ("invalid auth token", "revision of auth store is old")

Operation = Mapping[str, Any]
"""A put, delete or get of a transaction, or one of its comparisons, as JSON."""


class EtcdUnavailable(StorageError):
    """No member of the cluster has answered in time: the call may or may not have been done."""


class EtcdRefused(StorageError):
    """etcd refuses the call and will keep refusing until somebody sees to it, or to our configuration."""


class _MemberAway(Exception):
    """One member cannot answer; the text says why."""


@dataclass(frozen=True, slots=True)
class KeyValue:
    """A key with its value, its revisions and the lease that it is bound to (0: none)."""

    key: bytes
    value: bytes
    create_revision: int
    mod_revision: int
    lease: int


@dataclass(frozen=True, slots=True)
class TxnReply:
    """How a transaction ended: at which revision, and what its gets found."""

    succeeded: bool
    revision: int
    found: tuple[KeyValue | None, ...]


def put(key: bytes, value: bytes, lease: int = 0) -> Operation:
    """Writes a key."""
    return {"request_put": {"key": _text(key), "value": _text(value), "lease": lease}}


def delete(key: bytes, end: bytes = b"") -> Operation:
    """Removes a key, or all keys from `key` up to `end`."""
    return {"request_delete_range": {"key": _text(key), "range_end": _text(end)}}


def get(key: bytes) -> Operation:
    """Reads a key."""
    return {"request_range": {"key": _text(key)}}


def compare_create_revision(key: bytes, revision: int) -> Operation:
    """Compares: the key was made at this revision; 0: there is none."""
    return {"key": _text(key), "target": "CREATE", "create_revision": revision}


def compare_mod_revision(key: bytes, revision: int) -> Operation:
    """Compares: the key was last written at this revision; 0: there is none."""
    return {"key": _text(key), "target": "MOD", "mod_revision": revision}


class Etcd:
    """A client of a cluster. Every call may raise `EtcdUnavailable`, `EtcdRefused`, or another `StorageError`."""

    def __init__(self, access: EtcdAccess) -> None:
        self.access = access
        self._scheme = "http" if access.tls is None else "https"
        self._http = httpx.AsyncClient(
            verify=access.tls or ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT),
            trust_env=False,
            timeout=None,
            limits=httpx.Limits(max_connections=None),
        )
        self._members = list(access.endpoints)
        self._token: str | None = None
        self._signing_in = asyncio.Lock()

    async def close(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    def key(self, name: str) -> bytes:
        """The full name of one of our keys."""
        return f"{self.access.prefix}/{name}".encode()

    # -- calls -----------------------------------------------------------------------------------------------

    async def get(self, key: bytes, *, within_s: float) -> KeyValue | None:
        """The newest value of a key, or None."""
        return _first(await self._call("kv/range", {"key": _text(key)}, within_s))

    async def page(
        self, start: bytes, end: bytes, revision: int, limit: int, *, within_s: float
    ) -> tuple[list[KeyValue], int, bool]:
        """Some keys from `start` up to `end` as of a revision (0: the newest), that revision, and if more follow."""
        body = {"key": _text(start), "range_end": _text(end), "revision": revision, "limit": limit}
        reply = await self._call("kv/range", body, within_s, within_s)
        return _pairs(reply), int(reply["header"]["revision"]), reply.get("more", False)

    async def txn(
        self,
        compare: Sequence[Operation],
        success: Sequence[Operation],
        failure: Sequence[Operation] = (),
        *,
        within_s: float,
    ) -> TxnReply:
        """Run a transaction. It may be sent more than once; its comparisons have to make that harmless."""
        body = {"compare": compare, "success": success, "failure": failure}
        reply = await self._call("kv/txn", body, within_s)
        ranges = [part["response_range"] for part in reply.get("responses", ()) if "response_range" in part]
        revision = int(reply["header"]["revision"])
        return TxnReply(reply.get("succeeded", False), revision, tuple(map(_first, ranges)))

    async def grant(self, ttl_s: int, *, within_s: float) -> tuple[int, int]:
        """Make a lease; returns its id and the seconds that etcd granted, which may be more than asked for."""
        reply = await self._call("lease/grant", {"TTL": ttl_s}, within_s)
        return int(reply["ID"]), int(reply["TTL"])

    async def keep_alive(self, lease: int, *, within_s: float) -> int:
        """Renew a lease; returns how long it lasts from now (seconds), 0 if it is gone."""
        reply = await self._call("lease/keepalive", {"ID": lease}, within_s, within_s)
        return int(reply["result"].get("TTL", 0))

    async def revoke(self, lease: int, *, within_s: float) -> None:
        """End a lease and delete the keys bound to it, if it is there: it ends by itself soon."""
        with suppress(EtcdRefused):
            await self._call("lease/revoke", {"ID": lease}, within_s)

    # -- members ---------------------------------------------------------------------------------------------

    async def _call(self, path: str, body: object, within_s: float, attempt_s: float = ATTEMPT_S) -> Any:
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
                try:
                    return await self._ask(member, path, content, timeout_s)
                except (httpx.RequestError, TimeoutError, _MemberAway) as error:
                    reasons.setdefault(member, _reason(error, timeout_s))  # later it has hardly any time
                    self._members.remove(member)  # from now on the next one is asked first
                    self._members.append(member)
            await asyncio.sleep(PAUSE_S)

    async def _ask(self, member: str, path: str, content: bytes, timeout_s: float) -> Any:
        if self.access.user is not None and self._token is None:
            await self._sign_in(member, None)
        token = self._token
        try:
            return await self._post(member, path, content, timeout_s, token)
        except StorageError as error:
            if token is None or not any(text in str(error.__cause__) for text in _NO_TOKEN):
                raise
        await self._sign_in(member, token)  # it expired, or the member was restarted
        return await self._post(member, path, content, timeout_s, self._token)

    async def _sign_in(self, member: str, former: str | None) -> None:
        async with self._signing_in:
            if self._token == former:  # else another call did
                body = json.dumps({"name": self.access.user, "password": self.access.password}).encode()
                self._token = (await self._post(member, "auth/authenticate", body, SIGN_IN_S))["token"]

    async def _post(
        self, member: str, path: str, content: bytes, timeout_s: float, token: str | None = None
    ) -> Any:
        headers = {} if token is None else {"Authorization": token}
        async with asyncio.timeout(timeout_s):
            url = f"{self._scheme}://{member}/v3/{path}"
            response = await self._http.post(url, content=content, headers=headers)
        try:
            reply = response.json()
            error = reply.get("error")
            if response.is_success and error is None and {"header", "result"}.isdisjoint(reply):
                raise ValueError
        except (ValueError, AttributeError):
            hint = "" if self.access.tls else ", does it ask for TLS (--etcd-ca-cert)"
            raise _MemberAway(
                f"no answer of etcd's (HTTP {response.status_code}): "
                f"is its gateway on{hint}, or does another program listen there?"
            ) from None
        if response.is_success and error is None:
            return reply
        problem = error if isinstance(error, dict) else reply
        text = str(problem.get("message") or error)
        if problem.get("code", problem.get("grpc_code")) in _AWAY:
            raise _MemberAway(text.removeprefix("etcdserver: ")[:200])
        raise _meaning(text.rpartition("etcdserver: ")[2], self.access) from _MemberAway(text)


def _text(value: bytes) -> str:
    return b64encode(value).decode()


def _pairs(reply: Mapping[str, Any]) -> list[KeyValue]:
    return [
        KeyValue(
            b64decode(pair["key"]),
            b64decode(pair.get("value", "")),
            *(int(pair.get(name, 0)) for name in ("create_revision", "mod_revision", "lease")),
        )
        for pair in reply.get("kvs", ())
    ]


def _first(reply: Mapping[str, Any]) -> KeyValue | None:
    return next(iter(_pairs(reply)), None)


def _reason(error: BaseException, timeout_s: float) -> str:
    """Why one member did not answer, in a few words."""
    if isinstance(error, _MemberAway):
        return str(error)
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:.1f} s"
    for cause in causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return "its certificate is not for this name, or not signed by the CA in --etcd-ca-cert"
        if isinstance(cause, ssl.SSLError):
            return "TLS failed: does it speak TLS, and does it ask for --etcd-cert?"
    return connection_error(error) or "it closes the connection: does it ask for TLS (--etcd-ca-cert)?"


def _meaning(text: str, access: EtcdAccess) -> StorageError:
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
