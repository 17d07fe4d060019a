"""What the groups of one token pattern may take of a server that others use as well: CPU, memory, groups, log lines.

CPU is measured, not estimated: each step of a request in the thread of the event loop, and each commit. Who has used
more than its share waits; so others wait for one request of its at most. Tokens without a pattern have no share.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Coroutine, Generator
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from hetrdzv.protocol.errors import Busy, TooManyGroups, TooMuchStored
from hetrdzv.settings import Limits

logger = logging.getLogger(__name__)

T = TypeVar("T")

CPU_SHARE = 0.5
"""Of one CPU, while anybody else asks."""

CPU_AHEAD_S = 0.25
"""How much CPU time may be used at once after a pause (seconds)."""

CPU_OWED_S = 4.0
"""How much CPU time may be owed at most (seconds): paid back before a request that waits is refused."""

REQUEST_S = 0.0002
"""What a request costs outside of what is measured: reading, parsing, writing (seconds of CPU)."""

OTHERS_S = 60.0
"""Whoever asked within this time counts as somebody else; polls come this often (seconds)."""

WAIT_S = 10.0
"""How long a request waits for CPU before it is refused (seconds)."""

GROUPS_SHARE = 0.5
"""Of `--max-groups`."""

LINES_PER_S = 10.0
LINES_AHEAD = 200.0
"""How many log lines a second the events of its groups may take, and how many at once after a pause."""

MOST_HELD = 64 << 20
"""How many bytes of records and samples its groups may hold before they may not grow: 100,000 ordinary nodes."""

GROUPS_REMEMBERED = 16_384
"""Of how many groups it is remembered whose they are."""


class Account:
    """What one pattern has left.

    Args:
        scope: the pattern.
        is_alone: whether nobody else has asked lately.

    Attributes:
        held: how many bytes its groups hold.
    """

    def __init__(self, scope: str, is_alone: Callable[[], bool], monotonic: Callable[[], float]) -> None:
        self.scope = scope
        self.held = 0
        self._is_alone = is_alone
        self._monotonic = monotonic
        self._cpu_s, self._lines = CPU_AHEAD_S, LINES_AHEAD
        self._filled_at = monotonic()
        self._unsaid = 0
        self._turn = asyncio.Lock()

    def _fill(self) -> None:
        now = self._monotonic()
        passed_s, self._filled_at = now - self._filled_at, now
        self._cpu_s = min(CPU_AHEAD_S, self._cpu_s + CPU_SHARE * passed_s)
        self._lines = min(LINES_AHEAD, self._lines + LINES_PER_S * passed_s)

    def spent(self, seconds: float) -> None:
        """Its requests or groups took CPU time (seconds). What it used long ago, when it was alone, is forgotten."""
        self._fill()
        self._cpu_s = max(-CPU_OWED_S, self._cpu_s - seconds)

    def overdrawn_s(self) -> float:
        """How long its next request has to wait at least (seconds)."""
        self._fill()
        return -self._cpu_s / CPU_SHARE if self._cpu_s < 0 and not self._is_alone() else 0.0

    async def charged(self, work: Coroutine[Any, Any, None]) -> None:
        """Do a request when it is its turn, and charge for it.

        Raises:
            Busy: it would have to wait too long.
        """
        try:
            await self._take_turn()
        except BaseException:
            work.close()
            raise
        await metered(work, self.spent)

    async def _take_turn(self) -> None:
        """Wait until the next request may begin, in the order in which they came."""
        self.spent(REQUEST_S)
        if not self._turn.locked() and not self.overdrawn_s():
            return
        try:
            async with asyncio.timeout(WAIT_S), self._turn:
                while (wait_s := self.overdrawn_s()) > 0:  # noqa: ASYNC110 - only time changes that
                    await asyncio.sleep(wait_s)
        except TimeoutError:
            raise Busy(
                f"the groups of {self.scope} have used their share of this server's time: try again in a moment"
            ) from None

    def may_log(self, lines: int) -> bool:
        """Whether that many lines about its groups may be logged now; those that may not are counted."""
        self._fill()
        if self._lines < 0:
            self._unsaid += lines
            return False
        self._lines -= lines
        if self._unsaid:
            logger.warning("%d events of the groups of %s were not logged", self._unsaid, self.scope)
            self._unsaid = 0
        return True


class Quotas:
    """The accounts of all patterns.

    Args:
        scopes: the patterns of the tokens that the server accepts; another object whenever they have changed.
        monotonic: a clock that only goes forward (seconds).
    """

    def __init__(
        self,
        scopes: Callable[[], Collection[str]] = tuple,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scopes = scopes
        self._monotonic = monotonic
        self._seen: Collection[str] = ()
        self._accounts: dict[str, Account] = {}
        self._by_group: dict[str, Account | None] = {}
        self._asked_at: dict[str | None, float] = {}
        self._held: dict[tuple[str, str], int] = {}  # bytes, by group and kind

    def asks(self, scope: str | None) -> Account | None:
        """Note that somebody asks; the account of its pattern, if its token has one."""
        self._follow()
        self._asked_at[scope] = self._monotonic()
        return self._accounts.get(scope) if scope is not None else None

    def of_group(self, group_id: str) -> Account | None:
        """Who pays for what happens in a group by itself: of the patterns that cover it, the longest."""
        self._follow()
        if not self._accounts:
            return None
        if group_id not in self._by_group:
            if len(self._by_group) >= GROUPS_REMEMBERED:
                self._by_group.clear()
            covering = [scope for scope in self._accounts if fnmatchcase(group_id, scope)]
            self._by_group[group_id] = self._accounts[max(covering, key=len)] if covering else None
        return self._by_group[group_id]

    def spent(self, group_id: str, seconds: float) -> None:
        """Something that a group brought about took CPU time (seconds)."""
        if (account := self.of_group(group_id)) is not None:
            account.spent(seconds)

    def may_log(self, group_id: str, lines: int) -> bool:
        """Whether that many lines about a group may be logged now."""
        account = self.of_group(group_id)
        return account is None or account.may_log(lines)

    def require_room(self, group_id: str, groups: Collection[str], limits: Limits) -> None:
        """Check that a pattern may have one more group.

        Raises:
            TooManyGroups: it has its share of those that the server keeps.
        """
        account = self.of_group(group_id)
        most = max(1, int(GROUPS_SHARE * limits.max_groups))
        if account is None or len(groups) < most:
            return
        if sum(self.of_group(name) is account for name in groups) >= most:
            raise TooManyGroups(
                f"the groups of {account.scope} are {most}, half of what this server keeps: delete some "
                f"(hetctl delete GROUP), or start hetserver with a larger --max-groups or a shorter --keep-finished"
            )

    def holds(self, group_id: str, kind: str, size: int) -> None:
        """A group holds so many bytes of one kind now."""
        account, before = self.of_group(group_id), self._held.pop((group_id, kind), 0)
        if account is not None:
            account.held += size - before
            if size:
                self._held[group_id, kind] = size

    def may_grow(self, group_id: str) -> bool:
        """Whether the groups of a pattern may hold more than they do."""
        account = self.of_group(group_id)
        return account is None or account.held <= MOST_HELD

    def require_memory(self, group_id: str) -> None:
        """Check that the groups of a pattern may hold more than they do.

        Raises:
            TooMuchStored: they may not.
        """
        if not self.may_grow(group_id):
            account = self._by_group[group_id]
            whose = account.scope if account is not None else group_id
            raise TooMuchStored(
                f"the groups of {whose} hold {MOST_HELD >> 20} MiB of this server's memory, as much as those of one "
                f"token may: delete some (hetctl delete GROUP)"
            )

    def _follow(self) -> None:
        """Keep to the patterns that the tokens have now."""
        scopes = self._scopes()
        if scopes is not self._seen:
            self._seen = scopes
            known = self._accounts
            self._accounts = {
                scope: known.get(scope) or Account(scope, self._is_alone(scope), self._monotonic)
                for scope in scopes
            }
            self._asked_at = {None: self._asked_at.get(None, -OTHERS_S)}
            self._by_group.clear()
            held, self._held = self._held, {}
            for account in self._accounts.values():
                account.held = 0
            for (group_id, kind), size in held.items():
                self.holds(group_id, kind, size)

    def _is_alone(self, scope: str) -> Callable[[], bool]:
        def is_alone() -> bool:
            since = self._monotonic() - OTHERS_S
            return not any(at > since for other, at in self._asked_at.items() if other != scope)

        return is_alone


class metered:
    """Runs a coroutine, and tells how much CPU time of this thread each of its steps took (seconds)."""

    def __init__(self, work: Coroutine[Any, Any, T], spent: Callable[[float], None]) -> None:
        self._work = work
        self._spent = spent

    def __await__(self) -> Generator[Any, Any, Any]:
        step: Callable[[Any], Any] = self._work.send
        value: Any = None
        while True:
            began = time.thread_time()
            try:
                awaited = step(value)
            except StopIteration as end:
                return end.value
            finally:
                self._spent(time.thread_time() - began)
            try:
                value, step = (yield awaited), self._work.send
            except BaseException as error:
                value, step = error, self._work.throw
