"""hetagent.uneven: every sample once per epoch, whatever happens in the middle of it; gradients are the exact mean."""

import os
import random
import re
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.support import gradients
from tests.support.needs import ALL, ROOT
from tests.support.worlds.examples import check_uneven
from tests.support.worlds.jobs import NEEDS_FSDP
from tests.support.worlds.ranks import run
from torch.utils.data import BatchSampler, DataLoader

from hetagent.shares import Shares
from hetagent.uneven import Memory, Part, UnevenBatchSampler, accumulate

CASES = 200 if os.environ.get(ALL) == "1" else 20


def sampler(
    samples: int, global_batch: int, *weights: float, rank: int = 0, **more: Any
) -> UnevenBatchSampler:
    return UnevenBatchSampler(samples, global_batch, Shares(weights or (1.0,), rank), **more)


# -- every sample once ---------------------------------------------------------------------------------------


class World:
    """All ranks of one, without processes: each has a sampler of its own."""

    def __init__(
        self, samples: int, global_batch: int, weights: list[float], memory: Memory, **more: Any
    ) -> None:
        self.samplers = [
            sampler(samples, global_batch, *weights, rank=rank, memory=memory, **more)
            for rank in range(len(weights))
        ]
        self.memory = memory if isinstance(memory, list) else [memory] * len(weights)
        enough = all(bound is None or bound > 2 for bound in self.memory)
        self.least = 2 if enough and global_batch >= 2 * len(weights) else 1
        self.samples = samples

    def load(self, state: dict[str, Any]) -> None:
        for one in self.samplers:
            one.load_state_dict(state)

    def state(self) -> dict[str, Any]:
        """Where the ranks are, all at the same place."""
        states = [one.state_dict() for one in self.samplers]
        assert all(state == states[0] for state in states)
        return states[0]

    def steps(self) -> Iterator[list[int]]:
        """What all ranks train on in each step until the end of the epoch."""
        lengths = {len(one) for one in self.samplers}
        assert len(lengths) == 1, "with unlike numbers of batches one rank would wait for ever"
        step: list[int] = []
        scales = 0.0
        batches = 0
        for ranks in zip(*(one.parts(one) for one in self.samplers), strict=True):
            batches += 1
            assert len({(part.number, part.parts, part.total, part.consumed) for _, part in ranks}) == 1
            for (indices, part), bound in zip(ranks, self.memory, strict=True):
                assert len(indices) >= min(self.least, part.total), "BatchNorm cannot be trained on one"
                assert len(indices) == part.count if part.count else 1 <= len(indices) <= min(2, self.samples)
                assert bound is None or len(indices) <= bound
                step += indices[: part.count]
                scales += part.loss_scale
            part = ranks[0][1]
            if part.last:
                assert len(step) == part.total
                assert scales == pytest.approx(
                    part.world_size
                )  # the ranks' average is the mean over the step
                yield step
                step, scales = [], 0.0
        assert lengths == {batches}


def drawn(random_: random.Random, global_batch: int) -> tuple[list[float], Memory]:
    """Weights and memory of a world that can have such batches."""
    weights = [
        random_.choice([1.0, 0.25, random_.uniform(0.01, 1)])
        for _ in range(random_.randint(1, min(global_batch, 8)))
    ]
    memory = random_.choice(
        [None, random_.randint(1, 9), [random_.choice([None, 1, 5, 20]) for _ in weights]]
    )
    return weights, memory


@pytest.mark.parametrize("drops", [False, True], ids=["all", "drop_last"])
@pytest.mark.parametrize("seed", range(CASES))
def test_every_sample_comes_once_per_epoch_over_restarts(seed: int, drops: bool) -> None:
    """Two epochs; worlds of other sizes, shares, memory and batches take over at any step of them."""
    random_ = random.Random(seed)
    samples = random_.randint(1, 300)
    whole = [set(range(samples))] * 2
    seen: list[Counter[int]] = [Counter(), Counter()]
    state = None
    worlds = 0
    while state is None or state["epoch"] < 2:
        worlds += 1
        global_batch = random_.randint(1, 50)
        drop_last = drops and global_batch <= samples
        world = World(samples, global_batch, *drawn(random_, global_batch), seed=7, drop_last=drop_last)
        if state is not None:
            world.load(state)
        stop_after = random_.choice([0, 1, random_.randint(1, 2 * samples), 10**6])
        if (epoch := world.samplers[0].epoch) > 1:  # less than a whole step of its batches was left
            break
        for number, step in enumerate(world.steps(), start=1):
            assert len(step) == global_batch or not drop_last
            seen[epoch].update(step)
            if number == stop_after:
                break
        state = world.state()
    assert [set(one) for one in seen] == whole or drops
    assert all(len(one) > samples - 50 for one in seen)
    assert {count for one in seen for count in one.values()} <= {1}
    if seed == 0 and not drops:
        print(f"{samples} samples, each once in each of two epochs, in {worlds} worlds")


def test_the_samples_of_a_step_are_the_same_in_any_world() -> None:
    alone = [sorted(step) for step in World(100, 24, [1.0], None).steps()]
    for weights, memory in (([1.0] * 4, None), ([4.0, 1.0, 1.0], 3), ([0.1, 0.9], [None, 5])):
        assert [sorted(step) for step in World(100, 24, weights, memory).steps()] == alone
    assert alone != [sorted(step) for step in World(100, 24, [1.0], None, seed=6).steps()], "another seed"


# -- epochs and positions ------------------------------------------------------------------------------------


def test_epochs_have_orders_of_their_own_and_the_next_begins_by_itself() -> None:
    one = sampler(12, 4)
    first = [indices for indices, _ in one.parts(one)]
    assert (one.epoch, one.consumed) == (1, 0)
    one.set_epoch(1)  # as scripts do
    second = list(one)
    assert first != second
    one.set_epoch(0)
    assert list(one) == first
    assert sorted(chain(*first)) == sorted(chain(*second)) == list(range(12))
    assert list(sampler(5, 2, shuffle=False)) == [[0, 1], [2, 3], [4]]


def test_the_position_is_that_after_the_step_which_was_given_out_and_set_epoch_goes_on_with_it() -> None:
    one = sampler(12, 4, memory=2)
    positions = [(part.number, one.epoch, one.consumed) for _, part in one.parts(one)]
    assert positions == [(0, 0, 0), (1, 0, 4), (0, 0, 4), (1, 0, 8), (0, 0, 8), (1, 1, 0)]
    one, other = sampler(12, 4), sampler(12, 4)
    next(one.parts(one))
    rest = list(one)
    assert (len(one), one.consumed) == (2, 4)
    other.load_state_dict(one.state_dict())
    other.set_epoch(0)
    assert (len(other), list(other)) == (2, rest)
    other.set_epoch(1)
    assert (len(other), other.consumed) == (3, 0)


@pytest.mark.parametrize("fetch", [iter, list], ids=["one at a time", "all ahead"])
def test_a_loader_that_fetches_ahead_does_not_move_the_position(
    fetch: Callable[[DataLoader[Any]], Iterable[Any]],
) -> None:
    one = sampler(30, 4, 3.0, 1.0)
    loader = DataLoader(torch.arange(30), batch_sampler=one)  # type: ignore[arg-type]
    expected = list(one)
    assert len(loader) == len(one) == 8
    given = []
    for batch, part in one.parts(fetch(loader)):
        given.append(batch.tolist())
        assert one.consumed == part.consumed % 30
        if part.consumed >= 12:
            break
    assert given == expected[:3]
    assert [batch.tolist() for batch, _ in one.parts(fetch(loader))] == expected[3:]


# -- parts ---------------------------------------------------------------------------------------------------


def test_a_rank_that_gets_nothing_has_a_sample_that_counts_for_nothing() -> None:
    last = [list(one.parts(one))[-1] for one in World(6, 4, [1.0, 4.0, 2.0], None).samplers]
    counts = [part.count for _, part in last]
    assert counts == [0, 1, 1], "the fastest get what there is"
    assert [part.loss_scale for _, part in last] == [0, 1.5, 1.5]
    assert last[0][0] == last[1][0], "another rank's sample"


class Normed(torch.nn.Sequential):
    """Cannot be trained on a batch of one sample."""

    def __init__(self) -> None:
        super().__init__(torch.nn.Linear(1, 2), torch.nn.BatchNorm1d(2))


@pytest.mark.parametrize(
    ("samples", "global_batch", "weights", "memory"),
    [
        (102, 100, [1000.0, 1.0, 1.0], None),  # full steps of a slow rank, and a last one of two samples
        (7, 4, [1.0, 1.0], None),  # a last one of three
        (20, 20, [10.0, 1.0, 1.0], [3, None, None]),  # parts of a slow rank that has two samples
        (23, 10, [1.0], 3),
        (3, 2, [1.0], None),
    ],
)
def test_batch_norm_gets_two_samples_where_the_batch_allows_it(
    samples: int, global_batch: int, weights: list[float], memory: Memory
) -> None:
    model = Normed()
    drops = samples % global_batch == 1
    for one in World(samples, global_batch, weights, memory, drop_last=drops).samplers:
        for indices, part in one.parts(one):
            with accumulate(model, part):
                model(torch.rand(len(indices), 1)).sum().backward()


def test_drop_last_leaves_out_what_is_no_whole_step() -> None:
    """As torch's own BatchSampler, over all ranks."""
    one = sampler(11, 4, drop_last=True, shuffle=False)
    assert list(one) == list(BatchSampler(range(11), 4, drop_last=True))
    assert len(one) == 2
    assert [(part.total, one.epoch, one.consumed) for _, part in one.parts(one)] == [(4, 0, 4), (4, 1, 0)]
    assert len(one) == 2, "the next epoch"
    other = sampler(11, 4, shuffle=False)
    steps = other.parts(other)
    next(steps)
    next(steps)
    assert (other.epoch, other.consumed) == (0, 8)
    one.load_state_dict(other.state_dict())  # of a sampler that would go on with three samples
    assert (one.epoch, one.consumed, len(one)) == (1, 0, 2)
    assert len(sampler(12, 4, drop_last=True)) == 3


def test_a_step_is_split_for_all_ranks_where_one_lacks_memory() -> None:
    ranks = World(12, 12, [4.0, 1.0, 1.0], [3, None, None]).samplers
    assert [[part.count for _, part in one.parts(one)] for one in ranks] == [[2, 3, 3], [0, 0, 2], [0, 0, 2]]
    for memory in (iter([3, None, None]), torch.tensor([3, 9, 9])):
        assert len(sampler(12, 12, 4.0, 1.0, 1.0, memory=memory)) == 3
    assert len(sampler(12, 12, 4.0, 1.0, 1.0, memory=8)) == 1, "it fits"
    assert list(sampler(3, 2, 1.0, 0.5, memory=[None, 5], shuffle=False)) == [[0], [2]], (
        "the bounded get nothing"
    )


class Recording(torch.nn.Linear):
    """Says what was asked of it."""

    def __init__(self, name: str) -> None:
        super().__init__(1, 1)
        self.said: list[object] = []
        if name == "fsdp":
            self.set_requires_gradient_sync = self.said.append
        elif name == "ddp":
            self.no_sync = lambda: self.said.append("no sync") or torch.no_grad()


@pytest.mark.parametrize(
    ("name", "said"), [("fsdp", [False, False, True]), ("ddp", ["no sync", "no sync"]), ("neither", [])]
)
def test_gradients_are_averaged_with_the_last_part_of_a_step(name: str, said: list[object]) -> None:
    model = Recording(name)
    one = sampler(12, 12, 1.0, 1.0, memory=2)
    for _, part in one.parts(one):
        with accumulate(model, part):
            pass
    assert model.said == said


# -- bad input -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"samples": 0}, "samples is 0: give their number"),
        ({"samples": [1, 2]}, "samples is [1, 2]: give their number, as in len(dataset)"),
        ({"global_batch": 2}, "a global batch of 2 is too small for 3 ranks"),
        ({"global_batch": 8.5}, "the global batch is 8.5"),
        ({"global_batch": 13, "drop_last": True}, "drop_last leaves no batch: there are 12 samples"),
        ({"memory": 0}, "memory is 0: it must be an integer of at least 1"),
        (
            {"memory": [8]},
            "memory is [8]: it must be an integer of at least 1, or one (or None) for each of the 3",
        ),
    ],
)
def test_bad_arguments_are_refused(arguments: dict[str, Any], complaint: str) -> None:
    right = {"samples": 12, "global_batch": 6, "shares": Shares((1.0, 1.0, 1.0))}
    with pytest.raises(ValueError, match=re.escape(complaint)):
        UnevenBatchSampler(**(right | arguments))


@pytest.mark.parametrize("epoch", [-1, 1.0, None])
def test_a_wrong_epoch_is_refused(epoch: Any) -> None:
    with pytest.raises(ValueError, match="it must be an integer of at least 0"):
        sampler(12, 4).set_epoch(epoch)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"version": 1}, "the checkpoint is of a sampler with version 1, this one has 2"),
        ({"samples": 13}, "the checkpoint is of a sampler with samples 13, this one has 12"),
        ({"seed": 1}, "the checkpoint is of a sampler with seed 1, this one has 0"),
        ({"shuffle": False}, "the checkpoint is of a sampler with shuffle False, this one has True"),
        ({"consumed": 12}, "the checkpoint has seen 12 of 12 samples: it is damaged"),
        ({"consumed": -1}, "the checkpoint has seen -1 of 12 samples: it is damaged"),
        ({"epoch": None}, "the epoch is None"),
    ],
)
def test_a_state_of_other_samples_is_refused(change: dict[str, Any], complaint: str) -> None:
    one = sampler(12, 4)
    with pytest.raises(ValueError, match=re.escape(complaint)):
        one.load_state_dict(one.state_dict() | change)
    with pytest.raises(ValueError, match="the checkpoint is of a sampler with version None"):
        one.load_state_dict({})
    assert (one.epoch, one.consumed) == (0, 0)


@pytest.mark.parametrize("batches", [range(2), range(4), iter(range(2)), iter(range(4))])
def test_a_loader_whose_sampler_was_replaced_is_refused(batches: Any) -> None:
    one = sampler(12, 4)
    with pytest.raises(RuntimeError, match=r"the loader gives \d batches, but the sampler has 3"):
        list(one.parts(batches))


# -- with processes ------------------------------------------------------------------------------------------


@NEEDS_FSDP
def test_gradients_are_those_of_one_process_with_the_whole_batch(tmp_path: Path) -> None:
    """Four ranks, and three that go on from their checkpoint."""
    for kind in ("ddp", "fsdp"):
        assert run(4, gradients.begin, kind, tmp_path / kind)[0] == [24, 6, 6, 12]
        assert run(3, gradients.go_on, kind, tmp_path / kind)[0] == [8, 22, 4]


@NEEDS_FSDP
def test_ranks_that_are_slower_get_fewer_samples_in_the_middle_of_an_epoch(tmp_path: Path) -> None:
    """They need four times as long for each."""
    for kind in ("ddp", "fsdp"):
        fast, *slow = run(3, gradients.timed, kind, tmp_path)[0]
        assert all(fast > 2 * one for one in slow), (fast, slow)


def test_ranks_that_differ_are_refused() -> None:
    run(2, gradients.differing)


@pytest.mark.long
@pytest.mark.parametrize("script", ["with_ddp.py", pytest.param("with_fsdp2.py", marks=NEEDS_FSDP)])
def test_the_examples_train_as_one_process_does(script: str, tmp_path: Path) -> None:
    check_uneven(tmp_path, script)


def test_the_code_in_the_docs_is_that_of_the_examples() -> None:
    page = (ROOT / "docs" / "uneven.md").read_text(encoding="utf-8")
    blocks = re.findall(r"\.\./examples/uneven/(with_\w+\.py)\)[^\n(]*:\n\n((?: {4}.*\n|\n)+)", page)
    assert len(blocks) >= 3
    for script, block in blocks:
        code = textwrap.dedent(block).strip("\n")
        assert code in (ROOT / "examples" / "uneven" / script).read_text(encoding="utf-8"), script


def test_a_static_graph_has_no_parts() -> None:
    model = torch.nn.Linear(1, 1)
    setattr(model, "static_graph", True)  # noqa: B010 as DistributedDataParallel has it
    one, two = (Part(number=0, parts=parts, count=1, total=2, world_size=1, consumed=2) for parts in (1, 2))
    with accumulate(model, one):
        pass
    with pytest.raises(ValueError, match="leave static_graph out"), accumulate(model, two):
        pass


def test_the_last_samples_of_very_many_ranks_go_to_the_fastest() -> None:
    ranks = 20_000
    weights = tuple(1.0 + rank % 2 for rank in range(ranks))
    batches = UnevenBatchSampler(ranks - 1, ranks, Shares(weights, 1), shuffle=False)
    assert [len(batch) for batch in batches] == [1]
