"""The faults of a training program that its text shows."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from ..probe import Observation, observation
from .ranks import (
    ONE,
    OPPOSITE,
    OTHERS,
    collectives,
    is_alone,
    is_rank,
    reached,
    rest_after,
    runs_on_one_rank,
    side,
)
from .source import FUNCTIONS, Program, constant, keywords, last_name, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

# One of these names makes a program one of several processes.
DISTRIBUTED = frozenset(
    "init_process_group DistributedDataParallel FullyShardedDataParallel fully_shard FSDP DDP Fabric"
    " Accelerator DistributedSampler barrier all_reduce init_distributed deepspeed init_device_mesh"
    " init_distributed_mode get_world_size get_rank notebook_launcher spawn LOCAL_RANK".split()
)
SAVES = frozenset(
    "save async_save save_state_dict state_dict get_state_dict save_state save_checkpoint full_tensor"
    " get_model_state_dict get_optimizer_state_dict optim_state_dict full_optim_state_dict"
    " summon_full_params consolidate_state_dict save_16bit_model".split()
)


def is_distributed(program: Program) -> bool:
    return bool(program.names & DISTRIBUTED) or "LOCAL_RANK" in program.text


def examine_program(program: Program) -> list[Observation]:
    """The findings of the file, by line."""
    if not is_distributed(program):
        return []
    faults: dict[tuple[str, int], Observation] = {}
    for search in (
        _calls_of_some_ranks,
        _launches,
        _folders,
        _samplers,
        _devices,
        _ports,
        _workers,
        _loads,
        _parameters,
    ):
        for id, node, message, command in search(program):
            source = program.position(node.lineno)
            seen = program.line(node.lineno)
            faults.setdefault((id, node.lineno), observation(id, message, source, seen, command))
    return [faults[key] for key in sorted(faults, key=lambda key: key[1])]


Fault = "tuple[str, ast.expr, str, str]"


def _calls_of_some_ranks(program: Program) -> Iterator[tuple[str, ast.expr, str, str]]:
    for node in ast.walk(program.trees[0]):
        if isinstance(node, FUNCTIONS) and runs_on_one_rank(node.decorator_list):
            for name, call in collectives(program, node.body)[:1]:
                yield _one_rank(name, call, f"@{program.source(node.decorator_list[0])}")
        elif isinstance(node, ast.IfExp) and side(program, node.test):
            names = [name for name, _ in collectives(program, [node.orelse])]
            for name, call in collectives(program, [node.body])[:1]:
                if name not in names:
                    yield _one_rank(name, call, program.source(node.test))
        elif isinstance(node, ast.If):
            yield from _fork(program, node)


def _fork(program: Program, node: ast.If) -> Iterator[tuple[str, ast.expr, str, str]]:
    """The collectives of one branch that the other has not."""
    kind = side(program, node.test)
    if not kind:
        return
    test = program.source(node.test)
    rest = rest_after(program, node)
    inside = collectives(program, node.body)
    outside = collectives(program, [*node.orelse, *rest])
    for name, call in inside:
        if name not in dict(outside) and not _has_counterpart(program, node, kind, name):
            yield _one_rank(name, call, test)
            break
    for name, call in outside:
        if name not in dict(inside):
            if rest:
                test = f"not ({test}): the others leave in line {node.body[-1].lineno}"
            yield _one_rank(name, call, test if rest else f"not ({test})")
            break


def _one_rank(name: str, call: ast.Call, test: str) -> tuple[str, ast.expr, str, str]:
    id = "checkpoint-one-rank" if name in SAVES else "collective-one-rank"
    through = "" if last_name(call) in name else f", through {last_name(call)}()"
    return id, call, f"{name}{through}: only by ranks for which `{test}`", ""


def _has_counterpart(program: Program, node: ast.If, kind: str, name: str) -> bool:
    """True if the other ranks make the call elsewhere in the function."""
    for item in walk(program.scope(node).body):
        if isinstance(item, ast.If) and side(program, item.test) == OPPOSITE[kind]:
            if name in dict(collectives(program, item.body)):
                return True
    return False


def _launch(program: Program, call: ast.Call) -> str:
    """The name of a call that starts the ranks."""
    name = last_name(call.func)
    owner = last_name(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    is_spawn = name == "spawn" and owner in ("mp", "multiprocessing", "")
    if is_spawn or name in ("start_processes", "notebook_launcher"):
        return name
    return name if name == "launch" and owner.lower().endswith("fabric") else ""


def _launches(program: Program) -> Iterator[tuple[str, ast.expr, str, str]]:
    tree = program.trees[0]
    for function in ast.walk(tree):
        if isinstance(function, FUNCTIONS) and function.name in ("__init__", "__post_init__"):
            for name, call in reached(program, function.body, _launch):
                yield "launch-in-init", call, f"{function.name} starts the ranks ({name})", ""
    for name, call in reached(program, tree.body, _launch):
        # Fabric's launch without a function runs the file again, as torchrun would.
        is_rerun = name == "launch" and last_name(call) == name and not call.args
        if not (is_rerun or program.cells or _is_main_only(program, call)):
            message = f"importing this file starts the ranks ({name})"
            yield "launch-unguarded", call, message, 'if __name__ == "__main__":'


def _is_main_only(program: Program, node: ast.AST) -> bool:
    """True below `if __name__ == "__main__"`."""
    tests = [item.test for item in program.ancestors(node) if isinstance(item, ast.If)]
    return any(last_name(name) == "__name__" for test in tests for name in ast.walk(test))


def _spawned(program: Program) -> set[str]:
    """The functions that a program starts as ranks of its own."""
    calls = program.calls("spawn", "start_processes", "notebook_launcher", "launch")
    targets = [value for call in calls for value in (*call.args[:1], *keywords(call).values())]
    return {last_name(target) for target in targets} & set(program.functions)


def _is_for_all(program: Program, node: ast.AST, depth: int = 4) -> bool:
    """True if every rank runs this, at the same time."""
    child = node
    spawned = _spawned(program)
    for outer in program.ancestors(node):
        if isinstance(outer, ast.If):
            kind = side(program, outer.test)
            if (kind == ONE and child in outer.body) or (kind == OTHERS and child in outer.orelse):
                return False
            if child in outer.body and is_alone(program, outer.test):
                return False
            if spawned and _is_main_only(program, child):
                return False
        if isinstance(outer, (ast.With, ast.AsyncWith)):
            if any("first" in last_name(item.context_expr) for item in outer.items):
                return False
        if isinstance(outer, FUNCTIONS):
            return _is_function_for_all(program, outer, node, spawned, depth)
        child = outer
    return True


def _is_function_for_all(
    program: Program, function: ast.AST, node: ast.AST, spawned: set[str], depth: int
) -> bool:
    assert isinstance(function, FUNCTIONS)
    if runs_on_one_rank(function.decorator_list):
        return False
    for item in walk(function.body):
        if isinstance(item, ast.If) and item.lineno < node.lineno and rest_after(program, item):
            if side(program, item.test) == OTHERS:
                return False
    if function.name in spawned:
        return True
    name = function.name
    parent = program.parents[function]
    if name == "__init__" and isinstance(parent, ast.ClassDef):
        name = parent.name
    callers = program.calls(name)
    if not callers:
        return name == "main" and not spawned
    return depth > 0 and any(_is_for_all(program, call, depth - 1) for call in callers)


def _folders(program: Program) -> Iterator[tuple[str, ast.expr, str, str]]:
    """Folders that all ranks make or remove at once."""
    for call in program.calls("makedirs", "mkdir", "rmtree", "remove", "unlink"):
        name = last_name(call.func)
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        path = call.args[0] if call.args else owner
        if path is None or (name == "remove" and last_name(owner or path) != "os"):
            continue
        options = keywords(call)
        is_safe = bool(options.keys() & {"exist_ok", "ignore_errors", "missing_ok"})
        is_safe = is_safe or (name in ("makedirs", "rmtree") and len(call.args) > 2)
        is_safe = is_safe or any(isinstance(item, ast.Try) for item in program.ancestors(call))
        if is_safe or _differs_by_rank(program, path) or not _is_for_all(program, call):
            continue
        text = program.source(path)
        if name == "makedirs":
            message = f"every rank makes {text}, and all but the first fail"
            yield "makedirs-race", call, message, f"os.makedirs({text}, exist_ok=True)"
        elif name == "mkdir":
            message = f"every rank makes {text}, and all but the first fail"
            command = f"Path({text}).mkdir(parents=True, exist_ok=True)"
            yield "makedirs-race", call, message, command
        else:
            message = f"every rank removes {text}, and all but the first fail"
            command = f"if rank == 0:\n    {program.source(call)}\ndist.barrier()"
            yield "makedirs-race", call, message, command


def _differs_by_rank(program: Program, path: ast.expr) -> bool:
    """True for a path that names the rank, or is temporary."""
    nodes = list(ast.walk(path))
    for node in ast.walk(path):
        for value in program.assigned.get(last_name(node), []):
            nodes += ast.walk(value)
    names = [last_name(node) for node in nodes]
    return any(is_rank(program, node) for node in nodes) or any(
        re.search(r"te?mp|getpid|uuid", name, re.I) for name in names
    )


def _samplers(program: Program) -> Iterator[tuple[str, ast.expr, str, str]]:
    """Samplers that are told no epoch, in a program with epochs."""
    if program.names & {"set_epoch", "Fabric", "Accelerator", "LightningModule"}:
        return
    loops = [node for node in ast.walk(program.trees[0]) if isinstance(node, (ast.For, ast.While))]
    heads = [node.target if isinstance(node, ast.For) else node.test for node in loops]
    if not any("epoch" in last_name(name).lower() for head in heads for name in ast.walk(head)):
        return
    for call in program.calls("DistributedSampler"):
        if constant(keywords(call).get("shuffle")) is not False:
            message = "no epoch is passed to the sampler: every epoch has the first one's order"
            yield "set-epoch-missing", call, message, "sampler.set_epoch(epoch)"


def _devices(program: Program) -> Iterator[tuple[str, ast.expr, str, str]]:
    """Barriers, and collectives of objects, on a GPU that nobody chose."""
    waits = program.calls(
        "barrier", "broadcast_object_list", "all_gather_object", "gather_object"
    )
    waits = [call for call in waits if "device_ids" not in keywords(call)]
    for call in program.calls("init_process_group"):
        options = keywords(call)
        backend = options.get("backend", call.args[0] if call.args else None)
        if "device_id" in options or constant(backend) == "gloo" or not waits:
            return
        if not program.names & {"set_device", "set_device_index"}:
            if "CUDA_VISIBLE_DEVICES" not in program.text and _is_for_all(program, call):
                message = "init_process_group has no device_id, and nothing calls set_device"
                yield "barrier-device", call, message, ""
            return
    choices = program.calls("set_device", "set_device_index")
    for wait in waits if program.calls("init_process_group") else ():
        later = [call for call in choices if program.scope(call) is program.scope(wait)]
        if later and later[0].lineno > wait.lineno:
            name = last_name(wait)
            message = f"{name} comes before set_device in line {later[0].lineno}"
            yield "barrier-device", wait, message, program.source(later[0])
            return


def _ports(program: Program) -> Iterator[tuple[str, ast.expr, str, str]]:
    """Ports of the store that are written into the program."""
    for node in ast.walk(program.trees[0]):
        value: ast.expr | None = None
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            if constant(node.targets[0].slice) == "MASTER_PORT":
                value = node.value
        elif isinstance(node, ast.keyword) and node.arg == "MASTER_PORT":
            value = node.value
        elif isinstance(node, ast.keyword) and node.arg == "init_method":
            value = node.value
        elif isinstance(node, ast.Dict):
            for key, item in zip(node.keys, node.values):
                value = item if constant(key) == "MASTER_PORT" else value
        if value is None or _is_conditional(program, node):
            continue
        port = re.search(r"(?:^|tcp://.*:)(\d+)/?$", str(_literal(program, value)))
        if port:
            message = f"port {port[1]} is fixed: two jobs on a node meet there"
            yield "port-fixed", value, message, "os.environ.setdefault('MASTER_PORT', PORT)"


def _literal(program: Program, node: ast.expr) -> object:
    """The value of a literal, of `str(literal)`, and of a variable that is only ever one."""
    if isinstance(node, ast.Call) and last_name(node) == "str" and node.args:
        return _literal(program, node.args[0])
    values = program.assigned.get(last_name(node), []) if isinstance(node, ast.Name) else [node]
    return constant(values[0]) if len(values) == 1 else None


def _is_conditional(program: Program, node: ast.AST) -> bool:
    """True if the program looks first whether the environment has a port."""
    tests = [item.test for item in program.ancestors(node) if isinstance(item, ast.If)]
    return any(re.search("MASTER_|environ", program.source(test)) for test in tests)


def _workers(program: Program) -> Iterator[tuple[str, ast.expr, str, str]]:
    """Random numbers of NumPy in a dataset whose workers are not seeded."""
    if program.names & {"worker_init_fn", "get_worker_info", "initial_seed", "seed_everything"}:
        return
    loaders = [call for call in program.calls("DataLoader") if _has_workers(call)]
    if not loaders or any("worker_init_fn" in keywords(call) for call in loaders):
        return
    for call in program.calls("seed", "manual_seed", "set_seed"):
        if any(is_rank(program, node) for node in ast.walk(call)):
            return
    for definition in ast.walk(program.trees[0]):
        if not isinstance(definition, ast.ClassDef):
            continue
        methods = [item for item in definition.body if isinstance(item, FUNCTIONS)]
        if not {method.name for method in methods} & {"__getitem__", "__iter__"}:
            continue
        for node in ast.walk(definition):
            if isinstance(node, ast.Call) and re.match(
                r"(np|numpy)\.random\.|random\.Random\(|default_rng\(|RandomState\(",
                program.source(node.func) + "(",
            ):
                message = f"{definition.name} draws from NumPy's random numbers in each worker"
                command = "DataLoader(..., worker_init_fn=seed_worker)"
                yield "workers-unseeded", node, message, command
                break


def _has_workers(loader: ast.Call) -> bool:
    return constant(keywords(loader).get("num_workers", ast.Constant(value=0))) != 0


def _loads(program: Program) -> Iterator[tuple[str, ast.expr, str, str]]:
    """Checkpoints that every rank loads onto the GPU that wrote them."""
    for call in program.calls("load"):
        if program.source(call.func) != "torch.load" or not call.args:
            continue
        device = keywords(call).get("map_location", call.args[1] if len(call.args) > 1 else None)
        is_first = constant(device) in ("cuda:0", 0) or program.source(device or call.args[0]) in (
            "torch.device('cuda:0')",
            'torch.device("cuda:0")',
        )
        statement = next(item for item in program.ancestors(call) if isinstance(item, ast.stmt))
        is_checkpoint = re.search(
            "ckpt|checkpoint|resume|weight|state|model|pretrain|snapshot",
            program.source(statement).split("\n")[0], re.I
        )
        if (device is None or is_first) and is_checkpoint and _is_for_all(program, call):
            message = "every rank loads the file onto the GPU that wrote it"
            command = f"torch.load({program.source(call.args[0])}, map_location='cpu')"
            yield "load-device", call, message, command


def _parameters(program: Program) -> Iterator[tuple[str, ast.expr, str, str]]:
    """Layers whose shape differs between ranks."""
    for node in ast.walk(program.trees[0]):
        if isinstance(node, ast.IfExp) and side(program, node.test):
            call = program.parents[node]
            if isinstance(call, ast.Call) and program.source(call.func).startswith(("nn.", "torch.nn.")):
                message = f"{program.source(call.func)} has another shape where {program.source(node.test)}"
                yield "parameters-by-rank", node, message, ""
