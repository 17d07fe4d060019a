"""How what several people gave becomes the spec of one group: the first to give a field fixes it."""

from collections.abc import Mapping
from dataclasses import replace

from hetrdzv.core.model import SPEC_FIELDS, OnJoin
from hetrdzv.core.work import Work
from hetrdzv.errors import InvalidSpec, SpecConflict


def fix_spec(work: Work, given: Mapping[str, object], *, final: bool) -> None:
    """Compare given fields with what was fixed before, take over the others.

    Args:
        final: whether this settles the whole spec (an agent with a script, or a person's `PUT`).

    Raises:
        InvalidSpec: a field that does not exist, a value out of range, bounds that contradict each other.
        SpecConflict: a field that was fixed to another value.
    """
    group = work.group
    values = {name: _value(name, value) for name, value in given.items()}
    news: dict[str, object] = {}
    for name, value in values.items():
        old = getattr(group.spec, name)
        if value == old:
            continue
        if (group.spec_fixed or name in group.given) and not (name == "command" and old is None):
            raise SpecConflict(
                f"group '{group.group_id}' has {name}={_shown(old)}, and {name}={_shown(value)} was given: "
                f"give the same value, leave it out, or use another group"
            )
        news[name] = value
    if group.spec_fixed and not news:
        return
    spec = replace(group.spec, **news)  # type: ignore[arg-type]
    work.change(spec=spec, given=group.given.union(values), spec_fixed=group.spec_fixed or final)


def _value(name: str, value: object) -> object:
    if name not in SPEC_FIELDS:
        raise InvalidSpec(f"a group has no field '{name}'; its fields are {', '.join(SPEC_FIELDS)}")
    if name == "command" and isinstance(value, list | tuple):
        return tuple(str(word) for word in value)
    if name == "on_join":
        try:
            return OnJoin(str(value))
        except ValueError:
            choices = " or ".join(OnJoin)
            raise InvalidSpec(f"on_join is {_shown(value)}, but must be {choices}") from None
    return value


def _shown(value: object) -> str:
    match value:
        case None:
            return "none"
        case tuple():
            return repr(" ".join(str(word) for word in value))
        case float():
            return f"{value:g}"
        case _:
            return str(value)
