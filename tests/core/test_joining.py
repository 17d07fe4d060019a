"""Who may join, who waits, who ends a round; old and doubled joins; drain and leave; jobs in turn (rules 3c, 6, 10)."""

import pytest

from hetrdzv.core.commands import Cancel, Leave
from hetrdzv.protocol.errors import (
    InvalidSpec,
    SettingDifference,
    SpecConflict,
    StaleIncarnation,
)
from hetrdzv.protocol.reasons import events
from hetrdzv.protocol.reasons.reason import ReasonCode
from hetrdzv.protocol.settings import SETTINGS
from tests.core.driver import Story, bare, running
from tests.core.script import fact, play

CASES = {
    "joiners come in one batch per last call": """
        running a last_call_s=10; join b; left b = joins_next_round b; wait 6; join c; wait 3.9; ended = None
        wait 0.1; ended = joined; why a = nodes_joined b c; join a; order = a b c; restarts = 0""",
    "a joiner beyond the maximum is a spare": """
        running a b max_nodes=2; join c; told c = wait waiting; left c = max_nodes c; wait 30; ended = None
        lose b; join a; order = a c""",
    "there is none once a member has succeeded": """
        running a b; join c; succeeded a; wait 30; ended = None; left c = others_succeeded c""",
    "a suspect joiner ends nothing until it is heard": """
        running a last_call_s=10; join b; wait 9.5; cut b; wait 0.5; ended = None
        later 0.1; renew b; ended = joined""",
    "a doubled join of before does not bring the old port back": """
        running a b; restart; join a port=5000; join a after=0 port=4000; port a = 5000; join b
        lose a; join a after=1 port=5000; phase a = lost; join a after=2 port=6000; phase a = ready; port a = 6000""",
    "a replaced agent is not heard again": """
        group min_nodes=3; join a inc='old'; cut a; join a inc='new' port=5000; cut a
        StaleIncarnation: join a inc='old'
        lose a; StaleIncarnation: join a inc='old'
        join a inc='newest'; phase a = ready""",
    "an agent that was restarted ends its round": """
        running a b; cut b; join b inc='b-2'; ended = lost; why a = node_lost b; told b = wait waiting
        StaleIncarnation: join b inc='b-1'
        join a; order = a b; restarts = 0""",
    "a node id is in use until its lease ends": """
        group min_nodes=2; join a inc='one'; NodeIdInUse: join a inc='two'
        later 5; NodeIdInUse: join a inc='two'
        later 0.001; join a inc='two'; phase a = ready""",
    "a lost node that returns has to stop first": """
        running a b; lose b; told b = stop lost; renew b; phase b = lost; join b after=0; phase b = lost
        join b after=1; told b = wait waiting; join a; state = starting""",
    "a drained node exits and stays out": """
        running a b min_nodes=1; drain b; told b = exit drained 4; why b = node_drained b; ended = drained
        leave b; join a; order = a; join b inc='b-2'; told b = exit drained 4; wait 30; ended = None
        leave b; undrain b; join b inc='b-3'; wait 1; ended = joined""",
    "SIGTERM: first leaving, then left": """
        running a b min_nodes=1; leaving b; ended = left; why a = node_leaving b; told b = stop round_ended
        join a; why = stopping b; leaving b; leave b; leave b; said node_left = 1; order = a; told b = exit left 1""",
    "a lost node that leaves is not taken for a join that it sent before": """
        group min_nodes=2; join a; lose a; leaving a; join a; join b; wait 20
        said node_returned = 1; last_round = 0""",
    # -- nodes that are not ready
    "a node that is not ready takes part once it is": """
        group min_nodes=2 max_nodes=2; join a; join b not_ready='Xid'; told b = wait not_ready; why a = too_few_nodes
        join b; told b = start round_formed; said node_ready = 1; order = a b""",
    "the others begin without it, and take it in later": """
        group last_call_s=10; join a; join b not_ready='Xid'; wait 10.1; started a; order = a
        left b = node_not_ready b
        join b; left b = joins_next_round b; wait 10.1; told a = stop round_ended""",
    "a spare that is no longer ready restarts nobody and fills no gap": """
        group max_nodes=2; joins a b; started a b; join c; join c not_ready='Xid'; told c = wait not_ready
        said node_not_ready = 1; leave b; join a; order = a""",
    "who joined as ready is withdrawn before a round forms, not after": """
        group min_nodes=2 max_nodes=2; join a; join a not_ready='Xid'; join b; state = waiting; join a
        state = starting
        join a after=0 not_ready='Xid'; told a = start round_formed; phase a = starting""",
    "a survivor that is not ready has stopped all the same": """
        group; joins a b; wait 10.1; started a; failed b; join b not_ready='Xid'; restarts = 0
        join a; restarts = 1; order = a""",
    "a survivor that is being checked has as long as it has said": """
        group stop_timeout_s=30 lease_s=3600; join a; join b ready_within_s=60; wait 10.1; started a b; failed a
        renew a b; join a; wait 94.9; state = waiting; why = stopping b; until = 0.1; wait 0.2; order = a""",
    # -- a finished job
    "a new agent begins a new job once the old ones are gone": """
        group min_nodes=2 last_call_s=0; joins a b; succeeded a b; leave a; GroupFinishing: join a inc='a-2'
        leave b; join a inc='a-2' spec={'min_nodes':1,'max_nodes':1,'max_restarts':7}; told a = start round_formed
        job = 2; last_round = 2; restarts = 0; spec max_restarts = 7""",
    "or have expired": """
        group min_nodes=2 last_call_s=0; joins a b; succeeded a b; later 5; GroupFinishing: join c
        later 0.001; join c; job = 2""",
    "so it does after a failed one": """
        running a max_restarts=1; failed a; join a; failed a; join a; state = failed; leave a
        join a inc='a-2'; wait 1; state = starting; restarts = 0""",
    "and where a failure is judged only then": """
        running a max_restarts=0; failed a; later 5.01; join a inc='a-2' spec={'max_restarts':5}
        spec max_restarts = 5; state = waiting""",
    "a finished group answers its nodes again and again": """
        group last_call_s=0; join a; succeeded a; renew a; join a after=1; told a = exit succeeded 0; renew a
        pass_by 6; told a = exit succeeded 0""",
    "an old node that comes late is told how its job ended": """
        group min_nodes=2 last_call_s=0; joins a b; succeeded a b; pass_by 6; join a inc='a-2'; join b after=1
        told b = exit succeeded 0; why b = earlier_job; phase b = lost""",
    "a group made by PUT stays finished until its restart": """
        group last_call_s=0; put min_nodes=1 last_call_s=0; join a; succeeded a; GroupFinishing: restart
        leave a; join a inc='a-2'; told a = exit succeeded 0; leave a; join a inc='a-3'; told a = exit succeeded 0
        leave a; job = 1; wait 1; join b; restart; state = waiting; job = 2; told b = exit succeeded 0  # it came late
        wait 30; state = waiting; join a inc='a-4'; last_round = 2""",
    "a cancelled one stays cancelled": """
        running a; cancel; leave a; join a inc='a-2'; told a = exit cancelled 3; leave a; put min_nodes=1
        state = cancelled; restart; join a inc='a-3'; wait 1; state = starting""",
    "PUT creates once": """
        group; put min_nodes=2; put min_nodes=2; said group_created = 1; SpecConflict: put min_nodes=3""",
    "PUT on a finished group that agents made begins a new job": """
        group last_call_s=0; join a; succeeded a; leave a; put min_nodes=3; state = waiting; job = 2
        spec min_nodes = 3""",
    # -- settings of who comes next
    "a job goes on with other settings once nobody is left": """
        running a b max_restarts=3; failed b; joins a b; started a b; restarts = 1; leave a; leave b
        join b inc='b-2' spec={'min_nodes':2,'lease_s':9.0}; join a inc='a-2' spec={'min_nodes':2,'lease_s':9.0}
        wait 1
        last_round = 3; job = 1; restarts = 1; order = a b; spec lease_s = 9.0; spec max_restarts = 3
        said settings_changed = 1""",
    "nodes that are overdue are not left": """
        running a b; later 5; SpecConflict: join c spec={'min_nodes':1}
        later 0.01; join c spec={'min_nodes':1}; spec min_nodes = 1""",
    "a node that is drained changes no settings, nor holds a group to them": """
        running a b; leave a; leave b; drain a; join a inc='a-2' spec={'min_nodes':1}; told a = exit drained 4
        spec min_nodes = 2; join b inc='b-2' spec={'min_nodes':1}; spec min_nodes = 1""",
    "bounds do not change under a round": """
        group command=['train.py'] last_call_s=0; join a wants_command=True; wait 1; order = a
        SpecConflict: join b spec={'min_nodes':2}
        SpecConflict: join b spec={'world_size_multiple':2}""",
    "another script is refused while a node of the role lives": """
        group; join a script='train.py'; SpecConflict: join b script='eval.py'
        join b script='train.py'; join c script='eval.py' role='eval'; join d
        SpecConflict: join e script='train.py' role='eval'""",
}


@pytest.mark.parametrize("case", CASES)
def test_joining(case: str) -> None:
    play(CASES[case])


def test_a_node_whose_agent_died_is_lost_for_good() -> None:
    """Its guardian says so; what it had sent before comes late."""
    story = running("a", "b")
    for _ in range(2):
        story.do(Leave(node_id="b", incarnation="b-1", why="its agent died", died=True))
    assert (story.ended, fact(story, "said", "node_lost")) == ("lost", "1")
    with pytest.raises(StaleIncarnation, match="restart its agent"):
        story.join("b", inc="b-1")
    story.join("b", inc="b-2")
    story.join("a")
    assert (story.order, story.group.restarts) == (["a", "b"], 0)


def test_the_event_of_a_join_says_why_its_node_is_not_ready() -> None:
    story = Story(min_nodes=2)
    story.join("b", not_ready="Xid 79")
    assert story.said("node_joined") == [events.node_joined("b", 1, "10.0.0.1", "Xid 79")]


def test_members_of_the_round_are_not_forgotten() -> None:
    story = running("a", "b", min_nodes=1, on_join="spare")
    story.succeeded("b")
    story.leave("b")
    for number in range(200):
        story.join(f"pod{number}")
        story.leave(f"pod{number}")
    assert "b" in story.group.nodes


# -- settings ------------------------------------------------------------------------------------------------


def test_first_to_name_a_field_fixes_it_and_a_refusal_says_what_differs() -> None:
    story = Story(min_nodes=2, max_restarts=5)
    story.join("a")
    story.join("b", spec={"min_nodes": 2})
    for name, fixed, given in (("max_restarts", 5, 6), ("lease_s", 5, 9)):
        with pytest.raises(SpecConflict) as refused:
            story.join("c", spec={name: given})
        conflict = refused.value.conflict
        assert conflict.differences == (SettingDifference(name, str(fixed), str(given)),)
        assert (conflict.nodes, conflict.by_put, conflict.retry_for_s) == (("a", "b"), False, None)
    assert str(refused.value).endswith("use another group, or wait until its job is over")
    made = Story()
    made.put(min_nodes=2)
    with pytest.raises(SpecConflict, match=r": hetctl delete g$") as refused:
        made.join("a", spec={"min_nodes": 1})
    assert refused.value.conflict.by_put


def test_open_group_waits_for_a_command() -> None:
    story = Story()
    told = story.join("a", wants_command=True, spec={"min_nodes": 2})
    assert told.reason == story.reason == ReasonCode.NO_COMMAND.reason("a", group="g")
    story.join("b", wants_command=True)
    story.wait(1000)
    assert story.group.state == "waiting"
    assert story.deadline_in == pytest.approx(5.0)
    with pytest.raises(SpecConflict):
        story.put(min_nodes=3, command=("train.py",))
    story.put(command=("train.py", "--lr", "1"), max_restarts=9)
    story.wait(10)
    start = story.start("a")
    assert (start.command, start.max_restarts) == (("train.py", "--lr", "1"), 9)
    with pytest.raises(SpecConflict) as refused:
        story.put(command=("other.py",))
    assert refused.value.conflict.differences == (
        SettingDifference("command", "'train.py --lr 1'", "'other.py'"),
    )
    with pytest.raises(SpecConflict):
        story.put(max_restarts=8)


@pytest.mark.parametrize(
    ("going", "retry_for_s"), [("leaving a; cut b", 40.0), ("cut a; cut b", 40.0), ("leaving a", None)]
)
def test_nodes_on_their_way_out_are_worth_a_wait(going: str, retry_for_s: float | None) -> None:
    story = play(f"running a b; {going}")
    with pytest.raises(SpecConflict) as refused:
        story.join("c", spec={"min_nodes": 1})
    assert refused.value.conflict.retry_for_s == retry_for_s


def test_settings_that_replace_those_of_a_group_without_nodes() -> None:
    story = play("running a b max_nodes=2; leave a; leave b")
    with pytest.raises(InvalidSpec) as refused:
        story.join("a", inc="a-2", spec={"max_nodes": 1})
    assert refused.value.field == "max_nodes"
    story.join("a", inc="a-2", spec={"min_nodes": 1, "max_nodes": 1})
    assert (story.start("a").world_size, story.group.last_round, story.group.job) == (1, 2, 1)
    differ = (SettingDifference("min_nodes", "2", "1"), SettingDifference("max_nodes", "2", "1"))
    assert story.said("settings_changed") == [bare(events.settings_changed("a", differ))]
    story.leave("a")
    story.put(max_nodes=5)
    assert story.group.by_put
    _, by_person = story.said("settings_changed")
    assert by_person.nodes == ()


def test_who_cancelled_is_said_to_who_comes_later() -> None:
    story = running("a")
    story.do(Cancel("an admin at 10.0.0.9"))
    assert story.told("a").reason == ReasonCode.GROUP_CANCELLED.reason(by="an admin at 10.0.0.9")
    story.leave("a")
    story.wait(60)
    told = story.join("a", inc="a-2")
    assert told.reason == ReasonCode.JOINED_TOO_LATE.reason(
        group="g", outcome="cancelled", by="an admin at 10.0.0.9"
    )
    assert told.came_late
    story.leave("a")
    story.restart()
    group = story.group
    assert (group.group_id, group.created_at, group.cancellation) == ("g", 100.0, None)
    assert group.fixed_settings == SETTINGS.keys()
