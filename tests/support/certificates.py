"""Certificates for tests, made with openssl: an authority and what it signs."""

import subprocess
from dataclasses import dataclass
from pathlib import Path

LOOPBACK = "IP:127.0.0.1,DNS:localhost"


def put_file(path: Path, content: str | bytes, mode: int = 0o600) -> Path:
    """Put another file in a file's place, as those who renew tokens and certificates do."""
    new = path.with_suffix(".new")
    new.write_bytes(content.encode() if isinstance(content, str) else content)
    new.chmod(mode)
    return new.replace(path)


@dataclass(frozen=True, slots=True)
class Tls:
    """An authority's certificate, and a certificate that it signed with its key."""

    ca: Path
    cert: Path
    key: Path


class Authority:
    """A certificate authority.

    Args:
        folder: for its files; created if missing.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._folder = folder
        self.ca = folder / "ca.pem"
        key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
        self._new_key = key
        self._run(
            "req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=test CA", "-days", "2"
        )

    def issue(self, name: str, names: str = LOOPBACK, days: int = 2) -> Tls:
        """Issue a certificate for servers and clients; with negative `days` it has expired."""
        self._run(
            "req", *self._new_key, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}"
        )
        (self._folder / f"{name}.ext").write_text(
            f"subjectAltName={names}\nextendedKeyUsage=serverAuth,clientAuth\n"
        )
        signing = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", f"{name}.ext")
        self._run("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signing, "-days", str(days))
        (self._folder / f"{name}.key").chmod(0o600)
        return Tls(self.ca, self._folder / f"{name}.pem", self._folder / f"{name}.key")

    def _run(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=self._folder, check=True, capture_output=True)
