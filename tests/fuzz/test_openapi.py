"""The API keeps to its OpenAPI document: statuses, media types, bodies; and no request ever hits a bug.

Schemathesis makes requests from the document, valid ones and such that are not, and holds the answers to it.
"""

import copy
import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import httpx
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.settings import examples
from tests.fuzz.virtual import VirtualServer
from tests.support.routes import routes

if TYPE_CHECKING:  # two seconds, which processes need not take that only collect
    from schemathesis import Case
    from schemathesis.schemas import APIOperation

TOO_LARGE = 413
"""A body larger than 1 MiB is never read."""

GROUPS, NODES, INCARNATIONS = ["g", "g", "g", "g", "h"], ["a", "b", "c"], ["1", "1", "1", "2"]
SPEC = {"min_nodes": 2, "max_nodes": 3, "last_call_s": 0, "max_restarts": 1}
PAUSES_S = [0.0, 0.0, 0.0, 0.5, 1.1, 3.0, 11.0]


Operations = dict[str, "APIOperation[Any, Any, Any, Any]"]


@cache
def described() -> dict[str, Any]:
    """The document."""
    with VirtualServer() as server:
        document: dict[str, Any] = server.send("GET", "/openapi.json").json()
        return document


def operations(document: dict[str, Any]) -> Operations:
    """The operations of a document, by method and path."""
    import schemathesis

    found = [result.ok() for result in schemathesis.openapi.from_dict(document).get_all_operations()]
    return {operation.label: operation for operation in found}


def narrowed(document: dict[str, Any]) -> dict[str, Any]:
    """A document with few ids and small numbers, so that requests meet what others have made."""
    document = copy.deepcopy(document)
    few = {"group_id": GROUPS, "node_id": NODES, "incarnation": INCARNATIONS}
    for by_method in document["paths"].values():
        for operation in by_method.values():
            for parameter in operation.get("parameters", ()):
                if parameter["name"] in few:
                    parameter["schema"] = {"enum": few[parameter["name"]]}
    schemas = document["components"]["schemas"]
    for name, field, narrow in (
        ("JoinRequest", "incarnation", {"enum": INCARNATIONS}),
        ("JoinRequest", "address", {"enum": ["10.0.0.1", "10.0.0.2", "127.0.0.1"]}),
        ("JoinRequest", "after_round", {"enum": [0, 1, 2, 3]}),
        ("JoinRequest", "spec", {"enum": [{}, {}, SPEC]}),
        ("ReportRequest", "incarnation", {"enum": INCARNATIONS}),
        ("ReportRequest", "round", {"enum": [1, 2, 3]}),
        ("DaemonRequest", "incarnation", {"enum": INCARNATIONS}),
        ("DaemonRequest", "master", {"enum": NODES}),
        ("DaemonRequest", "round", {"enum": [1, 2, 3]}),
        ("DaemonRequest", "words", {"enum": [["orted"], ["orted", "-mca", "plm", "rsh"], ["sh"]]}),
        ("ReportRequest", "age_s", {"enum": [0, 0.5, 1e9]}),
    ):
        schemas[name]["properties"][field] = narrow
    spec = schemas["SpecFields"]["properties"]
    spec["min_nodes"], spec["max_nodes"] = {"enum": [1, 2]}, {"enum": [2, 3, None]}
    return document


LABELS = sorted(label for label, route in routes().items() if route.include_in_schema)


@cache
def documented() -> Operations:
    """All operations."""
    found = operations(described())
    assert sorted(found) == LABELS
    return found


@cache
def walked() -> list["APIOperation[Any, Any, Any, Any]"]:
    """Those of the narrowed document, some of them more often."""
    found = operations(narrowed(described()))
    return [
        *(operation for label, operation in found.items() if label.startswith(("PUT", "POST"))),
        *(operation for label, operation in found.items() if "{node_id}" in label for _ in range(3)),
        *(operation for label, operation in found.items() if "{group_id}" in label),
    ]


def drawn(data: st.DataObject, operation: "APIOperation[Any, Any, Any, Any]", *, valid: bool) -> "Case":
    """A request that is valid, or one that is not."""
    from schemathesis import GenerationMode

    mode = GenerationMode.POSITIVE if valid else GenerationMode.NEGATIVE
    case: Case = data.draw(operation.as_strategy(mode))
    case.body = whole(case.body) if valid else case.body
    return case


@pytest.fixture(scope="module")
def server() -> Iterator[VirtualServer]:
    with VirtualServer() as running:
        yield running


def whole(value: Any) -> Any:
    """JSON with `4` for `4.0`: one number to JSON Schema, but we take only the first for a whole one."""
    match value:
        case float() if value.is_integer():
            return int(value)
        case dict():
            return {name: whole(each) for name, each in value.items()}
        case list():
            return [whole(each) for each in value]
    return value


def ask(server: VirtualServer, case: "Case") -> httpx.Response:
    """Send what Schemathesis made."""
    made = requests.Request(**case.as_transport_kwargs(base_url="http://localhost")).prepare()
    assert made.method is not None
    assert made.url is not None
    return server.send(made.method, made.url, headers=[*made.headers.items()], content=made.body)


NO_SCHEMA_SAYS = "|".join(
    [
        r"is \d+, (below min|but max)_",
        ": (raise|lower) (min|max)_",
        "(rank_order|master|unit|command): .*(must be |twice|may name |is empty|characters in all)",
        r"there must be one for each of the \d+ slots",
    ]
)
"""Bounds that contradict each other, and texts that mean nothing."""


def validate(case: "Case", response: httpx.Response, accepts: str = "") -> None:
    """Hold an answer to the document, and to whether such a request may be accepted at all."""
    from schemathesis.specs.openapi import checks

    assert response.status_code < 500, response.text
    names = ["status_code", "content_type", "response_headers", "response_schema"]
    found = [getattr(checks, f"{name}_conformance") for name in names]
    # nobody looks into what is too large
    judged = accepts and response.status_code != TOO_LARGE
    case.validate_response(response, [*found, getattr(checks, accepts)] if judged else found)


def check_valid(case: "Case", response: httpx.Response) -> None:
    """A valid request is executed, or refused because of the state, or for what no schema can express."""
    means_nothing = response.status_code == 422 and re.search(NO_SCHEMA_SAYS, response.text)
    validate(case, response, "" if means_nothing else "positive_data_acceptance")


@pytest.mark.parametrize("label", LABELS)
@given(data=st.data(), valid=st.booleans())
@examples(10)
def test_a_request_is_answered_or_refused_as_documented(
    server: VirtualServer, label: str, data: st.DataObject, valid: bool
) -> None:
    operation = documented()[label]
    if valid:
        case = drawn(data, operation, valid=True)
        check_valid(case, ask(server, case))
    elif operation.definition.raw.keys() & {"parameters", "requestBody"}:
        case = drawn(data, operation, valid=False)
        validate(case, ask(server, case), "negative_data_rejection")


def begin(server: VirtualServer, how: str) -> None:
    """Start over, with a group of two nodes unless the server is to be empty."""
    server.forget()
    if how == "nothing":
        return
    join = {"incarnation": "1", "slots": 2, "address": "10.0.0.1", "port": 4000, "spec": SPEC}
    report = {"incarnation": "1", "round": 1, "kind": "started"}
    failure = {"local_rank": 0, "rank": 0, "exit_code": 1}
    for node_id in "ab" if how != "waiting" else "a":
        assert server.send("PUT", f"/v1/groups/g/nodes/{node_id}", json=join).status_code == 200
    for node_id in "ab" if how in ("running", "ended") else "":
        assert server.send("POST", f"/v1/groups/g/nodes/{node_id}/report", json=report).status_code == 200
    if how == "ended":
        server.send(
            "POST", "/v1/groups/g/nodes/a/report", json=report | {"kind": "failed", "failure": failure}
        )


BEGINNINGS = st.sampled_from(["nothing", "waiting", "starting", "running", "ended"])


@given(data=st.data(), how=BEGINNINGS)
@examples(20)
def test_whatever_came_before_answers_are_as_documented(
    server: VirtualServer, data: st.DataObject, how: str
) -> None:
    begin(server, how)
    for operation in data.draw(st.lists(st.sampled_from(walked()), min_size=5, max_size=20)):
        case = drawn(data, operation, valid=True)
        check_valid(case, ask(server, case))
        server.pass_time(data.draw(st.sampled_from(PAUSES_S)))
