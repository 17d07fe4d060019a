"""hetserver's settings: durations, and a flag for each setting."""

import click
import pytest
from click.testing import CliRunner

from hetrdzv.core.commands import Cancel, Put
from hetrdzv.settings import Duration, Settings, flags, shown_duration
from tests.support.served import HandClock, serving, settled


def settings_of(*arguments: str) -> Settings:
    """What a command line becomes."""
    found: list[Settings] = []

    @click.command()
    @flags()
    def command(**values: object) -> None:
        found.append(Settings.of(values))

    result = CliRunner().invoke(command, [*arguments])
    if result.exit_code:
        raise ValueError(result.output.strip().splitlines()[-1])
    return found[0]


def test_without_flags_all_is_as_the_settings_say() -> None:
    assert settings_of() == Settings()


@pytest.mark.parametrize("name", ["keep_finished_s", "keep_idle_s"])
def test_each_limit_has_a_flag(name: str) -> None:
    flag = "--" + name.removesuffix("_s").replace("_", "-")
    value = "100s" if name.endswith("_s") else "100"
    assert getattr(settings_of(flag, value).limits, name) == 100


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0),
        ("90s", 90),
        ("1.5m", 90),
        ("12h", 43_200),
        ("7d", 604_800),
        ("3650d", 315_360_000),
    ],
)
def test_a_duration(text: str, seconds: float) -> None:
    assert settings_of("--keep-finished", text).limits.keep_finished_s == seconds


@pytest.mark.parametrize("text", ["", "-1", "7w", "1d12h", "nan", "inf", "1e3", "3651d", "d", "7 d"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a duration from 0s to 3650d, such as 90s, 15m, 12h or 7d"):
        settings_of("--keep-finished", text)


@pytest.mark.parametrize("flag", ["--keep-finished", "--keep-idle"])
def test_no_unit_is_guessed(flag: str) -> None:
    with pytest.raises(ValueError, match=r"'90' has no unit: write 90s, 90m, 90h or 90d"):
        settings_of(flag, "90")


@pytest.mark.parametrize("seconds", [0.5, 1.0, 90.0, 3_600.0, 86_400.0, 604_800.0])
def test_a_duration_is_shown_as_it_is_given(seconds: float) -> None:
    assert Duration(0, 1e9).convert(shown_duration(seconds), None, None) == seconds


async def test_a_finished_group_is_kept_for_as_long_as_was_told() -> None:
    clock = HandClock()
    async with serving(clock=clock, limits=settings_of("--keep-finished", "2m").limits) as (
        service,
        _,
    ):
        await service.execute("g", Put({}))
        await service.execute("g", Cancel())
        clock.pass_by(service, 119)
        service._sweep(service.now())
        await settled()
        assert [group.group_id for group in service.groups()] == ["g"]
        clock.pass_by(service, 6)
        service._sweep(service.now())
        await settled()
        assert list(service.groups()) == []
