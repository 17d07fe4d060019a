"""How far workers have come, over HTTP: agents say it with their polls, and are asked for stacks in the replies."""

import asyncio
import threading
from dataclasses import replace
from typing import Any

import httpx
import pytest

from hetrdzv.core.commands import Tick
from hetrdzv.protocol.progress import ProgressTimes
from hetrdzv.protocol.states import ReportKind
from hetrdzv.protocol.worker_output import OutputKind
from hetrdzv.service.progress import progress as progress_module
from hetrdzv.service.progress import queries
from hetrdzv.service.service import Service
from tests.support.served import HandClock, api, join, serving, settled, started, two_nodes

GROUP = "/v1/groups/g"


@pytest.fixture(autouse=True)
def _short_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents of these tests answer at once or never."""
    monkeypatch.setattr(queries, "ANSWER_TIMEOUT_S", 2.0)


def at(enqueued: int, *, completed: int | None = None) -> list[dict[str, Any]]:
    """A worker's place in the default group of two."""
    done = enqueued if completed is None else completed
    return [{"name": "0", "size": 2, "enqueued": enqueued, "completed": done, "op": "all_reduce [[10]]"}]


def worker(rank: int, enqueued: int = 0, **more: Any) -> dict[str, Any]:
    return {"rank": rank, "collectives": at(enqueued, completed=more.pop("completed", None)), **more}


def progress(*workers: dict[str, Any], round_number: int = 1, age_s: float = 0.0) -> dict[str, Any]:
    return {"round": round_number, "age_s": age_s, "workers": list(workers)}


async def poll(
    client: httpx.AsyncClient, node: str, said: dict[str, Any] | None = None, **more: Any
) -> httpx.Response:
    body = {"incarnation": "1"} | more | ({"progress": said} if said is not None else {})
    return await client.post(f"{GROUP}/nodes/{node}/directive", json=body)


async def group(client: httpx.AsyncClient) -> Any:
    return (await client.get(GROUP)).raise_for_status().json()


async def hang(client: httpx.AsyncClient, service: Service) -> None:
    """Rank 1, on b, is behind; rank 0 waits for it."""
    await poll(client, "b", progress(worker(1, 16, still=True, idle_s=2.0)))
    await poll(client, "a", progress(worker(0, 17, completed=16, still=True, idle_s=2.0)))
    await until(service, stalls=True)


async def answer(client: httpx.AsyncClient, name: str, question: dict[str, Any] | None) -> None:
    """The stacks that an agent is asked for, if it is."""
    if question is not None:
        stack = {"rank": "ab".index(name), "text": f"line {'ab'.index(name)}"}
        body = {"incarnation": "1", "number": question["number"], "stacks": [stack]}
        await client.post(f"{GROUP}/nodes/{name}/stacks", json=body)


async def until(service: Service, *, stalls: bool) -> None:
    """Wait until the server has noticed that the round stalls, or no longer does."""
    for _ in range(200):
        if (active := service.group("g").active_round) is None or (active.stall is not None) is stalls:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("nobody noticed")


async def test_a_poll_that_says_more_is_answered_as_any() -> None:
    async with serving(clock=HandClock()) as (service, _), api(service) as client:
        await two_nodes(service, hang_timeout_s=7.5)
        plain = await client.get(f"{GROUP}/nodes/a/directive", params={"incarnation": "1"})
        assert (await poll(client, "a", progress(worker(0, 3)))).json() == plain.json()
        assert (await poll(client, "a")).json() == plain.json()
        assert plain.json()["hang_timeout_s"] == 7.5
        for wrong in ({"incarnation": "2"}, {"progress": {"round": 1}}, {"wait_s": -1}):
            assert (await poll(client, "a", **wrong)).status_code in (409, 422), wrong


async def test_a_round_trains_from_its_first_worker_on_until_those_that_tell_of_its_end_have_moved() -> None:
    clock = HandClock()
    async with serving(clock=clock) as (service, _), api(service) as client:
        formed_at = (await two_nodes(service)).round.formed_at  # type: ignore[union-attr]
        clock.pass_by(service, 10)
        await poll(client, "b", progress(worker(1)))
        await poll(client, "a", progress(worker(0, 1, began_s=4.0)))
        await settled()
        running = service.group("g").active_round
        assert running is not None
        assert running.trains_at == pytest.approx(formed_at + 6)
        clock.pass_by(service, 10)
        failed = replace(started("a"), kind=ReportKind.FAILED, moved=ProgressTimes(began_s=14.0, idle_s=5.0))
        ended = (await service.execute("g", failed)).round
        assert ended is not None
        assert ended.moved_at == pytest.approx(formed_at + 15)


async def test_the_group_shows_how_far_its_workers_have_come() -> None:
    clock = HandClock()
    async with serving(clock=clock) as (service, _), api(service) as client:
        await two_nodes(service)
        await poll(client, "a", progress(worker(0, 3), round_number=7))  # of another round
        await poll(client, "a", progress(worker(1, 3)))  # of another node
        assert (await group(client))["current_round"]["workers"] == []
        await poll(client, "a", progress(worker(0, 100, step=4, waiting=0.5)))
        clock.pass_by(service, 10)
        await poll(client, "a", progress(worker(0, 150, step=9, waiting=0.25, idle_s=0.1, pid=4711)))
        shown = (await group(client))["current_round"]["workers"]
        (one,) = shown
        assert [one[name] for name in ("rank", "node_id", "state", "idle_s")] == [0, "a", "runs", 0.0]
        assert [one[name] for name in ("collectives", "per_s", "step", "steps_per_s")] == [150, 5.0, 9, 0.5]
        assert (one["waiting"], one["pid"]) == (0.25, 4711)
        nobody = (await client.get(GROUP, params={"nodes": "none"})).json()
        assert nobody["current_round"]["workers"] == []


async def test_one_program_for_all_ranks_of_a_node_is_seen_as_all_of_them() -> None:
    """--launch node and mpi on nodes with several GPUs: their agents see a process and a step each."""
    async with serving(clock=HandClock()) as (service, _), api(service) as client:
        for name in "ab":
            await service.execute("g", replace(join(name, min_nodes=2, max_nodes=2), slots=2))
        for name in "ab":
            await service.execute("g", started(name))
        stands = {"still": True, "idle_s": 80.0, "collectives": [], "unseen": "it is not torch's"}
        await poll(client, "b", progress(worker(2, step=6, **stands)))
        await poll(client, "a", progress(worker(0, step=7, **stands)))
        await until(service, stalls=True)
        active = service.group("g").active_round
        assert active is not None
        assert active.stall is not None
        assert active.stall.hang.ranks == (2, 3)


@pytest.mark.parametrize("noted", [False, True], ids=["before-it-is-noted", "after"])
async def test_workers_that_move_again_while_many_are_judged_are_seen(
    monkeypatch: pytest.MonkeyPatch, noted: bool
) -> None:
    begun, go_on, look = threading.Event(), threading.Event(), progress_module.check_for_hang

    def slow_look(*args: Any) -> Any:
        found = look(*args)
        begun.set()
        assert go_on.wait(30)
        return found

    monkeypatch.setattr(progress_module, "MIN_WORKERS_FOR_THREAD", 1)
    async with serving(clock=HandClock()) as (service, _), api(service) as client:
        await two_nodes(service)
        if noted:
            await hang(client, service)
        monkeypatch.setattr(progress_module, "check_for_hang", slow_look)
        await poll(client, "b", progress(worker(1, 16, still=True, idle_s=3.0)))
        await poll(client, "a", progress(worker(0, 17, completed=16, still=True, idle_s=3.0)))
        assert await asyncio.to_thread(begun.wait, 30)
        await poll(client, "b", progress(worker(1, 18)))
        await poll(client, "a", progress(worker(0, 18)))
        go_on.set()
        await asyncio.sleep(0.1)
        await until(service, stalls=False)


async def test_who_is_waited_for_is_told_once_it_lasts_and_until_somebody_sees_it_go_on() -> None:
    clock = HandClock()
    async with serving(clock=clock) as (service, _), api(service) as client:

        async def told() -> tuple[int, int]:
            await asyncio.sleep(0.3)
            await settled(20)
            codes = [one.reason.code for one in service.history("g")[0]]
            return codes.count("stalled"), codes.count("progress_resumed")

        await two_nodes(service, lease_s=600.0)
        await hang(client, service)
        assert (await group(client))["reason"]["code"] == "round_running", (
            "two seconds are nothing to speak of"
        )
        clock.pass_by(service, 40)
        await service.execute("g", Tick())
        why = (await group(client))["reason"]
        assert (why["code"], why["ranks"], why["nodes"]) == ("behind", [[1, 1]], ["b"])
        await poll(client, "b", progress({"rank": 1, "state": "unknown", "unseen": "gloo does not answer"}))
        assert await told() == (1, 0), "nobody can tell whether it is over"
        clock.pass_by(service, 300)
        shown = await group(client)
        assert "; whether they still wait is no longer known" in shown["reason"]["message"]
        said = [one["message"] for one in shown["warnings"]]
        assert said == ["ranks 0 and 1 cannot be watched: reports of the agent have stopped"]
        await poll(client, "a", progress(worker(0, 18)))
        assert await told() == (1, 1)
        assert (await group(client))["reason"]["code"] == "round_running"


async def test_a_long_pause_of_one_worker_hides_nothing_that_comes_before_its_end() -> None:
    async with serving(clock=HandClock()) as (service, _), api(service) as client:
        await two_nodes(service)
        await hang(client, service)
        await poll(client, "b", progress(worker(1, 16, still=True, long_s=3600.0)))
        await until(service, stalls=False)
        await hang(client, service)  # the block has ended early


async def test_a_wait_counts_as_far_as_it_was_seen_and_late_news_for_nothing() -> None:
    """Agents look once a second: a worker may have gone on since, so that its wait must not end a round too soon."""
    clock = HandClock()
    async with serving(clock=clock) as (service, _), api(service) as client:
        await two_nodes(service)
        await poll(client, "a", progress(worker(0, 17, completed=16, still=True, idle_s=2.0)))
        clock.pass_by(service, 1.0)
        await poll(client, "b", progress(worker(1, 17)))
        await poll(client, "b", progress(worker(1, 16), age_s=1.0))
        workers = (await group(client))["current_round"]["workers"]
        assert [one["collectives"] for one in workers] == [17, 17]
        assert workers[0]["idle_s"] == 2.2


async def test_stacks_and_logs_are_asked_for_in_the_reply_to_a_poll() -> None:
    async with serving() as (service, _), api(service) as client:
        await service.execute("g", join("a", min_nodes=2, max_nodes=2))
        refused = await client.post(f"{GROUP}/stacks")
        assert (refused.status_code, refused.json()["code"]) == (409, "no_round")
        await two_nodes(service)
        version = (await poll(client, "a")).json()["version"]
        waiting = asyncio.create_task(poll(client, "a", after=version, wait_s=2.0))
        await settled()
        asked = asyncio.create_task(client.post(f"{GROUP}/stacks", params={"rank": 0}))
        question = (await waiting).json()["stacks"]
        assert (question["round"], question["ranks"]) == (1, [0])
        assert "stacks" not in (await poll(client, "a")).json(), "it is handed out once"
        await answer(client, "a", question)
        stack = {"rank": 0, "node_id": "a", "text": "line 0", "stderr": "", "why": ""}
        assert (await asked).json() == {"round": 1, "workers": [stack], "over": False, "at": None}

        asked = asyncio.create_task(client.post(f"{GROUP}/logs", params={"rank": 0}))
        await settled()
        told = (await poll(client, "a")).json()
        assert "stacks" not in told, "an agent of an earlier version would answer with stacks"
        assert (told["logs"]["round"], told["logs"]["ranks"]) == (1, [0])
        text = "first" + "x" * 16_370 + "last"
        body = {"incarnation": "1", "number": told["logs"]["number"], "stacks": [{"rank": 0, "text": text}]}
        assert (await client.post(f"{GROUP}/nodes/a/stacks", json=body)).status_code == 204
        assert (await asked).json()["workers"] == [stack | {"text": text}]
        silent = (await client.post(f"{GROUP}/logs", params={"rank": 1})).json()["workers"]
        assert silent[0]["why"] == "its agent has not answered within 2 s"


async def test_logs_of_a_job_that_is_over_are_those_that_its_agents_sent_as_they_left() -> None:
    async with serving() as (service, _), api(service) as client:
        await two_nodes(service)
        logs = [{"rank": 0, "text": "loss 3", "stderr": "boom"}, {"rank": 9, "text": "beyond the world"}]
        for number, incarnation, status in ((1, "1", 204), (1, "2", 409), (7, "1", 204)):
            body = {"incarnation": incarnation, "number": number, "stacks": logs if number == 1 else []}
            sent = await client.post(f"{GROUP}/nodes/a/logs", json=body)
            assert sent.status_code == status, sent.text
        (await client.post(f"{GROUP}/cancel")).raise_for_status()
        first = {"rank": 0, "node_id": "a", "text": "loss 3", "stderr": "boom", "why": ""}
        why = "its logs of round 1 are not kept"
        second = {"rank": 1, "node_id": "", "text": "", "stderr": "", "why": why}
        shown = (await client.post(f"{GROUP}/logs")).json()
        assert (shown["workers"], shown["over"]) == ([first, second], True)
        assert (await client.post(f"{GROUP}/logs", params={"rank": 1})).json()["workers"] == [second]
        refused = await client.post(f"{GROUP}/logs", params={"round": 6})
        assert refused.json()["detail"] == "group 'g' has no round 6: its newest is round 1"
        refused = await client.post(f"{GROUP}/stacks", params={"round": 1})
        assert refused.json()["detail"].startswith("no stacks of round 1 of group 'g' are kept")
        for more in ({}, {"round": 1}):
            refused = await client.post(f"{GROUP}/logs", params={"rank": [1, 7], **more})
            assert (refused.status_code, refused.json()["code"]) == (404, "not_found")
            assert refused.json()["detail"] == "no such rank: round 1 of group 'g' has ranks 0 and 1, not 7"
        (await client.delete(GROUP)).raise_for_status()
        assert service.post_mortems.find("g", OutputKind.LOGS) is None


async def test_the_stacks_of_all_workers_are_taken_once_a_hang_has_lasted_and_shown_after_the_round() -> None:
    clock = HandClock()
    async with serving(clock=clock) as (service, _), api(service) as client:
        await two_nodes(service)
        await hang(client, service)
        clock.pass_by(service, 20)

        def first_stack() -> str:
            active = service.group("g").active_round
            return active.stall.stack if active is not None and active.stall is not None else ""

        while not first_stack():
            for name, rank in (("a", 0), ("b", 1)):
                said = progress(worker(rank, 17 - rank, completed=16, still=True, idle_s=22.0))
                await answer(client, name, (await poll(client, name, said)).json().get("stacks"))
            await settled(20)
        assert first_stack() == "line 1", "of the worker that is waited for"
        (await client.post(f"{GROUP}/cancel")).raise_for_status()
        reply = (await client.post(f"{GROUP}/stacks")).json()
        assert [(one["rank"], one["node_id"], one["text"]) for one in reply["workers"]] == [
            (0, "a", "line 0"),
            (1, "b", "line 1"),
        ]
        assert (reply["round"], reply["over"], reply["at"] is not None) == (1, True, True)
        del service.post_mortems.find("g", OutputKind.STACKS).by_rank[1]  # type: ignore[union-attr]
        missing = (await client.post(f"{GROUP}/stacks", params={"round": 1, "rank": 1})).json()["workers"]
        assert missing[0]["why"] == "its stacks of round 1 are not kept"


async def test_a_round_that_hangs_ends_once_its_stacks_were_asked_for_however_late_it_was_seen() -> None:
    clock = HandClock()
    async with serving(clock=clock) as (service, _), api(service) as client:
        await two_nodes(service, hang_timeout_s=3.0, max_restarts=0)
        clock.pass_by(service, 20)
        while service.group("g").active_round is not None:
            for name, rank in (("a", 0), ("b", 1)):
                said = progress(worker(rank, 17 - rank, completed=16, still=True, idle_s=20.0))
                question = (await poll(client, name, said)).json().get("stacks")
                active = service.group("g").active_round
                assert question is None or (active is not None and active.stall is not None), (
                    "it has not ended before it was asked for"
                )
                await answer(client, name, question)
            await settled(20)
        for name in "ab":
            await service.execute("g", join(name, after_round=1))
        cause = service.group("g").root_cause
        assert cause is not None
        assert cause.failure is not None
        assert cause.failure.message == "line 1"


async def ends(service: Service, clock: HandClock, seconds: float) -> bool:
    """Time passes; whether the running round has ended."""
    clock.pass_by(service, seconds)
    await service.execute("g", Tick())
    await settled(20)
    return service.group("g").active_round is None


async def hanging(client: httpx.AsyncClient, service: Service) -> None:
    await two_nodes(service, lease_s=600.0, hang_timeout_s=10.0)
    await hang(client, service)


async def stands(client: httpx.AsyncClient, service: Service, idle_s: float, **more: Any) -> None:
    """Both agents say again that their workers stand still, and answer whoever asks for their stacks."""
    for _ in range(3):
        for name, said, others in (
            ("a", worker(0, 17, completed=16, still=True, idle_s=idle_s), {}),
            ("b", worker(1, 16, still=True, idle_s=idle_s), more),
        ):
            reply = (await poll(client, name, progress(said, **others))).json()
            await answer(client, name, reply.get("stacks"))
        await asyncio.sleep(0.3)
        await settled(20)


async def test_a_hang_ends_its_round_once_its_workers_were_seen_to_stand_for_so_long() -> None:
    clock = HandClock()
    async with serving(clock=clock) as (service, _), api(service) as client:
        await hanging(client, service)
        assert not await ends(service, clock, 9.5), "nobody has seen any of them stand for 10 s"
        await poll(client, "b", progress(worker(1, 16, still=True, idle_s=11.5)))
        await asyncio.sleep(0.3)
        assert not await ends(service, clock, 0.1), "rank 0 may have gone on"
        await stands(client, service, 11.6)
        assert await ends(service, clock, 0.1)


async def test_a_stall_ends_nothing_after_samples_have_stopped_coming() -> None:
    """The agent's watch is dead, for instance: it polls on with an old sample, or with none."""
    for again in (progress(worker(1, 16, still=True, idle_s=2.0), age_s=400.0), None):
        clock = HandClock()
        async with serving(clock=clock) as (service, _), api(service) as client:
            await hanging(client, service)
            clock.pass_by(service, 400.0)
            await poll(client, "b", again)
            await poll(client, "a", progress(worker(0, 17, completed=16, still=True, idle_s=402.0)))
            await asyncio.sleep(0.3)
            assert not await ends(service, clock, 100.0)
            shown = (await group(client))["current_round"]["workers"][1]
            assert (shown["state"], shown["unseen"]) == ("unknown", "reports of the agent have stopped")


async def test_a_warning_names_the_workers_that_cannot_be_watched_and_the_reason() -> None:
    clock = HandClock()
    async with serving(clock=clock) as (service, _), api(service) as client:
        await two_nodes(service)
        unseen = {"state": "unknown", "unseen": "its process groups use xccl"}

        async def warnings() -> list[str]:
            return [one["message"] for one in (await group(client))["warnings"]]

        async def told(seconds: float) -> list[str]:
            clock.pass_by(service, seconds)
            await poll(client, "a", progress({"rank": 0, **unseen}))
            await poll(client, "b", progress({"rank": 1, **unseen}))
            return await warnings()

        assert await told(0.0) == [], "scripts import first"
        assert await told(31.0) == ["ranks 0 and 1 cannot be watched: its process groups use xccl"]
        await poll(client, "b", progress(worker(1, 3, step=4)))
        assert await warnings() == ["rank 0 cannot be watched: its process groups use xccl"]
