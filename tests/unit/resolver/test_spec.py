"""spec.yml and options: every mistake at once, with its line; options over the file; names that are
safe everywhere."""

from __future__ import annotations

import dataclasses
import re
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from provision.cli.spec_options import option_of, request_options
from provision.core.dataclass import frozen
from provision.core.errors import InvalidSpec
from provision.core.spec_fields import SPEC_KEYS, Spec, SpecKey
from provision.resolver import spec
from tests.paths import ROOT


def write(folder: Path, text: str) -> Path:
    path = folder / "spec.yml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ["torch2.3-cuda12.1-py311", "a", "lab_7", "x" * 100])
def test_good_names(name: str) -> None:
    assert spec.check_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        "../x",
        "a b",
        "{{ x }}",
        "$(rm)",
        "a;b",
        "A",
        "a..b",
        "-a",
        "a-",
        "x" * 101,
        "a\nb",
        "ü",
    ],
)
def test_bad_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidSpec, match="cannot be an environment's name"):
        spec.check_name(name)


def test_all_mistakes_are_reported_with_lines(tmp_path: Path) -> None:
    path = write(
        tmp_path, 'torch: 2.3\ncuda: "x"\nfoo: 1\npip: [1]\nchannels: "a"\nsource: nowhere\n'
    )
    with pytest.raises(InvalidSpec) as caught:
        spec.read(path)
    for line, key in enumerate(["torch", "cuda", "foo", "pip", "channels", "source"], start=1):
        assert f"{path}:{line}: `{key}`" in str(caught.value)


@pytest.mark.parametrize("text", ['torch: "2.3\ncuda: [\n', "a: b: c\n", "\t- x", "\x00"])
def test_broken_yaml_names_the_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidSpec, match=r"spec\.yml.*not YAML"):
        spec.read(write(tmp_path, text))


def test_what_was_read_of_another_text_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cache").mkdir()
    monkeypatch.setenv("PROVISION_CACHE", str(tmp_path / "cache"))
    path = write(tmp_path, 'torch: "2.3"\npip: [einops]\nbuild: {x: {env: {N: "1.10"}}}\n')
    for _ in range(2):
        content = spec.read(path)
        assert content["pip"] == ["einops"]
        content["pip"].append("changed by the caller")
    assert list((tmp_path / "cache" / "remembered").iterdir())
    assert spec.read(write(tmp_path, 'torch: "2.4"\n')) == {"torch": "2.4"}
    with pytest.raises(InvalidSpec):
        spec.read(write(tmp_path, "torch: 2.4\n"))


@pytest.mark.parametrize("text", ["", "- a\n", "just text\n", "42\n"])
def test_not_a_mapping(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidSpec, match="a spec is a mapping"):
        spec.read(write(tmp_path, text))


def test_options_override_the_file(tmp_path: Path) -> None:
    file = spec.read(write(tmp_path, 'torch: "2.3"\ncuda: "12.1"\npip:\n  - einops\n'))
    combined = spec.combine(
        file, {"cuda": "11.8", "cpu": False, "pip": (), "torch": None}, name="lab"
    )
    assert (combined.torch, combined.cuda, combined.pip) == ("2.3", "11.8", ("einops",))


def test_cuda_with_cpu_is_refused() -> None:
    with pytest.raises(InvalidSpec, match="--cuda and --cpu"):
        spec.combine({}, {"torch": "2.3", "cuda": "12.1", "cpu": True}, name="lab")


def test_all_missing_keys_are_reported() -> None:
    with pytest.raises(InvalidSpec) as caught:
        spec.combine({}, {}, name="lab")
    assert "which PyTorch" in str(caught.value)
    assert "which CUDA" in str(caught.value)


@pytest.mark.parametrize(
    "value", ["foo bar", "torch==", "a b; c", "x`id`", "$(id)", "a\nb", "x # [linux]"]
)
def test_hostile_requirements_are_refused(value: str) -> None:
    with pytest.raises(InvalidSpec):
        spec.combine({}, {"torch": "2.3", "cuda": "12.1", "pip": (value,)}, name="lab")


@pytest.mark.parametrize(
    "key,value",
    [
        ("base", "a b"),
        ("base", "x\nRUN evil"),
        ("python", "3"),
        ("torch", "newest"),
    ],
)
def test_malformed_values(key: str, value: str) -> None:
    with pytest.raises(InvalidSpec, match=f"`{key}` must be like"):
        spec.combine({}, {"torch": "2.3", "cuda": "12.1", key: value}, name="lab")


def test_content_round_trip() -> None:
    requested = {
        "torch": "2.3",
        "cuda": "12.1",
        "python": "3.11",
        "pip": ["einops>=0.7"],
        "channels": ["conda-forge"],
        "companions": False,
    }
    result = spec.combine(requested, {}, name="lab")
    assert spec.combine(spec.content(result), {}, name="lab") == result
    assert spec.content(result) == requested


@pytest.mark.parametrize(
    "value", ["2", "2.3", "2.3.1", "latest", ">=2.3,<2.6", "~=2.3", "==2.3.*", ">= 2.3, != 2.4.0"]
)
def test_valid_torch_versions(value: str) -> None:
    assert spec.combine({}, {"torch": value, "cpu": True}, name="lab").torch == value


@pytest.mark.parametrize(
    "value",
    [
        "", ">=", "2.3.1+cu121", "=2.3", ">=2.3 <2.6", "$(id)", "2.3.1.4", "two", "===x y",
        "cu121", "02.3", "2.03",
    ],
)  # fmt: skip
def test_invalid_torch_versions(value: str) -> None:
    with pytest.raises(InvalidSpec, match="torch"):
        spec.combine({}, {"torch": value, "cpu": True}, name="lab")


@pytest.mark.parametrize(
    "key,good,bad",
    [
        ("cuda", ("12", "12.1", "auto"), ("cu121", "12.1.0", "Auto", "")),
        ("driver", ("535", "535.54", "535.54.03"), ("r535", "535.54.03.1", ">=535")),
        ("glibc", ("2.17",), ("2", "2.17.1")),
        ("as_of", ("2024-06-30", "2024-02-29"), ("2023-02-29", "2024-6-3", "yesterday", "2024-13-01", "20240630")),
        ("gpu", (["H100"], ["sm_90", "9.0"], ["Tesla V100-SXM2-16GB"]), ("H100", ["$(id)"], [9.0], ["a#b"])),
        ("platforms", (["linux-64"], ["linux-64", "linux-aarch64"]), ("linux-64", ["win-64"], ["osx-arm64", "linux-64"])),
        ("base", ("debian:bookworm-slim", "oci:/our images/base"), ("oci:/a\nRUN x", "oci:/$(id)", "a b")),
        ("infiniband", (True, False), ("yes", 1)),
    ],
)  # fmt: skip
def test_value_forms(tmp_path: Path, key: str, good: tuple[Any, ...], bad: tuple[Any, ...]) -> None:
    """The same in a file and in options; a file's mistake has its line."""
    base = {"torch": "2.3"} if key == "cuda" else {"torch": "2.3", "cuda": "12.1"}
    for value in good:
        path = write(tmp_path, yaml.safe_dump({**base, key: value}, sort_keys=False))
        assert spec.combine(spec.read(path), {}, name="lab") == spec.combine(
            {}, {**base, key: value}, name="lab"
        )
    for value in bad:
        with pytest.raises(InvalidSpec, match=rf"spec\.yml:{len(base) + 1}: `{key}`"):
            spec.read(write(tmp_path, yaml.safe_dump({**base, key: value}, sort_keys=False)))


@pytest.mark.parametrize(
    "line",
    [
        "torch: 2.10",
        "cuda: 12.10",
        "cuda: 13.0",
        "python: 3.10",
        "glibc: 2.40",
        "driver: 0535",
        "as_of: 2024-06-30",
    ],
)
def test_advised_quotes_surround_the_original_text(tmp_path: Path, line: str) -> None:
    key, value = line.split(": ")
    with pytest.raises(InvalidSpec, match=re.escape(f'write it in quotes: {key}: "{value}".')):
        spec.read(write(tmp_path, line + "\n"))


@pytest.mark.parametrize(
    "line,message",
    [
        ("cuda: yes", "not `yes`"),
        ("torch: 2.1e1", "not `2.1e1`"),
        ("cuda:", "has no value"),
        ("cuda: [1]", "one text"),
    ],
)
def test_quotes_are_not_advised_in_vain(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(InvalidSpec, match=re.escape(message)) as caught:
        spec.read(write(tmp_path, line + "\n"))
    assert "write it in quotes" not in str(caught.value)


def test_an_unknown_gpu_is_reported_with_the_other_mistakes() -> None:
    with pytest.raises(InvalidSpec) as caught:
        spec.combine({}, {"gpu": ("blah",), "torch": "x", "cuda": "y"}, name="")
    for text in ("'blah'", "`torch`", "`cuda`"):
        assert text in str(caught.value)


@pytest.mark.parametrize("key", ["nccl", "cudnn"])
def test_a_key_that_is_gone_is_answered_with_its_new_form(tmp_path: Path, key: str) -> None:
    path = write(tmp_path, f'torch: "2.6"\ncuda: "12.6"\n{key}: "2.20"\n')
    with pytest.raises(
        InvalidSpec, match=rf"spec.yml:3: .* any more: .*`conda: \[{key}=VERSION\]`"
    ):
        spec.read(path)


@pytest.mark.parametrize("key,value", [("gpu", ["H100"]), ("driver", "535")])
def test_cpu_with_gpu_keys_is_refused(key: str, value: Any) -> None:
    with pytest.raises(InvalidSpec, match=f"`{key}` is about GPUs"):
        spec.combine({"torch": "2.3", "cpu": True, key: value}, {}, name="lab")


def test_cpu_option_drops_the_files_gpu_keys() -> None:
    file = {
        "torch": "2.3",
        "cuda": "12.1",
        "gpu": ["H100"],
        "driver": "535",
        "glibc": "2.28",
    }
    result = spec.combine(file, {"cpu": True}, name="lab")
    assert (result.cuda, result.gpu, result.driver, result.glibc) == (
        None,
        (),
        None,
        "2.28",
    )


def test_lists_are_deduplicated_and_empty_means_default() -> None:
    result = spec.combine(
        {"torch": "2.3", "cuda": "12.1", "platforms": [], "gpu": ["sm_90", "sm_90"]}, {}, name="lab"
    )
    assert (result.platforms, result.gpu) == (("linux-64",), ("sm_90",))


WORDS = st.sampled_from(
    [
        *spec.KEYS,
        "2.3",
        "12.1",
        "auto",
        "latest",
        "- ",
        ": ",
        "\n",
        "[",
        "{",
        "&a ",
        "*a",
        "!!int ",
        "? ",
        "<<",
        "'",
        '"',
    ]
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.dates()
    | st.binary(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(deadline=None)
@given(
    text=st.text(max_size=60)
    | st.lists(WORDS | st.text(string.printable, max_size=4), max_size=30).map("".join)
)
@example(text="torch: 2024-13-01")
@example(text="torch: " + "9" * 5000)
@example(text="torch: !!int x")
@example(text="? [a]\n: b")
@example(text="? {a: b}\n: c")
@example(text="torch: &a [*a]")
@example(text="[" * 400)
@example(text="- &a [x, x]\n- &b [*a, *a]")
@example(text="!!set {torch}")
@example(text="<<: {torch: '2.3'}\ncpu: true")
@example(text="!!python/object:os.system {}")
def test_any_text_is_parsed_or_refused(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed.yml"
    path.write_bytes(text.encode(errors="surrogatepass"))
    try:
        result = spec.combine(spec.read(path), {}, name="lab")
    except InvalidSpec as error:
        assert str(error)
    else:
        assert isinstance(result, Spec)


@settings(deadline=None)
@given(
    content=st.dictionaries(
        st.sampled_from(spec.KEYS) | st.text(max_size=5) | st.integers(), VALUES, max_size=6
    )
)
def test_any_content_is_parsed_or_refused(content: dict[Any, Any]) -> None:
    try:
        result = spec.combine({"torch": "2.3", "cuda": "12.1"} | content, {}, name="lab")
    except InvalidSpec as error:
        assert str(error)
    else:
        assert spec.combine(spec.content(result), {}, name="lab") == result


def test_table_of_keys_is_generated_from_the_declarations() -> None:
    root = ROOT
    checked = subprocess.run(
        [sys.executable, str(root / "docs" / "make_spec.py"), "--check"],
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.parametrize(
    "key,value,message",
    [
        ("pip", "a -f https://w.example/page", "under `find_links`"),
        ("pip", "-r more.txt", "provision add NAME '-r more.txt'"),
        ("pip", "numpy=1.26", "conda's way"),
        ("pip", "a; python_version >", "not a requirement"),
        ("indexes", "https://i.example/simple", "cannot be an index"),
        ("indexes", "a @ https://m:S3CRET@i.example/simple", "netrc"),
        ("find_links", "a b", "cannot be a page"),
    ],
)
def test_sources_of_packages_that_are_refused(key: str, value: str, message: str) -> None:
    with pytest.raises(InvalidSpec, match=message):
        spec.combine({}, {"torch": "2.3", "cuda": "12.1", key: (value,)}, name="lab")


@pytest.mark.parametrize(
    "text",
    [
        "git+https://g.example/a.git@v1#egg=a&subdirectory=py",
        "a[x] @ git+ssh://git@g.example/a.git",
        "-e ../../mine[dev]",
        "./wheels/a-1-py3-none-any.whl",
        "https://w.example/a-1%2Bpt23-py3-none-any.whl",
        "a>=1; python_version < '3.12'",
    ],
)
def test_forms_of_requirements(text: str) -> None:
    combined = spec.combine({}, {"torch": "2.3", "cuda": "12.1", "pip": (text,)}, name="lab")
    assert combined.pip == (text,)


def test_a_package_has_one_source() -> None:
    listed = ["a b @ https://one.example", "https://page.example"]
    changed = spec.with_sources(listed, ["B @ file:../wheels"], {"c"})
    assert changed == ["a @ https://one.example", "https://page.example", "B @ file:../wheels"]
    assert spec.with_sources(changed, [], {"a"}) == changed[1:]


def test_every_key_has_an_option_a_field_and_a_row() -> None:
    """Everything that depends on a key is made from its declaration."""
    page = (ROOT / "docs" / "spec.md").read_text()
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]

    @request_options
    def command(**options: Any) -> None: ...

    parameters = {parameter.name for parameter in click.decorators.command()(command).params}
    fields = {field.name for field in dataclasses.fields(Spec)} - {"name"}
    assert set(spec.KEYS) == fields | {"cpu"}
    in_file_only = {key.name for key in SPEC_KEYS if key.in_file_only}
    assert set(spec.KEYS) - in_file_only <= parameters
    for key in spec.KEYS:
        assert any(re.search(rf"`{key}[`:]", row) for row in rows), key


def test_new_key_needs_only_a_declaration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Option, validation and the file's content follow from the declaration of a field."""

    @frozen
    class WiderSpec(Spec):
        mpi: str | None = None

    help = "Also install this MPI."
    mpi = SpecKey(
        kind="choice", help=help, name="mpi", option="--mpi", choices=("openmpi", "mpich")
    )
    keys = (*SPEC_KEYS, mpi)
    monkeypatch.setattr(spec, "Spec", WiderSpec)
    monkeypatch.setattr(spec, "KEYS", tuple(key.name for key in keys))
    monkeypatch.setattr(spec, "_KEYS_BY_NAME", {key.name: key for key in keys})
    path = write(tmp_path, 'torch: "2.3"\ncpu: true\nmpi: openmpi\n')
    combined = spec.combine(spec.read(path), {}, name="lab")
    assert spec.content(combined) == {"torch": "2.3", "cpu": True, "mpi": "openmpi"}
    with pytest.raises(InvalidSpec, match="`mpi` must be one of openmpi, mpich, not `lam`"):
        spec.combine(spec.read(path), {"mpi": "lam"}, name="lab")
    command = click.command()(option_of(mpi)(lambda **options: None))
    assert command.params[0].opts == ["--mpi"]


def test_settings_of_a_build_keep_their_numbers() -> None:
    """YAML reads 12.10 as 12.1; no quotes are needed here."""
    text = b"build: {Flash_Attn: {isolation: no, needs: [ninja], cuda: 12.10, env: {MAX_JOBS: 4}}}"
    content = spec.parse(text, Path("spec.yml"))
    request = spec.combine({"torch": "2.3", "cpu": True, **content}, {}, name="lab")
    assert request.build == {
        "flash-attn": {
            "isolation": False,
            "needs": ["ninja"],
            "cuda": "12.10",
            "env": {"MAX_JOBS": "4"},
        }
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flash-attn: {isolaton: false}", r"isolaton.*isolation, needs, cuda, env"),
        ("flash-attn: {isolation: 'no'}", "flash-attn.isolation.*boolean"),
        ("flash-attn: {needs: ninja}", "flash-attn.needs.*array"),
        ("flash-attn: {needs: ['a b']}", "`a b`: it is not a requirement"),
        ("flash-attn: {cuda: 12}", "a version like 12.1, true or false"),
        ("flash-attn: {env: {UV_INDEX: x}}", "UV_INDEX"),
        ("flash-attn: {env: {FORCE_CUDA: yes}}", "flash-attn.env.FORCE_CUDA"),
        ("flash-attn:", "flash-attn: null"),
        ("[flash-attn]", "object"),
        ("'a b': {}", "a b"),
    ],
)
def test_wrong_settings_of_a_build_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidSpec, match=f"spec.yml:1: `build`.*{message}"):
        spec.parse(f"build:\n  {text}\n".encode(), Path("spec.yml"))


@pytest.mark.parametrize("wrong", [{"torch": "2.3+rocm6.0"}, {"cuda": "rocm6.0"}, {"cuda": "hip"}])
def test_rocm_is_for_other_gpus(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidSpec, match="there are builds for NVIDIA GPUs only"):
        spec.combine({}, {"torch": "2.3", "cuda": "12.1", **wrong}, name="lab")
