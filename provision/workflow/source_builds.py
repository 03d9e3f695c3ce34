"""Packages of which the index has no wheel for a request: built once, where they are locked.

The wheel lies next to spec.yml, like that of a local project, and is locked by its hash. So every
node installs the same bytes, and none needs a compiler. docs/choosing.md.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import re
import shutil
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name

from provision import catalog
from provision import lockfile as locks
from provision.adapters import uv
from provision.adapters.http import Download, HttpClient
from provision.core.atomic import atomic_write
from provision.core.errors import InvalidSpec, ToolMissing, Unreachable, Unsolvable
from provision.core.package_names import package_name
from provision.core.platforms import host_platform
from provision.core.process import run
from provision.core.tempdirs import temporary_directory
from provision.core.types import LockedPackage
from provision.environment import prefix as prefixes
from provision.workflow.context import Context

if TYPE_CHECKING:
    from provision.workflow.plan import Plan

# The folder of wheels next to spec.yml, which belongs in the lab's repository like spec.yml itself.
WHEELS = "wheels"
# What a build says that needs the packages of the environment.
_NEEDS_TORCH = re.compile(r"No module named '?torch\b|requires? (Py)?[Tt]orch")
_CUDA_OF_NVCC = re.compile(r"release (\d+\.\d+)")


@contextlib.contextmanager
def built(
    context: Context, plan: Plan, packages: Sequence[LockedPackage], *, dry_run: bool = False
) -> Iterator[tuple[LockedPackage, ...]]:
    """The packages of a plan with wheels instead of source archives.

    The wheels that were put next to spec.yml stay only if the block succeeds. Raises Unsolvable for
    a package that cannot be built. dry_run: nothing is built, and archives stay.
    """
    archives = [package for package in packages if package.is_archive]
    placed: dict[Path, bytes | None] = {}
    try:
        wheels = {}
        for package in archives:
            wheel = _locked_wheel(plan, packages, package)
            if wheel is None and dry_run:
                continue
            wheel = wheel or _build(context, plan, packages, package)
            target = plan.folder / WHEELS / wheel.name
            content = wheel.read_bytes()
            earlier = target.read_bytes() if target.exists() else None
            if content != earlier:  # one of the same name may be for another torch
                placed[target] = earlier
                atomic_write(target, content)
            sha256 = hashlib.sha256(content).hexdigest()
            wheels[package] = dataclasses.replace(
                package, url=target.absolute().as_uri(), sha256=sha256, direct=True
            )
        yield tuple(wheels.get(package, package) for package in packages)
    except BaseException:
        for target, earlier in placed.items():
            if earlier is not None:
                atomic_write(target, earlier)
                continue
            target.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                target.parent.rmdir()  # if it is empty
        raise


def _locked_wheel(
    plan: Plan, packages: Sequence[LockedPackage], package: LockedPackage
) -> Path | None:
    """The wheel of the same release that the present lock holds, if it was built for the same
    Python and the same file of torch."""
    if plan.lock is None or plan.lock.platform != package.platform:
        return None
    locked = {other.name: other for other in plan.lock.packages}
    new = {other.name: other for other in packages if other.platform == package.platform}
    present = locked.get(package.name)
    if present is None or not present.direct or present.version != package.version:
        return None
    for name in ("python", "torch", "pytorch"):
        files = {side[name].sha256 if name in side else "" for side in (locked, new)}
        if len(files) > 1:
            return None
    wheel = plan.folder / WHEELS / present.filename
    if not wheel.exists() or hashlib.sha256(wheel.read_bytes()).hexdigest() != present.sha256:
        return None
    return wheel


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
    facts = catalog.source_builds().get(canonicalize_name(package.name))
    resolution = plan.resolution
    key = f"{package.sha256} {resolution.python} {resolution.local_version} {resolution.cuda}"
    folder = context.folders.cache / "built-wheels" / hashlib.sha256(key.encode()).hexdigest()[:32]
    earlier = list(folder.glob("*.whl"))
    if earlier:
        return earlier[0]
    with temporary_directory("build") as temporary, HttpClient(uv.pip_settings()) as client:
        archive = temporary / package.filename
        url = context.mirrors.actual_url(package.url)
        download = Download(url=url, target=archive, sha256=package.sha256)
        for _, error in client.download([download], lambda download: None):
            raise error
        output = temporary / "wheel"
        output.mkdir()
        prefix = None
        facts = facts or (catalog.SourceBuild() if _builds_with_torch(archive) else None)
        if facts is None:
            context.progress.info(f"building {title}, which has no wheel")
            if not uv.has_python(resolution.python):
                prefix = _prefix_without_archives(context, plan, packages, temporary / "prefix")
            try:
                wheel = uv.build_wheel(
                    archive,
                    output,
                    python=resolution.python,
                    prefix=prefix,
                    mirrors=context.mirrors,
                )
                return _keep(wheel, folder)
            except InvalidSpec as error:
                if not _NEEDS_TORCH.search(f"{error.message} {error.details}"):
                    raise _refusal(package, error) from error
                facts = catalog.SourceBuild()
        if facts.cuda and resolution.cuda is not None:
            _check_nvcc(package, resolution.cuda)
        context.progress.info(
            f"building {title} with torch {resolution.local_version}; this may take long"
        )
        prefix = prefix or _prefix_without_archives(context, plan, packages, temporary / "prefix")
        try:
            wheel = uv.build_wheel(
                archive,
                output,
                prefix=prefix,
                needs=facts.needs,
                variables=facts.env if resolution.cuda is not None else {},
                mirrors=context.mirrors,
            )
        except InvalidSpec as error:
            raise _refusal(package, error) from error
        return _keep(wheel, folder)


def _builds_with_torch(archive: Path) -> bool:
    """Whether a source archive says that its build needs torch: pip would then build it with the
    newest one."""
    if not tarfile.is_tarfile(archive):
        return False
    with tarfile.open(archive) as tar:
        for member in tar:
            if member.name.count("/") == 1 and member.name.endswith("/pyproject.toml"):
                file = tar.extractfile(member)
                table = uv.parse_toml(file.read().decode()) if file else {}
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
        platform=package.platform,
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


def _keep(wheel: Path, folder: Path) -> Path:
    target = folder / wheel.name
    atomic_write(target, wheel.read_bytes())
    return target


def _prefix_without_archives(
    context: Context, plan: Plan, packages: Sequence[LockedPackage], path: Path
) -> Path:
    """A prefix with all that is locked as wheels and conda packages."""
    installable = [package for package in packages if not package.is_archive]
    _, lock = locks.compose(
        path / locks.FILE, plan.inputs, installable, python_from=plan.python_from
    )
    prefixes.install_packages(lock, path, path, context.folders, context.progress, context.mirrors)
    return path


def _check_nvcc(package: LockedPackage, cuda: str) -> None:
    """Raise ToolMissing unless this machine compiles for a CUDA version."""
    title = f"{package.name} {package.version}"
    advice = f"Lock it on a machine with CUDA {cuda}'s toolkit, or {_wheel_advice(package)}."
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise ToolMissing(
            f"{title} has no wheel and must be compiled: nvcc of CUDA {cuda} is not on PATH.",
            advice=advice,
        )
    output = run([nvcc, "--version"], check=False).stdout
    match = _CUDA_OF_NVCC.search(output)
    # torch refuses to compile for another major version, and warns of another minor one
    # (torch/utils/cpp_extension.py: _check_cuda_version).
    if match is None or match[1].split(".")[0] != cuda.split(".")[0]:
        version = match[1] if match else "whose version it does not say"
        raise ToolMissing(
            f"{title} has no wheel and must be compiled for CUDA {cuda}: {nvcc} is of CUDA "
            f"{version}.",
            advice=advice,
        )


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
