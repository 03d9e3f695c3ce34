"""A light record of the calls of torch.distributed in this rank (`--record`).

For backends without a flight recorder: Gloo, and NCCL of torch before 2.2. Each call overwrites one
line of a mapped file, so the last calls can be read whatever the process does. Calls that C++ makes
(DDP's gradients in backward) are not in it.
"""

from __future__ import annotations

import functools
import importlib.machinery
import inspect
import mmap
import os
import sys
from typing import TYPE_CHECKING, Any, Callable

from .model import Collective
from .stacks import frame_at

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

LINES, LINE_SIZE = 64, 320
C10D, DDP = "torch.distributed.distributed_c10d", "torch.nn.parallel.distributed"
OPS = (
    "all_gather all_gather_into_tensor all_gather_object all_reduce all_to_all all_to_all_single "
    "barrier broadcast broadcast_object_list gather gather_object monitored_barrier new_group recv "
    "reduce reduce_scatter reduce_scatter_tensor scatter scatter_object_list send"
).split()
# The argument of which the shape is that of the operation.
TENSORS = ("tensor", "input_tensor", "input", "output", "tensor_list", "input_list", "obj")
DONE = b"1"
SEPARATOR = "\t"


class CallRecord:
    """The mapped file. A line: whether the call has returned, its number of all calls, and the fields
    of a Collective."""

    def __init__(self, path: str) -> None:
        with open(path, "w+b") as file:
            file.truncate(LINES * LINE_SIZE)
            self._map = mmap.mmap(file.fileno(), LINES * LINE_SIZE)
        self._pid = os.getpid()
        self._calls = 0
        self._calls_of_group: dict[Any, int] = {}

    def begin(self, op: str, tensor: Any, group: Any, frame: Any) -> int:
        """Returns where the call is in the file."""
        name = getattr(group, "group_name", "") or ""
        sequence = self._calls_of_group[name] = self._calls_of_group.get(name, 0) + 1
        shape = getattr(tensor, "shape", None)
        sizes = "" if shape is None else ",".join(map(str, shape))
        if shape is not None and not sizes:
            sizes = "scalar"
        dtype = "" if shape is None else str(tensor.dtype)[6:]  # torch.float32
        code = frame.f_code
        fields = (
            "0", str(self._calls), op, str(sequence), name, sizes, dtype,
            str(frame.f_lineno), code.co_name, code.co_filename[-120:],
        )  # fmt: skip
        at = self._calls % LINES * LINE_SIZE
        self._calls += 1
        if os.getpid() == self._pid:  # not in a fork, which has the same map
            line = SEPARATOR.join(fields).encode()[:LINE_SIZE]
            self._map[at : at + LINE_SIZE] = line.ljust(LINE_SIZE, b"\0")
        return at

    def end(self, at: int) -> None:
        if os.getpid() == self._pid:
            self._map[at : at + 1] = DONE


def read(path: str, directory: str) -> list[Collective]:
    """The calls in a file, the latest last. Raises OSError. Skips a line that is being written."""
    with open(path, "rb") as file:
        content = file.read()
    calls = []
    for at in range(0, len(content), LINE_SIZE):
        fields = (
            content[at : at + LINE_SIZE].rstrip(b"\0").decode(errors="replace").split(SEPARATOR)
        )
        if len(fields) != 10 or not (fields[1] + fields[3] + fields[7]).isdigit():
            continue
        done, number, op, sequence, group, sizes, dtype, line, function, name = fields
        shape = None
        if sizes:
            shape = [int(size) for size in sizes.split(",") if size.isdigit()]
        call = Collective(
            op=op,
            origin="record",
            sequence=int(sequence),
            group=group,
            shape=shape,
            dtype=dtype,
            line=frame_at(function, name, int(line), directory),
            is_complete=done == DONE.decode(),
        )
        calls.append((int(number), call))
    return [call for _, call in sorted(calls, key=lambda pair: pair[0])]


def start(path: str) -> None:
    """Record the calls from now on. torch need not be imported yet."""
    record = CallRecord(path)
    patches = {
        C10D: functools.partial(_record_operations, record),
        DDP: functools.partial(_write_parameters, path),
    }
    sys.meta_path.insert(0, _Patcher(patches))


class _Patcher:
    """Finds modules as Python does, and changes them after they were executed."""

    def __init__(self, patches: dict[str, Callable[[ModuleType], None]]) -> None:
        self._patches = patches

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        patch = self._patches.pop(name, None)
        if patch is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        loader: Any = spec and spec.loader
        execute = loader.exec_module

        def execute_and_patch(module: ModuleType) -> None:
            execute(module)
            patch(module)

        loader.exec_module = execute_and_patch
        return spec


def _record_operations(record: CallRecord, module: ModuleType) -> None:
    for op in OPS:
        function = getattr(module, op, None)
        if function is not None:
            setattr(module, op, _recorded(op, function, record))


def _recorded(op: str, function: Any, record: CallRecord) -> Any:
    names = list(inspect.signature(function).parameters)
    tensor_name = next((name for name in TENSORS if name in names), "")
    tensor_at = names.index(tensor_name) if tensor_name else sys.maxsize
    group_at = names.index("group") if "group" in names else sys.maxsize

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        tensor = args[tensor_at] if tensor_at < len(args) else kwargs.get(tensor_name)
        group = args[group_at] if group_at < len(args) else kwargs.get("group")
        if isinstance(tensor, (list, tuple)) and tensor:
            tensor = tensor[0]
        frame: Any = sys._getframe(1)
        while frame.f_back is not None and "/torch/" in frame.f_code.co_filename:
            frame = frame.f_back
        at = record.begin(op, tensor, group, frame)
        result = function(*args, **kwargs)
        record.end(at)
        return result

    return call


def _write_parameters(path: str, module: Any) -> None:
    """DDP compares its parameters first: names and shapes are on disk if it waits then."""
    model = module.DistributedDataParallel
    construct = model.__init__

    @functools.wraps(construct)
    def write_and_construct(self: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        import json

        from .error_file import named_shapes

        with open(path.replace(".calls", ".model"), "w", encoding="utf-8") as file:
            json.dump(named_shapes(module), file)
        construct(self, module, *args, **kwargs)

    model.__init__ = write_and_construct
