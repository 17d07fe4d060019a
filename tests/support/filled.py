"""Values of which no field has its default, made from their types."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, cast, get_args, get_origin, get_type_hints

from hetrdzv.core.model import Group, Node
from hetrdzv.protocol.reasons.reason import Reason, ReasonCode
from hetrdzv.protocol.settings import GroupSpec
from hetrdzv.protocol.states import NodePhase

GIVEN: Mapping[type, Mapping[str, Any]] = {
    Group: {"group_id": "g"},
    GroupSpec: {"rank_order": "topology:zone,rack", "master": "public=yes"},
    Node: {"phase": NodePhase.LOST},
    Reason: {"code": ReasonCode.NODE_LOST, "cause": Reason(code=ReasonCode.LEASE_EXPIRED, message="late")},
}
"""The fields that a type of its own does not describe."""


def filled(kind: Any, default: object = None) -> Any:
    """A value of a type that differs from a default, and so do all fields in it."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return filled(inner[0], default)
    if origin in (Union, UnionType):
        return filled(next(one for one in inner if one is not NoneType), default)
    if origin is tuple:
        return tuple(filled(one) for one in inner if one is not ...)
    if origin is frozenset:
        return frozenset({filled(inner[0])})
    if origin is Mapping:
        return {filled(inner[0]): filled(inner[1])}
    if is_dataclass(kind):
        types, given = get_type_hints(kind, include_extras=True), GIVEN.get(cast(type, kind), {})
        return kind(**{f.name: given.get(f.name) or filled(types[f.name], f.default) for f in fields(kind)})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return next(one for one in kind if one != default)
    return {bool: default is not True, int: 3, float: 2.5, str: "gpu0", Any: "gpu0"}[kind]
