"""The commands `hetserver` and `hetctl`: Ctrl-C ends them quietly while they still import what they need."""

import signal
from typing import Any


def hetserver() -> None:
    """Run hetserver, which handles signals itself once it serves."""
    _end_on_interrupt()
    from hetrdzv.cli.hetserver import main

    main()


def hetctl() -> None:
    """Run hetctl, which handles KeyboardInterrupt."""
    handler = _end_on_interrupt()
    from hetrdzv.cli.hetctl import main

    signal.signal(signal.SIGINT, handler)
    main()


def _end_on_interrupt() -> Any:
    handler = signal.getsignal(signal.SIGINT)
    if handler is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    return handler
