"""TLS between real clients and a real server: trust, errors, renewed certificates."""

import asyncio
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from hetrdzv.auth.tls import ClientTls, TlsError
from hetrdzv.cli import hetctl, hetserver
from hetrdzv.client.client import Client
from hetrdzv.protocol.errors import HetError, Unreachable
from hetrdzv.protocol.requests import JoinRequest
from tests.support.certificates import Authority, Tls, put_file
from tests.support.cluster import wait_for
from tests.support.servers import ROOT, Hetserver

WAIT_S = 20.0


@pytest.fixture(scope="module")
def ours(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ours"))


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Tls:
    return Authority(tmp_path_factory.mktemp("theirs")).issue("stranger")


@pytest.fixture(scope="module")
def mine(ours: Authority) -> Tls:
    return ours.issue("server")


def encrypted(tls: Tls, *args: str) -> Hetserver:
    return Hetserver("memory", 0, None, "--tls-cert", str(tls.cert), "--tls-key", str(tls.key), *args)


@pytest.fixture(scope="module")
def server(mine: Tls) -> Iterator[Hetserver]:
    with encrypted(mine) as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.log


@pytest.fixture(scope="module")
def strict(mine: Tls) -> Iterator[Hetserver]:
    """A server that requires client certificates."""
    with encrypted(mine, "--tls-client-ca", str(mine.ca)) as running:
        yield running
        assert running.stop() == 0
        assert "Traceback" not in running.log


async def ask(url: str, tls: ClientTls | None = None) -> str:
    """`ok`, or the error of the client."""
    async with Client([url], tls=tls) as client:
        try:
            await client.groups()
        except HetError as error:
            return str(error)
        return "ok"


# -- trust -------------------------------------------------------------------------------------------------


async def test_a_server_is_believed_by_its_authority_only(server: Hetserver, mine: Tls, theirs: Tls) -> None:
    assert await ask(server.url, ClientTls(mine.ca)) == "ok"
    assert await ask(server.url.replace("127.0.0.1", "localhost"), ClientTls(mine.ca)) == "ok"
    for tls, by in ((None, "a public CA"), (ClientTls(theirs.ca), f"a CA in {theirs.ca}")):
        said = await ask(server.url, tls)
        assert f"its certificate is not signed by {by}: give --ca-cert" in said


@pytest.mark.parametrize(
    ("names", "days", "says"),
    [
        (
            "DNS:elsewhere",
            2,
            "certificate is not valid for '127.0.0.1'; use a name that is in the certificate",
        ),
        ("IP:127.0.0.1", -1, "its certificate has expired: renew it there"),
    ],
)
async def test_a_certificate_that_is_none_for_this_server_or_day(
    ours: Authority, names: str, days: int, says: str
) -> None:
    tls = ours.issue("odd", names, days)
    with encrypted(tls) as server:
        assert says in await ask(server.url, ClientTls(tls.ca))


async def test_a_client_certificate_is_asked_for(
    strict: Hetserver, mine: Tls, ours: Authority, theirs: Tls
) -> None:
    node = ours.issue("gpu1", "DNS:gpu1")
    assert await ask(strict.url, ClientTls(mine.ca, node.cert, node.key)) == "ok"
    both = node.cert.with_name("both.pem")
    both.write_bytes(node.key.read_bytes() + node.cert.read_bytes())
    assert await ask(strict.url, ClientTls(mine.ca, both)) == "ok"
    async with Client([strict.url], tls=ClientTls(mine.ca)) as client:
        with pytest.raises(Unreachable):
            await client.groups()
    said = await ask(strict.url, ClientTls(mine.ca, theirs.cert, theirs.key))
    assert "is our --client-cert signed by the authority in its --tls-client-ca?" in said
    expired = ours.issue("old", days=-1)
    assert "is our --client-cert signed by" in await ask(
        strict.url, ClientTls(mine.ca, expired.cert, expired.key)
    )


OFFER = {"incarnation": "1", "slots": 1, "address": "10.0.0.1", "port": 4000}


def test_hetctl_and_a_guardian_speak_it(strict: Hetserver, ours: Authority, mine: Tls) -> None:
    node = ours.issue("node")
    files = ["--ca-cert", str(mine.ca), "--client-cert", str(node.cert), "--client-key", str(node.key)]
    said = CliRunner().invoke(hetctl.hetctl_group, ["--server", strict.url, *files, "get"])
    assert "no groups" in said.output, said
    names = ("HET_CA_CERT", "HET_CLIENT_CERT", "HET_CLIENT_KEY")
    environ = dict(zip(names, files[1::2], strict=True))
    said = CliRunner(env=environ).invoke(hetctl.hetctl_group, ["get", "--server", strict.url])
    assert "no groups" in said.output, said
    tls = ClientTls.from_flags({}, environ)
    script = (
        "import sys, json; from pathlib import Path; from hetagent.node.processes.guardian_client import Guardian\n"
        "from hetrdzv.auth.tls import ClientTls\n"
        "tls = ClientTls(*map(Path, sys.argv[2:]))\n"
        "from hetagent.node.processes.identity import AgentIdentity, ServerAccess\n"
        "access = ServerAccess(servers=[sys.argv[1]], tls=tls)\n"
        "g = Guardian(AgentIdentity('g', 'a', 'i1'), access)\n"
        "g.start(); print('on guard', flush=True); input()\n"
    )
    path = os.pathsep.join([str(ROOT / "rendezvous"), str(ROOT / "agent")])
    with subprocess.Popen(
        [sys.executable, "-c", script, strict.url, *map(str, (tls.ca_cert, tls.cert, tls.key))],
        env={**os.environ, "PYTHONPATH": path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as agent:
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"on guard\n"

        async def group(act: str) -> str:
            async with Client([strict.url], tls=tls) as client:
                if act == "join":
                    await client.join("g", "a", JoinRequest(**(OFFER | {"incarnation": "i1"})))  # type: ignore[arg-type]
                return (await client.group("g")).nodes[0].state

        assert asyncio.run(group("join")) == "ready"
        agent.send_signal(signal.SIGKILL)
    wait_for(lambda: asyncio.run(group("look")) == "lost", "the guardian said goodbye")


def shown(server: Hetserver) -> bytes:
    """The certificate that a new connection gets."""
    return ssl.get_server_certificate(("127.0.0.1", server.port), timeout=WAIT_S).encode()


def test_a_new_certificate_is_shown_without_a_restart(ours: Authority, tmp_path: Path) -> None:
    first, second = ours.issue("first"), ours.issue("second")
    live = Tls(first.ca, tmp_path / "cert.pem", tmp_path / "key.pem")

    def put(cert: Path | None, key: Path | None) -> None:
        for source, target in ((cert, live.cert), (key, live.key)):
            if source is not None:
                put_file(target, source.read_bytes())

    def is_shown(cert: Path) -> bool:
        return ssl.PEM_cert_to_DER_cert(cert.read_text()) == ssl.PEM_cert_to_DER_cert(shown(server).decode())

    put(first.cert, first.key)
    with encrypted(live) as server:
        assert is_shown(first.cert)
        put(second.cert, None)  # half of it
        time.sleep(1.5)
        assert is_shown(first.cert), "a certificate without its key"
        put(None, second.key)
        wait_for(lambda: is_shown(second.cert), "the new one is shown")
        live.cert.write_text("nonsense")
        time.sleep(1.5)
        assert is_shown(second.cert)
        put(first.cert, first.key)
        server.process.send_signal(signal.SIGHUP)
        wait_for(lambda: is_shown(first.cert), "it is shown again")
        assert server.stop() == 0
        assert "do not belong together" in server.log
        assert "the previous certificate stays in use" in server.log
        assert "; new connections see it" in server.log
        assert "Traceback" not in server.log


# -- files that cannot be used -----------------------------------------------------------------------------


@pytest.fixture
def odd(tmp_path: Path, mine: Tls) -> dict[str, str]:
    """Paths of odd files, by what is wrong with them."""
    (tmp_path / "text").write_text("no PEM")
    locked = tmp_path / "locked.key"
    command = ["openssl", "pkey", "-in", str(mine.key), "-aes256", "-passout", "pass:x", "-out", str(locked)]
    subprocess.run(command, check=True, capture_output=True)
    found = {"none": tmp_path / "none", "text": tmp_path / "text", "locked": locked, "folder": tmp_path}
    found |= {"ca": mine.ca, "cert": mine.cert, "key": mine.key}
    return {name: str(path) for name, path in found.items()}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--tls-key key", "--tls-key and --tls-client-ca need a certificate: give --tls-cert too"),
        ("--tls-client-ca ca", "--tls-client-ca need a certificate"),
        ("--tls-cert none --tls-key key", "--tls-cert {none} cannot be read: No such file"),
        ("--tls-cert cert --tls-key none", "--tls-key {none} cannot be read: No such file"),
        ("--tls-cert cert", "if it does not contain the key, give --tls-key"),
        ("--tls-cert cert --tls-key text", "not a certificate with its key in PEM"),
        ("--tls-cert ca --tls-key key", "do not belong together: this is the key of another"),
        ("--tls-cert cert --tls-key locked", "is encrypted: use one without a password"),
        ("--tls-cert cert --tls-key key --tls-client-ca text", "--tls-client-ca {text} is not a PEM file"),
        ("--tls-cert cert --tls-key key --tls-client-ca folder", "--tls-client-ca {folder} cannot be read"),
    ],
)
def test_a_server_says_which_file_is_wrong(odd: dict[str, str], arguments: str, says: str) -> None:
    words = [odd.get(word, word) for word in arguments.split()]
    result = CliRunner().invoke(hetserver.main, ["--port", "0", "--store", "memory", *words])
    assert result.exit_code == 2
    assert says.format(**odd) in result.output


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"ca_cert": "none"}, "--ca-cert {none} cannot be read: No such file"),
        ({"ca_cert": "text"}, "--ca-cert {text} is not a PEM file of certificates"),
        ({"client_cert": "cert"}, "if it does not contain the key, give --client-key"),
        ({"client_key": "key"}, "give --client-cert too"),
        ({"client_cert": "ca", "client_key": "key"}, "do not belong together"),
        ({"client_cert": "cert", "client_key": "locked"}, "is encrypted"),
    ],
)
def test_a_client_says_which_file_is_wrong(
    odd: dict[str, str], files: dict[str, str], says: str, tmp_path: Path
) -> None:
    with pytest.raises(TlsError) as error:
        ClientTls.from_flags({name: Path(odd[file]) for name, file in files.items()}, {})
    assert says.format(**odd) in str(error.value)
    with pytest.raises(TlsError) as error:
        ClientTls.from_flags({}, {f"HET_{name.upper()}": odd[file] for name, file in files.items()})
    named = says.replace("--ca-cert {", "HET_CA_CERT {")
    assert named.format(**odd) in str(error.value)
    words = [word for name, file in files.items() for word in (f"--{name.replace('_', '-')}", odd[file])]
    assert CliRunner().invoke(hetctl.hetctl_group, ["get", "--server", "https://h:1", *words]).exit_code == 1


@pytest.mark.parametrize(
    ("given", "advertised"),
    [
        (None, "https://127.0.0.1:"),
        ("head:29400", "https://head:29400"),
        ("https://head:29400", "https://head:29400"),
        ("http://head:29400", "http://head:29400"),
    ],
)
def test_what_a_server_with_tls_advertises(given: str | None, advertised: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        assert hetserver.choose_advertised_url(given, listener, tls=True).startswith(advertised)
