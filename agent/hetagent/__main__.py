"""`hetagent`, and `python -m hetagent`: sees to Ctrl-C before it imports the program, which takes a moment."""

import signal


def main() -> None:
    """Run hetagent, then exit with one of the statuses in docs/flags.md."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback out of the middle of an import
    from hetagent import cli

    cli.main()


if __name__ == "__main__":
    main()
