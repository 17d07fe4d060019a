"""A node that has lost its address offers its new one, and a node waits for a resolver that is not up yet."""

import socket
from collections.abc import Callable

import pytest

from hetagent.node import address, network
from hetagent.node.address import AdvertisedAddress, find_address
from hetagent.node.network import NamesAway, NetworkError

Answer = tuple[str, str | None] | NetworkError


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Says what addresses this node has, and what is found in turn."""

    def set_up(*answers: Answer, having: tuple[str, ...] = ()) -> None:
        left = list(answers)

        def find(*asked: object) -> tuple[str, str | None]:
            answer = left.pop(0)
            if isinstance(answer, NetworkError):
                raise answer
            return answer

        monkeypatch.setattr(network, "offered_address", find)
        monkeypatch.setattr(network, "interface_of", lambda address: "eth0" if address in having else None)

    return set_up


def test_an_address_that_is_still_here_is_kept(node: Callable[..., None]) -> None:
    node(("10.0.0.2", "eth0"), having=("10.0.0.2", "10.0.0.9"))
    here = AdvertisedAddress(None, None, [])
    assert not here.moved()
    assert (here.address, here.interface) == ("10.0.0.2", "eth0")


def test_a_lost_address_is_replaced_once(node: Callable[..., None]) -> None:
    node(("10.0.0.2", "eth0"), NetworkError("no route"), ("10.0.0.9", "eth1"), having=("10.0.0.9",))
    here = AdvertisedAddress(None, None, [])
    assert not here.moved()
    assert here.address == "10.0.0.2"
    assert here.moved()
    assert (here.address, here.interface) == ("10.0.0.9", "eth1")
    assert not here.moved()


@pytest.mark.parametrize(("given", "interface"), [("192.0.2.1", "eth0"), (None, None)])
def test_a_given_address_and_one_behind_nat_never_change(
    node: Callable[..., None], given: str | None, interface: str | None
) -> None:
    node(("192.0.2.1", interface))
    assert not AdvertisedAddress(given, None, []).moved()


def test_only_an_address_that_was_chosen_binds_nccl(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound to the interface towards the server, a cluster with several networks would use one of them only."""
    monkeypatch.setattr(network, "_gloos_choice", lambda: "10.0.0.2")
    servers = ("http://127.0.0.1:1",)

    def bound(local_addr: str | None, interface: str | None) -> dict[str, str]:
        return find_address(local_addr, interface, servers, 0.0, print).socket_env({})

    both = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "=lo"}
    assert bound("127.0.0.1", None) == bound(None, "lo") == both
    assert bound(None, None) == {}


def test_a_resolver_that_is_not_there_yet(node: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(address, "RESOLVE_PAUSE_S", 0.0)
    away, said = NamesAway("cannot resolve 'a'"), list[str]()
    node(away, away, ("10.0.0.2", None), away, NetworkError("cannot resolve 'a'"))
    assert find_address(None, None, [], 60.0, said.append).address == "10.0.0.2"
    assert said == ["cannot resolve 'a'; trying again for 60 s"]
    with pytest.raises(NamesAway):
        find_address(None, None, [], 0.0, said.append)
    with pytest.raises(NetworkError):  # a wrong name is told at once
        find_address(None, None, [], 60.0, said.append)


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
