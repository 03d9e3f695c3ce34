"""spec.yml and options: every mistake at once, with its line; options over the file; names that are safe everywhere."""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.errors import InvalidSpec
from provision.pipeline import spec


def write(folder: Path, text: str) -> Path:
    path = folder / "spec.yml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["torch2.3-cuda12.1-py311", "a", "lab_7", "x" * 100])
def test_good_names(name: str) -> None:
    assert spec.check_name(name) == name


@pytest.mark.parametrize(
    "name", ["", ".", "..", "a/b", "../x", "a b", "{{ x }}", "$(rm)", "a;b", "A", "a..b", "-a", "a-", "x" * 101, "a\nb", "ü"]
)
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidSpec, match="cannot be an environment's name"):
        spec.check_name(name)


def test_all_mistakes_at_once_with_lines(tmp_path: Path) -> None:
    path = write(tmp_path, 'torch: 2.3\ncuda: "x"\nfoo: 1\npip: [1]\nchannels: "a"\nsource: nowhere\n')
    with pytest.raises(InvalidSpec) as caught:
        spec.read(path)
    for line, word in enumerate(["torch", "cuda", "foo", "pip", "channels", "source"], start=1):
        assert f"{path}:{line}: `{word}`" in str(caught.value)


@pytest.mark.parametrize("text", ['torch: "2.3\ncuda: [\n', "a: b: c\n", "\t- x", "\x00"])
def test_broken_yaml_names_the_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.yml.*not YAML"):
        spec.read(write(tmp_path, text))


@pytest.mark.parametrize("text", ["", "- a\n", "just text\n", "42\n"])
def test_not_a_mapping(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidSpec, match="a spec is a mapping"):
        spec.read(write(tmp_path, text))


def test_options_override_the_file(tmp_path: Path) -> None:
    file = spec.read(write(tmp_path, 'torch: "2.3"\ncuda: "12.1"\npip:\n  - einops\n'))
    combined = spec.combine(file, {"cuda": "11.8", "cpu": False, "pip": (), "torch": None}, name="lab")
    assert (combined.torch, combined.cuda, combined.pip) == ("2.3", "11.8", ("einops",))


def test_cpu_option_replaces_the_files_cuda() -> None:
    assert spec.combine({"torch": "2.3", "cuda": "12.1"}, {"cpu": True}, name="lab").cuda is None


def test_no_companions_is_an_answer_not_an_absence() -> None:
    assert spec.combine({"torch": "2.3", "cpu": True}, {"companions": False}, name="lab").companions is False


def test_cuda_with_cpu_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="--cuda and --cpu"):
        spec.combine({}, {"torch": "2.3", "cuda": "12.1", "cpu": True}, name="lab")


def test_what_is_missing_is_said_together() -> None:
    with pytest.raises(InvalidSpec) as caught:
        spec.combine({}, {}, name="lab")
    assert "which PyTorch" in str(caught.value)
    assert "which CUDA" in str(caught.value)


@pytest.mark.parametrize("value", ["foo bar", "torch==", "a b; c", "x`id`", "$(id)", "a\nb", "x # [linux]"])
def test_hostile_requirements_are_refused(value: str) -> None:
    with pytest.raises(InvalidSpec):
        spec.combine({}, {"torch": "2.3", "cuda": "12.1", "pip": (value,)}, name="lab")


@pytest.mark.parametrize("key,value", [("base", "a b"), ("base", "x\nRUN evil"), ("python", "3"), ("nccl", "new"), ("torch", "latest")])
def test_values_of_the_wrong_form(key: str, value: str) -> None:
    with pytest.raises(InvalidSpec, match=f"`{key}` is like"):
        spec.combine({}, {"torch": "2.3", "cuda": "12.1", key: value}, name="lab")


def test_content_reads_back_as_the_same_spec() -> None:
    asked = {"torch": "2.3", "cuda": "12.1", "python": "3.11", "pip": ["einops>=0.7"], "channels": ["conda-forge"], "companions": False}
    made = spec.combine(asked, {}, name="lab")
    assert spec.combine(spec.content(made), {}, name="lab") == made
    assert spec.content(made) == asked
