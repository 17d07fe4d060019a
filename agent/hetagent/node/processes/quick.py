"""A short command and what it prints."""

import subprocess
from collections.abc import Mapping, Sequence


class CommandFailed(Exception):
    """A command could not be run, failed, or took too long; says how in a few words."""


def output_of(words: Sequence[str], timeout_s: float, environ: Mapping[str, str] | None = None) -> str:
    """What a command prints on stdout."""
    try:
        done = subprocess.run(
            words,
            env=None if environ is None else dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except OSError as error:
        raise CommandFailed(str(error)) from None
    except subprocess.TimeoutExpired:
        raise CommandFailed(f"no answer within {timeout_s:g} s") from None
    if done.returncode != 0:
        raise CommandFailed((done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1])
    return done.stdout
