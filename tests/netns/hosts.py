"""Makes several hosts on one machine: network namespaces, joined by switches that can drop packets.

A switch is a bridge in a namespace of its own, so nothing here touches the machine's interfaces, firewall or
forwarding. Hosts notice dropped packets (nftables, family bridge) only as silence: no error, no carrier loss. All
names contain the pid of the run that made them; `sweep` removes what killed runs left behind.
"""

import contextlib
import ctypes
import itertools
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Self

PREFIX = "het-"
INSTALL = "apt-get install -y --no-install-recommends iproute2 nftables"
CLONE_NEWNET = 0x40000000

_serial = itertools.count(1)
_libc = ctypes.CDLL(None, use_errno=True)


def missing() -> str:
    """What this machine lacks to make hosts, with the command that provides it; empty if nothing."""
    if os.geteuid() != 0:
        return "only root can make network namespaces: sudo make test"
    tools = [tool for tool in ("ip", "nft") if shutil.which(tool) is None]
    if tools:
        return f"needs {' and '.join(tools)}: {INSTALL} (make test does it as root)"
    try:
        with Hosts() as hosts:
            hosts.switch("s").host("a", ipv4=True)
    except OSError as error:
        return (
            f"network namespaces cannot be made here ({error}): in a container, use docker run --privileged"
        )
    return ""


def run(*command: str, given: str = "") -> str:
    """Run a command; returns its output.

    Raises:
        OSError: it failed; says which and why.
    """
    done = subprocess.run(command, input=given, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def sweep() -> None:
    """Remove the namespaces of dead runs."""
    for line in run("ip", "netns", "list").splitlines():
        name = line.split()[0]
        if name.startswith(PREFIX) and not Path("/proc", name.removeprefix(PREFIX).split("-")[0]).exists():
            with contextlib.suppress(OSError):  # another run may be sweeping too
                run("ip", "netns", "del", name)


class Namespace:
    """A named network namespace."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.namespace = f"{PREFIX}{os.getpid()}-{next(_serial)}-{name}"
        run("ip", "netns", "add", self.namespace)

    def ip(self, *words: str) -> str:
        """Run `ip` on its interfaces, addresses and routes."""
        return run("ip", "-n", self.namespace, *words)

    def nft(self, table: str, *chain: str) -> None:
        """Replace an nftables table, which has one chain: its head and its rules."""
        text = [f"table {table}", f"delete table {table}", f"table {table} {{", *chain, "}", "}"]
        run("ip", "netns", "exec", self.namespace, "nft", "-f", "-", given="\n".join(text))

    def remove(self) -> None:
        """Remove it; processes in it keep it until they end."""
        run("ip", "netns", "del", self.namespace)


class Host(Namespace):
    """A host: processes started with `prefix` run on it, sockets made `inside` belong to it."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.ip("link", "set", "lo", "up")
        self.ipv4: dict[str, str] = {}
        self.ipv6: dict[str, str] = {}

    @property
    def prefix(self) -> list[str]:
        """A command prefix that runs a command here, with the same pid."""
        return ["ip", "netns", "exec", self.namespace]

    @property
    def address(self) -> str:
        """The address of its first interface, IPv4 if it has one."""
        return next(iter((self.ipv4 or self.ipv6).values()))

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Sockets that this thread makes within the block belong to this host, even after it."""
        with open("/proc/thread-self/ns/net") as home, open(f"/run/netns/{self.namespace}") as here:
            _enter(here.fileno())
            try:
                yield
            finally:
                _enter(home.fileno())

    def run(self, *command: str) -> str:
        """Run a command on this host; returns its output."""
        return run(*self.prefix, *command)

    def firewall(self, *, opened: str = "", closed: str = "", closed_to: str = "") -> None:
        """Silently drop new connections from other hosts.

        Args:
            opened: the only open ports (`29500-29600`).
            closed: instead, the only closed ports.
            closed_to: an IPv4 address; the ports are closed to this one only.
        """
        who = f"ip saddr {closed_to} " if closed_to else ""
        rules = [f"tcp dport {opened} accept", "tcp flags & (syn | ack) == syn counter name refused drop"]
        if closed:
            rules = [f"{who}tcp dport {closed} counter name refused drop"]
        always = ["iif lo accept", "ct state established,related accept"]
        self.nft(
            "inet het",
            "counter refused {}; chain input { type filter hook input priority 0;",
            *always,
            *rules,
        )

    def refused(self) -> int:
        """How many packets its firewall has dropped."""
        words = self.run("nft", "list", "counter", "inet", "het", "refused").split()
        return int(words[words.index("packets") + 1])


def _enter(namespace: int) -> None:
    if _libc.setns(namespace, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


class Switch(Namespace):
    """A network to which hosts are attached, and which drops packets on command."""

    def __init__(self, made: "Hosts", name: str, number: int) -> None:
        super().__init__(name)
        self._made = made
        self._number = number
        self._hosts = 0
        self._drops: set[tuple[str, str]] = set()
        self._loss = 0.0
        self.ip("link", "add", "br0", "type", "bridge", "forward_delay", "0", "mcast_snooping", "0")
        self.ip("link", "set", "br0", "up")

    def host(self, name: str, *, ipv4: bool = True, ipv6: bool = False) -> Host:
        """Add a host to this network."""
        host = self._made.add(Host(name))
        self.attach(host, ipv4=ipv4, ipv6=ipv6)
        return host

    def attach(self, host: Host, interface: str = "eth0", *, ipv4: bool = True, ipv6: bool = False) -> None:
        """Give a host an interface in this network, with an address of each wanted family."""
        self._hosts += 1
        port = ("peer", "name", host.name, "netns", self.namespace)
        run("ip", "link", "add", interface, "netns", host.namespace, "type", "veth", *port)
        self.ip("link", "set", "dev", host.name, "master", "br0", "up")
        if ipv4:
            host.ipv4[interface] = f"10.77.{self._number}.{self._hosts}"
            host.ip("addr", "add", f"{host.ipv4[interface]}/24", "dev", interface)
        if ipv6:
            host.ipv6[interface] = f"fd77:{self._number}::{self._hosts}"
            host.ip("addr", "add", f"{host.ipv6[interface]}/64", "dev", interface, "nodad")
        host.ip("link", "set", interface, "up")

    def cut(self, one: str, other: str = "", *, only: str = "") -> None:
        """Drop all packets between a host and another, or all others.

        Args:
            only: `from` or `to`: only those from the first host, or to it.
        """
        if only != "to":
            self._drops.add((one, other))
        if only != "from":
            self._drops.add((other, one))
        self._apply()

    def heal(self) -> None:
        """Stop dropping packets."""
        self._drops.clear()
        self._loss = 0.0
        self._apply()

    def lose(self, share: float) -> None:
        """Drop this share of all packets, at random."""
        self._loss = share
        self._apply()

    def lost(self) -> int:
        """How many packets were dropped since the last change."""
        words = run("ip", "netns", "exec", self.namespace, "nft", "list", "ruleset").split()
        return sum(int(words[at + 1]) for at, word in enumerate(words) if word == "packets")

    def plug(self, name: str, state: str = "up") -> None:
        """Pull a host's cable (`down`) or plug it in again; the host notices that, unlike a cut."""
        self.ip("link", "set", "dev", name, state)

    def _apply(self) -> None:
        rules = []
        for source, target in sorted(self._drops):
            places = [f'iifname "{source}"'] if source else []
            places += [f'oifname "{target}"'] if target else []
            rules.append(f"{' '.join(places)} counter drop")
        if self._loss:
            rules.append(f"numgen random mod 1000 < {round(self._loss * 1000)} counter drop")
        self.nft("bridge het", "chain forward { type filter hook forward priority 0;", *rules)


class Hosts:
    """All that one test makes; removed at the end of the block."""

    def __init__(self) -> None:
        self._made: list[Namespace] = []

    def __enter__(self) -> Self:
        sweep()
        return self

    def __exit__(self, *_: object) -> None:
        for namespace in reversed(self._made):
            with contextlib.suppress(OSError):
                namespace.remove()

    def add(self, made: Host) -> Host:
        """Keep a host until the end of the block."""
        self._made.append(made)
        return made

    def switch(self, name: str) -> Switch:
        """Make a network."""
        made = Switch(self, name, 1 + sum(isinstance(one, Switch) for one in self._made))
        self._made.append(made)
        return made
