"""A machine: its link, its agent, and the processes that outlive an agent."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.sim.agents import Agent
from tests.sim.network import Link
from tests.sim.workers import Workers


@dataclass(slots=True)
class Machine:
    """One machine.

    Attributes:
        node_id: what its agents call themselves now.
        births: how many agents it has had.
        workers: all that run on it.
        down: whether it is without power.
        memory: what optional features keep in it, which outlives agents.
    """

    node_id: str
    slots: int
    labels: Mapping[str, str]
    weight: float
    address: str
    link: Link
    agent: Agent | None = None
    births: int = 0
    workers: list[Workers] = field(default_factory=list)
    down: bool = False
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def live_agent(self) -> Agent:
        assert self.agent is not None
        return self.agent
