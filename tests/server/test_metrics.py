"""Metrics, over the story of one group, parsed as Prometheus does."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from hetrdzv.core.commands import Command, RecordStall, RecordTraining
from hetrdzv.core.model import Group, Stall
from hetrdzv.core.rounds.timers import STALL_REPORTED_AFTER_S
from hetrdzv.protocol.progress import ProgressTimes
from hetrdzv.service.metrics import Metrics
from tests.core.driver import Story
from tests.support.hangs import behind


class Counted(Story):
    """A story; every step is counted."""

    def __init__(self, **spec: Any) -> None:
        super().__init__(**spec)
        self.metrics = Metrics()

    def do(self, command: Command) -> Group:
        before, told = self.group, len(self.events)
        after = super().do(command)
        self.metrics.on_commit("g", before, after, self.events[told:], self.now)
        return after

    def read(self, groups: int = 1) -> Callable[..., float]:
        """The samples of a scrape, by name and labels."""
        text = self.metrics.render_text(
            [self.group] * groups, now=self.now, open_polls=7, leads=True
        ).decode()
        found = {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
        return lambda name, **labels: found.get((f"hetrdzv_{name}", frozenset(labels.items())), 0.0)


def test_a_job_with_a_failure_and_a_loss() -> None:
    story = Counted(min_nodes=2, max_nodes=3, last_call_s=4.0)
    story.join("a", 2)
    story.wait(3.0)
    story.join("b", 1)
    story.join("c", 1)
    read = story.read()
    assert read("rounds_total", cause="first") == 1
    assert read("groups", state="starting") == 1
    assert read("nodes", state="starting") == 3
    story.wait(2.0)
    story.started("a", "b", "c")
    story.wait(10.0)
    story.failed("b")
    story.wait(1.0)
    for node_id in ("a", "b", "c"):
        story.join(node_id)
    story.wait(2.0)
    story.started("a", "b", "c")
    story.wait(4.0)
    read = story.read()
    assert (read("rounds_total", cause="failed"), read("restarts_total")) == (1, 1)
    assert (read("recovery_seconds_count", cause="failed"), read("recovery_seconds_sum", cause="failed")) == (
        1,
        3,
    )
    assert read("slot_seconds_total", doing="unknown") == pytest.approx(4 * (10 + 4)), "nobody saw any worker"
    assert read("slot_seconds_total", doing="starting") == pytest.approx(4 * (2 + 2))
    assert read("slot_seconds_total", doing="waiting") == pytest.approx(4 * 1)
    story.lose("c")
    for node_id in ("a", "b"):
        story.join(node_id)
    story.started("a", "b")
    read = story.read()
    assert (read("rounds_total", cause="lost"), read("restarts_total")) == (1, 1)
    assert read("recovery_seconds_count", cause="lost") == 1
    assert read("nodes", state="lost") == 1
    story.succeeded("a", "b")
    read = story.read()
    assert read("groups_finished_total", outcome="succeeded") == 1
    assert (read("groups", state="succeeded"), read("groups", state="running")) == (1, 0)
    assert (read("open_polls"), read("leader")) == (7, 1)


def test_what_running_workers_do_is_counted() -> None:
    story = Counted(min_nodes=1, max_nodes=1, hang_timeout_s=60.0)
    story.join("a", 2)
    story.report("a", "started", moved=ProgressTimes())
    story.wait(3.0)
    story.do(RecordTraining(1, story.now))
    story.wait(10.0)
    story.do(RecordStall(1, Stall(hang=behind(1, "a", waiting=(0,)), since=story.now)))
    story.wait(16.0)
    doing = partial(story.read(), "slot_seconds_total")
    assert (doing(doing="starting_up"), doing(doing="training")) == (
        6.0,
        pytest.approx(20.0 + 2 * STALL_REPORTED_AFTER_S),
    )
    assert doing(doing="hanging") == pytest.approx(2 * (16.0 - STALL_REPORTED_AFTER_S))
    story.wait(45.0)
    assert story.ended == "failed"
