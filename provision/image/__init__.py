"""image: an environment as a reproducible OCI image, in a layout on disk and in the Docker engine.

What a workflow needs is named here. How it is done lies in groups (the rule of layers), contents and records (which files), recipe
(what decides the bytes), making, layers and tar (their bytes), kept (what is there already), assemble and oci (the layout), config (what
the image says of itself), contract and jupyter (how it is run), bases, stored and inspecting (what it lies on), materials, packages and
within (what it is made of), sdk (the edge to Docker), loading and smoke (what the engine does for us), compressing, exporting and
registry (other forms and places for it) and dockerfile (the template's values).
"""

from provision.image.assembly import build, find
from provision.image.base_archive import find_base as find_stored_base
from provision.image.base_images import (
    BaseImage,
    chosen_base,
    engine_reference,
    is_stored,
    name_of,
)
from provision.image.compression import METHODS, Method, pack
from provision.image.conda_files import PREFIX
from provision.image.config import reference, repository, source_date_epoch
from provision.image.container_smoke import Files, run_smoke
from provision.image.docker_load import bring, has, load, remove, tag
from provision.image.docker_sdk import cli_flags, demand_engine, engine, find_base, unmet
from provision.image.dockerfile import dockerfile_context
from provision.image.exporter import COMPRESSED, Output, export, output
from provision.image.exporter import check_free as check_output
from provision.image.oci_layout import clear
from provision.image.registry import (
    Pushed,
    Referrer,
    Remote,
    Target,
    as_pulled,
    attach,
    base_target,
    content,
    is_whole,
    plain,
    pull,
    push,
    referrers,
    target,
)
from provision.image.registry import look as find_remote
from provision.image.run_jupyter import LOOPBACK, TOKEN, Notebook, notebook
from provision.image.run_spec import (
    FORMATS,
    Asked,
    Format,
    docker_arguments,
    mount,
    needs,
    run_command,
    user,
)
from provision.image.run_spec import check as check_contract
from provision.image.run_spec import context as contract_context
from provision.image.sbom import Looked, bill, documents, look

__all__ = [
    "COMPRESSED",
    "FORMATS",
    "LOOPBACK",
    "METHODS",
    "PREFIX",
    "TOKEN",
    "Asked",
    "BaseImage",
    "Files",
    "Format",
    "Looked",
    "Method",
    "Notebook",
    "Output",
    "Pushed",
    "Referrer",
    "Remote",
    "Target",
    "as_pulled",
    "attach",
    "base_target",
    "bill",
    "bring",
    "build",
    "check_contract",
    "check_output",
    "chosen_base",
    "clear",
    "cli_flags",
    "content",
    "contract_context",
    "demand_engine",
    "docker_arguments",
    "dockerfile_context",
    "documents",
    "engine",
    "engine_reference",
    "export",
    "find",
    "find_base",
    "find_remote",
    "find_stored_base",
    "has",
    "is_stored",
    "is_whole",
    "load",
    "look",
    "mount",
    "name_of",
    "needs",
    "notebook",
    "output",
    "pack",
    "plain",
    "pull",
    "push",
    "reference",
    "referrers",
    "remove",
    "repository",
    "run_command",
    "run_smoke",
    "source_date_epoch",
    "tag",
    "target",
    "unmet",
    "user",
]
