"""The subcommands logs and stacks: what workers wrote last, and where in the code they are, through their agents."""

import asyncio
from collections.abc import Iterator, Sequence
from functools import cache, partial

import click
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from hetrdzv.cli.hetctl import printing
from hetrdzv.cli.hetctl.options import (
    GROUP_ARGUMENT,
    RANK_OPTION,
    ROUND_OPTION,
    get_shared_options,
    subcommand,
)
from hetrdzv.cli.hetctl.server_calls import (
    RETRY_INTERVAL_S,
    call_server,
    none_on_error,
    print_json,
    print_warning,
    retry_until_answered,
    show_reply,
)
from hetrdzv.cli.hetctl.wait import OUTCOMES
from hetrdzv.client import Client
from hetrdzv.protocol.errors import NoRound
from hetrdzv.protocol.replies import WorkerOutputReply
from hetrdzv.protocol.texts.node_rank_lists import NodeList, RankList
from hetrdzv.protocol.texts.phrasing import count_text
from hetrdzv.protocol.worker_output import group_equal_stacks

DEFAULT_TAIL_LINES = 20
"""How many lines of each stream are shown where no rank is named."""

OVERLAP_CHARACTERS = 2_000
"""By how many characters the end of a log is found again in a later one."""


@subcommand("Show the end of what workers have written.")
@GROUP_ARGUMENT
@RANK_OPTION
@click.option(
    "--tail",
    type=click.IntRange(1),
    metavar="LINES",
    help=f"Number of lines of each stream (default: {DEFAULT_TAIL_LINES}; with --rank all that the agent keeps).",
)
@ROUND_OPTION
@click.option("--follow", "-f", is_flag=True, help="Follow until Ctrl-C, or until the job is over.")
def logs(group: str, ranks: tuple[int, ...], tail: int | None, number: int | None, follow: bool) -> None:
    """Show the end of what the workers of GROUP have written to stdout and stderr, at most 16,000 characters of each.

    The agents are asked, so it works from anywhere; as they leave they tell the server what their last round wrote,
    which keeps only that, in memory. Needs an admin token.
    """
    printer = _LogPrinter(tail or (None if ranks else DEFAULT_TAIL_LINES), alone=len(ranks) == 1)
    if follow and number is not None:
        raise click.UsageError("--follow goes on with the newest round: give no --round with it")
    if follow:
        call_server(lambda client: _follow_logs(client, group, ranks, printer), interrupted=0)
        return
    reply = call_server(lambda client: client.logs_of(group, rank=ranks, round=number))
    if reply.over and number is None:
        print_warning(f"no round runs now; this is of round {reply.round}, which is over")
    printer.show(reply)


async def _follow_logs(client: Client, group: str, ranks: Sequence[int], printer: "_LogPrinter") -> None:
    """Show what comes, until the job is over and its agents, which send the end of what was written, have left."""
    printer.show(await client.logs_of(group, rank=ranks))
    while True:
        await asyncio.sleep(RETRY_INTERVAL_S)
        found = await retry_until_answered(lambda: client.group(group))
        news = await none_on_error(
            NoRound.code, retry_until_answered(lambda: client.logs_of(group, rank=ranks))
        )
        if news is not None:
            printer.show(news)
        if found.state in OUTCOMES and not found.counts.nodes:
            print_warning(f"group '{group}' is {found.state}: its logs end here")
            return


class _LogPrinter:
    """Prints of each log what was not printed before, with node and rank in front unless there is only one.

    Args:
        most: how many lines of each stream are printed at first; None: all.
    """

    def __init__(self, most: int | None, *, alone: bool) -> None:
        self._most, self._alone = most, alone
        self._printed: dict[tuple[int, int, int], str] = {}  # by round, rank and stream
        self._complain = cache(print_warning)

    def show(self, reply: WorkerOutputReply) -> None:
        """Print what is new."""
        if get_shared_options().as_json:
            print_json(reply)
            return
        for log in reply.workers:
            for stream, text in enumerate((log.text, log.stderr)):
                for line in self._new_lines((reply.round, log.rank, stream), text):
                    printing.print_line(f"{'' if self._alone else f'{log.node_id}:{log.rank}  '}{line}")
            if log.why:
                self._complain(f"rank {log.rank}{f' ({log.node_id})' if log.node_id else ''}: {log.why}")

    def _new_lines(self, key: tuple[int, int, int], text: str) -> list[str]:
        before = self._printed.get(key)
        if text:
            self._printed[key] = text
        new = [printing.strip_control(line) for line in new_text(before or "", text).splitlines()]
        return new[-self._most :] if before is None and self._most else new


def new_text(before: str, now: str) -> str:
    """What the end of a log has after an earlier end of it; a line that was unfinished there comes again."""
    end = before.rfind("\n") + 1
    whole, unfinished = before[:end], before[end:]
    if now.startswith(whole):
        new = now[end:]
    else:  # its beginning was dropped
        new = now.rpartition(whole[-OVERLAP_CHARACTERS:])[2]
    if new == unfinished:
        return ""
    return new.removeprefix(f"{unfinished}\n") if unfinished else new


# -- stacks ------------------------------------------------------------------------------------------------


@subcommand("Show where in the code the workers are.")
@GROUP_ARGUMENT
@RANK_OPTION
@ROUND_OPTION
def stacks(group: str, ranks: tuple[int, ...], number: int | None) -> None:
    """Show the Python stacks of the workers of GROUP; equal ones once, the rarest first.

    While no round runs, those that were taken when the last one hung. Needs an admin token.
    """
    show_reply(
        lambda client: client.stacks_of(group, rank=ranks, round=number), partial(stacks_view, number=number)
    )


def stacks_view(reply: WorkerOutputReply, number: int | None = None) -> Iterator[RenderableType]:
    """Stacks as a terminal shows them."""
    if reply.over and number is None:
        print_warning(f"no round runs now; these were taken when round {reply.round} hung")
    groups = group_equal_stacks(reply.workers)
    different = count_text(sum(1 for equal in groups if equal[0].text), "different stack")
    yield Text.assemble(
        (f"round {reply.round}", "bold"), f": {count_text(len(reply.workers), 'rank')}, {different}"
    )
    for equal in groups:
        yield ""
        text, nodes = equal[0].text, NodeList.of({stack.node_id for stack in equal})
        why = "" if text else f": no stack: {printing.one_line(equal[0].why)}"
        yield Text.assemble((str(RankList.of(stack.rank for stack in equal)), "bold"), f" ({nodes}){why}")
        if text:
            shown = Text(printing.strip_control(text).rstrip(), overflow="fold")
            yield Padding(shown, (0, 0, 0, 2), expand=False)
