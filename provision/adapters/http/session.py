"""Sessions of requests: which proxy, certificates and credentials they use."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    import requests

CONNECTIONS = 8  # more make one mirror slower, not faster
PROXY_VARIABLES = ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy")
_LOOPBACK = re.compile(r"(localhost|127\.\d+\.\d+\.\d+|\[::1\])(:\d+)?")


def is_loopback(host: str) -> bool:
    """Whether host[:port] names this machine."""
    return _LOOPBACK.fullmatch(host) is not None


def open_session(pip_settings: Mapping[str, str]) -> requests.Session:
    """A session for indexes and channels, which threads may share.

    pip_settings: pip's `proxy`, `cert` and `client-cert`, used where the environment sets none.
    """
    import requests
    from requests.adapters import HTTPAdapter

    session = requests.Session()
    session.headers["User-Agent"] = "provision"
    for scheme in ("http://", "https://"):
        session.mount(scheme, HTTPAdapter(pool_connections=CONNECTIONS, pool_maxsize=CONNECTIONS))
    bundle = pip_settings.get("cert") or os.environ.get("SSL_CERT_FILE")
    if bundle and not os.environ.get("REQUESTS_CA_BUNDLE"):
        session.verify = bundle
    if pip_settings.get("client-cert"):
        session.cert = pip_settings["client-cert"]
    proxy = pip_settings.get("proxy")
    if proxy and not any(os.environ.get(name) for name in PROXY_VARIABLES):
        session.proxies = {"http": proxy, "https": proxy}
    return session


def open_registry_session() -> requests.Session:
    """A session that sends credentials to no host but the one they are for, and takes none from
    ~/.netrc."""
    import requests

    class Session(requests.Session):
        def merge_environment_settings(self, url: Any, proxies: Any, *more: Any) -> Any:
            return super().merge_environment_settings(
                url, {**_no_proxy_for_loopback(url), **(proxies or {})}, *more
            )

        def rebuild_proxies(self, prepared_request: Any, proxies: Any) -> Any:
            """Judge each host to which a redirect leads by itself, not by the host before."""
            return super().rebuild_proxies(  # type: ignore[no-untyped-call]
                prepared_request, _no_proxy_for_loopback(prepared_request.url)
            )

        def rebuild_auth(self, prepared_request: Any, response: Any) -> None:
            old_url, new_url = response.request.url, prepared_request.url
            if self.should_strip_auth(old_url, new_url):  # type: ignore[no-untyped-call]
                prepared_request.headers.pop("Authorization", None)

    return Session()


def _no_proxy_for_loopback(url: str) -> dict[str, str]:
    """No proxy for this machine, as with Go's clients; for other hosts the environment decides."""
    return {"http": "", "https": ""} if is_loopback(urlsplit(url).netloc) else {}
