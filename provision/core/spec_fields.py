"""The fields of a spec, each declared once: everything that a request can set.

spec_keys.json holds everything that depends on a field: its option, the form of its values (`pattern`:
white space, quotes and braces must never reach a Dockerfile, a shell or an engine), its help and its
row in docs/spec.md. The command line, the reader of spec.yml and the documentation are made from
`SPEC_KEYS`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any, Literal, TypedDict

from provision.core.dataclass import frozen
from provision.core.platforms import PLATFORM, Platform

# What spec.yml holds: by each key a value of the type that the field of `Spec` has.
SpecContent = Mapping[str, Any]
SourceName = str  # the name of a source, which `provision.sources` knows, or auto
PythonFrom = Literal["auto", "channel", "host"]
# The form of a key's values. `resolver/spec.py` validates each kind, `cli/spec_options.py` makes an
# option of it.
Kind = Literal[
    "text",  # matches `pattern`
    "release",  # a release of torch, a range of them, or latest
    "python",  # a minor version
    "day",  # YYYY-MM-DD
    "flag",  # true or false
    "switch",  # true, or left out
    "choice",  # one of `choices`
    "source",  # auto, or the name of a source of builds
    "sources",  # names of sources
    "list",  # texts that match `pattern`
    "gpus",  # a list of GPUs that the catalog knows
    "pip requirements",  # a list of requirements as pip reads them
    "sources of packages",  # a list of `PACKAGES @ ADDRESS`
    "builds",  # package -> BuildSettings
]


class BuildSettings(TypedDict, total=False):
    """How a package without a wheel is built (provision/schemas/package-builds.schema.json)."""

    isolation: bool
    needs: list[str]
    cuda: bool | str
    env: dict[str, str]


LIST_KINDS = ("list", "sources", "gpus", "pip requirements", "sources of packages")


@frozen
class SpecKey:
    """One key of spec.yml and its option."""

    kind: Kind
    help: str  # of the option: one sentence
    docs: str = ""  # what docs/spec.md says about it, in Markdown
    name: str = ""  # the field's name unless it is given
    option: str = ""  # --NAME unless it is given
    metavar: str | None = None
    default: str = ""  # what the help says about the default
    pattern: str = ""  # of a text, or of each item of a list
    example: str = ""  # what a value looks like, for error messages
    item: str = ""  # what an item of the list is called
    choices: tuple[str, ...] = ()
    is_gpu_key: bool = False  # says nothing about a build without CUDA
    extends_file: bool = False  # the option's items are added to those of spec.yml
    installs: tuple[str, ...] = ()  # the packages that a flag adds
    in_file_only: bool = False  # spec.yml states it, and no option does

    @property
    def is_list(self) -> bool:
        return self.kind in LIST_KINDS

    @property
    def negative_option(self) -> str:
        """The option that switches a flag off; or the line that does it in spec.yml."""
        if self.in_file_only:
            return f"`{self.name}: false` in spec.yml"
        return "--no-" + self.option.removeprefix("--")


@frozen
class Spec:
    """A user's request: the content of spec.yml, overridden by the options. cuda: None for an explicit
    request for a CPU build, which is the key `cpu` of the file."""

    name: str
    torch: str
    cuda: str | None
    python: str | None = None
    gpu: tuple[str, ...] = ()
    driver: str | None = None
    glibc: str | None = None
    platforms: tuple[Platform, ...] = (PLATFORM,)
    infiniband: bool = False
    as_of: str | None = None
    source: SourceName = "auto"
    channels: tuple[str, ...] = ()
    conda: tuple[str, ...] = ()
    pip: tuple[str, ...] = ()
    build: Mapping[str, BuildSettings] = field(default_factory=dict)
    indexes: tuple[str, ...] = ()
    find_links: tuple[str, ...] = ()
    base: str | None = None
    code: str | None = None
    python_from: PythonFrom = "auto"
    companions: bool = True
    jupyter: bool = True
    smoke: tuple[str, ...] = ()
    accept: tuple[str, ...] = ()
    sync: bool | None = None
    fast_checkpoints: bool = True

    @property
    def package_sources(self) -> tuple[str, ...]:
        """The items of `indexes` and `find_links`, each after its key and a colon."""
        indexes = [f"indexes: {text}" for text in self.indexes]
        return (*indexes, *(f"find_links: {text}" for text in self.find_links))


def _declared(table: str) -> dict[str, dict[str, Any]]:
    text = Path(__file__).with_name("spec_keys.json").read_text(encoding="utf-8")
    rows: dict[str, dict[str, Any]] = json.loads(text)[table]
    for name, row in rows.items():
        row["name"] = name
        for key in ("choices", "installs"):
            if key in row:
                row[key] = tuple(row[key])
    return rows


# Every key of spec.yml, in the order in which the file and the help have them.
SPEC_KEYS = tuple(SpecKey(**row) for row in _declared("spec").values())
# The flags that add packages unless they are switched off.
DEFAULT_PACKAGE_KEYS = tuple(key for key in SPEC_KEYS if key.installs and key.default == "yes")
_KEY_BY_OPTION = {key.option: key for key in SPEC_KEYS}
# The options of a query: those of a request with another help, and perhaps looser forms.
QUERY_KEYS = tuple(
    replace(_KEY_BY_OPTION[f"--{name}"], default="", **row) if name != "unknown" else SpecKey(**row)
    for name, row in _declared("query").items()
)
