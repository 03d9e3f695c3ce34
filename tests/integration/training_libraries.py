"""Run by an interpreter that has the training libraries (test_training_libraries): stopped and resumed runs beside whole ones.

Usage: training_libraries.py CASE FOLDER. The last line is what was found, as JSON.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import nn

from provision_runtime import checkpoint

FOLDER = Path(sys.argv[2])
SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 50,
}


def equal(first: nn.Module, second: nn.Module) -> bool:
    return all(map(torch.equal, first.parameters(), second.parameters()))


def numbered(step: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, 50, shape, generator=torch.Generator().manual_seed(step))


def language_model(seed: int, **options: Any) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**SIZES, **options))


def transformers() -> Any:
    """With dropout, evaluations, accumulation; stopped within and at the end of an epoch, and with an evaluation at that step."""
    from transformers import Trainer, TrainerCallback, TrainingArguments, set_seed

    from provision_runtime.checkpoint.integrations.transformers import CheckpointCallback

    data = [{"input_ids": numbered(n, 6), "labels": numbered(n, 6)} for n in range(20)]

    class Stop(TrainerCallback):  # type: ignore[misc, unused-ignore]
        def __init__(self, step: int) -> None:
            self.step = step

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
            control.should_training_stop = state.global_step == self.step
            return control

    def run(root: Path, every: int, stop: int, accumulation: int) -> Any:
        set_seed(1)
        callback = CheckpointCallback(root, every=every)
        arguments = TrainingArguments(
            str(FOLDER / "out"),
            max_steps=14,
            per_device_train_batch_size=4,
            gradient_accumulation_steps=accumulation,
            save_strategy="no",
            eval_strategy="steps",
            eval_steps=3,
            lr_scheduler_type="cosine",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
        )
        model = language_model(1, attention_dropout=0.2)
        trainer = Trainer(
            model=model,
            args=arguments,
            train_dataset=data,
            eval_dataset=data[:8],
            callbacks=[callback, Stop(stop)],
        )
        trainer.train(resume_from_checkpoint=callback.resume(trainer))
        return trainer

    outcome = []
    for accumulation, stop in itertools.product((1, 2), (3, 5, 7)):
        name = f"{accumulation}-{stop}"
        whole = run(FOLDER / "whole" / name, 100, 100, accumulation)
        run(FOLDER / name, stop, stop, accumulation)
        resumed = run(FOLDER / name, 100, 100, accumulation)
        logs = [
            [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
            for trainer in (whole, resumed)
        ]
        outcome.append(equal(whole.model, resumed.model) and logs[0] == logs[1])
    return outcome


def lightning() -> Any:
    import lightning as library
    from lightning.pytorch.callbacks import ModelCheckpoint

    from provision_runtime.checkpoint.integrations.lightning import ProvisionCheckpointIO

    class Model(library.LightningModule):  # type: ignore[misc, unused-ignore]
        def __init__(self) -> None:
            super().__init__()
            self.save_hyperparameters({"width": 8})
            self.layers = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 1))

        def training_step(self, batch: Any, number: int) -> Any:
            return self.layers(batch).square().mean()

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.1)
            return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1)]

    def fit(root: str, epochs: int, path: Path | None = None) -> Any:
        torch.manual_seed(1)
        model = Model()
        trainer = library.Trainer(
            max_epochs=epochs,
            plugins=[ProvisionCheckpointIO()],
            callbacks=[ModelCheckpoint(FOLDER / root, save_last=True, save_top_k=1)],
            logger=False,
            enable_progress_bar=False,
            accelerator="cpu",
        )
        data = torch.utils.data.DataLoader(torch.arange(80.0).view(20, 4) / 80, batch_size=2)
        trainer.fit(model, data, ckpt_path=path)
        return model, trainer

    whole, _ = fit("whole", 3)
    fit("stopped", 1)
    last = FOLDER / "stopped" / "last.ckpt"
    resumed, trainer = fit("stopped", 3, last)
    saved = [checkpoint.list_steps(last), "state_dict.layers.0.weight" in checkpoint.contents(last)]
    # A file of Lightning's own, by the plugin and by import.
    file = FOLDER / "own.ckpt"
    trainer.strategy.checkpoint_io = library.fabric.plugins.TorchCheckpointIO()
    trainer.save_checkpoint(file)
    own = ProvisionCheckpointIO().load_checkpoint(file)["global_step"]
    imported = sorted(checkpoint.read_plain(file))[:3]
    return [equal(whole, resumed), saved, own, imported]


def fabric() -> Any:
    import lightning as library

    from provision_runtime.checkpoint.integrations.lightning import ProvisionCheckpointIO

    fabric = library.Fabric(accelerator="cpu", plugins=[ProvisionCheckpointIO()])
    fabric.launch()

    def run(steps: int, resume: bool, save: bool) -> Any:
        torch.manual_seed(3)
        model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
        model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters(), lr=0.1))
        state = {"model": model, "optim": optimizer, "rng": checkpoint.Rng(), "step": 0}
        if resume:
            fabric.load(FOLDER / "fabric.ckpt", state)
        while state["step"] < steps:
            optimizer.zero_grad()
            fabric.backward(model(torch.randn(3, 4)).square().sum())
            optimizer.step()
            state["step"] += 1
        if save:
            fabric.save(FOLDER / "fabric.ckpt", state)
        return model

    whole = run(6, False, False)
    run(3, False, True)
    return equal(whole, run(6, True, False))


def torchdata() -> Any:
    """A StatefulDataLoader in the middle of an epoch, without and with workers."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    outcome = []
    for workers in (0, 2):
        torch.manual_seed(1)
        loader, fresh = (
            StatefulDataLoader(list(range(20)), batch_size=2, num_workers=workers, shuffle=True)
            for _ in range(2)
        )
        batches = iter(loader)
        for _ in range(4):
            next(batches)
        root = FOLDER / f"data{workers}"
        state = {"data": checkpoint.PerRank(loader), "rng": checkpoint.Rng()}
        checkpoint.save(state, root, step=1)
        rest = [batch.tolist() for batch in batches]
        torch.manual_seed(2)
        checkpoint.load({"data": checkpoint.PerRank(fresh), "rng": checkpoint.Rng()}, root)
        outcome.append(len(rest) == 6 and rest == [batch.tolist() for batch in fresh])
    return outcome


def accelerate() -> Any:
    from accelerate import Accelerator
    from accelerate.utils import set_seed

    from provision_runtime.checkpoint.integrations.accelerate import register

    def run(steps: range, resume: bool) -> Any:
        accelerator = Accelerator(cpu=True)
        register(accelerator)
        set_seed(3)
        inner = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
        optimizer = torch.optim.Adam(inner.parameters(), lr=0.1)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        model, optimizer, scheduler = accelerator.prepare(inner, optimizer, scheduler)
        if resume:
            accelerator.load_state(FOLDER / "state")
        for _ in steps:
            optimizer.zero_grad()
            accelerator.backward(model(torch.randn(3, 4)).square().sum())
            optimizer.step()
            scheduler.step()
        if steps.stop == 3:
            accelerator.save_state(FOLDER / "state")
        return model

    whole = run(range(6), False)
    run(range(3), False)
    files = sorted(path.name for path in (FOLDER / "state").iterdir())
    return [equal(whole, run(range(3, 6), True)), files]


def peft() -> Any:
    from peft import LoraConfig, get_peft_model

    from provision_runtime.checkpoint.integrations.peft import Adapters

    def made(seed: int, adapter_seed: int) -> Any:
        base = language_model(seed)
        torch.manual_seed(adapter_seed)
        adapters = LoraConfig(r=2, target_modules=["q_proj"], init_lora_weights=False)
        model = get_peft_model(base, adapters)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        return model, torch.optim.AdamW(trained, lr=0.1)

    def train(model: Any, optimizer: Any) -> None:
        for step in range(2):
            optimizer.zero_grad()
            tokens = numbered(step, 1, 5)
            model(input_ids=tokens, labels=tokens).loss.backward()
            optimizer.step()

    model, optimizer = made(1, 2)
    train(model, optimizer)
    root = FOLDER / "adapters"
    checkpoint.save({"adapters": Adapters(model), "optim": optimizer}, root, step=1)
    train(model, optimizer)
    fresh, fresh_optimizer = made(1, 9)
    checkpoint.load({"adapters": Adapters(fresh), "optim": fresh_optimizer}, root)
    train(fresh, fresh_optimizer)
    weights = sum(name.startswith("adapters.weights") for name in checkpoint.contents(root))
    refused = False
    with contextlib.suppress(checkpoint.CheckpointError):
        refused = True
        checkpoint.load({"adapters": Adapters(made(5, 9)[0])}, root)
        refused = False
    return [equal(model, fresh), weights, refused]


def safetensors() -> Any:
    """What we export, transformers and safetensors read; what they write, we import."""
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM

    from provision_runtime.checkpoint import export
    from provision_runtime.checkpoint.export import ExportOptions
    from provision_runtime.checkpoint.inspection import transfer

    root, out = FOLDER / "checkpoints", FOLDER / "exported"
    model = language_model(1, tie_word_embeddings=True)
    odd = {
        "f8": torch.arange(5.0).to(torch.float8_e4m3fn),
        "scalar": torch.tensor(2.5),
        "empty": torch.empty(0, 4),
        "turned": torch.arange(6).view(2, 3).t(),
        "half": torch.ones(3, dtype=torch.bfloat16),
    }
    checkpoint.save({"model": model, "odd": odd}, root, step=1)
    outcome = []
    for number, dtype in enumerate((None, "bfloat16")):
        chosen = ExportOptions(part="model", dtype=dtype)
        export.SHARD_BYTES = 1e4 + number * 1e9
        exported = transfer.export_step(str(root), 1, str(out / str(dtype)), chosen)
        model.config.save_pretrained(exported.folder)
        read = AutoModelForCausalLM.from_pretrained(exported.folder, dtype="auto")
        expected = model.to(read.dtype) if dtype else model
        outcome.append([Path(exported.folder, "model.safetensors").exists(), equal(read, expected)])
    chosen = ExportOptions(part="odd")
    transfer.export_step(str(root), 1, str(out / "odd"), chosen)
    loaded = load_file(out / "odd" / "model.safetensors")
    same = {
        name: value.dtype == loaded[name].dtype and torch.equal(value, loaded[name])
        for name, value in odd.items()
    }
    save_file({name: value.contiguous() for name, value in odd.items()}, FOLDER / "odd.safetensors")
    back = checkpoint.read_plain(FOLDER / "odd.safetensors")
    return [outcome, same, all(torch.equal(value, back[name]) for name, value in odd.items())]


def main() -> None:
    warnings.simplefilter("ignore")
    print("found", json.dumps(globals()[sys.argv[1]]()))


main()
