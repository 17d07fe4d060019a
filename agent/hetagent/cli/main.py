"""The hetagent command: reads the command line, runs the agent and turns its outcome into an exit status.

Imports torch only once the command line makes sense and nothing that is known by then is in the way.
"""

import contextlib
import os
import signal
import sys
import traceback
from importlib.util import find_spec
from typing import TYPE_CHECKING

from hetagent import statuses
from hetagent.node.console import flush, print_to_stderr
from hetrdzv.auth.files import TokenFileError, find_client_token, warn_if_exposed
from hetrdzv.auth.tls import ClientTls, TlsError

if TYPE_CHECKING:
    from hetagent.node.processes.identity import ServerAccess
    from hetagent.options.model import Options

NEEDS = ("torch", "psutil")
"""Modules of the extra `agent` without which nothing works. The third, nvidia-ml-py, only NVIDIA GPUs need."""


def main() -> None:
    """Run this node's part of a job, then exit with one of the statuses in docs/flags.md."""
    # If the launcher ignores SIGCHLD, the kernel reaps the workers and their exit statuses are lost.
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        status = _run()
    except KeyboardInterrupt:  # before the agent handles signals, or after
        status = statuses.SIGNAL + signal.SIGINT
    flush()
    # The interpreter would wait for threads, in a look-up or before a console that nobody reads.
    os._exit(status)


def _run() -> int:
    if missing := [module for module in NEEDS if find_spec(module) is None]:
        print_to_stderr(f"hetagent needs {' and '.join(missing)}: pip install 'hetrdzv[agent]'")
        return statuses.USAGE
    from hetagent.cli.parse import parse_command_line
    from hetagent.errors import AgentError, CommandError, UsageError
    from hetagent.launch.command import make_worker_command
    from hetagent.node.network import NetworkError
    from hetagent.node.standalone import run_child_server
    from hetagent.workers import failures

    try:
        options = parse_command_line(sys.argv[1:], os.environ)
        access = _make_server_access(options)
        if options.check:
            from hetagent.health.check_command import run_check

            return run_check(options, access)
        command, flags = None, options.torchrun
        if options.script is not None:
            how = {"module": flags.module, "no_python": flags.no_python, "run_path": flags.run_path}
            command = make_worker_command(options.script, options.script_args, **how)
        from hetagent.cli import assembly  # which imports torch: only once there is something to do

        if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # __main__.py has seen to that
            signal.signal(signal.SIGINT, signal.default_int_handler)
        with run_child_server() if options.standalone else contextlib.nullcontext() as server:
            return assembly.run_agent(options, command, access, server)
    except (UsageError, CommandError, NetworkError, TokenFileError, TlsError) as error:
        status, text, stack = statuses.USAGE, str(error), str(error)
    except AgentError as error:
        status, text, stack = statuses.UNFIT, str(error), str(error)
    except Exception as error:  # a bug
        status, text, stack = statuses.FAILED, f"{type(error).__name__}: {error}", traceback.format_exc()
    print_to_stderr(f"hetagent: {text}" if stack == text else stack.rstrip())
    failures.write_error(text, stack)
    return status


def _make_server_access(options: "Options") -> "ServerAccess":
    """How to speak to the servers; our own speaks plain HTTP on loopback. No child inherits the token."""
    from hetagent.node.processes.identity import ServerAccess

    if (file := options.token_file) is not None:
        warn_if_exposed("token file", file, lambda text: print_to_stderr(f"hetagent: {text}"))
    token = find_client_token(options.token_file)
    os.environ.pop("HET_TOKEN", None)
    if options.standalone:
        return ServerAccess(servers=())
    files = {"ca_cert": options.ca_cert, "client_cert": options.client_cert, "client_key": options.client_key}
    tls = ClientTls.from_flags(files, os.environ)
    return ServerAccess(servers=options.servers, token=token, token_file=options.token_file, tls=tls)


if __name__ == "__main__":
    main()
