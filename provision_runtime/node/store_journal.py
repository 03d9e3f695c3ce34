"""The journal of a store: what happened to its environments, one event a line."""

from __future__ import annotations

import json
import os
import time
from typing import TYPE_CHECKING

from .store_access import open_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .store import Store


def append_journal(store: Store, event: str, run: Mapping[str, str], **fields: str | None) -> None:
    line = json.dumps({"at": time.time(), "event": event, "run": run["id"], **fields}) + "\n"
    descriptor = open_file(store, store.journal, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(descriptor, line.encode("utf-8"))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_journal(store: Store, name: str) -> list[tuple[str, str]]:
    """The events of an environment, oldest first, each with its key. A line that was cut off by a
    power failure is skipped."""
    try:
        with open(store.journal, encoding="utf-8", errors="replace") as file:
            lines = file.read().splitlines()
    except FileNotFoundError:
        return []
    events = []
    for line in lines:
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, dict) and document.get("name") == name and "key" in document:
            events.append((str(document["event"]), str(document["key"])))
    return events
