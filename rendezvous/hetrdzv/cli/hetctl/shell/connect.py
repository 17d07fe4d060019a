"""Which server a command speaks to, and with which token: flags, then the named cluster, then the environment.

A cluster is taken as a whole or not at all, so that no token goes to a server that it is not for:
`HET_TOKEN` is that of `HET_SERVER`, and where that is not set, that of a cluster without one of its own.
"""

import os
from collections.abc import Callable

import click

from hetrdzv.auth.client_token import client_token, reread_token
from hetrdzv.auth.files import is_private
from hetrdzv.auth.tls import ClientTls
from hetrdzv.cli.hetctl.shell import clusters
from hetrdzv.cli.hetctl.shell.clusters import Cluster
from hetrdzv.cli.hetctl.shell.shared import Shared
from hetrdzv.client import Client
from hetrdzv.protocol.texts.addresses import DEFAULT_PORT

DEFAULT_SERVER = f"http://127.0.0.1:{DEFAULT_PORT}"


def connect(options: Shared, warn: Callable[[str], None] = lambda text: None) -> Client:
    """A client of the server that is meant.

    Args:
        warn: shows the person a warning.

    Raises:
        click.ClickException: the options contradict each other.
        HetError: the config file, a token or a certificate cannot be used.
    """
    cluster = meant(options, warn)
    files = {
        name: getattr(options, name) or getattr(cluster, name)
        for name in ("ca_cert", "client_cert", "client_key")
    }
    tls = ClientTls.of(files, os.environ)
    token_file = options.token_file or (cluster.token_file if cluster.token is None else None)
    if cluster.token and not options.token_file:
        token: str | None = cluster.token
    elif token_file is None and options.cluster is not None and options.server_from_environment:
        token = None
        if os.environ.get("HET_TOKEN"):
            warn(f"HET_TOKEN goes with HET_SERVER, and is not sent to the cluster '{options.cluster}'")
    else:
        token = client_token(token_file, warn)
    try:
        return Client(
            cluster.server,
            token=token,
            renew_token=lambda: reread_token(token_file),  # `events --follow` may run for days
            tls=tls,
        )
    except ValueError as error:
        raise click.ClickException(str(error)) from None


def meant(options: Shared, warn: Callable[[str], None]) -> Cluster:
    """The cluster that is meant; one without a name where a server was given, or nothing at all."""
    if options.cluster is not None and options.server and not options.server_from_environment:
        raise click.UsageError("give --server or --cluster, not both")
    if options.cluster is None and options.server:
        return Cluster(options.server)
    config = clusters.read(clusters.config_path(os.environ), os.path.expanduser("~"))
    name = options.cluster if options.cluster is not None else config.default
    if name is None:
        return Cluster((DEFAULT_SERVER,))
    cluster = config.cluster(name)
    if cluster.token is not None and not is_private(config.path):
        warn(
            f"{config.path} holds a token, and can be read by other users of this machine: chmod 600 {config.path}"
        )
    return cluster
