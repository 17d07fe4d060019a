"""Flags of hetagent that were typed after the script, which gets them then."""

from argparse import Namespace
from collections.abc import Iterable, Sequence

MUST_BE_OURS = frozenset({"--nnodes", "--server", "--standalone"})
"""Flags of one word that scripts hardly have; those of several words do not need to be here."""

MOST_READ = 1 << 20
"""How much of a script is read (bytes)."""


def notes(args: Namespace, flags: Iterable[str]) -> Sequence[str]:
    """What to say of flags of ours after the script, unless it is likely to have such ones itself.

    Args:
        flags: all of ours.
    """
    typed = {word.partition("=")[0] for word in args.training_script_args if word.startswith("--")}
    ours = typed.intersection(flags) - {"--help", "--version"}
    if not ours:
        return ()
    script = args.training_script
    text = None if args.module or args.no_python else _text(script)
    if text is None:
        ours = {flag for flag in ours if flag in MUST_BE_OURS or "-" in flag[2:]}
    else:
        ours = {flag for flag in ours if flag[2:] not in text and flag[2:].replace("-", "_") not in text}
    if not ours:
        return ()
    named, them = " and ".join(sorted(ours)), "it" if len(ours) == 1 else "them"
    go = "goes" if len(ours) == 1 else "go"
    text = f"warning: {named} after {script} {go} to the script; if hetagent should get {them}"
    return (f"{text}, put {them} before {script}",)


def _text(script: str) -> str | None:
    """What is in the script; None: it cannot be read."""
    try:
        with open(script, "rb") as file:
            return file.read(MOST_READ).decode("utf-8", "replace")
    except OSError:
        return None
