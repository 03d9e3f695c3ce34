"""Known faults of torch's releases, by their numbers."""

from __future__ import annotations

import re
from typing import Tuple

Release = Tuple[int, ...]

# init_process_group(device_id=...) can hang from the first of these to before the second
# (pytorch#153960).
DEVICE_ID_HANGS = ((2, 6, 0), (2, 7, 1))


def numbers(version: str) -> Release:
    """The leading numbers of a version: `2.7.0a0+cu128` is 2.7.0."""
    match = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(number) for number in match[0].split(".")) if match else ()


def device_id_hangs(release: Release) -> bool:
    hangs_since, works_since = DEVICE_ID_HANGS
    return hangs_since <= release < works_since
