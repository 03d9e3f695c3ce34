"""JSON documents that provision writes for itself, as dataclasses: markers, journals, records.

Documents with a published schema are checked by `core.schema`.
"""

from __future__ import annotations

from typing import TypeVar, cast

from provision.core.json_text import parse_json
from provision_runtime.report.codec import decode

T = TypeVar("T")


def parse_record(kind: type[T], text: str | bytes) -> T:
    """A dataclass from the text of a JSON object, whose other keys are ignored.

    Raises ValueError for a text that is not JSON, a value that is missing, and one of another type
    than its field.
    """
    return cast(T, decode(kind, parse_json(text), kind.__name__, skips_unknown=True))
