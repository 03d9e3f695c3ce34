"""Credentials in addresses: what the one filter takes out, and what the places that record refuse."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from provision.cli.console import Console
from provision.core.credentials import (
    credential_problem,
    public_document,
    public_request,
    without_credentials,
)
from provision.core.errors import InvalidSpec, ToolFailed
from provision.environment import passport
from provision.project_files.request import Request, decide
from provision.resolver import spec as specs
from provision.verbs.join.join import join
from provision.workflow.lab_definition import read_lab
from provision.workflow.project_files import read_file
from tests.conftest import ROOT

SECRET = "s3cr3t"
# What an address becomes; the secret is in none.
ADDRESSES = {
    "https://u:s3cr3t@h.example/x": "https://h.example/x",
    "git+https://u:s3cr3t@h.example/r.git@v1": "git+https://h.example/r.git@v1",
    "https://s3cr3t@github.com/o/r": "https://github.com/o/r",
    "https://s3cr3t:@h.example/r": "https://h.example/r",
    "https://s3cr3t:x-oauth-basic@github.com/o/r": "https://github.com/o/r",
    "HTTPS://u:s3cr3t@H.example/x": "HTTPS://H.example/x",
    "https:/u:s3cr3t@h.example/x": "https:/h.example/x",
    "https://me@mail.example:s3cr3t@h.example:80/x?y=1": "https://h.example:80/x?y=1",
    "https://u:p%40s3cr3t@h.example": "https://h.example",
    "https://u:a/s3cr3t@h.example/r@v1": "https://h.example/r@v1",
    "https://u:a?s3cr3t@h.example/r": "https://h.example/r",
    "https://u:a#s3cr3t@h.example/r": "https://h.example/r",
    'https://u:"s3cr3t@h.example/r': "https://h.example/r",
    "http://u:1s3cr3t@[::1]:80/r": "http://[::1]:80/r",
    "ssh://git:s3cr3t@h.example/r": "ssh://git@h.example/r",
    "git+ssh://me:s3cr3t@h.example/r": "git+ssh://me@h.example/r",
    "hg+https://u:s3cr3t@h.example/r": "hg+https://h.example/r",
    "svn+https://u:s3cr3t@h.example/r": "svn+https://h.example/r",
    "s3://KEY:s3cr3t@bucket/x": "s3://bucket/x",
    "http://u:s3cr3t@proxy.example:3128": "http://proxy.example:3128",
    "https://${USER}:s3cr3t@h.example/x": "https://h.example/x",
    "https://$USER-s3cr3t@h.example/x": "https://h.example/x",
    "u:s3cr3t@registry.example/a:1": "registry.example/a:1",
    "https://p.example/?url=https%3A%2F%2Fu%3As3cr3t%40h%2Fx&y=1": (
        "https://p.example/?url=https%3A%2F%2Fh%2Fx&y=1"
    ),
    "https://p.example/https://u:s3cr3t@h.example/x": "https://p.example/https://h.example/x",
    "https://h.example/x?token=s3cr3t": "https://h.example/x",
    "https://h.example/x?a=1&access_token=s3cr3t&b=2": "https://h.example/x?a=1&b=2",
    "https://h.example/x?private_token=s3cr3t#sha256=00": "https://h.example/x#sha256=00",
    "https://h.example/x?job-token=s3cr3t": "https://h.example/x",
    "https://h.example/x?a=1;apiKey=s3cr3t": "https://h.example/x?a=1",
    "https://h.example/x?access%5Ftoken=s3cr3t": "https://h.example/x",
    "https://h.example/x?sv=1&sig=s3cr3t%3D": "https://h.example/x?sv=1",
    "https://h.example/x?X-Amz-Date=1&X-Amz-Signature=s3cr3t": "https://h.example/x?X-Amz-Date=1",
    "https://h.example/x?X-Amz-Security-Token=s3cr3t": "https://h.example/x",
    "https://h.example/x?X-Goog-Signature=s3cr3t": "https://h.example/x",
    "https://h.example/x?AWSAccessKeyId=s3cr3t&Signature=s3cr3t": "https://h.example/x",
    "https://h.example/x#access_token=s3cr3t&egg=x": "https://h.example/x#egg=x",
    "https://h.example/t/s3cr3t/lab": "https://h.example/lab",
    "https://h.example/t/s3cr3t": "https://h.example",
    "https://u:s3cr3t@h.example/t/s3cr3t/lab/linux-64/a.conda": (
        "https://h.example/lab/linux-64/a.conda"
    ),
}
# Addresses, and texts that are like them, without a credential.
PUBLIC = (
    "https://h.example/x.whl?ref=main&tokenizer=fast&author=me#sha256=00",
    "git+ssh://git@github.com/o/r@v1",
    "ssh://me@h.example/r",
    "https://git@github.com/o/r",
    "git@github.com:o/r.git",
    "https://${USER}:${PASSWORD}@h.example/x?token=${TOKEN}",
    "https://$USER:$PASSWORD@h.example/t/$TOKEN/x",
    "https://me:${PASSWORD}@h.example/x",
    "git+https://...@REV",
    "http://[::1]:80/r@v1",
    "http://h.example:8080/r@v1",
    "http://h.example?mail=a@b.example",
    "file:///home/t/me/x",
    "https://h.example/packages/source/t/torch/torch-2.3.0.tar.gz",
    "https://h.example/t/torch_geometric/torch-geometric-2.5.tar.gz",
    "https://discuss.example/t/ddp-hangs/12345",
    "registry.example:5000/a:b@sha256:00",
    "t/dist/x-1.0-py3-none-any.whl",
    "mailto:me@lab.example",
    '{"a":"https://h.example","b":"me@x"}',
)


@pytest.mark.parametrize("address", ADDRESSES)
def test_an_address_without_its_credentials(address: str) -> None:
    expected = ADDRESSES[address]
    assert without_credentials(address) == expected
    assert SECRET not in expected
    text = f"read `{address}` and '{address}', twice"
    assert SECRET not in without_credentials(text)
    assert without_credentials(expected) == expected
    assert public_document({address: [address, 1, None]}) == {expected: [expected, 1, None]}


@pytest.mark.parametrize("address", PUBLIC)
def test_what_is_no_credential_stays(address: str) -> None:
    assert without_credentials(address) == address
    assert credential_problem(address) is None


def test_what_we_render_holds_none() -> None:
    """The filter refuses no job and no page of ours."""
    files = [path for path in (ROOT / "tests" / "data" / "golden").rglob("*") if path.is_file()]
    assert files
    for path in files:
        text = path.read_text()
        assert without_credentials(text) == text, path


@pytest.mark.parametrize(
    ("text", "public", "step"),
    [
        (
            "a @ git+https://u:s3cr3t@h.example:80/r",
            "`a @ git+https://h.example:80/r`",
            "`machine h.example login USER password PASSWORD`",
        ),
        ("git+ssh://git:s3cr3t@h.example/r", "`git+ssh://git@h.example/r`", "public key"),
        ("a @ https://h.example/a.whl?sig=s3cr3t", "`a @ https://h.example/a.whl`", "Download"),
        (
            "https://h.example/t/s3cr3t/lab::a",
            "`https://h.example/lab::a`",
            '["https://h.example/lab=https://h.example/t/.../lab"]',
        ),
        ("t/s3cr3t/lab", "`lab`", "https://HOST/t/.../lab"),
        ("u:s3cr3t@registry.example/a", "`registry.example/a`", "`docker login registry.example`"),
    ],
)
def test_a_problem_names_where_the_credential_belongs(text: str, public: str, step: str) -> None:
    problem = credential_problem(text)
    assert problem is not None and public in problem and step in problem
    assert SECRET not in problem and SECRET not in public_request(text)
    # The next step survives the filter of what is printed.
    assert without_credentials(problem) == problem


def test_a_spec_holds_none() -> None:
    content = (
        b"torch: '2.3'\ncpu: true\nbase: u:s3cr3t@registry.example/a\n"
        b"channels: ['https://u:s3cr3t@h.example/c', t/s3cr3t/lab]\n"
        b"conda: ['https://h.example/t/s3cr3t/lab::a']\n"
        b"pip: ['a @ git+https://u:s3cr3t@h.example/a', 'b @ https://h.example/b.whl?token=s3cr3t']\n"
    )
    with pytest.raises(InvalidSpec) as refusal:
        specs.parse(content, Path("spec.yml"))
    message = str(refusal.value)
    assert SECRET not in message and message.count("was given with a") == 6
    with pytest.raises(InvalidSpec, match="was given with a login"):
        specs.combine({}, {"pip": ("a @ https://u:s3cr3t@h.example/a.whl",)}, name="lab")


def test_what_is_imported_says_what_was_taken_out(tmp_path: Path) -> None:
    def request(name: str, text: str) -> Request:
        (tmp_path / name).write_text(text)
        return decide(read_file(tmp_path / name), default_python="3.11")

    lines = request(
        "requirements.txt",
        "--index-url https://u:s3cr3t@h.example/simple\n"
        "a @ git+https://u:s3cr3t@h.example/a\n"
        "git+https://s3cr3t@h.example/b\n"
        "c @ https://h.example/c.whl?token=s3cr3t\n"
        "d\n",
    )
    repositories = ["a @ git+https://h.example/a", "git+https://h.example/b"]
    assert lines.content["pip"] == [*repositories, "d"]
    document = request(
        "environment.yml",
        "channels: ['https://u:s3cr3t@h.example/c', t/s3cr3t/lab]\n"
        "dependencies: ['https://h.example/t/s3cr3t/lab::e', {pip: ['f @ https://s3cr3t@h/f.zip']}]\n",
    )
    channels = ["https://h.example/lab", "https://h.example/c", "lab", "conda-forge"]
    assert document.content["channels"] == channels
    assert (document.content["conda"], document.content["pip"]) == (["e"], ["f @ https://h/f.zip"])
    for result in (lines, document):
        assert SECRET not in str(result)
        advice = [entry for entry in result.entries if "given with" in entry.reason]
        assert len(advice) == 4


def test_a_lab_gives_its_members_none(tmp_path: Path) -> None:
    (tmp_path / "lab.yml").write_text(
        "schema: 1\nname: lab\ncontact: https://h.example/room?token=s3cr3t\n"
        "mirrors:\n- pypi=https://u:s3cr3t@h.example/simple\n"
    )
    with pytest.raises(InvalidSpec) as refusal:
        read_lab(tmp_path)
    assert ":3: contact:" in str(refusal.value) and ":4: mirrors:" in str(refusal.value)
    assert SECRET not in str(refusal.value)


def test_a_lab_is_joined_by_an_address_without_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record of the lab and the clone's settings hold the address."""
    monkeypatch.setenv("PROVISION_DATA", str(tmp_path))
    with pytest.raises(InvalidSpec, match="machine h") as refusal:
        join("https://u:s3cr3t@h.invalid/lab.git", Console())
    assert SECRET not in str(refusal.value) and not list(tmp_path.iterdir())


def test_what_nodes_and_smoke_tests_repeat_of_settings(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from provision_runtime.node import jobs, program

    proxy = "http://u:s3cr3t@proxy.example:3128"
    monkeypatch.setattr(jobs, "list_jobs", lambda: {"NCCL_X": proxy, "jobs": [proxy]})
    program.main("job-list", {})
    printed = capsys.readouterr().out
    assert printed.count("http://proxy.example:3128") == 2 and SECRET not in printed
    text = passport.to_text({"smoke": {"image": {"report": {"environment": {"NCCL_X": proxy}}}}})
    assert "http://proxy.example:3128" in text and SECRET not in text


def test_errors_and_output_hold_none(capsys: pytest.CaptureFixture[str]) -> None:
    address = "https://u:s3cr3t@h.example/x"
    error = ToolFailed(["git", "clone", address], 128, f"fatal: unable to access '{address}'")
    error.advice = f"Try {address}."
    assert SECRET not in f"{error!r} {error.message} {error.details} {error.tail}"
    for as_json in (False, True):
        console = Console(as_json=as_json, verbose=True)
        console.error(error)
        console.info(address)
        console.warn(address)
        console.result("jobs-log", {"job": "1", "log": address}, address)
    printed = "".join(capsys.readouterr())
    assert "https://h.example/x" in printed and SECRET not in printed
    # The token of a server that we start is for the user.
    log = {"job": "1", "log": "http://127.0.0.1/?token=new"}
    console.result("jobs-log", log, "", shows_token=True)
    assert json.loads(capsys.readouterr().out) == {"schema": "provision.jobs-log/1", **log}


def test_a_traceback_holds_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from provision.cli import main

    try:
        raise ValueError("https://u:s3cr3t@h.example/x")
    except ValueError:
        kind, error, trace = sys.exc_info()
        assert kind is not None and error is not None
        main._print_traceback(kind, error, trace)
    printed = capsys.readouterr().err
    assert "ValueError: https://h.example/x" in printed and SECRET not in printed
