"""hetagent's command line: which of torchrun's flags mean the same, which are refused, what belongs to the script."""

import re
import signal
from argparse import SUPPRESS
from collections.abc import Sequence
from pathlib import Path

import pytest

from hetagent.cli.flags import SPEC_FLAGS, Parser
from hetagent.cli.parse import parse_command_line
from hetagent.errors import UsageError
from hetagent.options.model import Options, TorchrunOptions
from hetagent.options.torchrun import REFUSED, SIGNALS, spellings

SERVER = ("--server", "http://host:29400")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "gpu7")


def options(*argv: str, **environ: str) -> Options:
    return parse_command_line([*SERVER, *argv], environ)


def refusal(argv: Sequence[str], **environ: str) -> str:
    with pytest.raises(UsageError) as caught:
        parse_command_line(argv, environ)
    return str(caught.value)


# -- torchrun's flags ----------------------------------------------------------------------------------------


def test_what_torchs_agent_gets() -> None:
    words = ["--role", "trainer", "-m", "--no-python", "--run-path", "--virtual-local-rank", "-t", "3"]
    words += ["--numa-binding", "node", "--log-dir", "/logs", "--log-line-prefix-template", "${rank}:"]
    words += ["--logs-specs", "mine", "-r", "0:1,11:2", "--local-ranks-filter", "0,1"]
    words += ["--duplicate-stdout-filters", "a,,b,c", "--duplicate-stderr-filters", "a"]
    assert options(*words, "train.py").torchrun == TorchrunOptions(
        role="trainer",
        module=True,
        no_python=True,
        run_path=True,
        virtual_local_rank=True,
        numa_binding="node",
        log_dir="/logs",
        log_line_prefix_template="${rank}:",
        logs_specs="mine",
        redirects={0: 1, 11: 2},
        tee=3,
        local_ranks_filter=frozenset({0, 1}),
        duplicate_stdout_filters=("a,b", "c"),
        duplicate_stderr_filters=("a",),
    )


@pytest.mark.parametrize("flag", REFUSED)
def test_refused_with_the_reason(flag: str) -> None:
    for spelling in spellings(flag):
        said = refusal([*SERVER, spelling, "127.0.0.1", "train.py"])
        assert said == f"{flag} cannot be used with hetagent: {REFUSED[flag]}"
    assert [action.help for action in Parser()._actions if flag in action.option_strings] == [SUPPRESS]


def test_all_refused_flags_are_named_at_once() -> None:
    assert refusal(["--rdzv-endpoint=host0:29500", "--node_rank", "1", "--nnodes", "2", "train.py"]) == (
        "these flags cannot be used with hetagent:\n"
        f"  --node-rank: {REFUSED['--node-rank']}\n"
        f"  --rdzv-endpoint: {REFUSED['--rdzv-endpoint']}"
    )


def test_flags_after_the_script_are_warned_of_unless_it_mentions_them(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("parser.add_argument('--group'); parser.add_argument('--log_dir')")
    words = ("--nnodes=2", "--group", "x", "--log-dir", "y", "--device", "cpu", "--lr", "1")
    assert options(str(script), *words).notes == (
        f"warning: --nnodes after {script} goes to the script; if hetagent should get it, put it before {script}",
    )
    assert options("--nnodes", "2", str(script), "--lr", "1").notes == ()
    assert len(options("-m", "bert", "--max-restarts", "1").notes) == 1


# -- variables -----------------------------------------------------------------------------------------------

VARIABLES = {
    "PET_NNODES": "2:3",
    "PET_MAX_RESTARTS": "5",
    "PET_NO_PYTHON": "1",
    "PET_MODULE": "0",
    "PET_NPROC_PER_NODE": "4",
    "PET_RDZV_ID": "bert",
    "PET_ROLE": "",
    "HET_GRACE_S": "115",
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "12",
    "HET_REPORT_OUTPUT": "off",
    "HET_NODE_CHECK": "nvidia-smi",
}


def test_variables_count_less_than_flags() -> None:
    found = options("train.sh", **VARIABLES)
    assert found.spec == {"min_nodes": 2, "max_nodes": 3, "max_restarts": 5}
    assert (found.torchrun.no_python, found.torchrun.module, found.torchrun.role) == (True, False, "default")
    assert (found.nproc_per_node, found.group, found.grace_s, found.shutdown_timeout_s) == (
        "4",
        "bert",
        115,
        12,
    )
    assert (found.report_output, found.node_check) == (False, "nvidia-smi")
    words = ["--nnodes", "3", "--gpus", "2", "--group", "gpt", "--grace-s", "0", "--shutdown-timeout", "9"]
    found = options(*words, "--report-output", "on", "train.py", **VARIABLES)
    assert (found.spec["min_nodes"], found.gpus, found.nproc_per_node, found.group) == (3, "2", None, "gpt")
    assert (found.grace_s, found.shutdown_timeout_s, found.report_output) == (0, 9, True)
    assert options("--rdzv-id", "gpt", HET_GROUP="bert").group == "gpt"
    assert options("--rdzv-id", "gpt", "--group", "gpt", HET_GROUP="bert").group == "gpt"


def test_servers_and_group_from_the_environment() -> None:
    environ = {"HET_SERVER": "one,http://two:1", "HET_GROUP": "bert"}
    found = parse_command_line(["train.py"], environ)
    assert (found.servers, found.group) == (("http://one:29400", "http://two:1"), "bert")
    found = parse_command_line(["--server", "three", "--group", "gpt", "train.py"], environ)
    assert (found.servers, found.group) == (("http://three:29400",), "gpt")


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("PET_NNODES", "two", "'two' must be N or MIN:MAX"),
        ("PET_STANDALONE", "yes", "must be 0 or 1"),
        ("HET_SERVER", "a b", "server URL 'a b': 'a b' is not a host name"),
        ("HET_WATCH", "rain", "give spot"),
    ],
)
def test_a_wrong_variable_is_named_with_its_value(name: str, value: str, says: str) -> None:
    assert refusal(["train.py"], **{name: value}).startswith(f"{name}={value}: {says}")


# -- the script's own ----------------------------------------------------------------------------------------


def test_what_follows_the_script_is_the_scripts() -> None:
    rest = ("--gpus", "3", "--log", "x", "-m", "--server", "y", "--", "--nnodes", "9", "-r", "--help")
    for flags in (["--gpus", "4"], ["--gpus", "4", "--tee=3"], ["--gpus", "4", "-m", "--label", "rack=1"]):
        found = options(*flags, "train", *rest)
        assert (found.script, found.script_args) == ("train", rest)
        assert (found.gpus, found.servers, found.spec) == ("4", ("http://host:29400",), {})
    for argv in ([], ["--gpus", "4"], ["--gpus", "4", "--"]):
        assert (options(*argv).script, options(*argv).script_args) == (None, ())


# -- ours ----------------------------------------------------------------------------------------------------


def test_what_was_not_given_has_no_value() -> None:
    found = options("train.py")
    assert (found.spec, found.labels, found.given & {"gpus", "node_id"}) == ({}, {}, frozenset())
    assert (found.gpus, found.nproc_per_node, found.shutdown_timeout_s, found.local_addr) == (None,) * 4
    assert (found.group, found.node_id, found.connect_timeout_s) == ("default", "gpu7", 60.0)
    assert (found.weight, found.grace_s, found.signals) == (None, 25, SIGNALS)


def test_the_groups_spec() -> None:
    given = ["--nnodes", "2:4", "--max-restarts", "0", "--on-join", "spare"]
    given += ["--no-restart-on", "2,64"]
    given += ["--rank-order", "topology:zone,rack", "--master", "public=yes", "--unit", "rack"]
    given += ["--world-size", "8:16", "--world-size-multiple", "4"]
    seconds = {name: 1.5 for name, one in SPEC_FLAGS.items() if one.metavar == "S"}
    given += [word for name in seconds for word in (f"--{name.replace('_', '-')}", "1.5")]
    assert options(*given).spec == {
        "min_nodes": 2,
        "max_nodes": 4,
        "max_restarts": 0,
        "on_join": "spare",
        "no_restart_on": (2, 64),
        "rank_order": "topology:zone,rack",
        "master": "public=yes",
        "unit": "rack",
        "min_world_size": 8,
        "max_world_size": 16,
        "world_size_multiple": 4,
        **seconds,
    }


def test_world_sizes_with_one_bound() -> None:
    assert options("--world-size", "8").spec == {"min_world_size": 8, "max_world_size": 8}
    assert options("--world-size", "8:").spec == {"min_world_size": 8}
    assert options("--world-size", ":16").spec == {"max_world_size": 16}


def test_the_rest_of_ours() -> None:
    words = ["--gpus", "0,2", "--device", "cuda", "--node-id", "a", "--token-file", "t", "--interface", "ib0"]
    words += ["--port-range", "29500-29600", "--label", "rack=1", "--label", "note=a=b"]
    words += ["--connect-timeout-s", "5", "--weight", "0.5", "--notice-signal", "sigusr1"]
    found = options(*words, "--signals-to-handle", "SIGTERM, SIGUSR2")
    assert (found.gpus, found.device, found.node_id, found.token_file) == (
        "0,2",
        "cuda",
        "a",
        Path("t").absolute(),
    )
    assert (found.interface, found.port_range, found.connect_timeout_s) == ("ib0", (29500, 29600), 5.0)
    assert (found.labels, found.weight) == ({"rack": "1", "note": "a=b"}, 0.5)
    assert found.notice_signal == signal.SIGUSR1
    assert found.signals == (signal.SIGTERM, signal.SIGUSR2)


def test_a_job_on_one_node_needs_no_server_and_has_a_group_of_its_own_unless_one_is_named() -> None:
    first, second = (
        parse_command_line(["--standalone", "train.py"], {"HET_SERVER": "a b"}) for _ in range(2)
    )
    assert (first.standalone, first.servers, first.spec) == (True, (), {"min_nodes": 1, "max_nodes": 1})
    assert first.group.startswith("standalone-")
    assert first.group != second.group
    assert parse_command_line(["--standalone", "--rdzv-id", "bert", "train.py"], {}).group == "bert"
    assert parse_command_line(["--standalone", "train.py"], {"HET_GROUP": "gpt"}).group == "gpt"


PATHS = [
    "--snapshot-to",
    "--init-file",
    "--token-file",
    "--ca-cert",
    "--client-cert",
    "--client-key",
    "--log-dir",
]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ("--nproc-per-node 2 --gpus 3", "--gpus and --nproc-per-node mean the same thing: give only one"),
        ("--group a --rdzv-id b", "--group and --rdzv-id mean the same thing: give only one"),
        ("--group ", "--group: '' must be 1 to 128 letters"),
        ("--check --standalone", "--check looks at servers and other nodes, and --standalone has none"),
        ("--weight nan", "--weight: 'nan' is not a number from 1e-06"),
        ("--nnodes 3:2", "--nnodes: 3:2: MIN must be at least 1, and MAX not below MIN"),
        ("--signals-to-handle SIGTERM,SIGNOPE", "--signals-to-handle: 'SIGNOPE': there is no such signal"),
        ("--signals-to-handle SIGKILL", "--signals-to-handle: 'SIGKILL': no program can handle it"),
        ("--local-ranks-filter 0,x", "--local-ranks-filter: '0,x' must be local ranks, for example"),
        ("--tee 0:1,", "--tee: '0:1,' does not name streams: 0 none, 1 stdout, 2 stderr"),
        ("--shutdown-timeout -1", "--shutdown-timeout: '-1' is not a number of seconds"),
        ("--grace-s 1e9", "--grace-s: 1e9 s are more than a day: give at most 86400"),
        ("--server ftp://x", "--server: server URL 'ftp://x': the scheme must be http or https"),
        ("--port-range 9-1", "--port-range: port range '9-1' is not within 1-65535, the smaller one first"),
        *((f"{flag} ", f"{flag}: give a path: this one is empty") for flag in PATHS),
        ("--label rack", "--label: 'rack' must be LABEL=VALUE, for example rack=r1"),
        ("--on-join dance", "--on-join: 'dance': Input should be 'restart' or 'spare'"),
        ("--max_restarts -1", "--max_restarts: '-1': Input should be greater than or equal to 0"),
        ("--device tpu", "--device: invalid choice: 'tpu'"),
        ("--gpu 4", "unrecognized arguments: --gpu; see hetagent --help"),
    ],
)
def test_what_cannot_be_meant_is_refused(argv: str, message: str) -> None:
    assert refusal([*SERVER, *argv.split(" "), "train.py"]).startswith(message)


def test_what_is_missing_is_named() -> None:
    assert refusal(["--gpus"]) == "--gpus needs a value; see hetagent --help"
    for name in ("--no-python", "--run-path"):
        assert refusal([*SERVER, name]).startswith(f"{name} needs a script, but there is none")


def test_a_host_name_that_cannot_be_a_node_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "büro pc")
    assert refusal([*SERVER]) == "this host's name, 'büro pc', cannot be a node id: give --node-id"
    assert options("--node-id", "a", "train.py").node_id == "a"


def test_help(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """One screen with the flags of the first day, or all of them."""
    monkeypatch.setenv("COLUMNS", "80")
    said = {}
    for flag in ("-h", "--help", "--help-all"):
        with pytest.raises(SystemExit) as caught:
            parse_command_line([flag], {})
        assert caught.value.code == 0
        said[flag] = capsys.readouterr().out
    assert said["-h"] == said["--help"]
    assert len(said["-h"].splitlines()) <= 36
    assert max(map(len, "".join(said.values()).splitlines())) < 80
    actions = Parser()._actions
    there = {flag for action in actions for flag in action.option_strings}
    assert set(re.findall(r"--?[a-z][a-z-]+", said["-h"])) <= there | {"--lr"}
    shown = [
        action.option_strings[-1] for action in actions if action.option_strings and action.help != SUPPRESS
    ]
    assert [flag for flag in shown if f" {flag}" not in said["--help-all"]] == []
    assert "--master-addr" not in said["--help-all"]
