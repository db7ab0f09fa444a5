"""How a server is reached: TLS, unix socket, proxy, HTTP version, and the descriptors that many connections need."""

from __future__ import annotations

import ssl
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from engine_adapters.base import PreflightError

SPARE_DESCRIPTORS = 100  # files, the event loop and the run folder's


@dataclass(frozen=True)
class Network:
    """The defaults: TLS is verified, no proxy of the environment is followed, HTTP/1.1 over TCP.

    `insecure` believes any certificate. `ca_file` vouches for the server's, instead of the usual authorities;
    `cert_file` with `key_file` is the client's own. `trust_env` follows HTTP_PROXY and its kind.
    """

    insecure: bool = False
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    unix_socket: str | None = None
    trust_env: bool = False
    http2: bool = False

    def ssl_context(self, default: ssl.SSLContext) -> ssl.SSLContext:
        """What TLS believes, `default` unless there is a `ca_file`; PreflightError when a file can't be used."""
        try:
            context = ssl.create_default_context(cafile=self.ca_file) if self.ca_file else default
            if self.cert_file:
                context.load_cert_chain(self.cert_file, self.key_file, _refuse_to_ask)
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            named = " or ".join(f"'{file}'" for file in (self.ca_file, self.cert_file, self.key_file) if file)
            raise PreflightError(f"the certificate in {named} can't be used: {reason(error)}") from None
        if self.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def proxy_for(self, url: str, proxies: Mapping[str, str] | None = None) -> str | None:
        """The environment's proxy for `url`, as it stands there; None when none is asked for or applies.

        This machine itself is never asked for through a proxy. Raises PreflightError for what is no HTTP proxy.
        """
        if not self.trust_env or self.unix_socket:
            return None
        parts = urlsplit(url)
        known = getproxies() if proxies is None else proxies
        found = known.get(parts.scheme) or known.get("all")
        if not found or is_loopback(parts.hostname or "") or proxy_bypass(parts.hostname or ""):
            return None
        proxy = found if "://" in found else f"http://{found}"
        try:
            shown = without_credentials(proxy)
        except ValueError:
            raise PreflightError(f"the proxy that the environment names for {parts.scheme}:// is no URL") from None
        if not shown.startswith(("http://", "https://")):
            raise PreflightError(f"the proxy {shown} of the environment is neither http:// nor https://")
        return proxy


def _refuse_to_ask() -> str:
    raise ValueError("the key is encrypted, and a benchmark asks for no passphrase")


def is_loopback(host: str) -> bool:
    """Whether a host of a URL is this machine by its name or address."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def without_credentials(url: str) -> str:
    """Scheme, host and port of a URL; ValueError when it has no such parts."""
    parts = urlsplit(url)
    if not parts.hostname:
        raise ValueError("no host")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}" + (f":{parts.port}" if parts.port else "")


def reason(error: Exception) -> str:
    """The system's or OpenSSL's words, without numbers and source lines."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).lower().replace("_", " ")
    return getattr(error, "strerror", None) or str(error)


def allow_descriptors(n_connections: int, at_most: int | None = None) -> None:
    """Let this process open `n_connections` at once, and `at_most` if the system's hard limit allows it.

    Raises PreflightError when the hard limit is below the first; where limits are unknown, nothing happens.
    """
    if sys.platform == "win32":
        return
    import resource

    needed = n_connections + SPARE_DESCRIPTORS
    wished = max(n_connections, at_most or 0) + SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    if hard != unlimited and needed > hard:
        raise PreflightError(
            f"{n_connections:,} connections at once need {needed:,} open files, and this system allows {hard:,}: "
            f"raise the hard limit (ulimit -Hn {needed}) or lower the load"
        )
    target = wished if hard == unlimited else min(wished, hard)
    if soft == unlimited or target <= soft:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (OSError, ValueError):
        if needed > soft:
            raise PreflightError(f"the limit of open files can't be raised to {needed:,}: ulimit -n {needed}") from None
