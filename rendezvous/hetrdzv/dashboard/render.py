"""Templates to HTML. Everything is escaped, and nothing runs but our own files (Content-Security-Policy)."""

from collections.abc import Mapping
from datetime import UTC, datetime

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse

from hetrdzv import __version__
from hetrdzv.protocol.rounds import Downtime, known_time_s, trained_share
from hetrdzv.protocol.texts.node_rank_lists import NodeList, RankList
from hetrdzv.protocol.texts.phrasing import ago_text, count_text, duration_text, percent_text

REFRESH_INTERVAL_S = 2.0
"""How often a page asks for its sections, which follow what happens (seconds)."""

PAGE_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",  # with no-referrer, browsers would send `Origin: null`
    "Cache-Control": "no-store",
    "Vary": "Cookie, HX-Request",
}
"""Of every page: it loads nothing from elsewhere, runs no script in its text, is in no other site's frame or cache."""

STATE_SYMBOLS = {
    "waiting": "◌",
    "starting": "◐",
    "running": "●",
    "succeeded": "✓",
    "failed": "✕",
    "cancelled": "⊘",
    "ready": "○",
    "not_ready": "!",
    "spare": "◇",
    "stopping": "■",
    "hangs": "!",
    "suspect": "?",
    "drained": "⊘",
    "lost": "✕",
    "left": "←",
}
"""By the state of a group or a node: seen also where colours are not."""


def downtime_parts_text(down: Downtime) -> str:
    """What the time after a round went into, in words; what took no time is left out."""
    parts = zip(("noticed", "stopped", "formed", "started"), down, strict=True)
    return " · ".join(f"{name} {duration_text(length)}" for name, length in parts if length)


def utc_time_of_day(at: str) -> str:
    """The time of day of an ISO 8601 time, in UTC; the page turns it into local time."""
    return f"{datetime.fromisoformat(at).astimezone(UTC):%H:%M:%S}"


def _make_environment() -> Environment:
    made = Environment(
        loader=PackageLoader("hetrdzv.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.filters |= {
        "ago": ago_text,
        "clock": utc_time_of_day,
        "known_s": known_time_s,
        "lasted": duration_text,
        "percent": percent_text,
        "share": trained_share,
        "split": downtime_parts_text,
    }
    made.globals |= {
        "count": count_text,
        "every_s": f"{REFRESH_INTERVAL_S:g}",
        "names": NodeList.of,
        "ranked": RankList.of,
        "signs": STATE_SYMBOLS,
        "version": __version__,
    }
    return made


_TEMPLATES = _make_environment()


def render_section(template: str, **values: object) -> str:
    """A part of a page as HTML."""
    return _TEMPLATES.get_template(template).render(values)


def render_page(template: str, status: int = 200, **values: object) -> HTMLResponse:
    """A page."""
    return HTMLResponse(render_section(template, **values), status, dict(PAGE_HEADERS))
