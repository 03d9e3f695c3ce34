"""Which conditions of a program differ between ranks, and which calls need all ranks."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from .source import FUNCTIONS, LOOPS, Function, Program, constant, keywords, last_name, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

# The two sides of a condition: one rank (of all, or of a node), and all others.
ONE, OTHERS = "one", "others"
OPPOSITE = {ONE: OTHERS, OTHERS: ONE, "": ""}

# Ranks within a group of their own (tp_rank, dp_rank) are none: their groups are built to fit.
_RANK = re.compile(
    r"((ddp|dist|my|cur|current|self|this|proc|process|torch)_?)?"
    r"((global|world|local|node|process|machine)_?)?(rank|process_index|procid)", re.IGNORECASE
)
_RANK_CALLS = ("get_rank", "get_global_rank", "get_local_rank", "get_world_rank", "local_rank", "rank")
_RANK_VARIABLES = ("RANK", "LOCAL_RANK", "GLOBAL_RANK", "SLURM_PROCID", "SLURM_LOCALID")
_IS_ONE = re.compile(
    r"(is|on|am)_?((local|global|world)_)?(main|master|primary|chief|root|lead|leader|process_zero"
    r"|zero|first)(_?(process|proc|rank|node|worker))?(_?(0|zero))?"
    r"|((local|global|world)_)?(main|master|primary|chief)_(process|proc|rank|worker)"
    r"|(is_)?((local|global|world)_)?(rank|process)_?(0|zero)|is_(local_|world_)?process_zero",
    re.IGNORECASE,
)
_IS_ALONE = re.compile(r"distrib|ddp|is_initialized|is_available|multi_?(gpu|proc|node)", re.I)
_ONE_RANK_DECORATORS = re.compile(
    r"rank_(zero|0)_only|(on_)?(local_)?(main|master)_process(_only)?|(main|master)_only"
)

# Calls that wait for all ranks, whatever they are called on.
ANYWHERE = frozenset(
    "all_reduce all_gather all_gather_object all_gather_into_tensor all_reduce_coalesced"
    " all_to_all all_to_all_single barrier monitored_barrier broadcast_object_list gather_object"
    " reduce_scatter reduce_scatter_tensor scatter_object_list wait_for_everyone"
    " gather_for_metrics pad_across_processes backward".split()
)
# And those that do so on these objects only, by the object's name.
BY_OBJECT = {
    "dist": "reduce gather scatter broadcast new_group init_device_mesh",
    "accelerator": "gather reduce prepare",
    "fabric": "all_reduce broadcast save load setup setup_dataloaders clip_gradients",
    "strategy": "broadcast reduce",
    "trainer": "fit validate test predict evaluate train save_checkpoint",
}
# Saving what is spread over all ranks.
SHARDED = frozenset(
    "get_model_state_dict get_optimizer_state_dict optim_state_dict full_optim_state_dict"
    " full_tensor summon_full_params consolidate_state_dict save_16bit_model".split()
)
_FSDP = {"FullyShardedDataParallel", "fully_shard", "FSDP"}


def is_rank(program: Program, node: ast.AST) -> bool:
    """True for the number of this rank: `rank`, `args.local_rank`, `dist.get_rank()`,
    `int(os.environ["RANK"])`, and a variable that is one of them."""
    values = program.assigned.get(last_name(node), []) if isinstance(node, ast.Name) else []
    return _is_rank(node) or any(_is_rank(value) for value in values)


def _is_rank(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        name = last_name(node)
        if name in _RANK_CALLS:
            return not node.args and not node.keywords
        if name == "int" and node.args:
            return _is_rank(node.args[0])
        is_variable = name in ("get", "getenv") and bool(node.args)
        return is_variable and constant(node.args[0]) in _RANK_VARIABLES
    if isinstance(node, ast.Subscript):
        return constant(node.slice) in _RANK_VARIABLES
    return _RANK.fullmatch(last_name(node)) is not None


def side(program: Program, test: ast.expr, depth: int = 2) -> str:
    """Which ranks a condition holds for: ONE, OTHERS, or "" if it is not about ranks.

    A name or function of the program stands for what it is assigned, or returns.
    """
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return OPPOSITE[side(program, test.operand, depth)]
    if isinstance(test, ast.BoolOp):
        return _side_of_several(program, test, depth)
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        return _side_of_comparison(program, test)
    if is_rank(program, test):
        return OTHERS
    name = last_name(test)
    if not name or depth == 0:
        return ""
    if isinstance(test, ast.Call):
        nodes = [item for function in program.functions.get(name, []) for item in function.body]
        returns = [node for node in walk(nodes) if isinstance(node, ast.Return)]
        values = [node.value for node in returns if node.value is not None]
    else:
        values = program.assigned.get(name, [])
    sides = {side(program, value, depth - 1) for value in values} - {""}
    if len(sides) == 1:
        return sides.pop()
    return ONE if _IS_ONE.fullmatch(name) else ""


def _side_of_several(program: Program, test: ast.BoolOp, depth: int) -> str:
    sides = [side(program, value, depth) for value in test.values]
    rest = [value for value, found in zip(test.values, sides) if not found]
    has_alone = any(is_alone(program, value) for value in rest)
    distinct = set(sides) - {""}
    if len(distinct) != 1:
        return ""
    # `a single process, or rank 0`: rank 0 of several. `rank 0, and a single process`: no fork.
    if isinstance(test.op, ast.Or):
        return distinct.pop() if all(is_alone(program, value) for value in rest) else ""
    return "" if has_alone else distinct.pop()


def is_alone(program: Program, test: ast.expr) -> bool:
    """True for a condition that holds without other ranks: `not distributed`, `world_size == 1`."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _IS_ALONE.search(ast.dump(test.operand)) is not None
    if not isinstance(test, ast.Compare):
        return False
    subject = test.left.args[0] if isinstance(test.left, ast.Call) and test.left.args else test.left
    value = constant(test.comparators[0])
    is_gpu = re.fullmatch("(.*_)?(gpu|device)", last_name(test.left)) is not None
    if isinstance(test.ops[0], (ast.Eq, ast.Is)) and (is_gpu or is_rank(program, test.left)):
        return isinstance(test.comparators[0], (ast.Constant, ast.UnaryOp)) and value in (-1, None)
    is_size = re.search(r"world_?size|num_processes|n_?gpus?|num_gpus", last_name(subject), re.I)
    return is_size is not None and isinstance(test.ops[0], (ast.Eq, ast.Lt, ast.LtE))


def _side_of_comparison(program: Program, test: ast.Compare) -> str:
    left, operator, right = test.left, test.ops[0], test.comparators[0]
    if is_rank(program, right) and not is_rank(program, left):
        left, right = right, left
    if isinstance(left, ast.BinOp) and isinstance(left.op, ast.Mod):
        left = left.left
    if not is_rank(program, left):
        return ""
    if isinstance(operator, (ast.In, ast.NotIn)):
        values = [constant(item) for item in getattr(right, "elts", [])]
        if 0 not in values or not set(values) <= {-1, 0}:
            return ""
        return ONE if isinstance(operator, ast.In) else OTHERS
    value = constant(right)
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    is_last = isinstance(right, ast.BinOp) and isinstance(right.op, ast.Sub)
    if isinstance(operator, (ast.Eq, ast.NotEq, ast.Is, ast.IsNot)):
        if value is False or value == -1 or not (isinstance(value, int) or is_last):
            return ""
        return ONE if isinstance(operator, (ast.Eq, ast.Is)) else OTHERS
    if (isinstance(operator, ast.Gt) and value == 0) or (isinstance(operator, ast.GtE) and value == 1):
        return OTHERS
    is_first = isinstance(operator, ast.LtE) and value == 0
    return ONE if is_first or (isinstance(operator, ast.Lt) and value == 1) else ""


def runs_on_one_rank(decorators: Iterable[ast.expr]) -> bool:
    """True for a function that a decorator leaves to one rank: `@rank_zero_only`."""
    return any(_ONE_RANK_DECORATORS.fullmatch(last_name(item)) for item in decorators)


def collective(program: Program, call: ast.Call) -> str:
    """The name of a call that all ranks must make; "" for others, and within a smaller group."""
    name = last_name(call.func)
    owner = _owner(program, call)
    arguments = keywords(call)
    group = arguments.get("group", arguments.get("process_group"))
    if group is not None and not isinstance(group, ast.Constant) and last_name(group) != "WORLD":
        return ""
    if constant(arguments.get("sync_dist")) is True:
        return f"{name}(sync_dist=True)"
    if sharded_save(program, call):
        return name
    if not owner:
        is_imported = f"torch.distributed.{name}" in program.modules
        is_known = is_imported or (name in ANYWHERE and name not in program.functions)
        return name if is_known else ""
    if name in ANYWHERE:
        return "" if name == "backward" and "rpc" in program.names else name
    return name if name in BY_OBJECT.get(owner.lower().lstrip("_"), "").split() else ""


def _owner(program: Program, call: ast.Call) -> str:
    """The last name of what a method or function is called on: `dist` also for its other names."""
    owner = last_name(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    owner = program.aliases.get(owner, owner)
    return {"distributed": "dist", "c10d": "dist"}.get(owner, owner)


def sharded_save(program: Program, call: ast.Call) -> bool:
    """True for a call that gathers the state of a model that is spread over all ranks."""
    name = last_name(call.func)
    owner = _owner(program, call)
    if name in SHARDED:
        return True
    if name in ("save", "async_save", "load", "save_state_dict", "load_state_dict"):
        return owner in ("checkpoint", "dcp") and "torch.distributed.checkpoint" in program.modules
    if name in ("state_dict", "get_state_dict", "save_state"):
        is_model = re.search(r"model|net|accelerator|^module$", owner) is not None
        return is_model and bool(program.names & _FSDP)
    is_engine = re.search(r"engine|^model", owner) is not None
    return name == "save_checkpoint" and is_engine and "deepspeed" in program.names


def collectives(program: Program, nodes: Iterable[ast.AST]) -> list[tuple[str, ast.Call]]:
    """The calls among these nodes that all ranks must make, with the names of the collectives."""
    return list(reached(program, nodes, collective))


def reached(
    program: Program, nodes: Iterable[ast.AST], name_of: Callable[[Program, ast.Call], str]
) -> Iterator[tuple[str, ast.Call]]:
    """The calls among these nodes to which name_of gives a name, directly, or through functions and
    classes of the program."""
    for node in walk(nodes):
        if not isinstance(node, ast.Call):
            continue
        name = name_of(program, node)
        if name:
            yield name, node
            continue
        for function in program.definitions(node):
            for inner in _names_within(program, function, name_of):
                yield inner, node


def _names_within(
    program: Program, function: Function, name_of: Callable[[Program, ast.Call], str]
) -> list[str]:
    """The names of what a function calls, whatever its arguments are."""
    key = (function, name_of.__name__)
    if key not in program.reached:
        # While it is being looked at: a function that calls itself adds nothing.
        program.reached[key] = []
        calls = reached(program, function.body, name_of)
        names = [name for name, call in calls if not _depends_on_caller(program, function, call)]
        program.reached[key] = list(dict.fromkeys(names))
    return program.reached[key]


def _depends_on_caller(program: Program, function: Function, call: ast.Call) -> bool:
    """True for a call below a condition on an argument of its function."""
    arguments = {item.arg for item in (*function.args.args, *function.args.kwonlyargs)} - {"self"}
    for outer in program.ancestors(call):
        if outer is function:
            return False
        tests = [outer.test] if isinstance(outer, ast.If) else []
        if isinstance(outer, ast.With):
            tests = [item.context_expr for item in outer.items]
        if any(last_name(node) in arguments for test in tests for node in ast.walk(test)):
            return True
    return False


def rest_after(program: Program, statement: ast.stmt) -> list[ast.stmt]:
    """The statements that ranks skip which leave at the end of this `if`: those of the function
    after it, or of the loop; empty if they do not leave."""
    assert isinstance(statement, ast.If)
    last = statement.body[-1]
    is_exit = isinstance(last, ast.Expr) and last_name(last.value) in ("exit", "_exit")
    if not (isinstance(last, (ast.Return, ast.Continue, ast.Break)) or is_exit):
        return []
    result: list[ast.stmt] = []
    node: ast.AST = statement
    for outer in program.ancestors(statement):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(outer, field, None)
            if isinstance(block, list) and node in block:
                result += block[block.index(node) + 1 :]
        is_loop = isinstance(outer, LOOPS) and isinstance(last, (ast.Continue, ast.Break))
        if is_loop or isinstance(outer, FUNCTIONS):
            break
        node = outer
    return result
