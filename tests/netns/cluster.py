"""Runs a real job over several hosts: hetserver and every agent on a host of its own."""

import os
import re
import select
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import httpx

from tests.netns.hosts import Host
from tests.support.cluster import Cluster, wait_for
from tests.support.servers import Hetserver

TOKEN = "of-no-use-elsewhere"
PORT = 29400


class HostServer(Hetserver):
    """A hetserver on all addresses of a host, with a token."""

    def __init__(self, host: Host, folder: Path) -> None:
        token = folder / "token"
        token.write_text(TOKEN)
        token.chmod(0o600)
        every = "::" if host.ipv6 else "0.0.0.0"
        super().__init__(f"sqlite:{folder / 'state.db'}", PORT, token, "--host", every)
        self.host = host
        self.launcher = host.prefix
        self.url = url_of(host.address)

    def _try(self) -> None:
        with self.host.inside():
            super()._try()


class HostCluster(Cluster):
    """One group whose server and agents run on hosts of their own.

    Args:
        folder: for state and logs.
        hosts: named after their nodes; `server` is the server's.
        flags: passed to every agent.
    """

    server: HostServer

    def __init__(self, folder: Path, hosts: Iterable[Host], *flags: str) -> None:
        self.hosts = {host.name: host for host in hosts}
        server = HostServer(self.hosts["server"], folder)
        token = str(server.token_file)
        super().__init__(folder, "--token-file", token, *flags, server=server)
        self._http.headers["Authorization"] = f"Bearer {TOKEN}"

    def launcher(self, name: str) -> list[str]:
        """Run the agent on its node's host."""
        return self.hosts[name].prefix

    def ask(self, method: str, path: str = "") -> httpx.Response:
        """Send the server a request about the group, from its own host."""
        with self.server.host.inside():
            return super().ask(method, path)

    def hetctl(self, *words: str) -> str:
        """Run hetctl on the server's host; returns its output."""
        where = ("--server", self.server.url, "--token-file", str(self.server.token_file))
        environment = ("env", "-u", "COLUMNS")  # no line breaks
        return self.server.host.run(*environment, sys.executable, "-m", "hetrdzv.cli.hetctl", *words, *where)

    def node(self, name: str) -> dict[str, Any]:
        """A node as the API shows it; {} before it has joined."""
        nodes = {node["node_id"]: node for node in self.group().get("nodes", ())}
        found: dict[str, Any] = nodes.get(name, {})
        return found

    def says(self, name: str, text: str, after: int = 0) -> None:
        """Wait until an agent's stderr matches a pattern, beyond its first `after` characters."""
        self.wait_for(lambda: re.search(text, self.agents[name].stderr[after:]), f"{name} says '{text}'", 30)

    def becomes(self, name: str, state: str) -> None:
        """Wait until a node is in a state."""
        self.wait_for(lambda: self.node(name).get("state") == state, f"{name} is {state}", 30)

    def end_well(self, *names: str) -> None:
        """Let the workload and the named agents succeed; the job must not have spent a restart."""
        super().end_well(*names)
        assert self.group()["restarts"] == 0, self.report()
        assert {line["restart"] for line in self.lines()} == {0}


class Ends:
    """Records when processes end (monotonic seconds), by pid."""

    def __init__(self, pids: Iterable[int]) -> None:
        self.at: dict[int, float] = {}
        self.pids = frozenset(pids)
        for pid in self.pids:
            fd = os.pidfd_open(pid)
            threading.Thread(target=self._await, args=(pid, fd), daemon=True).start()

    def _await(self, pid: int, fd: int) -> None:
        try:
            select.select([fd], [], [])
            self.at[pid] = time.monotonic()
        finally:
            os.close(fd)

    def last(self) -> float:
        """Wait until all have ended; returns when the last one did."""
        wait_for(lambda: self.at.keys() == self.pids, f"the end of processes {sorted(self.pids)}", 10)
        return max(self.at.values())


def url_of(address: str) -> str:
    """The server's URL for one of its addresses."""
    return f"http://{f'[{address}]' if ':' in address else address}:{PORT}"
