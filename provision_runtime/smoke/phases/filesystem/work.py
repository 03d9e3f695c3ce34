"""One rank's hands in the target folder: what it found out so far, and whether it can go on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ....fs import mounts
from ... import folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ...session import Session

T = TypeVar("T")


@dataclass
class Work:
    session: Session
    target: Path
    # The folder that this phase makes in the target and takes away again.
    root: Path
    # [finding, message], as far as this rank can tell alone.
    problems: list[list[str]] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    able: bool = True
    start: mounts.Location | None = None

    @property
    def rank(self) -> int:
        return self.session.place.rank

    def attempt(self, what: str, action: Callable[[], T]) -> T | None:
        """What `action` returns. An error becomes a problem of this rank, which then touches the folder no more."""
        if not self.able:
            return None
        try:
            return action()
        except OSError as error:
            self.able = False
            self.problems.append([self._kind(error), folder.in_words(what, self.target, error)])
            return None

    def look_again(self) -> None:
        """Whether the folder is still the one that it was, although nothing failed."""
        if self.able and self.moved():
            self.able = False
            self.problems.append(
                [
                    "folder-unmounted",
                    f"{self.target} is another folder now than when the phase began",
                ]
            )

    def meet(self, name: str, payload: Any = None) -> list[Any]:
        return self.session.exchange(f"filesystem/{name}", payload)

    def answer(self) -> dict[str, Any]:
        place = self.start.as_json() if self.start else None
        return {
            "host": self.session.place.host,
            "location": place,
            "problems": self.problems,
            **self.data,
        }

    def _kind(self, error: OSError) -> str:
        """A folder that vanished may say so with any error; what tells is that its name leads elsewhere now."""
        return "folder-unmounted" if self.moved() else folder.finding_id(error.errno)

    def moved(self) -> bool:
        """Whether the folder's name leads to another device than it did."""
        if self.start is None:
            return False
        try:
            return mounts.locate(self.target).device != self.start.device
        except OSError:
            return True
