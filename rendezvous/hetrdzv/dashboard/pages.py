"""The pages: all groups, and one group; what workers wrote, and where they are."""

import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from hetrdzv.api import views
from hetrdzv.api.workers import get_output
from hetrdzv.auth.tokens import Grant, Role
from hetrdzv.dashboard.cache import SectionCache, Sections
from hetrdzv.dashboard.group_page import MIN_NODES_FOR_THREAD, group_sections
from hetrdzv.dashboard.render import REFRESH_INTERVAL_S, render_page, render_section
from hetrdzv.protocol.errors import InvalidRequest, NoRound
from hetrdzv.protocol.replies import (
    STATES_BY_URGENCY,
    GroupSummary,
    WorkerOutputReply,
    is_long_finished,
    urgency_key,
)
from hetrdzv.protocol.texts.tracebacks import find_exception
from hetrdzv.protocol.worker_output import OutputKind, WorkerOutput, group_equal_stacks
from hetrdzv.service.service import Service

MAX_SHOWN_LOGS = 16
"""Of how many workers the page shows what they wrote; hetctl shows it of all."""

MAX_SHOWN_STACKS = 8
"""How many different stacks it shows."""


async def groups_page(request: Request, service: Service, grant: Grant) -> Response:
    """All groups that the token covers."""
    url, token_file = f"{request.url.scheme}://{request.url.netloc}", request.app.state.token_file
    sections = await _get_cache(request, service).get(
        (service, grant.scope, url),
        int(service.now() / REFRESH_INTERVAL_S),
        lambda: overview_section(service, grant, url, token_file),
        in_thread=sum(1 + len(each.nodes) for each in service.groups()) > MIN_NODES_FOR_THREAD,
    )
    return _live_response(request, grant, sections, "groups_page.html")


def count_by_state(groups: Sequence[GroupSummary]) -> list[tuple[str, int]]:
    """How many groups are in each state, in the order of these."""
    counts = Counter(group.display_state for group in groups)
    return [(state, counts[state]) for state in STATES_BY_URGENCY if counts[state]]


def overview_section(
    service: Service, grant: Grant, url: str, token_file: str = ""
) -> Callable[[], Mapping[str, str]]:
    """What makes the section of all groups that a grant covers, in a thread if need be."""
    now, groups, summarize = service.now(), service.groups(), views.group_summaries(service, grant)
    token = f"--token-file {shlex.quote(token_file)} " if token_file else ""

    def make() -> Mapping[str, str]:
        shown = sorted(summarize(), key=urgency_key)
        old = [group for group in shown if is_long_finished(group)]
        html = render_section(
            "groups.html",
            groups=shown[: len(shown) - len(old)],
            old=old,
            tally=count_by_state(shown),
            tally_of_old=count_by_state(old),
            ages={group.group_id: max(0.0, now - group.created_at) for group in groups},
            start=f"hetagent --server {url} {token}--group NAME train.py",
            token_file=token_file,
        )
        return {"groups": html}

    return make


async def group(request: Request, service: Service, grant: Grant) -> Response:
    """Everything about a group; `rows=all`: all its nodes and workers in rows, however many."""
    cache, found = _get_cache(request, service), service.group(request.path_params["group_id"])
    acts, whole = grant.role >= Role.ADMIN, request.query_params.get("rows") == "all"
    sections = await cache.get(
        (service, found.group_id, acts, whole),
        (found, int(service.now() / REFRESH_INTERVAL_S)),
        lambda: group_sections(service, found, acts=acts, whole=whole),
        in_thread=len(found.nodes) > MIN_NODES_FOR_THREAD,
    )
    return _live_response(request, grant, sections, "group_page.html", group_id=found.group_id)


async def output_page(request: Request, service: Service, grant: Grant) -> Response:
    """The end of what the workers of a round wrote; without `round` that of the one that others wait for, now."""
    group_id, number = request.path_params["group_id"], _read_round(request)
    ranks = () if number is not None else views.list_ranks_waited_for(service.group(group_id))[:1]
    try:
        if number is None and not ranks:
            raise NoRound("nobody is waited for any more")
        found = await get_output(service, group_id, OutputKind.LOGS, ranks, number)
    except NoRound as error:
        return render_page("nothing.html", why=str(error))
    logs = sorted(found.workers, key=lambda log: (not _shows_exception(log), not log.size))
    return render_page("output.html", **_limit_list(logs, MAX_SHOWN_LOGS), **_output_time(found))


async def stacks_page(request: Request, service: Service, grant: Grant) -> Response:
    """The stacks of the workers of a round, equal ones once; without `round` of the one that runs, now."""
    group_id = request.path_params["group_id"]
    try:
        found = await get_output(service, group_id, OutputKind.STACKS, (), _read_round(request))
    except NoRound as error:
        return render_page("nothing.html", why=str(error))
    return render_page(
        "stacks.html",
        verb=("was", "were") if found.over else ("is", "are"),
        **_limit_list(group_equal_stacks(found.workers), MAX_SHOWN_STACKS),
        **_output_time(found),
    )


def _get_cache(request: Request, service: Service) -> SectionCache:
    service.require_ready()
    cache: SectionCache = request.app.state.cache
    return cache


def _live_response(
    request: Request, grant: Grant, sections: Sections, template: str, **values: Any
) -> Response:
    """A page; an open one that asks again gets the sections that have changed since."""
    if "hx-request" not in request.headers:
        who = str(grant) if "session" in request.scope else ""
        return render_page(template, sections=sections.html, etag=sections.etag, who=who, **values)
    changed = sections.changed_since(request.headers.get("if-none-match", ""))
    answer = render_page("sections.html", 200 if changed else 304, sections=changed)
    answer.headers["ETag"] = sections.etag
    return answer


def _read_round(request: Request) -> int | None:
    text = request.query_params.get("round")
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and 0 < len(text) < 10):
        raise InvalidRequest("round: it must be a positive number")
    return int(text)


def _shows_exception(log: WorkerOutput) -> bool:
    """Whether an exception is among what a worker wrote last."""
    return any(find_exception(stream) is not None for stream in (log.text, log.stderr))


def _limit_list(values: Sequence[object], most: int) -> dict[str, Any]:
    return {"shown": values[:most], "more": max(0, len(values) - most)}


def _output_time(found: WorkerOutputReply) -> dict[str, Any]:
    return {"round": found.round, "at": found.at or datetime.now(UTC).isoformat(timespec="milliseconds")}
