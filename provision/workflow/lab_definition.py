"""lab.yml -> Lab. provision/schemas/lab.schema.json defines its keys and values, and
docs/onboarding.md describes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from provision.adapters import clustershell
from provision.core.checked_yaml import Mistake, read_checked_yaml
from provision.core.credentials import credential_problems
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec
from provision.core.mirrors import parse_mirror
from provision.core.paths import INVENTORY, LAB
from provision.core.schema import DocumentPath, location
from provision.core.settings import FactsSettings, absolute_facts, folder_path
from provision.core.yaml_text import YamlLines
from provision.workflow.smoke import request as smoke_requests
from provision.workflow.smoke.request import SmokeRequest, with_settings

ENVS = "envs"
# Keys that name files of the repository.
KNOWN_HOSTS, ALLOWED_SIGNERS = "known_hosts", "allowed_signers"
ADVICE = "docs/onboarding.md describes lab.yml, with an example."

Engine = Literal["slurm", "ssh", "kubernetes"]
FailOn = Literal["fail", "warn"]


@frozen
class Cluster:
    """login: the ssh names of its login hosts; empty if members sit at one of its hosts. nodes: what
    `--on` takes. account: of Slurm; empty for the member's default."""

    name: str
    engine: Engine
    nodes: str
    login: tuple[str, ...] = ()
    account: str = ""


@frozen
class LabEnvironment:
    """An environment that every member gets. image: that of it in a registry, by digest, for jobs on
    Kubernetes."""

    name: str
    image: str | None = None


@frozen
class Policy:
    """The lab's rules. umask: None if it has none. fail_on: what fails the first job; "warn" adds
    warnings about speed."""

    groups: tuple[str, ...] = ()
    umask: int | None = None
    test_here: bool = True
    fail_on: FailOn = "fail"


@frozen
class Lab:
    """A lab's repository. folders: those for the member who reads this, by their settings key.
    mirrors: as `--mirror` takes them, paths absolute. smoke: as `--set` takes them. facts: paths
    absolute. cuda: of builds for which nothing else states it; `cpu` for none."""

    name: str
    folder: Path
    contact: str
    cuda: str | None = None
    clusters: tuple[Cluster, ...] = ()
    known_hosts: Path | None = None
    allowed_signers: Path | None = None
    folders: Mapping[str, Path] = field(default_factory=dict)
    mirrors: tuple[str, ...] = ()
    smoke: tuple[str, ...] = ()
    sync: bool | None = None
    facts: FactsSettings = field(default_factory=FactsSettings)
    environments: tuple[LabEnvironment, ...] = ()
    policy: Policy = field(default_factory=Policy)

    @property
    def envs(self) -> Path:
        return self.folder / ENVS

    @property
    def inventory(self) -> Path | None:
        path = self.folder / INVENTORY
        return path if path.is_file() else None


def read_lab(folder: Path) -> Lab:
    """The lab of a repository. Raises InvalidSpec with all mistakes of lab.yml, each with its
    line."""
    document = read_checked_yaml(
        folder / LAB,
        "lab",
        further=partial(_mistakes, folder),
        advice=ADVICE,
        advice_without="Name a lab's repository, or a folder of one; docs/onboarding.md has a lab.yml.",
    )
    return _lab(document, folder)


def _mistakes(folder: Path, document: Mapping[str, Any], lines: YamlLines) -> Iterator[Mistake]:
    """What is wrong by what values mean."""
    for key, value in document.items():
        for problem in credential_problems(value):
            yield lines.line((key,)), f"{key}: {problem}"
    checks: list[tuple[DocumentPath, Callable[[], object]]] = []
    for name, cluster in document.get("clusters", {}).items():
        if "login" in cluster:
            expand = partial(clustershell.expand, cluster["login"])
            checks.append((("clusters", name, "login"), expand))
    for index, text in enumerate(document.get("mirrors", ())):
        checks.append((("mirrors", index), partial(parse_mirror, text, folder)))
    for index, text in enumerate(document.get("smoke", ())):
        checks.append((("smoke", index), partial(_check_smoke_setting, text)))
    for key, text in document.get("paths", {}).items():
        checks.append((("paths", key), partial(folder_path, text, folder)))
    for document_path, check in checks:
        try:
            check()
        except (InvalidSpec, ValueError) as error:
            problem = error.message if isinstance(error, InvalidSpec) else f"{error}."
            where = location(document, document_path)
            yield lines.line(document_path), f"{where}: {problem}"
    signers = document.get("facts", {}).get("signers")
    if signers and not (folder / signers).is_file():
        yield lines.line(("facts", "signers")), f"signers: there is no {signers}."
    for key in (KNOWN_HOSTS, ALLOWED_SIGNERS):
        if key in document:
            path = folder / document[key]
            if not path.is_file():
                yield lines.line((key,)), f"{key}: there is no {path}."
            elif not path.resolve().is_relative_to(folder.resolve()):
                yield lines.line((key,)), f"{key}: {path} is not in this repository."


def _check_smoke_setting(text: str) -> None:
    smoke_requests.check(with_settings(SmokeRequest(), [text]))


def _named_file(document: Mapping[str, Any], key: str, folder: Path) -> Path | None:
    return folder / document[key] if key in document else None


def _lab(document: Mapping[str, Any], folder: Path) -> Lab:
    policy = document.get("policy", {})
    umask = policy.get("umask")
    mirrors = []
    for text in document.get("mirrors", ()):
        setting = parse_mirror(text, folder)
        mirrors.append(f"{setting.name}={setting.url}" if setting.name else setting.url)
    return Lab(
        name=document["name"],
        folder=folder,
        contact=document["contact"],
        cuda=document.get("cuda"),
        clusters=tuple(
            Cluster(**{"name": name, **content, "login": _login(content)})
            for name, content in document.get("clusters", {}).items()
        ),
        known_hosts=_named_file(document, KNOWN_HOSTS, folder),
        allowed_signers=_named_file(document, ALLOWED_SIGNERS, folder),
        folders={key: folder_path(text, folder) for key, text in document.get("paths", {}).items()},
        mirrors=tuple(mirrors),
        smoke=tuple(document.get("smoke", ())),
        sync=document.get("sync"),
        facts=absolute_facts(document.get("facts", {}), folder),
        environments=tuple(
            LabEnvironment(name=name, image=(content or {}).get("image"))
            for name, content in document.get("environments", {}).items()
        ),
        policy=Policy(
            **{
                **policy,
                "groups": tuple(policy.get("groups", ())),
                "umask": umask and int(umask, 8),
            }
        ),
    )


def _login(cluster: Mapping[str, Any]) -> tuple[str, ...]:
    if "login" not in cluster:
        return ()
    return tuple(clustershell.expand(cluster["login"]))
