"""The subcommand `dashboard`: the address of the pages, opened where there is a browser."""

import os
import sys
import webbrowser

import click

from hetrdzv.cli.hetctl import tables
from hetrdzv.cli.hetctl.calls import call
from hetrdzv.cli.hetctl.options import GROUP_ID, command
from hetrdzv.client import Client


@command("Open the dashboard in a browser.")
@click.argument("group", type=GROUP_ID, required=False)
@click.option("--no-open", is_flag=True, help="Only print the address.")
def dashboard(group: str | None, no_open: bool) -> None:
    """Print the address of the dashboard, or of the page of GROUP, and open it where there is a browser.

    Where the server needs a token, that page asks for one.
    """

    async def ask(client: Client) -> str:
        await (client.groups() if group is None else client.group(group))
        return client.last_server

    url = f"{call(ask)}/{f'groups/{group}' if group is not None else ''}"
    tables.write(url)
    if not no_open and sys.stdout.isatty() and has_browser():
        webbrowser.open(url)


def has_browser() -> bool:
    """Whether there is a screen: a browser in the terminal would take it away from the shell."""
    return sys.platform in ("darwin", "win32") or bool(
        os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
    )
