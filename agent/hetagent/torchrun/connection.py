"""A node's connection to the servers of its job: the address it offers there, and the line."""

import asyncio
import random
import socket
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from hetagent.node import network
from hetagent.node.address import find_address
from hetagent.node.gpu.versions import versions
from hetagent.session.connection import ServerConnection
from hetagent.session.session import Session
from hetagent.torchrun.conf import Conf
from hetrdzv.auth.client_token import reread_token
from hetrdzv.client.client import Client
from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.requests.joining import JoinRequest

ALREADY_CLOSED = frozenset({"group_finished", "unknown_group"})
"""Errors of a cancel that leave nothing to close: the job is over, or nobody has joined it."""


def client(conf: Conf, token: str | None) -> Client:
    """A client of the job's servers."""
    return Client(conf.servers, token=token, renew_token=lambda: reread_token(conf.token_file), tls=conf.tls)


def cancel(conf: Conf, token: str | None) -> None:
    """Cancel the job, unless it is over."""

    async def ask() -> None:
        async with client(conf, token) as server:
            await server.cancel(conf.group)

    try:
        with ThreadPoolExecutor(1) as thread:  # the caller's may run an event loop
            thread.submit(asyncio.run, ask()).result()
    except HetError as error:
        if error.code not in ALREADY_CLOSED:
            raise


class Connection:
    """The address that this node offers, and the line to the server.

    `log` must not refer to the handler, which could not be garbage-collected then.
    """

    def __init__(self, conf: Conf, token: str | None, slots: int, log: Callable[[str], None]) -> None:
        self._port_range = conf.port_range
        self._log = log
        self._place = find_address(conf.local_addr, conf.interface, conf.servers, conf.connect_timeout_s, log)
        self._session = Session(
            conf.group,
            conf.node_id,
            JoinRequest(
                incarnation=uuid.uuid4().hex,
                slots=slots,
                address=self._place.address,
                port=1,  # until one is held
                device=versions(),
                spec=conf.spec,
            ),
            random.Random(),
            connect_timeout_s=conf.connect_timeout_s,
        )
        self.line = ServerConnection(self._session, partial(client, conf, token), log)

    @property
    def address(self) -> str:
        """The address that this node offers."""
        return self._place.address

    def socket_env(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Variables that bind gloo and NCCL to this node's address, if they have to be (node/network.py)."""
        return self._place.socket_env(environ)

    def refresh_address(self) -> None:
        """Offer this node's new address, if it has lost the one that it offered."""
        if self._place.moved():
            self._log(f"this node's address has changed; offering {self.address} from now on")
            self._session.offer = replace(self._session.offer, address=self.address)

    def hold_port(self) -> socket.socket:
        """A socket that listens on the offered address."""
        return network.hold_port(self.address, self._port_range)
