"""README and docs against the code: what a user meets is named there, and nothing that does not exist."""

import importlib
import pkgutil
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import cache
from pathlib import Path

import click
import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

import hetagent
import hetagent.cli.flags
import hetagent.cli.parse
import hetrdzv
from hetrdzv.cli import hetctl, hetserver
from hetrdzv.protocol import codec
from hetrdzv.protocol.errors import HetError
from hetrdzv.protocol.reasons.reason import ReasonCode
from hetrdzv.protocol.requests import SpecFields
from hetrdzv.protocol.routes import VERSION_HEADERS
from hetrdzv.protocol.settings import SETTINGS, GroupSpec
from hetrdzv.protocol.states import DirectiveKind, GroupState, NodePhase, ReportKind
from hetrdzv.service.event_log import WARNING_CODES
from hetrdzv.service.metrics import Metrics
from tests.support.routes import application
from tests.support.routes import routes as all_routes

ROOT = Path(__file__).parents[1]
PAGES = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
SOURCES = [*(ROOT / "rendezvous").rglob("*.py"), *(ROOT / "agent").rglob("*.py")]
TESTS = sorted({*(ROOT / "tests").rglob("*.py")} - {Path(__file__)})
OTHERS = {"--nproc-per", "--eval-bleu-args", "--distributed-backend", "--restore-file"}
"""What torchrun takes for --nproc-per-node, and options of fairseq and HetSeq."""
SCRIPTS = {"runner", "guardian_process", "horovod_store"}
"""Modules that are started by their path and not meant to be imported."""


# -- reading the pages ---------------------------------------------------------------------------------------


def page(name: str) -> str:
    """The text of README.md, or of a page in docs/."""
    return (ROOT / name).read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    """What stands under a heading, up to the next one that is not below it."""
    lines = iter(text.splitlines())
    level = next((len(line.split()[0]) for line in lines if re.fullmatch(rf"#+ {re.escape(title)}", line)), 0)
    assert level, f"there is no section '{title}'"
    under = []
    for line in lines:
        if re.match(rf"#{{1,{level}}} ", line):
            break
        under.append(line)
    return "\n".join(under)


def rows(text: str) -> list[list[str]]:
    """The cells of every row of every table, without headings."""
    found: list[list[str]] = []
    for line in text.splitlines():
        if re.fullmatch(r"\|[-|: ]+\|", line):
            found.pop()  # the heading above it
        elif line.startswith("|"):
            found.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return found


def quoted(cells: Iterable[str]) -> set[str]:
    """Everything in backticks."""
    return {word for cell in cells for word in re.findall(r"`([^`]+)`", cell)}


def examples(text: str) -> list[str]:
    """Lines of code blocks (indented by four) without their prompts."""
    lines = re.findall(r"^ {4}(?:\$ )?(\S.*)$", text, re.MULTILINE)
    return [line.removesuffix("...").rstrip() for line in lines]


def differences(what: str, where: str, told: AbstractSet[str], there: AbstractSet[str]) -> list[str]:
    """What is there and not told, and the other way round."""
    return [
        *(f"{what} {name} is missing in {where}" for name in sorted(there - told)),
        *(f"{where} names {what} {name}, which does not exist" for name in sorted(told - there)),
    ]


# -- flags ---------------------------------------------------------------------------------------------------


def flags_of(command: click.Command) -> set[str]:
    """Every spelling of every flag of a click command and its subcommands."""
    with click.Context(command) as context:
        found = {
            flag
            for parameter in command.get_params(context)
            for flag in (*parameter.opts, *parameter.secondary_opts)
        }
    for name in getattr(command, "commands", {}):
        found |= flags_of(command.commands[name])  # type: ignore[attr-defined]
    return {flag for flag in found if flag.startswith("-")} | {"-h"}


@cache
def flags() -> Mapping[str, set[str]]:
    """Every spelling of every flag, by program."""
    hetagent_s = {flag for action in hetagent.cli.flags.Parser()._actions for flag in action.option_strings}
    return {
        "hetagent": hetagent_s,
        "hetserver": flags_of(hetserver.main),
        "hetctl": flags_of(hetctl.hetctl_group),
    }


def flag_of(setting: str) -> str:
    """The flag of a setting of a group, if it has one."""
    flag = re.sub("^--(min|max)-(nodes|world)", r"--\2", f"--{setting.replace('_', '-')}")
    return flag.replace("--nodes", "--nnodes")


@pytest.mark.parametrize("program", ["hetagent", "hetserver", "hetctl"])
def test_every_flag_is_told(program: str) -> None:
    """Those of settings are told in docs/groups.md."""
    all_of_it, settings = flags()[program], {flag_of(name) for name in SETTINGS}
    there = {flag for flag in all_of_it if f"--{flag[2:].replace('_', '-')}" not in all_of_it - {flag}}
    first = [row[0] for row in rows(section(page("docs/flags.md"), program))]
    told = {word for word in quoted(first) if word.startswith("-")}
    assert differences("flag", f"docs/flags.md, {program},", told - settings, there - settings) == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_flag_that_is_mentioned_exists(path: Path) -> None:
    """In our own words, not in commands."""
    programs = "curl|docker|docker-compose|etcd|kubectl|mpirun|pip|python|hetagent|hetctl|hetserver|"
    programs += "ray|sbatch|scancel|scontrol|sky|sqlite3|srun|ss|systemctl"
    text = path.read_text(encoding="utf-8")
    text = re.sub(rf"^ {{4}}({programs}) .*$|`({programs}) [^`]*`", "", text, flags=re.MULTILINE)
    told = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9_-]*", text))
    examples = [*(ROOT / "examples").glob("*/*.py"), *(ROOT / "deploy").glob("*/*.py")]
    theirs = {flag for one in examples for flag in re.findall(r'"(--[a-z-]+)"', one.read_text("utf-8"))}
    assert told - set().union(*flags().values()) - theirs - OTHERS == set()


def test_every_command_of_hetctl_is_told() -> None:
    told = {
        word.split()[0] for word in quoted(row[0] for row in rows(section(page("docs/flags.md"), "hetctl")))
    }
    assert (
        differences(
            "command", "docs/flags.md", {w for w in told if w[0] != "-"}, set(hetctl.hetctl_group.commands)
        )
        == []
    )


def test_every_refused_flag_says_so() -> None:
    table = {flag: row for row in rows(page("docs/flags.md")) for flag in quoted([row[0]])}
    for flag, reason in hetagent.cli.flags.REFUSED.items():
        assert table[flag][1] == "refused", f"{flag} is refused: {reason}"
    refused = {flag for flag, row in table.items() if row[1] == "refused" and "_" not in flag}
    assert refused == set(hetagent.cli.flags.REFUSED)


# -- commands as they are typed ------------------------------------------------------------------------------


def check_example(line: str) -> list[str]:
    """A line of an example that calls one of our programs is one that it understands."""
    words = shlex.split(line, comments=True)
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words.pop(0)
    if not words or words[0] not in ("hetagent", "hetserver", "hetctl", "make"):
        return []
    program, *args = words
    try:
        match program:
            case "make":
                targets = re.findall(r"^([a-z-]+):", page("Makefile"), re.MULTILINE)
                assert args[0] in targets, f"there is no target {args[0]}"
            case "hetagent":
                hetagent.cli.parse.parse_command_line(args, {})
            case "hetserver":
                hetserver.main.make_context(program, args)
            case "hetctl":
                name, *rest = args
                hetctl.hetctl_group.commands[name].make_context(name, rest)
    except (ValueError, SystemExit, click.ClickException, KeyError, AssertionError) as error:
        return [f"`{line}` does not work: {error!r}"]
    return []


COMMANDS = [
    (path, line)
    for path in PAGES
    for line in examples(path.read_text(encoding="utf-8"))
    if line.startswith(("hetagent ", "hetserver", "hetctl ", "make "))
    and not re.search(r"[\[|]|    ", line.split("#")[0])
]


@pytest.mark.parametrize(("path", "line"), COMMANDS, ids=lambda value: getattr(value, "name", None))
def test_the_commands_in_the_examples_are_understood(path: Path, line: str) -> None:
    assert check_example(line) == []


def test_the_first_page_lists_every_other() -> None:
    there = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    told = set(re.findall(r"\]\(([\w-]+\.md)(?:#[\w-]+)?\)", page("docs/index.md")))
    assert differences("page", "docs/index.md", told, there) == []


# -- groups --------------------------------------------------------------------------------------------------


def shown(value: object) -> str:
    """A default or bound as the table shows it."""
    match value:
        case None | ():
            return "none"
        case int() | float():
            return str(int(value)) if float(value).is_integer() else str(value)
        case _:
            return str(value)


def test_every_setting_is_told() -> None:
    """With its default, its range, and whether it has no flag."""
    table = {next(iter(quoted([row[0]]))): row for row in rows(section(page("docs/groups.md"), "Settings"))}
    assert differences("field", "docs/groups.md", table.keys(), set(SETTINGS)) == []
    schemas = codec.type_adapter(SpecFields).json_schema()["properties"]
    for name, row in table.items():
        _, default, told, *_ = row
        assert default == shown(getattr(GroupSpec(), name)), name
        schema = schemas[name]
        for each in (*schema.get("anyOf", ()), schema, schema.get("items", {})):
            if "minimum" in each:
                assert told == f"{shown(each['minimum'])} to {shown(each['maximum'])}", name
        assert (flag_of(name) in flags()["hetagent"]) != row[-1].endswith("no flag"), name


def test_every_state_is_told() -> None:
    words = quoted([section(page("docs/groups.md"), "States")])
    shown = {*NodePhase, "not_ready", "spare", "stopping", "suspect", "drained"}  # of nodes, by `node_state`
    assert {*GroupState, *shown} - words == set()


# -- metrics -------------------------------------------------------------------------------------------------


def test_every_metric_is_told() -> None:
    text = Metrics().render_text((), now=0.0, open_polls=0, leads=True).decode()
    there = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in text_string_to_metric_families(text)
        if not family.name.endswith("_created")
    }
    told = {name for row in rows(section(page("docs/operations.md"), "Metrics")) for name in quoted([row[0]])}
    assert differences("metric", "docs/operations.md", told, there) == []


# -- routes --------------------------------------------------------------------------------------------------


@cache
def routes() -> Mapping[str, set[str]]:
    """The query parameters of every route, by `METHOD /path`."""
    return {name: {one.name for one in route.dependant.query_params} for name, route in all_routes().items()}


def test_the_version_of_the_api_is_told_as_it_is() -> None:
    told = page("docs/api.md")
    assert [header for header in VERSION_HEADERS.items() if "`{}: {}`".format(*header) not in told] == []


def test_every_route_is_told_with_its_parameters() -> None:
    table = {route: row for row in rows(page("docs/api.md")) for route in quoted([row[0]]) if " /" in route}
    assert differences("route", "docs/api.md", table.keys(), routes().keys()) == []
    for route, row in table.items():
        assert routes()[route] - quoted(row[1:]) == set(), route


def test_the_routes_that_pages_name_exist() -> None:
    for path in PAGES:
        for route in quoted([path.read_text(encoding="utf-8")]):
            if re.match(r"(GET|PUT|POST|DELETE) /", route):
                assert route.partition("?")[0] in routes(), f"{path.name}: {route}"


def test_every_kind_is_told() -> None:
    assert {*DirectiveKind, *ReportKind} - quoted([page("docs/api.md")]) == set()


def test_every_code_of_a_reason_is_told_and_which_are_warnings() -> None:
    table = {kind: row for row in rows(page("docs/events.md")) for kind in quoted([row[0]])}
    assert differences("event", "docs/events.md", table.keys(), {code.value for code in ReasonCode}) == []
    assert {kind for kind, row in table.items() if row[1].startswith("**warning**")} == set(WARNING_CODES)


# -- error codes ---------------------------------------------------------------------------------------------


def subclasses(kind: type[HetError]) -> Iterator[type[HetError]]:
    """A class and everything derived from it."""
    yield kind
    for derived in kind.__subclasses__():
        yield from subclasses(derived)


@cache
def codes() -> Mapping[str, int]:
    """The status of every code that a named error has, whichever module defines it."""
    for package in (hetrdzv, hetagent):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if module.name.rpartition(".")[2] not in SCRIPTS:
                importlib.import_module(module.name)
    ours = [kind for kind in subclasses(HetError) if kind.__module__.startswith(("hetrdzv.", "hetagent."))]
    return {kind.code: kind.status for kind in ours}


HTTP_CODES = {"no_such_route": 404, "method_not_allowed": 405, "http_error": 0}
"""Codes without a class, of the HTTP layer's own errors."""


def test_every_error_code_is_told_with_its_status() -> None:
    table = {code: row for row in rows(section(page("docs/api.md"), "Errors")) for code in quoted([row[0]])}
    assert differences("code", "docs/api.md", table.keys(), codes().keys() | HTTP_CODES.keys()) == []
    for code, status in codes().items():
        told = table[code][1]
        assert not re.match(r"\d", told) or str(status) in told.split(", "), code


async def test_the_codes_without_a_class_are_what_the_server_answers() -> None:
    transport = httpx.ASGITransport(application())
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answers = [await client.get("/nothing"), await client.post("/healthz")]
    found = {answer.json()["code"]: answer.status_code for answer in answers}
    assert {**found, "http_error": 0} == HTTP_CODES


# -- environment ---------------------------------------------------------------------------------------------


READ = re.compile(
    r'environ(?:\.\w+)?[\[(]\s*"([A-Z0-9_]+)"|getenv\("([A-Z0-9_]+)"|"([A-Z0-9_]+)" (?:not )?in \w*\.?environ'
)


def variables_in(source: str) -> set[str]:
    """Environment variables that a module's code reads or sets, other than such as HOME."""
    named = {name for groups in READ.findall(source) for name in groups if "_" in name}
    return named | set(re.findall(r"\bHET_[A-Z_]+\b", source))


def test_every_environment_variable_is_told() -> None:
    """In a table; and each of ours that is mentioned anywhere is one of the code, of deploy/ or of the tests."""
    there = set().union(*(variables_in(path.read_text(encoding="utf-8")) for path in SOURCES))
    assert there - quoted(row[0] for row in rows(page("docs/flags.md"))) == set()
    everything = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    deployed = [path for path in (ROOT / "deploy").rglob("*") if path.is_file() and path.suffix != ".pyc"]
    others = "".join(path.read_text(encoding="utf-8") for path in (*deployed, *TESTS))
    mentioned = set(re.findall(r"\bHET_[A-Z_]*[A-Z]\b", everything))
    assert {name for name in mentioned - there if name not in others} == set()


def test_the_variables_that_are_told_are_in_our_code_or_in_torch() -> None:
    import torch.distributed.elastic.agent.server.local_elastic_agent as agent
    import torch.distributed.run as run

    torchs = "".join(Path(module.__file__ or "").read_text(encoding="utf-8") for module in (agent, run))
    for name in quoted(row[0] for row in rows(page("docs/flags.md"))):
        if re.fullmatch(r"[A-Z][A-Z_]+", name) and not name.startswith("PET_"):
            ours = any(name in path.read_text(encoding="utf-8") for path in SOURCES)
            assert ours or f'"{name}"' in torchs or name == "TORCHELASTIC_ERROR_FILE", name


# -- dependencies --------------------------------------------------------------------------------------------


def test_every_dependency_is_told() -> None:
    project = tomllib.loads(page("pyproject.toml"))
    extras = project["project"]["optional-dependencies"] | project["dependency-groups"]
    asked = [*project["project"]["dependencies"], *(one for extra in extras.values() for one in extra)]
    asked += project["build-system"]["requires"]
    there = {re.split(r"[^A-Za-z0-9._-]", one)[0] for one in asked}
    told = quoted(row[0] for row in rows(section(page("docs/design.md"), "Dependencies")))
    assert differences("dependency", "docs/design.md", told, there) == []


# -- the pages themselves ------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to headings."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    """To files of this repository, and to headings in them."""
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if not re.match(r"[a-z]+://", target):
            file, _, anchor = target.partition("#")
            aim = (path.parent / file).resolve() if file else path
            assert aim.exists(), target
            assert not anchor or anchor in anchors(aim.read_text(encoding="utf-8")), target


# -- the architecture ----------------------------------------------------------------------------------------

PACKAGES = ("rendezvous/hetrdzv", "agent/hetagent")
BASES = ("", *PACKAGES, *(f"{package}/protocol" for package in PACKAGES))
"""Where a path that a page names may begin."""


def check_paths(text: str, there: AbstractSet[str]) -> list[str]:
    """Files and folders that a page names by their path exist, from the top or from a package."""
    told = {word.rstrip("/") for word in quoted([text]) if re.fullmatch(r"[\w.]+/[\w./]*", word)}
    told -= {word for word in told if re.search(r"\bNAME\b", word)}
    return [
        f"there is no {word}"
        for word in sorted(told)
        if not any(f"{base}/{word}".removeprefix("/") in there for base in BASES)
    ]


def tree(text: str) -> list[str]:
    """The paths in an indented list of folders and files; folders end with a slash."""
    found: list[str] = []
    inside: list[tuple[int, str]] = []  # the folders that a line is in, with their indentation
    for line in text.splitlines():
        if (entry := re.match(r"^ {4}( *)([\w./-]+(?:/|\.py)) +(.*)$", line)) is None:
            continue
        depth, name, about = len(entry[1]), entry[2], entry[3]
        while inside and inside[-1][0] >= depth:
            inside.pop()
        path = f"{inside[-1][1] if inside else ''}{name}"
        found.append(path)
        if name.endswith("/"):
            inside.append((depth, path))
        folder = path if name.endswith("/") else path.rpartition("/")[0] + "/"
        found += [f"{folder}{module}" for module in re.findall(r"\b[a-z_]+\.py\b", about)]
    return found


@cache
def everything() -> frozenset[str]:
    """Files and folders that a page may name."""
    tops = (".ci", "agent", "benchmarks", "deploy", "docs", "examples", "rendezvous", "tests")
    paths = [*ROOT.glob("*"), *(path for top in tops for path in (ROOT / top).rglob("*"))]
    return frozenset(path.relative_to(ROOT).as_posix() for path in paths)


@pytest.mark.parametrize("name", ["docs/design.md", "docs/launch.md", "CONTRIBUTING.md"])
def test_the_paths_that_a_page_names_exist(name: str) -> None:
    assert check_paths(page(name), everything()) == []


def test_the_architecture_has_every_folder() -> None:
    """And names no other folder or module."""
    files = {path.relative_to(ROOT).as_posix() for path in SOURCES}
    folders = {f"{file.rpartition('/')[0]}/" for file in files}
    told = set(tree(section(page("docs/design.md"), "Folders")))
    assert (told - files - folders, folders - told) == (set(), set())
