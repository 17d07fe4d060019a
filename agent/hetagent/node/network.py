"""The address, interface and ports that this node offers to the others."""

import contextlib
import errno
import ipaddress
import os
import random
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

import psutil

from hetagent.node.console import WarnOnce
from hetrdzv.client.urls import DEFAULT_PORTS

CONNECT_TIMEOUT_S = 2.0
"""How long to try to connect to one address of a server (seconds)."""

RESOLVE_PAUSE_S = 1.0
"""Pause between two look-ups of a server's name (seconds)."""

MAX_PORT = 65_535

SCRIPT_PORTS = (20_000, 29_999)
"""Where a script's own port is held: the kernel gives none of these to others once it is free."""

IPAddress = ipaddress.IPv4Address | ipaddress.IPv6Address
WILDCARDS = {socket.AF_INET: "0.0.0.0", socket.AF_INET6: "::"}
"""What a socket on all addresses of a family is bound to."""


class NetworkError(OSError):
    """This node cannot offer what was asked for."""


class ResolverUnavailable(NetworkError):
    """The resolver does not know the server's name yet."""


# -- addresses -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AdvertisedAddress:
    """The address that this node offers.

    Attributes:
        interface: the one to bind for it, see `find_interface`; None: there is none.
        is_chosen: whether a person chose it.
    """

    address: str
    interface: str | None
    is_chosen: bool

    def describe_address_loss(self) -> str:
        """That this node no longer has the address, where its peers would try in vain; empty: not that is known."""
        if self.interface is None or any(
            ip == _parse_ip(self.address) for _, ip, _ in _interface_addresses()
        ):
            return ""
        return f"its address {self.address} is gone: restart it"

    def socket_env(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Variables that bind gloo, and NCCL if a person chose it, to the interface of the offered address.

        Else gloo takes that of the host name, which peers often cannot use; NCCL picks its own, perhaps several.
        """
        if self.interface is None:
            return {}
        wanted = {"GLOO_SOCKET_IFNAME": self.interface}
        if self.is_chosen:
            # NCCL takes a bare name for a prefix (`eth1` would mean `eth10` as well), hence the `=`.
            wanted["NCCL_SOCKET_IFNAME"] = f"={self.interface}"
        return {name: value for name, value in wanted.items() if not environ.get(name)}


def find_address(
    local_addr: str | None,
    interface: str | None,
    servers: Sequence[str],
    timeout_s: float = 0.0,
    log: Callable[[str], None] = lambda text: None,
) -> AdvertisedAddress:
    """The address to offer; waits until names can be looked up, for a container may start before its network."""
    if interface is not None:
        return AdvertisedAddress(find_interface_address(interface), interface, is_chosen=True)
    if local_addr is not None:
        if _parse_ip(local_addr) is not None and _find_bindable(local_addr)[1] != local_addr:
            log(f"--local-addr {local_addr} is not of this machine: workers hang unless it leads here")
        return AdvertisedAddress(local_addr, find_interface(local_addr), is_chosen=True)
    until, log_once = time.monotonic() + timeout_s, WarnOnce(log)
    while True:
        failures = []
        for url in servers:  # others may be down, and their names too
            try:
                address = find_local_address(url)
                return AdvertisedAddress(address, find_interface(address), is_chosen=False)
            except NetworkError as error:
                failures.append(error)
        away = [error for error in failures if isinstance(error, ResolverUnavailable)]
        if not away or time.monotonic() >= until:
            raise (away or failures)[0]
        log_once(f"{away[0]}; trying again for {timeout_s:.0f} s")
        time.sleep(RESOLVE_PAUSE_S)


def find_local_address(url: str) -> str:
    """This node's address on the way to a server, which its peers can most likely use too.

    If the server answers, it is that of the connection: the server's name may stand for several addresses, some
    of which lead nowhere. If it does not answer yet, it is that of the route. Blocks for at most
    `CONNECT_TIMEOUT_S` per address of the server.
    """
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or DEFAULT_PORTS[parts.scheme]
    advice = "pass --local-addr or --interface to say which address this node offers"
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (socket.gaierror, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        away = isinstance(error, socket.gaierror) and error.errno == socket.EAI_AGAIN
        raise (ResolverUnavailable if away else NetworkError)(
            f"cannot resolve '{host}' of the server's URL {url} ({why}): check --server"
        ) from None
    failures = []
    # Connecting the latter sends nothing, only picks a route.
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        for family, _, _, _, sockaddr in addresses:
            try:
                with socket.socket(family, kind) as sock:
                    sock.settimeout(CONNECT_TIMEOUT_S)
                    sock.connect(sockaddr)
                    return str(sock.getsockname()[0])
            except OSError as error:
                failures.append(f"{sockaddr[0]}: {error.strerror or error}")
    raise NetworkError(f"no route to the server {url} ({', '.join(failures[-len(addresses) :])}): {advice}")


def find_interface(address: str) -> str | None:
    """The interface to bind for an IP address; None if none of this node's has it (NAT), or it is a name.

    Nor if it has a loopback address as well (routing on the host puts the node's own on `lo`): bound to that interface,
    gloo would listen on 127.0.0.1.
    """
    wanted, there = _parse_ip(address), list(_interface_addresses())
    name = next((name for name, ip, _ in there if ip == wanted), None)
    shared = any(ip.is_loopback for other, ip, _ in there if other == name)
    return None if wanted is None or (shared and not wanted.is_loopback) else name


def find_interface_address(interface: str) -> str:
    """An IP address of an interface: IPv4 if it has one, a link-local address last."""
    there = list(_interface_addresses())
    mine = [(ip.is_link_local, ip.version, text) for name, ip, text in there if name == interface]
    if mine:
        return min(mine)[2]
    known = ", ".join(f"{name} ({text})" for name, _, text in there)
    problem = "has no IP address" if interface in psutil.net_if_addrs() else "does not exist here"
    raise NetworkError(f"interface '{interface}' {problem}: choose one of {known or 'none'}")


def format_host_port(address: str, port: int) -> str:
    """`address:port` as in a URL, an IPv6 address in brackets."""
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


# -- ports ---------------------------------------------------------------------------------------------------


def parse_port_range(text: str) -> tuple[int, int]:
    """First and last port of `29500-29600`, or of a single `29500`."""
    found = re.fullmatch(r"\s*(\d{1,5})\s*(?:-\s*(\d{1,5})\s*)?", text, re.ASCII)
    if found is None:
        raise ValueError(f"port range '{text}' is not of the form 29500-29600")
    first, last = int(found[1]), int(found[2] or found[1])
    if not 1 <= first <= last <= MAX_PORT:
        raise ValueError(f"port range '{text}' is not within 1-{MAX_PORT}, the smaller one first")
    return first, last


def hold_port(address: str, port_range: tuple[int, int] | None) -> socket.socket:
    """Bind a free port, and keep it until the socket is closed or passed on.

    The socket is bound to the address if it is this node's, otherwise (NAT, a name that only others resolve) to the
    wildcard address. A range is tried in random order, so that nodes on one host do not race. It listens, so that peers
    can try the port, and has SO_REUSEADDR: else the connections of earlier rounds, which the kernel remembers for a
    minute, would use up a small range.
    """
    first, last = port_range or (0, 0)
    family, host = _find_bindable(address)
    why = ""
    for port in random.sample(range(first, last + 1), last + 1 - first):
        try:
            return socket.create_server(
                (host, port), family=family, backlog=socket.SOMAXCONN, dualstack_ipv6=host == "::"
            )
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                break
    if port_range is None:
        raise NetworkError(f"cannot bind a port on {host}: {why}")
    raise NetworkError(
        f"no free port in {first}-{last} on {host} ({why}): "
        "widen --port-range, or stop the programs that use them"
    )


def _find_bindable(address: str) -> tuple[socket.AddressFamily, str]:
    """The address to bind for an offered one, and its family.

    A name may mean a different address to the peers than to us (127.0.1.1 in Debian's /etc/hosts).
    """
    address = "127.0.0.1" if address == "localhost" else address
    ip = _parse_ip(address)
    family = socket.AF_INET if ip is not None and ip.version == 4 else socket.AF_INET6
    if ip is not None:
        with contextlib.suppress(OSError), socket.socket(family) as sock:
            sock.bind((address, 0))
            return family, address
    if not socket.has_dualstack_ipv6():
        family = socket.AF_INET
    return family, WILDCARDS[family]


def _interface_addresses() -> Iterator[tuple[str, IPAddress, str]]:
    """Each interface with each of its IP addresses, parsed and as the system writes it (`fe80::1%eth0`)."""
    for name, addresses in psutil.net_if_addrs().items():
        for entry in addresses:
            ip = _parse_ip(entry.address)
            if ip is not None and entry.family in WILDCARDS:
                yield name, ip, entry.address


def _parse_ip(text: str) -> IPAddress | None:
    """An IP address, without the interface of a link-local one (`%eth0`); None for a name."""
    try:
        return ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
