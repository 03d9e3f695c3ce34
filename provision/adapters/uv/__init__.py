"""The one door to uv: which wheels satisfy requirements, installing exactly those, and the metadata
of a wheel.

Configuration says where wheels come from: uv's own settings if it has any, else pip's. Locations on
this machine's disk (`file:` indexes, find-links folders) are used only if the indexes cannot
satisfy the request, so that a lock names files that others can download wherever possible.
"""

from provision.adapters.uv.configuration import IndexSettings
from provision.adapters.uv.index_releases import (
    IndexRelease,
    index_releases,
    index_urls,
    newest_release,
    wheel_glibc,
)
from provision.adapters.uv.indexes import (
    TORCH_INDEX,
    configured_settings,
    index_settings,
    pip_settings,
    torch_index_url,
)
from provision.adapters.uv.installer import (
    cache_folder,
    hashed_requirements,
    install_wheels,
    recorded_wheels,
    unpack_wheel,
)
from provision.adapters.uv.package_sources import NoWheelFits, package_sources
from provision.adapters.uv.resolve_request import UV_GLIBC, ResolveRequest
from provision.adapters.uv.resolver import resolve, resolve_versions
from provision.adapters.uv.source_packages import build_wheel, source_name
from provision.adapters.uv.uv_process import NO_SOLUTION, translate_failure, uv_executable
from provision.adapters.uv.wheel_metadata import WheelMetadata, fetch_metadata
