"""What holds for every test: signals do what they do by default."""

import signal


def pytest_configure() -> None:
    """Undo `nohup` and a shell's `&`: agents under test would inherit that signals are ignored, and keep to it."""
    for signum in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(signum) is signal.SIG_IGN:
            signal.signal(signum, signal.SIG_DFL)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
