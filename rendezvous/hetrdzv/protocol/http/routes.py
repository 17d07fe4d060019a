"""The routes that clients ask; what answers them is in api/routes. tests/server/api/test_app.py compares the two."""

from types import NoneType

from hetrdzv.protocol.directive import Directive
from hetrdzv.protocol.http.route import NODE, Route
from hetrdzv.protocol.pages import EventsReply, GroupReply, GroupsReply, HealthReply, StacksReply
from hetrdzv.protocol.requests.plans import Plan
from hetrdzv.protocol.rounds import RoundsReply
from hetrdzv.protocol.snapshots import SnapshotsReply, SnapshotsShown

STACKS_WAIT_S = 10.0
"""How long a server waits for agents to send stacks, or logs (seconds)."""

_GROUPS = "/v1/groups"
_GROUP = f"{_GROUPS}/{{group_id}}"

JOIN = Route("PUT", NODE, Directive)
DIRECTIVE = Route("GET", f"{NODE}/directive", Directive)
POLL = Route("POST", f"{NODE}/directive", Directive)
REPORT = Route("POST", f"{NODE}/report", Directive)
STACKS = Route("POST", f"{NODE}/stacks", NoneType)
LOGS = Route("POST", f"{NODE}/logs", NoneType)
DAEMON = Route("POST", f"{NODE}/daemon", Directive)
LEAVE = Route("DELETE", NODE, NoneType)
SNAPSHOTS = Route("POST", f"{NODE}/snapshots", SnapshotsReply)

GROUPS = Route("GET", _GROUPS, GroupsReply)
GROUP = Route("GET", _GROUP, GroupReply)
ROUNDS = Route("GET", f"{_GROUP}/rounds", RoundsReply)
EVENTS = Route("GET", f"{_GROUP}/events", EventsReply)
PLAN = Route("POST", f"{_GROUP}/plan", Plan)
PUT = Route("PUT", _GROUP, GroupReply)
DELETE = Route("DELETE", _GROUP, NoneType)
RESTART = Route("POST", f"{_GROUP}/restart", GroupReply, once=True)
CANCEL = Route("POST", f"{_GROUP}/cancel", GroupReply)
STACKS_OF = Route("POST", f"{_GROUP}/stacks", StacksReply, wait_s=STACKS_WAIT_S)
LOGS_OF = Route("POST", f"{_GROUP}/logs", StacksReply, wait_s=STACKS_WAIT_S)
SNAPSHOTS_OF = Route("GET", f"{_GROUP}/snapshots", SnapshotsShown)
USE_SNAPSHOT = Route("POST", f"{_GROUP}/snapshots", SnapshotsShown)
DRAIN = Route("POST", f"{NODE}/drain", GroupReply)
UNDRAIN = Route("POST", f"{NODE}/undrain", GroupReply)

HEALTHZ = Route("GET", "/healthz", HealthReply)
