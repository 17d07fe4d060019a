"""What was given of the flags that stand for something together."""

import signal
from argparse import Namespace
from collections.abc import Mapping

from hetagent.errors import UsageError
from hetagent.options.torchrun import source, typed
from hetagent.options.values import UNHANDLED
from hetrdzv.protocol.texts.typed import nodes


def group(args: Namespace, environ: Mapping[str, str]) -> str | None:
    """The group that was named; an empty name, from an unset shell variable, counts as given and is refused later."""
    given: tuple[str | None, ...] = (args.group, args.rdzv_id, environ.get("HET_GROUP") or None)
    return next((named for named in given if named is not None), None)


def nnodes(args: Namespace) -> tuple[int, int] | None:
    """The fewest and most nodes of the group.

    Raises:
        UsageError: --nnodes has neither form, or bounds that contradict each other.
    """
    if args.nnodes is None:
        return None
    try:
        return nodes(args.nnodes)
    except ValueError as error:
        raise UsageError(f"{source('--nnodes', args.nnodes)}: {error}") from None


def signals(args: Namespace) -> tuple[signal.Signals, ...]:
    """The signals on which the agent leaves.

    Raises:
        UsageError: --signals-to-handle names one that does not exist, or that no program can handle.
    """
    names: str = args.signals_to_handle
    handled = []
    said = typed("--signals-to-handle", names)
    for name in filter(None, (part.strip() for part in names.split(","))):
        try:
            handled.append(signal.Signals[name])
        except KeyError:
            raise UsageError(f"{said}: there is no signal {name!r}") from None
        if handled[-1] in UNHANDLED:
            raise UsageError(f"{said}: no program can handle {name}")
    return tuple(handled)
