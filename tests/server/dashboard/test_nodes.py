"""The nodes of a group as dots on a map, and their workers."""

from dataclasses import replace
from math import inf

from hetrdzv.api import views
from hetrdzv.api.workers import worker_reply
from hetrdzv.core.model import Group, Stall
from hetrdzv.dashboard.group_page import MAX_WORKERS_ALL_SHOWN, SHOWN_OUTLIERS, make_worker_paces
from hetrdzv.protocol.progress import WorkerProgress
from hetrdzv.protocol.replies import NodeReply, WorkerReply
from hetrdzv.service.progress.samples import WorkerSample
from tests.core.driver import Story, running
from tests.support.hangs import behind

NAMES = [f"n{number:03}" for number in range(120)]


def fleet() -> Story:
    return running(*NAMES, lease_s=5.0)


def shown(group: Group | None) -> list[NodeReply]:
    assert group is not None
    return list(views.group_reply(group, 0.0, lambda node: 0.0, {}).nodes)


def test_members_come_in_the_order_of_their_ranks_and_stay_there_when_they_are_lost() -> None:
    story = fleet()
    story.join("spare")
    before = shown(story.group)
    assert [one.node_id for one in before] == [*NAMES, "spare"]
    assert [before[place].ranks() for place in (0, 119, 120)] == ["0", "119", ""]
    story.wait(5.01, silent=("n107",))
    found = shown(story.group)
    assert [one.node_id for one in found] == [one.node_id for one in before]
    assert found[107].state == "lost"


def test_a_device_is_named_first_then_versions_script_and_labels() -> None:
    story = fleet()
    node = shown(story.group)[0]
    gpus = {"kind": "cuda", "torch": "2.13.0", "name": "8 x H100", "memory_gib": "80"}
    found = replace(node, device=gpus, script="train.py", labels={"rack": "r1"})
    assert found.facts == "8 x H100 · 80 GiB · torch 2.13.0 · train.py · rack=r1"
    cpus = {"python": "3.11.7", "kind": "cpu", "script": "dd5745e3"}
    assert replace(node, device=cpus).facts == "cpu · python 3.11.7 · script dd5745e3"
    own = replace(node, device={"script": "dd5745e3"}, script="train.py")
    assert own.facts == "train.py (checksum dd5745e3)"
    assert node.facts == ""


def seen(*workers: WorkerProgress, stall: Stall | None = None) -> list[WorkerReply]:
    samples = [WorkerSample.from_report(f"n{one.rank}", one, None, 0.0, inf) for one in workers]
    return [worker_reply(sample, stall, 1.0) for sample in samples]


def test_of_many_workers_those_that_need_a_look_are_shown_beside_the_median() -> None:
    workers = [WorkerProgress(rank=rank, waiting=0.4) for rank in range(40)]
    workers[30] = WorkerProgress(rank=30, waiting=0.01)
    workers[35] = WorkerProgress(rank=35, waiting=0.5, state="stopped")
    shown = make_worker_paces(seen(*workers))
    assert [worker.rank for worker, _ in shown.rows] == [0, 1, 2, 3, 30, 35]
    assert (shown.total, shown.columns) == (40, ["state", "waits for others"])
    assert shown.usual == ["", "40 %"]
    everybody = make_worker_paces(seen(*workers), whole=True)
    assert (len(everybody.rows), everybody.usual) == (40, None)
    shown = make_worker_paces(seen(*workers, stall=Stall(hang=behind(7, "a"), since=0.0)))
    assert [worker.rank for worker, _ in shown.rows] == [0, 1, 2, 7, 30, 35]
    slow = [WorkerProgress(rank=rank, waiting=0.1 if rank < 10 else 0.4) for rank in range(40)]
    shown = make_worker_paces(seen(*slow))
    assert [worker.rank for worker, _ in shown.rows] == list(range(SHOWN_OUTLIERS))


def test_few_workers_are_all_shown_and_only_columns_in_which_there_is_something() -> None:
    workers = [WorkerProgress(rank=rank, step=3) for rank in range(MAX_WORKERS_ALL_SHOWN)]
    shown = make_worker_paces(seen(*workers))
    assert (len(shown.rows), shown.usual) == (MAX_WORKERS_ALL_SHOWN, None)
    assert shown.columns == ["step"]
