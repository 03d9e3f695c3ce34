"""Where provision keeps its files on this machine, and the names of an environment's own files."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from provision.core import project, settings
from provision.core.dataclass import frozen

# In an environment's folder: what its user writes, and what we make of it for the solvers.
SPEC = "spec.yml"
ENVIRONMENT = "environment.yml"
VIRTUAL_PACKAGES = "virtual-packages.yml"
LOCK = "conda-lock.yml"
# In a lab's repository, next to the envs folder.
LAB = "lab.yml"
INVENTORY = "nodes.yml"
# Facts that replace the shipped ones, in the user's data folder; a lab's own, beside its lab.yml.
FACTS = "facts.json"
LAB_FACTS = "facts.yml"

_protection = threading.Lock()
_umasks: list[int] = []  # the user's, once for each open block of `owner_writes_only`


def nearest_existing(path: Path) -> Path:
    """The path itself, or the nearest of its parents that exists."""
    while not path.exists():
        path = path.parent
    return path


@frozen
class Folders:
    """data: products in use (prefixes, images, channels). cache: what can be downloaded again.
    envs: a lab's own environments. templates: a lab's own templates of generated files, if it has
    any. project: the folder of this project's products, from `data`."""

    data: Path
    cache: Path
    envs: Path
    templates: Path | None = None
    project: Path = Path()

    @cached_property
    def project_data(self) -> Path:
        return self.data / self.project

    @property
    def prefixes(self) -> Path:
        return self.project_data / "prefixes"

    @cached_property
    def images(self) -> Path:
        return self.project_data / "images"

    @property
    def packed(self) -> Path:
        """The same images with compressed layers."""
        return self.project_data / "packed"

    @property
    def packs(self) -> Path:
        """Environments as one file each, for the nodes of a cluster."""
        return self.project_data / "packs"

    @property
    def channels(self) -> Path:
        return self.data / "channels"

    def smoke(self, name: str) -> Path:
        """What the latest smoke tests of an environment left: reports, logs."""
        return self.project_data.joinpath("smoke", name)

    def drift(self, name: str) -> Path:
        """The latest comparison of nodes with an environment: a file for each `--on`."""
        return self.project_data.joinpath("drift", name)

    def passport(self, name: str) -> Path:
        """The folder with the passport of an environment: it is of this user's prefix and machine,
        and so is not in `envs`, which is shared."""
        return self.project_data.joinpath("passports", name)

    def change(self, name: str) -> Path:
        """The journal of a change to an environment that is not finished."""
        return self.project_data.joinpath("changes", f"{name}.json")

    @property
    def pulled(self) -> Path:
        """Images from registries: base images, and what interrupted pulls left."""
        return self.cache / "pulled-images"

    @property
    def packages(self) -> Path:
        return self.cache / "conda-packages"

    @property
    def unchanged(self) -> Path:
        """Records of locks that had nothing to do (cli/unchanged.py)."""
        return self.cache / "unchanged"

    @property
    def remembered(self) -> Path:
        """Documents that were read, files that were rendered (core/remembered.py)."""
        return self.cache / "remembered"

    @property
    def facts(self) -> Path:
        return self.data / FACTS

    @property
    def index_facts(self) -> Path:
        """What was read of releases that the facts do not have (workflow/index_facts.py)."""
        return self.cache / "index-facts"

    @property
    def byte_code(self) -> Path:
        """What the sources of packages were compiled to (environment/bytecode_cache.py)."""
        return self.cache / "byte-code"


def default_folders(envs: Path | None = None) -> Folders:
    """The user's folders: as PROVISION_DATA, PROVISION_CACHE and PROVISION_ENVS say, else as
    settings files do, else by the platform's convention (XDG on Linux).

    The working folder's own `envs`, and that of the project which it is in, go before that of
    settings.
    """
    folder_settings = settings.folder_settings()
    data = os.environ.get("PROVISION_DATA") or folder_settings.get("data")
    cache = os.environ.get("PROVISION_CACHE") or folder_settings.get("cache")
    data = data or settings.xdg_folder("DATA") / "provision"
    cache = cache or settings.xdg_folder("CACHE") / "provision"
    data, templates = Path(data).absolute(), Path("templates")
    envs = envs or (
        Path(os.environ["PROVISION_ENVS"]) if os.environ.get("PROVISION_ENVS") else None
    )
    if envs is None:
        envs = project.find_envs(Path.cwd()) or folder_settings.get("envs")
        if envs is not None:
            templates = envs.parent / "templates"
    envs = (envs or Path(project.ENVS)).absolute()
    return Folders(
        data=data,
        cache=Path(cache).absolute(),
        envs=envs,
        templates=templates.absolute(),
        project=project.project_folder(data, envs),
    )


def make_private_directory(path: Path, *, mode: int = 0o755) -> None:
    """Create a directory and its missing parents so that only their owner may write there, under
    any umask. mode: of each, less what the umask takes."""
    if not path.is_dir():
        make_private_directory(path.parent, mode=mode)
        path.mkdir(exist_ok=True, mode=mode)


@contextmanager
def owner_writes_only() -> Iterator[None]:
    """In this block nobody else may write to the files and folders that this process makes, nor to
    those of its children, whatever the user's umask is: from the first moment on, because a link or
    a file that somebody puts into a folder meanwhile would stay there.

    Threads have one umask: it is the user's again when the last of their blocks has ended."""
    with _protection:
        if not _umasks:
            foreign_write_bits = stat.S_IWGRP | stat.S_IWOTH
            _umasks.append(os.umask(foreign_write_bits))
            os.umask(_umasks[0] | foreign_write_bits)
        else:
            _umasks.append(_umasks[0])
    try:
        yield
    finally:
        with _protection:
            before = _umasks.pop()
            if not _umasks:
                os.umask(before)
