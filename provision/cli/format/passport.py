"""What `provision passport show` prints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from provision.cli.console import table
from provision.cli.format.smoke import phase_lines


def passport_lines(passport: Mapping[str, Any]) -> list[str]:
    """What was requested, what came of it and why, and what was measured."""
    request = ", ".join(f"{key} {value}" for key, value in passport["request"].items())
    reasons = [
        (reason["what"], str(reason["value"]), reason["reason"], reason["source"])
        for reason in passport["reasons"]
    ]
    lines = [
        f"{passport['name']} ({passport['made_by']}, {passport['written_at']})",
        f"requested: {request}",
        "",
        table(reasons, ("choice", "value", "reason", "source")),
        "",
    ]
    warnings = passport.get("warnings", ())
    for warning in warnings:
        text = f"{warning['reason']} ({warning['source']}). {warning['value']}"
        lines.append(f"warning {warning['what']}: {text}".rstrip())
    if warnings:
        lines.append("")
    lock, image, kernel = passport["lock"], passport["image"], passport["kernel"]
    portability = "" if lock["portable"] else ", not portable"
    lines.append(f"lock    {lock['sha256'][:16]}: {lock['packages']} packages{portability}")
    lines.append(f"prefix  {passport['prefix']['path']}")
    if image:
        lines.append(f"image   {image['reference']} ({image['manifest_digest']})")
    if kernel:
        lines.append(f"kernel  {kernel['name']}")
    for place, result in passport["smoke"].items():
        lines.append(f"smoke   {place}: {result['verdict']} on {result['measured_on']['host']}")
        lines += phase_lines(result["report"], " " * 8)
    return lines
