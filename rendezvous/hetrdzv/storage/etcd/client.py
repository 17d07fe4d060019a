"""Connections to an etcd cluster: members, TLS and user; a call moves on to the next member if one does not answer.

The calls are etcd3aio's, the connections our own, one per member: its own channel takes only IPv4 addresses, cannot
check each member's name in TLS, and keeps sending calls to a member that hangs.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import grpc
import grpc.aio
from etcd3aio.auth import AuthService
from etcd3aio.errors import (
    EtcdConnectionError,
    EtcdError,
    EtcdPermissionDeniedError,
    EtcdTransientError,
    EtcdUnauthenticatedError,
)
from etcd3aio.kv import Compare, KVService, RequestOp
from etcd3aio.lease import LeaseService

from hetrdzv.protocol.errors import StorageError
from hetrdzv.storage.etcd.access import EtcdAccess

ATTEMPT_S = 1.0
"""How long to wait for one member before asking the next (seconds)."""

SIGN_IN_S = 5.0
"""How long a member may take to check a password, which is slow on purpose (seconds)."""

LEAST_S = 0.1
"""A member that had less time than this to answer was not really asked (seconds)."""

PAUSE_S = 0.1
"""Pause after no member has answered (seconds)."""

_CHANNEL = [
    ("grpc.max_receive_message_length", -1),  # a page of a load may be larger than 4 MiB
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
]

_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
_NO_TOKEN = ("invalid auth token", "revision of auth store is old")

T = TypeVar("T")


class EtcdAway(StorageError):
    """No member of the cluster answers; this may be over soon."""


class EtcdRefused(StorageError):
    """etcd refuses the call and will keep refusing until somebody sees to it, or to our configuration."""


class Member:
    """One member, with a connection of its own."""

    def __init__(self, endpoint: str, access: EtcdAccess) -> None:
        self.endpoint = endpoint
        if access.ca_cert is None:
            self._channel = grpc.aio.insecure_channel(endpoint, options=_CHANNEL)
        else:
            credentials = grpc.ssl_channel_credentials(access.ca_cert, access.key, access.cert)
            self._channel = grpc.aio.secure_channel(endpoint, credentials, options=_CHANNEL)
        self.kv = KVService(self._channel, max_attempts=1)
        self.lease = LeaseService(self._channel, max_attempts=1)
        self.auth = AuthService(self._channel, max_attempts=1)

    def set_token(self, token: str | None) -> None:
        """Send a token with every call from now on."""
        for service in (self.kv, self.lease):
            service.set_token(token)

    async def close(self) -> None:
        """Close the connection."""
        await self._channel.close()


class Etcd:
    """A client of a cluster. Make it in a running event loop.

    Every call may raise:
        EtcdAway: no member answered in time; gives the reason for each. The call may or may not have been done.
        EtcdRefused: etcd refuses the call; says what to change.
        StorageError: etcd answered with another error.
    """

    def __init__(self, access: EtcdAccess) -> None:
        self.access = access
        self._members = [Member(endpoint, access) for endpoint in access.endpoints]
        self._signed_in: str | None = None
        self._signing_in = asyncio.Lock()

    async def close(self) -> None:
        """Close every connection."""
        await asyncio.gather(*(member.close() for member in self._members))

    def key(self, name: str) -> bytes:
        """The full name of one of our keys."""
        return f"{self.access.prefix}/{name}".encode()

    # -- calls -----------------------------------------------------------------------------------------------

    async def get(self, key: bytes, *, within_s: float) -> Any:
        """The newest key-value of a key (with `value`, `create_revision`, `mod_revision`), or None."""
        reply = await self._call(lambda m, s: m.kv.get(key, timeout=s), within_s)
        return reply.kvs[0] if reply.kvs else None

    async def page(self, start: bytes, end: bytes, revision: int, limit: int, *, within_s: float) -> Any:
        """The first keys from `start` up to `end` as of a revision: a reply with `kvs` in order, and `more`."""
        return await self._call(
            lambda m, s: m.kv.get(start, end, revision=revision, limit=limit, timeout=s), within_s, within_s
        )

    async def txn(
        self,
        compare: Sequence[Compare],
        success: Sequence[RequestOp],
        failure: Sequence[RequestOp] = (),
        *,
        within_s: float,
    ) -> Any:
        """Run a transaction. It may be sent more than once; its comparisons have to make that harmless."""
        return await self._call(lambda m, s: m.kv.txn(compare, success, failure, timeout=s), within_s)

    async def grant(self, ttl_s: int, *, within_s: float) -> tuple[int, int]:
        """Make a lease; returns its id and the seconds that etcd granted, which may be more than asked for."""
        reply = await self._call(lambda m, s: m.lease.grant(ttl_s, timeout=s), within_s)
        return int(reply.ID), int(reply.TTL)

    async def keep_alive(self, lease: int, *, within_s: float, attempt_s: float = ATTEMPT_S) -> int:
        """Renew a lease; returns how long it lasts from now (seconds), 0 if it is gone."""

        async def renew(member: Member, timeout_s: float) -> int:
            async with asyncio.timeout(timeout_s):
                stream = member.lease.keep_alive(lease)
                try:
                    async for reply in stream:
                        return int(reply.TTL)
                finally:
                    stream.cancel()
            raise EtcdConnectionError("the connection was cut")

        return await self._call(renew, within_s, attempt_s)

    async def revoke(self, lease: int, *, within_s: float) -> None:
        """End a lease and delete the keys bound to it; a lease that is already gone is not an error."""
        try:
            await self._call(lambda m, s: m.lease.revoke(lease, timeout=s), within_s)
        except EtcdRefused as error:
            if "lease not found" not in str(error):
                raise

    # -- members ---------------------------------------------------------------------------------------------

    async def _call(
        self,
        do: Callable[[Member, float], Awaitable[T]],
        within_s: float,
        attempt_s: float = ATTEMPT_S,
    ) -> T:
        """Try one member after the other, beginning with the one that answered last."""
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        reasons: dict[str, str] = {}
        while True:
            for member in list(self._members):
                timeout_s = min(attempt_s, until - loop.time())
                if timeout_s <= 0:
                    raise EtcdAway(self._nobody(reasons))
                try:
                    return await self._at(member, do, timeout_s)
                except (EtcdConnectionError, EtcdTransientError, TimeoutError) as error:
                    if (
                        timeout_s >= attempt_s or member.endpoint not in reasons
                    ):  # else it had hardly any time
                        reasons[member.endpoint] = _reason(error, timeout_s)
                    self._members.remove(member)  # from now on the next one is asked first
                    self._members.append(member)
            await asyncio.sleep(PAUSE_S)

    async def _at(self, member: Member, do: Callable[[Member, float], Awaitable[T]], timeout_s: float) -> T:
        try:
            if self.access.user is not None and self._signed_in is None:
                await self._sign_in(member, None, timeout_s)
            token = self._signed_in
            try:
                return await do(member, timeout_s)
            except (EtcdUnauthenticatedError, grpc.aio.AioRpcError) as error:
                if self.access.user is None or not any(text in _details(error) for text in _NO_TOKEN):
                    raise
                await self._sign_in(member, token, timeout_s)  # it expired, or the member was restarted
                return await do(member, timeout_s)
        except grpc.aio.AioRpcError as error:
            if error.code() in _AWAY:
                raise EtcdConnectionError(error.details() or "") from error
            raise _meaning(error, self.access) from error
        except (EtcdUnauthenticatedError, EtcdPermissionDeniedError) as error:
            raise _meaning(error, self.access) from error

    async def _sign_in(self, member: Member, former: str | None, timeout_s: float) -> None:
        async with self._signing_in:
            if self._signed_in != former:
                return  # another call did
            user, password = self.access.user or "", self.access.password or ""
            reply = await member.auth.authenticate(user, password, timeout=max(timeout_s, SIGN_IN_S))
            self._signed_in = str(reply.token)
            for each in self._members:
                each.set_token(self._signed_in)

    def _nobody(self, reasons: dict[str, str]) -> str:
        said = "; ".join(f"{endpoint}: {reason}" for endpoint, reason in reasons.items())
        return f"no etcd member answers ({said or 'no time left to ask'})"


def _details(error: BaseException) -> str:
    return (error.details() or "") if isinstance(error, grpc.aio.AioRpcError) else str(error)


def _reason(error: BaseException, timeout_s: float) -> str:
    """Why one member did not answer, in a few words."""
    cause = error.__cause__ if isinstance(error.__cause__, grpc.aio.AioRpcError) else error
    text = _details(cause)
    if isinstance(error, TimeoutError | EtcdTransientError):
        return f"no answer within {timeout_s:.1f} s" if timeout_s >= LEAST_S else "no time left to ask it"
    if "onnection refused" in text:
        return "connection refused"
    if "resolution" in text or "lookup" in text:
        return "host name unknown"
    if "CERTIFICATE_VERIFY_FAILED" in text or "Peer name" in text or "is not in peer certificate" in text:
        return "its certificate is not for this name, or not signed by the CA in --etcd-ca-cert"
    if "handshake failed" in text or "SSL" in text:
        return "TLS failed: does it speak TLS, and does it ask for --etcd-cert?"
    if "Socket closed" in text or "Connection reset" in text or "closed" in text:
        return "it closes the connection: does it ask for TLS (--etcd-ca-cert)?"
    return text.rpartition("last error: ")[2].removeprefix("etcdserver: ")[:200] or "no connection"


def _meaning(error: BaseException, access: EtcdAccess) -> StorageError:
    """What an error of etcd means, and what to do."""
    text = _details(error).rpartition("etcdserver: ")[2]
    who = f"user '{access.user}'" if access.user is not None else "a client without a user"
    if "user name is empty" in text or "invalid auth token" in text:
        return EtcdRefused("etcd requires a user: give --etcd-user and --etcd-password-file")
    if "authentication failed" in text:
        return EtcdRefused(
            f"etcd rejects {who} with this password: check --etcd-user and --etcd-password-file"
        )
    if "authentication is not enabled" in text:
        return EtcdRefused("etcd has no users (authentication is not enabled): leave out --etcd-user")
    if isinstance(error, EtcdPermissionDeniedError) or "permission denied" in text:
        return EtcdRefused(
            f"etcd does not let {who} access {access.prefix}/: "
            f"etcdctl role grant-permission ROLE --prefix readwrite {access.prefix}/"
        )
    if "database space exceeded" in text:
        return EtcdRefused(
            "etcd's database is full: compact and defragment it, then `etcdctl alarm disarm` "
            "(https://etcd.io/docs/v3.5/op-guide/maintenance/)"
        )
    if "too many operations" in text or "too large" in text:
        return StorageError(
            f"etcd's limits are below its defaults ({text}): "
            f"start it with at least --max-txn-ops=128 and --max-request-bytes=1572864"
        )
    if isinstance(error, EtcdError) or "lease not found" in text:
        return EtcdRefused(f"etcd refuses: {text}")
    return StorageError(f"etcd answered with an error: {text[:300] or error!r}")
