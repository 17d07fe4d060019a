"""What differs between releases of torch: each branch that this one does not take is taken here by other means."""

import dataclasses
import re
import socket
from datetime import timedelta
from typing import Any

import pytest
from tests.agent.workers.test_store import accept, start
from tests.support.servers import ROOT
from torch.distributed import TCPStore
from torch.distributed.elastic.multiprocessing import Std as TorchsStd

from hetagent.cli.parse import parse_command_line
from hetagent.errors import UsageError
from hetagent.torch_compat import flags as torchs
from hetagent.torch_compat.flags import SINCE_2_10
from hetagent.workers import store
from hetagent.workers.store import HetRendezvousHandler

ASKED: dict[str, list[str]] = {
    "--duplicate-stdout-filters": ["loss"],
    "--duplicate-stderr-filters": ["error"],
    "--virtual-local-rank": [],
    "--numa-binding": ["node"],
}


def flags(*argv: str) -> Any:
    return parse_command_line(["--server", "h", *argv, "train.py"], {}).torchrun


def handler() -> HetRendezvousHandler:
    return HetRendezvousHandler("job", "a", lambda: pytest.fail("it is not the master"))


@pytest.mark.parametrize("flag", SINCE_2_10)
def test_what_torch_cannot_do_is_refused_with_the_release_that_can(
    flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if SINCE_2_10[flag]:
        torchs.check_supported(flags(flag, *ASKED[flag]))
    monkeypatch.setattr(torchs, "SINCE_2_10", dict.fromkeys(SINCE_2_10, False))
    torchs.check_supported(flags())
    with pytest.raises(UsageError, match=rf"^{flag} needs torch 2.10 or newer, but torch .*"):
        torchs.check_supported(flags(flag, *ASKED[flag]))


def test_the_installed_torch_has_what_its_number_promises() -> None:
    assert set(SINCE_2_10.values()) == {torchs.RELEASE >= (2, 10)}


def test_the_spec_of_an_old_torch_gets_what_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch 2.6 has none of the fields for the newer flags."""

    @dataclasses.dataclass
    class Old:
        role: str
        local_world_size: int
        rdzv_handler: object
        entrypoint: str

    monkeypatch.setattr(torchs, "WorkerSpec", Old)
    monkeypatch.setattr(torchs, "SPEC_FIELDS", frozenset(Old.__annotations__))
    spec = torchs.make_worker_spec(flags("--role", "r"), 2, handler())
    assert (spec.role, spec.local_world_size) == ("r", 2)
    assert not torchs.does_torch_alter_command(spec)


def test_the_spec_of_this_torch_gets_everything() -> None:
    given = [word for flag, value in ASKED.items() if SINCE_2_10[flag] for word in (flag, *value)]
    spec = torchs.make_worker_spec(flags(*given), 2, handler())
    for field, value in {
        "duplicate_stdout_filters": ["loss"],
        "duplicate_stderr_filters": ["error"],
        "virtual_local_rank": True,
    }.items():
        assert getattr(spec, field, value) == value
    assert torchs.does_torch_alter_command(spec) == SINCE_2_10["--virtual-local-rank"]


def test_streams_are_torchs() -> None:
    assert torchs.to_torch_std({0: 1, 1: 3}) == {0: TorchsStd.OUT, 1: TorchsStd.ALL}
    assert torchs.to_torch_std(2) is TorchsStd.ERR


@pytest.mark.parametrize("release", [(2, 6), torchs.RELEASE], ids=["2.7 and before", "installed"])
def test_a_store_on_a_socket_that_was_held_open(
    release: tuple[int, ...], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(store, "RELEASE", release)
    made = HetRendezvousHandler("job", "a", lambda: socket.create_server(("127.0.0.1", 0)))
    port = made.offer_port()
    accept(made, start("a", port))
    info = made.next_rendezvous()
    visitor = TCPStore("127.0.0.1", port, world_size=1, is_master=False, timeout=timedelta(seconds=30))
    visitor.set("a", "b")
    assert info.store.get("a") == b"b"
    assert made.count_workers() == 1
    assert capfd.readouterr().err == ""
    made.shutdown()
    assert made.count_workers() is None


PARTS = ("torch_compat/", "workers/torch_starter.py", "worker/torch_server.py")
"""The only ones that may: in the agent, and in the workers. ruff (SLF) looks at attributes."""

PRIVATE = re.compile(
    r"torch\.distributed\.run\b|torch\.numa|\btorch[.\w]*\._[a-z]|from torch[.\w]* import .*\b_\w|\bf_(locals|back)\b"
)
"""What torch changes without a word: its private names, torchrun's own module, and variables of other frames."""


def test_nothing_else_imports_what_is_private_to_torch() -> None:
    root = ROOT / "agent" / "hetagent"
    using = {
        path.relative_to(root).as_posix() for path in root.rglob("*.py") if PRIVATE.search(path.read_text())
    }
    others = {name for name in using if not name.startswith(PARTS)}
    assert others == {"worker/runner.py"}, "argparse's message"
