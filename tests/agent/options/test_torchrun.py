"""The table of torchrun's flags against the parser of the torch that is installed."""

from argparse import Action

import pytest
from torch.distributed.run import get_args_parser

from hetagent.cli.flags import parser
from hetagent.options.torchrun import ACCEPTED, REFUSED, dest, spellings, variable

NOT_FLAGS = {"help", "training_script", "training_script_args"}

VALUES: dict[str, tuple[str, object]] = {
    "--max-restarts": ("7", 7),
    "--monitor-interval": ("0.5", 0.5),
    "--duplicate-stdout-filters": ("a,,b,c", ["a,b", "c"]),
    "--duplicate-stderr-filters": ("a", ["a"]),
    "--numa-binding": ("node", "node"),
    "--shutdown-timeout": ("9", 9),
}
"""A text for each flag that does not take any, and what torchrun makes of it."""


def torchruns() -> dict[str, Action]:
    """The flags of the installed torchrun; made anew, since it reads the environment."""
    return {
        max(action.option_strings, key=lambda one: (len(one), "_" not in one)): action
        for action in get_args_parser()._actions
        if action.dest not in NOT_FLAGS
    }


def both(*argv: str) -> tuple[dict[str, object], dict[str, object]]:
    """What torchrun and hetagent read from the same words."""
    theirs, ours = (made.parse_args([*argv, "train.py"]) for made in (get_args_parser(), parser()))
    return vars(theirs), vars(ours)


SHARED = sorted(ACCEPTED.keys() & torchruns().keys())


def test_every_flag_of_torchrun_is_accepted_or_refused() -> None:
    assert set(torchruns()) - ACCEPTED.keys() - REFUSED.keys() == set()
    assert not ACCEPTED.keys() & REFUSED.keys()


@pytest.mark.parametrize("flag", sorted(torchruns()))
def test_its_spellings_are_known(flag: str) -> None:
    assert set(torchruns()[flag].option_strings) == set(spellings(flag))
    assert torchruns()[flag].dest == dest(flag)


@pytest.mark.parametrize("flag", SHARED)
def test_a_value_means_the_same(flag: str) -> None:
    text, value = VALUES.get(flag, ("some", "some"))
    words = [] if ACCEPTED[flag].switch else [text]
    for spelling in spellings(flag):
        theirs, ours = (found[dest(flag)] for found in both(spelling, *words))
        assert theirs == (True if ACCEPTED[flag].switch else value)
        assert (list(ours) if isinstance(ours, tuple) else ours) == theirs


@pytest.mark.parametrize("flag", SHARED)
def test_its_variable_means_the_same(flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text, _ = VALUES.get(flag, ("1", None))
    if not ACCEPTED[flag].variable:
        monkeypatch.setenv(variable(flag), text)
        assert both()[0][dest(flag)] is both()[1][dest(flag)] is None
        return
    for value in (text, "0"):
        monkeypatch.setenv(variable(flag), value)
        theirs, ours = (found[dest(flag)] for found in both())
        assert (list(ours) if isinstance(ours, tuple) else ours) == theirs


@pytest.mark.parametrize("flag", SHARED)
def test_torchruns_default_is_ours_where_we_have_none_of_our_own(flag: str) -> None:
    theirs, ours = (found[dest(flag)] for found in both())
    if ACCEPTED[flag].default is not None:
        assert (list(ours) if isinstance(ours, tuple) else ours) == theirs
    else:
        assert ours is None


@pytest.mark.parametrize("flag", SHARED)
def test_every_value_of_torchruns_choices_is_one_of_ours(flag: str) -> None:
    assert set(torchruns()[flag].choices or ()) <= set(ACCEPTED[flag].choices or ())
