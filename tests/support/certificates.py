"""Certificates for tests, made by the openssl command: self-signed ones for 127.0.0.1 and for a client."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Pair:
    """A certificate that only itself vouches for, and its key."""

    cert: Path
    key: Path

    def server(self, ask: Path | None = None, alpn: tuple[str, ...] = ()) -> ssl.SSLContext:
        """What a server with this certificate uses; with `ask` a client must show one that this file vouches for."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.cert, self.key)
        if alpn:
            context.set_alpn_protocols(list(alpn))
        if ask is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            context.load_verify_locations(ask)
        return context


def make_pair(folder: Path, name: str, passphrase: str | None = None) -> Pair:
    """A new pair in `folder`; its key is encrypted when there is a passphrase."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make a certificate")
    pair = Pair(folder / f"{name}.pem", folder / f"{name}.key")
    command = f"openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -days 2 -subj /CN={name}"
    secret = ["-passout", f"pass:{passphrase}"] if passphrase else ["-nodes"]
    files = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(pair.key), "-out", str(pair.cert)]
    subprocess.run([*command.split(), *secret, *files], check=True, capture_output=True)
    return pair
