"""image: an environment as a reproducible OCI image, in a layout on disk and in the Docker engine.

What a workflow needs is named here. How it is done lies in groups (the rule of layers), contents and records (which files), recipe
(what decides the bytes), making, layers and tar (their bytes), kept (what is there already), assemble and oci (the layout), config (what
the image says of itself), contract and jupyter (how it is run), bases, stored and inspecting (what it lies on), materials, packages and
within (what it is made of), sdk (the edge to Docker), loading and smoke (what the engine does for us), compressing, exporting and
registry (other forms and places for it) and dockerfile (the template's values).
"""

from provision.pipeline.image.assemble import build, find
from provision.pipeline.image.bases import BaseImage, chosen_base, engine_reference, is_stored, name_of
from provision.pipeline.image.compressing import METHODS, Method, pack
from provision.pipeline.image.config import reference, repository, source_date_epoch
from provision.pipeline.image.contents import PREFIX
from provision.pipeline.image.contract import FORMATS, Asked, Format, docker_arguments, mount, needs, run_command, user
from provision.pipeline.image.contract import check as check_contract
from provision.pipeline.image.contract import context as contract_context
from provision.pipeline.image.dockerfile import dockerfile_context
from provision.pipeline.image.exporting import COMPRESSED, Output, export, output
from provision.pipeline.image.exporting import check_free as check_output
from provision.pipeline.image.jupyter import LOOPBACK, TOKEN, Notebook, notebook
from provision.pipeline.image.loading import bring, has, load, remove, tag
from provision.pipeline.image.materials import Looked, bill, documents, look
from provision.pipeline.image.oci import clear
from provision.pipeline.image.registry import (
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
from provision.pipeline.image.registry import look as find_remote
from provision.pipeline.image.sdk import cli_flags, demand_engine, engine, find_base, unmet
from provision.pipeline.image.smoke import Files, run_smoke
from provision.pipeline.image.stored import find_base as find_stored_base

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
