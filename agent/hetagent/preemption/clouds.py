"""What the metadata service of a cloud announces: that it takes this machine away, and when.

Sources: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html and
rebalance-recommendations.html; https://cloud.google.com/compute/docs/instances/create-use-spot and
/metadata/getting-live-migration-notice; https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events.
"""

import os
import time
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Protocol

import httpx

from hetagent.node.console import WarnOnce
from hetagent.roundhook import PreemptionNotice

TIMEOUT_S = 2.0
"""How long a metadata service may take to answer (seconds)."""

SLOW_S = 120.0
"""How long Azure may take to answer the first question for events (seconds)."""

AGAIN_S = 30.0
"""How long until the services are looked for again (seconds)."""

INTERRUPTED_S = 120.0
"""How long before it interrupts an instance AWS says so at most (seconds)."""

PREEMPTED_S = 30.0
"""How long an instance of Google Cloud has left once it is preempted (seconds)."""

ADDRESS = "http://169.254.169.254"


class Cloud(Protocol):
    """The metadata service of one cloud.

    Raises:
        httpx.HTTPError: it does not answer, or as no such service does.
        ValueError: what it says makes no sense.
    """

    def find(self) -> None:
        """Ask something that every machine of this cloud is answered."""

    def ask(self) -> PreemptionNotice | None:
        """What is announced."""


class Clouds:
    """The cloud that this machine is in, once its metadata service has answered.

    Args:
        log: shows one line.
        rebalance: whether this node leaves where AWS only says that it may take the machine away.
    """

    def __init__(self, log: Callable[[str], None], *, rebalance: bool) -> None:
        self._log_once = WarnOnce(log)
        self._http = httpx.Client(trust_env=False, timeout=TIMEOUT_S)
        self._clouds: Mapping[str, Cloud] = {
            "AWS": Aws(self._http, rebalance=rebalance),
            "Google Cloud": Google(self._http),
            "Azure": Azure(self._http, ADDRESS),
        }
        self._cloud: Cloud | None = None
        self._find_at = 0.0

    def ask(self) -> PreemptionNotice | None:
        """What the cloud announces."""
        try:
            if self._cloud is not None:
                return self._cloud.ask()
            self._find()
        except (httpx.HTTPError, KeyError, RuntimeError, TypeError, ValueError):
            pass  # it answers again next time
        return None

    def kept(self) -> Collection[int]:
        """Nothing."""
        return ()

    def close(self) -> None:
        """A request under way fails."""
        self._http.close()

    def _find(self) -> None:
        if time.monotonic() < self._find_at:
            return
        for name, cloud in self._clouds.items():
            try:
                cloud.find()
            except (httpx.HTTPError, ValueError):
                continue
            self._cloud = cloud
            self._log_once(f"--watch: looking for what {name} announces")
            return
        self._find_at = time.monotonic() + AGAIN_S
        self._log_once(
            f"--watch: no metadata service of {', '.join(self._clouds)} answers here; trying again. A container on EC2 "
            "needs a hop limit of 2"
        )


class Aws:
    """The instance metadata service of EC2, version 2.

    Args:
        rebalance: whether a recommendation to rebalance counts.
    """

    def __init__(self, http: httpx.Client, *, rebalance: bool) -> None:
        self._http = http
        self._url = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", ADDRESS).rstrip("/") + "/latest"
        self._rebalance = rebalance
        self._token = ""

    def find(self) -> None:
        """Get a token."""
        reply = self._http.put(
            f"{self._url}/api/token", headers={"X-aws-ec2-metadata-token-ttl-seconds": "21600"}
        )
        self._token = reply.raise_for_status().text

    def ask(self) -> PreemptionNotice | None:
        """Whether EC2 interrupts this spot instance."""
        action = self._read("spot/instance-action")
        if action is not None:
            why, now = f"AWS is about to {action['action']} this instance", time.monotonic()
            gone_at = min(_moment(datetime.fromisoformat(action["time"])), now + INTERRUPTED_S)
            return PreemptionNotice(why, gone_at if gone_at > now else None)  # this clock may be wrong
        if self._rebalance and self._read("events/recommendations/rebalance") is not None:
            return PreemptionNotice("AWS says that it may soon interrupt this instance", None)
        return None

    def _read(self, path: str) -> Any:
        reply = self._get(path)
        if reply.status_code == httpx.codes.UNAUTHORIZED:  # the token is too old
            self.find()
            reply = self._get(path)
        return None if reply.status_code == httpx.codes.NOT_FOUND else reply.raise_for_status().json()

    def _get(self, path: str) -> httpx.Response:
        return self._http.get(
            f"{self._url}/meta-data/{path}", headers={"X-aws-ec2-metadata-token": self._token}
        )


class Google:
    """The metadata server of Compute Engine."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
        self._url = f"http://{host}/computeMetadata/v1/instance"

    def find(self) -> None:
        """Ask whether it is preempted, which every instance is told."""
        self._read("preempted")

    def ask(self) -> PreemptionNotice | None:
        """Whether this instance is preempted, or is stopped for the maintenance of its host."""
        if self._read("preempted") == "TRUE":
            return PreemptionNotice(
                "Google Cloud has preempted this instance", time.monotonic() + PREEMPTED_S
            )
        if self._read("maintenance-event") == "TERMINATE_ON_HOST_MAINTENANCE":
            return PreemptionNotice("Google Cloud is about to stop this instance for maintenance", None)
        return None

    def _read(self, path: str) -> str:
        reply = self._http.get(f"{self._url}/{path}", headers={"Metadata-Flavor": "Google"})
        if reply.raise_for_status().headers.get("Metadata-Flavor") != "Google":
            raise ValueError("not Google's")
        return reply.text.strip()


class Azure:
    """The metadata service of Azure, with its scheduled events. Freezes of some seconds are left to the leases."""

    DOES: Mapping[str, str] = {
        "Preempt": "evict",
        "Terminate": "delete",
        "Reboot": "reboot",
        "Redeploy": "redeploy",
    }

    def __init__(self, http: httpx.Client, address: str) -> None:
        self._http = http
        self._url = f"{address}/metadata"
        self._name = ""

    def find(self) -> None:
        """Ask for the name of this machine: events of others in its scale set are told, too."""
        self._name = self._get(
            "instance/compute/name", TIMEOUT_S, **{"api-version": "2021-02-01", "format": "text"}
        ).text

    def ask(self) -> PreemptionNotice | None:
        """The first event that takes this machine away."""
        reply = self._get("scheduledevents", SLOW_S, **{"api-version": "2020-07-01"})
        mine = [
            event
            for event in reply.json()["Events"]
            if event["EventType"] in self.DOES and self._name in event["Resources"]
        ]
        notices = [
            PreemptionNotice(
                f"Azure is about to {self.DOES[event['EventType']]} this machine", _not_before(event)
            )
            for event in mine
        ]
        return min(notices, key=lambda notice: notice.gone_at or 0.0, default=None)

    def _get(self, path: str, timeout_s: float, **params: str) -> httpx.Response:
        reply = self._http.get(
            f"{self._url}/{path}", params=params, headers={"Metadata": "true"}, timeout=timeout_s
        )
        return reply.raise_for_status()


def _not_before(event: Mapping[str, Any]) -> float | None:
    """When an event of Azure begins at the earliest (monotonic seconds); None: it begins now."""
    return _moment(parsedate_to_datetime(event["NotBefore"])) if event.get("NotBefore") else None


def _moment(when: datetime) -> float:
    """A time of day on this machine's monotonic clock (seconds)."""
    when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    return time.monotonic() + when.timestamp() - time.time()
