"""Packages of which the index has no wheel for a request: built once, where they are locked.

The wheel lies next to spec.yml, like that of a local project, and is locked by its hash. So every
node installs the same bytes, and none needs a compiler. docs/choosing.md.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from provision import catalog, channel
from provision import lockfile as locks
from provision.adapters import uv
from provision.adapters.http import HttpClient
from provision.core.atomic import atomic_write
from provision.core.errors import InvalidSpec, ToolMissing, Unreachable, Unsolvable
from provision.core.mirrors import path_from_url
from provision.core.package_names import package_name
from provision.core.platforms import Platform, host_platform
from provision.core.tempdirs import temporary_directory
from provision.core.toml_text import parse_toml
from provision.core.types import LockedPackage, Meter
from provision.environment import prefix as prefixes
from provision.resolver import spec as specs
from provision.workflow import build_tools
from provision.workflow.context import Context
from provision.workflow.wheel_folder import WHEELS, place, undone_on_failure

if TYPE_CHECKING:
    from provision.workflow.plan import Plan

# What a build says that needs the packages of the environment.
_NEEDS_TORCH = re.compile(r"No module named '?torch\b|requires? (Py)?[Tt]orch")
_NINJA_STEP = re.compile(r"\[\d+/(\d+)\] ")
# Variables of the user's shell that change what is compiled.
_DECIDING = ("TORCH_CUDA_ARCH_LIST", "FORCE_CUDA", "CC", "CXX", "CFLAGS", "CXXFLAGS", "MAX_JOBS")


@contextmanager
def built(
    context: Context, plan: Plan, packages: Sequence[LockedPackage], *, dry_run: bool = False
) -> Iterator[tuple[LockedPackage, ...]]:
    """The packages of a plan with wheels instead of source archives.

    The wheels that were put next to spec.yml stay only if the block succeeds. Raises Unsolvable for
    a package that cannot be built. dry_run: nothing is built, and archives stay.
    """
    # A wheel of Python alone, built for this machine, does for all.
    archives = [package for package in packages if package.is_archive]
    archives.sort(key=lambda package: package.platform != host_platform())
    wheels: dict[LockedPackage, LockedPackage] = {}
    with undone_on_failure() as placed:
        for package in archives:
            wheel = _present_wheel(plan, packages, package, wheels.values())
            if wheel is None and dry_run:
                continue
            if wheel is None:
                wheel = _build(context, plan, packages, package)
                glibc = (os.confstr("CS_GNU_LIBC_VERSION") or "").split()[-1]
                assumed = plan.resolution.glibc
                is_newer = catalog.version_key(glibc) > catalog.version_key(assumed)
                if is_newer and not wheel.name.endswith("-any.whl"):
                    context.progress.warn(
                        f"{wheel.name} was compiled with glibc {glibc}, and {assumed} is assumed of "
                        "every machine: one that is older than this may not load it. Lock on the "
                        "oldest system"
                    )
            target = place(wheel.name, wheel.read_bytes(), plan.folder, placed)
            sha256 = hashlib.sha256(target.read_bytes()).hexdigest()
            wheels[package] = replace(
                package, url=target.absolute().as_uri(), sha256=sha256, direct=True
            )
        names = {package.name for package in archives}
        for name in sorted(plan.resolution.spec.build.keys() - names):
            context.progress.warn(
                f"`build` in spec.yml has no effect on {name}: no package of that name is built, "
                "because the index has a wheel or nothing requires it"
            )
        yield tuple(wheels.get(package, package) for package in packages)


def _present_wheel(
    plan: Plan,
    packages: Sequence[LockedPackage],
    package: LockedPackage,
    built: Iterable[LockedPackage],
) -> Path | None:
    """A wheel that need not be built: of the same archive for another platform if it is for any; of
    the same release in the present lock, if it was built in the same manner for the same Python and
    the same file of torch."""
    for other in built:
        if other.version == package.version and other.name == package.name:
            return path_from_url(other.url) if other.filename.endswith("-any.whl") else None
    if plan.lock is None or plan.lock.platform != package.platform:
        return None
    present = next((other for other in plan.lock.packages if other.name == package.name), None)
    if present is None or not present.direct or present.version != package.version:
        return None

    def built_with(packages: Iterable[LockedPackage]) -> set[tuple[str, str]]:
        return {
            (other.name, other.sha256)
            for other in packages
            if other.platform == package.platform and other.name in ("python", "torch", "pytorch")
        }

    if built_with(plan.lock.packages) != built_with(packages):
        return None
    changed_settings = {*plan.lock.builds} ^ {*plan.inputs.builds}
    if any(line.startswith(f"{package.name} ") for line in changed_settings):
        return None
    wheel = plan.folder / WHEELS / present.filename
    if not wheel.exists() or hashlib.sha256(wheel.read_bytes()).hexdigest() != present.sha256:
        return None
    return wheel


def _facts(plan: Plan, package: LockedPackage) -> catalog.SourceBuild:
    """How a package is built: as spec.yml says, else as it is known; isolation: None if neither says."""
    settings = plan.resolution.spec.build.get(package.name, {})
    facts = catalog.source_builds().get(package.name)
    if facts is None:
        stated = {"needs", "cuda"} & settings.keys()
        facts = catalog.SourceBuild(isolation=False if stated else None)
    return replace(
        facts,
        isolation=settings.get("isolation", facts.isolation),
        needs=tuple(specs.replace_packages(facts.needs, settings.get("needs", ()))),
        cuda=settings.get("cuda", facts.cuda),
        # A CPU build has no use for variables that switch CUDA on.
        env={**(facts.env if plan.resolution.cuda else {}), **settings.get("env", {})},
    )


def _build(
    context: Context, plan: Plan, packages: Sequence[LockedPackage], package: LockedPackage
) -> Path:
    """The wheel of a source archive, in the user's cache."""
    title = f"{package.name} {package.version}"
    if package.platform != host_platform():
        raise Unsolvable(
            f"{title} has no wheel for {package.platform}, and this machine is {host_platform()}.",
            advice=f"Lock it on a {package.platform} machine, or {_wheel_advice(package)}.",
        )
    _check_glibc(context, plan, package)
    facts, resolution = _facts(plan, package), plan.resolution
    variables = {*facts.env, *_DECIDING} & os.environ.keys()
    env = {**facts.env, **{name: os.environ[name] for name in variables}}
    manner = replace(facts, env={**env, "MAX_JOBS": ""})
    build = (resolution.python, resolution.local_version, resolution.cuda, resolution.spec.gpu)
    key = f"{package.sha256} {package.platform} {build} {manner}"
    digest = hashlib.sha256(key.encode()).hexdigest()
    folder = context.folders.cache / "built-wheels" / digest[:32]
    earlier = list(folder.glob("*.whl"))
    if earlier:
        return earlier[0]
    with temporary_directory("build") as temporary:
        archive, prefix = temporary / package.filename, temporary / "prefix"
        url = context.mirrors.actual_url(package.url)
        with HttpClient(uv.pip_settings()) as client:
            client.download(url, package.sha256, archive)

        def build_wheel(**options: Any) -> Path:
            with _shown_steps(context, title) as on_line:
                wheel = uv.build_wheel(
                    archive, temporary, mirrors=context.mirrors, on_line=on_line, **options
                )
            target = folder / wheel.name
            atomic_write(target, wheel.read_bytes())
            return target

        if facts.isolation or (facts.isolation is None and not _builds_with_torch(archive)):
            context.progress.info(f"building {title}, which has no wheel")
            # Our own Python, if it is of that version, needs no environment.
            is_running_python = resolution.python == channel.host_minor()
            if not is_running_python:
                _install_without_archives(context, plan, packages, prefix)
            try:
                return build_wheel(
                    python=resolution.python,
                    prefix=None if is_running_python else prefix,
                    variables=env,
                )
            except InvalidSpec as error:
                needs_torch = _NEEDS_TORCH.search(f"{error.message} {error.details}")
                if facts.isolation or not needs_torch:
                    raise _refusal(package, error) from error
        try:
            variables_here = build_tools.check(title, facts, resolution, env)
        except (ToolMissing, Unsolvable) as error:
            error.advice = (
                "Lock it on a machine with such a toolkit and a compiler that it accepts: "
                f"CUDA_HOME=FOLDER names a toolkit, CXX a compiler. Or {_wheel_advice(package)}."
            )
            raise
        context.progress.info(
            f"building {title} with torch {resolution.local_version}; this may take long"
        )
        if not prefix.exists():
            _install_without_archives(context, plan, packages, prefix)
        try:
            return build_wheel(
                prefix=prefix,
                needs=[*facts.needs, f"torch=={resolution.torch}"],
                variables={**build_tools.wheel_headers(prefix), **variables_here, **env},
            )
        except InvalidSpec as error:
            raise _refusal(package, error) from error


@contextmanager
def _shown_steps(context: Context, title: str) -> Iterator[Callable[[str], None]]:
    """Takes the lines that a build prints, and shows that it goes on, and ninja's steps if it has
    some."""
    with ExitStack() as stack:
        stack.enter_context(context.progress.meter(f"building {title}", 0))
        meters: list[Meter] = []

        def on_line(line: str) -> None:
            if step := _NINJA_STEP.match(line):
                if not meters:
                    stack.close()
                    meter = context.progress.meter(f"compiling {title}", int(step[1]))
                    meters.append(stack.enter_context(meter))
                meters[0].advance(1)

        yield on_line


def _builds_with_torch(archive: Path) -> bool:
    """Whether a source archive says that its build needs torch: pip would then build it with the
    newest one."""
    import tarfile

    if not tarfile.is_tarfile(archive):
        return False
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.name.count("/") == 1 and member.name.endswith("/pyproject.toml"):
                file = tar.extractfile(member)
                table = parse_toml(file.read().decode()) if file else {}
                requires = table.get("build-system", {}).get("requires", ())
                return "torch" in [package_name(text) for text in requires]
    return False


def _check_glibc(context: Context, plan: Plan, package: LockedPackage) -> None:
    """Raise Unsolvable if there is a wheel for a newer glibc, which is better than a build."""
    resolution = plan.resolution
    request = uv.ResolveRequest(
        requirements=(),
        python=resolution.python,
        glibc=resolution.glibc,
        platform=cast("Platform", package.platform),
        mirrors=context.mirrors,
    )
    try:
        glibc = uv.wheel_glibc(package, request)
    except Unreachable:  # uv may log in where we cannot
        return
    if glibc is not None:
        raise Unsolvable(
            f"{package.name} {package.version} has wheels for glibc {glibc} and later only, and "
            f"{resolution.glibc} is assumed.",
            advice=f"With --glibc {glibc} (`glibc` in spec.yml) every machine needs that.",
        )


def _install_without_archives(
    context: Context, plan: Plan, packages: Sequence[LockedPackage], path: Path
) -> None:
    """A prefix with all that is locked as wheels and conda packages."""
    installable = [package for package in packages if not package.is_archive]
    _, lock = locks.compose(
        path / locks.FILE, plan.inputs, installable, python_from=plan.python_from
    )
    prefixes.install_packages(lock, path, path, context.folders, context.progress, context.mirrors)


def _refusal(package: LockedPackage, error: InvalidSpec) -> Unsolvable:
    reason = error.message.partition(": ")[2]
    return Unsolvable(
        f"{package.name} {package.version} has no wheel, and its source archive cannot be built: "
        f"{reason}",
        advice=f"-v shows what its build printed. Or {_wheel_advice(package)}.",
        details=error.details,
    )


def _wheel_advice(package: LockedPackage) -> str:
    return (
        "name a wheel that its project publishes elsewhere, for this torch, CUDA and Python: "
        f"--pip '{package.name} @ https://...whl'"
    )
