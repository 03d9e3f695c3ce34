"""What a shell completes, from a table of all verbs: a shell waits for it at every press of Tab, and
Python takes less time to start than click to be imported.

`docs/make_cli.py` makes the table (completion.txt) from the commands; a test compares them. It has a
block for each verb: `= PATH`, then a line for each verb below it (`NAME`), argument (`< KIND`) and
option (`--NAME,-N KIND`, without KIND if it is a flag), with its help after a tab. A kind is `@WORD`,
or the values to choose from, with `|` between them. The shells' scripts are click's.
"""

from __future__ import annotations

import os
import sys

from provision.cli.records import read_record

TYPE_CHECKING = False  # `typing` takes half of the time that Python takes to start
if TYPE_CHECKING:
    from collections.abc import Sequence

    from provision.core.paths import Folders

SHELLS = ("bash", "zsh", "fish")
NAMES = "\0names"  # in the key of a record; no environment has this name
Items = list[tuple[str, str, str]]  # type (plain, file or dir), value, help


def main(shell: str) -> None:
    """Print what a shell may put where its cursor is, as click's script for it reads that."""
    tokens = _split(os.environ.get("COMP_WORDS", ""))[1:]
    incomplete = "".join(_split(os.environ.get("COMP_CWORD", ""))[:1])
    if shell == "fish":
        if incomplete and tokens[-1:] == [incomplete]:
            tokens.pop()
    else:
        position = int(incomplete or 0) - 1
        incomplete = "".join(tokens[position : position + 1])
        tokens = tokens[:position]
    lines = []
    for kind, value, help in complete(tokens, incomplete, whole=shell != "bash"):
        if shell == "zsh":
            value = value.replace(":", r"\:") if help else value
            lines.append(f"{kind}\n{value}\n{help or '_'}")
        else:
            lines.append(f"{kind},{value}" + (f"\t{help}" if help and shell == "fish" else ""))
    sys.stdout.write("".join(f"{line}\n" for line in lines))


def _split(text: str) -> list[str]:
    """The words of a command line, of which the last may lack its closing quote."""
    if not any(character in text for character in "'\"\\"):
        return text.split()
    import shlex

    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split, lexer.commenters = True, ""
    tokens: list[str] = []
    try:
        tokens.extend(lexer)
    except ValueError:
        tokens.append(lexer.token)
    return tokens


class _Line:
    """A command line up to the cursor."""

    def __init__(self, table: str, tokens: Sequence[str]) -> None:
        """Read the words after `provision`."""
        self.table = table
        self.operands: list[str] = []
        self.option = ""  # whose value is next
        self.has_separator = False
        self.envs: str | None = None
        self.shared: dict[str, tuple[str, str]] = {}
        self._enter("")
        self.shared = {key: self.options[key] for key in self.options if key != "--version"}
        for token in tokens:
            self._read(token)

    def _enter(self, path: str) -> None:
        """Go to a verb. Its options have a kind and a help."""
        self.path = path
        self.verbs: dict[str, str] = {}
        self.arguments: list[str] = []
        self.options = dict(self.shared)
        _, _, rest = self.table.partition(f"\n= {path}\n")
        block, _, _ = f"\n{rest}".partition("\n= ")
        for line in block.splitlines()[1:]:
            head, _, help = line.partition("\t")
            name, _, kind = head.partition(" ")
            if name == "<":
                self.arguments.append(kind)
            elif name.startswith("-"):
                self.options.update(dict.fromkeys(name.split(","), (kind, help)))
            else:
                self.verbs[name] = help

    def _read(self, token: str) -> None:
        if self.is_command() or token == "=":  # bash splits `--option=value`
            return
        if self.option:
            self.envs = token if self.option == "--envs" else self.envs
            self.option = ""
        elif self.has_separator or not token.startswith("-"):
            if token in self.verbs and not self.operands:
                self._enter(f"{self.path} {token}".strip())
            else:
                self.operands.append(token)
        elif token == "--":
            self.has_separator = True
        else:
            name, sign, value = token.partition("=")
            if not sign:
                self.option = name if self.kind_of(name) else ""
            elif name == "--envs":
                self.envs = value

    def kind_of(self, option: str) -> str:
        """What an option takes; empty if it is a flag, or unknown."""
        return self.options.get(option, ("", ""))[0]

    def is_command(self) -> bool:
        """Whether the words of another program's command line have begun."""
        last = self.arguments[-1:] == ["@command"]
        return last and (self.has_separator or len(self.operands) >= len(self.arguments))

    def argument(self) -> str:
        """What the next argument is; empty if there is none."""
        if len(self.operands) < len(self.arguments):
            return self.arguments[len(self.operands)]
        return "".join(kind for kind in self.arguments[-1:] if kind.endswith("..."))


def complete(tokens: Sequence[str], incomplete: str, *, whole: bool = False) -> Items:
    """What may stand after these words of a command line, where `incomplete` begins.

    whole: the shell replaces all of `--option=value`, not its value only.
    """
    with open(f"{os.path.dirname(__file__)}/completion.txt", encoding="utf-8") as file:  # noqa: PTH120, PTH123
        line = _Line("\n" + file.read(), tokens)
    if line.is_command():
        return []
    start_of_items, items = "", {}
    if line.option:
        kind, incomplete = line.kind_of(line.option), incomplete.removeprefix("=")
    elif incomplete.startswith("-") and not line.has_separator:
        name, sign, value = incomplete.partition("=")
        kind = line.kind_of(name) if sign else ""
        if sign:
            start_of_items, incomplete = f"{name}=" if whole else "", value
        else:
            for option, (option_kind, help) in line.options.items():
                if option not in tokens or option_kind.endswith("..."):
                    items[option] = help
    else:
        kind = line.argument()
        items = {} if line.operands else dict(line.verbs)
    kind = kind.removesuffix("...")
    if kind in ("@file", "@dir"):
        return [(kind[1:], incomplete, "")]
    items.update(dict.fromkeys(_values(kind, line), ""))
    begin = incomplete.lower()
    return [
        ("plain", start_of_items + item, help)
        for item, help in items.items()
        if item.lower().startswith(begin)
    ]


def _values(kind: str, line: _Line) -> list[str]:
    if kind == "@names":
        return _names(line.envs)
    return kind.split("|") if kind and not kind.startswith("@") else []


def _names(envs: str | None) -> list[str]:
    """The environments of the envs folder, and those that are installed."""
    names = None if envs else read_record(NAMES)
    if names is not None:
        return list(names)
    from provision.cli.records import write_record
    from provision.core.errors import ProvisionError
    from provision.core.prefix_registry import list_prefixes
    from provision.core.project import described_names

    try:
        folders = _folders(envs)
        names = sorted({*list_prefixes(folders), *described_names(folders.envs)})
    except (ProvisionError, OSError):
        return []
    if not envs:
        listed = (folders.prefixes, folders.envs, *folders.envs.glob("*"))
        write_record(folders, NAMES, (), listed, names)
    return names


def _folders(envs: str | None) -> Folders:
    from pathlib import Path

    from provision.core.paths import default_folders

    return default_folders(Path(envs) if envs else None)
