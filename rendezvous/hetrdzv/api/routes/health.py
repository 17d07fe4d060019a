"""Routes for supervision: health, readiness, metrics."""

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel

from hetrdzv import __version__
from hetrdzv.api import problems
from hetrdzv.protocol import versions
from hetrdzv.protocol.errors import NoLeader, NotLeader
from hetrdzv.service.metrics import CONTENT_TYPE, Metrics
from hetrdzv.service.replica import Replica

router = APIRouter(tags=["health"], responses={"4XX": problems.RESPONSES["4XX"]})


class HealthReply(BaseModel):
    """What runs here."""

    status: str
    service: str = "hetserver"
    version: str = __version__
    api_version: int = versions.MAJOR
    api_minor: int = versions.MINOR


class ReadyReply(HealthReply):
    """The role of this server among its peers, see `ReplicaStatus`."""

    role: str
    leader: str | None


@router.get("/healthz")
async def healthz() -> HealthReply:
    """The process is alive."""
    return HealthReply(status="ok")


@router.get("/readyz", responses={503: problems.RESPONSES[503]})
async def readyz(request: Request) -> ReadyReply:
    """Requests about groups are answered, or redirected to the leader, and no stop has begun.

    `degraded`: the last change could not be stored, and others may be refused; polls are answered all the same.
    """
    replica: Replica = request.app.state.replica
    status = replica.status()
    state = "degraded" if status.degraded else "ready"
    return ReadyReply(status=state, role=status.role, leader=status.leader)


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}, 503: problems.RESPONSES[503]},
)
async def metrics(request: Request) -> Response:
    """Metrics for Prometheus. A server that does not lead knows no groups, and says so."""
    replica: Replica = request.app.state.replica
    counted: Metrics = request.app.state.metrics
    try:
        body = replica.service().metrics()
    except (NotLeader, NoLeader):
        body = counted.render((), now=0.0, open_polls=0, leads=False)
    return Response(body, media_type=CONTENT_TYPE)
