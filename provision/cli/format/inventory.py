"""What is printed of the environments on this machine: lists, sizes, ages, package trees."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from provision.cli.console import table, wrap
from provision_runtime.report.text import format_bytes, format_count

if TYPE_CHECKING:
    from provision.commands.clean import Removable
    from provision.commands.env import Product
    from provision.commands.env_list import Environment
    from provision.commands.env_show import EnvironmentDetails
    from provision.commands.status import MachineStatus
    from provision.lockfile.tree import TreeNode

# What to do about an environment that is not current.
NEXT_COMMANDS = {
    "differs": "env diff {name}",
    "stale": "build {name}",
    "damaged": "env create {name}",
    "not installed": "build {name}",
}
# Seconds of a unit, and what an age in it is called, in short and in words.
AGES = ((86400, "d", "day"), (3600, "h", "hour"), (60, "min", "minute"))


def short_size(count: int | None) -> str:
    """Bytes as `4.9 GiB`, for columns; `-` if not known."""
    return "-" if count is None else format_bytes(count, number_format=".1f")


def short_age(since: float | None, now: float) -> str:
    """The time since then as `3 d`; `-` if not known. Both in seconds since 1970."""
    if since is None:
        return "-"
    seconds = max(0.0, now - since)
    for unit, name, _ in AGES:
        if seconds >= unit:
            return f"{int(seconds // unit)} {name}"
    return "now"


def _ago(since: float, now: float) -> str:
    """The same in words."""
    for unit, _, name in AGES:
        if now - since >= unit:
            return f"{format_count(int((now - since) // unit), name)} ago"
    return "just now"


def environment_lines(
    environments: Sequence[Environment], *, width: int | None, now: float | None = None
) -> list[str]:
    """A row for each environment, then why those that are not current are not, then the sum.

    width: of the terminal. A list for a pipe also has each prefix's path.
    """
    if not environments:
        return ["no environments: `provision build --help` shows how to make one"]
    now = time.time() if now is None else now
    head = ["name", "state", "size", "age", "image", "kernel", "smoke"]
    if width is None:
        head.append("prefix")
    rows = []
    for environment in environments:
        row = [
            environment.name,
            environment.state,
            short_size(environment.size),
            short_age(environment.installed_at, now),
            _image_cell(environment),
            "yes" if environment.kernel else "-",
            short_verdict(environment, now) or "-",
        ]
        if width is None:
            row.append(str(environment.prefix or "-"))
        rows.append(row)
    lines = [table(rows, head, width=width), ""]
    for environment in environments:
        if environment.reason and environment.state != "not installed":
            lines.append(f"{environment.name}: {environment.reason}")
    return [*lines, _sum(environments)]


def _image_cell(environment: Environment) -> str:
    if not environment.image:
        return "-"
    return "yes" if environment.image == "current" else environment.image


def short_verdict(environment: Environment, now: float) -> str:
    """`pass` if every place has that verdict on this machine, else what each has, and where and
    when; empty if nothing was tested."""
    texts = {}
    for verdict in environment.verdicts:
        text = f"{verdict.verdict} {verdict.elsewhere}".rstrip()
        if verdict.elsewhere and verdict.measured_at is not None:
            text += f", {_ago(verdict.measured_at, now)}"
        texts[verdict.place] = text
    if len(set(texts.values())) == 1:
        return next(iter(texts.values()))
    return "; ".join(f"{place}: {text}" for place, text in texts.items()) or environment.smoke


def _sum(environments: Sequence[Environment]) -> str:
    total = sum(environment.size or 0 for environment in environments)
    images = sum(environment.image_size for environment in environments)
    text = format_count(len(environments), "environment")
    if total:
        text += f", {short_size(total)}"
    return f"{text}; images {short_size(images)}" if images else text


def details_lines(
    details: EnvironmentDetails, *, width: int | None, sources: bool, now: float | None = None
) -> list[str]:
    """What an environment is, where it lies, and the reason for each requirement."""
    summary = details.summary
    now = time.time() if now is None else now
    state = f"{summary.state}: {summary.reason}" if summary.reason else summary.state
    build = ", ".join(f"{key} {value}" for key, value in details.build.items())
    facts = [("state", state), ("build", build)]
    request = ", ".join(f"{key} {plain_value(value)}" for key, value in details.request.items())
    facts.append(("request", request))
    facts.append(("folder", home_path(details.folder)))
    facts.append(("lock", _lock_text(details)))
    if summary.prefix:
        age = short_age(summary.installed_at, now)
        size = f"{short_size(summary.size)}, " if summary.size is not None else ""
        facts.append(("prefix", f"{home_path(summary.prefix)} ({size}{age})"))
    if summary.image:
        image = f"{details.image or summary.name} ({short_size(summary.image_size)})"
        stale = ", of an earlier lock" if summary.image == "stale" else ""
        facts.append(("image", image + stale))
    if details.kernel:
        facts.append(("kernel", details.kernel))
    facts.append(("smoke", short_verdict(summary, now) or "not tested"))
    lines = [summary.name, *_facts(facts, width), ""]
    if details.requirements:
        lines += _requirement_lines(details, width=width, sources=sources)
    return lines


def plain_value(value: object) -> str:
    """A value of a request in words."""
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _lock_text(details: EnvironmentDetails) -> str:
    if details.lock_is_current is None:
        return f"none: `provision lock {details.summary.name}` makes it"
    counts = [f"{count} {manager}" for manager, count in sorted(details.packages.items())]
    text = f"{' + '.join(counts)} packages"
    return text if details.lock_is_current else f"{text}, stale: the request changed since"


def _facts(facts: Sequence[tuple[str, str]], width: int | None) -> list[str]:
    """Names and values, the values wrapped and aligned."""
    indent = 2 + max(len(name) for name, _ in facts) + 2
    lines = []
    for name, value in facts:
        first, *rest = wrap(value, width - indent if width else None)
        lines.append(f"  {name:{indent - 4}}  {first}".rstrip())
        lines += [" " * indent + piece for piece in rest]
    return lines


def _requirement_lines(
    details: EnvironmentDetails, *, width: int | None, sources: bool
) -> list[str]:
    rows = []
    for requirement in details.requirements:
        reason = requirement.reason
        if sources:
            reason += f" (source: {requirement.source})"
        rows.append((requirement.requirement, requirement.locked or "-", reason))
    lines = table(rows, ("requirement", "locked", "reason"), width=width).splitlines()
    if not sources:
        lines += ["", "-v adds the source of each reason."]
    return lines


def tree_lines(roots: Sequence[TreeNode], *, width: int | None) -> list[str]:
    """Trees of packages; `(*)` marks one whose requirements are listed above.

    width: of the terminal. A longer line is cut: `provision env show` has the whole reasons.
    """
    lines: list[str] = []
    for root in roots:
        lines.append(_node_text(root))
        lines += _branches(root.children, "")
    if width is None:
        return lines
    return [line if len(line) <= width else f"{line[: width - 1]}…" for line in lines]


def _branches(nodes: Sequence[TreeNode], indent: str) -> list[str]:
    lines = []
    for number, node in enumerate(nodes, start=1):
        is_last = number == len(nodes)
        lines.append(f"{indent}{'└── ' if is_last else '├── '}{_node_text(node)}")
        lines += _branches(node.children, indent + ("    " if is_last else "│   "))
    return lines


def _node_text(node: TreeNode) -> str:
    text = f"{node.name} {node.version}"
    if node.manager == "conda":
        text += " [conda]"
    if node.requirement and not node.reason:
        text += f" ({node.requirement})"
    if node.is_repeated:
        text += " (*)"
    if node.reason:
        text += "  requested"
        if node.reason != "requested":
            text += f": {node.reason}"
    return text


def status_lines(
    status: MachineStatus, *, width: int | None, now: float | None = None
) -> list[str]:
    """This machine, its environments, and the command for each that needs attention."""
    machine = status.machine
    gpus = f"none: {machine.why}" if machine.why else "none"
    if machine.gpus:
        gpus = f"{', '.join(machine.gpus)}; driver {machine.driver}"
    engine = f"Docker {status.engine}" if status.engine else f"none: {status.no_engine}"
    data = status.data
    disk = f"{short_size(data.free)} free of {short_size(data.total)}"
    facts = [
        ("GPUs", gpus),
        ("engine", engine),
        ("disk", f"{disk} for {home_path(data.path)}"),
        ("envs", home_path(status.envs)),
    ]
    if status.packs_size:
        facts.append(("packs", short_size(status.packs_size)))
    title = f"provision {status.provision} on {status.host} "
    title += f"({status.platform}, Python {status.python})"
    lines = [title, *_facts(facts, width), ""]
    lines += environment_lines(status.environments, width=width, now=now)
    commands = [
        f"  provision {NEXT_COMMANDS[environment.state].format(name=environment.name)}"
        for environment in status.environments
        if environment.state in NEXT_COMMANDS
    ]
    return [*lines, "", "next:", *commands] if commands else lines


def product_lines(products: Sequence[Product], verb_form: str, *, width: int | None) -> list[str]:
    """What of an environment is removed: a row each, then what that frees.

    width: of the terminal.
    """
    rows = []
    for product in products:
        size = short_size(product.size) if product.size else "-"
        freed = short_size(product.freed) if product.size else "-"
        rows.append((product.kind, size, freed, home_path(product.what)))
    lines = table(rows, ("kind", "size", "frees", "what"), width=width).splitlines()
    files = [product for product in products if product.freed is not None]
    all_freed = sum(product.freed or 0 for product in files)
    total = f"{verb_form} {format_count(len(products), 'item')}, frees {short_size(all_freed)}"
    if all_freed < sum(product.size for product in files):
        total += "; the rest is shared with caches or other environments"
    return [*lines, "", *wrap(total, width)]


def removable_lines(items: Sequence[Removable], *, width: int | None) -> list[str]:
    """What can go: a row each, then what that frees."""
    if not items:
        return ["nothing to clean"]
    rows = [
        (item.kind, short_size(item.usage.size), short_size(item.usage.freed), home_path(item.path))
        for item in items
    ]
    freed = sum(item.usage.freed for item in items)
    total = f"{format_count(len(items), 'item')}, frees {short_size(freed)}"
    return [table(rows, ("kind", "size", "frees", "what"), width=width), "", total]


def home_path(path: Path | str) -> str:
    """A path as people read it: `~` for their home folder."""
    try:
        return f"~/{Path(path).relative_to(Path.home())}"
    except (ValueError, RuntimeError):
        return str(path)
