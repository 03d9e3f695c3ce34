"""What was made of a text before, by the text's hash, in the user's cache: a lock that was read and
checked, a file that was rendered. Libraries that do this take 20 to 40 ms to import."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from provision import __version__
from provision.core.atomic import atomic_write
from provision.core.credentials import without_credentials
from provision.core.paths import Folders, default_folders, make_private_directory


def remembered(
    kind: str, content: bytes, make: Callable[[], Any], folders: Folders | None = None
) -> Any:
    """What `make` makes of a text, and of nothing else.

    Args:
        kind: of the result.
        content: the text.
        make: called once for each text and release of provision. What it raises is raised. A
            result that JSON cannot hold, or that has a password or token in an address, is not kept.
        folders: their cache keeps results, if it exists: a preview in a new account leaves nothing.
            The user's by default. Results of other users do not count.
    """
    key = hashlib.sha256(f"{__version__} {kind} ".encode() + content).hexdigest()
    record = (folders or default_folders()).remembered / f"{key}.json"
    with suppress(OSError, ValueError):
        if record.stat().st_uid == os.getuid():
            return json.loads(record.read_bytes())
    result = make()
    with suppress(OSError, ValueError, TypeError):
        text = json.dumps(result)
        is_public = without_credentials(text) == text
        if is_public and json.loads(text) == result and record.parents[1].is_dir():
            make_private_directory(record.parent)
            atomic_write(record, text, 0o600)
    return result
