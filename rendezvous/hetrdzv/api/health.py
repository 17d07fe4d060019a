"""Routes for whoever supervises the server."""

from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import BaseModel

from hetrdzv import __version__
from hetrdzv.api import problems
from hetrdzv.errors import NoLeader, NotLeader
from hetrdzv.metrics import CONTENT_TYPE, Metrics
from hetrdzv.replica import Replica
from hetrdzv.wire import API_VERSION

router = APIRouter(tags=["health"], responses={"4XX": problems.RESPONSES["4XX"]})


class HealthReply(BaseModel):
    """What runs here."""

    status: str
    service: str = "hetserver"
    version: str = __version__
    api_version: int = API_VERSION


class ReadyReply(HealthReply):
    """What this server is among its peers; see `ReplicaStatus`."""

    role: str
    leader: str | None


@router.get("/healthz")
async def healthz() -> HealthReply:
    """The process is alive."""
    return HealthReply(status="ok")


@router.get("/readyz", responses={503: problems.RESPONSES[503]})
async def readyz(request: Request) -> ReadyReply:
    """Requests about groups are answered, or pointed to the server that leads; no stop has begun."""
    replica: Replica = request.app.state.replica
    status = replica.status()
    return ReadyReply(status="ready", role=status.role, leader=status.leader)


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}, 503: problems.RESPONSES[503]},
)
async def metrics(request: Request) -> Response:
    """What Prometheus is told. A server that does not lead knows no groups, and says so."""
    replica: Replica = request.app.state.replica
    counted: Metrics = request.app.state.metrics
    try:
        body = replica.service().metrics()
    except (NotLeader, NoLeader):
        body = counted.render((), now=0.0, open_polls=0, leads=False)
    return Response(body, media_type=CONTENT_TYPE)
