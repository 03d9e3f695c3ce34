"""Logins and tokens of channels and mirrors, given to rattler apart from their addresses.

rattler writes the addresses that it reads into its cache, where other users could read a password
(tried with py-rattler 0.28). It takes logins from an authentication file as well, which it reads
when a client is made.
"""

from __future__ import annotations

import json
import os
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import unquote, urlsplit

from provision.core.credentials import without_login
from provision.core.tempdirs import temporary_directory

AUTH_FILE = "RATTLER_AUTH_FILE"
# Where rattler looks for logins by itself.
DEFAULT_FILE = Path("~/.rattler/credentials.json")

_logins: dict[str, dict[str, object]] = {}  # by host, as rattler's authentication file has them
_environment_lock = threading.Lock()


def public_url(url: str) -> str:
    """The address without its login or token, which is remembered for the clients made from now
    on. rattler takes one of them for a host."""
    parts = urlsplit(url)
    token = re.match(r"/t/([^/]+)(?=/)", parts.path)
    host = parts.hostname or ""
    if parts.username is not None:
        login = {"username": unquote(parts.username), "password": unquote(parts.password or "")}
        _logins[host] = {"BasicHTTP": login}
        return without_login(url)
    if token and _logins.setdefault(host, {"CondaToken": token[1]}) == {"CondaToken": token[1]}:
        return parts._replace(path=parts.path[token.end() :]).geturl()
    return url


def login_count() -> int:
    """How many logins are known; a client knows those that were known when it was made."""
    return len(_logins)


@contextmanager
def client_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """In this block a new client of rattler finds the user's own logins and those of `public_url`,
    and these variables."""
    if not _logins:
        with _environment_lock, _variables_set(variables):
            yield
        return
    with _environment_lock, temporary_directory("logins") as folder:
        file = folder / "credentials.json"
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            json.dump(_authentication(), stream)
        with _variables_set({**variables, AUTH_FILE: str(file)}):
            yield


@contextmanager
def _variables_set(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _authentication() -> dict[str, object]:
    """The user's own file with our logins added."""
    entries: dict[str, object] = {}
    file = Path(os.environ.get(AUTH_FILE) or DEFAULT_FILE).expanduser()
    with suppress(OSError, ValueError):  # rattler ignores such a file too
        content = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(content, dict):
            entries.update(content)
    return {**entries, **_logins}
