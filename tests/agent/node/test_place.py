"""A node that has lost its address offers its new one, and a node waits for a resolver that is not up yet."""

import socket
from collections.abc import Callable

import pytest

from hetagent.node import network, place
from hetagent.node.network import NamesAway, NetworkError
from hetagent.node.place import Place, find_place, patiently


def finding(*answers: tuple[str, str | None] | NetworkError) -> Callable[[], tuple[str, str | None]]:
    left = list(answers)

    def find() -> tuple[str, str | None]:
        answer = left.pop(0)
        if isinstance(answer, NetworkError):
            raise answer
        return answer

    return find


def having(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    monkeypatch.setattr(network, "interface_of", lambda address: "eth0" if address in addresses else None)


def test_an_address_that_is_still_here_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    having(monkeypatch, "10.0.0.2", "10.0.0.9")
    here = Place(finding(("10.0.0.2", "eth0")), fixed=False)
    assert not here.moved()
    assert (here.address, here.interface) == ("10.0.0.2", "eth0")


def test_a_lost_address_is_replaced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Place(finding(("10.0.0.2", "eth0"), ("10.0.0.9", "eth1")), fixed=False)
    having(monkeypatch, "10.0.0.9")
    assert here.moved()
    assert (here.address, here.interface) == ("10.0.0.9", "eth1")
    assert not here.moved()


def test_without_a_better_one_it_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Place(finding(("10.0.0.2", "eth0"), NetworkError("no route"), ("10.0.0.9", "eth0")), fixed=False)
    having(monkeypatch)
    assert not here.moved()
    assert here.address == "10.0.0.2"
    assert here.moved()


@pytest.mark.parametrize(("interface", "fixed"), [("eth0", True), (None, False)])
def test_a_given_address_and_one_behind_nat_never_change(
    monkeypatch: pytest.MonkeyPatch, interface: str | None, fixed: bool
) -> None:
    having(monkeypatch)
    assert not Place(finding(("192.0.2.1", interface)), fixed=fixed).moved()


def test_only_a_place_that_was_chosen_binds_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound to the interface towards the server, a cluster with several networks would use one of them only."""
    monkeypatch.setattr(network, "_gloos_choice", lambda: "10.0.0.2")
    servers = ("http://127.0.0.1:1",)

    def bound(local_addr: str | None, interface: str | None) -> dict[str, str]:
        return find_place(local_addr, interface, servers, 0.0, print).socket_env({})

    both = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
    assert bound("127.0.0.1", None) == bound(None, "lo") == both
    assert bound(None, None) == {}


def test_a_resolver_that_is_not_there_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place, "RESOLVE_PAUSE_S", 0.0)
    said: list[str] = []
    find = finding(NamesAway("cannot resolve 'a'"), NamesAway("cannot resolve 'a'"), ("10.0.0.2", None))
    assert patiently(find, 60.0, said.append) == ("10.0.0.2", None)
    assert said == ["cannot resolve 'a'; trying again for 60 s"]
    with pytest.raises(NamesAway):
        patiently(finding(NamesAway("cannot resolve 'a'")), 0.0, said.append)
    with pytest.raises(NetworkError):  # a wrong name is told at once
        patiently(finding(NetworkError("cannot resolve 'a'")), 60.0, said.append)


def test_of_several_servers_one_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    known = socket.getaddrinfo

    def lookup(host: str, *args: object, **kwargs: object) -> object:
        if host == "away":
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        if host == "wrong":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known(host, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    towards = network.local_address_towards_any
    assert towards(["http://away:1", "http://wrong:1", "http://127.0.0.1:1"]) == "127.0.0.1"
    with pytest.raises(NamesAway, match="cannot resolve 'away'"):
        towards(["http://wrong:1", "http://away:1"])
    with pytest.raises(NetworkError, match="cannot resolve 'wrong'") as caught:
        towards(["http://wrong:1", "http://wrong:2"])
    assert not isinstance(caught.value, NamesAway)
