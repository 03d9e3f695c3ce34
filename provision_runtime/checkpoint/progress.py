"""How far a save is: what each rank counts, and what the progress callback gets."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field


@dataclass(frozen=True)
class SaveProgress:
    """Bytes of tensors over all ranks. rate: bytes per second so far."""

    total: int
    written: int
    linked: int
    seconds: float

    @property
    def rate(self) -> float:
        return (self.written + self.linked) / self.seconds if self.seconds else 0.0


@dataclass
class ByteCount:
    """Bytes of this rank; total is known before anything is written."""

    total: int = 0
    written: int = 0
    linked: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def add(self, *, written: int = 0, linked: int = 0) -> None:
        with self._lock:
            self.written += written
            self.linked += linked
