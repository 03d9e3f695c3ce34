"""The passport: request, reasons, lock, prefix, image, kernel and measured verdicts in one file. It is evidence, so unlike
everything rendered it says when, where and on what."""

from __future__ import annotations

import json
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name

from provision import __version__
from provision.core.errors import IntegrityError
from provision.core.types import BuildResult, Image, Layer, Lock, Pin, SmokeResult
from provision.environment import runtime_package
from provision.environment.runtime_package import InstalledRuntime

FILE = "passport.json"
SCHEMA = 1
SMOKE = "application/vnd.provision.smoke.v1+json"  # a verdict beside an image in a registry
SMOKE_SCHEMA = 1
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def compose(
    result: BuildResult, asked: Mapping[str, Any], previous: Mapping[str, Any] | None
) -> dict[str, Any]:
    """The passport of a build. What an earlier run on the very same lock made or measured stays where this run skipped it."""
    resolution, lock = result.resolution, result.lock
    kept = previous if previous and previous["lock"]["sha256"] == lock.sha256 else {}
    image = _image(result) or kept.get("image")
    smoke = {
        **kept.get("smoke", {}),
        **{found.where: _evidence(found, image) for found in result.smoke},
    }
    return {
        "schema": SCHEMA,
        "name": result.name,
        "made_by": f"provision {__version__}",
        "request": dict(asked),
        "reasons": [
            _fields(choice, "what", "value", "reason", "source") for choice in resolution.choices
        ],
        "warnings": [
            _fields(choice, "what", "value", "reason", "source") for choice in resolution.warnings
        ],
        "pins": [
            _fields(pin, "manager", "requirement", "reason", "source")
            | {"locked": locked(pin, lock)}
            for pin in result.pins
        ],
        "lock": {
            "sha256": lock.sha256,
            "content_hash": lock.content_hash,
            "packages": len(lock.packages),
            "python_from": lock.python_from,
            "portable": lock.portable,
        },
        "environment": _fields(
            resolution,
            "torch",
            "local_version",
            "source",
            "cuda",
            "nccl",
            "cudnn",
            "python",
            "glibc",
            "driver_floor",
        ),
        "prefix": {"path": str(result.prefix.path), "lock_sha256": result.prefix.lock_sha256},
        "runtime": _runtime(runtime_package.installed(result.prefix.path)),
        "image": image,
        "kernel": {"name": result.kernel.name, "path": str(result.kernel.path)}
        if result.kernel
        else kept.get("kernel"),
        "smoke": smoke,
    }


def locked(pin: Pin, lock: Lock) -> str | None:
    """The version that the lock holds of a pin's package: `numpy` says nothing of it."""
    found = NAME.match(pin.requirement.rpartition("::")[2])
    wanted = canonicalize_name(found[0]) if found else ""
    return next(
        (package.version for package in lock.packages if canonicalize_name(package.name) == wanted),
        None,
    )


def _fields(value: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(value, name) for name in names}


def _image(result: BuildResult) -> dict[str, Any] | None:
    image = result.image
    if image is None:
        return None
    return _fields(
        image, "reference", "manifest_digest", "image_id", "base", "base_digest", "lock_sha256"
    ) | {
        "layout": str(image.layout),
        "layers": [_fields(layer, "group", "digest", "size") for layer in image.layers],
    }


def _evidence(found: SmokeResult, image: Mapping[str, Any] | None) -> dict[str, Any]:
    host = {"host": platform.node(), "machine": platform.machine(), "kernel": platform.release()}
    tested = {"image_id": image["image_id"]} if image and found.where == "image" else {}
    return {"verdict": found.verdict, "measured_on": host, **tested, "report": found.report}


def _runtime(installed: InstalledRuntime | None) -> dict[str, str] | None:
    """The runtime package in the prefix. No lock names it, so the passport does."""
    if installed is None:
        return None
    return {
        "name": runtime_package.NAME,
        "version": installed.version,
        "sha256": installed.sha256,
    }


def with_smoke(
    passport: Mapping[str, Any],
    results: Sequence[SmokeResult],
    runtime: InstalledRuntime | None,
) -> dict[str, Any]:
    """The passport with newer verdicts; those of places not tested now stay. runtime: the package that tested."""
    verdicts = {
        **(passport.get("smoke") or {}),
        **{found.where: _evidence(found, passport["image"]) for found in results},
    }
    return {**passport, "runtime": _runtime(runtime), "smoke": verdicts, "written_at": _now()}


def image_of(passport: Mapping[str, Any]) -> Image:
    """The image that the passport names."""
    known = dict(passport["image"])
    layers = tuple(Layer(**layer) for layer in known.pop("layers"))
    return Image(**{**known, "layout": Path(known["layout"]), "layers": layers})


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """A verdict as it is attached to an image."""

    shown: str
    content: bytes
    annotations: Mapping[str, str]


def evidence_of(passport: Mapping[str, Any], image: Image) -> list[Evidence]:
    """The verdicts on an image: of the test in itself, and in the prefix that its lock was realized as. What was measured in an image
    that is not this one is none."""
    if passport["lock"]["sha256"] != image.lock_sha256:
        return []
    known = passport["smoke"].items()
    return [
        _attached(place, found, image)
        for place, found in known
        if place != "image" or found.get("image_id") == image.image_id
    ]


def _attached(place: str, found: Mapping[str, Any], image: Image) -> Evidence:
    document = {
        "schema": SMOKE_SCHEMA,
        "place": place,
        "image_id": image.image_id,
        "lock_sha256": image.lock_sha256,
    }
    document |= {key: found[key] for key in ("verdict", "measured_on", "report")}
    said = {"org.provision.smoke.place": place, "org.provision.smoke.verdict": found["verdict"]}
    when = (
        {"org.opencontainers.image.created": found["report"]["started_at"]}
        if "started_at" in found["report"]
        else {}
    )
    content = json.dumps(document, sort_keys=True, separators=(",", ":")).encode()
    return Evidence(
        shown=f"smoke ({place}): {found['verdict']}", content=content, annotations={**said, **when}
    )


def read_evidence(content: bytes) -> dict[str, Any]:
    """A verdict that was attached to an image, or IntegrityError."""
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise IntegrityError(
            "A verdict that is attached to the image is not JSON.",
            advice="Tell whoever attached it.",
        ) from error
    known = document if isinstance(document, dict) else {}
    whole = {"place", "verdict", "measured_on"} <= known.keys() and isinstance(
        known.get("report"), dict
    )
    if not whole or known.get("schema") != SMOKE_SCHEMA:
        told = f"A verdict that is attached to the image is not of schema {SMOKE_SCHEMA}."
        raise IntegrityError(told, advice="Read it with the provision that made it.")
    return known


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def stamp(passport: Mapping[str, Any], previous: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The passport with the time of writing, or None if it says nothing that the previous one does not."""
    if previous is not None and {
        key: value for key, value in previous.items() if key != "written_at"
    } == dict(passport):
        return None
    return {**passport, "written_at": _now()}


def read(folder: Path) -> dict[str, Any] | None:
    """The passport of an environment, or None if there is none: one that came along with a copied folder is evidence of another
    environment. Raises IntegrityError for one that is not whole."""
    path = folder / FILE
    try:
        passport = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (ValueError, RecursionError) as error:
        raise IntegrityError(
            f"{path} is not JSON.", advice="Build again: it is written anew."
        ) from error
    if not _is_whole(passport):
        raise IntegrityError(
            f"{path} is not a whole passport of schema {SCHEMA}.",
            advice="Build again: it is written anew.",
        )
    return passport if passport["name"] == folder.name else None


def _is_whole(passport: Any) -> bool:
    """Whether everything that we read of a passport is there and of its kind."""
    if not isinstance(passport, dict) or passport.get("schema") != SCHEMA:
        return False
    kinds = {
        "name": str,
        "made_by": str,
        "written_at": str,
        "request": dict,
        "reasons": list,
        "pins": list,
        "lock": dict,
        "prefix": dict,
        "smoke": dict,
    }
    if not all(isinstance(passport.get(key), kind) for key, kind in kinds.items()):
        return False
    whole_lock = {"sha256", "packages", "portable"} <= passport[
        "lock"
    ].keys() and "path" in passport["prefix"]
    verdicts = all(
        isinstance(found, dict) and {"verdict", "measured_on", "report"} <= found.keys()
        for found in passport["smoke"].values()
    )
    return whole_lock and verdicts and {"image", "kernel"} <= passport.keys()


def text(passport: Mapping[str, Any]) -> str:
    """What the file holds."""
    return json.dumps(passport, indent=1, sort_keys=False) + "\n"
