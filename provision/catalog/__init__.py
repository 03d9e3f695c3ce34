"""The facts: which PyTorch builds exist, what they contain, on which machines they run, and their
known problems.

Data is in provision/catalog/data, each row with its source; it is read at first use and checked
by tests. None means that no source says; it never means absent. The catalog answers questions; the
resolver chooses.
"""

from __future__ import annotations

from provision.catalog.data_files import DATA, TEMPLATES
from provision.catalog.facts import Edition, add_releases, cached, edition
from provision.catalog.hardware import (
    Gpu,
    Toolkit,
    cuda_range,
    find_gpu,
    gpus,
    required_glibc,
    runs_on_driver,
    runs_on_gpu,
    toolkits,
)
from provision.catalog.local_builds import TorchBuild
from provision.catalog.releases import (
    EXACT,
    Build,
    Companion,
    IndexDefault,
    Library,
    Release,
    covers_minor,
    cuda_of_tag,
    matching_releases,
    minor,
    releases,
    since_facts,
    version_key,
)
from provision.catalog.rules import CompatibilityRule, cuda_packages, matching_rules, rules
from provision.catalog.source_builds import SourceBuild, source_builds
