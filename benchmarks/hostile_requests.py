"""Random requests within the API's own document, in random states of groups; see benchmarks/hostile.py.

A request is what an honest agent would send next, the same with a few fields replaced, or all random. Replaced and
random fields take what the document allows, most of all its extremes, or what the server has just said itself.
"""

import json
import random
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import nextafter
from typing import Any
from urllib.parse import quote, urlencode

from hetrdzv.auth.policy import ROLES
from hetrdzv.auth.tokens import Role

MOST_VALUES = 30_000
"""How many JSON values a body gets at most; a server refuses more."""

FAR = 1.7e308
"""Stands for a bound that the document does not have."""

TEXTS = (
    "",
    "x",
    "\0",
    "é🙂\u2028\u202e",
    "NaN",
    "-1",
    "runs",
    "ended",
    "silent",
    "blocked",
    "\ufeff",
    "rack",
    "r1",
    "a=b,c",
)
"""Short texts that are taken for something, or should be."""

SETTINGS: Mapping[str, tuple[Any, ...]] = {
    "min_nodes": (1, 2, 3),
    "max_nodes": (None, 2, 3, 4, 8),
    "min_world_size": (None, 2, 8),
    "max_world_size": (None, 8, 64),
    "world_size_multiple": (1, 2, 3),
    "max_restarts": (0, 3, 1_000_000),
    "join_timeout_s": (1, 5, 600, 600),
    "replace_wait_s": (0, 1),
    "stop_timeout_s": (0, 1),
    "notice_s": (0, 1, 30),
    "lease_s": (0.5, 1, 5),
    "crash_loop": (0, 3),
    "no_restart_on": ([], [2]),
    "strikes": (0, 1, 3),
    "hang_timeout_s": (None, 1, 1, 30),
    "growth_pause_s": (0, 1),
    "on_join": ("restart", "spare"),
    "rank_order": ("sticky", "speed", "topology:rack", "n1,*,n0"),
    "master": (None, "rack=r1", "n1"),
    "unit": (None, "rack"),
}
"""Values with which groups come into many states within seconds."""

SOON = {"last_call_s": 0, "restart_wait_s": 0}
"""What every group is given, so that it does not only wait."""

SLOTS = (1, 1, 2, 8, 1024)
LABELS = ({}, {"rack": "r1"}, {"rack": "r2"}, {"rack": "r3", "zone": "z"})
SHARP: tuple[dict[str, Any], ...] = (
    {"unit": "rack", "max_nodes": 2, "master": "rack=r1"},
    {"unit": "rack", "max_world_size": 8, "min_nodes": 2},
    {"hang_timeout_s": 1, "max_restarts": 1_000_000, "crash_loop": 0},
    {"hang_timeout_s": 1, "notice_s": 30, "lease_s": 60},
    {"max_nodes": 2, "on_join": "spare", "rank_order": "speed", "lease_s": 60},
)
"""Settings that mean something together."""

ALIVE, AGE = 5, 500
"""How many groups there are at a time, and how many requests are about one until another takes its place."""


@dataclass(slots=True)
class Node:
    """A node of a group as its agent knows it.

    Attributes:
        told: its newest directive.
        over: the newest round whose workers are gone.
        done: the newest round about which it has reported `started`.
        ended: the newest round whose workers have succeeded.
        weighed: whether it joins with a weight.
    """

    group: str
    name: str
    spec: dict[str, Any]
    slots: int
    labels: dict[str, str]
    incarnation: str
    told: dict[str, Any] = field(default_factory=dict)
    over: int = 0
    done: int = 0
    ended: int = 0
    step: int = 0
    weighed: bool = False

    @property
    def due(self) -> bool:
        """Whether the others wait for it."""
        kind = self.told.get("kind")
        return kind in (None, "stop") or (kind == "start" and self.done != self.told["round"])

    @property
    def path(self) -> str:
        """Of its routes."""
        return f"/v1/groups/{self.group}/nodes/{self.name}"


@dataclass(frozen=True, slots=True)
class Request:
    """A request.

    Attributes:
        kind: method and path as in the document.
        node: who would send it.
        body: None: it has none.
    """

    kind: str
    method: str
    target: str
    body: Any
    node: Node

    def text(self) -> str:
        """All of it, for people and for a replay."""
        return f"{self.method} {self.target} {json.dumps(self.body) if self.body is not None else ''}"


class Requests:
    """Makes requests, and learns from their answers.

    Args:
        document: the API's.
        prefix: what names of groups begin with.
        share: how many of a hundred requests are honest, and how many honest with other fields.

    Attributes:
        told: how often nodes were told what, and why.
    """

    def __init__(
        self, document: dict[str, Any], rng: random.Random, prefix: str, share: tuple[int, int] = (60, 25)
    ) -> None:
        self._schemas = document["components"]["schemas"]
        self._operations = {
            f"{method.upper()} {path}": operation
            for path, operations in document["paths"].items()
            for method, operation in operations.items()
            if ROLES.get(f"{method.upper()} {path}", Role.ADMIN) <= Role.AGENT
        }
        self._rng = rng
        self._prefix = prefix
        self._share = share
        self._made = 0
        self._left = 0
        self._names = 0
        self.told: Counter[str] = Counter()
        self.known: dict[str, deque[Any]] = defaultdict(lambda: deque(maxlen=32))
        self.groups = [self._group() for _ in range(ALIVE)]

    @property
    def kinds(self) -> list[str]:
        """Method and path of all that are made."""
        return list(self._operations)

    def _group(self) -> list[Node]:
        rng = self._rng
        self._made += 1
        number, often = rng.choice((2, 2, 3, 5, 12)), rng.choice((0.05, 0.1, 0.3))
        spec = {name: rng.choice(values) for name, values in SETTINGS.items() if rng.random() < often}
        spec |= rng.choice(({}, *SHARP)) if number > 2 else {}
        spec["min_nodes"] = min(number, spec.get("min_nodes", 2))
        name = f"{self._prefix}{self._made}"
        return self.nodes(name, number, SOON | spec)

    def nodes(self, group: str, number: int, spec: dict[str, Any]) -> list[Node]:
        """Nodes of a new group."""
        rng = self._rng
        weighed, labels = rng.random() < 0.3, rng.choice((LABELS, LABELS[1:3]))
        return [
            Node(group, f"n{one}", spec, rng.choice(SLOTS), rng.choice(labels), f"i{one}", weighed=weighed)
            for one in range(number)
        ]

    # -- requests ------------------------------------------------------------------------------------------------

    def next(self) -> Request:
        """The next request."""
        rng = self._rng
        if rng.random() < ALIVE / AGE:
            self.groups[rng.randrange(ALIVE)] = self._group()
        if rng.random() < 0.4 and (due := [one for group in self.groups for one in group if one.due]):
            return self.honest(rng.choice(due))
        node = rng.choice(rng.choice(self.groups))
        if node.told.get("kind") != "start" and rng.random() < 0.6:
            at_work = [one for group in self.groups for one in group if one.told.get("kind") == "start"]
            node = rng.choice(at_work or [node])
        drawn = rng.randrange(100)
        if drawn < self._share[0]:
            return self.honest(node)
        if drawn < sum(self._share):
            return self._mutated(self.honest(node))
        return self.random(rng.choice(self.kinds), node)

    def random(self, kind: str, node: Node) -> Request:
        """Any request of a kind that the document allows, often about a node."""
        operation, (method, _, path) = self._operations[kind], kind.partition(" ")
        query = []
        for one in operation.get("parameters", ()):
            name, schema = one["name"], one["schema"]
            if one["in"] == "path":
                own = {"group_id": node.group, "node_id": node.name}[name]
                value = own if name == "group_id" or self._rng.random() < 0.8 else self._value(schema, name)
                path = path.replace(f"{{{name}}}", quote(value, safe=""))
            elif one["in"] == "query" and (one["required"] or self._rng.random() < 0.6):
                value = node.incarnation if name == "incarnation" and self._rng.random() < 0.8 else None
                value = self._value(schema, name) if value is None else value
                # nobody waits for those who would wait
                query.append((name, 0 if name == "wait" else value))
        body = None
        if (content := operation.get("requestBody")) is not None:
            self._left = MOST_VALUES
            body = self._value(content["content"]["application/json"]["schema"], "")
            if "incarnation" in body and self._rng.random() < 0.8:
                body["incarnation"] = node.incarnation
            self._fit(body)
        return Request(kind, method, f"{path}?{urlencode(query)}" if query else path, body, node)

    def _mutated(self, request: Request) -> Request:
        content = self._operations[request.kind].get("requestBody")
        if content is None or request.body is None:
            return request
        self._left = MOST_VALUES
        body = json.loads(json.dumps(request.body))
        for _ in range(self._rng.choice((1, 1, 2, 4))):
            body = self._changed(body, content["content"]["application/json"]["schema"], "")
        self._fit(body)
        return Request(request.kind, request.method, request.target, body, request.node)

    def _fit(self, body: dict[str, Any]) -> None:
        """What a schema cannot say, so that not all are refused for it."""
        if isinstance(body.get("speeds"), list) and body.get("slots"):
            body["speeds"] = (body["speeds"] * body["slots"])[: body["slots"]] or None
        if isinstance(body.get("spec"), dict):
            body["spec"].pop("command", None)  # for admins
        if isinstance(words := body.get("words"), list) and words:
            words[0] = "orted"
        if "wait_s" in body:
            body["wait_s"] = 0

    def honest(self, node: Node) -> Request:
        """What the agent of a node sends next."""
        rng, kind = self._rng, node.told.get("kind")
        if kind in (None, "exit"):
            if kind == "exit":
                node.incarnation = f"{node.name}.{rng.randrange(1 << 30)}"
                node.over = node.done = 0
            return self._join(node)
        if kind == "stop" or (kind == "wait" and rng.random() < 0.3):
            node.over = max(node.over, int(node.told.get("round", 0))) if kind == "stop" else node.over
            return self._join(node)
        if rng.random() < 0.01:
            return self._own(node, "DELETE", "", query={"incarnation": node.incarnation, "reason": "SIGTERM"})
        if kind != "start":
            query = {"incarnation": node.incarnation, "after": node.told["version"]}
            return self._own(node, "GET", "/directive", query=query)
        if node.done != node.told["round"] and rng.random() < 0.9:
            return self._report(node, "started")
        if node.ended == node.told["round"] and rng.random() < 0.5:
            node.over = node.ended
            return self._join(node)
        what = rng.random()
        if what < 0.06:
            node.ended = node.told["round"]
            return self._report(node, "succeeded")
        if what < 0.10:
            failure = {"local_rank": 0, "rank": self._first(node), "exit_code": rng.choice((1, 2))}
            return self._report(node, "failed", failure=failure)
        if what < 0.14:
            return self._report(
                node, rng.choice(("ready_to_stop", "leaving", "master_unreachable", "started"))
            )
        if what < 0.24:
            body = {
                "incarnation": node.incarnation,
                "round": node.told["round"],
                "number": rng.choice((1, 2, 3)),
            }
            return self._own(node, "POST", "/shares", body)
        if what < 0.30:
            master = self._peer(node, node.told.get("start", {}).get("master", {}).get("node_id", ""))
            body = {"master": master.name, "incarnation": master.incarnation, "round": node.told["round"]}
            peer = rng.choice(next((group for group in self.groups if node in group), [node]))
            return self._own(peer, "POST", "/daemon", body | {"words": ["orted", "-mca", "plm", "rsh"]})
        if what < 0.33:
            node.over = node.told["round"]
            return self._join(node)
        if what < 0.36 and self.known["asked"]:
            ranks = [{"rank": rank, "text": "Thread 1\n  File x"} for rank in range(min(node.slots, 8))]
            body = {"incarnation": node.incarnation, "number": self.known["asked"][-1], "stacks": ranks}
            return self._own(node, "POST", "/stacks", body)
        return self._progress(node)

    def _progress(self, node: Node) -> Request:
        rng, age_s = self._rng, 0.0
        node.step += rng.choice((0, 1, 1, 5))
        size = int(node.told.get("start", {}).get("world_size", 1))
        if hangs := node.spec.get("hang_timeout_s") is not None and rng.random() < 0.8:
            node.step = 3 + (node.name != "n0")  # the others wait for this one
        idle_s = rng.choice((0.5, 40.0, self._extreme("WorkerFields", "idle_s")))
        lanes = [
            {
                "name": name,
                "size": size,
                "enqueued": node.step + (0 if hangs else rng.choice((0, 1))),
                "started": node.step,
                "completed": min(node.step, 3) if hangs else node.step,
                "op": "all_reduce [[10]]" if rng.random() < 0.9 else "broadcast [[10]]",
            }
            for name in rng.choice((("0",), ("0",), ("0", "1"), ()))
        ]
        workers = [
            {
                "rank": self._first(node) + slot,
                "state": rng.choice(("runs", "runs", "runs", "runs", "silent", "blocked", "ended")),
                "idle_s": idle_s,
                "still": idle_s > 1,
                "busy": 0.5,
                "looks": 60 + node.step,
                "step": node.step,
                "collectives": lanes,
            }
            for slot in range(min(node.slots, 64))
        ]
        if rng.random() < 0.3:
            age_s = self._extreme("ProgressFields", "age_s")
        progress = {
            "round": node.told["round"],
            "decision": rng.choice((0, 0, 1, 2)),
            "workers": workers,
            "age_s": age_s,
        }
        body = {"incarnation": node.incarnation, "after": node.told["version"], "progress": progress}
        return self._own(node, "POST", "/directive", body)

    def _peer(self, node: Node, name: str) -> Node:
        """Another node of the same group."""
        peers = (one for group in self.groups for one in group if (one.group, one.name) == (node.group, name))
        return next(peers, node)

    def _extreme(self, model: str, name: str) -> Any:
        """A value of a field, as often as not one that it can just have."""
        return self._value(self._schemas[model]["properties"][name], name)

    def _first(self, node: Node) -> int:
        return int(node.told.get("start", {}).get("rank_offset", 0))

    def _join(self, node: Node) -> Request:
        body = {
            "incarnation": node.incarnation,
            "slots": node.slots,
            "address": f"10.0.0.{1 + sum(node.name.encode()) % 250}",
            "port": 29_500,
            "after_round": node.over,
            "labels": node.labels,
            "takes_notice": self._rng.random() < 0.5,
            "wants_daemon": self._rng.random() < 0.5,
            "wants_members": self._rng.random() < 0.2,
            "spec": node.spec,
        }
        if node.weighed:
            body["weight"] = self._extreme("JoinRequest", "weight")
        return self._own(node, "PUT", "", body)

    def _report(self, node: Node, kind: str, **more: Any) -> Request:
        body = {"incarnation": node.incarnation, "round": node.told["round"], "kind": kind}
        return self._own(node, "POST", "/report", body | more)

    def _own(
        self, node: Node, method: str, end: str, body: Any = None, query: Mapping[str, str] | None = None
    ) -> Request:
        target = f"{node.path}{end}" + (f"?{urlencode(query)}" if query else "")
        return Request(f"{method} /v1/groups/{{group_id}}/nodes/{{node_id}}{end}", method, target, body, node)

    # -- values --------------------------------------------------------------------------------------------------

    def _plain(self, schema: dict[str, Any]) -> dict[str, Any]:
        """A schema without references and choices."""
        while True:
            if "$ref" in schema:
                schema = self._schemas[schema["$ref"].rpartition("/")[2]]
            elif "anyOf" in schema:
                schema = self._rng.choice(schema["anyOf"])
            else:
                return schema

    def _value(self, schema: dict[str, Any], name: str) -> Any:
        """Any value that a schema allows.

        Args:
            name: of the field that it is for.
        """
        rng, schema = self._rng, self._plain(schema)
        self._left -= 1
        if "enum" in schema:
            return rng.choice(schema["enum"])
        kind = schema.get("type")
        if kind in ("integer", "number", "string") and self.known[name] and rng.random() < 0.5:
            known = rng.choice(self.known[name])
            if _allows(schema, known):
                return known
        match kind:
            case "boolean":
                return rng.random() < 0.5
            case "integer":
                return self._number(schema, whole=True)
            case "number":
                return self._number(schema, whole=False)
            case "string":
                return self._text(schema)
            case "array":
                least, most = schema.get("minItems", 0), min(schema.get("maxItems", 100_000), self._left)
                size = min(most, rng.choice((least, 1, 2, 3, 5, rng.choice((40, most)))))
                return [self._value(schema["items"], name) for _ in range(max(size, least)) if self._left > 0]
            case "object" if "properties" in schema:
                needed = schema.get("required", ())
                given = rng.random()
                return {
                    one: self._value(of, one)
                    for one, of in schema["properties"].items()
                    if one in needed or (rng.random() < given and self._left > 0)
                }
            case "object":
                names, most = schema.get("propertyNames", {}), schema.get("maxProperties", 64)
                size = rng.choice((0, 1, 2, most))
                return {
                    self._text(names): self._value(schema["additionalProperties"], "label")
                    for _ in range(size)
                }
        return None

    def _changed(self, value: Any, schema: dict[str, Any], name: str) -> Any:
        """A value with another one somewhere inside."""
        rng, schema = self._rng, self._plain(schema)
        if isinstance(value, dict) and (fields := schema.get("properties")) and rng.random() < 0.95:
            inside = [one for one in fields if isinstance(value.get(one), dict | list) and value[one]]
            one = rng.choice(inside if inside and rng.random() < 0.6 else list(fields))
            return value | {one: self._changed(value.get(one), fields[one], one)}
        if isinstance(value, list) and value and "items" in schema and rng.random() < 0.9:
            at = rng.randrange(len(value))
            match rng.randrange(4):
                case 0:
                    return [*value, value[at]]
                case 1:
                    return value[:at] + value[at + 1 :]
            return [*value[:at], self._changed(value[at], schema["items"], name), *value[at + 1 :]]
        return self._value(schema, name)

    def _number(self, schema: dict[str, Any], *, whole: bool) -> float:
        rng = self._rng
        least = schema.get("minimum", schema.get("exclusiveMinimum", -FAR))
        most = schema.get("maximum", FAR)
        most = min(most, schema.get("exclusiveMaximum", most + 1) - 1) if whole else most
        if whole:
            least, most = max(int(least), -(2**64)), min(int(most), 2**64)
            near = [
                least,
                most,
                least + 1,
                most - 1,
                0,
                1,
                2,
                3,
                int(least + (most - least) * rng.random() ** 8),
            ]
        else:
            near = [least, most, nextafter(least, most), nextafter(most, least), 0.0, 5e-324, 1.0, 0.1]
            near.append(least + (most - least) * rng.random() ** 8)
        return rng.choice([number for number in near if least <= number <= most])

    def _text(self, schema: dict[str, Any]) -> str:
        rng = self._rng
        least, most = schema.get("minLength", 0), schema.get("maxLength", 100)
        if "pattern" in schema:
            texts = ["a", "n0", "A-b_c.9", "x" * most, "..a", "0", "_"]
            texts = [text for text in texts if re.search(schema["pattern"], text)]
            return rng.choice(texts or ["1"])[:most]
        text = rng.choice((*TEXTS, f"t{rng.randrange(1 << 30)}"))
        if rng.random() < 0.05:
            text = rng.choice(("x", "é", "🙂", "\0", '"', "\\", "[")) * most
        return text[:most].ljust(least, "x")

    # -- answers -------------------------------------------------------------------------------------------------

    def learn(self, request: Request, status: int, body: bytes) -> None:
        """Go by the answer to a request."""
        node = request.node
        if status == 404:
            node.told = {}
        if status == 200 and request.method == "PUT" and request.target.partition("?")[0] == node.path:
            node.incarnation, node.slots, node.labels = (
                request.body.get(name, {}) for name in ("incarnation", "slots", "labels")
            )
        if status not in (200, 409) or not body.startswith(b"{"):
            return
        said = json.loads(body)
        told = said.get("directive", said)
        if isinstance(told.get("version"), str) and told.get("kind"):
            if request.kind.endswith("/report") and request.body["kind"] == "started" and status == 200:
                node.done = request.body["round"]
            if request.target.startswith(node.path) and not request.kind.endswith("/daemon"):
                node.told = told
                self.told[f"{told['kind']}: {told['reason']}"] += 1
            for name, value in _facts(told):
                self.known[name].append(value)
        elif said.get("code") == "node_id_in_use":
            self._names += 1
            node.told, node.name = {}, f"n{self._names % 20}"
        elif said.get("code") == "spec_conflict":
            for one in said["conflict"]["differences"]:
                node.spec.pop(one["name"], None)
        elif said.get("code") == "stale_incarnation":
            node.told = {"kind": "exit"}


def _facts(told: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """What a directive says that later requests may repeat, by the names of fields."""
    yield "after", told["version"]
    yield "round", told["round"]
    yield "after_round", told["round"]
    for name in ("stacks", "logs"):
        if asked := told.get(name):
            yield "asked", asked["number"]
            yield "number", asked["number"]
    if start := told.get("start"):
        yield "rank", start["rank_offset"]
        yield "size", start["world_size"]
        yield "met", start["world_size"]
        yield "master", start["master"]["node_id"]
        yield "node_id", start["master"]["node_id"]
        yield "remove", start["master"]["node_id"]
        yield "drain", start["master"]["node_id"]
        yield "name", "0"


def _allows(schema: dict[str, Any], value: Any) -> bool:
    """Whether a value that was seen elsewhere fits a schema."""
    if isinstance(value, str):
        return schema["type"] == "string" and len(value) <= schema.get("maxLength", 0)
    return schema["type"] != "string" and schema.get("minimum", -FAR) <= value <= schema.get("maximum", FAR)
