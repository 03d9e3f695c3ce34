"""A light record of the calls of torch.distributed in this rank (`--record`).

For backends without a flight recorder: Gloo, and NCCL of torch before 2.2. Each call overwrites one
line of a mapped file, so the last calls can be read whatever the process does. Calls that C++ makes
(DDP's gradients in backward) are not in it.
"""

from __future__ import annotations

import functools
import importlib.machinery
import inspect
import json
import mmap
import os
import sys
from typing import TYPE_CHECKING, Any

from . import folder
from .model import RECORD, Collective
from .stacks import frame_at

if TYPE_CHECKING:
    from types import ModuleType

LINES, LINE_SIZE = 64, 512
C10D = "torch.distributed.distributed_c10d"
OPS = """all_gather all_gather_into_tensor all_gather_object all_reduce all_to_all all_to_all_single
barrier broadcast broadcast_object_list gather gather_object monitored_barrier new_group recv reduce
reduce_scatter reduce_scatter_tensor scatter scatter_object_list send"""
# The argument of which the shape is that of the operation.
TENSORS = ("tensor", "input_tensor", "input", "output", "tensor_list", "input_list")
# Ranks of a group need not make as many of these.
POINT_TO_POINT = ("send", "recv")
BEGUN, DONE = b"0", b"1"


class CallRecord:
    """The mapped file. A line: whether the call has returned, its number of all calls, and the fields
    of a Collective, as JSON."""

    def __init__(self, path: str) -> None:
        with open(path, "w+b") as file:
            file.truncate(LINES * LINE_SIZE)
            self._map = mmap.mmap(file.fileno(), LINES * LINE_SIZE)
        self._pid = os.getpid()
        self._calls = 0
        self._calls_of_group: dict[str, int] = {}
        self._lines: dict[Any, str] = {}  # of call sites, as JSON

    def begin(self, op: str, tensor: Any, group: Any, frame: Any) -> int:
        """Returns where the call is in the file."""
        name = getattr(group, "group_name", None) or ""
        sequence = "null"
        if op not in POINT_TO_POINT:
            number = self._calls_of_group[name] = self._calls_of_group.get(name, 0) + 1
            sequence = str(number)
        shape = getattr(tensor, "shape", None)
        sizes, dtype = "null", ""
        if shape is not None:
            sizes, dtype = str(list(shape)), str(tensor.dtype)[len("torch.") :]
        site = (frame.f_code, frame.f_lineno)
        line = self._lines.get(site)
        if line is None:
            fields = (site[0].co_name, site[0].co_filename[-200:], site[1])
            line = self._lines[site] = json.dumps(fields)
        # json.dumps of the whole takes three times as long.
        text = f'[{self._calls},"{op}",{sequence},"{name}",{sizes},"{dtype}",{line}]'
        at = self._calls % LINES * LINE_SIZE
        self._calls += 1
        if os.getpid() == self._pid:  # a fork has the same map
            self._map[at : at + LINE_SIZE] = BEGUN + text.encode()[: LINE_SIZE - 1].ljust(
                LINE_SIZE - 1
            )
        return at

    def end(self, at: int) -> None:
        if os.getpid() == self._pid:
            self._map[at : at + 1] = DONE


def read(path: str, directory: str) -> list[Collective]:
    """The calls in a file, the latest last. Raises OSError. Skips a line that is being written."""
    content = folder.read(path)
    calls = []
    for at in range(0, LINES * LINE_SIZE, LINE_SIZE):
        line = content[at : at + LINE_SIZE]
        try:
            number, *fields, (function, file, row) = json.loads(line[1:])
            op, sequence, group, shape, dtype = fields
            where = frame_at(str(function), str(file), int(row), directory)
            sizes = None if shape is None else list(map(int, shape))
            number_in_group = None if sequence is None else int(sequence)
        except (ValueError, TypeError, RecursionError):
            continue
        is_complete = line.startswith(DONE)
        call = Collective(
            str(op), RECORD, number_in_group, str(group), sizes, str(dtype), where, is_complete
        )
        calls.append((number, call))
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
                    setattr(module, op, _recorded(op, getattr(module, op), self._record))

        spec.loader.exec_module = execute_and_record
        return spec


def _recorded(op: str, function: Any, record: CallRecord) -> Any:
    names = list(inspect.signature(function).parameters)
    tensor_name = next((name for name in TENSORS if name in names), "")

    tensor_at = names.index(tensor_name) if tensor_name else len(names)
    group_at = names.index("group") if "group" in names else len(names)

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        tensor = args[tensor_at] if tensor_at < len(args) else kwargs.get(tensor_name)
        group = args[group_at] if group_at < len(args) else kwargs.get("group")
        if isinstance(tensor, list):
            tensor = tensor[0] if tensor else None
        frame: Any = sys._getframe(1)
        while frame.f_back is not None and "/torch/" in frame.f_code.co_filename:
            frame = frame.f_back
        at = record.begin(op, tensor, group, frame)
        result = function(*args, **kwargs)
        record.end(at)
        return result

    return call
