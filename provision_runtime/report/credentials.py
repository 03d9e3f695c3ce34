"""Credentials in addresses: logins, tokens in queries and fragments, and tokens of conda channels
(`/t/TOKEN/`). Nothing that we write, print or send holds them. The host uses the same.

References to variables (`${TOKEN}`) are no credentials, nor is the user of an ssh address.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

# Patterns are compiled at their first use: most processes print no address, and it takes 2 ms.
# Of local files nothing is secret.
_ADDRESS = r"(?<!file)://\S*"
# Up to the last @ before the path: a user's name may be an e-mail address. What follows a colon and
# is no port is a password, whatever it holds. uv reads https:/ as https://. Lengths are limited, so
# that no text takes long.
_LOGIN = (
    r"(?i)(?P<scheme>(?:ssh|sftp)?://|(?<=http):/|(?<=https):/)(?![/\[])"
    r"(?P<login>[^/\s?#\"<>]*(?=@)|[^/\s?#:@\"<>]*:(?!\d+(?![\w@%!$&*+=~.-])|[/\s?#]|$)[^\s@]{0,500})@"
)
# As people write it before a registry: user:password@host/name.
_BARE_LOGIN = (
    r"(?<![\w.+%/:@-])(?P<scheme>)(?P<login>[\w.+%-]+:[^\s@/]{1,500})@"
    r"(?=[\w-]+([.:][\w-]+)+/|localhost/)"
)
_ENCODED_LOGIN = r"(?i)(%3A%2F%2F)(?:(?!%2F|%3F|%23|%40)[^/\s?&#])*%40"
_PARAMETERS = r"(?P<mark>[?#])(?P<parameters>[^?#\s\"'`<>\\]*)"
# As the names of GitHub, GitLab, Azure (sig), S3, Google Cloud Storage and CloudFront end, in lower
# case and without separators.
_SECRET_NAME = (
    r"(token|secret|password|passwd|passphrase|pwd|signature|credentials?|jwt|authorization"
    r"|(api|access|secret|private|account|shared|subscription|function)key(id)?)$"
    r"|^(sig|key|auth|oauth|pass|pat|hmac|sas|session|googleaccessid|keypairid)$"
)
_CHANNEL_TOKEN = r"/t/(?P<token>[^/\s?#]+)(?=(?:/(?P<next>[^/\s?#]*))?)"
_REFERENCES = r"(\$+(\w+|\{\w+\}))+|\.+"


def without_credentials(text: str) -> str:
    """The text, with every address in it as others may see it."""
    if ":" not in text and "%" not in text:
        return text
    plain = re.sub(_ENCODED_LOGIN, r"\1", without_login(text))
    return re.sub(_ADDRESS, _without_tokens, plain)


def without_login(text: str) -> str:
    """The same with logins alone taken out: tokens in paths and queries stay."""
    if "@" not in text:
        return text
    return re.sub(_BARE_LOGIN, _public_login, re.sub(_LOGIN, _public_login, text))


def public_document(value: Any) -> Any:
    """A document of JSON, with every text in it as `without_credentials` has it."""
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, dict):
        return {public_document(key): public_document(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [public_document(item) for item in value]
    return value


def _public_login(match: re.Match[str]) -> str:
    scheme, login = match["scheme"], match["login"]
    user, separator, password = login.partition(":")
    if login == "git" or re.fullmatch(_REFERENCES, password if separator else user):
        return match[0]
    if not scheme.lower().startswith("s"):
        return scheme
    return f"{scheme}{user}@"


def _without_tokens(match: re.Match[str]) -> str:
    text = re.sub(_PARAMETERS, _public_parameters, match[0])
    return re.sub(_CHANNEL_TOKEN, _public_path, text)


def _public_parameters(match: re.Match[str]) -> str:
    parameters = re.split("[&;]", match["parameters"])
    public = [parameter for parameter in parameters if not _is_secret(parameter)]
    if len(public) == len(parameters):
        return match[0]
    return match["mark"] + "&".join(public) if public else ""


def _is_secret(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    plain_name = re.sub(r"[^a-z0-9]", "", unquote(name).lower())
    return bool(
        value and re.search(_SECRET_NAME, plain_name) and not re.fullmatch(_REFERENCES, value)
    )


def _public_path(match: re.Match[str]) -> str:
    """Indexes have folders by first letter (`/t/torch/torch-2.3.whl`), forums numbered threads."""
    token, following = match["token"], match["next"] or ""
    project = re.sub(r"[-_.]", "", token).lower()
    is_project = project[:1] == "t" and re.sub(r"[-_.]", "", following).lower().startswith(project)
    if is_project or following.isdigit() or re.fullmatch(_REFERENCES, token):
        return match[0]
    return ""
