"""`provision facts`: which facts are in use, newer ones, and whether a file of facts is valid."""

from __future__ import annotations

import hashlib
import json
from datetime import date
from pathlib import Path

from provision import catalog
from provision.adapters import openssh, uv
from provision.adapters.http import HttpClient
from provision.adapters.uv.linux_wheels import WheelIndex
from provision.catalog import Edition
from provision.catalog import facts as documents
from provision.catalog.facts import SCHEMA, SHIPPED, Document, UserFile
from provision.core import settings
from provision.core.atomic import atomic_write
from provision.core.credentials import without_credentials
from provision.core.dataclass import frozen
from provision.core.errors import (
    IntegrityError,
    InvalidSpec,
    ProvisionError,
    StaleLock,
    Unreachable,
)
from provision.core.mirrors import Mirrors, path_from_url
from provision.core.paths import FACTS, LAB
from provision.core.types import Verdict
from provision.image.registry.artifact import artifact_files
from provision.image.registry.reference import parse_registry_reference
from provision.workflow import lab_definition
from provision.workflow.context import Context
from provision.workflow.index_facts import TorchIndex, usable

# What a signature is for, so that one of another file does not count (ssh-keygen -n).
NAMESPACE = "provision-facts"
SIGNATURE = ".sig"
OCI = "oci://"


@frozen
class FactsSummary:
    """What the facts in use say."""

    edition: Edition
    file: Path
    releases: int
    newest: str
    cuda: str


def show(context: Context) -> FactsSummary:
    edition = catalog.edition()
    releases = [version for version in catalog.releases() if ".dev" not in version]
    return FactsSummary(
        edition=edition,
        file=catalog.DATA / FACTS if edition.origin == SHIPPED else context.folders.facts,
        releases=len(catalog.releases()),
        newest=releases[-1],
        cuda=list(catalog.toolkits())[-1],
    )


# Newer facts


@frozen
class FactsUpdate:
    """before, after: the facts in use. added: releases that are new. notes: what could not be read."""

    before: Edition
    after: Edition
    changed: bool
    added: tuple[str, ...]
    notes: tuple[str, ...]
    dry_run: bool


def update(
    context: Context,
    *,
    address: str = "",
    signers: Path | None = None,
    from_index: bool = False,
    allow_older: bool = False,
    dry_run: bool = False,
) -> FactsUpdate:
    """Replace the user's facts by newer ones, in one step.

    address: where they are, and perhaps `#sha256=` with their hash; else the lab's address. signers:
    who may sign them. from_index: instead, releases that the facts do not have are read from a
    package index.

    Raises IntegrityError for facts that are not valid or not shown to be genuine, StaleLock for
    older ones, Unreachable, InvalidSpec without an address.
    """
    before = catalog.edition()
    notes: list[str] = []
    if from_index:
        text = _from_index(context, notes)
        origin, verified = "the package index", "read from the index"
        if before.origin != SHIPPED:
            origin = before.origin
            # Older facts that the user wanted stay in use.
            allow_older = documents.read_user_file(context.folders.facts)[0]["allow_older"]
    else:
        origin, text, verified = _from_address(context, address, signers)
    origin = without_credentials(origin)
    user = UserFile(
        schema=SCHEMA,
        origin=origin,
        verified=verified,
        fetched=date.today().isoformat(),
        allow_older=allow_older,
        sha256=hashlib.sha256(text.encode()).hexdigest(),
        document=text,
    )
    document = documents.parse_document(text, origin)
    if document["date"] < before.date and not allow_older:
        raise StaleLock(
            f"The facts of {origin} ({document['date']}) are older than those in use "
            f"({before.date}).",
            advice="--allow-older takes them anyway.",
        )
    added = [name for name in document["tables"]["releases"] if name not in catalog.releases()]
    path = context.folders.facts
    # A file that cannot be used is replaced, too.
    is_unused = before.origin == SHIPPED and path.exists()
    changed = user["sha256"] != before.sha256 or is_unused
    if changed and not dry_run:
        atomic_write(path, json.dumps(user) + "\n")
        documents.forget()
    return FactsUpdate(
        before=before,
        after=documents.edition_of(user, document) if changed else before,
        changed=changed,
        added=tuple(added),
        notes=tuple(notes),
        dry_run=dry_run,
    )


def _from_address(context: Context, stated: str, signers: Path | None) -> tuple[str, str, str]:
    """The address, the text of the facts there, and what shows that they are genuine. stated: the
    address that the user gave."""
    stated, _, sha256 = stated.partition("#sha256=")
    configured = settings.facts_settings()
    if not configured and Path(LAB).is_file():
        configured = lab_definition.read_lab(Path.cwd()).facts
    address = stated or configured.get("address", "")
    if not address:
        raise InvalidSpec(
            "No source of newer facts is configured.",
            advice="Give their ADDRESS, or let lab.yml or settings.yml name it (`facts:`, "
            "docs/facts.md); --from-index reads new releases from the package index.",
        )
    # The configured hash is that of the configured address; signers may sign any.
    sha256 = sha256 or ("" if stated else configured.get("sha256", ""))
    if signers is None and "signers" in configured:
        signers = Path(configured["signers"])
    content, signature = fetch(address, context.mirrors)
    verified = verify(address, content, signature, sha256, signers)
    origin = address if "://" in address else str(Path(address).expanduser().absolute())
    try:
        return origin, content.decode(), verified
    except UnicodeDecodeError as error:
        raise IntegrityError(f"{address} is not UTF-8 text.") from error


def fetch(address: str, mirrors: Mirrors) -> tuple[bytes, bytes]:
    """The facts at an address, and their signature; that is empty if there is none."""
    if address.startswith(OCI):
        files = artifact_files(parse_registry_reference(address.removeprefix(OCI)))
        if FACTS not in files:
            raise IntegrityError(f"{address} has no {FACTS}; it has {', '.join(sorted(files))}.")
        return files[FACTS], files.get(FACTS + SIGNATURE, b"")
    url = address if "://" in address else Path(address).expanduser().absolute().as_uri()
    url = mirrors.actual_url(url)
    if not url.startswith("file:"):
        with HttpClient(uv.pip_settings()) as web:
            return web.content(url), web.content(url + SIGNATURE, missing=b"")
    path, signature = path_from_url(url), path_from_url(url + SIGNATURE)
    try:
        return path.read_bytes(), signature.read_bytes() if signature.is_file() else b""
    except OSError as error:
        raise Unreachable(f"{path} cannot be read: {error.strerror}.") from error


def verify(
    address: str, content: bytes, signature: bytes, sha256: str, signers: Path | None
) -> str:
    """What shows that facts are genuine, in words. Raises IntegrityError if nothing does."""
    actual = hashlib.sha256(content).hexdigest()
    proofs = []
    if sha256:
        if sha256 != actual:
            raise IntegrityError(f"The hash of {address} is {actual}, not {sha256}.")
        proofs.append("hash")
    if signers is not None and signature:
        principal = openssh.verify_signature(content, signature, signers, NAMESPACE)
        proofs.append(f"signature of {principal}")
    elif signers is not None and not sha256:
        raise IntegrityError(
            f"{address} has no signature ({SIGNATURE.removeprefix('.')} next to it).",
            advice=f"Whoever publishes it makes one: ssh-keygen -Y sign -n {NAMESPACE} -f KEY {FACTS}",
        )
    if address.startswith(OCI) and "@sha256:" in address:
        proofs.append("digest")
    if not proofs:
        raise IntegrityError(
            f"{address} is neither signed nor given by its hash.",
            advice="Name those who may sign it (--signers FILE), or its hash, if whoever made it "
            f"says the same: {address}#sha256={actual}",
        )
    return ", ".join(proofs)


def _from_index(context: Context, notes: list[str]) -> str:
    """The facts in use with releases that only the index has. notes: what was not read."""
    text = documents.facts_text()
    document: Document = json.loads(text)
    releases = document["tables"]["releases"]
    listed = [version for version, row in releases.items() if not row.get("from_index")]
    newest = max(map(catalog.version_key, listed))
    with WheelIndex(None, context.mirrors) as index:
        torch_index = TorchIndex(index)
        for version in torch_index.releases:
            if catalog.version_key(version) > newest:
                row = usable(torch_index.release(version))
                if row is None:
                    notes.append(f"{version}: no wheel for linux-64 that says its CUDA")
                else:
                    releases[version] = row
    notes += torch_index.unread
    if document == json.loads(text):
        return text
    return json.dumps(document, ensure_ascii=False, indent=1) + "\n"


# Checks


@frozen
class FactsCheck:
    """One file that was checked."""

    subject: str
    verdict: Verdict
    message: str


def check(context: Context, file: Path | None, signers: Path | None) -> list[FactsCheck]:
    """Check a file of facts before it is published, or those in use and the lab's."""
    shipped, user_file, lab = catalog.DATA / FACTS, context.folders.facts, documents.lab_file()
    in_use = (shipped, user_file if user_file.exists() else None, lab)
    checks = []
    for path in filter(None, in_use if file is None else (file,)):
        verdict: Verdict = "pass"
        try:
            if path == lab and file is None:
                documents.tables_with(path)
                message = "the lab's own, each with its source"
            elif path == user_file and file is None:
                user, _ = documents.read_user_file(path)
                origin = f"from {user['origin']} on {user['fetched']} ({user['verified']})"
                message = f"{_described(user['document'], path)}; {origin}"
            else:
                content, signature = fetch(str(path), Mirrors())
                message = _described(content, path)
                if path == file and signers is not None:
                    message += f"; {verify(str(path), content, signature, '', signers)}"
        except ProvisionError as error:
            message, verdict = str(error).removeprefix(f"{path}: "), "fail"
        checks.append(FactsCheck(subject=str(path), verdict=verdict, message=message))
    return checks


def _described(content: str | bytes, path: Path) -> str:
    document = documents.parse_document(content, path.name)
    count = len(document["tables"]["releases"])
    return f"facts of {document['date']}: {count} releases of torch"
