"""What the metadata services of clouds announce, asked of servers that answer as their documentation says."""

import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import httpx
import pytest

from hetagent.preemption import clouds
from hetagent.preemption.clouds import CloudMetadata, query_aws, query_azure, query_google

Answers = Callable[[str, str, Mapping[str, str]], "tuple[int, str, Mapping[str, str]]"]
"""From method, path with query, and headers in lower case to status, body and headers."""


def serving(answers: Answers) -> httpx.Client:
    """A client of a service that answers like that at any address."""

    def answer(request: httpx.Request) -> httpx.Response:
        path = request.url.raw_path.decode()
        status, text, headers = answers(request.method, path, request.headers)
        return httpx.Response(status, text=text, headers=headers)

    return httpx.Client(transport=httpx.MockTransport(answer))


class Ec2:
    """IMDSv2: all but the token is refused without one.

    Attributes:
        said: what it knows, by path.
        token: the one that counts.
    """

    def __init__(self) -> None:
        self.said: dict[str, str] = {}
        self.token = "one"

    def __call__(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str, dict[str, str]]:
        if method == "PUT" and path == "/latest/api/token":
            seconds = int(headers["x-aws-ec2-metadata-token-ttl-seconds"])
            return (200, self.token, {}) if 1 <= seconds <= 21_600 else (400, "", {})
        if headers.get("x-aws-ec2-metadata-token") != self.token:
            return 401, "", {}
        said = self.said.get(path.removeprefix("/latest/meta-data/"))
        return (404, "", {}) if said is None else (200, said, {})


def test_aws_says_when_it_takes_an_instance() -> None:
    service = Ec2()
    http = serving(service)
    assert query_aws(http) is None
    at = (datetime.now(UTC) + timedelta(seconds=118)).strftime("%Y-%m-%dT%H:%M:%SZ")
    service.said["spot/instance-action"] = f'{{"action": "terminate", "time": "{at}"}}'
    told = query_aws(http)
    assert told is not None
    assert told.why == "AWS is about to terminate this instance"
    assert told.deadline == pytest.approx(time.monotonic() + 118, abs=3)
    service.said["spot/instance-action"] = '{"action": "stop", "time": "2097-01-01T00:00:00Z"}'
    told = query_aws(http)
    assert told is not None, "it says so two minutes before: the clock is slow"
    assert told.deadline == pytest.approx(time.monotonic() + 120, abs=3)
    service.said["spot/instance-action"] = '{"action": "stop", "time": "2017-09-18T08:22:00Z"}'
    assert query_aws(http) == ("AWS is about to stop this instance", None), "or fast"


class Gce:
    """The metadata server of Compute Engine: it refuses whoever does not say whom it asks."""

    def __init__(self) -> None:
        self.said = {"preempted": "FALSE", "maintenance-event": "NONE"}

    def __call__(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str, dict[str, str]]:
        flavor = {"Metadata-Flavor": "Google"}
        said = self.said.get(path.removeprefix("/computeMetadata/v1/instance/"))
        if method != "GET" or said is None:
            return 404, "", flavor
        return (200, said, flavor) if headers.get("metadata-flavor") == "Google" else (403, "", flavor)


@pytest.mark.parametrize(
    ("path", "said", "why"),
    [
        ("preempted", "TRUE", "Google Cloud has preempted this instance"),
        (
            "maintenance-event",
            "TERMINATE_ON_HOST_MAINTENANCE",
            "Google Cloud is about to stop this instance for maintenance",
        ),
        ("maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE", None),
    ],
)
def test_google_says_that_it_takes_an_instance(path: str, said: str, why: str | None) -> None:
    service = Gce()
    http = serving(service)
    assert query_google(http) is None
    service.said[path] = said
    told = query_google(http)
    assert (told.why if told is not None else None) == why
    if path == "preempted":
        assert told is not None
        assert told.deadline == pytest.approx(time.monotonic() + 30, abs=3)


class Scheduled:
    """Azure's metadata service, on a machine of a scale set."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def __call__(self, method: str, path: str, headers: Mapping[str, str]) -> tuple[int, str, dict[str, str]]:
        if method != "GET" or headers.get("metadata") != "true" or "api-version=" not in path:
            return 400, "", {}
        if path.startswith("/metadata/instance/compute/name?"):
            return 200, "set_3", {}
        if path.startswith("/metadata/scheduledevents?"):
            return 200, httpx.Response(200, json={"DocumentIncarnation": 2, "Events": self.events}).text, {}
        return 404, "", {}

    def add(self, kind: str, resources: list[str], not_before: str) -> None:
        self.events.append(
            {
                "EventId": "C7061BAC-AFDC-4513-B24B-AA5F13A16123",
                "EventType": kind,
                "ResourceType": "VirtualMachine",
                "Resources": resources,
                "EventStatus": "Scheduled",
                "NotBefore": not_before,
            }
        )


def test_azure_says_when_it_takes_a_machine_and_freezes_and_others_do_not_count() -> None:
    service = Scheduled()
    http = serving(service)
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=25), usegmt=True)
    service.add("Freeze", ["set_3"], soon)
    service.add("Preempt", ["set_4"], soon)
    assert query_azure(http) is None
    service.add(
        "Redeploy", ["set_2", "set_3"], format_datetime(datetime.now(UTC) + timedelta(900), usegmt=True)
    )
    service.add("Preempt", ["set_3"], soon)
    told = query_azure(http)
    assert told is not None
    assert told.why == "Azure is about to evict this machine"
    assert told.deadline == pytest.approx(time.monotonic() + 25, abs=3)
    for not_before, why in (("", "it begins now"), ("Mon, 19 Sep 2016 18:29:47 GMT", "this clock is fast")):
        service.events.clear()
        service.add("Terminate", ["set_3"], not_before)
        assert query_azure(http) == ("Azure is about to delete this machine", None), why


def clouds_of(answers: Answers, monkeypatch: pytest.MonkeyPatch, said: list[str]) -> CloudMetadata:
    client = serving(answers)
    monkeypatch.setattr(clouds.httpx, "Client", lambda **_: client)
    return CloudMetadata(said.append)


def test_the_cloud_is_found_by_who_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Though each address is asked in turn, and others answer something, too."""
    service, said = Gce(), list[str]()
    found = clouds_of(service, monkeypatch, said)
    assert found.find_notice() is None
    assert said == ["--watch: looking for what Google Cloud announces"]
    service.said["preempted"] = "TRUE"
    assert found.find_notice() is not None
    del service.said["preempted"]
    assert found.find_notice() is None, "it does not answer at the moment"


def test_where_no_cloud_answers_that_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    found = clouds_of(lambda *_: (404, "", {}), monkeypatch, said)
    assert [found.find_notice(), found.find_notice()] == [None, None]
    assert len(said) == 1
    assert said[0].startswith("--watch: no metadata service of AWS, Google Cloud, Azure answers here")
