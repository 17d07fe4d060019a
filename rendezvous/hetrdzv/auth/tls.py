"""TLS for clients and servers: which certificates each shows and trusts, and what a failure means."""

import logging
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hetrdzv.auth.files import ReloadableFiles
from hetrdzv.protocol.errors import HetError

logger = logging.getLogger(__name__)


class TlsError(HetError, code="tls"):
    """A certificate, key or CA file that cannot be used."""


# -- the client's side -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ClientTls:
    """What a client trusts and shows."""

    ca_cert: Path | None = (
        None  # of the CA that must have signed the server's certificate; None: any public CA
    )
    cert: Path | None = None
    key: Path | None = None  # may be in the file of the certificate

    @classmethod
    def from_flags(cls, flags: Mapping[str, Path | None], environ: Mapping[str, str]) -> "ClientTls":
        """From `--ca-cert`, `--client-cert` and `--client-key`, else from the environment."""
        paths: list[Path | None] = []
        names: list[str] = []
        for flag in ("ca_cert", "client_cert", "client_key"):
            variable, given = f"HET_{flag.upper()}", flags.get(flag)
            names.append(f"--{flag.replace('_', '-')}" if given or not environ.get(variable) else variable)
            path = given or environ.get(variable)
            paths.append(Path(path).absolute() if path else None)
        made = cls(*paths)
        if made != cls():  # loading the public CAs takes 30 ms
            made.make_context(*names)
        return made

    def make_context(
        self, ca_flag: str = "--ca-cert", cert_flag: str = "--client-cert", key_flag: str = "--client-key"
    ) -> ssl.SSLContext:
        """For httpx. Errors call the files by these flags."""
        if self.key is not None and self.cert is None:
            raise TlsError(f"{key_flag} is the key of a certificate: give {cert_flag} too")
        if self.ca_cert is None:
            import httpx  # only clients need it

            context = httpx.create_ssl_context(trust_env=False)
        else:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            _load_ca_file(context, self.ca_cert, ca_flag)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.cert is not None:
            _load_certificate(context, self.cert, self.key, cert_flag, key_flag)
        return context


def explain_tls_error(error: ssl.SSLError, tls: ClientTls) -> str:
    """What a TLS failure means, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        by = f"a CA in {tls.ca_cert}" if tls.ca_cert is not None else "a public CA"
        known = {
            9: "its certificate is not valid yet: compare the clocks of both machines",
            10: "its certificate has expired: renew it there",
            **dict.fromkeys((62, 64), "use a name that is in the certificate, or replace it"),
        }
        unsigned = f"its certificate is not signed by {by}: give --ca-cert with the CA that signed it"
        advice = known.get(error.verify_code, unsigned)
        return f"TLS error: {error.verify_message.rstrip('.')}; {advice}"
    reason = _tls_error_reason(error)
    hint = ""
    if is_plaintext_reply(error):
        hint = "; it does not speak TLS: use http://"
    elif "certificate required" in reason:
        hint = "; this server requires a client certificate: give --client-cert and --client-key"
    elif "alert" in reason and ("certificate" in reason or "unknown ca" in reason):
        hint = "; it rejects our --client-cert: was that signed by the CA in its --tls-client-ca?"
    return f"TLS error: {reason}{hint}"


def is_plaintext_reply(error: ssl.SSLError) -> bool:
    """Whether what came from the other side is no TLS."""
    return _tls_error_reason(error) in ("wrong version number", "record layer failure", "http request")


def _tls_error_reason(error: ssl.SSLError) -> str:
    return (error.reason or "handshake failed").replace("_", " ").lower()


# -- the server's side -------------------------------------------------------------------------------------


class ServerTls(ReloadableFiles):
    """What a server shows: new connections see a changed certificate. With a `client_ca` its clients need one, too."""

    def __init__(self, cert: Path, key: Path | None, client_ca: Path | None) -> None:
        super().__init__([cert, key or cert], "the previous certificate stays in use")
        self._cert, self._key = cert, key
        self.context = _server_context()
        _load_certificate(self.context, cert, key, "--tls-cert", "--tls-key")
        if client_ca is not None:
            _load_ca_file(self.context, client_ca, "--tls-client-ca")
            self.context.verify_mode = ssl.CERT_REQUIRED

    def reload(self) -> None:
        """Take the new certificate, if it can be used."""
        for context in (_server_context(), self.context):  # the first is a trial
            _load_certificate(context, self._cert, self._key, "--tls-cert", "--tls-key")
        logger.info("reloaded certificate %s; new connections see it", self._cert)


def _server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context


def _require_readable(flag: str, path: Path) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise TlsError(f"{flag} {path} cannot be read: {error.strerror}") from None


def _load_ca_file(context: ssl.SSLContext, path: Path, flag: str) -> None:
    _require_readable(flag, path)
    try:
        context.load_verify_locations(path)
    except (ssl.SSLError, OSError) as error:
        raise TlsError(f"{flag} {path} is not a PEM file of certificates ({error})") from None


def _load_certificate(
    context: ssl.SSLContext, cert: Path, key: Path | None, cert_flag: str, key_flag: str
) -> None:
    """Load a certificate and its key."""
    _require_readable(cert_flag, cert)
    if key is not None:
        _require_readable(key_flag, key)

    def no_password() -> str:  # otherwise OpenSSL would ask for it on the terminal
        raise TlsError(f"the key of {cert_flag} {cert} is encrypted: use one without a password, mode 0600")

    where = f"{cert_flag} {cert}" + (f" and {key_flag} {key}" if key is not None else "")
    try:
        context.load_cert_chain(cert, key, no_password)
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise TlsError(
                f"{where} do not belong together: this is the key of another certificate"
            ) from None
        hint = f"; if it does not contain the key, give {key_flag}" if key is None else ""
        raise TlsError(
            f"{where}: not a certificate with its key in PEM ({error.reason or error}){hint}"
        ) from None
