"""The table of torchrun's flags against the parser of the torch that is installed."""

import signal
from argparse import Action

import pytest
from torch.distributed.run import get_args_parser

from hetagent.cli.flags import parse_flags
from hetagent.options.torchrun import ACCEPTED, REFUSED, dest, spellings, variable
from hetagent.options.values import parse_switch

NOT_FLAGS = {"help", "training_script", "training_script_args"}

VALUES: dict[str, tuple[str, object, object]] = {
    "--nnodes": ("2:3", "2:3", (2, 3)),
    "--max-restarts": ("7", 7, 7),
    "--monitor-interval": ("0.5", 0.5, 0.5),
    "--redirects": ("1", "1", 1),
    "--tee": ("0:1", "0:1", {0: 1}),
    "--local-ranks-filter": ("0,1", "0,1", frozenset({0, 1})),
    "--signals-to-handle": ("SIGTERM", "SIGTERM", (signal.SIGTERM,)),
    "--duplicate-stdout-filters": ("a,,b,c", ["a,b", "c"], ("a,b", "c")),
    "--duplicate-stderr-filters": ("a", ["a"], ("a",)),
    "--numa-binding": ("node", "node", "node"),
    "--shutdown-timeout": ("9", 9, 9),
}
"""A text for each flag that does not take any, what torchrun makes of it, and what hetagent does."""


def torchruns() -> dict[str, Action]:
    """The flags of the installed torchrun; made anew, since it reads the environment."""
    return {
        max(action.option_strings, key=lambda one: (len(one), "_" not in one)): action
        for action in get_args_parser()._actions
        if action.dest not in NOT_FLAGS
    }


SHARED = sorted(ACCEPTED.keys() & torchruns().keys())


def test_every_flag_of_torchrun_is_accepted_or_refused() -> None:
    assert set(torchruns()) - ACCEPTED.keys() - REFUSED.keys() == set()
    assert not ACCEPTED.keys() & REFUSED.keys()


@pytest.mark.parametrize("flag", sorted(torchruns()))
def test_its_spellings_are_known(flag: str) -> None:
    assert set(torchruns()[flag].option_strings) == set(spellings(flag))
    assert torchruns()[flag].dest == dest(flag)


@pytest.mark.parametrize("flag", SHARED)
def test_a_value_means_the_same_in_each_spelling_and_in_its_variable(
    flag: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_switch = ACCEPTED[flag].read is parse_switch
    text, theirs, ours = ("1", True, True) if is_switch else VALUES.get(flag, ("some", "some", "some"))
    for spelling in spellings(flag):
        words = [spelling, "train.py"] if is_switch else [spelling, text, "train.py"]
        assert getattr(get_args_parser().parse_args(words), dest(flag)) == theirs
        assert getattr(parse_flags(words, {}), dest(flag)) == ours
    default = getattr(get_args_parser().parse_args(["train.py"]), dest(flag))
    if ACCEPTED[flag].default is not None:  # else hetagent has one of its own, or torchrun has none either
        assert str(default).strip("[]") == str(getattr(parse_flags(["train.py"], {}), dest(flag))).strip("()")
    unset = getattr(parse_flags(["train.py"], {}), dest(flag))
    monkeypatch.setenv(variable(flag), text)
    has_one = getattr(get_args_parser().parse_args(["train.py"]), dest(flag)) != default
    assert getattr(get_args_parser().parse_args(["train.py"]), dest(flag)) == (theirs if has_one else default)
    assert getattr(parse_flags(["train.py"], {variable(flag): text}), dest(flag)) == (
        ours if has_one else unset
    )


@pytest.mark.parametrize("flag", SHARED)
def test_every_value_of_torchruns_choices_is_one_of_ours(flag: str) -> None:
    assert set(torchruns()[flag].choices or ()) <= set(ACCEPTED[flag].choices or ())
