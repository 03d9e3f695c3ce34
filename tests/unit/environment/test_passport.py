"""What a passport says, what a later build takes over, and that a damaged one is refused."""

from __future__ import annotations

import dataclasses
import functools
import re
from pathlib import Path

import pytest

from provision import resolver
from provision.core import host
from provision.core.documents import Passport
from provision.core.errors import IntegrityError
from provision.core.paths import Folders
from provision.core.types import (
    BuildResult,
    Image,
    Layer,
    Lock,
    LockedPackage,
    Manager,
    Pin,
    Prefix,
    Resolution,
    SmokeResult,
    SmokeTarget,
)
from provision.environment import passport
from provision.report.load import load
from provision.resolver import spec
from provision.verbs.report.output import passport_lines
from tests import evidence
from tests.damage import NOTHING, changed, paths


def package(manager: Manager, name: str, version: str) -> LockedPackage:
    return LockedPackage(
        manager=manager, name=name, version=version, url="file:///x", sha256="0" * 64
    )


LOCK = Lock(
    path=Path("conda-lock.yml"),
    sha256="0" * 64,
    content_hash="0" * 64,
    inputs_sha256="0" * 64,
    packages=(
        package("conda", "pytorch", "2.3.1"),
        package("conda", "numpy", "1.26.4"),
        package("pip", "nvidia-nccl-cu12", "2.20.5"),
    ),
    python_from="channel",
    portable=True,
)


@pytest.mark.parametrize("requirement, version", [
    ("pytorch::pytorch=2.3.1=py3.11_cuda12.1*", "2.3.1"),
    ("numpy", "1.26.4"),
    ("numpy<2", "1.26.4"),
    ("nvidia_nccl.cu12==2.20.5", "2.20.5"),
    ("Numpy[extra]~=1.0", "1.26.4"),
    ("setuptools<82", None),
    ("pytorch-cuda=12.1", None),
])  # fmt: skip
def test_version_chosen_for_a_pin(requirement: str, version: str | None) -> None:
    assert (
        passport.locked_version(
            Pin(manager="conda", requirement=requirement, reason="", source=""), LOCK
        )
        == version
    )


IMAGE = Image(
    reference="provision/lab:1",
    layout=Path("/images/lab"),
    manifest_digest=f"sha256:{1:064}",
    image_id=f"sha256:{2:064}",
    base="debian:12",
    base_digest=f"sha256:{3:064}",
    lock_sha256=LOCK.sha256,
    layers=(Layer(group="python", digest=f"sha256:{4:064}", size=10),),
)


def smoke_result(where: SmokeTarget) -> SmokeResult:
    report = evidence.report(evidence.phase(verdict="fail", findings=[evidence.finding()]))
    return SmokeResult(where=where, verdict="fail", report=report, evidence=Path("/smoke"))


REQUEST = {"torch": "2.3", "cuda": "12.1"}


@functools.cache
def resolution() -> Resolution:
    return resolver.resolve(spec.combine({}, REQUEST, name="lab"))


def compose(
    folder: Path,
    image: Image | None,
    smoke: tuple[SmokeResult, ...],
    previous: Passport | None = None,
) -> Passport:
    """The passport that a build of this image writes."""
    result = BuildResult(
        name="lab",
        folder=folder,
        resolution=resolution(),
        pins=(Pin(manager="conda", requirement="numpy", reason="a reason", source="a source"),),
        lock=LOCK,
        prefix=Prefix(name="lab", path=folder / "prefix", lock_sha256=LOCK.sha256),
        image=image,
        kernel=None,
        smoke=smoke,
    )
    composed = passport.stamp(passport.compose(result, REQUEST, previous), None)
    assert composed is not None
    return composed


def test_a_build_keeps_the_verdicts_of_the_same_image(tmp_path: Path) -> None:
    first = compose(tmp_path, IMAGE, (smoke_result("prefix"), smoke_result("image")))
    later = compose(tmp_path, IMAGE, (smoke_result("prefix"),), previous=first)
    assert later["smoke"].keys() == {"prefix", "image"}
    without_image = compose(tmp_path, None, (), previous=first)
    assert without_image["image"] == first["image"]
    assert without_image["smoke"].keys() == {"prefix", "image"}


def test_a_build_drops_the_verdict_of_another_image(tmp_path: Path) -> None:
    first = compose(tmp_path, IMAGE, (smoke_result("prefix"), smoke_result("image")))
    other = dataclasses.replace(IMAGE, image_id=f"sha256:{5:064}")
    later = compose(tmp_path, other, (), previous=first)
    assert later["smoke"].keys() == {"prefix"}


def test_no_machine_replaces_the_verdict_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One home on a login node and nodes with GPUs."""

    def on(name: str) -> None:
        machine = {**host.identity(), "host": name, "machine_id": f"id of {name}"}
        monkeypatch.setattr(host, "identity", lambda: machine)

    def tested(document: Passport) -> list[tuple[str, str]]:
        rows = passport.verdicts(document)
        return [(target, verdict["measured_on"]["host"]) for target, verdict in rows]

    on("login")
    document = compose(tmp_path, IMAGE, (smoke_result("prefix"), smoke_result("image")))
    for name in ("gpu1", "gpu2", "gpu1"):
        on(name)
        document = passport.with_smoke(document, (smoke_result("prefix"),), None)
    hosts = ["gpu1", "gpu2", "login"]
    assert tested(document) == [
        ("prefix", "gpu1"),
        ("image", "login"),
        ("prefix", "gpu2"),
        ("prefix", "login"),
    ]
    document = compose(tmp_path, IMAGE, (), previous=document)
    folders = Folders(data=tmp_path, cache=tmp_path, envs=tmp_path)
    evidence.write(folders.passport("lab") / passport.FILE, document)
    read = passport.find(folders, "lab")
    assert read is not None
    assert [name for target, name in tested(read) if target == "prefix"] == hosts
    lines = "\n".join(passport_lines(read, width=80))
    assert all(f"prefix: fail on {name}" in lines for name in hosts)
    runs = load(folders.passport("lab") / passport.FILE).runs
    assert [run.host for run in runs if run.location == "prefix"] == hosts
    for number in range(2 * passport.MACHINES):  # containers, a new machine each time
        on(f"container{number}")
        document = passport.with_smoke(document, (smoke_result("prefix"),), None)
    assert len(tested(document)) == passport.MACHINES + 2


DAMAGES = [NOTHING, None, 5, -1, "x", "", "\ud800", [], {}, [1], {"a": 1}, True]


def test_a_damaged_passport_is_refused_with_its_field_or_fits_every_reader(tmp_path: Path) -> None:
    folders = Folders(data=tmp_path, cache=tmp_path, envs=tmp_path)
    results = (smoke_result("prefix"), smoke_result("image"))
    whole = compose(tmp_path, IMAGE, results)
    whole["kernel"] = {"name": "lab", "path": "/kernels/lab"}
    whole["runtime"] = {"name": "provision-runtime", "version": "1", "sha256": "0" * 64}
    for path in paths(whole):
        for value in DAMAGES:
            if path == () and value is NOTHING:
                continue
            damaged = changed(whole, path, value) if path else value
            evidence.write(folders.passport("lab") / passport.FILE, damaged)
            try:
                document = passport.find(folders, "lab")
            except IntegrityError as error:
                place = r"the top level|\b" + re.escape(str(path[0])) if path else "the top level"
                assert re.search(rf"lab/passport\.json is not a passport .*({place})", str(error))
                continue
            if document is None:  # of an environment of another name
                continue
            assert passport_lines(document, width=80)
            passport.with_smoke(document, results, None)
            passport.stamp(document, document)
            compose(tmp_path, None, results, previous=document)
            if document["image"]:
                image = dataclasses.replace(IMAGE, image_id=document["image"]["image_id"])
                passport.smoke_verdicts(document, image)


@pytest.mark.parametrize(
    "content", [b"", b"{", b'{"schema": 1,', b"\xff\xfe\x00", b"\x00" * 9, b"[" * 10**5]
)
def test_a_passport_that_is_not_json_is_refused_with_the_problem(
    tmp_path: Path, content: bytes
) -> None:
    folders = Folders(data=tmp_path, cache=tmp_path, envs=tmp_path)
    file = folders.passport("lab") / passport.FILE
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    with pytest.raises(
        IntegrityError, match=r"passport\.json is not a passport of schema 1: it is not JSON \(.+"
    ):
        passport.find(folders, "lab")


def test_a_build_of_another_lock_keeps_no_verdict(tmp_path: Path) -> None:
    first = compose(tmp_path, IMAGE, (smoke_result("prefix"), smoke_result("image")))
    other: Passport = {**first, "lock": {**first["lock"], "sha256": "9" * 64}}
    later = compose(tmp_path, None, (), previous=other)
    assert later["smoke"] == {} and later["image"] is None


def test_a_passport_fits_a_terminal_of_80_columns() -> None:
    document = evidence.passport(evidence.report(evidence.phase()))
    document["reasons"] = [
        {
            "what": "gpu",
            "value": "sm_50 sm_60 sm_70 sm_75 sm_80 sm_86 sm_90",
            "reason": "GPU code in the build; code for sm_80 also runs on 8.6",
            "source": "pytorch/builder@ba10bae9fe9b93365412297d40bc9a3a3eae6155:manywheel/build_cuda.sh",
        }
    ]
    lines = "\n".join(passport_lines(document, width=80)).splitlines()
    assert [line for line in lines if len(line) > 80] == []
    assert "sm_86 sm_90:" in " ".join("\n".join(lines).split())
    assert "pytorch/builder" not in "\n".join(lines)
