"""README and docs against the code: what a user meets is named there, and nothing that does not exist.

Each check is a function of texts and of what the code has; it returns complaints.
"""

import ast
import importlib
import pkgutil
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from functools import cache
from pathlib import Path
from typing import Any

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
from hetrdzv.protocol.states import NODE_STATES, DirectiveKind, GroupState, ReportKind
from hetrdzv.service.journal import WARNINGS
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
    return {"hetagent": hetagent_s, "hetserver": flags_of(hetserver.main), "hetctl": flags_of(hetctl.cli)}


def flag_of(setting: str) -> str:
    """The flag of a setting of a group, if it has one."""
    flag = re.sub("^--(min|max)-(nodes|world)", r"--\2", f"--{setting.replace('_', '-')}")
    return flag.replace("--nodes", "--nnodes")


def check_flags(text: str, program: str, there: AbstractSet[str]) -> list[str]:
    """The flags in the first cells of a program's tables are exactly its flags but for those of settings."""
    first = [row[0] for row in rows(section(text, program))]
    told = {word for word in quoted(first) if word.startswith("-")}
    settings = {flag_of(name) for name in SETTINGS}
    there, told = there - settings, told - settings
    return differences(f"{program}'s flag", f"docs/flags.md, {program}", told, there)


@pytest.mark.parametrize("program", ["hetagent", "hetserver", "hetctl"])
def test_every_flag_is_told(program: str) -> None:
    there = {
        flag
        for flag in flags()[program]
        if f"--{flag[2:].replace('_', '-')}" not in flags()[program] - {flag}
    }
    assert check_flags(page("docs/flags.md"), program, there) == []


def check_mentions(text: str, there: AbstractSet[str]) -> list[str]:
    """A flag that is mentioned in our own words is one of ours, of torchrun's parser, or of an example."""
    others = "curl|docker|docker-compose|etcd|kubectl|mpirun|pip|python|"
    others += "ray|sbatch|scancel|scontrol|sky|sqlite3|srun|ss|systemctl"
    text = re.sub(rf"^ {{4}}({others}|hetagent|hetctl|hetserver) .*$", "", text, flags=re.MULTILINE)
    text = re.sub(rf"`({others}) [^`]*`", "", text)
    told = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9_-]*", text))
    return [
        f"{flag} is no flag of anything here" for flag in sorted(told - there - flags_of_examples() - OTHERS)
    ]


@cache
def flags_of_examples() -> frozenset[str]:
    """Every flag of the programs under examples/ and deploy/."""
    programs = [*(ROOT / "examples").glob("*/*.py"), *(ROOT / "deploy").glob("*/*.py")]
    return frozenset(
        flag for path in programs for flag in re.findall(r'"(--[a-z-]+)"', path.read_text("utf-8"))
    )


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_every_flag_that_is_mentioned_exists(path: Path) -> None:
    assert check_mentions(path.read_text(encoding="utf-8"), set().union(*flags().values())) == []


def test_every_command_of_hetctl_is_told() -> None:
    told = {
        word.split()[0] for word in quoted(row[0] for row in rows(section(page("docs/flags.md"), "hetctl")))
    }
    assert (
        differences("command", "docs/flags.md", {w for w in told if w[0] != "-"}, set(hetctl.cli.commands))
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
                hetagent.cli.parse.parse(args, {})
            case "hetserver":
                hetserver.main.make_context(program, args)
            case "hetctl":
                name, *rest = args
                hetctl.cli.commands[name].make_context(name, rest)
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


@pytest.mark.parametrize("path", sorted((ROOT / "docs").glob("*.md")), ids=lambda path: path.name)
def test_a_command_on_one_group_names_it(path: Path) -> None:
    names = "|".join(name for name, found in hetctl.cli.commands.items() if needs_group(found))
    assert re.findall(rf"`hetctl (?:{names})`", path.read_text(encoding="utf-8")) == []


def needs_group(command: click.Command) -> bool:
    """Whether a command of hetctl cannot do without the name of a group; `create` makes one."""
    return command.name != "create" and any(one.name == "group" and one.required for one in command.params)


def test_the_examples_are_found() -> None:
    found = {line.split()[0] for path, line in COMMANDS if path.name == "README.md"}
    assert found == {"make", "hetagent", "hetserver", "hetctl"}


def check_list_of_docs(text: str, there: AbstractSet[str]) -> list[str]:
    """The first page of the docs names every other one."""
    told = set(re.findall(r"\]\(([\w-]+\.md)(?:#[\w-]+)?\)", text))
    return differences("page", "docs/index.md", told, there)


def test_the_first_page_lists_every_other() -> None:
    there = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert check_list_of_docs(page("docs/index.md"), there) == []


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


def check_spec(text: str) -> list[str]:
    """The table of settings has every field of a spec with its default and its range, and says which has no flag."""
    table = {next(iter(quoted([row[0]]))): row for row in rows(section(text, "Settings"))}
    wrong = differences("field", "docs/groups.md", table.keys(), set(SETTINGS))
    spec = GroupSpec()
    bounds = {}
    for name, schema in codec.adapter(SpecFields).json_schema()["properties"].items():
        for each in (*schema.get("anyOf", ()), schema, schema.get("items", {})):
            if "minimum" in each:
                bounds[name] = f"{shown(each['minimum'])} to {shown(each['maximum'])}"
    for name in table.keys() & set(SETTINGS):
        _, default, told, *_ = table[name]
        if default != shown(getattr(spec, name)):
            wrong.append(f"the default of {name} is {shown(getattr(spec, name))}, not {default}")
        if told != bounds.get(name, told):
            wrong.append(f"the range of {name} is {bounds[name]}, not {told}")
        if (flag_of(name) in flags()["hetagent"]) == table[name][-1].endswith("no flag"):
            wrong.append(f"{name} has a flag, or has none")
    return wrong


def test_every_setting_is_told() -> None:
    assert check_spec(page("docs/groups.md")) == []


def test_every_state_is_told() -> None:
    words = quoted([section(page("docs/groups.md"), "States")])
    assert {*GroupState, *NODE_STATES} - words == set()


# -- metrics -------------------------------------------------------------------------------------------------


def check_metrics(text: str, there: AbstractSet[str]) -> list[str]:
    """The table of metrics has every one by the name under which Prometheus finds it."""
    told = {name for row in rows(section(text, "Metrics")) for name in quoted([row[0]])}
    return differences("metric", "docs/operations.md", told, there)


def test_every_metric_is_told() -> None:
    text = Metrics().render((), now=0.0, open_polls=0, leads=True).decode()
    there = {
        f"{family.name}_total" if family.type == "counter" else family.name
        for family in text_string_to_metric_families(text)
        if not family.name.endswith("_created")
    }
    assert check_metrics(page("docs/operations.md"), there) == []


# -- routes --------------------------------------------------------------------------------------------------


@cache
def routes() -> Mapping[str, set[str]]:
    """The query parameters of every route, by `METHOD /path`."""
    return {name: {one.name for one in route.dependant.query_params} for name, route in all_routes().items()}


def check_routes(text: str, there: Mapping[str, AbstractSet[str]]) -> list[str]:
    """The tables have every route and its parameters; every route anywhere in the page exists."""
    table = {route: row for row in rows(text) for route in quoted([row[0]]) if re.match(r"[A-Z]+ /", route)}
    wrong = differences("route", "docs/api.md", table.keys(), there.keys())
    mentioned = {word.partition("?")[0] for word in quoted([text]) if re.match(r"[A-Z]+ /", word)}
    wrong += [f"there is no route {route}" for route in sorted(mentioned - there.keys())]
    for route in table.keys() & there.keys():
        wrong += [f"{route} takes {name}" for name in sorted(there[route] - quoted(table[route][1:]))]
    return wrong


def test_the_version_of_the_api_is_told_as_it_is() -> None:
    told = page("docs/api.md")
    assert [header for header in VERSION_HEADERS.items() if "`{}: {}`".format(*header) not in told] == []


def test_every_route_is_told() -> None:
    assert check_routes(page("docs/api.md"), routes()) == []


def test_the_routes_that_the_other_pages_name_exist() -> None:
    for path in PAGES:
        for route in quoted([path.read_text(encoding="utf-8")]):
            if re.match(r"(GET|PUT|POST|DELETE) /", route):
                assert route.partition("?")[0] in routes(), f"{path.name}: {route}"


def test_every_kind_is_told() -> None:
    assert {*DirectiveKind, *ReportKind} - quoted([page("docs/api.md")]) == set()


@cache
def events() -> frozenset[str]:
    """Every code of a reason."""
    return frozenset(code.value for code in ReasonCode)


def check_events(text: str, there: AbstractSet[str], warnings: AbstractSet[str]) -> list[str]:
    """The tables have every code, and say which are logged as warnings."""
    table = {kind: row for row in rows(text) for kind in quoted([row[0]])}
    wrong = differences("event", "docs/events.md", table.keys(), there)
    for kind in table.keys() & there:
        if table[kind][1].startswith("**warning**") != (kind in warnings):
            wrong.append(f"{kind} is{' not' if kind not in warnings else ''} logged as a warning")
    return wrong


def test_every_kind_of_event_is_told() -> None:
    text = page("docs/events.md")
    assert check_events(text, events(), WARNINGS) == []


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


def check_codes(text: str, there: Mapping[str, int]) -> list[str]:
    """The tables have every code with its status."""
    table = {code: row for row in rows(section(text, "Errors")) for code in quoted([row[0]])}
    wrong = differences("code", "docs/api.md", table.keys(), there.keys() | HTTP_CODES.keys())
    for code in table.keys() & there.keys():
        status = table[code][1]
        if re.match(r"\d", status) and str(there[code]) not in status.split(", "):
            wrong.append(f"{code} has status {there[code]}, not {status}")
    return wrong


def test_every_error_code_is_told() -> None:
    assert check_codes(page("docs/api.md"), codes()) == []


async def test_the_codes_without_a_class_are_what_the_server_answers() -> None:
    transport = httpx.ASGITransport(application())
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        answers = [await client.get("/nothing"), await client.post("/healthz")]
    found = {answer.json()["code"]: answer.status_code for answer in answers}
    assert {**found, "http_error": 0} == HTTP_CODES


# -- environment ---------------------------------------------------------------------------------------------


def variables_in(source: str) -> set[str]:
    """Environment variables that a module's code reads or sets."""
    found = set(re.findall(r"\bHET_[A-Z_]+\b", source))
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(
                func=ast.Attribute(value=value, attr="get" | "pop" | "setdefault"),
                args=[ast.Constant(name), *_],
            ):
                holder = value
            case ast.Call(func=ast.Attribute(value=value, attr="getenv"), args=[ast.Constant(name), *_]):
                found.add(str(name))
                continue
            case ast.Subscript(value=value, slice=ast.Constant(name)):
                holder = value
            case ast.Compare(left=ast.Constant(name), ops=[ast.In() | ast.NotIn()], comparators=[value]):
                holder = value
            case _:
                continue
        if ast.unparse(holder).endswith("environ"):
            found.add(str(name))
    return {name for name in found if re.fullmatch(r"[A-Z][A-Z0-9]*(_[A-Z0-9]+)+", name)}


@cache
def variables() -> set[str]:
    """Environment variables of all our code."""
    return set().union(*(variables_in(path.read_text(encoding="utf-8")) for path in SOURCES))


def check_variables(told: str, anywhere: str, there: AbstractSet[str]) -> list[str]:
    """docs/flags.md has every variable in a table; every one of ours that is mentioned anywhere exists."""
    table = quoted(row[0] for row in rows(told))
    wrong = [f"variable {name} is missing in docs/flags.md" for name in sorted(there - table)]
    mentioned = set(re.findall(r"\bHET_[A-Z_]*[A-Z]\b", anywhere)) - deployed() - of_the_tests()
    return [*wrong, *(f"there is no variable {name}" for name in sorted(mentioned - there))]


@cache
def deployed() -> frozenset[str]:
    """Variables that the examples of deployment take themselves."""
    files = (path for path in (ROOT / "deploy").rglob("*") if path.is_file() and path.suffix != ".pyc")
    return frozenset(
        name for path in files for name in re.findall(r"\$\{(HET_[A-Z_]*[A-Z])\b", path.read_text("utf-8"))
    )


@cache
def of_the_tests() -> frozenset[str]:
    """Variables that switch something in our tests."""
    return frozenset(
        name for path in TESTS for name in re.findall(r'"(HET_TEST_[A-Z]+)"', path.read_text("utf-8"))
    )


def test_every_environment_variable_is_told() -> None:
    everything = "".join(path.read_text(encoding="utf-8") for path in PAGES)
    assert check_variables(page("docs/flags.md"), everything, variables()) == []


def test_the_variables_that_are_told_are_in_our_code_or_in_torch() -> None:
    import torch.distributed.elastic.agent.server.local_elastic_agent as agent
    import torch.distributed.run as run

    torchs = "".join(Path(module.__file__ or "").read_text(encoding="utf-8") for module in (agent, run))
    for name in quoted(row[0] for row in rows(page("docs/flags.md"))):
        if re.fullmatch(r"[A-Z][A-Z_]+", name) and not name.startswith("PET_"):
            ours = any(name in path.read_text(encoding="utf-8") for path in SOURCES)
            assert ours or f'"{name}"' in torchs or name == "TORCHELASTIC_ERROR_FILE", name


# -- dependencies --------------------------------------------------------------------------------------------


def check_dependencies(text: str, project: Mapping[str, Any]) -> list[str]:
    """The tables have every dependency of pyproject.toml, and no other."""
    extras = [
        *project["project"].get("optional-dependencies", {}).values(),
        *project["dependency-groups"].values(),
    ]
    asked = [*project["project"]["dependencies"], *(one for extra in extras for one in extra)]
    asked += project["build-system"]["requires"]
    there = {re.split(r"[^A-Za-z0-9._-]", one)[0] for one in asked}
    return differences("dependency", "docs/design.md", quoted(row[0] for row in rows(text)), there)


def test_every_dependency_is_told() -> None:
    told = section(page("docs/design.md"), "Dependencies")
    assert check_dependencies(told, tomllib.loads(page("pyproject.toml"))) == []


# -- the pages themselves ------------------------------------------------------------------------------------


def anchors(text: str) -> set[str]:
    """The anchors that GitHub gives to headings."""
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def check_links(text: str, path: Path) -> list[str]:
    """Links to files of this repository, and to headings in them, lead somewhere."""
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+://", target):
            continue
        file, _, anchor = target.partition("#")
        aim = (path.parent / file).resolve() if file else path
        if not aim.exists():
            wrong.append(f"{path.name} links to {target}, which does not exist")
        elif anchor and anchor not in anchors(aim.read_text(encoding="utf-8") if file else text):
            wrong.append(f"{path.name} links to {target}, where there is no such heading")
    return wrong


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    assert check_links(path.read_text(encoding="utf-8"), path) == []


def test_readme_links_to_the_docs() -> None:
    for path in [ROOT / "docs" / "index.md", *ROOT.glob("[CS]*.md")]:
        assert f"({path.relative_to(ROOT)})" in page("README.md")


def check_done(text: str) -> list[str]:
    """Nothing is left to be filled in."""
    return re.findall(r"^.*TODO\(.*$", text, re.MULTILINE)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_nothing_is_left_to_be_filled_in(path: Path) -> None:
    assert check_done(path.read_text(encoding="utf-8")) == []


def test_readme_is_short() -> None:
    assert len(page("README.md").splitlines()) < 150


# -- the architecture ----------------------------------------------------------------------------------------

PACKAGES = ("rendezvous/hetrdzv", "agent/hetagent")
BASES = ("", *PACKAGES, *(f"{package}/protocol" for package in PACKAGES))
"""Where a path that a page names may begin."""


def check_modules(text: str, there: AbstractSet[str]) -> list[str]:
    """Modules that a page names exist."""
    told = set(re.findall(r"\b[a-z_]+\.py\b", text))
    return [f"there is no module {name}" for name in sorted(told - there)]


def check_paths(text: str, there: AbstractSet[str]) -> list[str]:
    """Files and folders that a page names by their path exist, from the top or from a package."""
    told = {word.rstrip("/") for word in quoted([text]) if re.fullmatch(r"[\w.]+/[\w./]*", word)}
    told -= {word for word in told if re.search(r"\bNAME\b", word)}
    return [
        f"there is no {word}"
        for word in sorted(told)
        if not any(f"{base}/{word}".removeprefix("/") in there for base in BASES)
    ]


def check_tests(text: str, there: AbstractSet[str]) -> list[str]:
    """Tests that a page names exist."""
    told = set(re.findall(r"`(test_\w+)`", text))
    return [f"there is no test {name}" for name in sorted(told - there)]


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


def check_tree(text: str, files: AbstractSet[str]) -> list[str]:
    """The list has every folder of Python files, and names nothing that does not exist."""
    folders = {f"{file.rpartition('/')[0]}/" for file in files}
    told = set(tree(text))
    return [
        *(f"there is no {path}" for path in sorted(told - files - folders)),
        *(f"{path} is missing" for path in sorted(folders - told)),
    ]


def python_files() -> set[str]:
    """Every module of the two packages, by its path from the top."""
    return {path.relative_to(ROOT).as_posix() for path in SOURCES}


@cache
def everything() -> frozenset[str]:
    """Files and folders that a page may name."""
    tops = (".ci", "agent", "benchmarks", "deploy", "docs", "examples", "rendezvous", "tests")
    paths = [*ROOT.glob("*"), *(path for top in tops for path in (ROOT / top).rglob("*"))]
    return frozenset(path.relative_to(ROOT).as_posix() for path in paths)


def test_the_modules_in_the_architecture_exist() -> None:
    there = {path.name for path in [*SOURCES, *(ROOT / "tests").rglob("*.py")]}
    assert check_modules(page("docs/design.md"), there) == []


@pytest.mark.parametrize("name", ["docs/design.md", "CONTRIBUTING.md"])
def test_the_paths_that_a_page_names_exist(name: str) -> None:
    assert check_paths(page(name), everything()) == []


@pytest.mark.parametrize("name", ["docs/torch.md", "docs/launch.md"])
def test_the_tests_that_a_page_names_exist(name: str) -> None:
    text = page(name)
    written = "\n".join(path.read_text(encoding="utf-8") for path in TESTS)
    assert check_tests(text, set(re.findall(r"def (test_\w+)\(", written))) == []
    files = "\n".join(re.findall(r"`tests/[^`]*`", text))
    assert check_paths(files, everything()) == []


def test_the_architecture_has_every_folder() -> None:
    assert check_tree(section(page("docs/design.md"), "Folders"), python_files()) == []


def test_contributing_is_short() -> None:
    assert len(page("CONTRIBUTING.md").splitlines()) <= 90


# -- the rules that code cites ---------------------------------------------------------------------------------


def check_citations(source: str, design: str) -> list[str]:
    """Every rule that code cites is in docs/design.md, and it cites no page that is not in the repository."""
    rules = set(re.findall(r"^(\d+)\. \*\*", design, re.MULTILINE))
    lists = re.findall(r"\brules? (\d+(?:(?:,| and| to) \d+)*)", source)
    cited = {number for numbers in lists for number in re.findall(r"\d+", numbers)}
    elsewhere = re.findall(r"\b(?:DESIGN|STYLE|PEERS)\.md\b", source)
    wrong = [f"docs/design.md has no rule {number}" for number in sorted(cited - rules)]
    return wrong + [f"cites {name}, which is not here" for name in elsewhere]


def test_the_rules_that_code_cites_are_in_the_design() -> None:
    design = page("docs/design.md")
    wrong = {path: check_citations(path.read_text(encoding="utf-8"), design) for path in (*SOURCES, *TESTS)}
    assert {path: found for path, found in wrong.items() if found} == {}
