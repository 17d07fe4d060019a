"""Shows something again and again: redrawn on a terminal, elsewhere only the lines that are new."""

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeVar

import click
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from hetrdzv.cli.hetctl import tables
from hetrdzv.cli.hetctl.calls import call, complain, print_json
from hetrdzv.cli.hetctl.options import shared
from hetrdzv.client import Client
from hetrdzv.protocol import codec
from hetrdzv.protocol.errors import Unreachable

EVERY_S = 2.0
"""How long to pause between two looks (seconds)."""

WATCH = click.option("--watch", "-w", is_flag=True, help="Show it again whenever it changes, until Ctrl-C.")

_R = TypeVar("_R")


def look(
    ask: Callable[[Client], Coroutine[Any, Any, _R]],
    view: Callable[[_R], Iterable[RenderableType]],
    *,
    watch: bool = False,
    every_s: float = EVERY_S,
) -> None:
    """Show what a server says, once or for as long as the person wants to see it.

    Args:
        view: the reply as tables and lines.
        watch: go on until Ctrl-C.
    """
    if watch:
        try:
            call(lambda client: _follow(client, ask, view, every_s))
        except KeyboardInterrupt:
            return
    reply = call(ask)
    if shared().as_json:
        print_json(reply)
    elif parts := list(view(reply)):
        tables.show(*parts)


async def _follow(
    client: Client,
    ask: Callable[[Client], Coroutine[Any, Any, _R]],
    view: Callable[[_R], Iterable[RenderableType]],
    every_s: float,
) -> None:
    """Show replies until cancelled; a server that answered before may come back."""
    reply = await ask(client)
    show = _Documents() if shared().as_json else _Redrawn(view) if sys.stdout.isatty() else _News(view)
    try:
        away = ""
        while True:
            show(reply, away)
            await asyncio.sleep(every_s)
            try:
                reply, away = await ask(client), ""
            except Unreachable as error:
                away = str(error)
    finally:
        if isinstance(show, _Redrawn):
            show.close()


class _Documents:
    """A document for each change, for programs."""

    def __init__(self) -> None:
        self._last: object = None

    def __call__(self, reply: object, away: str) -> None:
        document = codec.write(reply, nulls=True).decode()
        if not away and (what := without_moments(json.loads(document))) != self._last:
            self._last = what
            tables.write(document)


def without_moments(document: Any) -> Any:
    """What of a reply stays as long as nothing happens: without how long ago things were, and for how much longer."""
    match document:
        case dict():
            said = document.get("reason") is not None
            return {
                name: value if name == "spec" else without_moments(value)
                for name, value in document.items()
                if not (_passes(name) and isinstance(value, float | int)) and not (said and name == "why")
            }
        case list():
            return [without_moments(value) for value in document]
        case _:
            return document


def _passes(name: str) -> bool:
    """Whether a field is about time that passes."""
    return name in ("clock", "waiting") or name.endswith(("_s", "_s_ago"))


class _Redrawn:
    """The newest view on the terminal's other screen; the last one stays on the usual one."""

    def __init__(self, view: Callable[[Any], Iterable[RenderableType]]) -> None:
        self._view = view
        self._parts: list[RenderableType] = []
        self._live = Live(console=tables.new_console(), screen=True, auto_refresh=False, transient=True)
        self._live.start()

    def __call__(self, reply: object, away: str) -> None:
        self._parts = list(self._view(reply))
        note = [Text(f"{tables.one_line(away)}; trying again", style="red")] if away else []
        self._live.update(Group(*note, *self._parts), refresh=True)

    def close(self) -> None:
        self._live.stop()
        tables.show(*self._parts)


class _News:
    """The lines that the look before did not have, for whoever reads from a pipe."""

    def __init__(self, view: Callable[[Any], Iterable[RenderableType]]) -> None:
        self._view = view
        self._last: set[str] = set()
        self._away = False

    def __call__(self, reply: object, away: str) -> None:
        if away and not self._away:
            complain(f"{away}; trying again")
        self._away = bool(away)
        lines = [line for line in tables.lines(*self._view(reply)) if line]
        news = [line for line in lines if line not in self._last]
        self._last = set(lines)
        if news:
            tables.write("\n".join(news))
