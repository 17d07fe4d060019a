"""`hetagent`, and `python -m hetagent`: sees to Ctrl-C before it imports the program, which takes a moment."""

import os
import signal


def main() -> None:
    """Run hetagent, then exit with one of the statuses in docs/flags.md."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback out of the middle of an import
    _open_standard_streams()
    from hetagent.cli import main as cli

    cli.main()


def _open_standard_streams() -> None:
    """Open /dev/null for those of stdin, stdout and stderr that are closed (`2>&-`).

    Otherwise a file or a socket of ours gets the number, and the workers would write into it.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)
    os.close(opened)


if __name__ == "__main__":
    main()
