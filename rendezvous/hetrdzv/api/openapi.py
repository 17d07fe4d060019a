"""The OpenAPI document: FastAPI's, with what it gets wrong about this API corrected (tests/fuzz checks it)."""

from typing import Any

from fastapi import FastAPI

from hetrdzv.api.problems import MEDIA_TYPE


def install(app: FastAPI) -> None:
    """Correct the OpenAPI document of an application."""
    describe = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            _correct_unions(describe())
            for operations in describe()["paths"].values():
                for operation in operations.values():
                    _correct_errors(operation["responses"])
                    _correct_parameters(operation.get("parameters", []))
        return describe()

    app.openapi = openapi  # type: ignore[method-assign]


def _correct_unions(part: Any) -> None:
    """What is of no known kind is `Other`, whose schema fits all kinds: so any of the schemas, not exactly one."""
    if isinstance(part, dict):
        if {"$ref": "#/components/schemas/Other"} in part.get("oneOf", ()):
            part["anyOf"] = part.pop("oneOf")
        part = list(part.values())
    if isinstance(part, list):
        for inner in part:
            _correct_unions(inner)


def _correct_errors(responses: dict[str, dict[str, Any]]) -> None:
    """Errors are problem details; FastAPI gives them the media type of the route's reply."""
    for status, response in responses.items():
        content = response.get("content", {})
        if not status.startswith("2") and "application/json" in content:
            content[MEDIA_TYPE] = content.pop("application/json")


def _correct_parameters(parameters: list[dict[str, Any]]) -> None:
    """Optional parameters may be left out, but a URL or a header has no null."""
    for parameter in parameters:
        schema = parameter["schema"]
        options = [option for option in schema.get("anyOf", ()) if option != {"type": "null"}]
        if len(options) == 1:
            del schema["anyOf"]
            schema |= options[0]
