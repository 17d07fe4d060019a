"""The subcommand `dashboard`: a link that signs a browser in, once."""

import os
import sys
import webbrowser

import click

from hetrdzv.cli.hetctl import tables
from hetrdzv.cli.hetctl.calls import call, print_json
from hetrdzv.cli.hetctl.options import GROUP_ID, command, shared
from hetrdzv.client import Client
from hetrdzv.protocol.rooms.dashboard import SIGN_IN_CODE, SignInReply
from hetrdzv.words.phrasing import count


@command("Open the dashboard in a browser.")
@click.argument("group", type=GROUP_ID, required=False)
@click.option("--no-open", is_flag=True, help="Only print the link.")
def dashboard(group: str | None, no_open: bool) -> None:
    """Print a link to the dashboard, or to the page of GROUP, and open it where there is a browser.

    The link signs the browser in with the role and the groups of your token. It works once, within five minutes.
    """

    async def ask(client: Client) -> tuple[str, SignInReply]:
        if group is not None:
            await client.group(
                group
            )  # or a person with a typo would use up a code to read that it is not there
        reply = await client.ask(SIGN_IN_CODE)
        return client.last_server, reply

    server, reply = call(ask)
    if shared().as_json:
        print_json(reply)
        return
    link = link_to(server, reply.path, group)
    tables.write(link)
    if reply.expires_in_s is not None and sys.stdout.isatty():
        click.echo(f"It works once, within {count(round(reply.expires_in_s / 60), 'minute')}.", err=True)
    if not no_open and sys.stdout.isatty() and has_browser():
        webbrowser.open(link)


def link_to(server: str, path: str, group: str | None) -> str:
    """The URL that a browser has to open.

    Args:
        path: that the server gave; ends in a code, or is that of the page with all groups.
        group: whose page; None: all groups.
    """
    if group is None:
        return f"{server}{path}"
    return f"{server}{path}&group={group}" if "?" in path else f"{server}/groups/{group}"


def has_browser() -> bool:
    """Whether there is a screen: a browser in the terminal would take it away from the shell."""
    return sys.platform in ("darwin", "win32") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
