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
from ..serialize import StagingMemory, memory_of

__all__ = ["Adapters"]


class Adapters:
    """The adapters of a PEFT model, as a part of a state dict.

    Args:
        model: The PeftModel.
        adapter: The name of the adapter.
        verify_base: Compares the parameters of the base with those at the save, which reads them once.
            False compares only its name.
    """

    def __init__(self, model: Any, adapter: str = "default", verify_base: bool = True) -> None:
        self.model = model
        self._adapter = adapter
        self._digest = _base_digest(model) if verify_base else ""

    def state_dict(self) -> dict[str, Any]:
        """The adapters and the reference.

        Returns:
            `weights` by name; `base` with `name`, `revision` and `sha256` of the base model; `kind` of
            the adapters, such as LORA.
        """
        config = self.model.peft_config[self._adapter]
        base = {
            "name": config.base_model_name_or_path or "",
            "revision": config.revision or "",
            "sha256": self._digest,
        }
        weights = get_peft_model_state_dict(self.model, adapter_name=self._adapter)
        return {
            "weights": weights,
            "base": base,
            "kind": str(getattr(config.peft_type, "value", "")),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Fills the adapters.

        Args:
            state: What `state_dict` returned.

        Raises:
            CheckpointError: If they belong to another base model, or are of another kind, or do not
                fit. The adapters are unchanged in the first two cases.
        """
        own = self.state_dict()
        if state["kind"] != own["kind"]:
            raise CheckpointError(
                f"the adapters are of kind {state['kind']}, those here of kind {own['kind']}"
            )
        saved, here = state["base"], own["base"]
        digests = saved["sha256"], here["sha256"]
        if all(digests) and digests[0] != digests[1]:
            raise CheckpointError(
                f"the adapters belong to the base model {_described(saved)}, and the one here, "
                f"{_described(here)}, has other parameters: load that base"
            )
        if not all(digests) and (saved["name"], saved["revision"]) != (
            here["name"],
            here["revision"],
        ):
            raise CheckpointError(
                f"the adapters belong to the base model {_described(saved)}, not to "
                f"{_described(here)}"
            )
        result = set_peft_model_state_dict(self.model, state["weights"], adapter_name=self._adapter)
        if getattr(result, "unexpected_keys", None):
            raise CheckpointError(f"the model has no {', '.join(result.unexpected_keys)}")


def _described(base: dict[str, str]) -> str:
    revision = f" at {base['revision']}" if base["revision"] else ""
    return f"{base['name'] or 'without a name'}{revision}"


def _base_digest(model: Any) -> str:
    """Of all parameters and buffers that are not the adapters', by name, type, shape and content."""
    tuner = model.base_model
    prefix = getattr(tuner, "prefix", "lora_")
    digest = hashlib.sha256()
    staging = StagingMemory()
    for name, value in sorted(model.get_base_model().state_dict().items()):
        is_adapter = any(part.startswith(prefix) for part in name.split("."))
        if is_adapter or "modules_to_save" in name:
            continue
        digest.update(f"{name} {value.dtype} {list(value.shape)} ".encode())
        staging.clear()
        digest.update(memory_of(staging.plain(value.detach())))
    return digest.hexdigest()
