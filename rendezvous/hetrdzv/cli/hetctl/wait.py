"""The subcommand wait: returns once a group has got where a script needs it."""

import asyncio

import click

from hetrdzv.cli.hetctl.calls import call, complain, stands, tell
from hetrdzv.cli.hetctl.options import GROUP, Typed, command, shared
from hetrdzv.client import Client
from hetrdzv.protocol.errors import Problem, UnknownGroup, Unreachable
from hetrdzv.protocol.pages import GroupReply
from hetrdzv.protocol.states import GroupState
from hetrdzv.protocol.texts.typed import seconds

EVERY_S = 0.5
"""How long to pause between two looks (seconds)."""

TIMED_OUT, ENDED_OTHERWISE = 3, 4
"""Exit statuses."""

ENDED = "ended"
"""Stands for every outcome."""

OUTCOMES = tuple(state.value for state in GroupState if state.terminal)


@command("Wait until a group runs, or its job is over.")
@GROUP
@click.option(
    "--for",
    "wanted",
    type=click.Choice(("running", *OUTCOMES, ENDED)),
    required=True,
    help="What to wait for; ended: any outcome.",
)
@click.option("--timeout", type=Typed("S", seconds), help="Give up after so long (default: never).")
def wait(group: str, wanted: str, timeout: float | None) -> None:
    """Wait until GROUP is running, or its job has an outcome. A group that is not there yet is waited for, too.

    Exits with 0 then; with 3 after --timeout, with 4 if the job has ended otherwise, or GROUP was deleted.
    """
    ctx = click.get_current_context()
    not_yet = {"running": "is not running", "cancelled": "has not been cancelled"}.get(
        wanted, f"has not {wanted}"
    )
    try:
        reply = call(lambda client: _until(client, group, wanted, timeout))
    except TimeoutError:
        complain(f"group '{group}' {not_yet} after {timeout:g} s: hetctl describe {group}")
        ctx.exit(TIMED_OUT)
    if reply is None:
        complain(f"group '{group}' was deleted")
        ctx.exit(ENDED_OTHERWISE)
    there = _is_there(reply, wanted)
    if there or shared().as_json:
        tell(reply, f"group '{group}' {stands(reply)}")
    else:
        complain(f"group '{group}' {not_yet}, but {stands(reply)}")
    ctx.exit(0 if there else ENDED_OTHERWISE)


def _is_there(reply: GroupReply, wanted: str) -> bool:
    return reply.state == wanted or (wanted == ENDED and reply.state in OUTCOMES)


async def _until(client: Client, group: str, wanted: str, timeout_s: float | None) -> GroupReply | None:
    """The group, once it is where it should be, or its job is over; None: it was deleted.

    However short the time, it is looked at once.

    Raises:
        TimeoutError: it is neither in time.
    """
    answered = seen = False
    clock = asyncio.get_running_loop().time
    until = None if timeout_s is None else clock() + timeout_s
    while True:
        try:
            reply = await client.group(group)
            answered = seen = True
            if _is_there(reply, wanted) or reply.state in OUTCOMES:
                return reply
        except Problem as problem:
            if problem.code != UnknownGroup.code:
                raise
            if seen:
                return None
            if not answered:
                complain(f"there is no group '{group}' yet: waiting for it")
            answered = True
        except Unreachable:
            if not answered:
                raise
        if until is not None and clock() >= until:
            raise TimeoutError
        await asyncio.sleep(EVERY_S if until is None else min(EVERY_S, until - clock()))
