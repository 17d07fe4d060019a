"""Routes about the server: health, readiness, metrics; and its routes on one plain page, `/docs`, which works without
internet, made from `/openapi.json`.

FastAPI's own page loads Swagger UI from a CDN, so on a cluster without internet it stays blank.
"""

import asyncio
import json
from collections.abc import Iterator
from html import escape
from typing import Any

from fastapi import APIRouter, Depends
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from hetrdzv.api.dependencies import ERROR_RESPONSES, Requires
from hetrdzv.auth.tokens import Role
from hetrdzv.protocol import codec
from hetrdzv.protocol.errors import NoLeader, NotLeader
from hetrdzv.protocol.replies import HealthReply, ProblemReply, ReadyReply
from hetrdzv.service.metrics import CONTENT_TYPE, Metrics
from hetrdzv.service.service import Replica

health_router = APIRouter(tags=["health"], responses=ERROR_RESPONSES)
document_router = APIRouter(
    include_in_schema=False, dependencies=[Depends(Requires(Role.READ, filters_by_scope=True))]
)


@health_router.get("/healthz")
async def healthz() -> HealthReply:
    """The process is alive."""
    return HealthReply(status="ok")


@health_router.get("/readyz")
async def readyz(request: Request) -> ReadyReply:
    """Requests about groups are answered, or redirected to the leader, and no stop has begun.

    `degraded`: the last change could not be stored, and others may be refused; polls are answered all the same.
    """
    replica: Replica = request.app.state.replica
    return replica.status()


@health_router.get("/metrics", response_class=PlainTextResponse, dependencies=[Depends(Requires(Role.READ))])
async def metrics(request: Request) -> Response:
    """Metrics for Prometheus. A server that does not lead knows no groups, and says so."""
    replica: Replica = request.app.state.replica
    counted: Metrics = request.app.state.metrics
    try:
        body = replica.service().render_metrics()
    except (NotLeader, NoLeader):
        body = counted.render_text()
    return Response(body, media_type=CONTENT_TYPE)


# -- the document ------------------------------------------------------------------------------------------

_DOCS_PAGE_HEAD = """<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title>
<style>body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto }}
summary {{ font: bold 15px monospace; cursor: pointer }}</style><h1>{title}</h1>
<p>Every error is problem details (RFC 9457) with a <code>code</code>.
For programs: <a href=/openapi.json>/openapi.json</a>"""


@document_router.get("/docs")
async def docs(request: Request) -> HTMLResponse:
    """The routes, for people."""
    document = await asyncio.to_thread(request.app.openapi)
    policy = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
    return HTMLResponse("".join(_render_docs_page(document)), headers=policy)


@document_router.get("/openapi.json")
async def openapi(request: Request) -> JSONResponse:
    """The same for programs."""
    return JSONResponse(await asyncio.to_thread(request.app.openapi))


def _render_docs_page(document: dict[str, Any]) -> Iterator[str]:
    yield _DOCS_PAGE_HEAD.format(title=escape(f"{document['info']['title']} {document['info']['version']}"))
    yield "<h2>Routes</h2>"
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield _render_docs_entry(f"{method.upper()} {path}", operation)
    yield "<h2>Bodies and replies</h2>"
    for name, schema in sorted(document["components"]["schemas"].items()):
        yield _render_docs_entry(name, schema)


def _render_docs_entry(title: str, content: dict[str, Any]) -> str:
    """One part of the document: its description, and all of it on demand."""
    about, details = escape(content.get("description", "")), escape(json.dumps(content, indent=2))
    return f"<details><summary>{escape(title)}</summary><pre>{details}</pre></details><p>{about}</p>"


def correct_openapi(document: dict[str, Any]) -> None:
    """Correct what FastAPI says wrongly about this API."""
    problem = codec.type_adapter(ProblemReply).json_schema(
        mode="serialization", ref_template="#/components/schemas/{model}"
    )
    document["components"]["schemas"] = {
        **problem.pop("$defs"),
        "ProblemReply": problem,
        **document["components"]["schemas"],
    }
