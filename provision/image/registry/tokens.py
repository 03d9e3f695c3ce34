"""Who we are to a registry: a user with a password, or the token that its token server gives us for them.

Sources: distribution's "Token Authentication Specification" and "OAuth2 Token Authentication".
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from provision.core.errors import ToolFailed
from provision.image.docker_sdk import Login, login
from provision.image.registry.reference import Target
from provision.image.registry.responses import Answer, Broken, insist, read, refused

TIMEOUT_S = (10.0, 120.0)  # to connect; between two signs of life


def authorization(session: Any, to: Target, answer: Answer) -> str:
    """The Authorization header that a 401 asks for. ToolFailed where the registry will have none of ours, or would make us say it aloud."""
    from requests.utils import parse_dict_header

    kind, _, parameters = answer.headers.get("WWW-Authenticate", "").partition(" ")
    known = login(to.registry)
    if kind.lower() == "basic" and known is not None and known.user:
        return f"Basic {base64.b64encode(f'{known.user}:{known.secret}'.encode()).decode()}"
    if kind.lower() != "bearer":
        raise refused(to, "log in", answer)
    asked: dict[str, str] = parse_dict_header(parameters)  # type: ignore[no-untyped-call]
    realm = asked.pop("realm", "")
    if urlsplit(to.base).scheme == "https" and urlsplit(realm).scheme != "https":
        raise ToolFailed(
            [to.registry, "log in"],
            answer.status,
            f"it asks for our password in the clear, at {realm}",
        )
    asked.setdefault("scope", f"repository:{to.repository}:pull,push")
    wanted = {key: asked[key] for key in ("service", "scope") if asked.get(key)}
    return f"Bearer {_token(to, insist(to, 'log in', lambda: _ask(session, to, realm, wanted, known), fine=(200,)))}"


def _ask(
    session: Any, to: Target, realm: str, wanted: dict[str, str], known: Login | None
) -> Answer:
    import requests

    how = {"timeout": TIMEOUT_S, "stream": True}
    try:
        if known is not None and not known.user:
            form = {
                "grant_type": "refresh_token",
                "refresh_token": known.secret,
                "client_id": "provision",
                **wanted,
            }
            response = session.post(realm, data=form, auth=as_known(None), **how)
        else:
            response = session.get(
                realm,
                params=wanted,
                auth=(known.user, known.secret) if known else as_known(None),
                **how,
            )
        with response:
            return read(to, response)
    except requests.RequestException as error:
        raise Broken(str(error)) from error


def _token(to: Target, told: Answer) -> str:
    try:
        document = json.loads(told.content)
        return str(document.get("token") or document["access_token"])
    except (ValueError, LookupError, AttributeError, RecursionError) as error:
        raise ToolFailed(
            [to.registry, "log in"],
            told.status,
            f"no token comes from {told.url.partition('?')[0]}",
        ) from error


def as_known(authorization: str | None) -> Callable[[Any], Any]:
    """What requests calls to say who asks. With a header alone it would put what it finds in ~/.netrc in its place."""

    def tell(request: Any) -> Any:
        if authorization is not None:
            request.headers["Authorization"] = authorization
        return request

    return tell
