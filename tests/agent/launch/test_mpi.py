"""`--launch mpi` without mpirun: words, names, networks, and what is refused. With it: tests/mpi/."""

import os
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.agent.launch.test_horovod import assignment, members
from tests.support.cluster import wait_for

from hetagent.errors import CommandError
from hetagent.launch.command import WorkerCommand, make_worker_command
from hetagent.launch.mpi import orted
from hetagent.launch.mpi.mpirun import FOLDER, MpiLaunch, make_mpirun_args
from hetagent.node import network
from hetagent.session.requests import Report
from hetagent.worker import rsh
from hetrdzv.protocol.errors import Refused
from hetrdzv.protocol.requests import DaemonRequest, explain_daemon_refusal

# what mpirun 4.1.4 passes to its remote shell, where the user's shell is bash and where it is sh
GIVEN = [
    *(" orted", "--daemonize", "-mca", "ess", '"env"', "-mca", "ess_base_jobid", '"293928960"'),
    *("-mca", "ess_base_vpid", "1", "-mca", "ess_base_num_procs", '"3"'),
    *("-mca", "orte_node_regex", '"vm,n[1:1]-b,n[1:2]-c@0(3)"'),
    *("-mca", "orte_hnp_uri", '"293928960.0;tcp://10.0.0.1,192.0.2.2:36403"'),
    *("--mca", "plm_rsh_agent", '"/bin/sh /tmp/hetmpi_x/rsh"', "--mca", "plm_rsh_no_tree_spawn", '"1"'),
    *("-mca", "plm", '"rsh"', "-mca", "pmix", '"^s1,s2,cray,isolated"'),
]
BEFORE = ["(", "test", "!", "-r", "./.profile", "||", ".", "./.profile;"]
PREFIXED = [
    "   PATH=/opt/ompi/bin:$PATH ; export PATH ; LD_LIBRARY_PATH=/opt/lib:${LD_LIBRARY_PATH:-} ; /opt/ompi/bin/orted",
    *GIVEN[1:],
]
RUN = [
    *("-mca", "ess", "env", "-mca", "ess_base_jobid", "293928960", "-mca", "ess_base_vpid", "1"),
    *("-mca", "ess_base_num_procs", "3", "-mca", "orte_node_regex", "vm,n[1:1]-b,n[1:2]-c@0(3)"),
    *("-mca", "orte_hnp_uri", "293928960.0;tcp://10.0.0.1,192.0.2.2:36403"),
    *("--mca", "plm_rsh_no_tree_spawn", "1", "-mca", "plm", "rsh", "-mca", "pmix", "^s1,s2,cray,isolated"),
]
COMMAND = WorkerCommand("/bin/true", ("x",), is_python=False)


@pytest.mark.parametrize("given", [GIVEN, [*BEFORE, *GIVEN, ")"], PREFIXED], ids=["bash", "sh", "prefix"])
def test_what_mpirun_gives_its_remote_shell_becomes_orteds_arguments(given: list[str]) -> None:
    words = orted.split_command_line(given)
    assert words[0].endswith("orted")
    assert words[1] == "--daemonize"
    assert explain_daemon_refusal(words) is None
    assert orted.make_orted_args(words) == RUN


@pytest.mark.parametrize("given", [[], ["prted", "--daemonize"], ["sh", "-c", "reboot"], ['orted "']])
def test_anything_else_that_mpirun_would_run_is_refused(given: list[str]) -> None:
    with pytest.raises(CommandError, match="mpirun would run"):
        orted.split_command_line(given)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("sh -c reboot", "run 'sh': only orted is run"),
        ("orted -mca mca_base_component_path /tmp/evil", "'mca_base_component_path', which is refused"),
        ("orted --mca orte_launch_agent /tmp/evil", "'orte_launch_agent'"),
        ("orted -mca orte_fork_agent /tmp/evil", "'orte_fork_agent'"),
        ("orted -mca ess", "'-mca', which is refused"),
        ("orted -am /tmp/evil", "'-am', which is refused"),
        ("orted ess env", "'ess', which is refused"),
    ],
)
def test_a_daemon_with_more_than_mpirun_needs_is_refused(words: str, says: str) -> None:
    with pytest.raises(CommandError, match="the master asked this node to run") as caught:
        orted.make_orted_args(words.split())
    assert says in str(caught.value)
    assert orted.make_orted_args(["/x/orted", "-mca", "plm_rsh_agent", "/tmp/evil"]) == [], (
        "it is for mpirun alone"
    )


def test_hosts_have_names_that_are_nobodys() -> None:
    ids = ["gpu0", "gpu1", "GPU_2.example.org", "10.0.0.3", "x" * 128, "...-a", "_"]
    (member,) = members(1)
    named = [orted.host_name(replace(member, node_id=node, group_rank=i)) for i, node in enumerate(ids)]
    assert named == [
        *("localhost", "n1-gpu1", "n2-gpu-2-example-org", "n3-10-0-0-3", f"n4-{'x' * 40}", "n5-a", "n6-node")
    ]


def settings(words: Sequence[str]) -> dict[str, str]:
    return {words[at + 1]: words[at + 2] for at, word in enumerate(words) if word == "--mca"}


def test_mpirun_gets_the_rounds_order_and_slots() -> None:
    words = make_mpirun_args(members(2, 1, 3), ["python", "train.py"], "/bin/sh /tmp/x/rsh")
    assert words[words.index("-np") + 1] == "6"
    assert words[words.index("-H") + 1] == "localhost:2,n1-b:1,n2-c:3"
    assert words[-3:] == ["sh", "python", "train.py"]
    assert ("--allow-run-as-root" in words) is (os.geteuid() == 0)
    given = settings(words)
    assert given["plm_rsh_agent"] == "/bin/sh /tmp/x/rsh"
    assert (given["plm"], given["plm_rsh_no_tree_spawn"], given["orte_do_not_resolve"]) == ("rsh", "1", "1")
    ports = settings(make_mpirun_args(members(1, 1), ["x"], None, (30_000, 30_099)))
    assert ports["oob_tcp_dynamic_ipv4_ports"] == "30000-30099"
    assert (ports["btl_tcp_port_min_v4"], ports["btl_tcp_port_range_v4"]) == ("30000", "100")
    relayed = [word for name, value in given.items() for word in ("--mca", name, value)]
    assert orted.make_orted_args(["orted", *relayed]) == [
        word for name, value in given.items() if name != "plm_rsh_agent" for word in ("--mca", name, value)
    ]


def test_the_networks_are_those_of_the_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    def networks(*addresses: str) -> str | None:
        three = [
            replace(member, address=address)
            for member, address in zip(members(1, 1, 1), addresses, strict=True)
        ]
        given = settings(make_mpirun_args(three, ["x"], None))
        assert given.get("oob_tcp_if_include") == given.get("btl_tcp_if_include")
        return given.get("btl_tcp_if_include")

    assert networks("127.0.0.1", "127.0.0.1", "127.0.0.1") == "127.0.0.0/31"
    # Open MPI takes /32 for everything
    assert networks("10.1.0.1", "10.2.0.2", "10.3.0.3") == "10.1.0.0/31,10.2.0.2/31,10.3.0.2/31"
    assert networks("127.0.0.1", "10.2.0.2", "10.2.0.3") == "127.0.0.0/31,10.2.0.2/31"
    assert networks("fd00::1", "fd00::2", "fd00::3") is None
    assert networks("a.example.org", "10.0.0.2", "10.0.0.3") is None
    monkeypatch.setenv("OMPI_MCA_btl_tcp_if_exclude", "lo")
    assert settings(make_mpirun_args(members(1), ["x"], None)).keys() & {
        "btl_tcp_if_include",
        "oob_tcp_if_include",
    } == {"oob_tcp_if_include"}


def install(folder: Path, says: str, *names: str) -> None:
    for name in names:
        (folder / name).write_text(f"#!/bin/sh\necho '{says}'\n")
        (folder / name).chmod(0o755)


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[MpiLaunch]:
    install(tmp_path, "mpirun (Open MPI) 4.1.4", "mpirun", "orted")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    made = MpiLaunch(COMMAND)
    yield made
    made.end()


def test_without_open_mpi_this_node_does_not_join(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for says, names, why in (
        ("", (), r"needs mpirun and orted, not found in PATH: .*apt-get install openmpi-bin"),
        ("HYDRA build details: Version: 4.1", ("mpirun",), "needs orted, not found"),
        ("mpirun (Open MPI) 5.0.3", ("mpirun", "orted"), r"with Open MPI 4, .* says 'mpirun \(Open MPI\) 5"),
    ):
        install(tmp_path, says, *names)
        with pytest.raises(CommandError, match=why):
            MpiLaunch(COMMAND)


def test_a_member_waits_for_the_masters_word_and_runs_its_own_orted(
    launch: MpiLaunch, tmp_path: Path
) -> None:
    mine = assignment("b", 2, 1)
    assert launch.begin(mine) is None
    mine.start = replace(mine.start, daemon=["/elsewhere/orted", "--daemonize", "-mca", "ess", "env"])
    command = launch.begin(mine)
    assert command == WorkerCommand(str(tmp_path / "orted"), ("-mca", "ess", "env"), is_python=False)
    env = launch.worker_env(mine, 0)
    assert (env["RANK"], env["LOCAL_RANK"], env["MASTER_PORT"]) == (None, None, "2222")
    folders = [Path(str(env[name])) for name in ("OMPI_MCA_orte_tmpdir_base", FOLDER)]
    assert all(folder.stat().st_mode & 0o777 == 0o700 for folder in folders)
    launch.end()
    assert not any(folder.exists() for folder in folders)
    assert (
        launch.failure_report_delay_s(mine, failed=True)
        > launch.failure_report_delay_s(mine, failed=False)
        > 0
    )
    mine.start = replace(mine.start, daemon=["orted", "-mca", "mca_base_component_path", "/tmp"])
    with pytest.raises(CommandError, match="mca_base_component_path"):
        launch.begin(mine)


Master = tuple[MpiLaunch, list[tuple[int, str, list[str]]], "Future[Any]"]


@pytest.fixture
def master(launch: MpiLaunch) -> Master:
    """The launch on the master of a round of three nodes, what it asked of members, and what these answer."""
    mine = assignment("a", 2, 1, 3)
    mine.script_port = network.hold_port("127.0.0.1", None)
    asked: list[tuple[int, str, list[str]]] = []
    answer: Future[Any] = Future()

    def ask(message: Report[Any]) -> "Future[Any]":
        body = message.body(incarnation="i")
        assert isinstance(body, DaemonRequest)
        assert body.master == "a"
        asked.append((body.round, message.to, list(body.words)))
        return answer

    mine.ask = ask
    command = launch.begin(mine)
    assert command is not None
    assert (command.entrypoint, command.args[-2:]) == ("mpirun", ("/bin/true", "x"))
    assert launch.failure_report_delay_s(mine, failed=True) == 0
    return launch, asked, answer


def call(launch: MpiLaunch, *words: str) -> "subprocess.Popen[str]":
    """What mpirun does with its remote shell."""
    assert launch._relay is not None
    return subprocess.Popen([*launch._relay.command.split(), *words], stderr=subprocess.PIPE, text=True)


def test_the_remote_shell_ends_well_when_the_member_was_told(master: Master) -> None:
    launch, asked, answer = master
    process = call(launch, "n1-b", *GIVEN)
    wait_for(lambda: asked, "the question")
    assert process.poll() is None
    answer.set_result(None)
    assert process.communicate(timeout=20)[1] == ""
    assert process.returncode == 0
    ((number, node_id, words),) = asked
    assert (number, node_id, words[0]) == (1, "b", "orted")
    assert orted.make_orted_args(words) == RUN


def test_the_remote_shell_says_why_a_member_does_not_start(master: Master) -> None:
    launch, asked, answer = master
    answer.set_exception(Refused("its agent was started without --launch mpi"))
    for words, says in (
        (("n1-b", *GIVEN), "n1-b was not started: its agent was started without --launch mpi"),
        (("localhost", *GIVEN), "there is no host 'localhost'"),
        (("n2-c", "orted", "-mca", "orte_fork_agent", "x"), "'orte_fork_agent', which is refused"),
        (("n2-c", *GIVEN, "-mca", "orte_hnp_uri", "x" * 40_000), "give them shorter ids"),
    ):
        process = call(launch, *words)
        assert says in process.communicate(timeout=20)[1]
        assert process.returncode == rsh.FAILED
    assert [node_id for _, node_id, _ in asked] == ["b"]


def test_after_the_round_the_remote_shell_fails_at_once(master: Master) -> None:
    launch, asked, answer = master
    process = call(launch, "n1-b", *GIVEN)
    wait_for(lambda: asked, "the question")
    launch.end()
    answer.cancel()  # as the session does
    assert "the round is over" in process.communicate(timeout=20)[1]
    assert process.returncode == rsh.FAILED


def test_one_node_needs_no_remote_shell_and_ranks_run_the_script_as_python_would(
    launch: MpiLaunch, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.touch()
    made = MpiLaunch(make_worker_command(str(script), ["--lr", "1"]))
    mine = assignment("a", 2)
    mine.script_port = network.hold_port("127.0.0.1", None)
    command = made.begin(mine)
    made.end()
    assert command is not None
    assert "plm_rsh_agent" not in settings(command.args)
    assert command.args[-4:] == ("-u", str(script), "--lr", "1")
