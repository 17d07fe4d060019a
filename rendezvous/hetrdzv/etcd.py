"""The way to etcd: which members, TLS and user; a call goes on to the next member when one does not answer.

The calls are etcd3aio's; connections are our own, one per member: its own channel takes IPv4 addresses only, cannot
check each member's name in TLS, and keeps giving calls to a member that hangs.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

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

from hetrdzv.errors import HetError, StorageError

logger = logging.getLogger(__name__)

DEFAULT_PORT = 2379
DEFAULT_PREFIX = "hetrdzv"

ATTEMPT_S = 1.0
"""How long one member may take to answer before the next is asked (seconds)."""

SIGN_IN_S = 5.0
"""How long a member may take to check a password, which is made to take time (seconds)."""

PAUSE_S = 0.1
"""Pause after a pass over all members that brought nothing (seconds)."""

_CHANNEL = [
    ("grpc.max_receive_message_length", -1),  # a load comes in pages, which may be larger than 4 MiB
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.enable_retries", 0),
    ("grpc.enable_http_proxy", 0),
]

_AWAY = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED)
_NO_TOKEN = ("invalid auth token", "revision of auth store is old")

T = TypeVar("T")


class EtcdAway(StorageError):
    """No member of the cluster answers; may be over soon."""


class EtcdRefused(StorageError):
    """etcd answers, and will not do what is asked before somebody changes something."""


class InvalidEtcd(HetError):
    """A URL or an option for etcd that makes no sense."""

    code = "cannot_serve"


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """Where etcd is and how to be let in.

    Attributes:
        endpoints: `host:port` of the members.
        prefix: what all our keys begin with, without the slash after it.
        user, password: for a cluster with users.
        ca_cert: PEM of the authority of the members' certificates; None: no TLS.
        cert, key: PEM of our own certificate, where members ask for one.
    """

    endpoints: tuple[str, ...]
    prefix: str = DEFAULT_PREFIX
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_cert: bytes | None = field(default=None, repr=False)
    cert: bytes | None = field(default=None, repr=False)
    key: bytes | None = field(default=None, repr=False)

    def __str__(self) -> str:
        return f"etcd://{','.join(self.endpoints)}/{self.prefix}"


def parse_url(url: str) -> tuple[tuple[str, ...], str]:
    """The endpoints and the prefix that `etcd://h1:2379,h2:2379/prefix` names.

    Raises:
        InvalidEtcd: says what is wrong with it.
    """
    scheme, marks, rest = url.partition("://")
    if scheme != "etcd" or not marks:
        raise InvalidEtcd("an etcd store is named like etcd://host1:2379,host2:2379,host3:2379/prefix")
    hosts, _, prefix = rest.partition("/")
    if "@" in hosts:
        raise InvalidEtcd(
            "a store URL must not carry a user name or password, since logs and process lists show it: "
            "give --etcd-user and --etcd-password-file"
        )
    endpoints = tuple(dict.fromkeys(_endpoint(host.strip()) for host in hosts.split(",") if host.strip()))
    if not endpoints:
        raise InvalidEtcd(f"store '{url}' names no host: for example etcd://host1:2379,host2:2379,host3:2379")
    prefix = prefix.strip("/") or DEFAULT_PREFIX
    if not re.fullmatch(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*", prefix):
        raise InvalidEtcd(
            f"store '{url}': the prefix '{prefix}' may have letters, digits, '.', '_', '-' and '/' between them"
        )
    return endpoints, prefix


def _endpoint(text: str) -> str:
    try:
        parts = urlsplit(f"//{text}")
        host, port = parts.hostname, parts.port
    except ValueError as error:
        what = "its port is no number from 1 to 65535" if "ort" in str(error) else str(error)
        raise InvalidEtcd(f"'{text}' as a member of etcd: {what}; for example host:2379") from None
    if host is None or not re.fullmatch(r"[A-Za-z0-9._-]+|[0-9a-fA-F:.]+", host) or port == 0:
        raise InvalidEtcd(f"'{text}' as a member of etcd: it is no host:port; for example host:2379")
    return f"{f'[{host}]' if ':' in host else host}:{port or DEFAULT_PORT}"


def access_from(
    url: str,
    *,
    user: str | None = None,
    password: str | None = None,
    ca_cert: Path | None = None,
    cert: Path | None = None,
    key: Path | None = None,
) -> EtcdAccess:
    """What a URL and options say, their files read.

    Raises:
        InvalidEtcd: they do not go together, or a file cannot be read.
    """
    endpoints, prefix = parse_url(url)
    if (user is None) != (password is None):
        raise InvalidEtcd(
            "--etcd-user and a password (--etcd-password-file or HET_ETCD_PASSWORD) go together"
        )
    if (cert is None) != (key is None):
        raise InvalidEtcd("--etcd-cert and --etcd-key go together: give both")
    if cert is not None and ca_cert is None:
        raise InvalidEtcd("--etcd-cert is for TLS: give --etcd-ca-cert too")
    return EtcdAccess(endpoints, prefix, user, password, _pem(ca_cert), _pem(cert), _pem(key))


def _pem(path: Path | None) -> bytes | None:
    if path is None:
        return None
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidEtcd(f"{path} cannot be read: {error.strerror}") from None
    if b"-----BEGIN " not in content:
        raise InvalidEtcd(f"{path} is no PEM file: it has no line -----BEGIN ...-----")
    return content


class Member:
    """One member: the services of its own connection."""

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
        """Let the connection go."""
        await self._channel.close()


class Etcd:
    """A cluster as a client sees it. To be made where an event loop runs.

    Every call may raise:
        EtcdAway: no member answered in time; names each with its reason. Whether it was done is not known.
        EtcdRefused: it will not be done; says what to change.
        StorageError: etcd answered with another error.
    """

    def __init__(self, access: EtcdAccess) -> None:
        self.access = access
        self._members = [Member(endpoint, access) for endpoint in access.endpoints]
        self._signed_in: str | None = None
        self._signing_in = asyncio.Lock()

    async def close(self) -> None:
        """Let every connection go."""
        await asyncio.gather(*(member.close() for member in self._members))

    def key(self, name: str) -> bytes:
        """One of our keys."""
        return f"{self.access.prefix}/{name}".encode()

    # -- calls -----------------------------------------------------------------------------------------------

    async def get(self, key: bytes, *, within_s: float) -> Any:
        """The newest key-value of a key (with `value`, `create_revision`, `mod_revision`), or None."""
        reply = await self._call(lambda m, s: m.kv.get(key, timeout=s), within_s)
        return reply.kvs[0] if reply.kvs else None

    async def page(self, start: bytes, end: bytes, revision: int, limit: int, *, within_s: float) -> Any:
        """Some keys from `start` to before `end` as of a revision, in order: a reply with `kvs` and `more`."""
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
        """A transaction. It may be sent more than once, so what it compares has to make that harmless."""
        return await self._call(lambda m, s: m.kv.txn(compare, success, failure, timeout=s), within_s)

    async def grant(self, ttl_s: int, *, within_s: float) -> tuple[int, int]:
        """A new lease: its id, and the seconds that etcd gave (it may be more than was asked)."""
        reply = await self._call(lambda m, s: m.lease.grant(ttl_s, timeout=s), within_s)
        return int(reply.ID), int(reply.TTL)

    async def keep_alive(self, lease: int, *, within_s: float, attempt_s: float = ATTEMPT_S) -> int:
        """Renew a lease; the seconds that it has from now on, 0 when it is gone."""

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
        """End a lease and what hangs on it; one that is gone already is no error."""
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
        """Do something at one member or another, the one that answered last first."""
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
                    if timeout_s >= attempt_s or member.endpoint not in reasons:  # else it had hardly time
                        reasons[member.endpoint] = _reason(error, timeout_s)
                    self._members.remove(member)  # the next one is asked first from now on
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
                await self._sign_in(member, token, timeout_s)  # it expired, or the member was started anew
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
                return  # somebody else did
            user, password = self.access.user or "", self.access.password or ""
            reply = await member.auth.authenticate(user, password, timeout=max(timeout_s, SIGN_IN_S))
            self._signed_in = str(reply.token)
            for each in self._members:
                each.set_token(self._signed_in)

    def _nobody(self, reasons: dict[str, str]) -> str:
        said = "; ".join(f"{endpoint}: {reason}" for endpoint, reason in reasons.items())
        return f"no member of etcd answers ({said or 'no time was left to ask'})"


def _details(error: BaseException) -> str:
    return (error.details() or "") if isinstance(error, grpc.aio.AioRpcError) else str(error)


def _reason(error: BaseException, timeout_s: float) -> str:
    """Why one member did not answer, in a few words."""
    cause = error.__cause__ if isinstance(error.__cause__, grpc.aio.AioRpcError) else error
    text = _details(cause)
    if isinstance(error, TimeoutError | EtcdTransientError):
        return f"no answer within {timeout_s:.1f} s"
    if "onnection refused" in text:
        return "connection refused"
    if "resolution" in text or "lookup" in text:
        return "host name unknown"
    if "CERTIFICATE_VERIFY_FAILED" in text or "Peer name" in text or "is not in peer certificate" in text:
        return "its certificate is not one for this name by the authority of --etcd-ca-cert"
    if "handshake failed" in text or "SSL" in text:
        return "TLS fails: does it speak TLS, and does it ask for --etcd-cert?"
    if "Socket closed" in text or "Connection reset" in text or "closed" in text:
        return "it closes the connection: does it ask for TLS (--etcd-ca-cert)?"
    return text.rpartition("last error: ")[2].removeprefix("etcdserver: ")[:200] or "no connection"


def _meaning(error: BaseException, access: EtcdAccess) -> StorageError:
    """What etcd's refusal means, and what to do."""
    text = _details(error).rpartition("etcdserver: ")[2]
    who = f"user '{access.user}'" if access.user is not None else "a client without a user"
    if "user name is empty" in text or "invalid auth token" in text:
        return EtcdRefused("etcd asks for a user: give --etcd-user and --etcd-password-file")
    if "authentication failed" in text:
        return EtcdRefused(
            f"etcd does not know {who} with this password: compare --etcd-user and --etcd-password-file"
        )
    if "authentication is not enabled" in text:
        return EtcdRefused("etcd has no users (authentication is not enabled): leave --etcd-user out")
    if isinstance(error, EtcdPermissionDeniedError) or "permission denied" in text:
        return EtcdRefused(
            f"etcd does not let {who} use {access.prefix}/: "
            f"etcdctl role grant-permission ROLE --prefix readwrite {access.prefix}/"
        )
    if "database space exceeded" in text:
        return StorageError(
            "etcd's database is full: compact and defragment it, then `etcdctl alarm disarm` "
            "(https://etcd.io/docs/v3.5/op-guide/maintenance/)"
        )
    if "too many operations" in text or "too large" in text:
        return StorageError(
            f"etcd's limits are below its defaults ({text}): "
            f"start it with --max-txn-ops=128 and --max-request-bytes=1572864 at least"
        )
    if isinstance(error, EtcdError) or "lease not found" in text:
        return EtcdRefused(f"etcd refuses: {text}")
    return StorageError(f"etcd answers with an error: {text[:300] or error!r}")
