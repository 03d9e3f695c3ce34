"""Faults of training programs, from the syntax tree of one file: nothing is imported or run."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Tuple, Union

from ..dataclass import frozen
from .probe import observation
from .program_source import FUNCTIONS, LOOPS, ONE, OTHERS, Function, Program, walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ..report.diagnosis import ObservedFinding

# A program with one of these runs in several processes.
DISTRIBUTED = (
    r"torch\.distributed|DistributedDataParallel|\bDDP\(|fully_shard|FullyShardedDataParallel|\bFabric\("
    r"|Accelerator\(|DistributedSampler|deepspeed|notebook_launcher|\bmp\.spawn|LOCAL_RANK"
    r"|torch\.multiprocessing|\.(?:all_reduce|barrier)\("
)
# What all ranks must call: on anything, or on these objects only.
COLLECTIVE = (
    r"(?:.*\.)?(?:all_reduce|all_gather\w*|all_to_all\w*|(?:monitored_)?barrier|broadcast_object_list"
    r"|(?:gather|scatter)_object\w*|reduce_scatter\w*|wait_for_everyone|gather_for_metrics"
    r"|pad_across_processes)"
    r"|(?:.*\.)?(?:\w*dist\w*|c10d|td)\.(?:reduce|gather|scatter|broadcast|new_group)"
    r"|(?:.*\.)?_?accelerator\.(?:gather|reduce|prepare)"
    r"|(?:.*\.)?_?fabric\.(?:broadcast|save|load|setup|setup_dataloaders|clip_gradients)"
    r"|(?:.*\.)?strategy\.(?:broadcast|reduce)"
    r"|(?:.*\.)?trainer\.(?:fit|validate|test|predict|evaluate|train|save_checkpoint)"
    # The state of what is spread over the ranks.
    r"|(?:.*\.)?(?:get_(?:model|optimizer)_state_dict|(?:full_)?optim_state_dict|full_tensor"
    r"|summon_full_params|consolidate_state_dict|save_16bit_model)"
)
# And in a program that uses these modules.
OF_MODULES = {
    r"\bFSDP\b|FullyShardedDataParallel|fully_shard": r"(?:.*\.)?(?:\w*model|\w*net|accelerator)"
    r"\.(?:state_dict|get_state_dict|save_state)",
    r"distributed\.checkpoint": r"(?:dcp|DCP|dist_cp|checkpoint)"
    r"\.(?:(?:async_)?save|load|\w+_state_dict)",
    r"DistributedDataParallel|\bDDP\b|FSDP|Accelerator\(|\bFabric\(": r"(?!ctx).+\.backward",
    r"from torch\.distributed import .*(?:broadcast|reduce)": r"broadcast|reduce|gather|scatter",
    "deepspeed": r"(?:.*\.)?(?:\w*engine|model\w*)\.save_checkpoint",
}
LAUNCH = (
    r"(?:[\w.]*\.)?(?:mp|multiprocessing)\.(?:spawn|start_processes)|(?:[\w.]*\.)?notebook_launcher"
    r"|(?:[\w.]*\.)?\w*fabric\.launch|spawn|start_processes"
)
ONE_RANK = (
    r"\b(?:rank_zero_only|rank_0_only|on_(?:local_)?main_process|(?:main|master)_(?:process_)?only)"
)
MAKES = r"os\.makedirs|os\.mkdir|shutil\.rmtree|os\.remove|os\.unlink|.+\.mkdir"
SAFE_PATH = r"(?i)exist_ok|ignore_errors|missing_ok|rank|te?mp|getpid|uuid"
WAITS = (
    r"[\w.]*\b(?:barrier|broadcast_object_list|all_gather_object|gather_object)\((?!.*device_ids)"
)
STARTS = r"[\w.]*init_process_group\((?!.*device_id)(?!(?:backend=)?['\"]gloo['\"])"
PORT = (
    r"(?:MASTER_PORT['\"]?\]?\s*[=:]\s*(?:str\()?['\"]?|init_method=f?['\"]tcp://[^'\"]*:)"
    r"(\w+)['\"]?\)?\s*(?:$|[,})])"
)


@frozen
class CallRule:
    """call: of the call's text. rest: of the program from its line on. owner: of the name of the
    class around it. needs, unless: of the program. by_all: only where every rank runs it."""

    id: str
    message: str
    call: str
    rest: str = ""
    needs: str = ""
    unless: str = r"(?!)"
    owner: str = ""
    by_all: bool = True


CALL_RULES = (
    CallRule(
        "barrier-device",
        "init_process_group has no device_id, and nothing calls set_device",
        STARTS,
        needs=WAITS,
        unless="set_device|CUDA_VISIBLE_DEVICES",
    ),
    CallRule(
        "barrier-device",
        "the rank chooses its GPU only later",
        r"[\w.]*\b(?:barrier|all_reduce|(?:all_)?gather_object)\((?!.*device_ids)",
        rest=r"(?s:(?:(?!\n *def ).)*\bset_device\()",
        needs=r"(?s)\A(?:(?!set_device\().)*?init_process_group\((?:(?!set_device\().)*?(?:barrier|"
        r"all_reduce|gather_object)\(",
        unless=r"device_id=|['\"]gloo['\"]",
        by_all=False,
    ),
    CallRule(
        "set-epoch-missing",
        "no set_epoch: every epoch has the order of the first",
        r"[\w.]*DistributedSampler\((?!.*shuffle=False)",
        needs=r"(?m)^\s*(?:for|while)\b.*epoch",
        # A function elsewhere that is given the sampler may pass it the epoch.
        unless=r"set_epoch|\bFabric\(|Accelerator\(|LightningModule"
        r"|\w*(?<!Loader)\([^()]*,\s*(?:sampler=)?\w*sampler\d*\s*\)",
        by_all=False,
    ),
    CallRule(
        "workers-unseeded",
        "a dataset draws random numbers in workers that nothing seeds",
        r"(?:np|numpy)\.random\.|random\.Random\(|[\w.]*default_rng\((?!.*(?:idx|index|epoch|worker))",
        needs=r"(?s)\A(?=.*num_workers *= *(?!0\b)).*def __(?:getitem|iter)__",
        unless=r"worker_init_fn|get_worker_info|initial_seed|seed_everything|seed\w*\([^)]*rank",
        owner=r"(?!\w*Sampler)\w",
        by_all=False,
    ),
)

Fault = Tuple[str, Union[ast.expr, ast.stmt], str]


def examine_program(program: Program) -> list[ObservedFinding]:
    """The findings of the file, by line."""
    faults: dict[tuple[int, str], ObservedFinding] = {}
    if not program.has(DISTRIBUTED):
        return []
    for search in (one_sided_calls, _launches, _folders, _calls, _ports):
        for id, node, message in search(program):
            source = f"{program.name}:{node.lineno}"
            seen = program.lines[node.lineno - 1].strip()
            faults.setdefault((node.lineno, id), observation(id, message, source, seen))
    return [faults[key] for key in sorted(faults)]


def _collective(program: Program, call: ast.Call) -> str:
    """The name of a call that all ranks must make; "" for others, and within a smaller group."""
    function, text = program.source(call.func), program.source(call)
    if re.search(r"\b(?:process_)?group=(?!None|[\w.]*WORLD)", text):
        return ""
    is_collective = re.fullmatch(_collective_names(program), function)
    return function.split(".")[-1] if is_collective or "sync_dist=True" in text else ""


@lru_cache(maxsize=1)
def _collective_names(program: Program) -> str:
    patterns = [pattern for module, pattern in OF_MODULES.items() if program.has(module)]
    return "|".join([COLLECTIVE, *patterns])


def _reached(program: Program, nodes: Iterable[ast.AST], depth: int = 3) -> dict[str, ast.Call]:
    """The first call of each collective among these nodes, directly or through functions of the file,
    but not below a condition on their arguments."""
    calls: dict[str, ast.Call] = {}
    for node in walk(nodes):
        if not isinstance(node, ast.Call):
            continue
        if name := _collective(program, node):
            calls.setdefault(name, node)
        for callee in program.functions.get(program.source(node.func), []) if depth else ():
            arguments = "|".join(item.arg for item in callee.args.args if item.arg != "self")
            condition = rf"(?:if|with)\b.*\b(?:{arguments or '-'})\b"
            body = [item for item in callee.body if not re.match(condition, program.source(item))]
            for inner in _reached(program, body, depth - 1):
                if inner != "state_dict":
                    calls.setdefault(inner, node)
    return calls


def one_sided_calls(program: Program) -> Iterator[Fault]:
    """Collectives that one side of a condition on the rank calls, and the other does not."""
    for node in ast.walk(program.tree):
        if isinstance(node, FUNCTIONS) and _is_on_one_rank(program, node):
            yield from _one_rank(_reached(program, node.body), {}, "a decorator chooses")
        if not isinstance(node, ast.If) or not program.side(node.test):
            continue
        test = program.source(node.test)
        rest = _rest_after(program, node)
        inside, outside = _reached(program, node.body), _reached(program, node.orelse + rest)
        # What the ranks of the other side call elsewhere in the function.
        shared: dict[str, ast.Call] = {}
        for item in walk(program.scope(node).body):
            if isinstance(item, ast.If):
                sides = {program.side(test), program.side(item.test)}
                shared.update(_reached(program, item.body) if sides == {ONE, OTHERS} else {})
        yield from _one_rank(inside, {**outside, **shared}, f"`{test}`")
        yield from _one_rank(outside, {**inside, **shared}, f"not `{test}`")


def _is_on_one_rank(program: Program, function: Function) -> bool:
    """True with a decorator such as `@rank_zero_only`."""
    return any(re.search(ONE_RANK, program.source(item)) for item in function.decorator_list)


def _one_rank(
    calls: dict[str, ast.Call], elsewhere: dict[str, ast.Call], test: str
) -> Iterator[Fault]:
    for name in [name for name in calls if name not in elsewhere][:1]:
        is_save = re.search("state|save|load|tensor|params", name)
        id = "checkpoint-one-rank" if is_save else "collective-one-rank"
        yield id, calls[name], f"{name} is called by some ranks only: {test}"


def _rest_after(program: Program, statement: ast.If) -> list[ast.stmt]:
    """The statements that ranks skip which leave at the end of this `if`: those of the function
    after it, or of the loop."""
    last = program.source(statement.body[-1])
    if not re.match(r"return\b|continue|break|(?:sys\.)?exit\(", last):
        return []
    loops = [item for item in program.ancestors(statement) if isinstance(item, LOOPS)]
    is_of_loop = last in ("continue", "break")
    body = loops[0].body if is_of_loop else program.scope(statement).body
    nodes = [item for item in walk(body) if isinstance(item, ast.stmt)]
    return [item for item in nodes if item.lineno > (statement.end_lineno or 0)]


def _launches(program: Program) -> Iterator[Fault]:
    for call in program.calls:
        is_launch = re.fullmatch(LAUNCH, program.source(call.func))
        if is_launch and getattr(program.scope(call), "name", "") == "__init__":
            yield "launch-in-init", call, "__init__ starts the ranks"


def _is_below(program: Program, node: ast.AST, pattern: str) -> bool:
    """True below an `if` or `with` whose line has this."""
    outer = [item for item in program.ancestors(node) if isinstance(item, (ast.If, ast.With))]
    return any(re.search(pattern, program.lines[item.lineno - 1]) for item in outer)


def _is_for_all(program: Program, node: ast.expr | ast.stmt, depth: int = 4) -> bool:
    """True if every rank runs this, at the same time."""
    if _is_below(program, node, r"gpu is None|with .*first"):
        return False
    started = re.findall(rf"(?:{LAUNCH})\(\s*(?:fn=)?(\w+)", program.text)
    child: ast.AST = node
    for outer in program.ancestors(node):
        if isinstance(outer, ast.If):
            # `rank == 0 or uses_deepspeed`: all ranks at most in some cases.
            kinds = [program.side(part) for part in program.source(outer.test).split(" or ")]
            if (OTHERS if child in outer.orelse else ONE) in kinds:
                return False
        if isinstance(outer, FUNCTIONS):
            if _is_on_one_rank(program, outer):
                return False
            for item in walk(outer.body):
                if not isinstance(item, ast.If) or item.lineno > node.lineno:
                    continue
                if program.side(item.test) == OTHERS and _rest_after(program, item):
                    return False
            if outer.name in started:
                return True
            owner = getattr(program.parents[outer], "name", "")
            pattern = rf"(?:.*\.)?{owner if outer.name == '__init__' else outer.name}"
            callers = [
                call for call in program.calls if re.fullmatch(pattern, program.source(call.func))
            ]
            is_main = outer.name == "main" and not (started or callers)
            return is_main or any(
                depth and _is_for_all(program, call, depth - 1) for call in callers
            )
        child = outer
    # Where ranks are started by functions, the rest below the guard is their parent's.
    return not (started and _is_below(program, node, "__name__"))


def _folders(program: Program) -> Iterator[Fault]:
    """Folders and files that all ranks make or remove at once."""
    for call in program.calls:
        text = program.source(call)
        path = re.sub(r"^.*?\(|\.mkdir.*|[,)].*", "", text).split(".")[-1]
        values = " ".join([text, *program.assigned.get(path, [])])
        if not re.fullmatch(MAKES, program.source(call.func)) or re.search(SAFE_PATH, values):
            continue
        around = [*map(type, program.ancestors(call))]
        if ast.Try not in around and _is_for_all(program, call):
            yield "makedirs-race", call, f"every rank calls {text}: all but the first may fail"


def _calls(program: Program) -> Iterator[Fault]:
    """Calls that are wrong by themselves, in a program of the kind."""
    for rule in CALL_RULES:
        if not program.has(rule.needs) or program.has(rule.unless):
            continue
        for call in program.calls:
            rest = "\n".join(program.lines[call.lineno - 1 :])
            outer = [
                item.name for item in program.ancestors(call) if isinstance(item, ast.ClassDef)
            ]
            is_match = re.match(rule.call, program.source(call)) and re.match(rule.rest, rest)
            is_match = is_match and re.match(rule.owner, outer[0] if outer else "")
            if is_match and (not rule.by_all or _is_for_all(program, call)):
                yield rule.id, call, rule.message


def _ports(program: Program) -> Iterator[Fault]:
    """Ports of the store that are written into the program."""
    for node in ast.walk(program.tree):
        if not isinstance(node, (ast.Assign, ast.Expr)):
            continue
        match = re.search(PORT, program.source(node))
        ports = " ".join(program.assigned.get(match[1], [match[1]])) if match else ""
        if re.fullmatch(r"['\"]?\d+['\"]?", ports) and not _is_below(
            program, node, "MASTER_|environ"
        ):
            yield "port-fixed", node, f"port {ports} is fixed: two jobs on a node meet there"
