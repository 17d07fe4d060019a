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

INTERRUPTED_S = 120.0
"""AWS announces an interruption at most this long before it (seconds)."""

PREEMPTED_S = 30.0
"""How long a preempted instance of Google Cloud has left (seconds)."""

ADDRESS = "http://169.254.169.254"


def query_aws(http: httpx.Client) -> PreemptionNotice | None:
    """Whether EC2 interrupts this spot instance; by the instance metadata service, version 2."""
    url = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", ADDRESS).rstrip("/") + "/latest"
    ttl = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token = http.put(f"{url}/api/token", headers=ttl).raise_for_status().text
    reply = http.get(f"{url}/meta-data/spot/instance-action", headers={"X-aws-ec2-metadata-token": token})
    if reply.status_code == httpx.codes.NOT_FOUND:
        return None
    action = reply.raise_for_status().json()
    at = _to_monotonic(datetime.fromisoformat(action["time"]))
    gone_at = min(at, time.monotonic() + INTERRUPTED_S) if at is not None else None
    return PreemptionNotice(f"AWS is about to {action['action']} this instance", gone_at)


def query_google(http: httpx.Client) -> PreemptionNotice | None:
    """Whether this instance of Compute Engine is preempted, or is stopped for the maintenance of its host."""

    def read(path: str) -> str:
        host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
        url = f"http://{host}/computeMetadata/v1/instance/{path}"
        reply = http.get(url, headers={"Metadata-Flavor": "Google"}).raise_for_status()
        if reply.headers.get("Metadata-Flavor") != "Google":
            raise ValueError("not Google's")
        return reply.text.strip()

    if read("preempted") == "TRUE":
        return PreemptionNotice("Google Cloud has preempted this instance", time.monotonic() + PREEMPTED_S)
    if read("maintenance-event") == "TERMINATE_ON_HOST_MAINTENANCE":
        return PreemptionNotice("Google Cloud is about to stop this instance for maintenance", None)
    return None


AZURE_VERBS: Mapping[str, str] = {
    "Preempt": "evict",
    "Terminate": "delete",
    "Reboot": "reboot",
    "Redeploy": "redeploy",
}
"""What Azure's events do to a machine, but for freezes of some seconds, which are left to the leases."""


def query_azure(http: httpx.Client) -> PreemptionNotice | None:
    """The first scheduled event that takes this machine away; there are events of others in its scale set, too."""

    def read(path: str, version: str, timeout: httpx.Timeout, **params: str) -> httpx.Response:
        params["api-version"] = version
        url = f"{ADDRESS}/metadata/{path}"
        reply = http.get(url, params=params, headers={"Metadata": "true"}, timeout=timeout)
        return reply.raise_for_status()

    name = read("instance/compute/name", "2021-02-01", TIMEOUT, format="text").text
    notices = [
        PreemptionNotice(
            f"Azure is about to {AZURE_VERBS[event['EventType']]} this machine",
            # Without a time it begins now.
            _to_monotonic(parsedate_to_datetime(event["NotBefore"])) if event.get("NotBefore") else None,
        )
        for event in read("scheduledevents", "2020-07-01", AZURE_TIMEOUT).json()["Events"]
        if event["EventType"] in AZURE_VERBS and name in event["Resources"]
    ]
    return min(notices, key=lambda notice: notice.deadline or 0.0, default=None)


class CloudMetadata:
    """The first cloud whose metadata service answers: this machine is there."""

    def __init__(self, log: Callable[[str], None]) -> None:
        self._log_once = WarnOnce(log)
        self._http = httpx.Client(trust_env=False, timeout=TIMEOUT)
        self._clouds = {"AWS": query_aws, "Google Cloud": query_google, "Azure": query_azure}

    def find_notice(self) -> PreemptionNotice | None:
        """What the cloud announces."""
        for name, query in self._clouds.items():
            try:
                notice = query(self._http)
            except (httpx.HTTPError, KeyError, RuntimeError, TypeError, ValueError):
                continue
            self._clouds = {name: query}
            self._log_once(f"--watch: looking for what {name} announces")
            return notice
        if len(self._clouds) > 1:
            self._log_once(
                f"--watch: no metadata service of {', '.join(self._clouds)} answers here; trying again. A container on "
                "EC2 needs a hop limit of 2"
            )
        return None


def _to_monotonic(when: datetime) -> float | None:
    """A time of day on this machine's monotonic clock (seconds); None: it is over, so this clock may be wrong."""
    when = when if when.tzinfo is not None else when.replace(tzinfo=UTC)
    left_s = when.timestamp() - time.time()
    return time.monotonic() + left_s if left_s > 0 else None
