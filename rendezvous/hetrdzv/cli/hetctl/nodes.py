"""Subcommands about one node of a group: drain, undrain."""

from hetrdzv.cli.hetctl.calls import call, standing, tell
from hetrdzv.cli.hetctl.options import GROUP, NODE, command


@command("Take a node out of a group.")
@GROUP
@NODE
def drain(group: str, node: str) -> None:
    """Take NODE out of GROUP until it is undrained; its agent exits with 4."""
    reply = call(lambda client: client.drain(group, node))
    tell(reply, f"node '{node}' is drained; group '{group}' is {standing(reply)}")


@command("Let a drained node join again.")
@GROUP
@NODE
def undrain(group: str, node: str) -> None:
    """Let NODE join GROUP again."""
    reply = call(lambda client: client.undrain(group, node))
    tell(reply, f"node '{node}' may join group '{group}' again: start its agent there if it has exited")
