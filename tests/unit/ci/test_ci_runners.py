"""runners.yml: its keys, every mistake with its line, and never a traceback."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from provision.ci import Runner, read_runners
from provision.core.errors import InvalidSpec

hypothesis = pytest.importorskip("hypothesis")
from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402

WHOLE = """\
runners:
  - name: a100
    labels: [self-hosted, linux, a100]
    gpu: NVIDIA A100-SXM4-80GB
    gpus: 8
    driver: "550.54.14"
    platform: linux-64
    glibc: "2.35"
    cpus: 64
    timeout: 90
    cache: /var/cache/provision
  - name: grace
    labels: gh200
    gpu: sm_90
    driver: "580"
    platform: linux-aarch64
  - name: cpu
    labels: [self-hosted, linux]
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "runners.yml"
    path.write_text(text)
    return path


def refusal(tmp_path: Path, text: str) -> str:
    with pytest.raises(InvalidSpec) as refused:
        read_runners(write(tmp_path, text))
    return str(refused.value)


def test_every_key_of_a_runner(tmp_path: Path) -> None:
    a100, grace, cpu = read_runners(write(tmp_path, WHOLE)).runners
    assert a100.gpu and (a100.gpu.name, a100.gpu.architecture) == ("A100", "sm_80")
    assert (a100.gpus, a100.driver, a100.glibc, a100.cpus, a100.timeout_min) == (
        8,
        "550.54.14",
        "2.35",
        64,
        90,
    )
    assert a100.cache == "/var/cache/provision"
    assert grace.gpu and (grace.labels, grace.gpu.architecture, grace.gpus) == (
        ("gh200",),
        "sm_90",
        1,
    )
    assert grace.platform == "linux-aarch64"
    assert cpu == Runner(name="cpu", labels=("self-hosted", "linux"))


def test_all_mistakes_are_reported_with_their_lines(tmp_path: Path) -> None:
    text = """\
runner: 1
workflow: {schedule: daily}
runners:
  - name: a
    labels: []
    gpus: 0
  - name: a
    labels: [x, "${{ secrets.X }}"]
    name: b
    driver: 535
  - 12
  - labels: x
    cache: ../x
"""
    message = refusal(tmp_path, text)
    found = [
        line.split(": ")[:2]
        for line in message.replace(f"{tmp_path}/runners.yml:", "").splitlines()
    ]
    assert [(int(line), subject) for line, subject in found[:-1]] == [
        (1, "the top level"),
        (2, "workflow.schedule"),
        (5, "runners[0].labels (a)"),
        (6, "runners[0].gpus (a)"),
        (8, "runners[1].labels[1] (b)"),
        (9, "`name` is repeated."),
        (10, "runners[1].driver (b)"),
        (11, "runners[2]"),
        (12, "runners[3]"),
        (13, "runners[3].cache"),
    ]


def test_what_a_schema_cannot_say_is_reported_too(tmp_path: Path) -> None:
    text = """\
runners:
- {name: a, labels: x, gpu: A1000000, driver: "535"}
- {name: a, labels: x, gpu: A100}
- {name: c, labels: x, driver: "535"}
"""
    message = refusal(tmp_path, text)
    assert "runners.yml:2: GPU 'A1000000' is not in the table" in message
    assert "runners.yml:3: `a` is also the name of the runner in line 2" in message
    assert "runners.yml:3: a runner with a `gpu` has a `driver`" in message
    assert "runners.yml:4: `driver` is about GPUs" in message


@pytest.mark.parametrize(
    "install",
    [
        "x; rm -rf /",
        "tools/x-1-py3-none-any.whl\n- run: y",
        "tools/provision.whl",
        f"https://a.invalid/x.whl#sha256={'0' * 64}",
        "",
        "provision==0.1.0",
        "git+https://code.invalid/provision@main",
    ],
)
def test_runners_never_install_what_others_may_change(install: str, tmp_path: Path) -> None:
    text = f"workflow: {{install: {json.dumps(install)}}}\nrunners: [{{name: a, labels: x}}]\n"
    assert "runners.yml:1: workflow.install: " in refusal(tmp_path, text)


@pytest.mark.parametrize(
    "text,expected_message",
    [
        ("", "the top level"),
        ("runners:", "runners: "),
        ("runners: []", "runners: "),
        ("runners: {a: 1}", "runners: "),
        ("runners: [", "this is not YAML"),
        ("runners: &a [*a]", "stands for itself"),
        ("runners:\n- ? [a]\n  : 1", "this is not YAML"),
        ("runners:\n- name: x\n  labels: y\n  <<: {gpu: A100}", "has a `driver`"),
        ("runners:\n- name: 2026-01-01\n  labels: y\n", ":2: runners[0].name: a date is not text"),
        ("runners:\n- name: x\n  labels: [y, 2026-01-01]\n", ":3: runners[0].labels[1]"),
        (f"runners:\n- name: x\n  labels: y\n  cpus: {'9' * 300}\n", ":4: runners[0].cpus"),
    ],
)
def test_invalid_files(text: str, expected_message: str, tmp_path: Path) -> None:
    assert expected_message in refusal(tmp_path, text)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidSpec, match="There is no"):
        read_runners(tmp_path / "none.yml")


WORDS = st.sampled_from(
    [
        "runners",
        "name",
        "labels",
        "gpu",
        "gpus",
        "driver",
        "sm_90",
        "A100",
        "535",
        '"535"',
        "x",
        "[a]",
        "12",
        "yes",
        "2024-13-01",
        "~",
        "!!x y",
    ]
)
LINES = st.lists(
    st.tuples(
        st.sampled_from(["", "  ", "- ", "  - ", "    "]),
        WORDS,
        st.sampled_from([":", ": ", " ", ""]),
        WORDS,
    ),
    max_size=8,
)


@settings(max_examples=150, deadline=None)
@given(LINES.map(lambda lines: "\n".join("".join(parts) for parts in lines)) | st.text(max_size=40))
def test_any_text_is_parsed_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.mktemp("any") / "runners.yml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        assert read_runners(path)
    except InvalidSpec as refused:
        assert str(path) in refused.message
