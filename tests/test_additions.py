"""The table "Where to add what" of docs/design.md: what is added in the files that it names works."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SERVER, AGENT = "rendezvous/hetrdzv", "agent/hetagent"
MOST_FILES = 4

ASKING = """
import asyncio, httpx
from hetrdzv.api.app import create_app
from hetrdzv.service.service import Service
from hetrdzv.storage.memory import MemoryStore

async def ask(*asked):
    service = Service(MemoryStore())
    await service.start()
    transport = httpx.ASGITransport(create_app(service))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        answers = [await client.request(method, path, **more) for method, path, more in asked]
    await service.close()
    return answers

PUT = ("PUT", "/v1/groups/g", {"json": {}})
"""
"""What programs that ask a server begin with."""


@dataclass(frozen=True)
class Addition:
    """Something that people add.

    Attributes:
        new: modules to write.
        changes: what to put into modules in front of some text: by module, that text and what is put there.
        shows: a program that fails without the addition.
    """

    new: Mapping[str, str]
    changes: Mapping[str, tuple[tuple[str, str], ...]]
    shows: str

    @property
    def files(self) -> set[str]:
        return {*self.new, *self.changes}


ADDITIONS = {
    "a launch style": Addition(
        new={
            f"{AGENT}/launch/loud.py": """
from typing import ClassVar
from hetagent.options.values import Flags
from hetagent.launch.base import Launch

class Loud(Launch):
    flags: ClassVar[Flags] = {"--volume": {"type": int, "metavar": "N", "help": "How loud."}}

    def __init__(self, command, setup):
        super().__init__(command, setup)
        self.volume = setup.flags["volume"]
"""
        },
        changes={
            f"{AGENT}/launch/kinds.py": (
                ("from hetagent.launch.node.program", "from hetagent.launch.loud import Loud\n"),
                ('    "mpi": Kind(', '    "loud": Kind("loudly", Loud),\n'),
            )
        },
        shows="""
from hetagent.launch.choose import launch_of
from hetagent.errors import UsageError
from hetagent.cli.parse import parse

def launch(*flags):
    return launch_of(parse(["--server", "http://h:1", *flags, "train.py"], {}), None, 1, {})

assert launch("--launch", "loud", "--volume", "11").volume == 11
try:
    launch("--volume", "11")
except UsageError as error:
    assert str(error) == "--volume goes with --launch loud, not with gpu", error
else:
    raise AssertionError("the flag goes with every launch")
""",
    ),
    "a setting of a group": Addition(
        new={},
        changes={
            f"{SERVER}/protocol/settings.py": (
                (
                    "    notice_s: float",
                    '    motto_n: int = _setting(int, 1, 0, 5, help="How many mottos.")\n',
                ),
            )
        },
        shows=ASKING
        + """
from hetagent.cli.parse import parse
from hetrdzv.cli.hetctl.act import create

assert parse(["--server", "http://h:1", "--motto-n", "2", "train.py"], {}).spec == {"motto_n": 2}
assert "--motto-n" in [name for each in create.params for name in each.opts]
put = ("PUT", "/v1/groups/g", {"json": {"motto_n": 3}})
answer, refused = asyncio.run(ask(put, ("PUT", "/v1/groups/h", {"json": {"motto_n": 6}})))
assert answer.json()["spec"]["motto_n"] == 3, answer.text
assert refused.status_code == 422, refused.text
""",
    ),
    "a fact on a group's page": Addition(
        new={},
        changes={
            f"{SERVER}/protocol/pages.py": (("    drained: tuple[str, ...]\n", "    motto: str\n"),),
            f"{SERVER}/api/views.py": (
                (
                    "        drained=tuple(sorted(group.drained)),\n",
                    '        motto=f"always {group.state}",\n',
                ),
            ),
            f"{SERVER}/dashboard/templates/now.html": (
                ("{% for line in group.warnings", "<i>{{ group.motto }}</i>\n"),
            ),
        },
        shows=ASKING
        + """
page = ("GET", "/groups/g", {"headers": {"accept": "text/html"}})
answer, page = asyncio.run(ask(PUT, page))
assert answer.json()["motto"] == "always waiting", answer.text
assert "<i>always waiting</i>" in page.text, page.text
""",
    ),
    "a warning about nodes": Addition(
        new={},
        changes={
            f"{SERVER}/core/drift.py": (
                ("def unordered(", "def mottos(nodes):\n    return [no_motto(len(nodes))]\n\n\n"),
                (
                    "from hetrdzv.protocol.reasons.reason",
                    "from hetrdzv.protocol.reasons.warnings import no_motto\n",
                ),
            ),
            f"{SERVER}/api/views.py": (
                ("from hetrdzv.core.drift", "from hetrdzv.core.drift import mottos\n"),
                ("*drift(nodes)", "*mottos(nodes), "),
            ),
            f"{SERVER}/protocol/reasons/reason.py": (
                ('    NO_LABEL = "no_label"', '    NO_MOTTO = "no_motto"\n'),
            ),
            f"{SERVER}/protocol/reasons/warnings.py": (
                (
                    "def no_label(",
                    (
                        "def no_motto(nodes):\n    text = f'{nodes} have no motto'\n"
                        "    return reason(ReasonCode.NO_MOTTO, text, nodes=[], count=nodes)\n\n\n"
                    ),
                ),
            ),
        },
        shows=ASKING
        + """
from hetrdzv.protocol import codec
from hetrdzv.protocol.pages import GroupReply
from hetrdzv.protocol.reasons.warnings import no_motto
[answer] = asyncio.run(ask(PUT))
assert answer.json()["warnings"][0]["message"] == "0 have no motto", answer.text
assert codec.read(GroupReply, answer.content).warnings == (no_motto(0),)
""",
    ),
    "a message between node and server": Addition(
        new={
            f"{SERVER}/protocol/mottos.py": """
from dataclasses import dataclass
from hetrdzv.protocol.bounds import Body, Id, ShortText
from hetrdzv.protocol.http.route import NODE, Route

@dataclass(frozen=True, slots=True, kw_only=True)
class MottoRequest(Body):
    incarnation: Id
    text: ShortText

@dataclass(frozen=True, slots=True, kw_only=True)
class MottoReply:
    text: str

MOTTO = Route("POST", f"{NODE}/motto", MottoReply)
""",
            f"{AGENT}/monitor/mottos.py": """
from functools import partial
from hetagent.session.requests import Report, ReportRoute
from hetrdzv.protocol.mottos import MOTTO, MottoRequest

MESSAGE = Report(ReportRoute(route=MOTTO), partial(MottoRequest, text="onwards"))
""",
        },
        changes={
            f"{SERVER}/api/routes/agents.py": (
                (
                    "from hetrdzv.protocol.progress",
                    "from hetrdzv.protocol.mottos import MottoReply, MottoRequest\n",
                ),
                (
                    '@router.delete("", status_code=204',
                    """@router.post("/motto")
async def motto(group_id: Id, node_id: Id, body: Annotated[MottoRequest, AGENTS]) -> MottoReply:
    return MottoReply(text=body.text.upper())


""",
                ),
            )
        },
        shows=ASKING
        + """
import random
from hetagent.monitor.mottos import MESSAGE
from hetagent.session.joining import Offer
from hetagent.session.requests import SendReport
from hetagent.session.session import Session
from hetrdzv.protocol import codec

class Server:
    async def ask(self, route, group, node, body):
        path = route.path.format(group_id=group, node_id=node)
        json = {"content-type": "application/json"}
        [answer] = await ask((route.method, path, {"content": codec.write(body), "headers": json}))
        assert answer.status_code == 200, answer.text
        return codec.read(route.reply, answer.content)

said = SendReport(number=1, group="g", node_id="n", route=MESSAGE.route, body=MESSAGE.body(incarnation="i"))
assert asyncio.run(said.send(Server())).text == "ONWARDS"
""",
    ),
    "a maker of GPUs": Addition(
        new={},
        changes={
            f"{AGENT}/node/gpu/discovery.py": (
                (
                    "def is_rocm(",
                    "def others():\n    return [Gpu(f'ACME-{n}', 'Acme A1', 1 << 30) for n in range(2)]\n\n\n",
                ),
                ('"nccl": _nccl(torch)', '"acme": "7.1", '),
            ),
            f"{AGENT}/node/gpu/devices.py": (
                ("from hetagent.errors", "from hetagent.node.gpu.discovery import others\n"),
                ("        if not is_rocm():\n", "        return others(), 'ACME_VISIBLE', ''\n"),
            ),
            f"{SERVER}/protocol/reasons/warnings.py": (
                ('    "nccl": Part(', '    "acme": Part("Acme\'s driver", 1),\n'),
            ),
        },
        shows="""
import torch
from types import SimpleNamespace as Node
from hetagent.node.gpu.devices import choose
from hetagent.node.gpu.discovery import NoGpus
from hetagent.node.gpu.versions import versions
from hetrdzv.core.drift import drift

def none():
    raise NoGpus("no NVIDIA driver")

chosen = choose(None, "auto", {}, none)
assert (chosen.slots, chosen.listed_in, chosen.facts["name"]) == (2, "ACME_VISIBLE", "2 x Acme A1")
assert versions()["acme"] == "7.1"
[found] = drift([Node(node_id=name, role="", device={"acme": version}) for name, version in (("a", "7.1"), ("b", "8"))])
assert "Acme's driver 7" in found.message, found
""",
    ),
}
"""By the first cell of their rows in docs/design.md."""


def rows() -> dict[str, str]:
    """The table "Where to add what": where, by what."""
    text = (ROOT / "docs/design.md").read_text(encoding="utf-8")
    table = text.partition("\n## Where to add what\n")[2].partition("\n## ")[0]
    cells = [line.strip("| ").split(" | ") for line in table.splitlines() if line.startswith("| ")]
    return {what: where for what, where, *_ in cells}


def named(where: str) -> list[str]:
    """The modules and folders that a cell names; NAME stands for any."""
    return [
        re.escape(path).replace("NAME", r"\w+") for path in re.findall(r"`([\w./]+(?:\.py|\.html|/))`", where)
    ]


def copied(to: Path, addition: Addition) -> None:
    """Copy the product, and add something to it."""
    for package in (SERVER, AGENT):
        shutil.copytree(ROOT / package, to / package, ignore=shutil.ignore_patterns("__pycache__"))
    for path, text in addition.new.items():
        assert not (to / path).exists(), path
        (to / path).write_text(text, encoding="utf-8")
    for path, changes in addition.changes.items():
        text = (to / path).read_text(encoding="utf-8")
        for before, what in changes:
            assert text.count(before) >= 1, f"{path} has no {before!r}"
            text = text.replace(before, what + before, 1)
        (to / path).write_text(text, encoding="utf-8")


def run(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    paths = f"{folder / 'rendezvous'}:{folder / 'agent'}"
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("what", ADDITIONS)
def test_the_row_names_the_files_and_how_many(what: str) -> None:
    files, where = ADDITIONS[what].files, rows()[what]
    assert where.startswith(f"{len(files)}: "), where
    assert len(files) <= MOST_FILES
    patterns = named(where)
    wrong = [
        path for path in files if not any(re.search(rf"(^|/){each}($|(?<=/))", path) for each in patterns)
    ]
    assert wrong == []


@pytest.mark.parametrize("what", ADDITIONS)
def test_it_takes_no_more(what: str, tmp_path: Path) -> None:
    copied(tmp_path, ADDITIONS[what])
    done = run(ADDITIONS[what].shows, tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("what", "path"), [(what, path) for what, addition in ADDITIONS.items() for path in addition.changes]
)
def test_none_of_them_can_be_left_out(what: str, path: str, tmp_path: Path) -> None:
    addition = ADDITIONS[what]
    copied(
        tmp_path,
        replace(
            addition, changes={each: addition.changes[each] for each in addition.changes.keys() - {path}}
        ),
    )
    assert run(addition.shows, tmp_path).returncode != 0
