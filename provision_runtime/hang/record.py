"""A light record of the calls of torch.distributed in this rank (`--record`).

For backends without a flight recorder: Gloo, and NCCL of torch before 2.2. Each call overwrites one
line of a mapped file, so the last calls can be read whatever the process does. Calls that C++ makes
(DDP's gradients in backward) are not in it.
"""

from __future__ import annotations

import functools
import importlib.machinery
import json
import mmap
import os
import re
import sys
from collections import Counter
from typing import TYPE_CHECKING, Any

from ..report.codec import decode
from . import folder
from .model import RECORD, Collective
from .stacks import frame_at

if TYPE_CHECKING:
    from types import CodeType, ModuleType

LINES, LINE_SIZE = 64, 512
C10D = "torch.distributed.distributed_c10d"
OPS = """all_gather all_gather_into_tensor all_gather_object all_reduce all_to_all all_to_all_single
barrier broadcast broadcast_object_list gather gather_object monitored_barrier new_group recv reduce
reduce_scatter reduce_scatter_tensor scatter scatter_object_list send"""
# Ranks of a group need not make as many of these.
POINT_TO_POINT = ("send", "recv")
BEGUN, DONE = b"0", b"1"
# The files of which no line is the program's.
WITHIN = f"/torch/|{re.escape(__file__)}"


class CallRecord:
    """The mapped file. A line: whether the call has returned, and as JSON its numbers among all calls
    and in its group, fields of a Collective, and where it was made."""

    def __init__(self, path: str) -> None:
        with open(path, "w+b") as file:
            file.truncate(LINES * LINE_SIZE)
            self._map = mmap.mmap(file.fileno(), LINES * LINE_SIZE)
        self._pid = os.getpid()
        self._calls = 0
        self._calls_of_group: Counter[str] = Counter()

    def begin(self, op: str, tensor: Any, group: Any, frame: Any) -> int:
        """Returns where the call is in the file."""
        name = getattr(group, "group_name", None) or ""
        sequence: int | str = "null"
        if op not in POINT_TO_POINT:
            self._calls_of_group[name] += 1
            sequence = self._calls_of_group[name]
        shape, dtype = getattr(tensor, "shape", None), getattr(tensor, "dtype", "")
        fields = _described(op, name, shape, dtype, frame.f_code, frame.f_lineno)
        text = BEGUN + f"[{self._calls},{sequence},{fields}]".encode()
        at = self._calls % LINES * LINE_SIZE
        self._calls += 1
        if os.getpid() == self._pid:  # a fork has the same map
            self._map[at : at + LINE_SIZE] = text[:LINE_SIZE].ljust(LINE_SIZE)
        return at

    def end(self, at: int) -> None:
        if os.getpid() == self._pid:
            self._map[at : at + 1] = DONE


@functools.lru_cache(maxsize=1024)
def _described(op: str, group: str, shape: Any, dtype: object, code: CodeType, line: int) -> str:
    """What is the same for all calls of a line with such a tensor; json.dumps is slow."""
    fields = {"op": op, "group": group, "shape": shape, "dtype": str(dtype).replace("torch.", "")}
    return json.dumps([fields, [code.co_name, code.co_filename[-200:], line]])


def read(path: str, directory: str) -> list[Collective]:
    """The calls in a file, the latest last. Raises OSError. Skips a line that is being written."""
    content = folder.read(path)
    calls = []
    for at in range(0, LINES * LINE_SIZE, LINE_SIZE):
        line = content[at : at + LINE_SIZE]
        try:
            number, sequence, (fields, (function, file, row)) = json.loads(line[1:])
            where = frame_at(str(function), str(file), int(row), directory)
            is_complete = line.startswith(DONE)
            facts = {"sequence": sequence, "line": vars(where), "is_complete": is_complete}
            call: Collective = decode(Collective, {**fields, **facts, "origin": RECORD}, "call")
            calls.append((int(number), call))
        except (ValueError, TypeError, RecursionError):
            continue
    return [call for _, call in sorted(calls, key=lambda pair: pair[0])]


def start(path: str) -> None:
    """Record the calls from now on. torch need not be imported yet."""
    sys.meta_path.insert(0, _C10dFinder(CallRecord(path)))


class _C10dFinder:
    """Finds torch's module as Python does, and has it changed after it was executed."""

    def __init__(self, record: CallRecord) -> None:
        self._record = record

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name != C10D:
            return None
        spec: Any = importlib.machinery.PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module

        def execute_and_record(module: ModuleType) -> None:
            execute(module)
            for op in OPS.split():
                if hasattr(module, op):
                    setattr(module, op, _recorded(op, module, self._record))

        spec.loader.exec_module = execute_and_record
        return spec


def _recorded(op: str, module: Any, record: CallRecord) -> Any:
    function, tensors, groups = getattr(module, op), module.torch.Tensor, module.ProcessGroup

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        values = [*args, *kwargs.values()]
        tensor = next((value for value in values if isinstance(value, tensors)), None)
        group = next((value for value in values if isinstance(value, groups)), None)
        frame: Any = sys._getframe(1)
        # torch's own functions make calls, too, through this one.
        while frame.f_back and re.search(WITHIN, frame.f_code.co_filename):
            frame = frame.f_back
        at = record.begin(op, tensor, group, frame)
        result = function(*args, **kwargs)
        record.end(at)
        return result

    return call
