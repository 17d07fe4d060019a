"""A node offers an address of its own and a port that it holds, and binds gloo and NCCL only where that helps."""

import errno
import os
import socket
from collections.abc import Callable
from types import SimpleNamespace

import psutil
import pytest

from hetagent.node import network
from hetagent.node.network import (
    AdvertisedAddress,
    NetworkError,
    ResolverUnavailable,
    find_address,
    hold_port,
    parse_port_range,
)

INTERFACES = {
    "lo": [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1"), (socket.AF_INET, "10.9.9.9")],
    "eth0": [
        (psutil.AF_LINK, "02:42:ac:11:00:02"),
        (socket.AF_INET, "10.0.0.3"),
        (socket.AF_INET6, "fe80::1%eth0"),
        (socket.AF_INET6, "fd00::3"),
    ],
    "ib0": [(socket.AF_INET6, "fe80::2%ib0")],
    "down0": [(psutil.AF_LINK, "02:42:ac:11:00:03")],
}


@pytest.fixture
def interfaces(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {
        name: [SimpleNamespace(family=family, address=address) for family, address in addresses]
        for name, addresses in INTERFACES.items()
    }
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: found)


def has_ipv6() -> bool:
    try:
        hold_port("::1", None).close()
    except NetworkError:
        return False
    with socket.socket(socket.AF_INET6) as sock:
        return sock.connect_ex(("::1", 1)) == errno.ECONNREFUSED


def resolving(monkeypatch: pytest.MonkeyPatch, *places: tuple[str, int]) -> None:
    found = [
        (socket.AF_INET6 if ":" in host else socket.AF_INET, 1, 6, "", (host, port)) for host, port in places
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)


# -- addresses -----------------------------------------------------------------------------------------------


def test_towards_a_server_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with hold_port("127.0.0.2", None) as sock, socket.socket() as refusing:
        refusing.bind(("127.0.0.1", 0))
        host, port = sock.getsockname()
        assert network.find_local_address(f"http://{host}:{port}") == "127.0.0.1"
        resolving(monkeypatch, ("127.0.0.1", refusing.getsockname()[1]), (host, port))
        assert network.find_local_address("http://both:1") == "127.0.0.1"


def test_towards_a_server_that_does_not_answer_yet() -> None:
    for url in ("http://127.0.0.1:1", "https://127.0.0.1", "http://localhost:1"):
        assert network.find_local_address(url) in ("127.0.0.1", "::1")
    if has_ipv6():
        assert network.find_local_address("http://[::1]:1") == "::1"


def test_towards_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NetworkError, match=r"cannot resolve 'a{70}\.example' of the server's URL"):
        network.find_local_address(f"http://{'a' * 70}.example:1")

    def unreachable(self: socket.socket, address: object) -> None:
        raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))

    monkeypatch.setattr(socket.socket, "connect", unreachable)
    with pytest.raises(
        NetworkError, match=r"no route to the server .*127\.0\.0\.1: Network is unreachable.*--local-addr"
    ):
        network.find_local_address("http://127.0.0.1:1")


@pytest.mark.usefixtures("interfaces")
def test_addresses_and_interfaces() -> None:
    of = {"10.0.0.3": "eth0", "fd00:0::0003": "eth0", "fe80::2%ib0": "ib0", "::1": "lo"}
    of |= {"10.0.0.4": None, "a-name": None, "127.0.0.1": "lo"}
    of |= {"10.9.9.9": None}  # gloo bound to lo would listen on 127.0.0.1
    assert {address: network.find_interface(address) for address in of} == of
    assert network.find_interface_address("eth0") == "10.0.0.3"
    assert network.find_interface_address("ib0") == "fe80::2%ib0"
    there = r"choose one of .*eth0 \(10\.0\.0\.3\)"
    with pytest.raises(NetworkError, match=rf"interface 'eth9' does not exist here: {there}"):
        network.find_interface_address("eth9")
    with pytest.raises(NetworkError, match=rf"interface 'down0' has no IP address: {there}"):
        network.find_interface_address("down0")


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, str]]:
    """Says what is found in turn; returns the interfaces of this node's addresses, which may change."""

    def set_up(*found: str | NetworkError, **interfaces: str) -> dict[str, str]:
        left, there = list(found), dict(interfaces)

        def find(url: object) -> str:
            answer = left.pop(0)
            if isinstance(answer, NetworkError):
                raise answer
            return answer

        monkeypatch.setattr(network, "find_local_address", find)
        monkeypatch.setattr(network, "find_interface", there.get)
        return there

    return set_up


def test_a_resolver_that_is_not_there_yet(
    node: Callable[..., dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(network, "RESOLVE_PAUSE_S", 0.0)
    away, said = ResolverUnavailable("cannot resolve 'a'"), list[str]()
    node(away, away, "10.0.0.2", away, NetworkError("cannot resolve 'a'"))
    assert find_address(None, None, ["a"], 60.0, said.append).address == "10.0.0.2"
    assert said == ["cannot resolve 'a'; trying again for 60 s"]
    with pytest.raises(ResolverUnavailable):
        find_address(None, None, ["a"], 0.0, said.append)
    with pytest.raises(NetworkError):  # a wrong name is told at once
        find_address(None, None, ["a"], 60.0, said.append)


def test_an_address_of_another_machine_is_noted_since_workers_may_wait_for_it() -> None:
    said = list[str]()
    for address in ("127.0.0.1", "::1", "a-name", "192.0.2.7"):
        assert find_address(address, None, [], 0.0, said.append).address == address
    assert [text.split()[1] for text in said] == ["192.0.2.7"]


def test_of_several_servers_one_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    known = socket.getaddrinfo

    def lookup(host: str, *args: object, **kwargs: object) -> object:
        if host == "away":
            raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
        if host == "wrong":
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return known(host, *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(socket, "getaddrinfo", lookup)

    def towards(urls: list[str]) -> str:
        return find_address(None, None, urls).address

    assert towards(["http://away:1", "http://wrong:1", "http://127.0.0.1:1"]) == "127.0.0.1"
    with pytest.raises(ResolverUnavailable, match="cannot resolve 'away'"):
        towards(["http://wrong:1", "http://away:1"])
    with pytest.raises(NetworkError, match="cannot resolve 'wrong'") as caught:
        towards(["http://wrong:1", "http://wrong:2"])
    assert not isinstance(caught.value, ResolverUnavailable)


def test_gloo_is_bound_to_the_interface_of_the_address_and_nccl_to_one_that_was_chosen(
    node: Callable[..., dict[str, str]],
) -> None:
    """NCCL bound to the interface towards the server would use one of several networks only."""
    node("a", a="eth0")
    both = {"GLOO_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_IFNAME": "=eth0"}
    chosen = find_address("a", None, [])
    assert chosen.socket_env({}) == both
    assert chosen.socket_env({"NCCL_SOCKET_IFNAME": "ib"}) == {"GLOO_SOCKET_IFNAME": "eth0"}
    assert chosen.socket_env({"GLOO_SOCKET_IFNAME": "ib0"}) == {"NCCL_SOCKET_IFNAME": "=eth0"}
    assert find_address(None, "lo", []).socket_env({})["NCCL_SOCKET_IFNAME"] == "=lo"
    assert find_address("behind NAT", None, []).socket_env({}) == {}
    assert find_address(None, None, ["a"]).socket_env({}) == {"GLOO_SOCKET_IFNAME": "eth0"}


@pytest.mark.usefixtures("interfaces")
def test_nothing_is_bound_to_the_loopback_interface_where_the_nodes_own_address_is_on_it() -> None:
    """With routing on the host; a person may still choose it."""
    assert find_address("10.9.9.9", None, []).socket_env({}) == {}
    assert find_address(None, "lo", []).socket_env({})["GLOO_SOCKET_IFNAME"] == "lo"
    assert find_address("127.0.0.1", None, []).socket_env({})["GLOO_SOCKET_IFNAME"] == "lo"


@pytest.mark.usefixtures("interfaces")
def test_only_an_address_that_an_interface_had_can_be_lost() -> None:
    kept = [
        ("10.0.0.3", "eth0"),
        ("10.9.9.9", "lo"),
        ("fe80::2%ib0", "ib0"),
        ("192.0.2.7", None),
        ("a-name", None),
    ]
    for address, interface in kept:
        assert AdvertisedAddress(address, interface, is_chosen=False).describe_address_loss() == ""
    lost = AdvertisedAddress("10.0.0.4", "eth0", is_chosen=False)
    assert lost.describe_address_loss() == "its address 10.0.0.4 is gone: restart it"


# -- ports ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("29500-29600", (29500, 29600)),
        (" 1 - 65535 ", (1, 65535)),
        ("29500", (29500, 29500)),
        ("1-2-3", "not of the form"),
        ("29500-", "not of the form"),
        ("0-5", "is not within 1-65535"),
        ("5-65536", "is not within 1-65535"),
        ("9-5", "is not within 1-65535, the smaller one first"),
    ],
)
def test_port_ranges(text: str, read: tuple[int, int] | str) -> None:
    if isinstance(read, tuple):
        assert parse_port_range(text) == read
    else:
        with pytest.raises(ValueError, match=f"port range '{text}' .*{read}"):
            parse_port_range(text)


def test_a_held_port_is_ours_alone() -> None:
    with hold_port("127.0.0.1", None) as sock:
        host, port = sock.getsockname()
        assert host == "127.0.0.1"
        assert not os.get_inheritable(sock.fileno())
        with socket.socket() as peer:
            assert peer.connect_ex((host, port)) == 0
        with socket.socket() as other:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            with pytest.raises(OSError, match="in use"):
                other.bind((host, port))
    if has_ipv6():
        with hold_port("::1", None) as sock:
            assert sock.getsockname()[0] == "::1"


@pytest.mark.parametrize("address", ["192.0.2.7", "2001:db8::7", "a-name-that-only-peers-resolve"])
def test_an_address_that_is_not_ours_is_offered_by_all_of_ours(address: str) -> None:
    with hold_port(address, None) as sock:
        assert sock.getsockname()[0] in ("0.0.0.0", "::")
        if address != "2001:db8::7":
            with socket.create_connection(("127.0.0.1", sock.getsockname()[1]), timeout=5):
                pass


def free_range(size: int) -> tuple[int, int]:
    """Consecutive ports that are free now, below the range that the kernel assigns from."""
    for first in range(21_000, 31_000, size):
        held = []
        try:
            for port in range(first, first + size):
                held += [socket.create_server(("127.0.0.1", port))]
        except OSError:
            continue
        finally:
            for sock in held:
                sock.close()
        return first, first + size - 1
    raise AssertionError("no free ports")


def test_a_range_gives_every_free_port_and_then_says_so() -> None:
    first, last = ports = free_range(4)
    held = [hold_port("127.0.0.1", ports) for _ in range(4)]
    assert sorted(sock.getsockname()[1] for sock in held) == list(range(first, last + 1))
    says = rf"no free port in {first}-{last} on 127\.0\.0\.1 .*in use.*--port-range"
    with pytest.raises(NetworkError, match=says):
        hold_port("127.0.0.1", ports)
    for sock in held:
        sock.close()
    order = set()
    for _ in range(20):
        with hold_port("127.0.0.1", ports) as sock:
            order.add(sock.getsockname()[1])
    assert len(order) > 1, "nodes on one host do not race"
