"""PEFT: checkpoints that hold the adapters alone, and say which base model they belong to.

    state = {"adapters": Adapters(model), "optim": optimizer}

The base is a reference: its name, and a SHA-256 of its parameters, so that adapters are not put upon
another base in silence.
"""

from __future__ import annotations

import hashlib
from typing import Any

from peft import get_peft_model_state_dict, set_peft_model_state_dict

from ..errors import CheckpointError
from ..items import StateDict
from ..memory import StagingMemory

__all__ = ["Adapters"]


class Adapters:
    """The adapters of a PEFT model, as a part of a state dict. Reads the base model once.

    Args:
        model: The PeftModel.
        adapter: The name of the adapter.
    """

    def __init__(self, model: Any, adapter: str = "default") -> None:
        self.model = model
        self._adapter = adapter
        config = model.peft_config[adapter]
        name = f"{config.base_model_name_or_path or 'without a name'} {config.revision or 'main'}"
        self._base = {"name": name, "sha256": _base_digest(model, str(config.peft_type))}

    def state_dict(self) -> StateDict:
        """The adapters and the reference.

        Returns:
            `weights` by name; `base` with the `name` of the base model and a `sha256` of the model and
                the adapters' kind.
        """
        weights = get_peft_model_state_dict(self.model, adapter_name=self._adapter)
        return {"weights": weights, "base": dict(self._base)}

    def load_state_dict(self, state: StateDict) -> None:
        """Fills the adapters.

        Args:
            state: What `state_dict` returned.

        Raises:
            CheckpointError: If they belong to another base model, or are of another kind. The adapters
                are unchanged then.
        """
        saved = state["base"]
        if saved["sha256"] != self._base["sha256"]:
            raise CheckpointError(
                f"the adapters belong to the base model {saved['name']}; the model here is another, or "
                "has adapters of another kind"
            )
        set_peft_model_state_dict(self.model, state["weights"], adapter_name=self._adapter)


def _base_digest(model: Any, kind: str) -> str:
    """Of all parameters and buffers that are not the adapters', by name, type, shape and content."""
    prefix = getattr(model.base_model, "prefix", "lora_")
    digest = hashlib.sha256(kind.encode())
    staging = StagingMemory()
    for name, value in sorted(model.get_base_model().state_dict().items()):
        if f".{prefix}" not in f".{name}" and "modules_to_save" not in name:
            digest.update(f"{name} {value.dtype} {list(value.shape)} ".encode())
            staging.clear()
            digest.update(staging.bytes_of(value.detach()))
    return digest.hexdigest()
