"""What an end costs, whose fault it was, masters that are not reached, agents that give up (rules 5, 6 and 13)."""

from dataclasses import replace

import pytest

from hetrdzv.core.rounds.transitions import MAX_GONE_NODES
from hetrdzv.protocol.reasons import ends, events, waiting
from hetrdzv.protocol.reasons.reason import ReasonCode
from hetrdzv.protocol.rounds import EarlierSuccesses
from hetrdzv.protocol.texts.node_rank_lists import NodeList
from tests.core.driver import Story, failed, ready, running
from tests.core.script import fact, play

COSTS = {
    "a failure costs one restart, once all have stopped": """
        running a b max_restarts=1; failed a; failed b; restarts = 0
        joins a b; restarts = 1; said restart_spent = 1; said worker_failed = 2""",
    "one that comes again counts once": """
        running a b; failed a; later 1; failed a; said worker_failed = 1; joins a b
        StaleRound: report a failed round=1; restarts = 1""",
    "one that is reported after the acknowledgement is the cause if it was earlier": """
        running a b max_restarts=0; wait 10; failed a; join b; failed b age_s=1.0; join a; cause = worker_failed b""",
    "of two at the same moment that of the first node is": """
        running a b max_restarts=0; failed b exit_code=7; failed a; joins a b; cause = worker_failed a""",
    "a loss counts although the node returned before the judgement": """
        running a b c; failed a; lose b; join b after=1; joins a c; restarts = 0; order = a b c""",
    "the judgement waits for a suspect": """
        running a b min_nodes=1; failed a; join b; cut b; join a; state = waiting; wait 1; restarts = 0
        pass_by 0.001; restarts = 0; ended = None; order = a""",
    "which lets the failure count if it is heard": """
        running a b; failed a; join b; cut b; join a; later 0.5; renew b; restarts = 1""",
    "a master that some do not reach is replaced without cost, and for good": """
        group min_nodes=3 last_call_s=0; joins a b c; unreachable c; why a = master_unreachable c
        joins a b c; order = b a c; restarts = 0
        started a b c; failed a; joins a b c; order = b a c""",
    "a master that another member has reached does not count as one that failed": """
        group min_nodes=3 last_call_s=0; joins a b c; started b; unreachable c; failed_masters = 0
        joins a b c; unreachable c; failed_masters = 1""",
    "a late report on a master says nothing of its next agent": """
        group min_nodes=3 last_call_s=0; joins a b c; unreachable b; unreachable c; leave a; join a inc='a-2'
        StaleRound: unreachable c
        joins b c; order = a b c""",
    "where none can be master the job fails": """
        group min_nodes=2 last_call_s=0; joins a b; unreachable b; joins a b; unreachable a; joins a b
        state = failed; why = no_master a b; restarts = 0""",
    "nodes that no master serves wait until the join timeout": """
        group min_nodes=2 max_nodes=4 last_call_s=1 stop_timeout_s=2 join_timeout_s=20; joins a b c; wait 1
        started b; unreachable c; joins a b c; started a; unreachable c; joins a b c
        unreachable a; unreachable b; joins a b c; order = a b
        started a b; leave b; join a; wait 20; state = failed; why = no_master a c""",
    "one that reaches nobody is left out where the bounds allow": """
        group min_nodes=2 max_nodes=3 last_call_s=5; joins a b c
        started b; unreachable c; joins a b c
        started a; unreachable c; joins a b c; order = c a b
        unreachable a; unreachable b; joins a b c; order = a b; left c = cannot_reach_master c
        started a b; wait 30; state = running; restarts = 0
        leave c; join c inc='c-2' after=0; ended = joined; joins a b; order = a b c""",
    "a store that closed at a stop is not unreachable": """
        group min_nodes=2 last_call_s=0; joins a b; failed a; StaleRound: unreachable b""",
    "a new agent is tried as master again": """
        group min_nodes=2 last_call_s=0; joins a b; unreachable b; leave a; join b; join a inc='a-2'; order = a b""",
    "an exit code ends the job at once": """
        running a b max_restarts=100 no_restart_on=(2,64); failed a exit_code=1; joins a b; restarts = 1
        started a b; failed a exit_code=64; joins a b; cause = worker_failed a; told b = exit failed 64""",
    "but only that of the root cause": """
        running a b max_restarts=100 no_restart_on=(2,); wait 10; failed a exit_code=1 age_s=3
        failed b exit_code=2 age_s=1; joins a b; restarts = 1""",
    "restarts in quick succession wait, and none after a long round": """
        running a max_restarts=100 lease_s=1000; failed a; join a; started a
        failed a; join a; told a = wait waiting; why = restart_backoff a; until = 1; due = 1; wait 1; started a
        failed a; join a; until = 2; wait 2; started a
        wait 60; failed a; join a; started a
        failed a; join a; until = 1""",
    "a loss is no failure, and its next round does not wait": """
        running a b max_restarts=100
        failed a; join a; leave b; join b inc='b-2'; due = 1; wait 1; started a b
        failed a; join a; leave b; join b inc='b-3'; due = 1; wait 1; started a b; restarts = 0""",
    "too few are left once one gives up": """
        running a b max_restarts=1000; failed a final=True; leave a; state = waiting
        join b; cause = worker_failed a; restarts = 0; told b = exit failed 1""",
    "enough are left": """
        running a b c min_nodes=2 max_restarts=1000; failed a final=True; leave a; joins b c
        order = b c; restarts = 1""",
    "or a spare takes the place": """
        running a b max_nodes=2 max_restarts=1000; join spare; failed a final=True; leave a; join b
        order = spare b""",
    "who cannot start workers and goes costs no restart": """
        running a b min_nodes=1 max_restarts=0
        failed b final=True rank=-1 local_rank=-1 exit_code=None; leave b; join a; wait 1; order = a; restarts = 0""",
    "who gave up crashes before it has left": """
        running a b max_restarts=1000; failed a final=True; lose a; join b; cause = worker_failed a""",
    "or a person takes it out": """
        running a b max_restarts=1000; failed a final=True; drain a; leave a; join b; cause = worker_failed a""",
    "or it is started again at once": """
        running a b max_restarts=1000; failed a final=True; leave a; join a inc='a-2'; join b; state = starting
        restarts = 1""",
    "a loss behind the failure is the cause": """
        running a b max_restarts=1000; failed a final=True; leave a; lose b; cause = node_lost b""",
    "so is one that leaves": """
        running a b max_restarts=1000; failed a final=True; leave a; leave b; cause = node_left b""",
    "a round that a joiner ended": """
        running a b max_nodes=3 max_restarts=1000; join c; wait 1; ended = joined; failed a final=True; leave a
        drain c; leave c; join b; cause = worker_failed a""",
    "the budget of the group counts as well": """
        running a b c min_nodes=2 max_restarts=0; failed a final=True; leave a; joins b c; cause = worker_failed a""",
    "who comes back has not given up": """
        running a b max_restarts=1000; failed a final=True; joins a b; state = starting; restarts = 1""",
    "and waits for the others": """
        running a b max_restarts=1000; failed a final=True; join a; drain b; leave b; state = waiting""",
    "an agent that gave up but never goes is not waited for": """
        running a b max_restarts=1000 stop_timeout_s=1; failed a final=True; join b; renew a
        wait 6.1; cause = worker_failed a; told a = exit failed 1""",
    "a hopeless script fails the group at once": """
        running a b max_restarts=3; failed b permanent=True rank=1 exit_code=2; joins a b; cause = worker_failed b
        restarts = 0; told a = exit failed 2""",
    "even if another failure was seen earlier": """
        running a b max_restarts=3; failed a age_s=0.5; failed b permanent=True rank=1
        joins a b; cause = worker_failed b""",
    "but not once the job has run": """
        running a b max_restarts=3 min_nodes=2 max_nodes=None; join c; wait 10.1; joins a b; started a b c
        failed c permanent=True rank=2; joins a b c; state = starting; restarts = 1""",
    "a first round without workers does not count": """
        group min_nodes=2; joins a b; wait 10.1; started a; unreachable b; joins a b; started a b
        failed b permanent=True; joins a b; state = failed""",
}


@pytest.mark.parametrize("case", COSTS)
def test_costs(case: str) -> None:
    play(COSTS[case])


GOES = ["lose b", "leave b", "leaving b; leave b", "drain b; leave b", "cut b; join b inc='b-2'"]


@pytest.mark.parametrize("goes", GOES)
def test_a_loss_behind_a_failure_costs_nothing(goes: str) -> None:
    play(f"""
        running a b c min_nodes=2; failed a; joins a c; restarts = 0
        {goes}; restarts = 0; state = starting; said round_judged = 1""")


@pytest.mark.parametrize("goes", ["lose b", "leave b", "drain b; leave b"])
def test_a_member_that_has_succeeded_and_goes_is_not_behind_a_failure(goes: str) -> None:
    play(f"running a b c min_nodes=2; succeeded b; failed c; {goes}; joins a c; restarts = 1")


@pytest.mark.parametrize(
    ("ends", "after"),
    [
        ("lose b", ""),
        ("leave b", ""),
        ("leaving b", "leave b"),
        ("drain b", "leave b"),
        ("restart", "join b"),
        ("join c; wait 1", "join b"),
        ("join b", ""),
    ],
)
def test_only_failures_cost(ends: str, after: str) -> None:
    """What workers of others report then came of being stopped."""
    play(f"""
        running a b min_nodes=1 max_restarts=0
        {ends}; failed a; join a; {after}; state = starting; restarts = 0""")


def test_a_spent_budget_fails_the_group_for_everybody_alike() -> None:
    story = play("""
        running a b c max_restarts=0; later 3; failed c exit_code=9 rank=2; failed b age_s=0.5 exit_code=7 rank=1
        joins a b; state = waiting; join c; state = failed""")
    of_b = ends.failure_without_restart(failed("b", 1, 7), "used_up", 0)
    for node_id in "abc":
        assert fact(story, "told", node_id) == "exit failed 7"
        assert (story.told(node_id).reason, story.told(node_id).root_cause) == (of_b, story.root_cause)
    assert story.root_cause.failure is not None
    assert (story.root_cause.node_id, story.root_cause.failure.message) == ("b", "Traceback: boom")
    assert story.said("group_failed") == [events.group_failed(of_b)]
    story = play("running a b max_restarts=9; failed a final=True; leave a; join b")
    assert story.said("group_failed") == [events.group_failed(failed("a"), NodeList.of(["a"]))], (
        "who gave up is named"
    )


def test_a_restart_says_what_it_is_for() -> None:
    story = play("running a b; failed b rank=1; joins a b")
    assert [story.start(one).restarted_by for one in "ab"] == [failed("b", 1)] * 2
    story.restart()
    story.joins("a", "b")
    assert story.start("a").restarted_by is None, "a person's wish costs no restart"
    assert [formed.data.get("after") for formed in story.said("round_formed")] == [
        None,
        "failed",
        "restarted",
    ]
    quick = play("running a max_restarts=5; failed a; join a; started a; failed a; join a")
    assert replace(quick.reason, cause=None) == ReasonCode.RESTART_BACKOFF.reason(
        "a", ready=ready("a", 1), restart=2, quick=2, until=quick.now + 1
    )


def test_failures_without_an_exit_code() -> None:
    story = play(
        "running a max_restarts=0; failed a exit_code=None signal='SIGKILL'; join a; told a = exit failed 1"
    )
    assert story.reason.data["signal"] == "SIGKILL"
    story = running("a", max_restarts=0)
    story.report("a", "failed", message="no such file: train.py")
    story.join("a")
    assert (story.reason.code, story.reason.quote) == ("start_failed", "no such file: train.py")


def test_the_waits_between_restarts() -> None:
    story = running("a", max_restarts=100, lease_s=1000)
    waits = []
    for _ in range(9):
        story.failed("a")
        story.join("a")
        at = story.now
        while story.group.active_round is None:
            story.pass_by(story.deadline_in or 0.0)
        waits.append(story.now - at)
        story.started("a")
    assert waits == pytest.approx([0, 1, 2, 4, 8, 16, 32, 60, 60])


def test_a_group_behind_firewalls_gives_up_after_three_masters() -> None:
    story = Story(min_nodes=64, last_call_s=0.0, max_nodes=64)
    nodes = [f"n{number}" for number in range(64)]
    story.joins(*nodes)
    for rounds in (1, 2, 3):
        assert (story.group.state, story.group.last_round) == ("starting", rounds)
        story.unreachable(story.order[-1])
        story.joins(*nodes)
    assert (story.group.state, story.group.last_round) == ("failed", 3)
    assert len(story.why) < 600


def test_joiners_without_a_way_to_the_members_end_no_round_that_could_not_grow() -> None:
    story = Story(min_nodes=2, max_nodes=4, last_call_s=1.0, stop_timeout_s=2.0)
    story.joins("a", "b", "c", "d")
    ways = {("a", "b"), ("b", "a"), ("c", "d"), ("d", "c")}
    while len(story.order) == 4:
        master = story.order[0]
        story.started(*(name for name in story.order[1:] if (name, master) in ways))
        for name in story.order[1:]:
            if (name, master) not in ways:
                story.unreachable(name)
        story.joins("a", "b", "c", "d")
    assert story.order == ["a", "b"]
    story.started("a", "b")
    story.failed("a")
    story.wait(12.0)
    assert story.order == ["c", "d"]  # a and b did not stop in time
    story.started("c", "d")
    story.joins("a", "b")
    story.wait(30.0)
    assert (story.group.state, story.ended) == ("running", None)


def test_who_is_forgotten_is_no_longer_out_of_reach() -> None:
    """A job whose nodes have a new name each time keeps no list of all that ever failed."""
    story = Story(min_nodes=2, max_nodes=2, last_call_s=0)
    story.join("a")
    for number in range(MAX_GONE_NODES + 10):
        name = f"x{number}"
        story.join(name)
        story.unreachable(story.order[1])
        story.joins("a", name)
        story.leave(name)
        story.join("a")
    assert len(story.group.nodes) <= MAX_GONE_NODES + 3
    assert {node_id for pair in story.group.unreachable for node_id in pair} <= story.group.nodes.keys()


def test_of_those_who_came_and_went_few_are_remembered() -> None:
    """A group that waits for nodes does not grow with each agent that did not wait with it."""
    story = Story(min_nodes=2)
    for number in range(MAX_GONE_NODES + 10):
        story.join(f"x{number}")
        story.leave(f"x{number}")
    assert [*story.group.nodes] == [f"x{number}" for number in range(10, MAX_GONE_NODES + 10)]


@pytest.mark.parametrize(("reported_s", "known"), [(1.0, True), (0.1, False)])
def test_who_had_ended_well_before_the_failure_is_named_with_it(reported_s: float, known: bool) -> None:
    """Its node succeeded, or tells of it once the round is over; whoever ended later explains nothing."""
    of_c = EarlierSuccesses(node_id="c", rank=2)
    story = running("a", "b", "c", max_restarts=0)
    story.failed("a", age_s=0.5)
    for _ in range(2):  # the answer to the first was lost
        story.report("c", "ended", ended=replace(of_c, before_s=reported_s))
    story.joins("a", "b", "c")
    assert story.round.end is not None
    assert story.round.end.before == (of_c if known else None)
    story = play("""
        running a b max_restarts=9; succeeded a; failed b rank=1 final=True; leave a; leave b; state = failed""")
    assert story.root_cause.reason == failed("b", 1, before=EarlierSuccesses(node_id="a", rank=0))


# -- used last -----------------------------------------------------------------------------------------------


def fails(story: Story, node_id: str) -> None:
    story.failed(node_id)
    rejoin(story)


def rejoin(story: Story) -> None:
    """All who have to, stop and start their workers."""
    for node in story.group.live_nodes:
        if story.told(node.node_id).kind == "stop":
            story.join(node.node_id)
    story.wait(1.1)
    story.started(*(node.node_id for node in story.group.live_nodes if node.phase == "starting"))


def test_a_node_whose_workers_fail_again_and_again_is_used_last() -> None:
    story = running("a", "b", max_nodes=2, max_restarts=99, restart_wait_s=0, lease_s=50)
    story.join("c")
    for node_id in "bbabb":
        fails(story, node_id)
    assert story.order == ["a", "b"], "failures elsewhere break the row"
    fails(story, "b")
    assert story.order == ["a", "c"]
    last = ReasonCode.NODE_USED_LAST.reason("b", group="g", failures=3)
    assert story.said("node_used_last") == [last]
    assert story.told("b").reason == waiting.node_left_out(story.group.last_round, "b", last)
    fails(story, "a")
    assert story.order == ["a", "c"]
    story.leave("c")
    rejoin(story)
    assert story.order == ["a", "b"], "better than none"
    story.join("c", inc="c-2")
    fails(story, "b")
    story.undrain("b")
    assert fact(story, "left", "b") == "max_nodes b"


def test_one_that_cannot_start_again_and_again_costs_nothing_and_is_used_last() -> None:
    story = running("a", "b", min_nodes=1, max_restarts=1, restart_wait_s=0, lease_s=50)
    for number in range(3):
        story.failed("b", rank=-1, local_rank=-1, exit_code=None, message="no snapshots", final=True)
        story.leave("b")
        story.join("a")
        story.wait(1.1)
        assert (story.group.restarts, story.order) == (0, ["a"])
        assert len(story.said("node_used_last")) == (number == 2)
        story.started("a")
        story.join("b", inc=f"b{number}")
        story.wait(1.1)
        story.join("a")
        story.wait(1.1)
        assert story.order == ["a", "b"]
        story.started("a", "b")
