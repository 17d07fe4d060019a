"""What goes wrong in a story, and when: each fault is one method, drawn and timed by the seed."""

from typing import TYPE_CHECKING

from hetrdzv.core.commands import Cancel, Drain, RecordStall, Restart, Undrain
from hetrdzv.core.model import Stall
from hetrdzv.protocol.states import StallKind
from tests.sim.machine import Machine
from tests.sim.network import DOWN, UP
from tests.sim.scenario import MOST_MACHINES
from tests.sim.store import Trouble
from tests.support.hangs import of_kind

if TYPE_CHECKING:
    from tests.sim.world import World


class Faults:
    """The faults of one world."""

    def __init__(self, world: "World") -> None:
        self._world = world
        self._rng = world._rng("faults")
        self._later = self._rng.uniform

    def plan(self) -> None:
        world, rng = self._world, self._rng
        kinds = [
            (3, self.worker_fails),
            (1, self.workers_hang),
            (2, self.agent_is_killed),
            (2, self.machine_loses_power),
            (2, self.worker_fails_and_machine_is_lost),
            (2, self.machine_is_cut_off_and_a_peer_fails),
            (2, self.agent_gets_sigterm),
            (3, self.partition),
            (1, self.slow_node),
            (3, self.server_crashes),
            (1, self.server_stops),
            (2, self.server_stands_still),
            (2, self.disk_is_in_trouble),
            (1, self.person_drains),
            (1, self.person_restarts),
            (1, self.node_is_new),
            (0.15, self.person_cancels),
        ]
        if not world.scenario.separate:
            kinds += [
                (1, self.agent_and_guardian_are_killed),
                (2, self.agent_stands_still),
                (2, self.connections_are_cut),
                (2, self.one_way_partition),
            ]
        else:
            kinds += [(3, self.partition), (6, self.machine_is_cut_off_and_a_peer_fails)]
        weights, calls = zip(*kinds, strict=True)
        for call in rng.choices(calls, weights, k=world.scenario.faults):
            moment = rng.uniform(1, world.scenario.story_s - 1)
            world.timeline.at(moment, self._happen, call)

    def _happen(self, call) -> None:  # type: ignore[no-untyped-def]
        name = call.__name__.replace("_", " ")
        args = []
        if call.__code__.co_argcount > 1:  # it befalls a machine with an agent
            if (machine := self._some()) is None:
                return
            args = [machine]
        if call(*args) is not False:
            self._world.note(name)
            self._world.checks.say("FAULT", name)

    def _some(self) -> Machine | None:
        found = [machine for machine in self._world.machines if machine.agent is not None]
        return self._rng.choice(found) if found else None

    # -- workers and agents ----------------------------------------------------------------------------------

    def worker_fails(self) -> bool:
        running = [workers for machine in self._world.machines for workers in machine.workers]
        if running:
            self._world.worker_fails(self._rng.choice(running), "by a fault")
        return bool(running)

    def workers_hang(self) -> bool:
        """Workers wait for another one, as the server sees from what agents say; it goes on, or never does."""
        server = self._world.server
        active = server.group.active_round if server.group is not None else None
        if active is None:
            return False
        member = self._rng.choice(active.members)
        kind = self._rng.choice((StallKind.BEHIND, StallKind.NO_ANSWER, StallKind.NOTHING_COMPLETES))
        stall = Stall(
            hang=of_kind(kind, member.rank_offset, member.node_id), since=server.served_s - self._later(0, 3)
        )
        self._world.timeline.at(self._later(1, 30), server.command, RecordStall(active.number, None))
        return server.command(RecordStall(active.number, stall))

    def agent_is_killed(self, machine: Machine) -> None:
        self._kill(machine, guardian=False)

    def agent_and_guardian_are_killed(self, machine: Machine) -> None:
        """Its workers run on until an agent starts there again."""
        self._kill(machine, guardian=True)

    def _kill(self, machine: Machine, *, guardian: bool) -> None:
        self._world.kill_agent(machine, guardian=guardian)
        rename = not guardian and self._rng.random() < 0.25
        self._return(machine, self._later(1, 12), rename=rename)

    def _return(self, machine: Machine, after_s: float, *, rename: bool = False) -> None:
        def start() -> None:
            if rename and machine.agent is None and not machine.workers:
                self._world.note("agent has a new node id")
                machine.node_id += "x"
            self._world.start_agent(machine)

        if self._rng.random() < 0.85:
            self._world.timeline.at(after_s, start)

    def machine_loses_power(self, machine: Machine) -> None:
        self._world.kill_agent(machine, guardian=True, power=True)
        self._return(machine, self._later(1, 20), rename=self._rng.random() < 0.25)

    def worker_fails_and_machine_is_lost(self) -> bool:
        """A peer's worker notices the end of a machine before the server does, or its own last word does."""
        running = [machine for machine in self._world.machines if machine.workers]
        if not running:
            return False
        machine = self._rng.choice(running)
        number = machine.workers[0].round
        first_s, then_s = self._later(0, 0.5), self._later(0, 3)
        peers = [w for other in self._world.machines for w in other.workers if w.round == number]
        failing = self._rng.choice(peers)
        if self._rng.random() < 0.5:
            self._world.timeline.at(first_s, self._world.worker_fails, failing, "before a machine is lost")
            self._world.timeline.at(first_s + then_s, self._lose, machine)
        else:
            self._world.timeline.at(first_s, self._lose, machine)
            self._world.timeline.at(first_s + then_s, self._world.worker_fails, failing, "of a lost machine")
        return True

    def _lose(self, machine: Machine) -> None:
        if not self._world.calm:
            self._world.kill_agent(machine, guardian=True, power=True)
            self._return(machine, self._later(1, 20))

    def machine_is_cut_off_and_a_peer_fails(self) -> bool:
        """Its own workers run on: nobody can tell them to stop."""
        world = self._world
        running = [machine for machine in world.machines if machine.workers]
        if len(running) < 2:
            return False
        machine, other = self._rng.sample(running, 2)
        machine.link.side = side = self._rng.randint(1, 1000)
        world.network.block(machine.link, UP, DOWN)
        world.timeline.at(
            self._later(0, 2), world.worker_fails, other.workers[0], "of a peer that is cut off"
        )
        world.timeline.at(self._later(8, 30), self._unblock, [machine], (UP, DOWN), side)
        return True

    def agent_gets_sigterm(self, machine: Machine) -> None:
        machine.live_agent.sigterm()

    def agent_stands_still(self, machine: Machine) -> None:
        machine.live_agent.pause()
        self._world.timeline.at(self._later(0.5, 15), machine.live_agent.resume)

    def node_is_new(self) -> bool:
        world = self._world
        if len(world.machines) >= MOST_MACHINES:
            return False
        machine = world._machine(len(world.machines), self._rng.choice((1, 2, 4)))
        world.machines.append(machine)
        world.start_agent(machine)
        return True

    # -- the network -----------------------------------------------------------------------------------------

    def partition(self) -> bool:
        """One or several machines are cut off, silently, from the server and from the others."""
        return self._block((UP, DOWN), side=self._rng.randint(1, 1000))

    def one_way_partition(self) -> bool:
        return self._block((self._rng.choice((UP, DOWN)),), side=0)

    def _block(self, directions: tuple[str, ...], side: int) -> bool:
        world = self._world
        count = self._rng.choice((1, 1, 1, 2, len(world.machines)))
        chosen = self._rng.sample(world.machines, min(count, len(world.machines)))
        for machine in chosen:
            world.network.block(machine.link, *directions)
            if side:
                machine.link.side = side
            for workers in machine.workers:
                world.timeline.at(self._later(0.3, 8), self._suffer, machine, side, workers.round)
        world.checks.say(
            "FAULT", f"{' and '.join(directions)} of {', '.join(m.node_id for m in chosen)} is cut"
        )
        world.timeline.at(self._later(0.2, 25), self._unblock, chosen, directions, side)
        return True

    def _suffer(self, machine: Machine, side: int, number: int) -> None:
        """Collectives across a partition fail, or hang; here those beside the machine fail first."""
        if side and machine.link.side == side:
            hangs = machine if self._rng.random() < 0.6 else None
            self._world.peers_suffer(number, hangs)

    def _unblock(self, chosen: list[Machine], directions: tuple[str, ...], side: int) -> None:
        for machine in chosen:
            if all(machine.link.blocked[direction] > 0 for direction in directions):
                self._world.network.unblock(machine.link, *directions)
            if machine.link.side == side:
                machine.link.side = 0
        self._world.checks.say("FAULT", f"the way of {', '.join(m.node_id for m in chosen)} is open again")

    def connections_are_cut(self, machine: Machine) -> None:
        self._world.network.cut(machine.link)

    def slow_node(self) -> None:
        machine = self._rng.choice(self._world.machines)
        machine.link.slow = self._rng.choice((3.0, 10.0))
        self._world.timeline.at(self._later(2, 20), setattr, machine.link, "slow", 1.0)

    # -- the server ------------------------------------------------------------------------------------------

    def server_crashes(self) -> bool:
        if self._rng.random() < 0.4:
            return self._world.server.crash(self._later(0.1, 12))
        return self._disk("crashes", 0.3)

    def server_stops(self) -> bool:
        return self._world.server.stop(self._later(0.1, 4))

    def server_stands_still(self) -> bool:
        return self._world.server.freeze(self._rng.choice((0.5, 0.9, 2.0, 6.0, 15.0)))

    def disk_is_in_trouble(self) -> bool:
        kind = self._rng.choice(("latency_s", "fails", "fails_but_is_written"))
        return self._disk(kind, 0.3)

    def _disk(self, name: str, value: float) -> bool:
        trouble = self._world.server.trouble
        setattr(trouble, name, value)
        self._world.timeline.at(self._later(0.5, 6), setattr, trouble, name, getattr(Trouble(), name))
        return True

    # -- people ----------------------------------------------------------------------------------------------

    def person_drains(self) -> bool:
        machine = self._rng.choice(self._world.machines)
        self._world.timeline.at(self._later(2, 15), self._world.server.command, Undrain(machine.node_id))
        return self._world.server.command(Drain(machine.node_id))

    def person_restarts(self) -> bool:
        return self._world.server.command(Restart())

    def person_cancels(self) -> bool:
        return self._world.server.command(Cancel())
