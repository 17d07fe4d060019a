"""hetserver's settings: a flag for each."""

import click
import pytest
from click.testing import CliRunner

from hetrdzv.core.commands import Cancel, Put
from hetrdzv.settings import Settings, flags
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
    flag = f"--{name.replace('_', '-')}"
    assert getattr(settings_of(flag, "100").limits, name) == 100
    for wrong in ("", "-1", "7d", "nan", "inf", "400000000"):
        with pytest.raises(ValueError, match="Invalid value"):
            settings_of(flag, wrong)


async def test_a_finished_group_is_kept_for_as_long_as_was_told() -> None:
    clock = HandClock()
    async with serving(clock=clock, limits=settings_of("--keep-finished-s", "120").limits) as (
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
