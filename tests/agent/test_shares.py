"""hetagent.shares: sizes of batches, the file of a round, and shares by what ranks measured."""

import json
import random
import re
from fractions import Fraction
from pathlib import Path

import pytest

from hetagent import shares
from hetagent.shares import Shares, SharesError, batch_sizes

RANDOM_CASES = 200


@pytest.mark.parametrize(
    ("global_batch", "weights", "least", "sizes"),
    [
        (8, [1, 1, 1, 1], 1, [2, 2, 2, 2]),
        (10, [1, 1, 1, 1], 1, [3, 3, 2, 2]),  # what is left goes to lower ranks
        (12, [1.0, 0.25, 0.25], 1, [8, 2, 2]),
        (11, [4, 1, 1], 1, [7, 2, 2]),
        (10, [0.1, 0.2, 0.3], 1, [2, 3, 5]),
        (3, [1000, 1, 1], 1, [1, 1, 1]),
        (100, [1000, 1, 1], 1, [98, 1, 1]),  # none gets nothing
        (100, [1000, 1, 1], 2, [96, 2, 2]),
        (6, [1000, 1, 1], 2, [2, 2, 2]),
        (5, [1000, 1, 1], 2, [3, 1, 1]),  # there are not enough
        (7, [5], 1, [7]),
        (6, [1e-300, 1e300, 5], 1, [1, 4, 1]),
        (6, [10**400, 1], 1, [5, 1]),
    ],
)
def test_sizes(global_batch: int, weights: list[float], least: int, sizes: list[int]) -> None:
    assert batch_sizes(global_batch, weights, least=least) == sizes


def test_sizes_of_random_batches() -> None:
    random_ = random.Random(16)
    for _ in range(RANDOM_CASES):
        ranks = random_.randint(1, 12)
        weights = [random_.choice([1.0, 0.25, random_.uniform(0.001, 1), 10**6]) for _ in range(ranks)]
        global_batch = ranks + random_.choice([0, 1, random_.randint(0, 1000)])
        sizes = batch_sizes(global_batch, weights)
        case = (global_batch, weights, sizes)
        assert sum(sizes) == global_batch, case
        assert min(sizes) >= 1, case
        free = [rank for rank in range(ranks) if sizes[rank] > 1]
        for one in free:  # none that is above the least is more than two samples off its part
            total = sum(Fraction(weights[rank]) for rank in free)
            part = Fraction(weights[one]) / total * sum(sizes[rank] for rank in free)
            assert abs(sizes[one] - part) < 2, case
            for other in free:
                if weights[one] > weights[other]:
                    assert sizes[one] >= sizes[other], case


@pytest.mark.parametrize(
    ("global_batch", "weights", "complaint"),
    [
        (3, [1, 1, 1, 1], "a global batch of 3 is too small for 4 ranks"),
        (0, [1], "the global batch is 0: it must be an integer"),
        (8.0, [1], "the global batch is 8.0: it must be an integer"),
        (8, [], "no weights: give one"),
        (8, [1, 0], "the weight of rank 1 is 0: it must be a positive number"),
        (8, [1, -0.5], "the weight of rank 1 is -0.5"),
        (8, [float("nan"), 1], "the weight of rank 0 is nan"),
        (8, [float("inf"), 1], "the weight of rank 0 is inf"),
        (8, ["1", 1], "the weight of rank 0 is '1'"),
        (8, [True, 1], "the weight of rank 0 is True"),
    ],
)
def test_bad_input_is_refused(global_batch: int, weights: list[float], complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(complaint)}"):
        batch_sizes(global_batch, weights)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file of a round of three ranks, as the agent writes it; this process is rank 2."""
    path = tmp_path / "weights"
    monkeypatch.setenv(shares.FILE, str(path))
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    write(path, [1.0, 1.0, 0.25])
    return path


def write(path: Path, weights: list[float], *, given: bool = True) -> None:
    """Write the file of a round."""
    path.write_text(json.dumps({"round": 3, "weights": weights, "given": given}), encoding="utf-8")


def test_the_shares_of_a_round(path: Path) -> None:
    mine = shares.current()
    assert mine == Shares((1.0, 1.0, 0.25), rank=2, round=3)
    assert (mine.weight, mine.world_size, mine.batch_sizes(9)) == (0.25, 3, [4, 4, 1])
    assert shares.current(0, 3).weight == 1.0
    write(path, [1.0, 1.0, 1.0], given=False)
    assert shares.current() == Shares((1.0, 1.0, 1.0), rank=2, round=3, given=False)


def test_without_an_agent_all_ranks_weigh_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (shares.FILE, *(name for pair in shares.RANKS for name in pair)):
        monkeypatch.delenv(name, raising=False)
    assert shares.current() == Shares((1.0,), given=False)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert shares.current() == Shares((1.0, 1.0), rank=1, given=False)


def test_ranks_of_open_mpi_and_horovod(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK")
    with pytest.raises(SharesError, match="nothing says which rank this process is"):
        shares.current()
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "3")
    assert shares.current().rank == 1


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (None, "rank 2 cannot read the weights of its round: No such file or directory: "),
        ("", "knows (JSONDecodeError("),
        ("[" * 100_000, "knows (RecursionError("),
        ("[1, 1, 1]", "knows (TypeError("),
        ('{"round": 3, "weights": [1, 1, 1]}', "knows (KeyError('given'))"),
        ('{"round": 3, "given": true, "weights": 1}', "knows (TypeError("),
        ('{"round": 3, "given": true, "weights": []}', "no weights: give one"),
        ('{"round": 3, "given": true, "weights": [1, NaN, 1]}', "the weight of rank 1 is nan"),
        ('{"round": 3, "given": true, "weights": [1, 1]}', "has 2 weights, but the world size is 3"),
    ],
)
def test_a_file_that_is_missing_or_foreign_is_refused(path: Path, text: str | None, complaint: str) -> None:
    path.unlink()
    if text is not None:
        path.write_text(text)
    with pytest.raises(SharesError) as caught:
        shares.current()
    said = str(caught.value)
    assert complaint in said
    assert "rank 2" in said
    assert str(path) in said


@pytest.mark.parametrize(
    ("variables", "complaint"),
    [
        ({"RANK": "3"}, "there is no rank 3 in a world of 3"),
        ({"RANK": "x"}, "RANK=x, WORLD_SIZE=3: these have to be whole numbers"),
        ({"WORLD_SIZE": "0"}, "there is no rank 2 in a world of 0"),
    ],
)
def test_a_wrong_rank_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], complaint: str
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=complaint):
        shares.current()


def test_what_does_not_fit_together_is_refused(path: Path) -> None:
    with pytest.raises(ValueError, match="both rank and world_size"):
        shares.current(1)
    with pytest.raises(ValueError, match="rank 3 is out of range: 2 ranks"):
        Shares((1.0, 1.0), rank=3)
    with pytest.raises(ValueError, match="1 sizes for 2 ranks: give one for each"):
        shares.refresh(Shares((1.0, 1.0)), [4], lambda own: [own], 1)


def refreshed(sizes: list[int], times: list[int], weights: tuple[float, ...] | None = None) -> Shares:
    """What all ranks decide if each needs such a time; they all decide the same."""
    before = [Shares(weights or (1.0,) * len(sizes), rank, given=False) for rank in range(len(sizes))]
    speeds: list[int] = []
    for one, time in zip(before, times, strict=True):
        shares.refresh(one, sizes, lambda own: speeds.append(own) or [0] * len(sizes), time)
    found = [
        shares.refresh(one, sizes, lambda _: speeds, time) for one, time in zip(before, times, strict=True)
    ]
    assert len({one.weights for one in found}) == 1
    return found[0]


@pytest.mark.parametrize(
    ("sizes", "times", "weights"),
    [
        ([32, 32, 32], [1000, 4000, 4000], (1.0, 0.25, 0.25)),
        ([32, 32, 32], [1000, 1040, 980], (1.0, 1.0, 1.0)),  # no step would be 5 % shorter
        ([64, 16, 16], [2000, 2000, 1000], (1.0, 0.25, 0.5)),
        ([32, 32], [1000, 0], (1.0, 1.0)),  # who could not measure counts as the slowest
        ([32, 32, 32], [1000, 4000, 0], (1.0, 0.25, 0.25)),
        ([32, 32], [0, 0], (1.0, 1.0)),
        ([2, 1], [1000, 1400], (1.0, 1.0)),  # whole samples cannot be shared better
    ],
)
def test_shares_follow_the_time_that_ranks_need(
    sizes: list[int], times: list[int], weights: tuple[float, ...]
) -> None:
    assert refreshed(sizes, times).weights == weights


def test_they_come_to_rest_where_all_need_the_same_time_though_steps_cost_something_beside_samples() -> None:
    constant, per_sample = (40, 100, 100, 50), (1, 4, 2, 1)
    weights, sizes = (1.0,) * 4, [64] * 4
    for _ in range(5):
        times = [c + s * size for c, s, size in zip(constant, per_sample, sizes, strict=True)]
        weights = refreshed(sizes, times, weights).weights
        sizes = batch_sizes(256, weights)
    times = [c + s * size for c, s, size in zip(constant, per_sample, sizes, strict=True)]
    assert max(times) < 1.06 * sum(times) / 4


def test_what_a_rank_has_measured_is_known_in_the_next_round(path: Path) -> None:
    def gather(own: int) -> list[int]:
        return [own or 7, 4 * (own or 7), 0]

    equal = Shares((1.0, 1.0, 1.0), 2, 3, given=False)
    assert shares.refresh(equal, [8, 8, 8], lambda own: [own] * 3) == equal, "nothing is known yet"
    assert shares.refresh(equal, [8, 8, 8], gather, 1000).weights == (0.25, 1.0, 0.25)
    speed = int(Path(f"{path}.speed.2").read_text())
    assert speed == 8 * shares.PER_SPEED // 1000
    heard: list[int] = []
    shares.refresh(equal, [8, 8, 8], lambda own: heard.append(own) or [own] * 3)
    assert heard == [speed]
    shares.refresh(equal, [8, 8, 8], lambda own: heard.append(own) or [own] * 3, -1000)
    assert (heard.pop(), int(Path(f"{path}.speed.2").read_text())) == (0, speed)
    for text in ("", "x", "-5", "9" * 100):
        Path(f"{path}.speed.2").write_text(text)
        shares.refresh(equal, [8, 8, 8], lambda own: heard.append(own) or [own] * 3)
    assert all(0 <= own < 2**63 for own in heard)
