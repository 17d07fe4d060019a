"""An agent in this process with everything real around it: server, line, guardian, workers."""

import contextlib
import os
import random
import signal
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import httpx
import psutil
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing import Std

from hetagent.cli.parse import parse_command_line
from hetagent.context import AgentContext
from hetagent.health.health_checks import HealthChecks
from hetagent.health.node_check import NodeCheck
from hetagent.launch.base import Launch
from hetagent.launch.command import WorkerCommand
from hetagent.monitor.watcher import Watcher
from hetagent.node.network import AdvertisedAddress, hold_port
from hetagent.node.processes.guardian_client import Guardian
from hetagent.node.processes.identity import AgentIdentity, ServerAccess
from hetagent.node.processes.proctree import find_by_incarnation
from hetagent.runloop.agent import Agent
from hetagent.runloop.notices import StopNotices
from hetagent.runloop.parts import AgentParts
from hetagent.runloop.share_files import ShareFiles
from hetagent.runloop.start_check import StartCheck
from hetagent.session.connection import ServerConnection
from hetagent.session.session import Session
from hetagent.workers.logs import RoundLogsSpecs
from hetagent.workers.output import OutputCapture
from hetagent.workers.store import HetRendezvousHandler
from hetagent.workers.torch_starter import TorchStarter
from hetrdzv.client.client import Client
from hetrdzv.protocol.requests import JoinRequest, SpecFields


class Rig:
    """An agent with everything real around it, in a group of its own.

    Args:
        command: what each worker runs, in a shell in the folder of the test; None: the group's command.
        is_python: whether it is a script.
        report_output: whether the end of what workers write is kept, and reported.
        watches: whether the workers are watched.
        check: the site's check of the node, in the folder of the test; asked again and again without much of a pause.
        prefix, collapse: see `TorchStarter`.
        grace_s: how long this node has from SIGTERM until it has to be gone (seconds).
        launch: says what each worker runs, instead of `command`.
        parts: makes more optional parts by name, which say their lines with what they are given.
        spec: of the group.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        command: str | None,
        *,
        slots: int = 1,
        ports: tuple[int, int] | None = None,
        tee: Std = Std.NONE,
        is_python: bool = True,
        report_output: bool = True,
        watches: bool = False,
        connect_timeout_s: float = 60.0,
        group_id: str | None = None,
        check: str | None = None,
        notice_signal: signal.Signals | None = None,
        grace_s: float = 0.0,
        prefix: str | None = None,
        collapse: bool = False,
        launch: Launch | None = None,
        parts: Mapping[str, Callable[[Callable[[str], None]], Any]] = {},
        **spec: Any,
    ) -> None:
        self.folder = folder
        self.group_id = group_id or uuid.uuid4().hex
        self.said: list[str] = []
        self._url = f"{url}/v1/groups/{self.group_id}"
        self.identity = AgentIdentity(self.group_id, "a", uuid.uuid4().hex)
        fields = SpecFields(**({"min_nodes": 1, "max_nodes": 1, "stop_timeout_s": 5.0} | spec))
        offer = JoinRequest(
            incarnation=self.identity.incarnation,
            slots=slots,
            address="127.0.0.1",
            port=1,
            wants_command=command is None,
            spec=fields,
        )
        session = Session(self.group_id, "a", offer, random.Random(), connect_timeout_s=connect_timeout_s)
        handler = HetRendezvousHandler(self.group_id, "a", lambda: hold_port("127.0.0.1", ports))
        self.spec = WorkerSpec(
            role="default", local_world_size=slots, entrypoint="none yet", rdzv_handler=handler
        )
        words = ("-c", f"cd {folder}; {command}".replace("$$", "$$$$"))  # torch replaces macros in arguments
        access = ServerAccess(servers=[url])
        self.line = ServerConnection(session, lambda: Client([url]), self.said.append)
        self.guardian = Guardian(self.identity, access)
        self.starter = TorchStarter(
            self.spec,
            RoundLogsSpecs(str(folder / "logs"), tee=tee),
            prefix,
            capture=OutputCapture() if report_output else None,
            collapse=collapse,
        )
        if launch is None:
            launch = Launch(None if command is None else WorkerCommand("/bin/sh", words, is_python=is_python))
        say = self.said.append
        one_per_node = launch.one_per_node
        self.parts = AgentParts(
            shares=ShareFiles(one_per_node=one_per_node),
            notices=StopNotices(self.line, say, notice_signal, one_per_node=one_per_node),
        )
        if launch.uses_process_groups:
            self.parts.start_check = StartCheck(self.line, handler.count_workers, say)
        if watches:
            self.parts.monitor = Watcher(
                self.line, launch, cpu=True, reports_output=report_output, secrets=lambda: ["sesame"]
            )
        for name, make in parts.items():
            setattr(self.parts, name, make(say))
        site_check = NodeCheck(f"cd {folder}; {check}", self.identity.incarnation)
        self.launch = launch
        options = parse_command_line(["--server", url, "--group", self.group_id, "train.py"], {})
        context = AgentContext(
            options=replace(options, port_range=ports, grace_s=grace_s),
            access=access,
            identity=self.identity,
            command=None,
            devices=cast("Any", None),
            address=AdvertisedAddress("127.0.0.1", "lo", is_chosen=False),
            launch=launch,
            versions={},
            tell=say,
        )
        self.agent = Agent(
            context=context,
            server=self.line,
            guardian=self.guardian,
            starter=self.starter,
            handler=handler,
            parts=self.parts,
            health=HealthChecks([site_check.run] if check else [], again_s=0.05),
        )
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []

    def run(self, *acts: Callable[[], Any], leaves: bool = False) -> int | None:
        """Run the agent, and beside it some acts one after the other; the exit code that the server gave.

        Args:
            leaves: whether processes of the workers may be left in the end.
        """

        def act() -> None:
            try:
                for one in acts:
                    one()
            except BaseException as error:
                self._errors.append(error)
                if not over.is_set():  # else it would be this process that ends
                    self.agent._got_signals += [signal.SIGTERM, signal.SIGTERM]
                    os.kill(os.getpid(), signal.SIGTERM)

        over = threading.Event()
        thread = threading.Thread(target=act)
        thread.start()
        before = [signal.getsignal(signum) for signum in signal.valid_signals()]
        try:
            self.agent.run()
        finally:
            over.set()
            thread.join(20)
            assert [signal.getsignal(signum) for signum in signal.valid_signals()] == before
            assert leaves or find_by_incarnation(self.identity.incarnation) == []
        if self._errors:
            raise self._errors[0]
        return self.agent.outcome.exit_code if self.agent.outcome is not None else None

    # -- acts ------------------------------------------------------------------------------------------------

    def appears(self, *names: str) -> Callable[[], None]:
        """Wait for files that workers make."""
        return lambda: soon(lambda: all((self.folder / name).exists() for name in names), f"files {names}")

    def says(self, text: str) -> Callable[[], None]:
        """Wait until the agent has said something."""
        return lambda: soon(lambda: any(text in line for line in self.said), f"{text!r} in {self.said}")

    def gets(self, signum: signal.Signals) -> Callable[[], None]:
        """Send this process, in which the agent runs, a signal."""
        return lambda: os.kill(os.getpid(), signum)

    def asks(self, what: str) -> Callable[[], None]:
        """Act on the group."""
        return lambda: httpx.post(f"{self._url}/{what}", trust_env=False).raise_for_status()  # type: ignore[return-value]

    def touches(self, name: str) -> Callable[[], None]:
        return (self.folder / name).touch

    def offers(self, **fields: Any) -> None:
        """Change what the node offers, before it runs."""
        self.line.session.update_offer(**fields)

    def exists(self) -> None:
        """Wait until the server has heard of the group."""
        soon(lambda: httpx.get(self._url, trust_env=False).is_success, "the group")

    def group(self) -> dict[str, Any]:
        body: dict[str, Any] = httpx.get(self._url, trust_env=False).json()
        return body

    def kinds(self) -> list[str]:
        """The kinds of the group's events."""
        return [
            event["reason"]["code"]
            for event in httpx.get(f"{self._url}/events", trust_env=False).json()["events"]
        ]

    def put(self, **spec: Any) -> None:
        httpx.put(self._url, json=spec, trust_env=False).raise_for_status()


class OtherNode:
    """Another node of the rig's group, played by requests; the master if its id sorts before `a`."""

    def __init__(self, made: Rig, node_id: str, port: int = 1, **spec: Any) -> None:
        self.rig = made
        self._node_id = node_id
        self._port = port
        self._spec = spec

    def ask(self, method: str, path: str, **body: Any) -> dict[str, Any]:
        reply = httpx.request(method, f"{self.rig._url}{path}", json=body, trust_env=False)
        reply.raise_for_status()
        found: dict[str, Any] = reply.json() if reply.content else {}
        return found

    def ready(self, after: int = 0) -> None:
        """It joins, or joins again."""
        offer = {"slots": 1, "address": "127.0.0.1", "port": self._port}
        offer["spec"] = {} if after else self._spec
        self.ask("PUT", f"/nodes/{self._node_id}", incarnation="m", after_round=after, **offer)

    def reports(self, kind: str, number: int = 1, **more: Any) -> None:
        body = {"incarnation": "m", "round": number, "kind": kind, **more}
        self.ask("POST", f"/nodes/{self._node_id}/report", **body)


Make = Callable[..., Rig]


def soon(what: Callable[[], Any], named: str = "") -> Any:
    until = time.monotonic() + 15
    while time.monotonic() < until:
        if found := what():
            return found
        time.sleep(0.01)
    raise AssertionError(f"{named} not within 15 s")


def is_alive(pid: int) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def tails() -> list[str]:
    """Threads of torch's that copy output; one that stays keeps the interpreter from ending."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("TailLog")]
