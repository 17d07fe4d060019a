"""Which server a command speaks to, and with which token."""

import os
from collections.abc import Callable

import click

from hetrdzv.auth.client_token import client_token, reread_token
from hetrdzv.auth.tls import ClientTls
from hetrdzv.cli.hetctl.shared import Shared
from hetrdzv.client import Client
from hetrdzv.protocol.texts.addresses import DEFAULT_PORT

DEFAULT_SERVER = f"http://127.0.0.1:{DEFAULT_PORT}"


def connect(options: Shared, warn: Callable[[str], None] = lambda text: None) -> Client:
    """A client of the server that is meant.

    Args:
        warn: shows the person a warning.

    Raises:
        click.ClickException: the options contradict each other.
        HetError: a token or a certificate cannot be used.
    """
    files = {name: getattr(options, name) for name in ("ca_cert", "client_cert", "client_key")}
    try:
        return Client(
            options.server or (DEFAULT_SERVER,),
            token=client_token(options.token_file, warn),
            renew_token=lambda: reread_token(options.token_file),  # `events --follow` may run for days
            tls=ClientTls.of(files, os.environ),
        )
    except ValueError as error:
        raise click.ClickException(str(error)) from None
