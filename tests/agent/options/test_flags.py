"""hetagent's command line: which of torchrun's flags mean the same, which are refused, what belongs to the script."""

import dataclasses
import signal
from argparse import SUPPRESS
from collections.abc import Sequence
from pathlib import Path

import pytest

from hetagent.cli import usage
from hetagent.cli.flags import SPEC_FLAGS, parser
from hetagent.cli.parse import parse
from hetagent.errors import UsageError
from hetagent.options.model import Options, TorchrunOptions
from hetagent.options.torchrun import REFUSED, spellings

SERVER = ("--server", "http://host:29400")


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HET_SERVER", "HET_GROUP", "PET_NNODES", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("socket.gethostname", lambda: "gpu7")


def options(*argv: str, environ: dict[str, str] | None = None) -> Options:
    return parse([*SERVER, *argv], environ or {})


# -- torchrun's flags ----------------------------------------------------------------------------------------

TYPED: dict[str, tuple[Sequence[str], object]] = {
    "role": (["--role", "trainer"], "trainer"),
    "module": (["-m"], True),
    "no_python": (["--no-python"], True),
    "run_path": (["--run-path"], True),
    "virtual_local_rank": (["--virtual-local-rank"], True),
    "numa_binding": (["--numa-binding", "node"], "node"),
    "log_dir": (["--log-dir", "/logs"], "/logs"),
    "log_line_prefix_template": (["--log-line-prefix-template", "${rank}:"], "${rank}:"),
    "logs_specs": (["--logs-specs", "mine"], "mine"),
    "redirects": (["-r", "0:1,11:2"], {0: 1, 11: 2}),
    "tee": (["-t", "3"], 3),
    "local_ranks_filter": (["--local-ranks-filter", "0,1"], frozenset({0, 1})),
    "duplicate_stdout_filters": (["--duplicate-stdout-filters", "a,,b,c"], ("a,b", "c")),
    "duplicate_stderr_filters": (["--duplicate-stderr-filters", "a"], ("a",)),
}


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(TorchrunOptions)])
def test_what_torchs_agent_gets_has_a_type(name: str) -> None:
    flags, value = TYPED[name]
    found = getattr(options(*flags, "train.py").torchrun, name)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("flag", REFUSED)
def test_refused_with_the_reason(flag: str) -> None:
    for spelling in spellings(flag):
        with pytest.raises(UsageError) as caught:
            options(spelling, "127.0.0.1", "train.py")
        assert str(caught.value) == f"{flag} cannot be used with hetagent: {REFUSED[flag]}"
    assert [action.help for action in parser()._actions if flag in action.option_strings] == [SUPPRESS]


def test_all_refused_flags_are_named_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        options("--rdzv-endpoint=host0:29500", "--node_rank", "1", "--nnodes", "2", "train.py")
    assert str(caught.value) == (
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


def test_variables_for_refused_flags_are_ignored_with_a_note(monkeypatch: pytest.MonkeyPatch) -> None:
    environ = {"PET_MASTER_ADDR": "10.0.0.1", "PET_RDZV_BACKEND": "c10d", "PET_NODE_RANK": "1"}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert options("train.py", environ=environ).notes == (
        "ignoring PET_MASTER_ADDR: the server chooses the master of every round",
        "ignoring PET_NODE_RANK: the server assigns the ranks",
        f"ignoring PET_RDZV_BACKEND: {REFUSED['--rdzv-backend']}",
    )


def test_variables_of_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NNODES", "2:3")
    monkeypatch.setenv("PET_MAX_RESTARTS", "5")
    monkeypatch.setenv("PET_NO_PYTHON", "1")
    monkeypatch.setenv("PET_MODULE", "0")
    monkeypatch.setenv("PET_NPROC_PER_NODE", "4")
    monkeypatch.setenv("PET_RDZV_ID", "bert")
    found = options("train.sh")
    assert found.spec == {"min_nodes": 2, "max_nodes": 3, "max_restarts": 5}
    assert (found.torchrun.no_python, found.torchrun.module) == (True, False)
    assert (found.nproc_per_node, found.group) == ("4", "bert")


def test_flags_override_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_NNODES", "2")
    monkeypatch.setenv("PET_NPROC_PER_NODE", "4")
    monkeypatch.setenv("PET_RDZV_ID", "bert")
    found = options("--nnodes", "3", "--gpus", "2", "--group", "gpt", "train.py")
    assert (found.spec["min_nodes"], found.gpus, found.nproc_per_node, found.group) == (3, "2", None, "gpt")


def test_a_switch_variable_that_is_neither_0_nor_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PET_STANDALONE", "yes")
    with pytest.raises(UsageError, match=r"^PET_STANDALONE must be 0 or 1, which 'yes' is not$"):
        options("train.py")


def test_what_was_not_given_has_no_value() -> None:
    found = options("train.py")
    assert found.spec == {}
    assert (found.gpus, found.nproc_per_node, found.shutdown_timeout_s, found.local_addr) == (None,) * 4
    assert (found.group, found.node_id, found.connect_timeout_s) == ("default", "gpu7", 60.0)
    assert (found.port_range, found.labels, found.notes) == (None, {}, ())
    assert found.torchrun == TorchrunOptions(
        role="default",
        module=False,
        no_python=False,
        run_path=False,
        virtual_local_rank=False,
        numa_binding=None,
        log_dir=None,
        log_line_prefix_template=None,
        logs_specs=None,
        redirects=0,
        tee=0,
        local_ranks_filter=None,
        duplicate_stdout_filters=(),
        duplicate_stderr_filters=(),
    )
    assert found.signals == (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


# -- the script's own ----------------------------------------------------------------------------------------


def test_what_follows_the_script_is_the_scripts() -> None:
    found = options(
        "--gpus", "4", "train.py", "--gpus", "3", "--log", "x", "-m", "--server", "y", "--", "--nnodes", "9"
    )
    assert found.script == "train.py"
    assert found.script_args == ("--gpus", "3", "--log", "x", "-m", "--server", "y", "--", "--nnodes", "9")
    assert (found.gpus, found.servers, found.spec, found.torchrun.log_dir) == (
        "4",
        ("http://host:29400",),
        {},
        None,
    )


@pytest.mark.parametrize(
    "flags", [["--gpus", "4"], [], ["--tee=3", "--nnodes=2"], ["-m", "--label", "rack=1"]]
)
def test_a_script_between_any_flags_and_its_arguments(flags: list[str]) -> None:
    found = options(*flags, "train", "-r", "--help")
    assert (found.script, found.script_args) == ("train", ("-r", "--help"))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--gpu", "4"], "unrecognized arguments: --gpu; see hetagent --help"),
        (["--client"], "unrecognized arguments: --client"),
        (["--frobnicate", "-q"], "unrecognized arguments: --frobnicate -q; see hetagent --help"),
        (["--gpus"], "--gpus needs a value; see hetagent --help"),
    ],
)
def test_no_flag_is_guessed(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        options(*argv)
    assert message in str(caught.value)


def test_a_server_behind_the_script() -> None:
    for flag in ("--server", "--standalone"):
        with pytest.raises(
            UsageError, match=f"^{flag} comes after train.py, so it belongs to the script: put it"
        ):
            parse(["train.py", flag, "x"], {})


def test_a_wrong_variable_is_named_with_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value, says in (
        ("PET_NNODES", "two", "PET_NNODES: 'two' must be N or MIN:MAX"),
        ("PET_MAX_RESTARTS", "often", "PET_MAX_RESTARTS=often: 'often': Input should be a valid integer"),
        ("PET_MAX_RESTARTS", "-1", "PET_MAX_RESTARTS=-1: '-1': Input should be greater than or equal to 0"),
        ("PET_REDIRECTS", "4", "PET_REDIRECTS=4 does not name streams"),
        ("PET_SIGNALS_TO_HANDLE", "SIGNOPE", "PET_SIGNALS_TO_HANDLE=SIGNOPE: there is no signal 'SIGNOPE'"),
        ("PET_LOCAL_RANKS_FILTER", "x", "PET_LOCAL_RANKS_FILTER=x must be local ranks"),
        ("PET_RDZV_ID", "a b", "PET_RDZV_ID 'a b' must be 1 to 128"),
        ("PET_ROLE", "a b", "PET_ROLE 'a b' must be 1 to 128"),
    ):
        monkeypatch.setenv(name, value)
        with pytest.raises(UsageError) as caught:
            options("train.py")
        assert says in str(caught.value)
        monkeypatch.delenv(name)
    for name, value, says in (
        ("HET_GROUP", "a b", "HET_GROUP 'a b' must be"),
        (
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT",
            "5s",
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT=5s: '5s' is not a number of",
        ),
        ("HET_GRACE_S", "5s", "HET_GRACE_S=5s: '5s' is not a number of seconds"),
        ("HET_GRACE_S", "86401", "HET_GRACE_S=86401: 86401 s are more than a day"),
    ):
        with pytest.raises(UsageError) as caught:
            options("train.py", environ={name: value})
        assert says in str(caught.value)


@pytest.mark.parametrize("argv", [[], ["--gpus", "4"], ["--gpus", "4", "--"]])
def test_without_a_script(argv: list[str]) -> None:
    found = options(*argv)
    assert (found.script, found.script_args) == (None, ())


@pytest.mark.parametrize(
    ("flag", "said"), [("-m", "--module"), ("--no-python", "--no-python"), ("--run-path", "--run-path")]
)
def test_how_to_start_a_script_that_is_not_there(flag: str, said: str) -> None:
    with pytest.raises(UsageError, match=f"{said} says how to start a script, but there is none"):
        options(flag)


# -- ours ----------------------------------------------------------------------------------------------------


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


@pytest.mark.parametrize(
    ("text", "spec"),
    [
        ("8", {"min_world_size": 8, "max_world_size": 8}),
        ("8:", {"min_world_size": 8}),
        (":16", {"max_world_size": 16}),
        ("0", "0: MIN must be at least 1, and MAX not below MIN"),
        ("9:8", "9:8: MIN must be at least 1, and MAX not below MIN"),
        (":", "':' must be N or MIN:MAX in slots, for example 8 or 8:16, or 8: for 8 or more"),
        ("x", "'x' must be N or MIN:MAX"),
    ],
)
def test_world_sizes(text: str, spec: dict[str, int] | str) -> None:
    if isinstance(spec, str):
        with pytest.raises(UsageError, match=f"--world-size: {spec}"):
            options("--world-size", text)
    else:
        assert options("--world-size", text).spec == spec


def test_servers_and_group_from_the_environment() -> None:
    environ = {"HET_SERVER": "one,http://two:1", "HET_GROUP": "bert"}
    found = parse(["train.py"], environ)
    assert (found.servers, found.group) == (("http://one:29400", "http://two:1"), "bert")
    found = parse(["--server", "three", "--group", "gpt", "train.py"], environ)
    assert (found.servers, found.group) == (("http://three:29400",), "gpt")


def test_standalone_needs_no_server_and_fixes_one_node() -> None:
    found = parse(["--standalone", "train.py"], {"HET_SERVER": "one"})
    assert (found.standalone, found.servers, found.spec) == (True, (), {"min_nodes": 1, "max_nodes": 1})


@pytest.mark.parametrize(
    ("words", "fits"), [("2 2", True), ("2 1:3", True), ("auto 3", True), ("1 3", False), ("4 1:3", False)]
)
def test_one_node_alone_has_the_world_size_that_was_asked_for(words: str, fits: bool) -> None:
    slots, sizes = words.split()
    argv = ["--standalone", "--device", "cpu", "--gpus", slots, "--world-size", sizes, "train.py"]
    if fits:
        parse(argv, {})
        return
    with pytest.raises(
        UsageError, match=rf"one node, which has {slots} workers? here, and --world-size rules"
    ):
        parse(argv, {})


def test_a_standalone_job_has_a_group_of_its_own_unless_one_is_named() -> None:
    groups = {parse(["--standalone", "train.py"], {}).group for _ in range(3)}
    assert len(groups) == 3
    assert all(group.startswith("standalone-") for group in groups)
    assert parse(["--standalone", "--rdzv-id", "bert", "train.py"], {}).group == "bert"
    assert parse(["--standalone", "train.py"], {"HET_GROUP": "gpt"}).group == "gpt"


def test_the_rest_of_ours() -> None:
    found = options(
        *("--gpus", "0,2", "--device", "cuda", "--node-id", "a", "--token-file", "t", "--interface", "ib0"),
        *(
            "--port-range",
            "29500-29600",
            "--label",
            "rack=1",
            "--label",
            "note=a=b",
            "--connect-timeout-s",
            "5",
            "--weight",
            "0.5",
        ),
    )
    assert (found.gpus, found.device, found.node_id, found.token_file) == ("0,2", "cuda", "a", Path("t"))
    assert (found.interface, found.port_range, found.connect_timeout_s) == ("ib0", (29500, 29600), 5.0)
    assert found.labels == {"rack": "1", "note": "a=b"}
    assert found.weight == 0.5
    assert options("train.py").weight is None


def test_how_long_a_node_has_that_has_to_go() -> None:
    assert options("train.py").grace_s == 25
    assert options("train.py", environ={"HET_GRACE_S": "115"}).grace_s == 115
    assert options("--grace-s", "0", "train.py", environ={"HET_GRACE_S": "115"}).grace_s == 0


def test_torchruns_variable_for_the_stop_timeout() -> None:
    environ = {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "12"}
    assert options("train.py", environ=environ).shutdown_timeout_s == 12
    assert options("--shutdown-timeout", "9", "train.py", environ=environ).shutdown_timeout_s == 9


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--nproc-per-node", "2", "--gpus", "2"], "--gpus and --nproc-per-node mean the same thing: give only one"),
        (["--local-addr", "a", "--interface", "b"], "--local-addr and --interface mean the same thing: give only one"),
        (["--group", ""], "--group '' must be 1 to 128 letters"),
        (["--rdzv-id", ""], "--rdzv-id '' must be 1 to 128 letters"),
        (["--group", "a", "--rdzv-id", "b"], "--group is 'a', but --rdzv-id is 'b': they mean the same"),
        (["--standalone"], "--standalone starts its own server: leave --server out"),
        (["--weight", "0"], "--weight: '0' is not a number from 1e-06 to 1e\\+06"),
        (["--weight", "nan"], "--weight: 'nan' is not a number from 1e-06"),
        (["--rank-order", "stiky"], "--rank-order: 'stiky': must be sticky or topology:LABEL"),
        (["--unit", "rack=1"], "--unit: 'rack=1': must be the name of one label, such as rack"),
        (["--master", "a b"], "--master: 'a b': must be LABEL=VALUE or a node id"),
        (["--nnodes", "two"], "--nnodes: 'two' must be N or MIN:MAX"),
        (["--nnodes", "1:2:3"], "--nnodes: '1:2:3' must be N or MIN:MAX"),
        (["--nnodes", "0"], "--nnodes: 0: MIN must be at least 1"),
        (["--nnodes", "3:2"], "--nnodes: 3:2: MIN must be at least 1, and MAX not below MIN"),
        (["--group", "a b"], "--group 'a b' must be 1 to 128 letters, digits"),
        (["--group", ".."], "--group '..' must be .* .not only dots"),
        (["--node-id", ""], "--node-id '' must be 1 to 128 letters"),
        (["--node-id", "a/b"], "--node-id 'a/b' must be"),
        (["--signals-to-handle", "SIGTERM,SIGNOPE"], "there is no signal 'SIGNOPE'"),
        (["--signals-to-handle", "SIGKILL"], "no program can handle SIGKILL"),
        (["--local-ranks-filter", "0,x"], "--local-ranks-filter 0,x must be local ranks, for example"),
        (["--redirects", "4"], "--redirects 4 does not name streams: 0 none, 1 stdout, 2 stderr"),
        (["--tee", "0:1,"], "--tee 0:1, does not name streams"),
        (["--shutdown-timeout", "-1"], "--shutdown-timeout: '-1' is not a number of seconds"),
        (["--grace-s", "nan"], "--grace-s: 'nan' is not a number of seconds"),
        (["--grace-s", "1e9"], "--grace-s: 1e9 s are more than a day: give at most 86400"),
        (["--server", "ftp://x"], "--server: server URL 'ftp://x': the scheme must be http or https"),
    ],
)  # fmt: skip
def test_contradictions(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        options(*argv, "train.py")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["--port-range", "9-1"],
            "--port-range: port range '9-1' is not within 1-65535, the smaller one first",
        ),
        (["--label", "rack"], "--label: 'rack' must be LABEL=VALUE, for example rack=r1"),
        (["--lease-s", "nan"], "--lease-s: 'nan': Input should be less than or equal to 3600"),
        (["--lease-s", "5s"], "--lease-s: '5s': Input should be a valid number"),
        (["--lease-s", "0.1"], "--lease-s: '0.1': Input should be greater than or equal to 0.5"),
        (["--connect-timeout-s", "-1"], "--connect-timeout-s: '-1' is not a number of seconds"),
        (["--on-join", "dance"], "--on-join: 'dance': Input should be 'restart' or 'spare'"),
        (["--max-restarts", "often"], "--max-restarts: 'often': Input should be a valid integer"),
        (["--max_restarts", "-1"], "--max_restarts: '-1': Input should be greater than or equal to 0"),
    ],
)
def test_malformed_values(argv: list[str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        options(*argv, "train.py")
    assert str(caught.value).startswith(message)


def test_no_server() -> None:
    with pytest.raises(UsageError, match=r"no server: give --server http://host:29400 .*, or --standalone"):
        parse(["train.py"], {})
    with pytest.raises(UsageError, match="HET_SERVER: server URL 'a b': 'a b' is not a host name"):
        parse(["train.py"], {"HET_SERVER": "a b"})


def test_a_host_name_that_cannot_be_a_node_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "büro pc")
    with pytest.raises(UsageError, match="this host's name, 'büro pc', cannot be a node id: give --node-id"):
        options("train.py")
    assert options("--node-id", "a", "train.py").node_id == "a"


def said_by(argv: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What is printed instead of running."""
    with pytest.raises(SystemExit) as caught:
        parse(argv, {})
    assert caught.value.code == 0
    return capsys.readouterr().out


def test_help_fits_on_one_screen(capsys: pytest.CaptureFixture[str]) -> None:
    said = said_by(["--help"], capsys)
    assert said_by(["-h"], capsys) == said
    lines = said.splitlines()
    assert len(lines) <= 36
    assert max(map(len, lines)) <= 79
    there = {flag for action in parser()._actions for flag in action.option_strings}
    flags = [flag.split()[0] for part in usage.FIRST.values() for flag in part]
    assert set(flags) <= there
    assert all(f"  {flag}" in said for flag in flags)


def test_all_flags_are_shown(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    said = said_by(["--help-all"], capsys)
    shown = [action for action in parser()._actions if action.option_strings and action.help != SUPPRESS]
    assert [action.option_strings for action in shown if f" {action.option_strings[-1]}" not in said] == []
    assert "--master-addr" not in said
    assert max(map(len, said.splitlines())) < 80
