from __future__ import annotations

import contextlib
import copy
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from hypothesis import HealthCheck, given, settings, strategies

from provision import lockfile
from provision.adapters import conda
from provision.adapters.uv import WheelMetadata
from provision.core.errors import IntegrityError, ProvisionError
from provision.lockfile.verify.entries import LockFinding

SHA, MD5 = "a" * 64, "b" * 32
FORGE = conda.channel_url("conda-forge").rstrip("/")
FILES = "https://files.invalid/packages"

MACHINE = "subdirs:\n  linux-64:\n    packages:\n      __glibc: '2.28'\n      __linux: '5.10'\n      __unix: '0'\n"


def conda_entry(
    name: str, version: str = "1.0", build: str = "h0_0", subdir: str = "linux-64", **depends: str
) -> dict[str, Any]:
    return {
        "name": name,
        "version": version,
        "manager": "conda",
        "platform": "linux-64",
        "dependencies": {
            key.replace("__py", "python").replace("_glibc", "__glibc"): bound
            for key, bound in depends.items()
        },
        "url": f"{FORGE}/{subdir}/{name}-{version}-{build}.conda",
        "hash": {"md5": MD5, "sha256": SHA},
        "category": "main",
        "optional": False,
    }


def wheel_entry(name: str, version: str = "1.0", *needs: str) -> dict[str, Any]:
    return {
        "name": name,
        "version": version,
        "manager": "pip",
        "platform": "linux-64",
        "dependencies": dict.fromkeys(needs, "*"),
        "url": f"{FILES}/{name.replace('-', '_')}-{version}-py3-none-any.whl",
        "hash": {"sha256": SHA},
        "category": "main",
        "optional": False,
    }


def sound() -> dict[str, Any]:
    """A lock with nothing wrong in it."""
    return {
        "version": 1,
        "metadata": {
            "content_hash": {"linux-64": SHA},
            "channels": [{"url": "conda-forge", "used_env_vars": []}],
            "platforms": ["linux-64"],
            "sources": ["environment.yml"],
        },
        "package": [
            conda_entry(
                "python", "3.11.7", "h1_0_cpython", libz=">=1.3,<2.0a0", _glibc=">=2.17,<3.0.a0"
            ),
            conda_entry("libz", "1.3.1", "h2_1"),
            conda_entry("numpy", "1.26.4", "py311_0", python=">=3.11,<3.12.0a0"),
            conda_entry("tzdata", "2026c", "h3_0", subdir="noarch"),
            wheel_entry("torch", "2.3.1", "numpy", "filelock"),
            wheel_entry("filelock", "3.13"),
        ],
    }


@pytest.fixture
def verified(tmp_path: Path) -> Callable[..., list[LockFinding]]:
    def run(
        content: dict[str, Any], *, machine: str | None = MACHINE, **options: Any
    ) -> list[LockFinding]:
        path = tmp_path / lockfile.FILE
        path.write_text(yaml.safe_dump(content))
        if machine is not None:
            (tmp_path / lockfile.VIRTUAL_PACKAGES).write_text(machine)
            if not (tmp_path / lockfile.ENVIRONMENT).exists():
                (tmp_path / lockfile.ENVIRONMENT).write_text(ENVIRONMENT)
        return list(
            lockfile.verify_lock(lockfile.read_file(path), options.get("metadata"), "lab").findings
        )

    return run


Verify = Callable[..., list[LockFinding]]


def entry(content: dict[str, Any], name: str) -> dict[str, Any]:
    result: dict[str, Any] = next(entry_ for entry_ in content["package"] if entry_["name"] == name)
    return result


def only(findings: list[LockFinding]) -> LockFinding:
    assert len(findings) == 1, findings
    return findings[0]


def test_sound_lock_has_no_finding(verified: Verify) -> None:
    assert verified(sound()) == []


@pytest.mark.parametrize(
    "name,change,kind,message",
    [
        ("numpy", {"dependencies": {"python": ">=3.12"}}, "dependency", "needs python >=3.12, and python is 3.11.7 h1_0_cpython"),
        ("numpy", {"dependencies": {"libblas": ">=3.9"}}, "dependency", "needs libblas >=3.9, and libblas is not there"),
        ("numpy", {"dependencies": {"python_abi": "3.11.* *_cp311"}}, "dependency", "python_abi is not there"),
        ("numpy", {"dependencies": {"__cuda": ">=12"}}, "dependency", "__cuda is not there in virtual-packages.yml"),
        ("numpy", {"dependencies": {"__glibc": ">=2.34"}}, "dependency", "__glibc is 2.28 0 in virtual-packages.yml"),
        ("numpy", {"dependencies": {"python": "==>>1"}}, "dependency", "is not a requirement"),
        ("torch", {"dependencies": {"sympy": "*"}}, "dependency", "needs sympy, which is not in the lock"),
        ("numpy", {"hash": {"md5": MD5}}, "hash", "has no sha256"),
        ("numpy", {"hash": {"md5": MD5, "sha256": "A" * 64}}, "hash", "which is not a sha256"),
        ("numpy", {"hash": {"md5": "zz", "sha256": SHA}}, "hash", "`zz`, which is not an md5"),
        ("numpy", {"version": "1.26.5"}, "file", "1.26.5 names another file: numpy-1.26.4-py311_0.conda"),
        ("numpy", {"url": f"{FORGE}/linux-aarch64/numpy-1.26.4-py311_0.conda"}, "file", "is a file of linux-aarch64"),
        ("torch", {"url": "file:///etc/passwd"}, "file", "names a file that is not a wheel: passwd"),
        ("torch", {"url": f"{FILES}/torch-2.3.1.tar.gz"}, "file", "names a file that is not a wheel: torch-2.3.1.tar.gz"),
        ("torch", {"url": f"{FILES}/torch-2.3.1-cp311-cp311-win_amd64.whl"}, "file", "is a wheel for win_amd64"),
        ("torch", {"url": f"{FILES}/torch-2.3.1-cp311-cp311-manylinux_2_28_aarch64.whl"}, "file", "is a wheel for manylinux_2_28_aarch64"),
        ("torch", {"version": "2.3.2"}, "file", "2.3.2 names another file: torch-2.3.1-py3-none-any.whl"),
        ("torch", {"url": f"{FILES}/torch.whl"}, "file", "not a wheel: torch.whl"),
        (
            "libz",
            {"url": "https://elsewhere.invalid/mine/linux-64/libz-1.3.1-h2_1.conda"},
            "channel",
            "is from https://elsewhere.invalid/mine",
        ),
    ],
)  # fmt: skip
def test_findings_name_their_package(
    verified: Verify, name: str, change: dict[str, Any], kind: str, message: str
) -> None:
    content = sound()
    entry(content, name).update(change)
    findings = only(verified(content))
    assert (findings.package, findings.kind) == (name, kind)
    assert message in findings.message


def test_password_in_a_url_is_not_shown(verified: Verify) -> None:
    content = sound()
    entry(content, "libz")["url"] = (
        "https://me:secret@elsewhere.invalid/mine/linux-64/libz-1.3.1-h2_1.conda"
    )
    findings = verified(content)
    assert {finding.kind for finding in findings} == {"channel", "file"}
    assert "has an address with a password or token in it" in {
        finding.message for finding in findings
    }
    assert not any("secret" in finding.message for finding in findings)


def test_each_address_with_a_credential_is_named(verified: Verify, tmp_path: Path) -> None:
    """Of a git repository and of the channels too. What is made from the lock holds none."""
    content = sound()
    commit = "0" * 40
    entry(content, "libz")["url"] += "?token=s3cr3t"
    row = {"manager": "pip", "platform": "linux-64", "name": "mine", "version": "1.0", "hash": {}}
    row["url"] = f"git+https://u:s3cr3t@h.example/mine@{commit}"
    row["source"] = {"type": "url", "url": row["url"]}
    row["dependencies"] = {}
    content["package"].append({**row, "category": "main", "optional": False})
    content["metadata"]["channels"][0]["url"] = "https://h.example/t/s3cr3t/conda-forge"
    findings = verified(content)
    message = "has an address with a password or token in it"
    named = {finding.package for finding in findings if finding.message == message}
    assert named == {"libz", "mine", lockfile.FILE}
    path = tmp_path / lockfile.FILE
    lock = lockfile.read(path)
    assert "s3cr3t" not in str(findings) + str(lock) + str(lockfile.read_file(path))
    (url,) = [package.url for package in lock.packages if package.name == "mine"]
    assert url == f"git+https://h.example/mine@{commit}"
    # A reference to a variable is what conda-lock writes.
    content = sound()
    entry(content, "libz")["url"] = entry(content, "libz")["url"].replace(
        "://", "://$USER:$PASSWORD@"
    )
    assert all(finding.message != message for finding in verified(content))


def test_package_locked_twice(verified: Verify) -> None:
    content = sound()
    content["package"].append(conda_entry("libz", "1.3.2", "h9_0"))
    assert (
        "libz-1.3.1-h2_1.conda, libz-1.3.2-h9_0.conda"
        in only([finding for finding in verified(content) if finding.kind == "twice"]).message
    )
    content = sound()
    content["package"].append(copy.deepcopy(entry(content, "libz")))
    assert only(verified(content)).message == "is listed twice"


def test_package_in_two_categories_is_not_a_duplicate(verified: Verify) -> None:
    content = sound()
    content["package"].append({**entry(content, "libz"), "category": "dev"})
    assert verified(content) == []


def test_names_that_only_conda_distinguishes(verified: Verify) -> None:
    content = sound()
    content["package"] += [
        conda_entry("typing-extensions", "4.16.0"),
        conda_entry("typing_extensions", "4.16.0"),
    ]
    assert verified(content) == []


def test_package_from_both_managers(verified: Verify) -> None:
    content = sound()
    content["package"].append(wheel_entry("numpy", "2.0.0"))
    findings = only(verified(content))
    assert (findings.kind, findings.package) == ("both", "numpy")
    assert "conda's 1.26.4 and the wheel numpy 2.0.0" in findings.message


def test_library_may_share_a_wheels_name(verified: Verify) -> None:
    content = sound()
    content["package"].append(wheel_entry("libz", "1.0"))
    assert verified(content) == []


@pytest.mark.parametrize("provider", ["msgpack-python", "python-msgpack", "py-msgpack", "msgpack"])
def test_conda_may_name_a_python_package_differently(verified: Verify, provider: str) -> None:
    content = sound()
    entry(content, "torch")["dependencies"]["msgpack"] = "*"
    content["package"].append(conda_entry(provider, "1.0", "py311_0"))
    assert verified(content) == []


def wheel_metadata(
    content: dict[str, Any], **needs: Sequence[str]
) -> dict[str, WheelMetadata | str]:
    """What the wheels of a lock say of themselves; needs: what some of them need, after `python` a
    bound on Python."""
    metadata_by_url: dict[str, WheelMetadata | str] = {}
    for entry_ in content["package"]:
        if entry_["manager"] == "pip":
            rows = needs.get(entry_["name"].replace("-", "_"), ())
            python = "".join(
                row.removeprefix("python") for row in rows if row.startswith("python>")
            )
            requires = tuple(row for row in rows if not row.startswith("python>"))
            metadata_by_url[entry_["url"]] = WheelMetadata(
                name=entry_["name"],
                version=entry_["version"],
                requires_python=python,
                requires=requires,
            )
    return metadata_by_url


@pytest.mark.parametrize(
    "needs,expected",
    [
        (["numpy>=1.26", "filelock", "Filelock~=3.0"], []),
        (["filelock>=3.14"], ["needs filelock>=3.14, and filelock is 3.13"]),
        (
            ["numpy<1.26,>=1.20"],
            ["needs numpy<1.26,>=1.20, and numpy is 1.26.4"],
        ),  # conda's is held against what a wheel needs
        (["sympy>=1.12"], ["needs sympy>=1.12, which is not in the lock"]),
        (["filelock>=4; python_version >= '3.12'", "filelock<4; python_version >= '3.11'"], []),
        (
            ["filelock>=4; python_full_version >= '3.11.7'"],
            ["needs filelock>=4, and filelock is 3.13"],
        ),
        (
            ["filelock>=4; platform_machine == 'aarch64'", "filelock>=4; sys_platform == 'win32'"],
            [],
        ),
        (
            ["filelock>=4; platform_machine == 'x86_64' and platform_system == 'Linux'"],
            ["needs filelock>=4, and filelock is 3.13"],
        ),
        (
            ["filelock>=4; implementation_name == 'pypy'", "filelock>=4; platform_release >= '20'"],
            [],
        ),
        (["filelock>=4; extra == 'opt'"], []),
        (["python>=3.8"], []),
        (["python>=3.12"], ["needs Python >=3.12, and python is 3.11.7"]),
        (
            ["tzdata>=9999"],
            [],
        ),  # conda's tzdata is no Python package, and its 2026c no version of that one
        (["filelock @ https://files.invalid/filelock-9.whl"], []),
    ],
)
def test_wheel_requirements_are_checked(
    verified: Verify, needs: list[str], expected: list[str]
) -> None:
    findings = verified(sound(), metadata=wheel_metadata(sound(), torch=needs))
    assert [finding.message for finding in findings] == expected
    assert {(finding.package, finding.kind) for finding in findings} <= {("torch", "dependency")}


def test_a_local_version_satisfies_a_requirement(verified: Verify) -> None:
    content = sound()
    content["package"] += [wheel_entry("torchvision", "0.18.1"), wheel_entry("accelerate", "1.0")]
    entry(content, "torch").update(
        version="2.3.1+cu121", url=f"{FILES}/torch-2.3.1%2Bcu121-cp311-cp311-linux_x86_64.whl"
    )
    assert verified(content, metadata=wheel_metadata(content, torchvision=["torch==2.3.1"])) == []
    assert (
        only(verified(content, metadata=wheel_metadata(content, accelerate=["torch>=2.4"]))).message
        == "needs torch>=2.4, and torch is 2.3.1+cu121"
    )


def test_a_package_missing_from_lock_and_metadata_is_reported_once(verified: Verify) -> None:
    content = sound()
    entry(content, "torch")["dependencies"]["sympy"] = "*"
    assert (
        only(verified(content, metadata=wheel_metadata(content, torch=["SymPy>=1.12"]))).message
        == "needs SymPy>=1.12, which is not in the lock"
    )


def test_extras_requested_by_wheels_and_inputs(verified: Verify, tmp_path: Path) -> None:
    content = sound()
    content["package"].append(wheel_entry("fsspec", "2024.1"))
    needs = {
        "torch": ["fsspec[Http_X]"],
        "fsspec": ["filelock[fast]; extra == 'http-x'"],
        "filelock": ["numpy>=2; extra == 'fast'"],
    }
    findings = only(verified(content, metadata=wheel_metadata(content, **needs)))
    assert (findings.package, findings.message) == (
        "filelock",
        "needs numpy>=2 (for its extra `fast`), and numpy is 1.26.4",
    )
    needs["torch"] = []
    assert verified(content, metadata=wheel_metadata(content, **needs)) == []
    (tmp_path / lockfile.ENVIRONMENT).write_text(
        "channels: [conda-forge]\ndependencies: [python=3.11, pip: ['fsspec[http.x]']]\n"
    )
    content["metadata"]["content_hash"] = {}
    assert only(verified(content, metadata=wheel_metadata(content, **needs))).package == "filelock"


@pytest.mark.parametrize(
    "change,message",
    [
        ("HTTP 404", "HTTP 404"),
        ({"requires": ("numpy >= ",)}, "cannot be parsed"),
        ({"requires": ("numpy; python_version ~= 'x'",)}, ""),
        ({"requires_python": "3"}, "cannot be parsed"),
        ({"version": "2.3.0"}, "its metadata is of torch 2.3.0"),
        ({"name": "another"}, "its metadata is of another 2.3.1"),
    ],
)
def test_unreadable_metadata_is_a_note_not_a_finding(
    tmp_path: Path, change: str | dict[str, Any], message: str
) -> None:
    path = tmp_path / lockfile.FILE
    content = sound()
    path.write_text(yaml.safe_dump(content))
    metadata = wheel_metadata(content)
    url = entry(content, "torch")["url"]
    original = metadata[url]
    assert isinstance(original, WheelMetadata)
    metadata[url] = change if isinstance(change, str) else dataclasses.replace(original, **change)
    verified = lockfile.verify_lock(lockfile.read_file(path), metadata, "lab")
    assert verified.findings == ()
    if message:
        assert (
            "not checked: which versions these wheels require: torch: "
            in only_note(verified, "wheels")
            and message in verified.notes[-1]
        )


def only_note(verified: lockfile.VerifyReport, text: str) -> str:
    (note,) = [note for note in verified.notes if text in note]
    return note


def test_markers_are_not_guessed_without_python_or_known_platform(tmp_path: Path) -> None:
    content = sound()
    content["package"] = [entry_ for entry_ in content["package"] if entry_["name"] != "python"]
    path = tmp_path / lockfile.FILE
    path.write_text(yaml.safe_dump(content))
    remote = wheel_metadata(content, torch=["sympy"])
    assert "torch, filelock: the lock has no Python" in only_note(
        lockfile.verify_lock(lockfile.read_file(path), remote, "lab"), "wheels"
    )
    content = {
        **content,
        "package": [{**entry_, "platform": "linux-s390x"} for entry_ in sound()["package"]],
    }
    path.write_text(yaml.safe_dump(content))
    assert "the values of markers for linux-s390x" in only_note(
        lockfile.verify_lock(lockfile.read_file(path), remote, "lab"), "wheels"
    )


def test_platforms_are_verified_separately(verified: Verify) -> None:
    content = sound()
    content["package"] += [
        {**entry_, "platform": "linux-aarch64"}
        for entry_ in content["package"]
        if entry_["name"] in ("tzdata", "filelock")
    ]
    content["package"].append(
        {**wheel_entry("torchvision", "0.18", "torch"), "platform": "linux-aarch64"}
    )
    findings = only(verified(content))
    assert (findings.platform, findings.package) == ("linux-aarch64", "torchvision")


def test_host_python_replaces_the_channels(verified: Verify) -> None:
    content = sound()
    content["metadata"]["custom_metadata"] = {"provision_python_from": "host"}
    entry(content, "python").update(
        url="file:///data/channels/py3.11.7/linux-64/python-3.11.7-h1_0_cpython.conda"
    )
    entry(content, "python")["dependencies"]["__glibc"] = ">=2.36"
    assert verified(content) == []


ENVIRONMENT = "channels: [conda-forge]\ndependencies: [python=3.11]\n"


def test_a_lock_is_of_the_inputs_next_to_it(verified: Verify, tmp_path: Path) -> None:
    (tmp_path / lockfile.ENVIRONMENT).write_text(ENVIRONMENT)
    sha256 = lockfile.read_inputs(ENVIRONMENT, MACHINE, tmp_path).sha256
    content = sound()
    content["metadata"]["custom_metadata"] = {"provision_inputs_sha256": sha256}
    assert verified(content) == []
    (tmp_path / lockfile.ENVIRONMENT).write_text(ENVIRONMENT.replace("3.11", "3.12"))
    (finding,) = verified(content)
    assert (finding.kind, finding.package) == ("inputs", "conda-lock.yml")
    (tmp_path / lockfile.ENVIRONMENT).write_text(ENVIRONMENT)
    content["metadata"]["custom_metadata"]["provision_as_of"] = "2026-01-01"
    assert [finding.kind for finding in verified(content)] == ["inputs"]


@pytest.mark.parametrize(
    "text,metadata",
    [
        (ENVIRONMENT, {}),  # of another tool
        ("dependencies: 3\n", {"provision_inputs_sha256": SHA}),
        ("[\n", {"provision_inputs_sha256": SHA}),
        (None, {"provision_inputs_sha256": SHA}),
    ],
)
def test_inputs_that_cannot_be_compared_are_noted(
    tmp_path: Path, text: str | None, metadata: dict[str, str]
) -> None:
    if text is not None:
        (tmp_path / lockfile.ENVIRONMENT).write_text(text)
    (tmp_path / lockfile.VIRTUAL_PACKAGES).write_text(MACHINE)
    content = sound()
    content["metadata"]["custom_metadata"] = metadata
    path = tmp_path / lockfile.FILE
    path.write_text(yaml.safe_dump(content))
    report = lockfile.verify_lock(lockfile.read_file(path), None, "lab")
    assert [finding for finding in report.findings if finding.kind == "inputs"] == []
    assert "environment.yml" in only_note(report, "cannot be compared")


def test_skipped_checks_are_noted(tmp_path: Path) -> None:
    path = tmp_path / lockfile.FILE
    path.write_text(yaml.safe_dump(sound()))
    notes = lockfile.verify_lock(lockfile.read_file(path), None, "lab").notes
    assert [
        check
        for check in ("--offline", "cannot be compared", "still served")
        if not any(check in note for note in notes)
    ] == []
    everything = wheel_metadata(sound())
    assert (
        len(lockfile.verify_lock(lockfile.read_file(path), everything, "lab").notes) == 3
    )  # the inputs are still not beside it, and no file was asked for


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[",
        "- a\n",
        "version: 2\nmetadata: {}\npackage: []\n",
        "version: 1\nmetadata: {}\npackage: [1]\n",
    ],
)
def test_an_invalid_lock_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / lockfile.FILE
    path.write_text(text)
    with pytest.raises(IntegrityError, match=r"conda-lock\.yml(:2: this)? is"):
        lockfile.read_file(path)


UGLY: list[Any] = [
    None,
    "",
    " ",
    0,
    -1,
    1e400,
    True,
    [],
    {},
    ["a"],
    {"a": 1},
    "é\x00",
    "../..",
    "https://[",
    "file:",
    "==",
    "a" * 300,
    "1!2+x",
]
NEEDS = [
    "numpy",
    "",
    "numpy>=é",
    ">=3",
    "a[b]; extra == 'c'",
    "numpy; python_version > 'x'",
    "numpy; os_name ~= '1'",
    "a; b == 'c'",
]


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=strategies.data())
def test_any_lock_is_verified_or_refused(tmp_path: Path, data: strategies.DataObject) -> None:
    """Values of a lock changed at random: never a traceback, from no verb that looks at locks."""
    content = sound()
    for _ in range(data.draw(strategies.integers(1, 4))):
        place: Any = (
            content["metadata"]
            if data.draw(strategies.integers(0, 3)) == 0
            else data.draw(strategies.sampled_from(content["package"]))
        )
        if (
            isinstance(place, dict)
            and isinstance(place.get("hash"), dict)
            and data.draw(strategies.booleans())
        ):
            place = place[data.draw(strategies.sampled_from(["hash", "dependencies"]))]
        if isinstance(place, dict) and place:
            place[data.draw(strategies.sampled_from(sorted(place)))] = data.draw(
                strategies.sampled_from(UGLY)
            )
    path = tmp_path / lockfile.FILE
    path.write_text(yaml.safe_dump(content))
    (tmp_path / lockfile.VIRTUAL_PACKAGES).write_text(MACHINE)
    with contextlib.suppress(ProvisionError):
        lock = lockfile.read_file(path)
        row = strategies.sampled_from(NEEDS)
        needs = data.draw(strategies.lists(row, max_size=3))
        metadata = {
            entry.url: WheelMetadata(
                name=entry.name,
                version=entry.version,
                requires_python=data.draw(row),
                requires=tuple(needs),
            )
            for entry in lock.entries
        }
        lockfile.verify_lock(
            lock,
            metadata,
            "lab",
        )
        lockfile.diff_locks(lock, lock)
        for kind in get_args(lockfile.ExportFormat):
            with contextlib.suppress(ProvisionError):
                lockfile.export_lock(lock, "lab", kind, "linux-64")
