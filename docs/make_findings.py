"""Writes docs/findings.md from the catalog of the smoke test's findings.

With --check: fails if the file is not up to date.
"""

from __future__ import annotations

import sys
from pathlib import Path

from provision_runtime.smoke.findings import BY_PHASE
from provision_runtime.smoke.options import FAULTS

PAGE = Path(__file__).parent / "findings.md"
HEAD = """# Findings of the smoke test

Made by `python docs/make_findings.py`; do not edit.

Every finding in a report has an id, the ranks it is about, what happened, and advice. With the
verdict *fail* or *unknown*, `provision smoke` ends with exit code 1; with *warn* it does not.
"""


def page() -> str:
    lines = [HEAD]
    for phase, rules in BY_PHASE.items():
        lines.append("## In any phase\n" if phase == "any" else f"## Phase {phase}\n")
        lines.append("| id | verdict | what it means | what to do |\n|---|---|---|---|")
        for finding_id, rule in rules.items():
            lines.append(f"| `{finding_id}` | {rule.verdict} | {rule.meaning} | {rule.advice} |")
        lines.append("")
    lines.append("## Faults that you can inject\n")
    lines.append("Each fault must end in its own finding, on its rank, in its phase.\n")
    for kind, values in FAULTS.items():
        lines.append(f"    --inject {':'.join((kind, *values))}")
    return "\n".join(lines) + "\n"


def main() -> int:
    if "--check" in sys.argv[1:]:
        if PAGE.read_text() == page():
            return 0
        message = f"{PAGE.name} is out of date: run python docs/{Path(__file__).name}"
        print(message, file=sys.stderr)
        return 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
