"""Where a node's time went."""

from hetagent.roundhook import Motion
from hetagent.runloop.account import FINISHING, FIRST, STARTING_UP, STOPPING, Account, Spent, account_lines


def test_each_second_goes_to_one_thing() -> None:
    account = Account(10.0)
    account.runs(15.0)
    account.loses("gpu2 lost", 115.0, Motion(25.0, 115.0))
    account.loses("a consequence", 116.0, Motion(25.0, 115.0))
    account.runs(125.0)
    account.loses("rank 3 hangs", 225.0, Motion(130.0, 205.0))
    account.runs(226.0)
    account.waits_for_others(326.0, Motion(227.0, 323.0))
    account.loses(STOPPING, 328.0, None)
    spent = account.spent(329.0)
    losses = {
        STARTING_UP: 16.0,
        "rank 3 hangs": 21.0,
        "gpu2 lost": 10.0,
        FIRST: 5.0,
        FINISHING: 3.0,
        STOPPING: 1.0,
    }
    assert (spent.trained_s, spent.others_s, dict(spent.lost), spent.unseen_s) == (261.0, 2.0, losses, 0.0)
    assert spent.total_s == 319.0
    assert account_lines(spent) == [
        "time     trained 4 min 21 s of 5 min 19 s here (81.8 %)",
        "lost     21 s: rank 3 hangs",
        "         16 s: starting up, before the first collective or step",
        "         10 s: gpu2 lost",
        "         5.0 s: waiting for the first round",
        "         4.0 s: 2 other causes",
        "         2.0 s: waiting for other nodes to finish",
    ]


def test_a_hang_is_not_the_fault_of_who_ends_it() -> None:
    account = Account(0.0)
    account.runs(0.0)
    account.loses("a restart was requested", 100.0, Motion(0.0, 40.0), planned=True)
    assert account.spent(103.0).lost == ((FINISHING, 60.0), ("a restart was requested", 3.0))


def test_time_hung_is_said_to_be_that_once_it_was_noticed() -> None:
    account = Account(0.0)
    account.runs(0.0)
    account.hangs("", 5.0, Motion())
    account.hangs("hanging: rank 0 waits for rank 1", 40.0, Motion(1.0, 20.0))
    account.hangs("", 60.0, Motion(1.0, 55.0))  # it goes on
    account.hangs("hanging: rank 0 waits for rank 1", 90.0, Motion(1.0, 70.0))
    account.hangs("hanging: rank 0 waits for rank 2", 95.0, Motion(1.0, 70.0))
    account.loses("a restart was requested", 100.0, Motion(1.0, 70.0), planned=True)
    spent = account.spent(103.0)
    assert spent.trained_s == 19.0 + 10.0
    assert dict(spent.lost) == {
        STARTING_UP: 1.0,
        "hanging: rank 0 waits for rank 1": 40.0,
        "hanging: rank 0 waits for rank 2": 30.0,
        "a restart was requested": 3.0,
    }


def test_a_hang_that_ends_well_before_anybody_looks_is_no_idling() -> None:
    account = Account(0.0)
    account.runs(0.0)
    account.hangs("hanging: rank 0 waits for rank 1", 40.0, Motion(1.0, 20.0))
    account.waits_for_others(41.0, Motion(1.0, 41.0))
    assert dict(account.spent(41.0).lost) == {STARTING_UP: 1.0, "hanging: rank 0 waits for rank 1": 21.0}


def test_what_took_no_time_is_not_listed() -> None:
    spent = Spent(10.0, 0.04, (("gpu2 lost", 0.06), (STOPPING, 0.04)))
    assert account_lines(spent)[1:] == ["lost     0.1 s: gpu2 lost"]


def test_what_a_round_is_judged_to_have_ended_for() -> None:
    account = Account(10.0)
    account.runs(10.0)
    account.loses("rank 3 exited", 15.0, Motion(10.0, 15.0))
    account.blames("gpu2 lost")
    assert account.spent(20.0).lost == (("gpu2 lost", 5.0),)


def test_workers_that_did_nothing_were_only_starting_up() -> None:
    account = Account(0.0)
    account.runs(0.0)
    account.loses("rank 0 exited", 4.0, Motion())
    spent = account.spent(4.0)
    assert spent == Spent(0.0, 0.0, ((STARTING_UP, 4.0),))
    assert account_lines(spent)[0] == "time     trained 0 s of 4.0 s here (0 %)"


def test_what_took_next_to_no_time_is_not_said_to_have_taken_none() -> None:
    lines = account_lines(Spent(0.03, 0.0, ((STARTING_UP, 2.0), ("rank 0 exited", 0.04)), 0.02))
    assert lines == ["time     trained < 0.1 s of 2.1 s here (1.4 %)", f"lost     2.0 s: {STARTING_UP}"]


def test_what_nobody_can_see_is_said_to_be_unknown() -> None:
    account = Account(0.0)
    account.runs(0.0)
    account.loses("rank 0 exited", 40.0, None)
    assert account_lines(account.spent(50.0)) == [
        "time     ran 40 s of 50 s here; how much of that was training is unknown",
        "lost     10 s: rank 0 exited",
    ]
    account.runs(50.0)
    account.loses("rank 0 exited", 100.0, Motion(60.0, 100.0))
    assert account_lines(account.spent(100.0))[0] == (
        "time     trained 40 s of 1 min 0 s here (66.6 %); whether it trained in another 40 s is unknown"
    )


def test_what_came_before_the_first_round_is_nobodys_fault() -> None:
    account = Account(0.0)
    account.blames("rank 3 exited")
    account.loses("gpu2 lost", 5.0, None)
    assert account.spent(7.0) == Spent(0.0, 0.0, ((FIRST, 7.0),))


def test_a_node_that_never_trained_has_no_account() -> None:
    assert account_lines(Account(0.0).spent(7.0)) == []


def test_cheap_and_long_causes_are_shortened() -> None:
    losses = [(f"cause {number}", 10.0 - number) for number in range(6)]
    lines = account_lines(Spent(100.0, 0.0, (("x" * 200 + "\ny", 20.0), *losses)))
    assert lines[1] == f"lost     20 s: {'x' * 117}..."
    assert lines[-1] == "         18 s: 3 other causes"
