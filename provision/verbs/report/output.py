"""The text of `provision passport`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from provision.cli.console import table, wrap
from provision.cli.smoke_output import phase_lines
from provision.cli.text import plain_value
from provision.core.documents import Passport
from provision.environment.passport import verdicts
from provision.report.page import products

# The first digits of a digest tell it from others.
DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")


def passport_lines(passport: Mapping[str, Any], *, width: int | None) -> list[str]:
    """What was requested, what came of it and why, and what was measured.

    passport: with what `judged_passport` adds. width: of the terminal, to which lines are wrapped.
    """
    name = passport["name"]
    request = ", ".join(f"{key} {plain_value(v)}" for key, v in passport["request"].items())
    lines = [f"{name} ({passport['made_by']}, {passport['written_at']})"]
    lines += wrap(f"requested: {request}", width)
    if passport.get("outdated"):
        text = f"not the environment as it is now: {passport['outdated']}"
        lines += wrap(f"{text}; `provision build {name}` writes a new one", width)
    rows = [(row["what"], f"{row['value']}: {row['reason']}") for row in passport["reasons"]]
    rows += [
        (f"warning {row['what']}", f"{row['reason']}. {row['value']}")
        for row in passport.get("warnings", ())
    ]
    lines += ["", table(rows, ("choice", "value and reason"), width=width), ""]
    document = cast(Passport, passport)
    made = products(document).items()
    rows = [(what, DIGEST.sub(r"\1", text)) for what, text in made]
    lines += [table(rows, ("product", "what"), width=width), ""]
    for location, result in verdicts(document):
        host = result["measured_on"]["host"]
        where = result.get("elsewhere", f"on {host}") or f"here ({host})"
        started_at = result["report"].get("started_at") or "at an unknown time"
        lines.append(f"smoke test in the {location}: {result['verdict']} {where}, {started_at}")
        lines += phase_lines(result["report"], "  ")
    test = passport.get("smoke_nodes")
    if test is not None:
        from provision.cluster.folding import fold_equal

        verdict = f"{test['verdict']} on {test['on']}, {test['started_at']}"
        lines.append(f"smoke test over nodes: {verdict}")
        states = {row["node"]: row["state"] for row in test["nodes"]}
        lines += [f"  {nodes}: {state}" for nodes, state in fold_equal(states)]
    return [*lines, "", "--json and `provision report` show the source of each choice."]
