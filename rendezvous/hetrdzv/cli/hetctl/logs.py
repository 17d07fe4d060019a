"""The subcommands logs and stacks: what workers wrote last, and where in the code they are, through their agents."""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from time import monotonic

import click
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from hetrdzv.cli.hetctl import tables
from hetrdzv.cli.hetctl.calls import EVERY_S, call, complain, print_json
from hetrdzv.cli.hetctl.options import GROUP, RANKS, command, of_round, shared
from hetrdzv.cli.hetctl.wait import OUTCOMES
from hetrdzv.client import Client
from hetrdzv.protocol import codec
from hetrdzv.protocol.errors import NoRound, Problem, Unreachable
from hetrdzv.protocol.pages import LogsReply, StacksReply
from hetrdzv.protocol.stacks import Stack, collapsed, shares
from hetrdzv.protocol.texts.phrasing import count, names, ranked

FEW = 20
"""How many lines of each worker are shown where no rank is named."""

KEPT = "agents with -t 3 --log-dir keep everything that workers write, in files"

LEAVING_S = 5.0
"""How long `--follow` waits for agents of a job that is over, which leave and tell the end of what was written
(seconds)."""

GAP = "…"
"""Stands for lines that nobody has seen."""


@command("Show the end of what workers have written.")
@GROUP
@RANKS
@click.option(
    "--tail",
    type=click.IntRange(1),
    metavar="LINES",
    help=f"So many lines of each (default: {FEW}; with --rank all that the agent has kept).",
)
@of_round(
    "Show round N. Agents that still run keep the last three, the server the last one of agents that have left."
)
@click.option("--follow", "-f", is_flag=True, help="Go on until Ctrl-C, or until the job is over.")
def logs(group: str, rank: tuple[int, ...], tail: int | None, number: int | None, follow: bool) -> None:
    """Show the end of what the workers of GROUP have written to stdout and stderr, at most 16,000 characters of each.

    The agents are asked, so it works from anywhere; as they leave they tell the server what the last round wrote, which
    keeps it in memory. Needs an admin token.
    """
    most = tail if tail is not None or rank else FEW
    if follow and number is not None:
        raise click.UsageError("--follow goes on with the newest round: give no --round with it")
    try:
        if follow:
            call(lambda client: _follow(client, group, rank, most))
            return
        reply = call(lambda client: client.logs_of(group, rank=rank, round=number))
    except Problem as problem:
        if problem.code != NoRound.code:
            raise
        raise click.ClickException(f"{problem}; {KEPT}") from None
    except KeyboardInterrupt:
        if not follow:
            raise
        return
    if shared().as_json:
        print_json(reply)
    else:
        if reply.over and number is None:
            complain(f"no round runs now; this is of round {reply.round}, which is over")
        _show(reply, [_last(log, most) for log in reply.logs], set(), alone=len(rank) == 1)


async def _follow(client: Client, group: str, ranks: Sequence[int], most: int | None) -> None:
    """Show what comes, until the job is over; a server that answered before may come back."""
    known: dict[tuple[int, int], list[str]] = {}  # by rank and stream
    told: set[str] = set()
    number, away, over = None, False, False
    state, until = "", inf
    while True:
        ends = False
        try:
            if over and (state := (found := await client.group(group)).state) in OUTCOMES:
                until = min(until, monotonic() + LEAVING_S)
                ends = not found.counts.nodes or monotonic() >= until
            reply = await client.logs_of(group, rank=ranks)
        except Unreachable as error:
            if number is None:
                raise
            if not away:
                complain(f"{error}; trying again")
            away = True
        except Problem as problem:
            if problem.code != NoRound.code or number is None:
                raise
            over = True
        else:
            away, over = False, reply.over
            if number is not None and reply.round != number:
                complain(f"round {reply.round} has begun")
                known.clear()
            number = reply.round
            shown = [_news(log, known, most) for log in reply.logs]
            known |= {
                (log.rank, stream): lines
                for log in reply.logs
                if log.size
                for stream, lines in enumerate(_streams(log))
            }
            if shared().as_json:
                tables.write(codec.write(reply, nulls=True).decode())
            else:
                _show(reply, shown, told, alone=len(ranks) == 1)
        if ends:
            complain(f"group '{group}' is {state}: its logs end here")
            return
        await asyncio.sleep(EVERY_S)


def news(before: Sequence[str], now: Sequence[str]) -> list[str]:
    """The lines of the end of a log that its earlier end did not have.

    The last line of that may have been unfinished, or a progress bar. Lines that nobody has seen are a gap.
    """
    if not before:
        return list(now)
    for old in (before, before[:-1]):
        for start in range(len(old)):
            overlap = len(old) - start
            if now[:overlap] == old[start:]:
                return list(now[overlap:])
    return list(now) if len(before) == 1 else [GAP, *now]


def _streams(log: Stack) -> tuple[list[str], list[str]]:
    """What a worker wrote, in lines: to stdout and to stderr, or in one if that is how it is known."""
    out, err = ([tables.plain(line) for line in text.splitlines()] for text in (log.text, log.stderr))
    return out, err


def _last(log: Stack, most: int | None) -> list[str]:
    """The last lines of both streams."""
    out, err = _streams(log)
    if most is not None:
        outs, errs = shares(len(out), len(err), most)
        out, err = out[len(out) - outs :], err[len(err) - errs :]
    return [*out, *err]


def _news(log: Stack, known: Mapping[tuple[int, int], Sequence[str]], most: int | None) -> list[str]:
    """What is new in both streams; all that is to be shown of a worker of whom nothing is known."""
    if (log.rank, 0) not in known:
        return _last(log, most)
    if not log.size:  # its agent has not answered
        return []
    return [
        line for stream, lines in enumerate(_streams(log)) for line in news(known[log.rank, stream], lines)
    ]


def _show(reply: LogsReply, shown: Sequence[Sequence[str]], told: set[str], *, alone: bool) -> None:
    """Print lines, each with its node and rank in front unless only one worker was asked for.

    Args:
        told: complaints that were made before; each is made once.
    """
    for log, lines in zip(reply.logs, shown, strict=True):
        who = "" if alone else f"{log.node_id}:{log.rank}  "
        for line in lines:
            tables.write(f"{who}{line}")
        whose = f"rank {log.rank} ({log.node_id})" if log.node_id else f"rank {log.rank}"
        complaint = f"{whose}: {log.why}"
        if log.why and complaint not in told:
            told.add(complaint)
            complain(complaint)


# -- stacks ------------------------------------------------------------------------------------------------


def stacks_view(reply: StacksReply) -> Iterator[RenderableType]:
    """Stacks as a terminal shows them."""
    alike = collapsed(reply.stacks)
    different = count(sum(1 for shown in alike if shown.text), "different stack")
    yield Text.assemble(
        (f"round {reply.round}", "bold"), f": {count(len(reply.stacks), 'rank')}, {different}"
    )
    for shown in alike:
        ranks = ranked(shown.ranks)
        who = f" ({names(shown.nodes)})"
        yield ""
        if shown.text:
            yield Text.assemble((ranks, "bold"), who)
            yield Padding(
                Text(tables.plain(shown.text).rstrip(), overflow="fold"), (0, 0, 0, 2), expand=False
            )
        else:
            yield Text.assemble((ranks, "bold"), f"{who}: no stack: {tables.one_line(shown.why)}")


@command("Show where in the code the workers are.")
@GROUP
@RANKS
@of_round(
    "Those that were taken when round N hung, of the last three that did (default: now, if a round runs)."
)
def stacks(group: str, rank: tuple[int, ...], number: int | None) -> None:
    """Show the Python stacks of the workers of GROUP; equal ones once, the rarest first.

    While no round runs, those that were taken when the last one hung. Needs an admin token.
    """
    reply = call(lambda client: client.stacks_of(group, rank=rank, round=number))
    if shared().as_json:
        print_json(reply)
    else:
        if reply.over and number is None:
            complain(f"no round runs now; these were taken when round {reply.round} hung")
        tables.show(*stacks_view(reply))
