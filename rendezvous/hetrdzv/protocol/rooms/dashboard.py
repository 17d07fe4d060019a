"""How a browser is signed in."""

from dataclasses import dataclass

from hetrdzv.protocol.http.route import Role, Route


@dataclass(frozen=True, slots=True, kw_only=True)
class SignInReply:
    """`POST /v1/sign-in-codes`: where a browser has to go on this server to be signed in to the dashboard.

    Attributes:
        path: with a code that works once; without one where nobody needs to sign in.
        expires_in_s: how long it works (seconds); None: always.
    """

    path: str
    expires_in_s: float | None = None


SIGN_IN_CODE = Route("POST", "/v1/sign-in-codes", Role.READ, SignInReply, scoped=True, once=True)
