"""What the metadata service of a cloud announces: that it takes this machine away, and when.

Sources: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html;
https://cloud.google.com/compute/docs/instances/create-use-spot and /metadata/getting-live-migration-notice;
https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events.
"""

import os
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx

from hetagent.node.console import WarnOnce
from hetagent.roundhook import PreemptionNotice

TIMEOUT = httpx.Timeout(2.0)

AZURE_TIMEOUT = httpx.Timeout(2.0, read=120.0)
"""Azure may take two minutes to answer the first question for events."""

AGAIN_S = 30.0
"""Pause before the clouds are tried again where none has answered (seconds)."""

INTERRUPTED_S = 120.0
"""AWS announces an interruption at most this long before it (seconds)."""

PREEMPTED_S = 30.0
"""How long a preempted instance of Google Cloud has left (seconds)."""

ADDRESS = "http://169.254.169.254"


class Clouds:
    """The first cloud whose metadata service answers: this machine is there."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log_once = WarnOnce(log)
        self._http = httpx.Client(trust_env=False, timeout=TIMEOUT)
        self._clouds: Mapping[str, Callable[[], PreemptionNotice | None]] = {
            "AWS": Aws(self._http).ask,
            "Google Cloud": Google(self._http).ask,
            "Azure": Azure(self._http).ask,
        }
        self._found = False
        self._again_at = 0.0

    def ask(self) -> PreemptionNotice | None:
        """What the cloud announces."""
        if time.monotonic() < self._again_at:
            return None
        for name, ask in self._clouds.items():
            try:
                notice = ask()
            except (httpx.HTTPError, KeyError, RuntimeError, TypeError, ValueError):
                continue
            self._clouds, self._found = {name: ask}, True
            self._log_once(f"--watch: looking for what {name} announces")
            return notice
        if not self._found:
            self._again_at = time.monotonic() + AGAIN_S
            self._log_once(
                f"--watch: no metadata service of {', '.join(self._clouds)} answers here; trying again. A container on "
                "EC2 needs a hop limit of 2"
            )
        return None


class Aws:
    """The instance metadata service of EC2, version 2."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._url = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", ADDRESS).rstrip("/") + "/latest"

    def ask(self) -> PreemptionNotice | None:
        """Whether EC2 interrupts this spot instance."""
        ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
        token = self._http.put(f"{self._url}/api/token", headers=ttl).raise_for_status().text
        url = f"{self._url}/meta-data/spot/instance-action"
        reply = self._http.get(url, headers={"X-aws-ec2-metadata-token": token})
        if reply.status_code == httpx.codes.NOT_FOUND:
            return None
        action = reply.raise_for_status().json()
        at = _monotonic(datetime.fromisoformat(action["time"]))
        gone_at = min(at, time.monotonic() + INTERRUPTED_S) if at is not None else None
        return PreemptionNotice(f"AWS is about to {action['action']} this instance", gone_at)


class Google:
    """The metadata server of Compute Engine."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
        self._url = f"http://{host}/computeMetadata/v1/instance"

    def ask(self) -> PreemptionNotice | None:
        """Whether this instance is preempted, or is stopped for the maintenance of its host."""
        if self._read("preempted") == "TRUE":
            gone_at = time.monotonic() + PREEMPTED_S
            return PreemptionNotice("Google Cloud has preempted this instance", gone_at)
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

    VERBS: Mapping[str, str] = {
        "Preempt": "evict",
        "Terminate": "delete",
        "Reboot": "reboot",
        "Redeploy": "redeploy",
    }

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._name = ""  # of this machine: there are events of others in its scale set, too

    def ask(self) -> PreemptionNotice | None:
        """The first event that takes this machine away."""
        if not self._name:
            self._name = self._get("instance/compute/name", "2021-02-01", TIMEOUT, format="text").text
        events = self._get("scheduledevents", "2020-07-01", AZURE_TIMEOUT).json()["Events"]
        notices = [
            PreemptionNotice(
                f"Azure is about to {self.VERBS[event['EventType']]} this machine",
                # Without a time it begins now.
                _monotonic(parsedate_to_datetime(event["NotBefore"])) if event.get("NotBefore") else None,
            )
            for event in events
            if event["EventType"] in self.VERBS and self._name in event["Resources"]
        ]
        return min(notices, key=lambda notice: notice.deadline or 0.0, default=None)

    def _get(self, path: str, version: str, timeout: httpx.Timeout, **params: str) -> httpx.Response:
        params["api-version"] = version
        url = f"{ADDRESS}/metadata/{path}"
        reply = self._http.get(url, params=params, headers={"Metadata": "true"}, timeout=timeout)
        return reply.raise_for_status()


def _monotonic(when: datetime) -> float | None:
    """A time of day on this machine's monotonic clock (seconds); None: it is over, so this clock may be wrong."""
    when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    left_s = when.timestamp() - time.time()
    return time.monotonic() + left_s if left_s > 0 else None
