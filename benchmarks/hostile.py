"""What whoever holds an agent's or a reader's token can do to a server and to the job of another token.

    python -m benchmarks.hostile [--requests 100000] [--seed 1] [--each 100] [--measure 200] [--nodes 1000]

Sends random requests (benchmarks/hostile_requests.py) over several connections, beside a real job of another token.
After every hundredth the server is killed (SIGKILL) and started again on the same store. Turns between two kills that
are long are followed by one as long without any hostile request, as a control: in both, how long nothing was heard of
the other job's nodes, and how long it takes to look at that job. Then each kind of request is sent by itself, in groups
with so many nodes, and what it takes of the server is measured: CPU of the event loop's thread, and memory. Exits with
1 if a store did not load, an answer was 5xx or the other job was disturbed.

What went wrong is kept below .cache/hostile: the store, the server's log, and the requests of the last two turns.
"""

import argparse
import asyncio
import contextlib
import json
import random
import re
import shutil
import tempfile
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Self

from tests.support.cluster import Cluster
from tests.support.programs.start import servers as fork_servers
from tests.support.servers import Hetserver

from benchmarks.connection import Caller, call, request
from benchmarks.hostile_requests import DOES, SOON, Node, Request, Requests
from benchmarks.tables import Table

TOKENS = {
    "evil": "agent group=evil*",
    "reads": "read group=evil*",
    "good": "agent group=job",
    "sees": "admin",
}
LEASE_S = 3.0
LATE_S = 0.9 * LEASE_S
"""A node of the other job is late that was not heard for so long while the server was up (seconds). Agents poll twice
in a lease, and pause for up to two seconds after a server that was killed."""

TURNS_S, SHARES = (0.0, 0.7, 3.0, 6.0), (60, 30, 8, 2)
"""How long turns last about (seconds), and how many of a hundred: in short ones no lease, hang or pause ends."""

LONG_S = 2.5
"""From here on turns are compared with control turns: in shorter ones no node can be late (seconds)."""

LOOK_S = 0.1
"""How often the other job is looked at (seconds)."""

ANSWER_S = 60.0
CONNECTIONS = 8
KEPT = Path(__file__).parents[1] / ".cache" / "hostile"


@dataclass
class Kind:
    """Requests of one kind.

    Attributes:
        answers: how many by class of status; `cut`: the server was killed meanwhile.
        cpu_s, bytes: what the worst took of the server's loop and of its memory, measured by themselves.
        worst: these requests.
    """

    sent: int = 0
    answers: Counter[str] = field(default_factory=Counter)
    cpu_s: float = 0.0
    bytes: int = 0
    worst: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Turn:
    """What was seen of the other job in a turn (seconds).

    Attributes:
        about_s: how long it was to last.
        lasted_s: from the start of the server until it was killed.
        silent_s: how long nothing was heard of a node since then, at the worst moment.
        look_s: the longest that a look at the job took.
    """

    about_s: float
    lasted_s: float
    silent_s: float
    look_s: float


@dataclass
class Wrong:
    """What must not happen, each in a line."""

    stores: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    other_job: list[str] = field(default_factory=list)
    logged: list[str] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.stores or self.answers or self.other_job or self.logged)


class Hostile:
    """One campaign.

    Args:
        folder: for state and logs.
        job: whether another token's job runs beside it.
        kept: where to keep what explains a fault.
    """

    def __init__(self, folder: Path, seed: int, *, job: bool, kept: Path = KEPT) -> None:
        self.kinds: dict[str, Kind] = defaultdict(Kind)
        self.wrong = Wrong()
        self.restarts = 0
        self.told: Counter[str] = Counter()
        self.turns: list[Turn] = []
        self.control: list[Turn] = []
        self._rng = random.Random(seed)
        self._seed = seed
        self._folder = folder
        self._kept = kept
        self._journal: deque[str] = deque(maxlen=400)
        self._store = folder / "state.db"
        tokens = folder / "tokens"
        self._tokens = {name: f"{name:-<32}" for name in TOKENS}
        tokens.write_text("".join(f"{self._tokens[name]} {grant}\n" for name, grant in TOKENS.items()))
        own = folder / "token"
        own.write_text(self._tokens["good"])
        self.server = Hetserver(f"sqlite:{self._store}", 0, tokens, "--log-level", "warning")
        flags = (
            "--token-file",
            str(own),
            "--nnodes",
            "2",
            "--last-call-s",
            "0.5",
            "--lease-s",
            f"{LEASE_S:g}",
        )
        self._cluster = Cluster(folder, *flags, server=self.server)
        self._cluster.light = True
        self._job = job
        self._seen = 0
        self._logged = 0
        self._worst = (0.0, 0.0)

    def __enter__(self) -> Self:
        self._cluster.__enter__()
        self._cluster._http.headers["Authorization"] = f"Bearer {self._tokens['sees']}"
        if self._job:
            self._cluster.start({"a": 2, "b": 1})
            self._seen = max(event["number"] for event in self._cluster.events())
        return self

    def __exit__(self, *_: object) -> None:
        self._cluster.__exit__(*_)

    # -- the campaign --------------------------------------------------------------------------------------------

    async def run(self, requests: int, each: int) -> None:
        """Send so many requests, and kill the server after each so many."""
        document = await self._document()
        makes = Requests(document, self._rng, "evil")
        for first in range(0, requests, each):
            (about_s,) = self._rng.choices(TURNS_S, SHARES)
            before = self._rng.random() < 0.5  # after short turns agents pause for longer
            if before:
                await self._control(about_s)
            parts = _parts(min(each, requests - first), CONNECTIONS)
            turn = await self._watched([self._lane(makes, count, about_s) for count in parts], about_s)
            if about_s >= LONG_S:
                self.turns.append(turn)
            if not before:
                await self._control(about_s)
        self._judge_silence()
        self.told = makes.told

    async def _control(self, about_s: float) -> None:
        """A turn as long as others of about that length, without hostile requests; none if those are short."""
        if about_s < LONG_S or not self._job:
            return
        alike = [turn.lasted_s for turn in self.turns if turn.about_s == about_s]
        lasts_s = self._rng.choice(alike or [about_s])
        self.control.append(await self._watched([asyncio.sleep(lasts_s)], about_s, "in a control turn, "))

    async def _watched(
        self, doing: Iterable[Coroutine[Any, Any, None]], about_s: float, where: str = ""
    ) -> Turn:
        """Do something while the other job is looked at, then kill the server; returns what was seen.

        Args:
            where: what is said of events of the other job.
        """
        began = time.monotonic()
        looks = asyncio.create_task(self._looks())
        await asyncio.gather(*doing)
        lasted_s = time.monotonic() - began
        looks.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await looks
        silent_s, look_s = self._worst
        self._look(where)
        await self._restart()
        return Turn(about_s, lasted_s, silent_s, look_s)

    async def _looks(self) -> None:
        """Look at the other job again and again."""
        self._worst, up_since = (0.0, 0.0), time.monotonic()
        if not self._job:
            return
        data = request("GET", "/v1/groups/job", None, f"Authorization: Bearer {self._tokens['sees']}\r\n")
        while True:
            began = time.monotonic()
            status, body = 0, b""
            try:
                status, body = await call(self.server.port, data)
            except ConnectionError as error:
                body = str(error).encode()
            finally:  # also where the turn ends meanwhile
                silent_s, look_s = self._worst
                self._worst = silent_s, max(look_s, time.monotonic() - began)
            if status == 200:
                silent = [node["heard_s_ago"] or 0.0 for node in json.loads(body)["nodes"]]
                silent_s = min(
                    max(silent), time.monotonic() - up_since
                )  # what came before a kill is no silence
                self._worst = max(self._worst[0], silent_s), self._worst[1]
            else:
                self.wrong.answers.append(f"{status} to a look at the other job: {body[:300]!r}")
            await asyncio.sleep(LOOK_S)

    def _judge_silence(self) -> None:
        """A turn in which a node was late counts if none that long was late without hostile requests."""
        usual = {turn.about_s for turn in self.control if turn.silent_s >= LATE_S}
        self.wrong.other_job += [
            f"not heard for {turn.silent_s:.1f} s in a turn of {turn.lasted_s:.1f} s"
            for turn in self.turns
            if turn.silent_s >= LATE_S and turn.about_s not in usual
        ]

    async def _lane(self, makes: Requests, count: int, within_s: float) -> None:
        """Send requests one after another, in some time at least; the last is not waited for."""
        caller = None
        for left in range(count, 0, -1):
            await asyncio.sleep(2 * within_s / count * self._rng.random())
            made = makes.next()
            try:
                caller = caller if caller is not None and caller.transport is not None else await self._open()
                reply = caller.call(self._bytes(made))
                status, body = await asyncio.wait_for(reply, 0.001 if left == 1 else ANSWER_S)
            except TimeoutError:
                if left > 1:
                    self.wrong.answers.append(f"no answer in {ANSWER_S:g} s: {made.text()[:300]}")
                    caller = None
                self._note(made, 0, b"")
            except ConnectionError:
                caller = None
                self._note(made, 0, b"")
            else:
                self._note(made, status, body)
                makes.learn(made, status, body)

    async def _open(self) -> Caller:
        return await Caller.open(self.server.port)

    def _bytes(self, made: Request) -> bytes:
        reads = (
            made.kind.startswith(("GET /v1/groups", "POST /v1/groups/{group_id}/plan"))
            and "nodes/" not in made.kind
        )
        token = self._tokens["reads" if reads else "evil"]
        return request(made.method, made.target, made.body, f"Authorization: Bearer {token}\r\n")

    def _note(self, made: Request, status: int, body: bytes) -> None:
        self._journal.append(f"{status} {made.text()}")
        kind = self.kinds[made.kind]
        kind.sent += 1
        kind.answers[f"{status // 100}xx" if status else "cut"] += 1
        text = body.decode(errors="replace")[:300]
        if status >= 500:
            self.wrong.answers.append(f"{status} {text} to {made.text()[:300]}")
            self._keep(f"{status}-{len(self.wrong.answers)}")

    async def _restart(self) -> None:
        self.server.kill()
        self.restarts += 1
        try:
            self.server.start()
        except AssertionError as error:
            self.wrong.stores.append(str(error).strip()[-600:])
            self._keep(f"store-{len(self.wrong.stores)}")
            for path in self._folder.glob("state.db*"):
                path.unlink()
            self.server.start()

    def _keep(self, name: str) -> None:
        """Keep what explains a fault."""
        if len(list(self._kept.glob("*/"))) >= 40:
            return
        place = self._kept / f"{self._seed}-{name}"
        place.mkdir(parents=True, exist_ok=True)
        for path in self._folder.glob("state.db*"):
            shutil.copy(path, place)
        (place / "log").write_text(self.server.log)
        (place / "requests").write_text("\n".join(self._journal))

    def _look(self, where: str) -> None:
        """See what has happened to the other job, and what the server has logged."""
        log = self.server.log
        for line in log[self._logged :].splitlines():
            if re.search(r"Traceback|request failed|\bERROR\b|\bCRITICAL\b", line):
                self.wrong.logged.append(line[:300])
                self._keep(f"log-{len(self.wrong.logged)}")
        self._logged = len(log)
        if not self._job:
            return
        known = len(self.wrong.other_job)
        events = self._cluster.events(self._seen)  # workers without torch never meet in the round's store
        self._seen = max([self._seen, *(event["number"] for event in events)])
        self.wrong.other_job += [
            f"{where}{reason['code']}: {reason['message']}"
            for reason in (event["reason"] for event in events)
            if reason["code"] != "partially_connected"
        ]
        if len(self.wrong.other_job) > known:
            self._keep(f"job-{len(self.wrong.other_job)}")

    # -- what each takes -----------------------------------------------------------------------------------------

    async def measure(self, nodes: int, each: int) -> float:
        """Send each kind of request so many times by itself; returns what nothing takes (CPU seconds of the loop)."""
        document = await self._document()
        makes = Requests(document, self._rng, "evil-big", (0, 60))
        makes.groups = [
            await self._filled(makes, f"evil-big-{name}", nodes, spec) for name, spec in _BIG.items()
        ]
        caller = await self._open()
        look = request("GET", "/healthz")
        idle = max([(await self._taken(caller, look, look))[0] for _ in range(50)])
        for kind in makes.kinds:
            for number in range(each):
                node = self._rng.choice(self._rng.choice(makes.groups))
                made = makes.random(kind, node)
                if number % 2 and (own := _until(partial(makes.honest, node), kind)) is not None:
                    made = makes._mutated(own)
                if caller.transport is None:
                    caller = await self._open()
                cpu_s, grown, status, body = await self._taken(caller, self._bytes(made), look)
                self._note(made, status, body)
                makes.learn(made, status, body)
                worst = self.kinds[kind]
                if cpu_s > worst.cpu_s:
                    worst.cpu_s, worst.worst["cpu"] = cpu_s, made.text()
                if grown > worst.bytes:
                    worst.bytes, worst.worst["memory"] = grown, made.text()
        return idle

    async def _filled(self, makes: Requests, group: str, number: int, spec: dict[str, Any]) -> list[Node]:
        """The nodes of a group, which have joined; and those that are told to start have started."""
        nodes = makes.nodes(group, number, SOON | {"lease_s": 3600, "min_nodes": number} | spec)
        callers = [await self._open() for _ in range(AT_ONCE)]
        for node in nodes:
            node.slots = self._rng.choice((1, 2, 3, 5, 8))
            node.manner.does = DOES

        async def go_on(caller: Caller, some: Sequence[Node]) -> None:
            for node in some:
                made = makes.honest(node)
                makes.learn(made, *await caller.call(self._bytes(made)))

        for _ in range(3):
            await asyncio.gather(*(go_on(caller, nodes[at::AT_ONCE]) for at, caller in enumerate(callers)))
        for caller in callers:
            caller.close()
        return nodes

    async def _document(self) -> Any:
        token = f"Authorization: Bearer {self._tokens['sees']}\r\n"
        return json.loads((await call(self.server.port, request("GET", "/openapi.json", None, token)))[1])

    async def _taken(self, caller: Caller, data: bytes, look: bytes) -> tuple[float, int, int, bytes]:
        """CPU (seconds) and memory (bytes) that a request takes until the loop is free again; its answer."""
        process = Path(f"/proc/{self.server.pid}")
        (process / "clear_refs").write_text("5")
        memory, cpu = _memory(process)["VmRSS"], _loop_ns(process)
        status, body = 0, b""
        try:
            status, body = await asyncio.wait_for(caller.call(data), ANSWER_S)
            await caller.call(look) if caller.transport is not None else None
        except (TimeoutError, ConnectionError):
            caller.close()
        taken = (_loop_ns(process) - cpu) / 1e9
        return taken, max(0, _memory(process)["VmHWM"] - memory), status, body


AT_ONCE = 16
"""How many nodes of a large group speak at once: what they say is settled together, as in a real job."""

_BIG: dict[str, dict[str, Any]] = {
    "runs": {"hang_timeout_s": 600},
    "waits": {"min_world_size": 1_000_000, "unit": "rack", "master": "rack=r1"},
    "sized": {
        "max_world_size": 77,
        "min_nodes": 1,
        "unit": "rack",
        "master": "rack=r1",
        "join_timeout_s": 86_400,
    },
}
"""Groups in which each request costs most."""


def _until(draw: Callable[[], Request], kind: str) -> Request | None:
    """A request of a kind, of a few that are drawn."""
    return next((made for made in (draw() for _ in range(20)) if made.kind == kind), None)


def _parts(number: int, parts: int) -> list[int]:
    return [number // parts + (part < number % parts) for part in range(parts)]


def _loop_ns(process: Path) -> int:
    return int((process / "task" / process.name / "schedstat").read_text().split()[0])


def _memory(process: Path) -> dict[str, int]:
    """Figures of a process's memory (bytes)."""
    lines = (process / "status").read_text().splitlines()
    return {line[:5]: int(line.split()[1]) << 10 for line in lines if line.startswith(("VmRSS", "VmHWM"))}


def show(hostile: Hostile, title: str, idle_s: float) -> None:
    """Print what came of it."""
    table = Table(title, "request", "sent", "2xx", "4xx", "5xx", "cut", "worst CPU", "worst memory")
    for name, kind in sorted(hostile.kinds.items()):
        answers = [kind.answers[one] for one in ("2xx", "4xx", "5xx", "cut")]
        table.row(name, kind.sent, *answers, f"{kind.cpu_s * 1e3:.1f} ms", f"{kind.bytes / 2**20:.1f} MiB")
        for what, text in kind.worst.items():
            place = KEPT / "worst"
            place.mkdir(parents=True, exist_ok=True)
            (place / f"{re.sub(r'[^a-zA-Z]+', '-', name)}-{what}").write_text(text)
    table.note(f"Nothing takes up to {idle_s * 1e3:.1f} ms. The worst of each kind are in {KEPT / 'worst'}.")
    table.note(f"Nodes were told: {', '.join(f'{what} {n}' for what, n in hostile.told.most_common())}.")
    wrong = hostile.wrong
    for what, lines in (
        (f"stores that did not load, of {hostile.restarts}", wrong.stores),
        ("5xx answers, and none", wrong.answers),
        ("events of the other job, and turns in which it was late as in no control turn", wrong.other_job),
        ("errors in the server's log", wrong.logged),
    ):
        table.note(f"{what}: {len(lines)}")
        for line, number in Counter(re.sub(r"[0-9]+", "0", line) for line in lines).most_common(12):
            table.note(f"  {number} x {line}")
    table.show()


def show_turns(hostile: Hostile) -> None:
    """Print how long nothing was heard of the other job, with and without hostile requests."""
    figures = [f"{what} {which}" for what in ("silence", "look") for which in ("median", "99th", "worst")]
    table = Table(
        f"The other job in turns of {LONG_S:g} s and more", "turns", "number", "mean length", *figures, "late"
    )
    for name, turns in (("hostile requests and kills", hostile.turns), ("kills only", hostile.control)):
        if not turns:
            continue
        cells = []
        for each in ([turn.silent_s for turn in turns], [turn.look_s for turn in turns]):
            ordered = sorted(each)
            cells += [
                f"{ordered[int(share * (len(ordered) - 1) + 0.5)] * 1e3:.0f} ms" for share in (0.5, 0.99, 1)
            ]
        length_s = sum(turn.lasted_s for turn in turns) / len(turns)
        late = sum(turn.silent_s >= LATE_S for turn in turns)
        table.row(name, len(turns), f"{length_s:.1f} s", *cells, late)
    table.note("silence: the longest since a node was heard or the server started.")
    table.note(f"late: turns with a silence of {LATE_S:g} s or more, of a lease of {LEASE_S:g} s.")
    table.note("look: the longest that a person's look at the job took.")
    table.show()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--each", type=int, default=100, help="how many requests come between two kills")
    parser.add_argument("--measure", type=int, default=200, help="how many of each kind are measured")
    parser.add_argument("--nodes", type=int, default=1000, help="of each group in which they are measured")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    fork_servers.warm()
    try:
        with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
            with Hostile(Path(folder), options.seed, job=True) as hostile:
                asyncio.run(hostile.run(options.requests, options.each))
                idle_s = (
                    asyncio.run(hostile.measure(options.nodes, options.measure)) if options.measure else 0.0
                )
            title = f"Hostile requests: {options.requests} with seed {options.seed}, measured at {options.nodes} nodes"
            show_turns(hostile)
            show(hostile, title, idle_s)
    finally:
        fork_servers.close()
    raise SystemExit(bool(hostile.wrong))


if __name__ == "__main__":
    main()
