"""A short form of benchmarks.hostile: random requests with an agent's token, and a server that is killed on the way."""

import asyncio
from pathlib import Path

from benchmarks.hostile import Hostile

from tests.fuzz.settings import BIG


def test_random_requests_leave_a_store_that_loads(tmp_path: Path) -> None:
    with Hostile(tmp_path, seed=24, job=False, kept=tmp_path / "kept") as hostile:
        asyncio.run(hostile.run(20_000 if BIG else 400, each=100))
    assert not hostile.wrong, hostile.wrong
    assert sum(kind.answers["2xx"] for kind in hostile.kinds.values()) > 100
    assert any(told.startswith("start") for told in hostile.told), hostile.told
