"""The fields of a spec, each declared once: everything that a request can set.

A declaration holds everything that depends on the field: its key in spec.yml, its option, the form
of its values, its help and its row in docs/spec.md. The command line, the reader of spec.yml and
the documentation are made from `SPEC_KEYS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, fields, replace
from typing import Any, Literal, TypedDict

from provision.core.dataclass import dataclass
from provision.core.platforms import PLATFORM, PLATFORMS, Platform

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

# Docker's reference grammar, loosely: white space, quotes and braces must never reach a Dockerfile
# or an engine.
REFERENCE = r"[A-Za-z0-9][A-Za-z0-9._/:@-]*"
REQUIREMENT = r"[A-Za-z0-9][^\n\r#{}$`\"';|&\\]*"
PIP_REQUIREMENT = r"[A-Za-z0-9./~-](?:(?!\s#)[^\n\r{}$`|\\])*"
# `PACKAGES @ ADDRESS`: where the files of these packages come from.
_PACKAGE = r"[A-Za-z0-9][A-Za-z0-9._-]*"
PACKAGES = rf"(?P<packages>{_PACKAGE}(?:[, ]+{_PACKAGE})*)\s+@\s+"
ADDRESS = r"(?P<address>https?://[^\s{}$`|\\]+|file:[^\s{}$`|\\]+|\.{0,2}/[^\s{}$`|\\]*)"
INDEX, PAGE = PACKAGES + ADDRESS, f"(?:{PACKAGES})?{ADDRESS}"
CHANNEL = r"[A-Za-z0-9][^\s#{}`\"';|&\\]*"
GPU = r"[A-Za-z0-9][A-Za-z0-9 ._()/+-]*"


@dataclass(frozen=True, kw_only=True)
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
        """The option that switches a flag off."""
        return "--no-" + self.option.removeprefix("--")


def key(**declaration: Any) -> dict[str, SpecKey]:
    """A field's declaration as the metadata of a dataclass field."""
    return {"key": SpecKey(**declaration)}


@dataclass(frozen=True, kw_only=True)
class Spec:
    """A user's request: the content of spec.yml, overridden by the options."""

    name: str
    torch: str = field(
        metadata=key(
            kind="release",
            metavar="VERSION",
            help="PyTorch release: 2.3 (newest 2.3.x), 2 (newest 2.x), 2.3.1, '>=2.3,<2.6' or "
            "latest.",
            docs='`2.3` (newest 2.3.x), `2.3.1`, `2` (newest 2.x), a range (`">=2.3,<2.6"`), '
            "`latest`",
            example="2, 2.3, 2.3.1, >=2.3,<2.6 or latest",
        )
    )
    cuda: str | None = field(  # None: an explicit request for a CPU build
        metadata=key(
            kind="text",
            metavar="X.Y",
            help="CUDA version of the build: 12.1, 12 (newest 12.x), or auto (newest that --driver "
            "and --gpu, which imply it, or this machine can run).",
            docs="`12.1`, `12` (newest 12.x), `auto` (newest that the machine runs)",
            pattern=r"\d+(\.\d+)?|auto",
            example="12.1, 12 (the newest 12.x) or auto",
            is_gpu_key=True,
        )
    )
    python: str | None = field(
        default=None,
        metadata=key(
            kind="python",
            metavar="X.Y",
            help="Python minor version.",
            default="3.11 if the build supports it",
            docs="minor version. Default: 3.11, or the nearest that the build supports",
            pattern=r"\d+\.\d+",
            example="3.11",
        ),
    )
    nccl: str | None = field(
        default=None,
        metadata=key(
            kind="text",
            metavar="VERSION",
            help="Require this NCCL version.",
            docs='only a build with this NCCL: `"2.20"` means every 2.20.x. For conda-forge it is '
            "a requirement on the solver",
            pattern=r"\d+(\.\d+){0,3}",
            example="2.20.5",
            is_gpu_key=True,
        ),
    )
    cudnn: str | None = field(
        default=None,
        metadata=key(
            kind="text",
            metavar="VERSION",
            help="Require this cuDNN version.",
            docs="the same for cuDNN",
            pattern=r"\d+(\.\d+){0,3}",
            example="8.9.2.26 or 9.1",
            is_gpu_key=True,
        ),
    )
    gpu: tuple[str, ...] = field(
        default=(),
        metadata=key(
            kind="gpus",
            metavar="GPU",
            help="A GPU that the build must run on: H100, sm_90 or 9.0. Repeatable.",
            docs='GPUs that the build must run on: `H100`, `sm_90`, `"9.0"`, or what nvidia-smi '
            "prints",
            pattern=GPU,
            item="a GPU",
            is_gpu_key=True,
        ),
    )
    driver: str | None = field(
        default=None,
        metadata=key(
            kind="text",
            metavar="VERSION",
            help="The oldest NVIDIA driver that the build must run on, e.g. 535.",
            docs="the oldest NVIDIA driver that the build must run on: `535`, `535.54.03`",
            pattern=r"\d+(\.\d+){0,2}",
            example="535 or 535.54.03",
            is_gpu_key=True,
        ),
    )
    glibc: str | None = field(
        default=None,
        metadata=key(
            kind="text",
            metavar="X.Y",
            help="The oldest glibc that the build must run on.",
            default="2.28",
            docs="the oldest glibc that the build must run on. Default: 2.28, or newer if the "
            "build needs it",
            pattern=r"\d+\.\d+",
            example="2.28",
        ),
    )
    platforms: tuple[Platform, ...] = field(
        default=(PLATFORM,),
        metadata=key(
            kind="list",
            option="--platform",
            help="A platform to lock for. Repeatable.",
            default=PLATFORM,
            docs="`linux-64` (default), `linux-aarch64`; the build must exist for all of them",
            pattern="|".join(PLATFORMS),
            item=f"a platform ({', '.join(PLATFORMS)})",
            choices=PLATFORMS,
        ),
    )
    infiniband: bool = field(
        default=False,
        metadata=key(
            kind="flag",
            installs=("rdma-core",),
            help="Also install the RDMA libraries that NCCL loads for InfiniBand and RoCE.",
            docs="for jobs on several hosts over InfiniBand or RoCE: installs `rdma-core`, so that "
            "NCCL finds libibverbs",
        ),
    )
    as_of: str | None = field(
        default=None,
        metadata=key(
            kind="day",
            metavar="YYYY-MM-DD",
            help="Ignore packages that were published after this day (UTC).",
            docs='a day, `"2024-06-30"`: the solvers ignore packages that were published later',
        ),
    )
    source: SourceName = field(
        default="auto",
        metadata=key(
            kind="source",
            help="Where the build comes from.",
            docs="where the build comes from; [what `auto` means](#which-source-auto-means)",
        ),
    )
    channels: tuple[str, ...] = field(
        default=(),
        metadata=key(
            kind="list",
            option="--channel",
            metavar="NAME|URL",
            help="A conda channel. Repeatable, in order of priority.",
            default="conda-forge",
            docs="conda channels by name or URL, in order of priority. Default: conda-forge",
            pattern=CHANNEL,
            item="a channel",
        ),
    )
    conda: tuple[str, ...] = field(
        default=(),
        metadata=key(
            kind="list",
            metavar="SPEC",
            help="Also install this conda package. Repeatable.",
            docs="more conda packages",
            pattern=REQUIREMENT,
            item="a requirement",
            extends_file=True,
        ),
    )
    pip: tuple[str, ...] = field(
        default=(),
        metadata=key(
            kind="pip requirements",
            metavar="REQ",
            help="Also install this package from the package index. Repeatable.",
            docs="more packages from the package index, by address, or as an editable folder; "
            "[what it may hold](choosing.md#what-pip-may-hold)",
            pattern=PIP_REQUIREMENT,
            item="a requirement",
            extends_file=True,
        ),
    )
    build: Mapping[str, BuildSettings] = field(
        default_factory=dict,
        metadata=key(
            kind="builds",
            help="How packages without a wheel are built.",
            docs="[how packages without a wheel are built](choosing.md#settings-of-a-build), by "
            "package: `isolation`, `needs`, `cuda`, `env`",
            in_file_only=True,
        ),
    )
    indexes: tuple[str, ...] = field(
        default=(),
        metadata=key(
            kind="sources of packages",
            help="Take these packages from another index, and from no other.",
            docs="indexes beyond those of pip's or uv's settings, each with the packages that it "
            "serves: `labpkg labtools @ https://pypi.example.org/simple`. It serves no others, "
            "and they come from nowhere else",
            pattern=INDEX,
            item="an index (PACKAGES @ URL)",
            in_file_only=True,
        ),
    )
    find_links: tuple[str, ...] = field(
        default=(),
        metadata=key(
            kind="sources of packages",
            help="Take these packages from the wheels that a page or folder lists.",
            docs="pages or folders that list wheels, each with its packages: `torch-scatter @ "
            "https://data.example.org/torch-2.3.0+cu121.html`. [The wheel for the locked torch, "
            "CUDA and Python](choosing.md#extra-indexes-and-pages-of-wheels) is taken. A page "
            "without packages serves those of `pip` that it lists",
            pattern=PAGE,
            item="a page of wheels (PACKAGES @ URL, or URL)",
            in_file_only=True,
        ),
    )
    base: str | None = field(
        default=None,
        metadata=key(
            kind="text",
            metavar="REF",
            help="Base image of the environment's image.",
            docs="base image",
            pattern=REFERENCE,
            example="debian:bookworm-slim",
        ),
    )
    code: str | None = field(
        default=None,
        metadata=key(
            kind="text",
            help="Folder whose tracked files the image gets.",
            docs="a folder, from spec.yml on: the files in it that git tracks become [the image's last "
            "layer](image-run.md#your-code)",
            pattern=r"[^\n\r]+",
            example="../..",
            in_file_only=True,
        ),
    )
    python_from: PythonFrom = field(
        default="auto",
        metadata=key(
            kind="choice",
            help="Take Python from a conda channel or from this machine.",
            docs="where Python comes from: a conda `channel`, or the `host` (this machine)",
            choices=("auto", "channel", "host"),
        ),
    )
    companions: bool = field(
        default=True,
        metadata=key(
            kind="flag",
            help="Also install torchvision and torchaudio.",
            installs=("torchvision", "torchaudio"),
            docs="without torchvision and torchaudio",
        ),
    )
    jupyter: bool = field(
        default=True,
        metadata=key(
            kind="flag",
            installs=("ipykernel",),
            help="Also install ipykernel, which Jupyter needs to start the environment.",
            docs="without ipykernel: Jupyter cannot start the environment, and `build` registers "
            "no kernel",
        ),
    )
    smoke: tuple[str, ...] = field(
        default=(),
        metadata=key(
            kind="list",
            option="--set",
            metavar="KEY=VALUE",
            help="A setting of the smoke test, like ranks=4 or strict=true. Repeatable.",
            docs="[settings of the smoke test](smoke.md#settings), like `strict=true`",
            pattern=r"[a-z_]+=[^\s`$\"';|&\\]+",
            item="a setting (KEY=VALUE)",
            extends_file=True,
        ),
    )
    accept: tuple[str, ...] = field(
        default=(),
        metadata=key(
            kind="list",
            metavar="ID",
            help="Accept the warning with this id, and stop printing it. Repeatable.",
            docs="ids of warnings that are known and accepted: they are not printed any more, and "
            "stay in the passport",
            pattern=r"[a-z0-9][a-z0-9.-]*",
            item="the id of a warning",
            in_file_only=True,
        ),
    )
    sync: bool | None = field(
        default=None,
        metadata=key(
            kind="flag",
            help="Bring the environment up to date before run, shell and notebook.",
            docs="`true`: `run`, `shell` and `notebook` first bring the environment [up to "
            "date](daily.md#is-it-up-to-date), as with `--sync`",
            in_file_only=True,
        ),
    )
    fast_checkpoints: bool = field(
        default=True,
        metadata=key(
            kind="flag",
            installs=("xxhash",),
            help="Also install xxhash, which makes loading and repeated saving of checkpoints "
            "several times faster.",
            docs="without xxhash: loading and repeated saving of [checkpoints](checkpoints.md) is "
            "several times slower on few cores",
        ),
    )

    @property
    def package_sources(self) -> tuple[str, ...]:
        """The items of `indexes` and `find_links`, each after its key and a colon."""
        indexes = [f"indexes: {text}" for text in self.indexes]
        return (*indexes, *(f"find_links: {text}" for text in self.find_links))

    def library(self, name: Literal["nccl", "cudnn"]) -> str | None:
        """The requested version of a library."""
        return self.nccl if name == "nccl" else self.cudnn


# The only key without a field: in a Spec it is `cuda=None`.
CPU = SpecKey(
    kind="switch",
    name="cpu",
    option="--cpu",
    help="Use a build without CUDA, for machines without GPUs.",
    docs="a build without CUDA; the option drops what the file says about GPUs",
)


def declared_keys(spec_class: type[Spec]) -> tuple[SpecKey, ...]:
    """The keys that the fields declare, with their names, options and defaults filled in."""
    keys = []
    for declared in fields(spec_class)[1:]:  # the first is the name: it is the folder's
        spec_key: SpecKey = declared.metadata["key"]
        option = spec_key.option or "--" + declared.name.replace("_", "-")
        default = spec_key.default
        if spec_key.kind == "flag":
            default = "yes" if declared.default else "no"
        elif spec_key.kind in ("choice", "source"):
            default = str(declared.default)
        keys.append(replace(spec_key, name=declared.name, option=option, default=default))
        if declared.name == "cuda":
            keys.append(CPU)
    return tuple(keys)


# Every key of spec.yml, in the order in which the file and the help have them.
SPEC_KEYS = declared_keys(Spec)
# The flags that add packages unless they are switched off.
DEFAULT_PACKAGE_KEYS = tuple(key for key in SPEC_KEYS if key.installs and key.default == "yes")


def _query_key(name: str, help: str, **changes: Any) -> SpecKey:
    """An option of a query: that of a request with another help, and perhaps looser forms."""
    (spec_key,) = (key for key in SPEC_KEYS if key.option == f"--{name}")
    return replace(spec_key, name=name, default="", help=help, **changes)


QUERY_KEYS = (
    _query_key("torch", "PyTorch release: 2, 2.3, 2.3.1, '>=2.3,<2.6' or latest.", metavar="EXPR"),
    _query_key(
        "cuda",
        "Built for this CUDA: 12.1, or 12 for every 12.x.",
        pattern=r"\d+(\.\d+)?",
        example="12.1 or 12",
    ),
    _query_key(
        "python",
        "Built for this Python: 3.13, or 3.13t for a free-threaded one.",
        kind="text",
        pattern=r"3\.\d+t?",
        example="3.11, or 3.13t for a free-threaded one",
    ),
    _query_key("gpu", "Runs on this GPU: sm_90, 9.0, H100, or nvidia-smi's name. Repeatable."),
    _query_key("driver", "Runs with this NVIDIA driver: 535, or 535.129.03."),
    _query_key("glibc", "Runs with this glibc."),
    _query_key("platform", "For this platform. Repeatable."),
    _query_key("source", "From this source. Repeatable.", kind="sources"),
    _query_key(
        "nccl",
        "Has this NCCL, or can be combined with it: 2.27 or 2.27.5.",
        pattern=r"\d+(\.\d+){0,2}",
        example="2.27 or 2.27.5",
    ),
    SpecKey(
        kind="switch",
        name="unknown",
        help="Also show builds for which no source says whether they fit.",
    ),
)
