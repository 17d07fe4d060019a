"""Subcommands about one node of a group: drain, undrain."""

from hetrdzv.cli.hetctl.calls import call, show_plan, stands, tell
from hetrdzv.cli.hetctl.options import DRY_RUN, GROUP, NODE, command
from hetrdzv.protocol.requests.plans import Changes


@command("Take a node out of a group.")
@GROUP
@NODE
@DRY_RUN
def drain(group: str, node: str, dry_run: bool) -> None:
    """Take NODE out of GROUP until it is undrained; its agent exits with 4."""
    if dry_run:
        show_plan(group, Changes(drain=(node,)))
        return
    reply = call(lambda client: client.drain(group, node))
    tell(reply, f"node '{node}' is drained; group '{group}' {stands(reply)}")


@command("Let a drained node join again.")
@GROUP
@NODE
def undrain(group: str, node: str) -> None:
    """Let NODE join GROUP again."""
    reply = call(lambda client: client.undrain(group, node))
    tell(reply, f"node '{node}' may join group '{group}' again: start its agent there if it has exited")
