"""Packages that are no files of an index: local projects and git repositories."""

from __future__ import annotations

import secrets
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from provision.adapters.uv.indexes import index_settings
from provision.adapters.uv.uv_process import (
    COMPILER_ERROR,
    PYTHON_ERROR,
    run_uv,
    uv_executable,
)
from provision.core.errors import InvalidSpec, ToolFailed, Unsolvable
from provision.core.mirrors import NO_MIRRORS, Mirrors
from provision.core.tempdirs import temporary_directory
from provision.core.toml_text import parse_toml


def build_wheel(
    project: Path,
    folder: Path,
    *,
    python: str = "",
    prefix: Path | None = None,
    needs: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    mirrors: Mirrors = NO_MIRRORS,
    on_line: Callable[[str], None] | None = None,
) -> Path:
    """Build the wheel of a local project, or of a source archive, into a folder; return its path.

    python: the environment's minor version, for which compiled parts are built. prefix: instead, an
    environment whose interpreter builds it. needs: packages that are installed into the prefix first,
    and then it is built there without isolation. variables: more environment variables of the build.
    on_line: called, in another thread, with each line that the build prints. Raises InvalidSpec if it cannot be built.

    setuptools puts all of the project's `build` folder into the wheel: modules that are gone from
    the project, and the newer copy of a file that is older again. So it builds in an empty folder
    (65.7 does, and 65.0 does not know the variable).
    """
    indexes = index_settings(mirrors=mirrors)
    command: list[str | Path] = [uv_executable(), "build", "--wheel"]
    command += [] if on_line else ["--quiet"]
    command += ["--out-dir", folder, "--no-python-downloads", "--python"]
    if prefix is None:
        running_version = f"{sys.version_info.major}.{sys.version_info.minor}"
        command.append(sys.executable if python == running_version else python)
    else:
        interpreter = prefix / "bin" / "python"
        command.append(interpreter)
        if needs:
            command.append("--no-build-isolation")
            install: list[str | Path] = [uv_executable(), "pip", "install", "--quiet"]
            run_uv([*install, "--python", interpreter, *needs], indexes)
    # From the project on: a package that is built for its build has its own.
    build_base = f"build/provision-{secrets.token_hex(8)}"
    setup_cfg = folder / "setup.cfg"
    setup_cfg.write_text(f"[build]\nbuild_base = {build_base}\n", encoding="utf-8")
    build_variables = {"DIST_EXTRA_CONFIG": str(setup_cfg), **(variables or {})}
    try:
        run_uv([*command, project], indexes, build_variables=build_variables, on_line=on_line)
    except (ToolFailed, Unsolvable) as error:
        cause = COMPILER_ERROR.search(error.details) or PYTHON_ERROR.search(error.details)
        raise InvalidSpec(
            f"{project} cannot be built as a wheel: {cause[0].strip() if cause else error.message}",
            advice="-v shows what its build printed; `-e` installs it as an editable instead.",
            details=error.details,
        ) from error
    finally:
        shutil.rmtree(project / build_base, ignore_errors=True)
        with suppress(OSError):
            (project / "build").rmdir()  # if that was all
    (wheel,) = folder.glob("*.whl")
    return wheel


def source_name(requirement: str, *, mirrors: Mirrors = NO_MIRRORS) -> str:
    """The name of the package that a git address (`git+https://...@REV`) or `-e FOLDER` holds."""
    with temporary_directory("uv") as folder:
        requirements = folder / "requirements.in"
        requirements.write_text(f"{requirement}\n", encoding="utf-8")
        output = folder / "pylock.toml"
        command: list[str | Path] = [uv_executable(), "pip", "compile", "--quiet", "--no-header"]
        command += ["--no-python-downloads", "--python", sys.executable, "--no-deps"]
        command += ["--format", "pylock.toml", requirements, "-o", output]
        try:
            run_uv(command, index_settings(mirrors=mirrors))
        except ToolFailed as error:
            reason = (error.tail.strip() or error.message).splitlines()[-1]
            raise InvalidSpec(
                f"`{requirement}` cannot be read: {reason.partition('error: ')[2] or reason}"
            ) from error
        (package,) = parse_toml(output.read_text(encoding="utf-8"))["packages"]
    return str(package["name"])


def static_version(project: Path) -> str:
    """The version in a project's pyproject.toml; `0` if it says none there."""
    try:
        content = parse_toml((project / "pyproject.toml").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return "0"
    return str(content.get("project", {}).get("version", "0"))
