"""What a page does to a group: first the question, with the plan where there is one, then the deed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response

from hetrdzv.auth.tokens import Grant
from hetrdzv.core.commands import Cancel, Command, Drain, Restart, Undrain
from hetrdzv.core.model import Group
from hetrdzv.dashboard.render import PAGE_HEADERS, render_page
from hetrdzv.protocol.replies import describe_plan
from hetrdzv.protocol.requests import PlanRequest
from hetrdzv.protocol.texts.phrasing import count_text
from hetrdzv.service.service import Service


@dataclass(frozen=True)
class Action:
    """Something that an admin can do to a group, or to a node of one; each as under `/v1`.

    Attributes:
        command: what does it, given the node and who asks; None: the group is deleted.
        changes: what to plan, to be shown before, given the node.
        warns: what to show before where there is no plan, given the group and the node.
    """

    verb: str
    command: Callable[[str, str], Command] | None = None
    changes: Callable[[str], PlanRequest] | None = None
    warns: Callable[[Group, str], list[str]] = lambda group, node_id: []

    async def show_question(self, request: Request, service: Service, grant: Grant) -> Response:
        """What it would do."""
        group, node_id = _find_target(request, service)
        if self.changes is not None:
            plan = await service.plan(group.group_id, self.changes(node_id))
            lines = list(describe_plan(plan))
        else:
            lines = self.warns(group, node_id)
        title = f"{self.verb} {node_id or group.group_id}?"
        return render_page("question.html", verb=self.verb, path=request.url.path, title=title, lines=lines)

    async def perform(self, request: Request, service: Service, grant: Grant) -> Response:
        """Do it."""
        group, node_id = _find_target(request, service)
        if self.command is None:
            await service.delete(group.group_id)
            return Response(status_code=204, headers={**PAGE_HEADERS, "HX-Redirect": "/"})
        host = request.client.host if request.client is not None else ""
        await service.execute(group.group_id, self.command(node_id, grant.describe_bearer(host)))
        return Response(status_code=204, headers={**PAGE_HEADERS, "HX-Trigger": "done"})


def _find_target(request: Request, service: Service) -> tuple[Group, str]:
    return service.group(request.path_params["group_id"]), request.path_params.get("node_id", "")


def _warn_of_cancel(group: Group, node_id: str) -> list[str]:
    lines = ["All agents of the job exit with status 3."]
    if (active := group.active_round) is not None:
        workers, nodes = count_text(active.world_size, "worker"), count_text(len(active.members), "node")
        lines.insert(0, f"{workers} on {nodes} are stopped.")
    return lines


GROUP_ACTIONS: Mapping[str, Action] = {
    "restart": Action("Restart", lambda _, by: Restart(), changes=lambda _: PlanRequest(restart=True)),
    "cancel": Action("Cancel the job", lambda _, by: Cancel(by), warns=_warn_of_cancel),
    "delete": Action(
        "Delete",
        warns=lambda *_: [
            "Its history and the output of its workers are deleted.",
            "Agents that are started for it later run the job again.",
        ],
    ),
}
NODE_ACTIONS: Mapping[str, Action] = {
    "drain": Action(
        "Drain", lambda node_id, _: Drain(node_id), changes=lambda node_id: PlanRequest(drain=node_id)
    ),
    "undrain": Action(
        "Undrain",
        lambda node_id, _: Undrain(node_id),
        warns=lambda _, node_id: [f"{node_id} may join again once its agent is started there."],
    ),
}
"""By the last words of their paths."""
