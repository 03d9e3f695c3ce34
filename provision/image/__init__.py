"""An environment as a reproducible OCI image, in a layout on disk and in the Docker engine.

Its modules, which are imported one by one, because a lock needs few of them:

- build, layer_build, layers, layer_groups, tree_files, own_files, config: from packages to an image
- cache_key, layer_cache: which layers can be reused instead of built again
- base, disk_base: the base image
- code: the project's own files
- oci_layout, manifest: the file formats
- docker, container_smoke: the Docker engine
- export, compress, registry: folders, compressed layers, registries
- sbom, provenance: the packages in it, and where they come from
- package_sizes, cuda_copies: what makes it large
"""
