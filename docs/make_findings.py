"""Writes docs/findings.md from the catalog of the smoke test's findings. With --check: fails when the file is not up to date."""

from __future__ import annotations

import sys
from pathlib import Path

from provision_runtime.smoke.findings import BY_PHASE
from provision_runtime.smoke.options import FAULTS

PAGE = Path(__file__).parent / "findings.md"
HEAD = """# Findings of the smoke test

Made by `python docs/make_findings.py`; do not edit. Every finding in a report has an id, the ranks it is about, what happened, and
advice. *fail* and *unknown* end `provision smoke` with exit code 1; *warn* does not.
"""


def page() -> str:
    parts = [HEAD]
    for phase, rules in BY_PHASE.items():
        rows = "\n".join(
            f"| `{id}` | {rule.verdict} | {rule.meaning} | {rule.advice} |"
            for id, rule in rules.items()
        )
        title = "In any phase" if phase == "any" else f"Phase {phase}"
        parts.append(
            f"## {title}\n\n| id | verdict | what it means | what to do |\n|---|---|---|---|\n{rows}\n"
        )
    forms = "\n".join(
        f"    --inject {':'.join((kind, *values))}" for kind, values in FAULTS.items()
    )
    parts.append(
        f"## Faults that can be rehearsed\n\nEach must end in its own finding, on its rank, in its phase.\n\n{forms}\n"
    )
    return "\n".join(parts)


def main() -> int:
    if "--check" in sys.argv[1:]:
        if PAGE.read_text() == page():
            return 0
        print(
            f"{PAGE.name} is not what the catalog says: run python {Path(__file__).name}",
            file=sys.stderr,
        )
        return 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
