"""The routes of the pages, each declared once, as those of the API are in protocol/http/routes.py."""

from types import NoneType
from typing import Annotated

from annotated_types import MaxLen

from hetrdzv.protocol import bounds
from hetrdzv.protocol.http.route import Parameter, Role, Route, Size
from hetrdzv.protocol.http.routes import STACKS_WAIT_S

_GROUP = "/groups/{group_id}"
_NODE = f"{_GROUP}/nodes/{{node_id}}"
_READ, _ADMIN = Role.READ, Role.ADMIN
_IN_ROWS = Parameter("rows", Annotated[str, MaxLen(8)], "")
_OF_ROUND = (Parameter("round", bounds.Positive, None),)
_LINK = (Parameter("code", Annotated[str, MaxLen(128)], ""), Parameter("group", bounds.Id, None))

GROUPS = Route("GET", "/", _READ, str, page=True, size=Size.STREAM, scoped=True)
GROUP = Route("GET", _GROUP, _READ, str, page=True, size=Size.STREAM, takes=(_IN_ROWS,))
ASK_RESTART = Route("GET", f"{_GROUP}/restart", _ADMIN, str, page=True)
RESTART = Route("POST", f"{_GROUP}/restart", _ADMIN, NoneType, page=True)
ASK_CANCEL = Route("GET", f"{_GROUP}/cancel", _ADMIN, str, page=True)
CANCEL = Route("POST", f"{_GROUP}/cancel", _ADMIN, NoneType, page=True)
ASK_DELETE = Route("GET", f"{_GROUP}/delete", _ADMIN, str, page=True)
DELETE = Route("POST", f"{_GROUP}/delete", _ADMIN, NoneType, page=True)
OUTPUT = Route("GET", f"{_GROUP}/output", _ADMIN, str, page=True, takes=_OF_ROUND, wait_s=STACKS_WAIT_S)
STACKS = Route("GET", f"{_GROUP}/stacks", _ADMIN, str, page=True, takes=_OF_ROUND, wait_s=STACKS_WAIT_S)
ASK_DRAIN = Route("GET", f"{_NODE}/drain", _ADMIN, str, page=True)
DRAIN = Route("POST", f"{_NODE}/drain", _ADMIN, NoneType, page=True)
ASK_UNDRAIN = Route("GET", f"{_NODE}/undrain", _ADMIN, str, page=True)
UNDRAIN = Route("POST", f"{_NODE}/undrain", _ADMIN, NoneType, page=True)
SIGN_IN = Route("GET", "/sign-in", None, str, page=True, once=True, takes=_LINK)
SIGN_OUT = Route("POST", "/sign-out", _READ, NoneType, page=True, scoped=True)
STATIC = Route("GET", "/static/{name}", None, bytes, page=True)
