"""The text of `provision passport`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, cast

from provision.cli.console import table, wrap
from provision.cli.smoke_output import phase_lines
from provision.cli.text import plain_value
from provision.core.documents import Passport
from provision.report.page import products

# The first digits of a digest tell it from others.
DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")


def passport_lines(
    passport: Mapping[str, Any], *, width: int | None, sources: bool = True
) -> list[str]:
    """What was requested, what came of it and why, and what was measured.

    passport: with what `judged_passport` adds. width: of the terminal, to which lines are wrapped.
    sources: also say where reasons come from.
    """
    request = ", ".join(f"{key} {plain_value(v)}" for key, v in passport["request"].items())
    lines = [
        f"{passport['name']} ({passport['made_by']}, {passport['written_at']})",
        *wrap(f"requested: {request}", width),
        "",
    ]
    if passport.get("outdated"):
        text = f"not the environment as it is now: {passport['outdated']}; "
        lines += wrap(f"{text}`provision build {passport['name']}` writes a new one", width)
        lines.append("")
    rows = []
    for reason in passport["reasons"]:
        text = f"{reason['value']}: {reason['reason']}"
        if sources:
            text += f" (source: {reason['source']})"
        rows.append((reason["what"], text))
    lines += [table(rows, ("choice", "value and reason"), width=width), ""]
    warnings = passport.get("warnings", ())
    for warning in warnings:
        text = f"{warning['reason']} ({warning['source']}). {warning['value']}"
        lines += wrap(f"warning {warning['what']}: {text}".rstrip(), width)
    if warnings:
        lines.append("")
    made = products(cast(Passport, passport))
    rows = [(what, text if sources else DIGEST.sub(r"\1", text)) for what, text in made.items()]
    lines += [*table(rows, ("product", "what"), width=width).splitlines(), ""]
    others = passport.get("smoke_elsewhere", ())
    tested = [*passport["smoke"].items(), *((result["target"], result) for result in others)]
    for location, result in tested:
        host = result["measured_on"]["host"]
        where = result.get("elsewhere", f"on {host}") or f"here ({host})"
        started_at = result["report"].get("started_at") or "at an unknown time"
        lines.append(f"smoke test in the {location}: {result['verdict']} {where}, {started_at}")
        lines += phase_lines(result["report"], "  ")
    nodes_test = passport.get("smoke_nodes")
    if nodes_test is not None:
        from provision.cluster.folding import fold_equal

        states = {row["node"]: row["state"] for row in nodes_test["nodes"]}
        lines.append(
            f"smoke test over nodes: {nodes_test['verdict']} on {nodes_test['on']}, "
            f"{nodes_test['started_at']}"
        )
        lines += [f"  {nodes}: {state}" for nodes, state in fold_equal(states)]
    if not sources:
        lines += ["", "-v adds the source of each choice, --json shows everything."]
    return lines
