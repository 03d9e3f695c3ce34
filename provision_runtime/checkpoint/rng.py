"""The states of a process's random generators, and of whatever else each rank has for itself.

If several ranks hold a value under one name, one of them writes it. So these have a name per rank.
"""

from __future__ import annotations

import base64
import io
import json
import pickle
import random
from typing import Any

from .errors import CheckpointError
from .unpickle import load_without_code, runs_code


def rng_state(rank: int | None = None) -> dict[str, Any]:
    """The states of this process's random generators.

    Save it with the rest, `{"model": model, "rng": rng_state()}`. To go on from it, load into
    `{"model": model, "rng": rng_state()}` and call `restore_rng(state["rng"])`. A training loop
    that saves often passes `Rng()` instead, which has its state at each save.

    Args:
        rank: The number under which the state is saved. Default: this rank in the default process
            group; 0 without one.

    Returns:
        A dict with the rank as its one key. Its value has `python`, `torch`, `numpy` if that is
        installed, and, if there are GPUs, `cuda` with a state per device.
    """
    import torch

    # One value each, whatever a release of Python and numpy has in it.
    state: dict[str, Any] = {"python": json.dumps(random.getstate())}
    state["torch"] = torch.get_rng_state()
    numpy = _numpy_random()
    if numpy is not None:
        state["numpy"] = json.dumps(
            numpy.get_state(legacy=False), default=lambda array: array.tolist()
        )
    if torch.cuda.is_available():
        devices = range(torch.cuda.device_count())
        state["cuda"] = {str(device): torch.cuda.get_rng_state(device) for device in devices}
    return {str(rank_number(rank)): state}


def restore_rng(state: dict[str, Any], rank: int | None = None) -> None:
    """Sets this process's random generators.

    Args:
        state: What `rng_state` returned, or `load` filled.
        rank: As for `rng_state`.

    Raises:
        CheckpointError: If it has no state of this rank, or one of a device or library that this
            process lacks. Nothing is changed then.
    """
    import torch

    key = str(rank_number(rank))
    if key not in state:
        raise CheckpointError(
            f"there are random states of the ranks {', '.join(sorted(state)) or 'none'}, "
            f"and none of rank {key}: seed its generators instead"
        )
    own = state[key]
    numpy = _numpy_random()
    if "numpy" in own and numpy is None:
        raise CheckpointError("there is a random state of numpy, which is not installed here")
    devices = {int(device): value for device, value in own.get("cuda", {}).items()}
    count = torch.cuda.device_count()
    absent = [str(device) for device in sorted(devices) if device >= count]
    if absent:
        raise CheckpointError(
            f"there are random states of the GPUs {', '.join(absent)}, and here are {count} GPUs"
        )
    version, numbers, gauss = json.loads(own["python"])
    random.setstate((version, tuple(numbers), gauss))
    torch.set_rng_state(own["torch"])
    if numpy is not None and "numpy" in own:
        numpy.set_state(json.loads(own["numpy"]))
    for device, value in devices.items():
        torch.cuda.set_rng_state(value, device)


class Rng:
    """The random generators of each rank, as a part of a state dict: `{"model": model, "rng": Rng()}`.

    A save takes their states as they are then, and a load restores them. With another number of
    ranks, `load(..., optional=["rng"])` leaves out what does not fit.

    Args:
        rank: As for `rng_state`.
    """

    def __init__(self, rank: int | None = None) -> None:
        self._rank = rank

    def state_dict(self) -> dict[str, Any]:
        """As `rng_state`.

        Returns:
            The state of this rank.
        """
        return rng_state(self._rank)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """As `restore_rng`.

        Args:
            state: What `state_dict` returned.
        """
        restore_rng(state, self._rank)


class PerRank:
    """An object whose state differs from rank to rank, as a part of a state dict.

    For data loaders (`torchdata`'s StatefulDataLoader), samplers, and others with `state_dict` and
    `load_state_dict`: `{"model": model, "data": PerRank(loader)}`. Its state is one text, so it may
    have another form at the load than at the save, and must be small: numbers, strings, tensors,
    and lists, tuples and dicts of them.

    Args:
        source: The object.
        rank: As for `rng_state`.
    """

    def __init__(self, source: Any, rank: int | None = None) -> None:
        self.source = source
        self._rank = rank

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
        return {str(rank_number(self._rank)): base64.b64encode(content).decode()}

    def blank_state(self) -> dict[str, str]:
        """What `load` fills: the object itself is not asked, since a data loader would start workers.

        Returns:
            An empty text, with the rank as its key.
        """
        return {str(rank_number(self._rank)): ""}

    def load_state_dict(self, state: dict[str, str]) -> None:
        """Gives the state to the object.

        Args:
            state: What `state_dict` returned.

        Raises:
            CheckpointError: If reading it could run code.
        """
        text = state[str(rank_number(self._rank))]
        if not text:  # `load` was allowed to find none
            return
        content = base64.b64decode(text)
        try:
            value = load_without_code(content)
        except pickle.UnpicklingError as error:
            raise CheckpointError(
                f"the state of a {type(self.source).__name__}: {error}"
            ) from error
        self.source.load_state_dict(value)


def rank_number(rank: int | None) -> int:
    """This rank in the default process group; 0 without one."""
    if rank is not None:
        return rank
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return int(distributed.get_rank())
    return 0


def _numpy_random() -> Any:
    """None if numpy is not installed."""
    try:
        import numpy
    except ImportError:
        return None
    return numpy.random
