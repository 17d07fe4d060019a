"""The subcommands that act: on groups (create, restart, cancel, delete) and nodes (drain, undrain); dashboard."""

import os
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import click

from hetrdzv.cli.hetctl import printing
from hetrdzv.cli.hetctl.options import (
    DRY_RUN_OPTION,
    GROUP_ARGUMENT,
    ID_TYPE,
    NODE_ARGUMENT,
    get_shared_options,
    subcommand,
)
from hetrdzv.cli.hetctl.server_calls import (
    call_server,
    describe_state,
    none_on_error,
    print_result,
    show_reply,
)
from hetrdzv.cli.types import ParsedType
from hetrdzv.client import Client
from hetrdzv.protocol.errors import UnknownGroup
from hetrdzv.protocol.replies import GroupReply, describe_plan
from hetrdzv.protocol.requests import PlanRequest, SpecFields
from hetrdzv.protocol.settings import SETTINGS, GroupSpec, Setting, setting_text
from hetrdzv.protocol.snapshots import UseSnapshotRequest
from hetrdzv.protocol.states import GroupState
from hetrdzv.protocol.texts import parsing

NNODES = ParsedType("N|MIN:MAX", parsing.parse_nodes)
WORLD_SIZE = ParsedType("N|MIN:MAX", parsing.parse_world_size)

# -- groups ------------------------------------------------------------------------------------------------


def flag_type(setting: Setting) -> click.ParamType:  # type: ignore[type-arg]
    """What the flag of a setting takes."""
    if setting.choices:
        return click.Choice(setting.choices)
    return ParsedType(setting.metavar, setting.read)


def setting_flags() -> Iterator[click.Option]:
    """A flag for each setting of a group, or for two that belong together."""
    yield click.Option(["--nnodes"], type=NNODES, help="How many nodes the job wants.")
    yield click.Option(["--world-size"], type=WORLD_SIZE, help="How many workers the job may have in all.")
    helps = {
        "max_restarts": "Restarts of the whole group.",
        **{s.name: s.help for s in SETTINGS.values() if s.help},
    }
    for name, text in helps.items():
        flag, setting = f"--{name.replace('_', '-')}", SETTINGS[name]
        yield click.Option(
            [flag], type=flag_type(setting), help=f"{text} (default: {setting_text(setting.default)})"
        )


@subcommand("Create a group.", *setting_flags())
@GROUP_ARGUMENT
@click.argument("command", nargs=-1, type=click.UNPROCESSED, metavar="[-- SCRIPT ARGS...]")
@DRY_RUN_OPTION
def create(
    group: str,
    command: tuple[str, ...],
    dry_run: bool,
    nnodes: tuple[int, int] | None,
    world_size: tuple[int | None, int | None] | None,
    **spec: object,
) -> None:
    """Create GROUP with the given settings and the defaults for the others.

    Agents that are started without a script run SCRIPT. If the group exists, its settings must be the same.
    """
    spec["min_nodes"], spec["max_nodes"] = nnodes or (None, None)
    spec["min_world_size"], spec["max_world_size"] = world_size or (None, None)
    spec["command"] = command or None
    given: dict[str, Any] = {name: value for name, value in spec.items() if value is not None}
    if dry_run:
        _check_settings(group, given)
        return
    reply = call_server(lambda client: client.put(group, SpecFields(**given)))
    print_result(reply, f"group '{group}' exists and {describe_state(reply)}")


def _check_settings(group: str, given: Mapping[str, Any]) -> None:
    """Check settings, and say whether the group exists and has others."""

    async def ask(client: Client) -> tuple[GroupSpec, GroupReply | None]:
        return GroupSpec(**given), await none_on_error(UnknownGroup.code, client.group(group))

    spec, there = call_server(ask)
    texts = {name: setting_text(value) for name, value in given.items()}
    if there is None:
        chosen = ", ".join(f"{name}={text}" for name, text in texts.items()) or "defaults only"
        print_result(spec, f"group '{group}' would be created: {chosen}")
        return
    for name, text in texts.items():
        if (has := setting_text(there.spec[name])) != text:
            raise click.ClickException(f"group '{group}' exists with {name}={has}, not {text}")
    print_result(there.spec, f"nothing: group '{group}' exists with these settings")


@subcommand("End a group's round so that another forms.")
@GROUP_ARGUMENT
@click.option(
    "--from",
    "step",
    type=click.IntRange(0),
    metavar="STEP",
    help="Go on from the complete snapshot of this step; newer ones are undone.",
)
@DRY_RUN_OPTION
def restart(group: str, step: int | None, dry_run: bool) -> None:
    """End the round of GROUP so that another forms, or start a finished job again; does not count as a restart.

    hetctl describe GROUP lists the snapshots that there are.
    """
    if dry_run:
        if step is not None:
            raise click.UsageError("--dry-run shows nothing of --from: hetctl describe lists the snapshots")
        _show_plan(group, PlanRequest(restart=True))
        return

    async def ask(client: Client) -> GroupReply:
        if step is not None:
            await client.use_snapshot(group, UseSnapshotRequest(step=step))
        return await client.restart(group)

    reply = call_server(ask)
    print_result(reply, f"group '{group}' restarts and {describe_state(reply)}")


@subcommand("End a group's job.")
@GROUP_ARGUMENT
def cancel(group: str) -> None:
    """End the job of GROUP: all workers are stopped, agents exit with 3.

    Where the group gives notice (--notice-s), the workers may save first; a second time does not wait for that.
    """
    reply = call_server(lambda client: client.cancel(group))
    again = "" if reply.state == GroupState.CANCELLED else "; to wait no longer: cancel it again"
    print_result(reply, f"group '{group}' {describe_state(reply)}{again}")


@subcommand("Forget a group.")
@GROUP_ARGUMENT
def delete(group: str) -> None:
    """Forget GROUP, whose nodes are gone or whose job is over. Prints nothing with --json."""
    call_server(lambda client: client.delete(group))
    if not get_shared_options().as_json:
        printing.print_line(f"group '{group}' is deleted")


# -- nodes -------------------------------------------------------------------------------------------------


@subcommand("Take a node out of a group.")
@GROUP_ARGUMENT
@NODE_ARGUMENT
@DRY_RUN_OPTION
def drain(group: str, node: str, dry_run: bool) -> None:
    """Take NODE out of GROUP until it is undrained; its agent exits with 4."""
    if dry_run:
        _show_plan(group, PlanRequest(drain=node))
        return
    reply = call_server(lambda client: client.drain(group, node))
    print_result(reply, f"node '{node}' is drained; group '{group}' {describe_state(reply)}")


@subcommand("Let a drained node join again.")
@GROUP_ARGUMENT
@NODE_ARGUMENT
def undrain(group: str, node: str) -> None:
    """Let NODE join GROUP again."""
    reply = call_server(lambda client: client.undrain(group, node))
    print_result(
        reply, f"node '{node}' may join group '{group}' again: start its agent there if it has exited"
    )


def _show_plan(group: str, changes: PlanRequest) -> None:
    show_reply(
        lambda client: client.plan(group, changes), lambda plan: map(printing.one_line, describe_plan(plan))
    )


# -- the page ----------------------------------------------------------------------------------------------


@subcommand("Open the dashboard in a browser.")
@click.argument("group", type=ID_TYPE, required=False)
@click.option("--no-open", is_flag=True, help="Only print the address.")
def dashboard(group: str | None, no_open: bool) -> None:
    """Print the address of the dashboard, or of the page of GROUP, and open it where there is a browser.

    Where the server needs a token, that page asks for one.
    """

    async def ask(client: Client) -> str:
        await (client.groups() if group is None else client.group(group))
        return client.last_server

    url = f"{call_server(ask)}/{f'groups/{group}' if group is not None else ''}"
    printing.print_line(url)
    has_screen = sys.platform == "darwin" or any(map(os.environ.get, ("DISPLAY", "WAYLAND_DISPLAY")))
    if has_screen and sys.stdout.isatty() and not no_open:  # a browser in the terminal would take it away
        click.launch(url)
