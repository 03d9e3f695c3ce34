"""The one door to uv: which wheels satisfy requirements, and installing exactly those; and what a
wheel says of itself.

Where wheels come from is configuration: uv's own settings when it has any, else pip's. Addresses of
this machine's own disk (`file:` index_options, find-links folders) are asked only when the indexes
cannot satisfy the request, so that a lock names files that others can fetch wherever that is
possible.
"""

from provision.adapters.uv.indexes import (
    TORCH_INDEX,
    IndexOptions,
    index_options,
    pip_settings,
    torch_index_url,
)
from provision.adapters.uv.installer import (
    fingerprint,
    fingerprints,
    hashed_requirements,
    install_wheels,
    unpack_wheel,
)
from provision.adapters.uv.resolver import UV_GLIBC, ResolveRequest, resolve, resolve_versions
from provision.adapters.uv.uv_process import translate_failure, uv_executable
from provision.adapters.uv.wheel_metadata import WheelMetadata, fetch_metadata

__all__ = [
    "TORCH_INDEX",
    "UV_GLIBC",
    "IndexOptions",
    "ResolveRequest",
    "WheelMetadata",
    "fetch_metadata",
    "fingerprint",
    "fingerprints",
    "hashed_requirements",
    "index_options",
    "install_wheels",
    "pip_settings",
    "resolve",
    "resolve_versions",
    "torch_index_url",
    "translate_failure",
    "unpack_wheel",
    "uv_executable",
]
