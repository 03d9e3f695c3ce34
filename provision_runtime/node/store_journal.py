"""The journal of a store: what happened to its environments, one event a line."""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING, Any

from .store_access import open_file

if TYPE_CHECKING:
    from .results import Texts
    from .store import Store


def append_journal(store: Store, event: str, run: Texts, **fields: str | None) -> None:
    """Who asked is as that machine has it; `client`: the address from which ssh let it in."""
    document = {"at": time.time(), "event": event, "run": run["id"], "by": run["by"], **fields}
    client = os.environ.get("SSH_CONNECTION", "").partition(" ")[0]
    if client:
        document["client"] = client
    descriptor = open_file(store, store.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, (json.dumps(document) + "\n").encode("utf-8"))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def journal_events(store: Store) -> list[dict[str, Any]]:
    """The events of a store, oldest first. A line that was cut off by a power failure is skipped."""
    try:
        with open(store.journal, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    events = []
    for line in lines:
        with contextlib.suppress(ValueError):
            document = json.loads(line)
            if isinstance(document, dict) and "event" in document:
                events.append(document)
    return events


def latest_keys(store: Store, name: str, event: str) -> list[str]:
    """The keys of one kind of event of an environment, the latest first, each once."""
    keys = [
        str(row["key"])
        for row in reversed(journal_events(store))
        if row["event"] == event and row.get("name") == name and "key" in row
    ]
    return list(dict.fromkeys(keys))
