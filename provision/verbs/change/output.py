"""What `provision add`, `remove` and `update` print."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision.cli.account import account_lines
from provision.lockfile import describe_diff

if TYPE_CHECKING:
    from provision.verbs.change.change import ChangeResult


def change_lines(result: ChangeResult, *, dry_run: bool) -> list[str]:
    """The packages that changed, then what followed."""
    lines = [*account_lines(result.account), *describe_diff(result.diff)]
    if dry_run:
        return [*lines, "nothing was changed (--dry-run)"]
    if result.diff.same and result.prefix is None:
        return [*lines, "nothing to do"]
    if result.prefix is None:
        lines.append(
            f"not installed on this machine; `provision env create {result.name}` installs it"
        )
    else:
        lines.append(f"prefix  {result.prefix.path}")
    if result.kernel:
        lines.append(f"kernel  {result.kernel.display_name}")
    if result.editables:
        lines.append(
            f"editable: {', '.join(result.editables)}; the lock is not portable, and has no hash "
            "of them"
        )
    elif not result.portable:
        lines.append(
            "the lock is not portable: its Python, or another file, is from this machine only"
        )
    return lines
