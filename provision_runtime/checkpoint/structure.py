"""A nested dict of anything as tensors by name, and one text that says how they were nested.

For libraries that hand over a whole checkpoint and want it back, without objects to load into.
"""

from __future__ import annotations

import base64
import io
import pickle
from typing import Any, Mapping

from .errors import CheckpointError
from .nested import name_of, values
from .unpickle import DataUnpickler, blanks

NAME = "structure"


def split(tree: Mapping[str, Any]) -> dict[str, Any]:
    """A flat dict that `checkpoint.save` takes. A tensor that is there twice is saved once.

    Raises CheckpointError if the rest cannot be pickled.
    """
    import torch

    named: dict[int, str] = {}
    flat: dict[str, Any] = {}

    def add(tensor: Any, name: str) -> str:
        while name in flat or name == NAME:
            name += "'"
        flat[name] = tensor.detach()
        return named.setdefault(id(tensor), name)

    for path, value in values(tree):
        if isinstance(value, torch.Tensor) and id(value) not in named:
            add(value, name_of(path))

    class Splitter(pickle.Pickler):
        def persistent_id(self, value: Any) -> str | None:
            if not isinstance(value, torch.Tensor):
                return None
            return named.get(id(value)) or add(value, "tensor")

    buffer = io.BytesIO()
    try:
        Splitter(buffer, protocol=2).dump(tree)
    except Exception as error:  # pickle lets through whatever an object's own methods raise
        raise CheckpointError(
            f"the checkpoint cannot be pickled: {type(error).__name__}: {error}"
        ) from error
    flat[NAME] = base64.b64encode(buffer.getvalue()).decode()
    return flat


def join(flat: Mapping[str, Any], allow_pickle: bool) -> Any:
    """What `split` was given. Raises CheckpointError with the names of what would run code."""
    text = flat.get(NAME)
    if not isinstance(text, str):
        raise CheckpointError("this checkpoint was not saved by Lightning: use checkpoint.load")

    class Joiner(pickle.Unpickler if allow_pickle else DataUnpickler):  # type: ignore[misc]
        def persistent_load(self, name: str) -> Any:
            return flat[name]

    tree = Joiner(io.BytesIO(base64.b64decode(text))).load()
    refused = [f"{name} ({kind})" for name, kind in blanks(tree)]
    if refused:
        raise CheckpointError(
            f"the checkpoint holds objects that must be unpickled, which can run code: "
            f"{', '.join(refused)}: pass weights_only=False if you trust its author"
        )
    return tree
