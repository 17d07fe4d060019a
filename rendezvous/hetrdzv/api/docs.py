"""`/docs`: the routes as one plain page, made from the OpenAPI document. Needs nothing from the internet.

FastAPI's own page loads Swagger UI from a CDN: on a cluster without internet it stays blank.
"""

from collections.abc import Iterator
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse

router = APIRouter(include_in_schema=False)

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
section { border-top: 1px solid #ccc } h2 { font: bold 1rem monospace } code { background: #f4f4f4 }
td, th { text-align: left; vertical-align: top; padding: 0 1rem 0 0 }
"""


@router.get("/docs")
async def docs(request: Request) -> HTMLResponse:
    """The routes, for people; programs read /openapi.json."""
    page = "".join(_page(request.app.openapi()))
    return HTMLResponse(
        page, headers={"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
    )


def _page(document: dict[str, Any]) -> Iterator[str]:
    info = document["info"]
    title = escape(f"{info['title']} {info['version']}")
    yield f"<!doctype html><html lang=en><meta charset=utf-8><title>{title}</title><style>{_STYLE}</style>"
    yield f"<h1>{title}</h1><p>Every error is problem details (RFC 9457) with a <code>code</code>. "
    yield "For programs: <a href=/openapi.json>/openapi.json</a></p>"
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            yield from _operation(path, method.upper(), operation)
    schemas = document["components"]["schemas"]
    for name in sorted(schemas):
        yield from _schema(name, schemas[name])


def _operation(path: str, method: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"<section><h2>{method} {escape(path)}</h2><p>{escape(operation.get('description', ''))}</p><table>"
    for parameter in operation.get("parameters", ()):
        need = "required" if parameter.get("required") else "optional"
        text = f"in {parameter['in']}, {need}. {parameter.get('description', '')}"
        yield _row(parameter["name"], _type(parameter["schema"]), text)
    for content in operation.get("requestBody", {}).get("content", {}).values():
        yield _row("body", _type(content["schema"]))
    for status, response in operation.get("responses", {}).items():
        for content in response.get("content", {}).values():
            yield _row(status, _type(content.get("schema", {})))
    yield "</table></section>"


def _schema(name: str, schema: dict[str, Any]) -> Iterator[str]:
    about = escape(schema.get("description", ""))
    yield f'<section id="{escape(name)}"><h2>{escape(name)}</h2><p>{about}</p><table>'
    for field, what in schema.get("properties", {}).items():
        default = f"default {what['default']!r}" if what.get("default") is not None else ""
        need = "required" if field in schema.get("required", ()) else default
        yield _row(field, _type(what), need)
    if "enum" in schema:
        yield f"<tr><td>{escape(' | '.join(map(str, schema['enum'])))}"
    yield "</table></section>"


def _row(name: str, kind: str, text: str = "") -> str:
    return f"<tr><td><code>{escape(name)}</code><td>{kind}<td>{escape(text)}"


def _type(schema: dict[str, Any]) -> str:
    """A JSON schema in a few words; other schemas are linked."""
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}">{name}</a>'
    if "anyOf" in schema:
        return " or ".join(_type(option) for option in schema["anyOf"])
    if "enum" in schema:
        return escape(" | ".join(map(str, schema["enum"])))
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}))}"
    bounds = "".join(
        f" {sign} {schema[key]:g}"
        for key, sign in (("minimum", "&ge;"), ("maximum", "&le;"), ("exclusiveMaximum", "&lt;"))
        if key in schema
    )
    pattern = f" {escape(schema['pattern'])}" if "pattern" in schema else ""
    return f"{escape(str(schema.get('type', 'anything')))}{bounds}{pattern}"
