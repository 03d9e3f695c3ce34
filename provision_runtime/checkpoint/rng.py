"""The states of a process's random generators, and of whatever else each rank has for itself.

If several ranks hold a value under one name, one of them writes it. So these have a name per rank.
"""

from __future__ import annotations

import base64
import io
import json
import random
from typing import Any

from .errors import CheckpointError
from .items import StateDict
from .unpickle import load_without_code, runs_code


def rng_state() -> StateDict:
    """The states of this process's random generators.

    Save it with the rest, `{"model": model, "rng": rng_state()}`. To go on from it, load into
    `{"model": model, "rng": rng_state()}` and call `restore_rng(state["rng"])`. A training loop
    that saves often passes `Rng()` instead, which has its state at each save.

    Returns:
        A dict with this rank as its one key (0 without a process group). Its value has `python`,
        `torch`, `numpy` if that is installed, and, if there are GPUs, `cuda` with a state per device.
    """
    import torch

    state: StateDict = {"python": random.getstate(), "torch": torch.get_rng_state()}
    numpy_random = _numpy_random()
    if numpy_random is not None:
        numpy_state = numpy_random.get_state(legacy=False)
        state["numpy"] = json.dumps(numpy_state, default=lambda array: array.tolist())
    if torch.cuda.is_available():
        state["cuda"] = {str(n): value for n, value in enumerate(torch.cuda.get_rng_state_all())}
    return {_rank(): state}


def restore_rng(state: StateDict) -> None:
    """Sets this process's random generators.

    Args:
        state: What `rng_state` returned, or `load` filled.

    Raises:
        CheckpointError: If it has no state of this rank. Nothing is changed then.
        RuntimeError: If it has one of a GPU that this process lacks.
    """
    import torch

    rank_state = state.get(_rank())
    if rank_state is None:
        raise CheckpointError(
            f"there are random states of other ranks, and none of rank {_rank()}: seed its generators"
        )
    for device, value in rank_state.get("cuda", {}).items():
        torch.cuda.set_rng_state(value, int(device))
    random.setstate(rank_state["python"])
    torch.set_rng_state(rank_state["torch"])
    if "numpy" in rank_state:
        _numpy_random().set_state(json.loads(rank_state["numpy"]))


class Rng:
    """The random generators of each rank, as a part of a state dict: `{"model": model, "rng": Rng()}`.

    A save takes their states as they are then, and a load restores them. With more ranks than there
    were, leave them out.
    """

    state_dict = staticmethod(rng_state)
    load_state_dict = staticmethod(restore_rng)


class PerRank:
    """An object whose state differs from rank to rank, as a part of a state dict.

    For data loaders (`torchdata`'s StatefulDataLoader), samplers, and others with `state_dict` and
    `load_state_dict`: `{"model": model, "data": PerRank(loader)}`. Its state is one text, so it may
    have another form at the load than at the save, and must be small: numbers, strings, tensors,
    and lists, tuples and dicts of them.

    Args:
        source: The object.
    """

    def __init__(self, source: Any) -> None:
        self.source = source

    def state_dict(self) -> dict[str, str]:
        """The state of the object.

        Returns:
            A text, with the rank as its key.

        Raises:
            CheckpointError: If it could not be read again without running code.
        """
        import torch

        buffer = io.BytesIO()
        torch.save(self.source.state_dict(), buffer)
        content = buffer.getvalue()
        if runs_code(content):
            raise CheckpointError(
                f"the state of a {type(self.source).__name__} must be unpickled, which can run "
                "code: its state_dict must hold numbers, strings, tensors, and lists, tuples and "
                "dicts of them"
            )
        return {_rank(): base64.b64encode(content).decode()}

    def blank_state(self) -> dict[str, str]:
        """What `load` fills: the object itself is not asked, since a data loader would start workers.

        Returns:
            An empty text, with the rank as its key.
        """
        return {_rank(): ""}

    def load_state_dict(self, state: dict[str, str]) -> None:
        """Gives the state to the object.

        Args:
            state: What `state_dict` returned; an empty text, as of a load that may find none, leaves
                the object as it is.
        """
        text = state[_rank()]
        if text:
            self.source.load_state_dict(load_without_code(base64.b64decode(text)))


def _rank() -> str:
    """This rank in the default process group; 0 without one."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return str(distributed.get_rank())
    return "0"


def _numpy_random() -> Any:
    """None if numpy is not installed."""
    try:
        import numpy
    except ImportError:
        return None
    return numpy.random
