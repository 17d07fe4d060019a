"""The subcommand wait: returns once a group has got where a script needs it."""

import asyncio

import click

from hetrdzv.cli.hetctl.options import GROUP_ARGUMENT, get_shared_options, subcommand
from hetrdzv.cli.hetctl.server_calls import (
    call_server,
    describe_state,
    none_on_error,
    print_result,
    print_warning,
    retry_until_answered,
)
from hetrdzv.cli.types import ParsedType
from hetrdzv.client import Client
from hetrdzv.protocol.errors import UnknownGroup
from hetrdzv.protocol.replies import GroupReply
from hetrdzv.protocol.states import GroupState
from hetrdzv.protocol.texts.parsing import parse_seconds

POLL_INTERVAL_S = 0.5
"""How long to pause between two requests (seconds)."""

TIMED_OUT, ENDED_OTHERWISE = 3, 4
"""Exit statuses."""

ANY_OUTCOME = "ended"
"""Stands for every outcome."""

OUTCOMES = tuple(state.value for state in GroupState if state.is_terminal)


@subcommand("Wait until a group runs, or its job is over.")
@GROUP_ARGUMENT
@click.option(
    "--for",
    "wanted",
    type=click.Choice(("running", *OUTCOMES, ANY_OUTCOME)),
    required=True,
    help="What to wait for; ended: any outcome.",
)
@click.option(
    "--timeout", type=ParsedType("S", parse_seconds), help="Give up after this time (default: never)."
)
def wait(group: str, wanted: str, timeout: float | None) -> None:
    """Wait until GROUP is running, or its job has an outcome. A group that is not there yet is waited for, too.

    Exits with 0 then; with 3 after --timeout, with 4 if the job has ended otherwise, or GROUP was deleted.
    """
    ctx = click.get_current_context()
    try:
        reply = call_server(lambda client: _wait_until(client, group, wanted, timeout))
    except TimeoutError:
        print_warning(f"group '{group}' is not {wanted} after {timeout:g} s: hetctl describe {group}")
        ctx.exit(TIMED_OUT)
    if reply is None:
        print_warning(f"group '{group}' was deleted")
        ctx.exit(ENDED_OTHERWISE)
    reached = _is_reached(reply, wanted)
    if reached or get_shared_options().as_json:
        print_result(reply, f"group '{group}' {describe_state(reply)}")
    else:
        print_warning(f"group '{group}' {describe_state(reply)}")
    ctx.exit(0 if reached else ENDED_OTHERWISE)


def _is_reached(reply: GroupReply, wanted: str) -> bool:
    return reply.state == wanted or (wanted == ANY_OUTCOME and reply.state in OUTCOMES)


async def _wait_until(client: Client, group: str, wanted: str, timeout_s: float | None) -> GroupReply | None:
    """The group, once it is where it should be, or its job is over; None: it was deleted.

    Raises:
        TimeoutError: it is neither in time; it is looked at once at least.
    """
    reply = await none_on_error(UnknownGroup.code, client.group(group))
    if reply is None:
        print_warning(f"there is no group '{group}' yet: waiting for it")
    async with asyncio.timeout(timeout_s):
        while reply is None or not (_is_reached(reply, wanted) or reply.state in OUTCOMES):
            await asyncio.sleep(POLL_INTERVAL_S)
            before, asked = reply, retry_until_answered(lambda: client.group(group))
            reply = await none_on_error(UnknownGroup.code, asked)
            if before is not None and reply is None:
                return None
    return reply
