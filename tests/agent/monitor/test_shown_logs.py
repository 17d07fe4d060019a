"""What the server is shown of what a worker has written."""

from hetagent.monitor.logs import MOST, MOST_OF_ALL, NOT_KEPT, NOTHING, logs
from hetrdzv.protocol import codec
from hetrdzv.protocol.stacks import StacksRequest


def test_the_end_in_whole_lines_without_secrets() -> None:
    written = {3: b"", 4: b"token sesame\n\x1b[31mred\x1b[0m\n", 5: b"line\n" * MOST, 6: b"x" * 2 * MOST}
    shown = {one.rank: one for one in logs(written, lambda rank: (written[rank], b""), ["sesame"])}
    assert (shown[3].text, shown[3].why) == ("", NOTHING)
    assert shown[4].text == "token [token]\nred"
    assert len(shown[5].text) <= MOST
    assert set(shown[5].text.splitlines()) == {"line"}
    assert shown[6].text == "x" * MOST


def test_silence_is_told_from_what_nobody_keeps() -> None:
    silent, lost = logs([0, 1], lambda rank: (b"", b" \n") if rank == 0 else None, [])
    assert (silent.why, lost.why) == (NOTHING, NOT_KEPT)


def test_both_streams_are_shown_however_long_one_is() -> None:
    (one,) = logs([0], lambda rank: (b"loss 3\n", b"warning\n" * MOST), [])
    assert one.text == "loss 3"
    assert set(one.stderr.splitlines()) == {"warning"}
    assert one.size <= MOST


def test_the_logs_of_the_largest_node_fit_into_a_request() -> None:
    for workers in (1, 64, 1024):
        found = logs(range(workers), lambda rank: ("\U0001f525".encode() * MOST, b""), [])
        assert len(found[-1].text) == min(MOST, MOST_OF_ALL // workers)
        body = StacksRequest(incarnation="i" * 128, number=1, stacks=tuple(found))
        assert len(codec.write(body, given=True)) < 1 << 20
