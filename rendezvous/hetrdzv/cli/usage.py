"""Runs a click command, with what is wrong with its command line in one line, as hetagent says it."""

from collections.abc import Sequence
from typing import Any

import click


class OneLine(click.Command):
    """A command of its own that complains in one line."""

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> Any:  # type: ignore[override]
        """As click's, and ends the program: 2 for a wrong command line."""
        try:
            status = super().main(args, prog_name, **{**extra, "standalone_mode": False})
        except click.UsageError as error:
            click.echo(f"{prog_name or self.name}: {wrong(error)}", err=True)
            raise SystemExit(2) from None
        except click.ClickException as error:
            click.echo(f"{prog_name or self.name}: {error.format_message()}", err=True)
            raise SystemExit(1) from None
        except click.Abort:
            raise SystemExit(130) from None
        raise SystemExit(status if isinstance(status, int) else 0)


def wrong(error: click.UsageError) -> str:
    """What is wrong with a command line, and where help is."""
    if isinstance(error, click.BadParameter) and error.ctx is not None and error.param is not None:
        error.param_hint = _typed(error.ctx, error.param)
    see = "" if error.ctx is None else f"see {error.ctx.command_path} --help"
    text = error.format_message()
    if text.endswith("?"):
        return f"{text} {see.capitalize()}"
    return f"{text.rstrip('.')}; {see}".rstrip("; ")


def _typed(ctx: click.Context, param: click.Parameter) -> str | None:
    """The variable that a wrong value comes from; click names the flag as well."""
    source = ctx.get_parameter_source(param.name or "")
    from_variable = source is click.core.ParameterSource.ENVIRONMENT
    if from_variable and isinstance(param.envvar, str):
        return param.envvar
    return f"'{param.opts[0]}'" if isinstance(param, click.Option) else None
