"""Credentials in addresses: the one filter, and where they belong instead.

What we record (spec.yml, lab.yml, a lab's address, a job) is refused with a credential in it, and
the error names where it belongs. What others made is filtered, and so is what we print. Settings of
indexes, mirrors and proxies may hold logins: they are used, and never recorded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from provision_runtime.report.credentials import public_document as public_document
from provision_runtime.report.credentials import without_credentials as without_credentials
from provision_runtime.report.credentials import without_login as without_login

_ADDRESS = r"[A-Za-z][A-Za-z0-9+.-]*://[^\s`'\"]+?(?=::|$)"
# The token of a channel below conda's channel alias; a folder of a wheel is none.
_ALIAS_TOKEN = r"^t/[^/\s]+/(?!.*\.whl$)"


def public_request(text: str) -> str:
    """A requirement, a channel or an address without its credentials."""
    return re.sub(_ALIAS_TOKEN, "", without_credentials(text))


def credential_problem(text: str) -> str | None:
    """What credential a requirement, a channel or an address holds, and where it belongs; None if it
    holds none."""
    public = public_request(text)
    if public == text:
        return None
    if re.match(_ALIAS_TOKEN, text):
        return _channel_token_problem(public, f"https://HOST/{public}")
    match = re.search(_ADDRESS, public)
    address = match[0] if match else public
    if without_login(text) != text:
        return f"`{public}` was given with a login in it. {_login_advice(address)}"
    if "/t/" in text and "?" not in text and "#" not in text:
        return _channel_token_problem(public, address)
    return (
        f"`{public}` was given with a token in its query. Download the file and name that; or, where "
        f"the server takes a login too: {_login_advice(address)}"
    )


def credential_problems(document: Any) -> Iterator[str]:
    """The problems of every text in a document of YAML."""
    if isinstance(document, str):
        problem = credential_problem(document)
        if problem:
            yield problem
    elif isinstance(document, dict):
        yield from credential_problems([*document, *document.values()])
    elif isinstance(document, (list, tuple)):
        for item in document:
            yield from credential_problems(item)


def _login_advice(address: str) -> str:
    try:
        parts = urlsplit(address)
    except ValueError as error:
        return f"The address is wrong too: {error}."
    if "://" not in address:
        return f"`docker login {address.partition('/')[0]}` records it."
    if parts.scheme.lower().endswith("ssh"):
        return "Leave the password out, and give your public key to that host."
    return (
        f"Write `machine {parts.hostname} login USER password PASSWORD` into ~/.netrc "
        "(chmod 600), which git, uv and provision read, and name the address without it."
    )


def _channel_token_problem(public: str, address: str) -> str:
    parts = urlsplit(address.partition("::")[0])
    address, with_token = parts.geturl(), parts._replace(path=f"/t/...{parts.path}").geturl()
    return (
        f"`{public}` was given with a channel's token in it. Leave the token out, and write it "
        "for the `...` into ~/.config/provision/settings.yml (chmod 600), as a mirror: "
        f'`mirrors: ["{address}={with_token}"]`.'
    )
