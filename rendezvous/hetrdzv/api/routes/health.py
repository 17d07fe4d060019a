"""Routes for supervision: health, readiness, metrics."""

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from hetrdzv.api.dependencies import ERRORS, Requires
from hetrdzv.auth.tokens import Role
from hetrdzv.protocol.errors import NoLeader, NotLeader
from hetrdzv.protocol.pages import HealthReply, ReadyReply
from hetrdzv.service.metrics import CONTENT_TYPE, Metrics
from hetrdzv.service.service import Replica

router = APIRouter(tags=["health"], responses=ERRORS)


@router.get("/healthz")
async def healthz() -> HealthReply:
    """The process is alive."""
    return HealthReply(status="ok")


@router.get("/readyz")
async def readyz(request: Request) -> ReadyReply:
    """Requests about groups are answered, or redirected to the leader, and no stop has begun.

    `degraded`: the last change could not be stored, and others may be refused; polls are answered all the same.
    """
    replica: Replica = request.app.state.replica
    return replica.status()


@router.get("/metrics", response_class=PlainTextResponse, dependencies=[Depends(Requires(Role.READ))])
async def metrics(request: Request) -> Response:
    """Metrics for Prometheus. A server that does not lead knows no groups, and says so."""
    replica: Replica = request.app.state.replica
    counted: Metrics = request.app.state.metrics
    try:
        body = replica.service().metrics()
    except (NotLeader, NoLeader):
        body = counted.render((), now=0.0, open_polls=0, leads=False)
    return Response(body, media_type=CONTENT_TYPE)
