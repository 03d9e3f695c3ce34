"""runners.yml: its keys, every mistake with its line, and never a traceback."""

from __future__ import annotations

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
    image: registry.example/cuda:1@sha256:0
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
    a100, grace, cpu = read_runners(write(tmp_path, WHOLE))
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
    assert (grace.platform, grace.image) == ("linux-aarch64", "registry.example/cuda:1@sha256:0")
    assert cpu == Runner(name="cpu", labels=("self-hosted", "linux"))


def test_all_mistakes_are_reported_with_their_lines(tmp_path: Path) -> None:
    text = """\
runner: 1
runners:
  - name: a
    labels: []
    gpu: A1000000
    gpus: 0
  - name: a
    labels: [x, "${{ secrets.X }}"]
    name: b
    driver: 535
    color: red
  - 12
  - labels: x
    gpu: sm_90
    cache: ../x
    timeout: 0
"""
    message = refusal(tmp_path, text)
    path = tmp_path / "runners.yml"
    for line, expected_message in [
        (1, "`runner` is not a key here"),
        (3, "no `driver`"),
        (4, "`labels` must be"),
        (5, "GPU 'A1000000' is not in the table, which has NVIDIA GPUs only. Similar: A100"),
        (6, "`gpus` must be a whole number of at least 1, not 0."),
        (8, "not ['x', '${{ secrets.X }}']"),
        (9, "`name` is repeated"),
        (10, "`driver` must be a version in quotes"),
        (10, "this runner has no `gpu`"),
        (11, "`color` is not a key of a runner"),
        (12, "a runner is a mapping"),
        (13, "this runner has no `name`"),
        (15, "`cache` must be the absolute path of a folder"),
        (16, "`timeout` must be a number of minutes"),
    ]:
        assert any(
            part.startswith(f"{line}: ") and expected_message in part
            for part in message.split(f"{path}:")
        ), (line, expected_message, message)


@pytest.mark.parametrize(
    "text,expected_message",
    [
        ("", "is a mapping with the key `runners`"),
        ("runners:", "a list of at least one runner"),
        ("runners: []", "a list of at least one runner"),
        ("runners: {a: 1}", "a list of at least one runner"),
        ("runners: [", "this is not YAML"),
        ("runners: &a [*a]", "stands for itself"),
        ("runners:\n- ? [a]\n  : 1", "this is not YAML"),
        (
            "runners:\n- name: x\n  labels: y\n- name: x\n  labels: y\n",
            "is also the name of the runner in line 2",
        ),
        ("runners:\n- name: x\n  labels: y\n  <<: {gpu: A100}", "no `driver`"),
        ("runners:\n- name: 2026-01-01\n  labels: y\n", ":2: `name` must be text"),
        ("runners:\n- name: x\n  labels: [y, 2026-01-01]\n", ":3: `labels` must be text"),
        (f"runners:\n- name: x\n  labels: y\n  cpus: {'9' * 300}\n", ":4: `cpus` must be"),
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
