"""Where a node's time went."""

from hetagent.job.account import FIRST, STOPPING, Account, Spent, account_lines


def test_each_second_goes_to_one_thing() -> None:
    account = Account(10.0)
    account.trains(15.0)
    account.loses("gpu2 lost", 115.0)
    account.loses("a consequence", 116.0)
    account.trains(125.0)
    account.loses("rank 3 exited", 225.0)
    account.blames("gpu2 lost")
    account.trains(226.0)
    account.waits_for_others(326.0)
    account.loses(STOPPING, 328.0)
    spent = account.spent(329.0)
    assert spent == Spent(300.0, 2.0, (("gpu2 lost", 11.0), (FIRST, 5.0), (STOPPING, 1.0)))
    assert spent.total_s == 319.0
    assert account_lines(spent) == [
        "time     trained 5 min 0 s of 5 min 19 s here (94%)",
        "lost     11 s: gpu2 lost",
        "         5.0 s: waiting for the first round",
        "         1.0 s: stopping at the end",
        "         2.0 s: waiting for other nodes to finish",
    ]


def test_what_came_before_the_first_round_is_nobodys_fault() -> None:
    account = Account(0.0)
    account.blames("rank 3 exited")
    account.loses("gpu2 lost", 5.0)
    assert account.spent(7.0) == Spent(0.0, 0.0, ((FIRST, 7.0),))


def test_a_node_that_never_trained_has_no_account() -> None:
    assert account_lines(Account(0.0).spent(7.0)) == []


def test_cheap_and_long_causes_are_shortened() -> None:
    losses = [(f"cause {number}", 10.0 - number) for number in range(6)]
    lines = account_lines(Spent(100.0, 0.0, (("x" * 200 + "\ny", 20.0), *losses)))
    assert lines[1] == f"lost     20 s: {'x' * 117}..."
    assert lines[-1] == "         18 s: 3 more"
