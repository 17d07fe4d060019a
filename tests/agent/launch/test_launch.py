"""How a node's part of a round becomes processes: placeholders, shared files, isolation. No agent, no server."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.agent.launch.test_horovod import assignment as assignment_of

from hetagent.cli.parse import parse_command_line
from hetagent.errors import CommandError, UnevenRanksError, UsageError
from hetagent.launch.base import Assignment, Launch, LaunchOptions
from hetagent.launch.command import WorkerCommand
from hetagent.launch.gpu import PerGpuLaunch, split_visible_devices
from hetagent.launch.kinds import make_launch
from hetagent.launch.node import placeholders
from hetagent.launch.node.program import PerNodeLaunch, make_init_file_path
from hetagent.node import network


def assignment(node: str = "b", **changes: Any) -> Assignment:
    """Node b, with two slots behind the three of node a."""
    return assignment_of(node, 3, 2, **changes)


def command(*args: str) -> WorkerCommand:
    return WorkerCommand("/bin/echo", args, is_python=False)


def test_every_placeholder_is_filled_in() -> None:
    words = [f"{name}={{{name}}}" for name in placeholders.KNOWN]
    values = placeholders.get_placeholder_values(assignment())
    assert dict(word.split("=") for word in placeholders.fill_placeholders(words, values)) == {
        "init_method": "tcp://10.0.0.1:2222",
        "master_addr": "10.0.0.1",
        "master_port": "2222",
        "world_size": "5",
        "gpus": "2",
        "rank_offset": "3",
        "node_rank": "1",
        "nnodes": "2",
        "round": "1",
        "restart_count": "0",
        "group": "job",
    }
    filled = placeholders.fill_placeholders(['{{"lr": {gpus}}}', "{nnodes}x{gpus}", "plain"], values)
    assert filled == ['{"lr": 2}', "2x2", "plain"]
    values = placeholders.get_placeholder_values(assignment(master="fd00::1"))
    assert (values["init_method"], values["master_addr"]) == ("tcp://[fd00::1]:2222", "fd00::1")


@pytest.mark.parametrize(
    ("words", "alone"),
    [
        ("--url {init_method:optional} -g {gpus}", "-g 1"),
        ("--url={init_method:optional} -g {gpus}", "-g 1"),
        ("data {init_method:optional} {{x}}", "data {x}"),
        ("{init_method:optional}", ""),
        ("--url {init_method}", "--url tcp://10.0.0.1:2222"),
    ],
)
def test_what_a_world_of_one_may_not_be_given_is_left_out_there(words: str, alone: str) -> None:
    """As HetSeq, which refuses an init method there."""
    launch = PerNodeLaunch(command(*words.split()))
    several = words.replace(":optional", "").replace("{{x}}", "{{{{x}}}}")
    expected = several.format(init_method="tcp://10.0.0.1:2222", gpus=2).replace("{{", "{").replace("}}", "}")
    assert " ".join(launch.begin(assignment()).args) == expected
    one = assignment(group_rank=0, rank_offset=0, slots=1, world_size=1, nnodes=1)
    assert " ".join(launch.begin(one).args) == alone


@pytest.mark.parametrize(
    ("word", "named"),
    [
        ("--rank={local_rank}", "{local_rank}"),
        ("{gpus!r:optional}", "{gpus!r:optional}"),
        ("{}", "{}"),
        ("{gpus:03d}", "{gpus:03d}"),
        ("{master.port}", "{master.port}"),
        ('{"lr": 1}', '{"lr": 1}'),
        ("{gpus", "'{gpus'"),
    ],
)
def test_anything_else_in_braces_is_refused_with_what_is_known(word: str, named: str) -> None:
    with pytest.raises(CommandError) as caught:
        PerNodeLaunch(command("ok", word))
    said = str(caught.value)
    assert named in said
    assert "{rank_offset}" in said
    assert "literal brace is written {{ or }}" in said


@pytest.mark.parametrize(
    ("args", "changes", "refused"),
    [
        ("-g {gpus} -nr {node_rank} -n {nnodes}", {}, True),
        ("-g {gpus} -nr {node_rank}", {"slots": 3, "world_size": 6}, False),  # even
        ("-g {gpus} -nr {node_rank}", {"slots": 2, "world_size": 4}, True),  # 1 + 2 + 1: the offset is wrong
        ("-g {gpus} -nr {node_rank} --offset {rank_offset}", {}, False),
        ("-g {gpus} -nr {node_rank} -w {world_size}", {}, True),
        ("-nr {node_rank}", {}, False),
        ("-g {gpus}", {}, False),
    ],
)
def test_a_formula_for_even_nodes_is_refused(args: str, changes: dict[str, int], refused: bool) -> None:
    launch = PerNodeLaunch(command(*args.split()))
    if not refused:
        launch.begin(assignment(**changes))
        return
    with pytest.raises(UnevenRanksError, match="the nodes of this round have different GPU counts") as caught:
        launch.begin(assignment(**changes))
    assert "{rank_offset} and {world_size}" in str(caught.value)


def test_the_nodes_process_gets_no_ranks_and_the_scripts_own_port(monkeypatch: pytest.MonkeyPatch) -> None:
    """And an NCCL that takes the GPU of its tensors: nccl2 takes GPU `RANK % GPUs` without LOCAL_RANK."""
    monkeypatch.delenv("TORCH_DIST_USE_NCCL2", raising=False)
    changes = PerNodeLaunch(command("x")).worker_env(assignment(), 0)
    assert {name for name, value in changes.items() if value is None} == {"RANK", "LOCAL_RANK", "ROLE_RANK"}
    assert (changes["MASTER_PORT"], changes["TORCHELASTIC_USE_AGENT_STORE"]) == ("2222", "False")
    assert changes["TORCH_DIST_USE_NCCL2"] == "0"
    assert PerGpuLaunch(command("x")).worker_env(assignment(), 0) == {}
    monkeypatch.setenv("TORCH_DIST_USE_NCCL2", "1")
    assert "TORCH_DIST_USE_NCCL2" not in PerNodeLaunch(command("x")).worker_env(assignment(), 0)


def test_the_groups_command_is_filled_in_and_checked_too() -> None:
    launch = PerNodeLaunch(None)
    filled = launch.begin(assignment(command=["--no-python", "echo", "{rank_offset}"]))
    assert filled.args == ("3",)
    with pytest.raises(CommandError, match=r"unknown placeholder \{rank\}"):
        launch.begin(assignment(command=["--no-python", "echo", "{rank}"]))


def test_all_nodes_of_a_round_get_the_same_new_name(tmp_path: Path) -> None:
    options = LaunchOptions(init_file=tmp_path)
    master, member = (PerNodeLaunch(command("{init_method}"), options) for _ in "ab")
    held = network.hold_port("127.0.0.1", None)
    (name,) = master.begin(replace(assignment("a"), script_port=held)).args
    assert member.begin(assignment("b")).args == (name,)
    path = Path(name.removeprefix("file://"))
    assert path.parent == tmp_path
    assert path.name.startswith("job.round1.")
    assert not path.exists(), "torch makes it"
    path.touch()
    member.end()
    assert path.exists(), "it is in use"
    master.end()
    assert list(tmp_path.iterdir()) == []
    master.end()


def test_no_file_of_another_job_is_used(tmp_path: Path) -> None:
    left = make_init_file_path(tmp_path, assignment("a"))
    left.touch()  # and its agent is killed
    assert make_init_file_path(tmp_path, assignment("b")) == left, "another worker of the round is first"
    assert make_init_file_path(tmp_path, assignment("a", master="10.0.0.2")) != left
    again = assignment("a")
    master = replace(again.start.master, incarnation="2")
    again = replace(again, start=replace(again.start, master=master))
    assert make_init_file_path(tmp_path, again) != left, "the same node and ports, another agent"


def test_a_name_must_be_a_directory_that_a_url_can_name_and_the_command_asks_for(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "what?").mkdir()
    (tmp_path / "#1").mkdir()
    for name, said in (
        ("none", "is not a directory"),
        ("file", "is not a directory"),
        ("what?", "cannot read a file:// name"),
        ("#1", "cannot read a file:// name"),
        ("", r"does not have \{init_method\}"),
    ):
        with pytest.raises(CommandError, match=said):
            PerNodeLaunch(command("--rank", "{rank_offset}"), LaunchOptions(init_file=tmp_path / name))


def test_isolated_workers_see_their_own_gpu_and_keep_their_local_rank() -> None:
    launch = PerGpuLaunch(command("x"), LaunchOptions(slots=2, visible="4,GPU-ab, 6", isolate_gpus=True))
    assert [launch.worker_env(assignment(), rank) for rank in range(2)] == [
        {"CUDA_VISIBLE_DEVICES": "4"},
        {"CUDA_VISIBLE_DEVICES": "GPU-ab"},
    ]
    assert split_visible_devices(None, 3) == ("0", "1", "2")
    assert split_visible_devices("", 3) == (), "CPU workers"
    with pytest.raises(
        CommandError, match="3 workers a GPU of its own, but CUDA_VISIBLE_DEVICES=0,1 names 2"
    ):
        split_visible_devices("0,1", 3)


@pytest.mark.parametrize(
    ("flags", "visible", "found"),
    [
        ("", None, PerGpuLaunch),
        ("--launch node", None, PerNodeLaunch),
        ("--isolate-gpus", None, PerGpuLaunch),
        ("--virtual-local-rank", "0,1", PerGpuLaunch),
        ("--isolate-gpus", "MIG-a,MIG-b", PerGpuLaunch),
        (
            "--virtual-local-rank",
            "3",
            "gives each of 2 workers a GPU of its own, but CUDA_VISIBLE_DEVICES=3 names",
        ),
        ("--virtual-local-rank", "", "but CUDA_VISIBLE_DEVICES= names fewer"),
        ("--virtual-local-rank --isolate-gpus", None, "both narrow the GPUs"),
        ("--init-file /tmp", None, "--init-file goes with --launch node, not with gpu"),
        (
            "--launch node --isolate-gpus",
            None,
            "--isolate-gpus goes with --launch gpu or horovod, not with node",
        ),
        ("--launch mpi --numa-binding node", None, "--numa-binding goes with --launch gpu or horovod, not"),
        ("--launch node --virtual-local-rank", None, "--virtual-local-rank goes with --launch gpu, not with"),
        (
            "--launch node --require-rendezvous",
            None,
            "--require-rendezvous goes with --launch gpu, not with node",
        ),
    ],
)
def test_the_launch_is_the_one_asked_for(flags: str, visible: str | None, found: type[Launch] | str) -> None:
    options = parse_command_line(["--server", "h", *flags.split(), "train.py"], {})
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    if isinstance(found, str):
        with pytest.raises(UsageError, match=found):
            make_launch(options, command("x"), 2, environ)
    else:
        assert type(make_launch(options, command("x"), 2, environ)) is found
        make_launch(options, command("x"), 1, environ)
