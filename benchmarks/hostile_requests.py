"""Random requests within the API's own document, in random states of groups; see benchmarks/hostile.py.

A request is what an honest agent would send next, the same with a few fields replaced, or all random. Replaced and
random fields take what the document allows, most of all its extremes, or what the server has just said itself.

So that groups come into deep states, the nodes of a group have a manner in common (`Manner`): what they do often, and
on which side of their bounds its numbers lie. A fault that takes the same extreme from every node is rare by chance.
"""

import json
import random
import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf, nextafter
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode

from tests.support.routes import role_of, routes

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
    "unknown",
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
    "no_restart_on": ([], [2]),
    "hang_timeout_s": (None, 1, 1, 30),
    "growth_pause_s": (0, 1),
    "on_join": ("restart", "spare"),
    "rank_order": ("sticky", "topology:rack"),
    "master": (None, "rack=r1", "n1"),
    "unit": (None, "rack"),
}
"""Values with which groups come into many states within seconds."""

SOON = {"last_call_s": 0, "restart_wait_s": 0}
"""What every group is given, so that it does not only wait."""

SLOTS = ((1, 2), (1, 2), (1, 1, 2, 8), (1, 8, 1024))
LABELS = ({}, {"rack": "r1"}, {"rack": "r2"}, {"rack": "r3", "zone": "z"})
SHARP: tuple[dict[str, Any], ...] = (
    {"unit": "rack", "max_nodes": 2, "master": "rack=r1"},
    {"unit": "rack", "max_world_size": 8, "min_nodes": 2},
    {"hang_timeout_s": 1, "max_restarts": 1_000_000},
    {"hang_timeout_s": 1, "notice_s": 30, "lease_s": 60},
    {"max_nodes": 2, "on_join": "spare", "rank_order": "topology:rack", "lease_s": 60},
)
"""Settings that mean something together."""

ALIVE, AGE = 5, 600
"""How many groups there are at a time, and how many requests are sent until others have taken the place of all."""

STUCK = 0.1
"""How likely a group of which all nodes only wait, or have ended, is replaced instead of asked again."""

FOCUS = 60
"""After about so many requests another group is the one that every second request is about: what workers said is
forgotten when the server is killed, so all nodes of a group have to speak between two kills."""

DOES = {
    "succeeded": 2,
    "failed": 0.5,
    "says": 0.5,
    "daemon": 3,
    "rejoins": 0.5,
    "stacks": 1,
    "progress": 20,
}
"""What a node at work may do, and how often beside the others."""


ODD = {"idle_s": (0, 0.5, 1, 1), "age_s": (0, 0.5, 1, 1), "weight": (0.5, 1, 1)}
"""What share of a field's numbers may lie at its bounds in a group."""


class Side(StrEnum):
    """Where the numbers of a group lie within their bounds."""

    LEAST = "least"
    MOST = "most"
    ANY = "any"


@dataclass(slots=True)
class Manner:
    """What the nodes of a group have in common.

    Attributes:
        does: how often they do what; some of it never.
        side: where their numbers lie.
        odd: the share of a field's numbers that lie there, by its name; the others are usual.
        weighed: whether they join with weights.
        behind: the node for which all others wait; None: their workers go on.
        lanes: the process groups of their workers.
        launches: how likely a node runs daemons for the master.
        news: how often one of them was told something new, which ends the polls of the others.
    """

    does: Mapping[str, float]
    side: Side
    odd: Mapping[str, float]
    weighed: bool
    behind: str | None
    lanes: tuple[str, ...]
    launches: float
    news: int = 0

    @staticmethod
    def drawn(rng: random.Random, names: Sequence[str]) -> "Manner":
        """Any manner of some nodes."""
        does = {what: often * rng.choice((0, 0.3, 1, 3)) for what, often in DOES.items()}
        return Manner(
            does=does | {"progress": max(5.0, does["progress"])},
            side=rng.choice((Side.LEAST, Side.LEAST, Side.MOST, Side.MOST, Side.ANY)),
            odd={name: rng.choice(ODD[name]) for name in ODD},
            weighed=rng.random() < 0.6,
            behind=rng.choice((None, names[0], rng.choice(names))),
            lanes=rng.choice((("0",), ("0",), ("0", "1"), ())),
            launches=rng.choice((0.5, 1.0)),
        )


@dataclass(slots=True, eq=False)
class Node:
    """A node of a group as its agent knows it.

    Attributes:
        told: its newest directive.
        over: the newest round whose workers are gone.
        done: the newest round about which it has reported `started`.
        ended: the newest round whose workers have succeeded.
        news: how much of its group's news it may know.
    """

    group: str
    name: str
    spec: dict[str, Any]
    slots: int
    labels: dict[str, str]
    incarnation: str
    manner: Manner
    told: dict[str, Any] = field(default_factory=dict)
    over: int = 0
    done: int = 0
    ended: int = 0
    step: int = 0
    news: int = 0

    @property
    def due(self) -> bool:
        """Whether the others wait for it."""
        match self.told.get("kind"):
            case "exit":
                return False
            case "start" if self.done != self.told["round"]:
                return True
            case None | "stop":
                return True
        return self.woken

    @property
    def woken(self) -> bool:
        """Whether a poll of it might just have ended."""
        return self.news < self.manner.news

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
            if role_of(routes()[f"{method.upper()} {path}"]) in (Role.READ, Role.AGENT)
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
        self._focus = 0

    @property
    def kinds(self) -> list[str]:
        """Method and path of all that are made."""
        return list(self._operations)

    def _group(self) -> list[Node]:
        rng = self._rng
        self._made += 1
        number, often = rng.choice((2, 2, 3, 3, 4, 5, 12)), rng.choice((0.05, 0.1, 0.3))
        spec = {name: rng.choice(values) for name, values in SETTINGS.items() if rng.random() < often}
        spec |= rng.choice(({}, *SHARP))
        least = spec.get("min_nodes", 2) if rng.random() < 0.3 else number
        spec["min_nodes"] = min(number, least, spec.get("max_nodes") or number)
        name = f"{self._prefix}{self._made}"
        return self.nodes(name, number, SOON | {"last_call_s": rng.choice((0, 0, 0.2))} | spec)

    def nodes(self, group: str, number: int, spec: dict[str, Any]) -> list[Node]:
        """Nodes of a new group."""
        rng = self._rng
        labels, slots = rng.choice((LABELS, LABELS[1:3], LABELS[1:3])), rng.choice(SLOTS)
        names = [f"n{place}" for place in range(number)]
        manner = Manner.drawn(rng, names)
        return [
            Node(group, name, spec, rng.choice(slots), rng.choice(labels), f"i{name}", manner)
            for name in names
        ]

    # -- requests ------------------------------------------------------------------------------------------------

    def next(self) -> Request:
        """The next request."""
        rng = self._rng
        if rng.random() < ALIVE / AGE:
            self.groups[rng.randrange(ALIVE)] = self._group()
        if rng.random() < 1 / FOCUS:
            self._focus = rng.randrange(ALIVE)
        which = self._focus if rng.random() < 0.5 else rng.randrange(ALIVE)
        group = self.groups[which]
        due = [node for node in group if node.due]
        if due and rng.random() < 0.6:
            return self.honest(rng.choice(due))
        at_work = [node for node in group if node.told.get("kind") == "start"]
        if not due and not at_work and rng.random() < STUCK:
            self.groups[which] = group = self._group()
        node = rng.choice(at_work if at_work and rng.random() < 0.85 else group)
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
        if node.woken:
            return self._polls(node)
        if kind == "stop" or (kind == "wait" and rng.random() < 0.1):
            node.over = max(node.over, int(node.told.get("round", 0))) if kind == "stop" else node.over
            return self._join(node)
        if rng.random() < 0.01:
            return self._own(node, "DELETE", "", query={"incarnation": node.incarnation, "reason": "SIGTERM"})
        if kind != "start":
            return self._polls(node)
        if node.done != node.told["round"] and rng.random() < 0.9:
            return self._report(node, "started")
        if node.ended == node.told["round"] and rng.random() < 0.5:
            node.over = node.ended
            return self._join(node)
        return self._at_work(node)

    def _polls(self, node: Node) -> Request:
        node.news = node.manner.news
        query = {"incarnation": node.incarnation, "after": node.told["version"]}
        return self._own(node, "GET", "/directive", query=query)

    def _peers(self, node: Node) -> list[Node]:
        """All nodes of its group, as far as that is still asked about."""
        return next((group for group in self.groups if node in group), [node])

    def _at_work(self, node: Node) -> Request:
        """What the agent of a node at work sends next, in the manner of its group."""
        rng, does, group = self._rng, node.manner.does, self._peers(node)
        match rng.choices(list(does), list(does.values()))[0]:
            case "succeeded":
                node.ended = node.told["round"]
                return self._report(node, "succeeded")
            case "failed":
                failure = {"local_rank": 0, "rank": self._first(node), "exit_code": rng.choice((1, 2))}
                return self._report(node, "failed", failure=failure)
            case "says":
                kinds = ("ready_to_stop", "leaving", "master_unreachable", "started")
                return self._report(node, rng.choice(kinds))
            case "daemon":
                name = node.told.get("start", {}).get("master", {}).get("node_id", "")
                master = next((peer for peer in group if peer.name == name), node)
                body = {"master": name, "incarnation": master.incarnation, "round": node.told["round"]}
                words = {"words": ["orted", "-mca", "plm", "rsh"]}
                others = [peer for peer in group if peer is not master] or group
                return self._own(rng.choice(others), "POST", "/daemon", body | words)
            case "rejoins":
                node.over = node.told["round"]
                return self._join(node)
            case "stacks" if self.known["asked"]:
                ranks = [{"rank": rank, "text": "Thread 1\n  File x"} for rank in range(min(node.slots, 8))]
                body = {"incarnation": node.incarnation, "number": self.known["asked"][-1], "stacks": ranks}
                return self._own(node, "POST", "/stacks", body)
        return self._progress(node)

    def _progress(self, node: Node) -> Request:
        rng, manner = self._rng, node.manner
        waits = manner.behind is not None and rng.random() < 0.9
        node.step = 3 + (node.name != manner.behind) if waits else node.step + rng.choice((0, 1, 1, 5))
        size = int(node.told.get("start", {}).get("world_size", 1))
        idle_s = self._leaning(manner, "WorkerProgress", "idle_s", 40.0 if waits else rng.choice((0.5, 40.0)))
        lanes = [
            {
                "name": name,
                "size": size,
                "enqueued": node.step + (0 if waits else rng.choice((0, 1))),
                "started": node.step,
                "completed": min(node.step, 3) if waits else node.step,
                "op": "all_reduce [[10]]" if rng.random() < 0.95 else "broadcast [[10]]",
            }
            for name in manner.lanes
        ]
        states = ("unknown", "blocked", "ended") if rng.random() < 0.1 else ("runs",)
        workers = [
            {
                "rank": self._first(node) + slot,
                "state": rng.choice(states),
                "idle_s": idle_s,
                "still": waits or idle_s > 1,
                "step": node.step,
                "collectives": lanes,
            }
            for slot in range(node.slots)
        ]
        progress = {
            "round": node.told["round"],
            "workers": workers,
            "age_s": self._leaning(manner, "NodeProgress", "age_s", 0.0),
        }
        body = {"incarnation": node.incarnation, "after": node.told["version"], "progress": progress}
        return self._own(node, "POST", "/directive", body)

    def _leaning(self, manner: Manner, model: str, name: str, usual: float) -> float:
        """A number of a field in the manner of a group."""
        rng = self._rng
        if rng.random() >= manner.odd[name]:
            return usual
        schemas = self._schemas[model]["properties"][name]
        schema = next(of for of in schemas.get("anyOf", [schemas]) if of.get("type") == "number")
        near = self._near(schema)
        match manner.side:
            case Side.LEAST:
                return rng.choice(near[:3])
            case Side.MOST:
                return rng.choice(near[3:5])
        return rng.choice(near)

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
            "wants_daemon": self._rng.random() < node.manner.launches,
            "wants_members": self._rng.random() < 0.2,
            "spec": node.spec,
        }
        if node.manner.weighed:
            body["weight"] = self._leaning(node.manner, "JoinRequest", "weight", 1.0)
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
        if not whole:
            return self._rng.choice(self._near(schema))
        least = max(int(schema.get("minimum", schema.get("exclusiveMinimum", -FAR - 1) + 1)), -(2**64))
        most = min(int(schema.get("maximum", schema.get("exclusiveMaximum", FAR) - 1)), 2**64)
        near = [least, most, least + 1, most - 1, 0, 1, 2, 3]
        near.append(int(least + (most - least) * self._rng.random() ** 8))
        return self._rng.choice([number for number in near if least <= number <= most])

    def _near(self, schema: dict[str, Any]) -> list[float]:
        """Numbers that a schema allows: three at its lower bound, two at its upper one, others."""
        least, most = schema.get("minimum", -FAR), schema.get("maximum", FAR)
        if (above := schema.get("exclusiveMinimum")) is not None:
            least = nextafter(above, inf)
        if (below := schema.get("exclusiveMaximum")) is not None:
            most = nextafter(below, -inf)
        after = nextafter(least, inf)
        others = [0.0, 5e-324, 1.0, 0.1, least + (most - least) * self._rng.random() ** 8]
        near = [least, after, nextafter(after, inf), most, nextafter(most, -inf)]
        return near + [number for number in others if least <= number <= most]

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
        node, own = request.node, _is_own(request)
        if status == 404 and own:
            node.told = {}
        if status == 200 and request.method == "PUT" and request.target.partition("?")[0] == node.path:
            node.incarnation, node.slots, node.labels = (
                request.body.get(name, {}) for name in ("incarnation", "slots", "labels")
            )
        if status not in (200, 409, 422) or not body.startswith(b"{"):
            return
        said = json.loads(body)
        told = said.get("directive", said)
        if isinstance(told.get("version"), str) and told.get("kind"):
            if request.kind.endswith("/report") and request.body["kind"] == "started" and status == 200:
                node.done = request.body["round"]
            if request.target.startswith(node.path) and not request.kind.endswith("/daemon"):
                if [told["kind"], told["round"]] != [node.told.get("kind"), node.told.get("round")]:
                    node.news = node.manner.news = node.manner.news + 1
                node.told = told
                self.told[f"{told['kind']}: {told['code']}"] += 1
            for name, value in _facts(told):
                self.known[name].append(value)
        elif said.get("code") == "stale_round":
            node.news = -1
        elif not own:  # another agent's, or about another node
            return
        elif said.get("code") == "node_id_in_use":
            self._names += 1
            node.told, node.name = {}, f"n{self._names % 20}"
        elif said.get("code") == "spec_conflict":
            for one in said["conflict"]["differences"]:
                node.spec.pop(one["name"], None)
        elif said.get("code") == "invalid_spec" and node.spec:
            node.spec.pop(self._rng.choice(list(node.spec)))
        elif said.get("code") in ("stale_incarnation", "group_finishing"):
            node.told = {"kind": "exit"}


def _is_own(request: Request) -> bool:
    """Whether the agent of its node could have sent a request, as far as names go."""
    node, (path, _, query) = request.node, request.target.partition("?")
    said = request.body or dict(parse_qsl(query))
    own = path.removeprefix(node.path)[:1] in ("", "/") and path.startswith(node.path)
    return own and not path.endswith("/daemon") and said.get("incarnation") == node.incarnation


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
