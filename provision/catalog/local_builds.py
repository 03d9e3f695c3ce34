"""Wheels that are built for one torch, CUDA and C++ ABI: what their local versions say.

Their projects agree on no form: `2.1.2+pt23cu121`, `2.6.3+cu123torch2.3cxx11abiFALSE`,
`0.17.1+torch230cu121`, `0.6+cu113`. Their tags say only for which Python and machine they are.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from provision.catalog.releases import minor
from provision.core.dataclass import frozen

if TYPE_CHECKING:
    from packaging.version import Version

# pt23 and pt210 hold no patch; torch230 and torch2100 do.
_TORCH = r"(?:pt|torch)(\d)\.(\d+)|pt(\d)(\d{1,2})(?!\d)|torch(\d)(\d{1,2}?)\d?(?!\d)"
_CUDA = r"cu(?:da)?(?P<major>1\d|[89])\.?(?P<minor>\d)?(?!\d)"
_ABI = r"abi(?P<is_new>true|false|1|0)"


@frozen
class TorchBuild:
    """What an extension is compiled against. cuda: None for a build without it. cxx11_abi: whether
    torch has the C++ ABI of GCC 5."""

    torch: str
    cuda: str | None
    cxx11_abi: bool

    def mismatch(self, version: Version) -> str:
        """What a local version names that this build is not; empty if it fits, or names nothing."""
        local = version.local or ""
        return self._torch(local) or self._cuda(local) or self._abi(local)

    def is_for_exact_cuda(self, version: Version) -> bool:
        """Whether a local version names the build's CUDA by its minor version, too."""
        match = re.search(_CUDA, version.local or "")
        return match is not None and f"{match['major']}.{match['minor']}" == self.cuda

    def _torch(self, local: str) -> str:
        match = re.search(_TORCH, local)
        named = ".".join(filter(None, match.groups())) if match else minor(self.torch)
        return "" if named == minor(self.torch) else f"is for torch {named}"

    def _cuda(self, local: str) -> str:
        match = re.search(_CUDA, local)
        if match is None:
            is_cpu = re.search(r"(?<![a-z])cpu", local) is not None
            return "is for CPUs" if is_cpu and self.cuda else ""
        # Programs run with the libraries of every later or earlier minor version (CUDA's minor
        # version compatibility).
        if self.cuda and match["major"] == self.cuda.split(".")[0]:
            return ""
        return f"is for CUDA {match['major']}" + (f".{match['minor']}" if match["minor"] else "")

    def _abi(self, local: str) -> str:
        match = re.search(_ABI, local)
        if match is None or (match["is_new"] in ("true", "1")) == self.cxx11_abi:
            return ""
        return f"is for torch with cxx11abi {'FALSE' if self.cxx11_abi else 'TRUE'}"
