"""The exception that ended a rank, written when it ends: for `provision why`, and for torchrun."""

from __future__ import annotations

import json
import os
import time
import traceback
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import TracebackType

# torchrun sets it for every rank. torch fills the file only for programs with @record.
TORCH_FILE = "TORCHELASTIC_ERROR_FILE"
DDP = os.path.join("torch", "nn", "parallel", "distributed.py")
MAX_PARAMETERS = 5000


def write(path: str, error: BaseException, trace: TracebackType | None) -> None:
    """Raises OSError."""
    extracted = traceback.extract_tb(trace)[::-1]
    frames = [(frame.name, frame.filename, frame.lineno or 0) for frame in extracted]
    _write(
        path,
        {
            "type": type(error).__name__,
            "message": str(error)[:4000],
            "time": time.time(),
            "frames": frames,
            "parameters": _parameters(trace),
        },
    )
    if (torch_path := os.environ.get(TORCH_FILE)) and not os.path.exists(torch_path):
        text = "".join(traceback.format_exception(type(error), error, trace))
        extra = {"py_callstack": text, "timestamp": str(int(time.time()))}
        message = {"message": f"{type(error).__name__}: {error}", "extraInfo": extra}
        _write(torch_path, {"message": message})


def _write(path: str, document: Any) -> None:
    with open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump(document, file)
    os.replace(f"{path}.new", path)


def _parameters(trace: TracebackType | None) -> dict[str, list[int]]:
    """Names and shapes of the model whose DDP constructor failed."""
    for frame, _ in traceback.walk_tb(trace):
        if frame.f_code.co_name == "__init__" and frame.f_code.co_filename.endswith(DDP):
            named = list(frame.f_locals["module"].named_parameters())[:MAX_PARAMETERS]
            return {name: list(parameter.shape) for name, parameter in named}
    return {}
