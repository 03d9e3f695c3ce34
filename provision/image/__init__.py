"""An environment as a reproducible OCI image, in a layout on disk and in the Docker engine.

This package exports what most commands need. Its modules:

- build, layer_build, layers, tree_files, own_files, config: from packages to an image
- cache_key, layer_cache: which layers can be reused instead of built again
- base, disk_base: the base image
- code: the project's own files
- oci_layout, manifest: the file formats
- docker, container_smoke: the Docker engine
- export, compress, registry: folders, compressed layers, registries
- sbom, provenance: the packages in it, and where they come from
- package_sizes, cuda_copies: what makes it large
"""

from provision.adapters.docker import connect_engine, require_engine
from provision.image.base import (
    BaseImage,
    chosen_base,
    is_on_disk,
    parse_engine_reference,
)
from provision.image.build import build_image, built_image, find_image
from provision.image.cache_key import Recipe
from provision.image.code import Code, built_code, read_code
from provision.image.config import (
    LOCK_LABEL,
    creation_time,
    dockerfile_context,
    image_reference,
    source_date_epoch,
)
from provision.image.cuda_copies import base_cuda, cuda_copies
from provision.image.disk_base import read_disk_base, read_layout
from provision.image.docker import (
    find_engine_base,
    load_image,
    removable_images,
    remove_images,
    runnable_name,
    unmet_requirements,
)
from provision.image.engine_record import record_path
from provision.image.export import check_output, export_image, parse_output
from provision.image.manifest import ImageDocuments
from provision.image.oci_layout import layer_files, remove_leftovers
