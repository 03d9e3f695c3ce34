"""Reading a conda-lock.yml (v1), ours or another tool's, without conda-lock: a build with nothing to do must stay quick."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from provision.errors import IntegrityError
from provision.model import PLATFORM, Lock, LockedPackage, Manager
from provision.pipeline.lock.writing import INPUTS, PORTABLE, PYTHON_FROM


def read(path: Path) -> Lock:
    """Parse a conda-lock.yml (v1). Raises IntegrityError for one that cannot be trusted as a lock."""
    import yaml

    raw = path.read_bytes()
    try:
        content = yaml.load(raw, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        return _lock(path, raw, content)
    except (yaml.YAMLError, KeyError, TypeError, AttributeError, UnicodeDecodeError, RecursionError) as error:
        reason = " ".join(str(error).split())
        raise IntegrityError(f"{path} is not a lock file: {reason}.", advice="Run `provision lock --relock`.") from error


def _lock(path: Path, raw: bytes, content: Mapping[str, Any]) -> Lock:
    if content["version"] != 1:
        raise IntegrityError(f"{path} is version {content['version']} of the lock format; this reads version 1.")
    meta = content["metadata"]
    custom = meta.get("custom_metadata") or {}
    packages = tuple(_read_package(path, entry) for entry in content["package"] if entry["platform"] == PLATFORM)
    python_from: Literal["channel", "host"] = "host" if custom.get(PYTHON_FROM) == "host" else "channel"
    return Lock(
        path=path,
        sha256=hashlib.sha256(raw).hexdigest(),
        inputs_sha256=custom.get(INPUTS, ""),
        content_hash=meta["content_hash"][PLATFORM],
        packages=packages,
        python_from=python_from,
        portable=custom.get(PORTABLE) != "false",
    )


def _read_package(path: Path, entry: Mapping[str, Any]) -> LockedPackage:
    sha256 = entry["hash"].get("sha256") or ""
    if not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise IntegrityError(
            f"{path}: {entry['name']} has no well-formed sha256.", advice="Restore the file or run `provision lock --relock`."
        )
    manager: Manager = "conda" if entry["manager"] == "conda" else "pip"
    url = entry["url"]
    return LockedPackage(
        manager=manager,
        name=entry["name"],
        version=entry["version"],
        url=url,
        sha256=sha256,
        md5=entry["hash"].get("md5"),
        build=entry.get("build") or _build_of(url, entry) if manager == "conda" else "",
        direct=bool(entry.get("source")),
        depends=tuple(f"{name} {bound}".strip() for name, bound in entry.get("dependencies", {}).items()),
    )


def _build_of(url: str, entry: Mapping[str, Any]) -> str:
    """Locks of other tools may lack the build string; the file name holds it: name-version-build.conda."""
    stem = url.rsplit("/", 1)[-1].removesuffix(".conda").removesuffix(".tar.bz2")
    return stem.removeprefix(f"{entry['name']}-{entry['version']}-")
