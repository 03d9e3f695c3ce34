"""image: an environment as a reproducible OCI image, in a layout on disk and in the Docker engine.

What a workflow needs is named here. How it is done lies in groups (the rule of layers), contents and records (which files), recipe
(what decides the bytes), making, layers and tar (their bytes), kept (what is there already), assemble and oci (the layout), config (what
the image says of itself), contract and jupyter (how it is run), bases, stored and inspecting (what it lies on), materials, packages and
within (what it is made of), sdk (the edge to Docker), loading and smoke (what the engine does for us), compressing, exporting and
registry (other forms and places for it) and dockerfile (the template's values).
"""

from provision.image.assembly import build as build_image
from provision.image.assembly import find as find_image
from provision.image.base_archive import find_base as read_disk_base
from provision.image.base_images import BaseImage, chosen_base
from provision.image.base_images import engine_reference as parse_engine_reference
from provision.image.base_images import is_stored as is_on_disk
from provision.image.base_images import name_of as parse_tag
from provision.image.compression import METHODS as COMPRESSIONS
from provision.image.compression import Method as Compression
from provision.image.compression import pack as compress_image
from provision.image.conda_files import PREFIX
from provision.image.config import reference as image_reference
from provision.image.config import repository, source_date_epoch
from provision.image.container_smoke import Files as SmokeFiles
from provision.image.container_smoke import run_smoke
from provision.image.docker_load import bring as send_image
from provision.image.docker_load import has as has_image
from provision.image.docker_load import load as load_image
from provision.image.docker_load import remove as remove_images
from provision.image.docker_load import tag as tag_image
from provision.image.docker_sdk import cli_flags as docker_cli_flags
from provision.image.docker_sdk import demand_engine as require_engine
from provision.image.docker_sdk import engine as connect_engine
from provision.image.docker_sdk import find_base as find_engine_base
from provision.image.docker_sdk import unmet as unmet_requirements
from provision.image.dockerfile import dockerfile_context
from provision.image.exporter import COMPRESSED as COMPRESSIBLE
from provision.image.exporter import Output
from provision.image.exporter import check_free as check_output
from provision.image.exporter import export as export_image
from provision.image.exporter import output as parse_output
from provision.image.oci_layout import clear as remove_leftovers
from provision.image.registry import Pushed as PushResult
from provision.image.registry import Referrer, is_whole
from provision.image.registry import Remote as RemoteImage
from provision.image.registry import Target as RegistryReference
from provision.image.registry import as_pulled as pulled_image
from provision.image.registry import attach as attach_referrer
from provision.image.registry import base_target as base_registry_reference
from provision.image.registry import content as referrer_content
from provision.image.registry import look as find_remote
from provision.image.registry import plain as decompress_image
from provision.image.registry import pull as pull_image
from provision.image.registry import push as push_image
from provision.image.registry import referrers as list_referrers
from provision.image.registry import target as parse_registry_reference
from provision.image.run_jupyter import LOOPBACK
from provision.image.run_jupyter import TOKEN as TOKEN_VARIABLE
from provision.image.run_jupyter import Notebook as NotebookServer
from provision.image.run_jupyter import notebook as find_notebook_server
from provision.image.run_spec import FORMATS as RUN_FORMATS
from provision.image.run_spec import Asked as RunOptions
from provision.image.run_spec import Format as RunFormat
from provision.image.run_spec import check as check_run_options
from provision.image.run_spec import context as contract_context
from provision.image.run_spec import docker_arguments, run_command
from provision.image.run_spec import mount as parse_mount
from provision.image.run_spec import needs as run_requirements
from provision.image.run_spec import user as parse_user
from provision.image.sbom import Looked as ImagePackages
from provision.image.sbom import bill as image_sbom
from provision.image.sbom import documents as sbom_documents
from provision.image.sbom import look as read_packages

__all__ = [
    "COMPRESSIBLE",
    "COMPRESSIONS",
    "LOOPBACK",
    "PREFIX",
    "RUN_FORMATS",
    "TOKEN_VARIABLE",
    "BaseImage",
    "Compression",
    "ImagePackages",
    "NotebookServer",
    "Output",
    "PushResult",
    "Referrer",
    "RegistryReference",
    "RemoteImage",
    "RunFormat",
    "RunOptions",
    "SmokeFiles",
    "attach_referrer",
    "base_registry_reference",
    "build_image",
    "check_output",
    "check_run_options",
    "chosen_base",
    "compress_image",
    "connect_engine",
    "contract_context",
    "decompress_image",
    "docker_arguments",
    "docker_cli_flags",
    "dockerfile_context",
    "export_image",
    "find_engine_base",
    "find_image",
    "find_notebook_server",
    "find_remote",
    "has_image",
    "image_reference",
    "image_sbom",
    "is_on_disk",
    "is_whole",
    "list_referrers",
    "load_image",
    "parse_engine_reference",
    "parse_mount",
    "parse_output",
    "parse_registry_reference",
    "parse_tag",
    "parse_user",
    "pull_image",
    "pulled_image",
    "push_image",
    "read_disk_base",
    "read_packages",
    "referrer_content",
    "remove_images",
    "remove_leftovers",
    "repository",
    "require_engine",
    "run_command",
    "run_requirements",
    "run_smoke",
    "sbom_documents",
    "send_image",
    "source_date_epoch",
    "tag_image",
    "unmet_requirements",
]
