"""What a node printed -> its reply: found, bounded, checked by
provision/schemas/node-reply.schema.json, and without characters that could mislead a reader.

Nodes may be broken or taken over. Whatever one of them prints, it costs at most its own reply.
"""

from __future__ import annotations

from typing import Any

from provision.cluster.failures import REASONS, message_line
from provision.core.json_text import map_texts, parse_first_json
from provision.core.schema import first_schema_error
from provision_runtime.node.program import MARK
from provision_runtime.report.text import escape_terminal

# All that a node may print for one reply.
REPLY_BYTES = 1 << 20
# For actions whose replies hold logs and reports as they are, which are no lines of ours.
LOG_BYTES = 16 << 20
_LOG_ACTIONS = ("job-log", "job-ranks", "smoke-run")


def most_bytes(action: str) -> int:
    """How much a node may print on each of its two outputs."""
    return LOG_BYTES if action in _LOG_ACTIONS else REPLY_BYTES


def too_long(action: str) -> str:
    return f"it printed more than {most_bytes(action) >> 20} MiB"


def marked_text(printed: str) -> str | None:
    """The reply, and what follows it, in what a node printed; None if there is none."""
    _, mark, text = f"\n{printed}".rpartition(f"\n{MARK}")
    return text if mark else None


def decode(text: str, action: str) -> dict[str, Any]:
    """The reply to an action: `result` or `error`, with `identity`.

    Raises ValueError, which tells what is wrong with it.
    """
    clean = escape_terminal if action in _LOG_ACTIONS else message_line
    document = map_texts(parse_first_json(text), clean)
    if isinstance(document, dict) and "result" in document:
        document["result"] = {action: document["result"]}
    problem = first_schema_error(document, "node-reply")
    if problem is not None:
        raise ValueError(problem)
    reply: dict[str, Any] = document
    errors = [reply.get("error")]
    if "result" in reply:
        reply["result"] = reply["result"][action]
        for fact in ("store", "environment"):
            value = reply["result"].get(fact)
            errors.append(value.get("problem") if isinstance(value, dict) else None)
    for error in errors:
        if error is not None and error["reason"] not in REASONS:
            raise ValueError(f"{error['reason']!r} is not a reason that this provision knows")
    return reply
