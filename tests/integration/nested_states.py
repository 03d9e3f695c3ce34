"""Run as two ranks by an interpreter that has torch (test_checkpoint_nested): live objects below the top of a state dict.

Usage: nested_states.py FOLDER. Every case is a function; the last line is what each found, as JSON.
"""

from __future__ import annotations

import collections
import json
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import distributed, nn
from torch.optim.swa_utils import AveragedModel

from provision_runtime import checkpoint
from provision_runtime.comm import ranks

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FOLDER = Path(sys.argv[1])
STORE = distributed.TCPStore(
    "127.0.0.1", int(os.environ["MASTER_PORT"]), WORLD_SIZE, RANK == 0, timedelta(seconds=100)
)
US = ranks.through_store(STORE, RANK, WORLD_SIZE, 60)
Maker = Callable[[float], dict[str, Any]]


def filled(value: float, width: int = 3, bias: bool = True) -> nn.Linear:
    layer = nn.Linear(width, 1, bias=bias)
    for parameter in layer.parameters():
        nn.init.constant_(parameter, value)
    return layer


def stepped(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: int = 2
) -> torch.optim.Optimizer:
    def loss() -> torch.Tensor:
        optimizer.zero_grad()
        value: torch.Tensor = model(torch.ones(1, 3)).square().sum()
        value.backward()
        return value

    for _ in range(steps):
        optimizer.step(loss)
    return optimizer


def weights(*models: nn.Module) -> list[float]:
    return [float(next(model.parameters()).flatten()[0]) for model in models]


def refusal(action: Callable[[], Any]) -> str:
    """Of a checkpoint error, without what is said of the other rank."""
    try:
        action()
    except checkpoint.CheckpointError as error:
        return str(error).replace("nothing was saved: ", "").replace("rank 0: ", "")
    return "nothing"


def save(name: str, state: dict[str, Any], **options: Any) -> Path:
    checkpoint.save(state, FOLDER / name, step=1, ranks=US, **options)
    return FOLDER / name


def gan() -> Any:
    outcome = []
    for allow_pickle in (False, True):
        root = save("gan", {"nets": {"G": filled(1.0), "D": filled(2.0)}, "epoch": 3})
        generator, discriminator = filled(0.0), filled(0.0)
        nets = {"G": generator, "D": discriminator}
        state = {"nets": nets, "epoch": 0}
        report = checkpoint.load(state, root, ranks=US, allow_pickle=allow_pickle)
        same = state["nets"] is nets and nets["G"] is generator and nets["D"] is discriminator
        outcome.append(
            [
                weights(generator, discriminator),
                state["epoch"],
                same,
                report.missing,
                report.unexpected,
            ]
        )
    return [*outcome, sorted(checkpoint.contents(root))]


def containers() -> Any:
    """Named tuples, ordered and other dicts, tuples in lists: each live object is filled, none replaced."""

    class Pair(NamedTuple):
        actor: nn.Module
        steps: int

    class Attributes(dict):  # type: ignore[type-arg]
        __getattr__ = dict.__getitem__

    def make(value: float) -> tuple[dict[str, Any], list[nn.Module]]:
        models = [filled(value + number) for number in range(6)]
        state = {
            "pair": Pair(models[0], int(value)),
            "ordered": collections.OrderedDict([("b", models[1]), ("a", [(models[2], "x")])]),
            "attributes": Attributes(net=models[3], rate=value),
            "counts": collections.defaultdict(list, {7: [models[4]]}),
            "user": collections.UserDict({"net": {"deep": (1, [models[5]])}}),
            "again": [models[0], models[0]],
        }
        return state, models

    saved, _ = make(10.0)
    root = save("containers", saved)
    state, models = make(0.0)
    before = dict(state)
    report = checkpoint.load(state, root, ranks=US)
    types = [type(state[name]).__name__ for name in state]
    same = [
        state["pair"].actor is models[0],
        state["ordered"] is before["ordered"] and state["ordered"]["a"][0][0] is models[2],
        state["attributes"] is before["attributes"] and state["attributes"]["net"] is models[3],
        state["counts"] is before["counts"] and state["counts"][7][0] is models[4],
        state["user"]["net"]["deep"][1][0] is models[5],
    ]
    plain = [state["pair"].steps, state["attributes"]["rate"], state["ordered"]["a"][0][1]]
    return [weights(*models), types, same, plain, report.missing, report.unexpected]


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01, amsgrad=True),
    "lbfgs": lambda parameters: torch.optim.LBFGS(parameters, lr=0.01, max_iter=3),
}


def optimizers() -> Any:
    """Of fresh ones, and of ones that have taken other steps: the next steps are as without a load."""
    names = list(OPTIMIZERS)
    models = [filled(1.0 + number) for number in range(len(names))]
    steps = [stepped(m, OPTIMIZERS[name](m.parameters())) for name, m in zip(names, models)]
    root = save("optimizers", {"models": models, "optim": steps})
    outcome = {}
    for count in (0, 1, 5):
        fresh = [filled(0.5) for _ in names]
        others = [
            stepped(m, OPTIMIZERS[name](m.parameters()), count) for name, m in zip(names, fresh)
        ]
        checkpoint.load({"models": fresh, "optim": others}, root, ranks=US)
        equal = []
        for number in range(len(names)):
            copies = [filled(1.0 + number), fresh[number]]
            expected = stepped(copies[0], OPTIMIZERS[names[number]](copies[0].parameters()))
            stepped(copies[0], expected, 3)
            stepped(copies[1], others[number], 3)
            equal.append(weights(copies[0]) == weights(copies[1]))
        outcome[count] = equal
    return outcome


class NamedOptimizer:
    """Its state is by the names of parameters, as some libraries have it."""

    def __init__(self, value: float) -> None:
        self.param_groups = [{"lr": value, "params": ["w"]}]
        self.state = {"w": {"momentum": torch.full((2,), value)}}

    def state_dict(self) -> dict[str, Any]:
        return {"state": self.state, "param_groups": self.param_groups}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state, self.param_groups = state["state"], state["param_groups"]


def named_state() -> Any:
    root = save("named", {"optim": {"a": NamedOptimizer(3.0)}})
    optimizer = NamedOptimizer(0.0)
    checkpoint.load({"optim": {"a": optimizer}}, root, ranks=US)
    return [optimizer.state["w"]["momentum"].tolist(), optimizer.param_groups[0]["lr"]]


def frozen_parameters() -> Any:
    """A parameter without a gradient has no state: it comes back as it was saved, either way."""
    outcome = []
    for saved_bias, live_bias in ((True, False), (False, True)):
        states = []
        for has_bias in (saved_bias, live_bias):
            model = filled(1.0)
            model.bias.requires_grad_(has_bias)
            states.append(stepped(model, torch.optim.Adam(model.parameters())))
        root = save("frozen", {"runs": [{"optim": states[0]}]})
        checkpoint.load({"runs": [{"optim": states[1]}]}, root, ranks=US)
        outcome.append([sorted(optimizer.state_dict()["state"]) for optimizer in states])
    return outcome


def schedules() -> Any:
    """Their optimizer is not in the state dict; with an average of a model and a scaler."""

    def make(steps: int) -> tuple[dict[str, Any], Any, Any, Any]:
        model = filled(1.0)
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 10)
        many = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        average = AveragedModel(model)
        for _ in range(steps):
            optimizer.step()
            cosine.step()
            average.update_parameters(filled(float(steps)))
        return (
            {"schedules": {"main": cosine, "all": [many]}, "ema": (average,)},
            cosine,
            many,
            average,
        )

    saved, cosine, *_ = make(3)
    root = save("schedules", saved)
    state, other, many, average = make(0)
    checkpoint.load(state, root, ranks=US)
    equal = other.state_dict() == cosine.state_dict() and state["schedules"]["main"] is other
    _, *others = make(0)
    wrong = {"schedules": {"main": others[1], "all": [many]}, "ema": (average,)}
    return [
        equal,
        weights(average),
        int(average.n_averaged),
        refusal(partial(checkpoint.load, wrong, root, ranks=US)),
    ]


def adapters() -> Any:
    """The trained parts of a model alone; the others stay."""
    base = nn.ModuleList([filled(5.0), filled(6.0)])
    root = save("adapters", {"lora": {"q": filled(1.0, bias=False), "v": filled(2.0, bias=False)}})
    q, v = filled(0.0, bias=False), filled(0.0, bias=False)
    checkpoint.load({"lora": {"q": q, "v": v}}, root, ranks=US)
    only = filled(0.0, bias=False)
    checkpoint.load({"lora": {"v": only}}, root, ranks=US)
    return weights(q, v, only, *base)


@dataclass
class Holder:
    net: Any


class HalfLive:
    def state_dict(self) -> dict[str, Any]:
        return {}


def refused_saves() -> Any:
    """What a load could not fill, by its path; nothing is there then."""
    itself: dict[str, Any] = {}
    itself["again"] = [itself]
    model = filled(1.0)
    states: dict[str, dict[str, Any]] = {
        "dataclass": {"a": [{"b": Holder(model)}]},
        "tensor": {"a": {"b": Holder(torch.ones(1))}},
        "deque": {"a": collections.deque([torch.ones(1)])},
        "method": {"a": {"hook": model.forward}},
        "half": {"a": [HalfLive()]},
        "itself": {"a": itself},
        "key": {"a": {model: 1}},
        "tensor key": {"a": {model.weight: 1}},
        "names": {"a.b": filled(1.0), "a": {"b": filled(2.0)}},
        "numbers": {"a": {0: torch.ones(1), "0": torch.ones(1)}},
    }
    return {
        name: refusal(partial(checkpoint.save, state, FOLDER / "no", step=1, ranks=US))
        for name, state in states.items()
    } | {"steps": checkpoint.list_steps(FOLDER / "no")}


def refused_loads() -> Any:
    """Nothing of what is here was touched by then."""
    state = {
        "list": [torch.ones(1), torch.ones(1)],
        "tuple": (torch.ones(1), 5),
        "model": filled(1.0),
        "two": {"a": torch.ones(1), "b": torch.full((1,), 2.0)},
        "plain": {"x": 1, "y": {"z": 2}},
        "numbers": [1, 2, 3],
    }
    root = save("loads", state)
    one = torch.zeros(1)
    alias = torch.zeros(1)
    lives: dict[str, dict[str, Any]] = {
        "shorter": {"list": [one]},
        "longer": {"list": [one, torch.zeros(1), torch.zeros(1)]},
        "empty": {"list": []},
        "empty dict": {"two": {}},
        "tuple": {"tuple": (one, torch.zeros(1))},
        "long tuple": {"tuple": (one, 5, 6)},
        "shape": {"tuple": (torch.zeros(2), 5)},
        "part": {"model": filled(0.0, bias=False)},
        "one": {"two": {"a": one, "b": one}},
        "deep": {"plain": {"x": 0, "y": {"z": 0, "w": 0}}},
        "holder": {"numbers": Holder(filled(0.0))},
    }
    texts = {
        name: refusal(partial(checkpoint.load, live, root, ranks=US, allow_pickle=True))
        for name, live in lives.items()
    }
    plain = {"x": 0}
    fitting: dict[str, Any] = {"tuple": (alias, 0), "numbers": [0], "plain": plain}
    checkpoint.load(fitting, root, ranks=US)
    whole = [float(alias), fitting["tuple"][1], fitting["numbers"], plain["x"]]
    whole.append(fitting["plain"] is plain)
    loose = {
        "model": filled(0.0, bias=False),
        "plain": {"x": 0, "y": {"z": 0, "w": 7}},
        "list": [one],
    }
    report = checkpoint.load(loose, root, ranks=US, strict=False)
    left = [name for name in report.unexpected if name.startswith(("model", "list"))]
    return [texts, whole, [weights(loose["model"]), loose["plain"], report.missing, left]]


def parts_of_ranks() -> Any:
    """A model that is cut into stages: each rank has names of its own below the same one."""

    def stage(value: float) -> nn.Module:
        return nn.ModuleDict({f"stage{RANK}": filled(value + RANK)})

    root = save("stages", {"run": {"model": stage(1.0)}})
    model = stage(0.0)
    checkpoint.load({"run": {"model": model}}, root, ranks=US)
    bare = nn.ModuleDict({f"stage{RANK}": filled(0.0, bias=RANK == 1)})
    text = refusal(partial(checkpoint.load, {"run": {"model": bare}}, root, ranks=US))
    return [weights(model), text]


def wrapped() -> Any:
    """DistributedDataParallel and sharded tensors below the top, then fewer ranks."""
    distributed.init_process_group(
        "gloo", store=distributed.PrefixStore("group", STORE), rank=RANK, world_size=WORLD_SIZE
    )
    try:
        from torch.distributed._tensor import Shard, distribute_tensor
        from torch.distributed.device_mesh import init_device_mesh
    except ImportError:
        return None

    def make(value: float) -> dict[str, Any]:
        parallel = nn.parallel.DistributedDataParallel(filled(value))
        mesh = init_device_mesh("cpu", (WORLD_SIZE,))
        part = distribute_tensor(torch.arange(6.0) * value, mesh, [Shard(0)])
        return {"nets": [parallel], "parts": ({"w": part}, "x")}

    root = save("wrapped", make(2.0))
    state = make(0.0)
    checkpoint.load(state, root, ranks=US)
    local = state["parts"][0]["w"].to_local().tolist()
    alone: dict[str, Any] = {
        "nets": [filled(0.0)],
        "parts": ({"w": torch.zeros(6)}, ""),
    }
    alone["parts"] = [alone["parts"][0], ""]
    checkpoint.load(alone, root, ranks=ranks.single_process())
    whole = [
        weights(alone["nets"][0]),
        alone["parts"][0]["w"].tolist(),
        alone["parts"][1],
    ]
    distributed.destroy_process_group()
    return [weights(state["nets"][0].module), local, whole]


def managed() -> Any:
    """In the background, and after a restart; what was saved is what it was at the save."""

    def make(value: float) -> tuple[dict[str, Any], nn.Module, torch.optim.Optimizer]:
        model = filled(value)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
        return {"agents": [{"net": model, "optim": (optimizer,)}]}, model, optimizer

    root = FOLDER / "managed"
    state, model, optimizer = make(1.0)
    with checkpoint.CheckpointManager(
        root, state, every=1, background=True, on_signal=False, ranks=US
    ) as manager:
        for step in (1, 2):
            stepped(model, optimizer, 1)
            manager.after_step(step)
        saved = weights(model)
        stepped(model, optimizer, 1)
    state, other, optimizer = make(0.0)
    with checkpoint.CheckpointManager(root, state, every=1, on_signal=False, ranks=US) as manager:
        restored = manager.restore()
    same = weights(other) == saved
    stepped(other, optimizer, 1)
    return [restored, same, weights(other) == weights(model)]


CASES = (
    gan,
    containers,
    optimizers,
    named_state,
    frozen_parameters,
    schedules,
    adapters,
    refused_saves,
    refused_loads,
    parts_of_ranks,
    wrapped,
    managed,
)


def main() -> None:
    warnings.simplefilter("ignore")
    outcome = {case.__name__: case() for case in CASES}
    US.exchange("done", None)
    print("found", json.dumps(outcome))


if __name__ == "__main__":
    main()
