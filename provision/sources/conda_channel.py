"""What conda channels with builds of pytorch have in common.

A source that is a conda channel derives from `CondaChannelSource`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from provision.catalog import Release, version_key
from provision.core.platforms import Platform
from provision.core.types import LockedPackage, Manager, Resolution
from provision.sources.base import Candidate, Source

# Packages that are built for one CUDA, or for none, and load torch's libraries. Some records of
# conda-forge do not say that the builds must agree.
LINKED_WITH_TORCH = ("libtorch", "torchvision", "torchaudio")
_CUDA = re.compile(r"(?:^|_)cu(?:da)?(\d[\d.]*)(?=_|py|$)")


def cuda_of_build_string(build_string: str) -> str | None:
    """The digits of a build string's CUDA (`121` of py311_cu121 and cuda12.1_py311_0), "" for a CPU
    build, None if the string does not say."""
    match = _CUDA.search(build_string)
    if match:
        return match[1].replace(".", "")
    return "" if re.search(r"(?:^|_)cpu(?=_|$)", build_string) else None


class CondaChannelSource(Source):
    """Builds from one conda channel.

    Derived classes say which builds those are and how they are pinned.
    """

    manager: Manager = "conda"
    torch_package = "pytorch"

    def cpu_pythons(self, release: Release, platform: Platform) -> tuple[str, ...]:
        """The Pythons of any of its CUDA builds; if those are not known, the Pythons of the
        release's wheels."""
        pythons: set[str] = set()
        for build in self.builds(release):
            if platform in build.platforms:
                pythons.update(build.for_platform(platform).python or ())
        return tuple(sorted(pythons, key=version_key)) or release.python

    def channels(self, candidate: Candidate) -> tuple[str, ...]:
        return (self.name,)

    def locked_torch_problem(
        self, packages: Sequence[LockedPackage], torch: LockedPackage, resolution: Resolution
    ) -> str | None:
        if torch.version != resolution.torch:
            return f"The locked pytorch is {torch.version}, not {resolution.torch}."
        if not self.is_build_string_of(torch.build, resolution.cuda):
            if resolution.cuda is None:
                return "The request is for a CPU environment."
            return (
                f"The request is for CUDA {resolution.cuda}, but the locked build is another one."
            )
        for package in packages:
            if package.name in LINKED_WITH_TORCH and package.manager == "conda":
                cuda = cuda_of_build_string(package.build)
                requested = (resolution.cuda or "").replace(".", "")
                if cuda is not None and cuda != requested:
                    flavor = f"for CUDA {resolution.cuda}" if resolution.cuda else "for the CPU"
                    return (
                        f"The request is {flavor}, but the locked {package.name} "
                        f"{package.version} is another build ({package.build})."
                    )
        return None

    def is_build_string_of(self, build_string: str, cuda: str | None) -> bool:
        if cuda is None:
            return "cuda" not in build_string
        tag = self.cuda_in_build_string(cuda)
        return re.search(rf"cuda{re.escape(tag)}(?![\d.])", build_string) is not None

    def cuda_in_build_string(self, cuda: str) -> str:
        """How build strings write a CUDA version: cuda126_mkl_py311_h1_304."""
        return cuda.replace(".", "")
