"""Where libraries and modules came from: whose a mapped file is, and which folder brought a module."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from provision_runtime.facts import libraries, origins
from tests.paths import ROOT

SITE = "/prefix/lib/python3.11/site-packages"
OWN = f"{SITE}/nvidia/nccl/lib/libnccl.so.2"


@pytest.mark.parametrize(
    ("path", "prefix", "is_foreign"),
    [
        (OWN, "/prefix", False),
        (f"{SITE}/torch/lib/libcudart-d0da41ae.so.11.0", "/prefix", False),
        ("/prefix/lib/libcudart.so.12", "/prefix", False),  # conda's
        ("/usr/lib/x86_64-linux-gnu/libnccl.so.2", "/prefix", True),
        ("/usr/local/cuda-12.6/targets/x86_64-linux/lib/libcublasLt.so.12", "/prefix", True),
        ("/usr/lib/x86_64-linux-gnu/libcudnn_ops_infer.so.8", "/prefix", True),
        ("/prefix-old/lib/libcudart.so.12", "/prefix", True),
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/prefix", False),  # the driver's
        ("/usr/lib/x86_64-linux-gnu/libcudadebugger.so.1", "/prefix", False),
        ("/opt/amazon/ofi-nccl/lib/libnccl-net.so", "/prefix", False),  # plug-ins
        ("/usr/lib/libgomp.so.1", "/prefix", False),
        # A system's Python: the prefix alone proves nothing, the environment's own copy does.
        ("/usr/lib/x86_64-linux-gnu/libnccl.so.2", "/usr", True),
        ("/usr/lib/x86_64-linux-gnu/libcudart.so.12", "/usr", False),
    ],
)
def test_owner_of_a_library(path: str, prefix: str, is_foreign: bool) -> None:
    assert libraries.foreign([path], prefix, SITE, [OWN]) == ([path] if is_foreign else [])


@given(
    st.sampled_from(["libnccl.so.2", "libcudnn_cnn_train.so.8", "libnvJitLink.so.12"]),
    st.sampled_from(["", "a", "a/b"]),
)
def test_nothing_in_site_packages_is_foreign(name: str, folder: str) -> None:
    path = str(Path(SITE) / folder / name)
    assert all(
        libraries.foreign([path], prefix, SITE, []) == []
        for prefix in ("/prefix", "/usr", "/elsewhere")
    )


def test_symlinked_prefix_is_the_same_prefix(tmp_path: Path) -> None:
    (tmp_path / "real/lib").mkdir(parents=True)
    library = tmp_path / "real/lib/libnccl.so.2"
    library.touch()
    (tmp_path / "link").symlink_to("real")
    assert libraries.foreign([str(library)], str(tmp_path / "link"), SITE, []) == []


def test_deleted_loaded_library_keeps_its_name() -> None:
    line = "7f0000000000-7f0000001000 r-xp 00000000 08:01 42  /tmp/x/libnccl.so.2 (deleted)\n"
    assert libraries.parse_maps(line) == ["/tmp/x/libnccl.so.2"]


def test_own_libraries_are_torchs_and_nvidias(tmp_path: Path) -> None:
    own_libraries = ("torch/lib/libcudart-d0da41ae.so.11.0", "nvidia/nccl/lib/libnccl.so.2")
    for name in ("torch/lib/libtorch_cuda.so", "numpy/libcudart.so", *own_libraries):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    names = [str(Path(path).relative_to(tmp_path)) for path in libraries.bundled(str(tmp_path))]
    assert names == ["nvidia/nccl/lib/libnccl.so.2", "torch/lib/libcudart-d0da41ae.so.11.0"]
    assert [libraries.stem(name) for name in names] == ["nccl", "cudart"]


def test_libraries_on_the_library_path(tmp_path: Path) -> None:
    for name in (
        "libcudart.so.12",
        "libcudart.so",
        "libcudnn_ops.so.9",
        "libcuda.so.1",
        "libnccl-net.so.0",
        "libz.so.1",
    ):
        (tmp_path / name).touch()
    result = origins.on_library_path(f"{tmp_path}:relative::/not/there;{tmp_path}")
    assert [Path(path).name for path in result] == ["libcudart.so.12", "libcudnn_ops.so.9"]


def test_folder_of_an_imported_module() -> None:
    package, plain, builtin = ModuleType("a"), ModuleType("b"), ModuleType("c")
    package.__file__, package.__path__ = "/home/a/__init__.py", ["/home/a"]
    plain.__file__ = "/home/b.py"
    modules = {"a": package, "a.sub": package, "b": plain, "c": builtin, "__main__": plain}
    assert origins.modules_of(["/home"], modules) == ["a", "b"]
    assert origins.modules_of(["/"], modules) == []


def test_pythonpath_modules_loaded_and_loadable_are_named(tmp_path: Path) -> None:
    folder, empty = tmp_path / "of somebody", tmp_path / "empty"
    folder.mkdir()
    empty.mkdir()
    (folder / "leaked.py").write_text("")
    ask = f"""
import sys
sys.path.append({str(ROOT)!r})
from provision_runtime.facts import origins
print(origins.pythonpath_facts())"""
    environment = {"PYTHONPATH": f"{folder}:{empty}:/not/there"}

    def answer(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, *arguments],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()

    assert answer("-c", ask) == str({"entries": [str(folder)], "modules": []})
    assert answer("-c", f"import leaked\n{ask}") == str(
        {"entries": [str(folder)], "modules": ["leaked"]}
    )
    # A process that ignores PYTHONPATH itself still reports it for those that do not.
    assert answer("-E", "-c", ask) == str({"entries": [str(folder)], "modules": []})
