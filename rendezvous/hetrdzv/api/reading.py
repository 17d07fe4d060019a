"""Reads what a request gives to a route: names in its path, parameters, a body. What is wrong is told by name."""

from collections.abc import Mapping, Sequence
from dataclasses import make_dataclass, replace
from typing import Any
from urllib.parse import unquote_plus

from starlette.requests import Request

from hetrdzv.api.http.body import PARSED
from hetrdzv.api.problems import InvalidField
from hetrdzv.protocol import bounds, codec
from hetrdzv.protocol.codec import Malformed, Mistake
from hetrdzv.protocol.http.route import Role, Route

PATH_KINDS: Mapping[str, Any] = {"group_id": bounds.Id, "node_id": bounds.Id, "name": bounds.ShortText}
"""The types of the names in paths."""


_JSON = (b"content-type", b"application/json")


class Reader:
    """Reads requests for a route."""

    def __init__(self, route: Route[Any]) -> None:
        self._route = route
        self._known = {taken.name: taken.many for taken in route.takes if not taken.header}
        self._headers = {taken.name: taken.name.replace("_", "-") for taken in route.takes if taken.header}
        required = [(taken.name, taken.kind) for taken in route.takes if taken.default is ...]
        optional = [
            (taken.name, taken.kind, taken.default) for taken in route.takes if taken.default is not ...
        ]
        named = [(name, PATH_KINDS[name]) for name in route.names]
        self._parameters: Any = make_dataclass("Parameters", [*named, *required, *optional])
        if route.hot:  # now, for with many nodes it takes long enough to look like a stall of the server
            codec.adapter(self._parameters)
            if route.body is not None:
                codec.adapter(route.body)

    async def read(self, request: Request) -> dict[str, Any]:
        """The arguments for what answers the route, by name; the body is `body`.

        Raises:
            InvalidField: something is missing, malformed, out of range or unknown.
        """
        given: dict[str, Any] = {}
        wrong: list[Mistake] = []
        try:
            given = self._take(request)
        except Malformed as error:
            wrong += [
                replace(mistake, place=tuple(map(self._as_written, mistake.place)))
                for mistake in error.mistakes
            ]
        if self._route.body is not None:
            try:
                given["body"] = await self._body(request)
            except Malformed as error:
                wrong += error.mistakes
        if wrong:
            raise _told(wrong)
        return given

    def _take(self, request: Request) -> dict[str, Any]:
        """The names in the path, and the parameters."""
        texts = dict(request.path_params)
        if query := request.scope["query_string"]:
            for name, values in _parsed(query).items():
                if name in self._known:
                    texts[name] = values if self._known[name] else values[-1]
                elif not self._route.page:
                    self._unknown(name[:80])
        for name, header in self._headers.items():
            if (text := request.headers.get(header)) is not None:
                texts[name] = text
        parameters: Any = codec.from_text(self._parameters, texts)
        return dict(vars(parameters))

    def _as_written(self, name: str | int) -> str | int:
        """The name of a parameter as requests have it: headers have dashes."""
        return self._headers.get(name, name) if isinstance(name, str) else name

    def _unknown(self, name: str) -> None:
        """Refuse an unknown query parameter, as bodies do with fields; agents' are ignored."""
        if self._route.role is not Role.AGENT:
            known = ", ".join(self._known) or "none"
            raise InvalidField(name, f"there is no such query parameter here; known parameters: {known}")

    async def _body(self, request: Request) -> Any:
        kind, data = self._route.body, (await request.receive()).get("body", b"")
        if not data and not self._route.needs_body:
            return kind()
        if not data or not _is_json(request):
            what = "must be a JSON object, sent with Content-Type: application/json" if data else "is missing"
            raise Malformed((Mistake((), f"it {what}"),))
        try:
            return codec.read(kind, data, unknown="ignore" if self._route.role is Role.AGENT else "refuse")
        finally:
            request.scope.get(PARSED, _nothing)()  # a poll may wait for long, and its body be large


def _parsed(query: bytes) -> Mapping[str, list[str]]:
    """The parameters in a query; half the time of `parse_qs`."""
    values: dict[str, list[str]] = {}
    for each in query.decode("latin-1").split("&"):
        if each:
            name, _, text = each.partition("=")
            values.setdefault(unquote_plus(name), []).append(unquote_plus(text))
    return values


def _is_json(request: Request) -> bool:
    if _JSON in request.scope["headers"]:  # nearly always, and a tenth of the time of what follows
        return True
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _told(wrong: Sequence[Mistake]) -> InvalidField:
    """What is wrong, as one error: all of the first, and where the others are."""
    first, *others = wrong
    shown = f" (given: {first.given!r:.80})" if first.given is not None else ""
    more = f"; also wrong: {', '.join(mistake.field or 'body' for mistake in others[:8])}" if others else ""
    return InvalidField(first.field or "body", f"{first.text}{shown}{more}")


def _nothing() -> None:
    """Where nobody counts bodies."""
