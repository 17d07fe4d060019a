"""Routes for whoever supervises the server."""

from fastapi import APIRouter, Request
from pydantic import BaseModel

from hetrdzv import __version__
from hetrdzv.api import problems
from hetrdzv.api.groups import service_of
from hetrdzv.wire import API_VERSION

router = APIRouter(tags=["health"])


class HealthReply(BaseModel):
    """What runs here."""

    status: str
    service: str = "hetserver"
    version: str = __version__
    api_version: int = API_VERSION


@router.get("/healthz")
async def healthz() -> HealthReply:
    """The process is alive."""
    return HealthReply(status="ok")


@router.get("/readyz", responses={503: problems.RESPONSES[503]})
async def readyz(request: Request) -> HealthReply:
    """Requests about groups are answered: the state is loaded, and no stop has begun."""
    service_of(request).require_ready()
    return HealthReply(status="ready")
