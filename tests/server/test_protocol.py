"""Rules that servers, clients and agents share: ids, addresses, a launcher's daemon."""

import pytest

from hetrdzv.protocol.codec import MalformedJson, validate_value
from hetrdzv.protocol.requests import (
    MAX_CHARACTERS,
    MAX_WORDS,
    JoinRequest,
    SpecFields,
    explain_daemon_refusal,
)
from hetrdzv.protocol.settings import DEFAULT_SPEC, SETTINGS
from hetrdzv.protocol.texts.ids import MAX_ID_LENGTH, check_id, is_id, is_loopback


@pytest.mark.parametrize("value", ["a", "0", "_", "-", "gpu2.rack-1", ".a", "a.", "..a", "x" * MAX_ID_LENGTH])
def test_valid_ids(value: str) -> None:
    assert check_id(value) == value
    join = JoinRequest(incarnation=value, slots=1, address="x", port=1)
    assert validate_value(JoinRequest, join) == join


@pytest.mark.parametrize(
    "value", ["", ".", "..", "...", "a/b", "a b", "a\n", "\n", "é", "a%41", "x" * (MAX_ID_LENGTH + 1)]
)
def test_invalid_ids(value: str) -> None:
    assert not is_id(value)
    with pytest.raises(ValueError, match="must be 1 to 128 letters, digits"):
        check_id(value)
    with pytest.raises(MalformedJson, match="incarnation"):
        validate_value(JoinRequest, JoinRequest(incarnation=value, slots=1, address="x", port=1))


@pytest.mark.parametrize(
    ("addresses", "loopback"),
    [
        ("127.0.0.1 127.9.9.9 ::1 0:0:0:0:0:0:0:1 0000:0000:0000:0000:0000:0000:0000:0001 ::0001", True),
        ("localhost a.localhost", True),
        ("128.0.0.1 10.127.0.1 1270.0.0.1 fe80::1 fe80::1%eth0 :: ::2", False),
        ("gpu1 localhosts 127.0.0.1.example.org", False),
    ],
)
def test_which_addresses_are_loopback(addresses: str, loopback: bool) -> None:
    assert [address for address in addresses.split() if is_loopback(address) is not loopback] == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "a round's master may run only orted on other nodes, not nothing"),
        (("sh", "-c", "orted"), "a round's master may run only orted on other nodes, not 'sh'"),
        (("orted/sh",), "not 'orted/sh'"),
        (("/usr/bin/xorted",), "not '/usr/bin/xorted'"),
        (("orted", "a\0b"), "NUL"),
        (("orted", *["x"] * MAX_WORDS), f"at most {MAX_WORDS} words"),
        (("orted", "x" * (MAX_CHARACTERS - 4)), f"{MAX_CHARACTERS} characters"),
        (("/usr/bin/orted", "x" * (MAX_CHARACTERS - len("/usr/bin/orted"))), None),
        (("orted", *["x"] * (MAX_WORDS - 1)), None),
    ],
)
def test_commands_that_a_node_is_asked_to_run_or_not(words: tuple[str, ...], says: str | None) -> None:
    refusal = explain_daemon_refusal(words)
    assert refusal is None if says is None else says in (refusal or "")


def test_every_setting_of_a_group_can_be_sent() -> None:
    """What a body may have is made from the core's table: a new setting is added in one place."""
    values = {name: getattr(DEFAULT_SPEC, name) for name in SETTINGS}
    assert validate_value(SpecFields, SpecFields(**values)) == values
    assert validate_value(SpecFields, SpecFields()) == {}
