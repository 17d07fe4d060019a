"""Nodes hold snapshots: what agents declare, and which one a round may begin from."""

import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Any

from hetagent.session.requests import Answer, Report, make_round_report
from hetagent.snapshots.errors import SnapshotSuperseded
from hetagent.snapshots.folder import SLOTS, choose_snapshot_to_evict
from hetagent.snapshots.folder import SnapshotId as Taken
from hetagent.snapshots.node.reporter import SnapshotReporter
from hetrdzv.core.model import Group, Node, Round
from hetrdzv.core.snapshots.catalog import (
    disk_snapshot_id,
    is_present_and_staying,
    list_group_snapshots,
    memory_snapshot_id,
    survives_node_loss,
)
from hetrdzv.protocol.directive import Directive, Start
from hetrdzv.protocol.routes import Routes
from hetrdzv.protocol.snapshots import (
    MAX_DISK_SNAPSHOTS,
    CopyOrder,
    DiskSnapshot,
    HeldSnapshot,
    RankPart,
    SnapshotId,
    SnapshotInventory,
    SnapshotsReply,
    SnapshotsRequest,
    StartSnapshot,
)
from hetrdzv.protocol.states import DirectiveKind, NodePhase, ReportKind
from tests.sim.workers import Workers

if TYPE_CHECKING:
    from tests.sim.agents import Agent
    from tests.sim.checks import Checks

LOOKS_S = 0.5
"""How often an agent looks at what it holds (seconds)."""

BAD = 0.1
"""Chance that a node cannot load what its round begins from."""


class Snapshots:
    """What an agent does about snapshots; what a node holds outlives its agent, but no power cut."""

    def __init__(self, agent: "Agent") -> None:
        self._agent = agent
        seed = agent.world.seed
        of_story = random.Random(f"{seed}.snapshots")
        self._on, self._sharded = of_story.random() < 0.7, of_story.random() < 0.5
        self._every = of_story.choice((1, 4, 16))
        self._parts = of_story.choice((0.0, 0.0, 1.0))
        self._just_in_time = of_story.choice((0.0, 0.0, 0.5, 1.0))
        self._to_disk = of_story.random() < 0.3
        self._rng = random.Random(f"{seed}.snapshots.{agent.incarnation}")
        self._refused: tuple[SnapshotId, ...] = ()
        self._round = 0
        self._start: Start | None = None
        self._step = self._reached = 0
        self._due: SnapshotId | None = None
        self._reporter = SnapshotReporter()
        self._asked: Report[SnapshotsReply] | None = None
        self._copies = False

    @property
    def _memory(self) -> dict[str, Any]:
        return self._agent.machine.memory

    def ready(self) -> None:
        if self._on:
            if self._reached and self._rng.random() < self._just_in_time:
                self._take()
            inventory = self._inventory()
            self._agent.session.update_offer(snapshots=inventory)

    def leaves(self, goodbye: Callable[[], None]) -> None:
        """As hand_over: serve what this node holds until nobody needs it, then say goodbye."""
        agent = self._agent
        if not self._on or self._start is None or self._rng.random() >= self._parts:
            goodbye()
            return
        if self._reached and self._rng.random() < self._just_in_time:
            self._take()
        agent.world.note("an agent that leaves serves what it holds")
        serves_s = self._rng.choice((0.1, 3, 30))
        fields = {"snapshots": self._inventory(), "serves_s": serves_s}
        report = make_round_report(ReportKind.PARTING, self._round, message="its agent goes", **fields)
        agent.session.announce_leave(report, agent.world.timeline.now, workers_gone=True)
        self._serve(agent.world.timeline.now + serves_s, goodbye)

    def _serve(self, until: float, goodbye: Callable[[], None]) -> None:
        said = self._agent.session.newest_directive
        is_final = said.kind is DirectiveKind.EXIT and said.code != "drained"
        is_final = is_final or said.code == "lost" or not self._agent.session.may_be_member
        if is_final or self._agent.world.timeline.now >= until:
            goodbye()
        else:
            self._agent.after(0.2, self._serve, until, goodbye)

    def starts(self, directive: Directive) -> None:
        start = directive.start
        if not self._on or start is None:
            return
        if start.origin != self._memory.get("origin"):
            self._memory.clear()
            self._memory["origin"] = start.origin
        self._round, self._start, began = directive.round, start, start.snapshot
        self._reached, self._asked = 0, None
        self._due = memory_snapshot_id(began) if began is not None and not began.on_disk else None
        joined = self._agent.session.offer.snapshots or SnapshotInventory()
        joined = replace(joined, origin=start.origin or "")
        self._reporter.begin(directive.round, start.nnodes, start.snapshot, joined)
        self._step = start.snapshot.step if start.snapshot is not None else 0

    def launched(self, workers: Workers) -> None:
        if not self._on:
            return
        agent = self._agent
        chosen = self._start.snapshot if self._start is not None else None
        if chosen is not None:
            agent.world.note("a round begins from a snapshot")
        if chosen is not None and not agent.world.calm and self._rng.random() < BAD:
            agent.after(self._rng.uniform(0.1, 1), self._give_up, workers, chosen)
        agent.after(self._rng.uniform(0.1, 1), self._works, workers)
        agent.after(LOOKS_S, self._look, workers)

    def _give_up(self, workers: Workers, chosen: StartSnapshot) -> None:
        """What was loaded is of no use: whoever's copy it was."""
        if workers is not self._agent.workers or not workers.alive or self._agent.stopping:
            return
        self._agent.world.note("a snapshot cannot be loaded")
        stamp = (
            disk_snapshot_id(chosen, self._memory["origin"]) if chosen.on_disk else memory_snapshot_id(chosen)
        )
        self._refused = (*self._refused, stamp)[-8:]
        self._agent.world.checks.unloadable.add(stamp)  # the agent may be gone before it says so
        if self._rng.random() < 0.5:
            for number, held in self._slots.items():
                if held is not None and memory_snapshot_id(held) == stamp:
                    self._slots[number] = None
        self._reached = 0
        self._agent.give_up()

    def _works(self, workers: Workers) -> None:
        agent = self._agent
        if workers is not agent.workers or not workers.alive or agent.stopping or workers.failed:
            return
        self._step += 1
        self._reached = self._step
        waits = self._sharded and self._due is not None and not _is_safe(self._due, self._reporter.safe)
        if self._step % self._every == 0 and not waits:  # rank 0 would name none, either
            self._due = SnapshotId(round=workers.round, step=self._step)
            self._take()
            if self._to_disk and 0 in agent.ranks and self._rng.random() < 0.3:
                self._write(workers.round)
        agent.after(self._rng.uniform(0.3, 1.5), self._works, workers)

    def _write(self, number: int) -> None:
        """What is on disk outlives everything, and every node sees it at some time."""
        assert self._start is not None
        one = DiskSnapshot(
            round=number,
            step=self._step,
            origin=self._start.origin or "",
            written_at=int(self._agent.world.timeline.now),
            world_size=self._start.world_size,
            sharded=self._sharded,
        )
        self._agent.world.disk.insert(0, one)
        self._agent.world.note("a snapshot is on disk")

    def _look(self, workers: Workers) -> None:
        """Tell the server what is new, and ask what is to be copied."""
        agent, now = self._agent, self._agent.world.timeline.now
        if workers is not agent.workers or not workers.alive or agent.stopping:
            return
        inventory = self._inventory()
        tells_at = self._reporter.due_at(inventory)
        if self._asked is None and inventory.held and tells_at is not None and tells_at <= now:
            self._reporter.begin_report(now, inventory)
            asked = Report(
                Routes.declare_snapshots, partial(SnapshotsRequest, round=workers.round, inventory=inventory)
            )
            self._asked, asked.answered = asked, partial(self._answered, asked)
            agent.session.send(asked, now)
        agent.after(LOOKS_S, self._look, workers)

    def _answered(self, asked: Report[SnapshotsReply], told: Answer) -> None:
        if asked is not self._asked:
            return
        self._asked = None
        if isinstance(told, SnapshotsReply):
            self._reporter.on_reply(told)
            if told.copy is not None and not self._copies:
                self._copies = True
                self._agent.after(self._rng.uniform(0.05, 3), self._copy, told.copy)

    def _copy(self, copy: CopyOrder) -> None:
        """Parts were fetched from another node, if it still has them."""
        self._copies = False
        there = self._of(copy.source.node_id, copy.stamp)
        number = next((number for number, held in self._slots.items() if _is_of(held, copy.stamp)), None)
        here = self._slots[number] if number is not None else None
        if number is None and copy.stamp.round != self._round:
            number = self._room(copy.stamp)
        if there is None or number is None:
            return
        self._agent.world.note("shards are copied")
        wanted = {part.rank for part in copy.source.ranks}
        here = here or replace(there, whole=False, ranks=())  # not what was in its slot before
        parts = {
            part.rank: part
            for part in (*here.ranks, *there.ranks)
            if part in here.ranks or part.rank in wanted
        }
        ranks = tuple(parts[rank] for rank in sorted(parts))
        self._slots[number] = replace(here, ranks=ranks, whole=here.whole or _is_whole(ranks))
        self._say(f"copies step {copy.stamp.step}")

    def _say(self, what: str) -> None:
        """For the trace: what this node holds, and what of that it keeps."""
        held = {
            each.step: [part.rank for part in each.ranks] for each in self._slots.values() if each is not None
        }
        kept = [stamp.step for stamp in self._reporter.retained]
        self._agent.world.checks.say(self._agent.node_id, f"{what}: holds {held}, keeps {kept}")

    def _of(self, node_id: str, stamp: SnapshotId) -> HeldSnapshot | None:
        world, own = self._agent.world, self._agent.machine
        there = next((machine for machine in world.machines if machine.node_id == node_id), None)
        if there is None or there.agent is None or there.link.side != own.link.side:
            return None
        return next((held for held in there.memory.get("slots", {}).values() if _is_of(held, stamp)), None)

    @property
    def _slots(self) -> dict[int, HeldSnapshot | None]:
        slots: dict[int, HeldSnapshot | None] = self._memory.setdefault("slots", dict.fromkeys(range(SLOTS)))
        return slots

    def _room(self, stamp: SnapshotId) -> int | None:
        slots = {number: held and _taken(memory_snapshot_id(held)) for number, held in self._slots.items()}
        numbers = {held: number for number, held in slots.items() if held is not None}
        try:
            oldest = choose_snapshot_to_evict(
                _taken(stamp), numbers, self._reporter.retained, sharded=self._sharded
            )
        except SnapshotSuperseded:
            return None
        return next(number for number, held in slots.items() if held == oldest)

    def _take(self) -> None:
        assert self._start is not None
        stamp = SnapshotId(round=self._round, step=self._reached)
        number = next((number for number, held in self._slots.items() if _is_of(held, stamp)), None)
        number = self._room(stamp) if number is None else number
        if number is None:
            return
        ranks, whole = self._agent.ranks, self._rng.random() < 0.9
        known = self._slots[number]
        copies = known.ranks if known is not None and _is_of(known, stamp) else ()
        digest = f"{ranks.start}-{ranks.stop if whole else ''}"
        own = tuple(RankPart(rank=rank, digest=digest) for rank in ranks)
        self._slots[number] = HeldSnapshot(
            round=stamp.round,
            step=stamp.step,
            world_size=self._start.world_size,
            whole=whole,
            sharded=self._sharded,
            size=10,
            ranks=(*own, *(part for part in copies if part.rank not in ranks)),
        )
        self._say(f"takes step {stamp.step}")

    def _inventory(self) -> SnapshotInventory:
        return SnapshotInventory(
            origin=self._memory.get("origin") or "",
            port=7000,
            key=self._memory.setdefault(
                "key", f"{self._agent.incarnation} at {self._agent.world.timeline.now}"
            ),
            held=tuple(held for held in self._slots.values() if held is not None),
            reached=self._reached,
            refused=self._refused,
            on_disk=tuple(self._agent.world.disk[:MAX_DISK_SNAPSHOTS]),
        )


def _is_of(held: HeldSnapshot | None, stamp: SnapshotId) -> bool:
    return held is not None and memory_snapshot_id(held) == stamp


def _is_safe(stamp: SnapshotId, safe: Taken | None) -> bool:
    return safe is not None and safe >= _taken(stamp)


def _taken(stamp: SnapshotId) -> Taken:
    """As workers name it."""
    return Taken(step=stamp.step, round=stamp.round)


def _is_whole(parts: Iterable[RankPart]) -> bool:
    """Whether these are the parts of all ranks of a node that had all that ranks have alike; see `Snapshots._take`."""
    ranks = {part.rank for part in parts}
    nodes = [part.digest.partition("-") for part in parts]
    return any(ranks.issuperset(range(int(first), int(end))) for first, _, end in nodes if end)


class BeginsFromTheNewest:
    """A round begins from the newest complete snapshot of its job; see `select_snapshot`."""

    def __init__(self, checks: "Checks") -> None:
        self._checks = checks
        self._jobs: dict[int, int] = {}  # of rounds
        self._durable: dict[int, Any] = {}

    def stepped(self, old: Group, new: Group) -> None:
        current = new.round
        if new.last_round == old.last_round or current is None or current.number != new.last_round:
            return
        self._jobs[current.number] = new.job
        chosen, kept = current.snapshot, new.snapshots
        if kept is None:
            if chosen is not None:
                self._checks.violate("snapshots", f"round {current.number} begins from {chosen}")
            return
        complete = _complete(new, kept.origin, current.formed_at) | _on_disk(new)
        expected = max(complete, default=None, key=partial(_newness, new, kept.origin))
        stamp = (chosen.origin or kept.origin, chosen.step, chosen.round) if chosen is not None else None
        if stamp != expected:
            what = f"begins from {stamp}, not {expected}; complete are {sorted(complete)}"
            self._checks.violate("a round begins from the newest snapshot", f"round {current.number} {what}")
        if chosen is not None and not chosen.on_disk and self._jobs.get(chosen.round) != new.job:
            what = f"round {current.number} of job {new.job} begins from {stamp}"
            self._checks.violate("snapshots are of this job", what)
        for source in chosen.sources if chosen is not None else ():
            if new.nodes[source.node_id].is_gone and not _serves(new, source.node_id, current.formed_at):
                self._checks.violate("sources are there", f"{source.node_id} is gone")

    def round_is_durable(self, record: dict[str, Any]) -> None:
        known = self._durable.setdefault(record["number"], record["snapshot"])
        if known != record["snapshot"]:
            what = f"round {record['number']} begins from another snapshot than before"
            self._checks.violate("a snapshot is chosen once", what)


class SafeOutlivesANode:
    """A snapshot that people are told is safe, or a newer one, is still there when one node is gone with its memory."""

    def __init__(self, checks: "Checks") -> None:
        self._checks = checks
        self._job = 0
        self._safe: SnapshotId | None = None
        self._holders: dict[str, str] = {}  # by node, the key of its memory

    def stepped(self, old: Group, new: Group) -> None:
        if new.job != self._job:
            self._job, self._safe = new.job, None
        current = new.round
        if new.last_round != old.last_round and current is not None and self._safe is not None:
            self._judge(new, current)
        if new.active_round is None or new.snapshots is None:
            return
        if (
            len(new.active_round.members) == 1
        ):  # a node that goes on alone may cost all of it (docs/snapshots.md)
            self._safe = None
            return
        began = _began_from(new.active_round, new.snapshots.origin)
        safe = next(
            (
                one
                for one in list_group_snapshots(new)
                if not one.missing and survives_node_loss(one)
                # what the round did not begin from although it is newer has come back too late
                if one.stamp.round == new.active_round.number
                or (began is not None and one.stamp.sort_key <= began.sort_key)
            ),
            None,
        )
        if safe is None or not safe.sharded or safe.on_disk:
            return
        if self._safe is None or safe.stamp.sort_key >= self._safe.sort_key:
            self._safe = safe.stamp
            self._holders = {node.node_id: _key(node) for node, _ in safe.holders}

    def _judge(self, group: Group, current: Round) -> None:
        assert self._safe is not None
        kept = group.snapshots
        chosen = _began_from(current, kept.origin) if kept is not None else None
        refused = {
            stamp for node in group.nodes.values() if node.snapshots for stamp in node.snapshots.refused
        }
        # what cannot be loaded is another fault than a node that is gone
        bad = any(stamp.sort_key >= self._safe.sort_key for stamp in refused)
        if kept is None or bad or self._safe in self._checks.unloadable:
            self._safe = None
            return
        gone = [
            node_id
            for node_id, key in self._holders.items()
            if _key(group.nodes[node_id]) != key
            or not (
                is_present_and_staying(group, group.nodes[node_id])
                or _serves(group, node_id, current.formed_at)
            )
        ]
        if len(gone) > 1:
            self._safe = None
        elif chosen is None or chosen.sort_key < self._safe.sort_key:
            began = (chosen.step, chosen.round) if chosen is not None else None
            safe = self._safe.step, self._safe.round
            what = f"round {current.number} begins from {began}, though {safe} was safe; gone: {gone}"
            self._checks.violate("what is safe outlives a node", what)


def _began_from(current: Round, origin: str) -> SnapshotId | None:
    """Which snapshot a round of a job begins from; None: from none."""
    chosen = current.snapshot
    if chosen is None:
        return None
    return disk_snapshot_id(chosen, origin) if chosen.on_disk else memory_snapshot_id(chosen)


def _key(node: Node) -> str:
    return node.snapshots.key if node.snapshots is not None else ""


def _serves(group: Group, node_id: str, now: float) -> bool:
    """Whether the agent of a node that has left serves what it holds."""
    parting, node = group.snapshots.parting if group.snapshots is not None else {}, group.nodes[node_id]
    return node.phase is NodePhase.LEFT and parting.get(node.incarnation, -inf) >= now


Which = tuple[str, int, int]
"""A snapshot by its job, step and round."""


def _newness(group: Group, origin: str, which: Which) -> tuple[object, ...]:
    """Those of the job itself come first, then those of the one that wrote last."""
    known = [one for node in group.nodes.values() if node.snapshots for one in node.snapshots.on_disk]
    wrote_at = max((one.written_at for one in known if one.origin == which[0]), default=0)
    return which[0] == origin, wrote_at, which[2], which[1]


def _complete(group: Group, origin: str, now: float) -> set[Which]:
    """The snapshots of which all parts are on nodes that serve them."""
    world: dict[tuple[int, int], tuple[int, bool]] = {}
    whole: set[tuple[int, int]] = set()
    parts: set[tuple[int, int, int]] = set()
    for node in group.nodes.values():
        inventory = node.snapshots
        out = node.is_gone or node.job != group.job or node.leaving is not None or node.rejected is not None
        if node.job == group.job and _serves(group, node.node_id, now):
            out = False
        if out or inventory is None or inventory.origin != origin:
            continue
        for held in inventory.held:
            which = held.step, held.round
            world[which] = held.world_size, held.sharded
            whole |= {which} if held.whole else set()
            parts |= {(*which, part.rank) for part in held.ranks}
    found = {
        (origin, *which)
        for which in whole
        if not world[which][1] or all((*which, rank) in parts for rank in range(world[which][0]))
    }
    return found - _refused(group)


def _on_disk(group: Group) -> set[Which]:
    """The snapshots that some node sees on disk, and that no member of the round has refused."""
    found: set[Which] = set()
    for node in group.nodes.values():
        inventory = node.snapshots
        out = node.is_gone or node.job != group.job or node.leaving is not None or node.rejected is not None
        if inventory is not None and not out:
            found |= {(one.origin, one.step, one.round) for one in inventory.on_disk}
    return found - _refused(group)


def _refused(group: Group) -> set[Which]:
    """The snapshots of which members of the round could load no copy."""
    own = group.snapshots.origin if group.snapshots is not None else ""
    members = [group.nodes[member.node_id] for member in group.round.members] if group.round else []
    return {
        (stamp.origin or own, stamp.step, stamp.round)
        for node in members
        if node.snapshots
        for stamp in node.snapshots.refused
    }
