"""Routes for supervision: health, readiness, metrics."""

from starlette.requests import Request
from starlette.responses import Response

from hetrdzv.api.bound import Handlers
from hetrdzv.protocol import codec
from hetrdzv.protocol.errors import NoLeader, NotLeader
from hetrdzv.protocol.http import routes
from hetrdzv.protocol.pages import HealthReply, ReadyReply
from hetrdzv.service.metrics import CONTENT_TYPE, Metrics
from hetrdzv.service.replica import Replica

handlers = Handlers()


@handlers(routes.HEALTHZ)
async def healthz(request: Request) -> bytes:
    """The process is alive."""
    return codec.write(HealthReply(status="ok"), nulls=True)


@handlers(routes.READYZ)
async def readyz(request: Request) -> bytes:
    """Requests about groups are answered, or redirected to the leader, and no stop has begun.

    `degraded`: the last change could not be stored, and others may be refused; polls are answered all the same.
    """
    replica: Replica = request.app.state.replica
    status = replica.status()
    state = "degraded" if status.degraded else "ready"
    reply = ReadyReply(status=state, role=status.role, leader=status.leader)
    return codec.write(reply, nulls=True)


@handlers(routes.METRICS)
async def metrics(request: Request) -> Response:
    """Metrics for Prometheus. A server that does not lead knows no groups, and says so."""
    replica: Replica = request.app.state.replica
    counted: Metrics = request.app.state.metrics
    try:
        body = replica.service().metrics()
    except (NotLeader, NoLeader):
        body = counted.render((), now=0.0, open_polls=0, leads=False)
    return Response(body, media_type=CONTENT_TYPE)
