"""Credentials in addresses: logins, tokens in queries and fragments, and tokens of conda channels
(`/t/TOKEN/`). Nothing that we write, print or send holds them. The host uses the same.

References to variables (`${TOKEN}`) are no credentials, nor is the user of an ssh address.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

# Of local files nothing is secret.
_ADDRESS = re.compile(r"(?<!file)://\S*")
# Up to the last @ before the path: a user's name may be an e-mail address. What follows a colon and
# is no port is a password, whatever it holds. uv reads https:/ as https://. Lengths are limited, so
# that no text takes long.
_LOGIN = re.compile(
    r"(?P<scheme>(?:ssh|sftp)?://|(?<=http):/|(?<=https):/)(?![/\[])"
    r"(?P<login>[^/\s?#\"<>]*(?=@)|[^/\s?#:@\"<>]*:(?!\d+(?![\w@%!$&*+=~.-])|[/\s?#]|$)[^\s@]{0,500})@",
    re.I,
)
# As people write it before a registry: user:password@host/name.
_BARE_LOGIN = re.compile(
    r"(?<![\w.+%/:@-])(?P<scheme>)(?P<login>[\w.+%-]+:[^\s@/]{1,500})@"
    r"(?=[\w-]+([.:][\w-]+)+/|localhost/)"
)
_ENCODED_LOGIN = re.compile(r"(%3A%2F%2F)(?:(?!%2F|%3F|%23|%40)[^/\s?&#])*%40", re.I)
_PARAMETERS = re.compile(r"(?P<mark>[?#])(?P<parameters>[^?#\s\"'`<>\\]*)")
# As the names of GitHub, GitLab, Azure (sig), S3, Google Cloud Storage and CloudFront end, in lower
# case and without separators.
_SECRET_NAME = re.compile(
    r"(token|secret|password|passwd|passphrase|pwd|signature|credentials?|jwt|authorization"
    r"|(api|access|secret|private|account|shared|subscription|function)key(id)?)$"
    r"|^(sig|key|auth|oauth|pass|pat|hmac|sas|session|googleaccessid|keypairid)$"
)
_CHANNEL_TOKEN = re.compile(r"/t/(?P<token>[^/\s?#]+)(?=(?:/(?P<next>[^/\s?#]*))?)")
_REFERENCES = re.compile(r"(\$+(\w+|\{\w+\}))+|\.+")


def without_credentials(text: str) -> str:
    """The text, with every address in it as others may see it."""
    if ":" not in text and "%" not in text:
        return text
    return _ADDRESS.sub(_without_tokens, _ENCODED_LOGIN.sub(r"\1", without_login(text)))


def without_login(text: str) -> str:
    """The same with logins alone taken out: tokens in paths and queries stay."""
    if "@" not in text:
        return text
    return _BARE_LOGIN.sub(_public_login, _LOGIN.sub(_public_login, text))


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
    if login == "git" or _REFERENCES.fullmatch(password if separator else user):
        return match[0]
    if not scheme.lower().startswith("s"):
        return scheme
    return f"{scheme}{user}@"


def _without_tokens(match: re.Match[str]) -> str:
    return _CHANNEL_TOKEN.sub(_public_path, _PARAMETERS.sub(_public_parameters, match[0]))


def _public_parameters(match: re.Match[str]) -> str:
    parameters = re.split("[&;]", match["parameters"])
    public = [parameter for parameter in parameters if not _is_secret(parameter)]
    if len(public) == len(parameters):
        return match[0]
    return match["mark"] + "&".join(public) if public else ""


def _is_secret(parameter: str) -> bool:
    name, _, value = parameter.partition("=")
    plain_name = re.sub(r"[^a-z0-9]", "", unquote(name).lower())
    return bool(value and _SECRET_NAME.search(plain_name) and not _REFERENCES.fullmatch(value))


def _public_path(match: re.Match[str]) -> str:
    """Indexes have folders by first letter (`/t/torch/torch-2.3.whl`), forums numbered threads."""
    token, following = match["token"], match["next"] or ""
    project = re.sub(r"[-_.]", "", token).lower()
    is_project = project[:1] == "t" and re.sub(r"[-_.]", "", following).lower().startswith(project)
    if is_project or following.isdigit() or _REFERENCES.fullmatch(token):
        return match[0]
    return ""
