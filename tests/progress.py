"""Progress that tests look at."""

from __future__ import annotations


class Recorder:
    """Keeps what is said and warned of; shows nothing."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.warnings: list[str] = []
        self.totals: list[int] = []
        self.advances: list[int] = []

    def info(self, text: str) -> None:
        self.lines.append(text)

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def meter(self, title: str, total: int) -> Recorder:
        self.totals.append(total)
        return self

    def advance(self, amount: int) -> None:
        self.advances.append(amount)

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *exc: object) -> None: ...
