"""The commands `hetserver` and `hetctl`: each sees to Ctrl-C before it imports the program, which takes a moment.

Nothing of what is imported is garbage: without looking for some it takes a tenth less time.
"""

import gc
import signal


def hetserver() -> None:
    """Run hetserver. Once it serves, it handles signals and garbage itself; before that there is nothing to finish."""
    _end_quietly_on_interrupt()
    gc.disable()
    from hetrdzv.cli.hetserver import main

    main()


def hetctl() -> None:
    """Run hetctl, which handles a KeyboardInterrupt."""
    handler = signal.getsignal(signal.SIGINT)
    _end_quietly_on_interrupt()
    gc.disable()
    from hetrdzv.cli.hetctl.main import main

    gc.enable()
    signal.signal(signal.SIGINT, handler)
    main()


def _end_quietly_on_interrupt() -> None:
    """Have Ctrl-C end this process at once, instead of a traceback out of the middle of an import."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
