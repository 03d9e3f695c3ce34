"""An environment as a reproducible OCI image, in a layout on disk and in the Docker engine.

This package exports what the commands need. Its modules:

- build, layer_build, layers, conda_files, wheel_files, config: from a prefix to an image
- cache_key, layer_cache: which layers can be reused instead of built again
- base, disk_base: the base image
- code: the project's own files
- oci_layout, manifest: the file formats
- docker, container_smoke: the Docker engine
- export, compress, registry: archives, compressed layers, registries
- sbom, provenance: the packages in it, and where they come from
- package_sizes, cuda_copies: what makes it large
"""

from provision.adapters.docker import connect_engine, has_image, require_engine
from provision.core.container import PREFIX
from provision.image.base import (
    BaseImage,
    chosen_base,
    is_on_disk,
    parse_engine_reference,
    parse_tag,
)
from provision.image.build import build_image, built_image, find_image, matching_image
from provision.image.cache_key import Recipe
from provision.image.code import Code, has_code, read_code
from provision.image.compress import Compression, compress_image
from provision.image.config import (
    LOCK_LABEL,
    creation_time,
    dockerfile_context,
    image_reference,
    repository,
    source_date_epoch,
)
from provision.image.container_smoke import run_smoke
from provision.image.cuda_copies import base_cuda, cuda_copies
from provision.image.disk_base import read_disk_base, read_layout
from provision.image.docker import (
    find_engine_base,
    find_engine_id,
    is_loaded,
    load_image,
    present_engine_base,
    removable_images,
    removable_references,
    remove_images,
    runnable_name,
    send_image,
    tag_image,
    unmet_requirements,
)
from provision.image.engine_record import record_path
from provision.image.export import COMPRESSIBLE, Output, check_output, export_image, parse_output
from provision.image.manifest import ImageDocuments
from provision.image.oci_layout import layer_files, remove_leftovers
from provision.image.package_sizes import PackageChange, compare, package_sizes
from provision.image.provenance import PREDICATE_TYPE, provenance
from provision.image.registry.pull import (
    decompress_image,
    discard_if_incomplete,
    find_remote,
    is_complete,
    pull_image,
    pulled_image,
)
from provision.image.registry.push import IndexResult, PushResult, push_image, push_index
from provision.image.registry.reference import (
    RegistryReference,
    base_registry_reference,
    parse_registry_reference,
)
from provision.image.registry.referrers import (
    attach_referrer,
    list_referrers,
    referrer_content,
)
from provision.image.registry.signatures import (
    STATEMENT_TYPE,
    attest_image,
    sign_image,
    signed_statements,
    statement,
    verify_image,
)
from provision.image.sbom import image_sbom, read_packages

__all__ = [
    "COMPRESSIBLE",
    "LOCK_LABEL",
    "PREDICATE_TYPE",
    "PREFIX",
    "STATEMENT_TYPE",
    "BaseImage",
    "Code",
    "Compression",
    "ImageDocuments",
    "IndexResult",
    "Output",
    "PackageChange",
    "PushResult",
    "Recipe",
    "RegistryReference",
    "attach_referrer",
    "attest_image",
    "base_cuda",
    "base_registry_reference",
    "build_image",
    "built_image",
    "check_output",
    "chosen_base",
    "compare",
    "compress_image",
    "connect_engine",
    "creation_time",
    "cuda_copies",
    "decompress_image",
    "discard_if_incomplete",
    "dockerfile_context",
    "export_image",
    "find_engine_base",
    "find_engine_id",
    "find_image",
    "find_remote",
    "has_code",
    "has_image",
    "image_reference",
    "image_sbom",
    "is_complete",
    "is_loaded",
    "is_on_disk",
    "layer_files",
    "list_referrers",
    "load_image",
    "matching_image",
    "package_sizes",
    "parse_engine_reference",
    "parse_output",
    "parse_registry_reference",
    "parse_tag",
    "present_engine_base",
    "provenance",
    "pull_image",
    "pulled_image",
    "push_image",
    "push_index",
    "read_code",
    "read_disk_base",
    "read_layout",
    "read_packages",
    "record_path",
    "referrer_content",
    "removable_images",
    "removable_references",
    "remove_images",
    "remove_leftovers",
    "repository",
    "require_engine",
    "run_smoke",
    "runnable_name",
    "send_image",
    "sign_image",
    "signed_statements",
    "source_date_epoch",
    "statement",
    "tag_image",
    "unmet_requirements",
    "verify_image",
]
