"""Small programs that take the place of real ones."""

from __future__ import annotations

from pathlib import Path


def write_program(path: Path, text: str) -> None:
    """Writes an executable file."""
    path.write_text(text)
    path.chmod(0o755)
