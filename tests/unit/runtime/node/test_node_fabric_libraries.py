"""Versions of NCCL, its plug-ins and libfabric, read from files where vendors put them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from provision_runtime.node.fabric_libraries import host_folders, host_libraries
from tests.elf_files import write_library

OFI_FOLDER = "opt/amazon/ofi-nccl/lib/x86_64-linux-gnu"
BUILD = "0aa8317d81ac9d1a"


def libraries(root: Path, **environment: str) -> dict[str, str]:
    """Those that there are."""
    return {kind: text for kind, text in host_libraries(root, environment).items() if text}


def test_aws_ofi_nccl_where_the_efa_installer_puts_it(tmp_path: Path) -> None:
    text = b"\0NET/OFI Initializing aws-ofi-nccl 1.13.2-aws\0"
    path = write_library(tmp_path / OFI_FOLDER / "libnccl-net.so", text, BUILD)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert libraries(tmp_path) == {
        "aws_ofi_nccl": f"1.13.2-aws (build {digest[:8]}) /{OFI_FOLDER}/libnccl-net.so"
    }


def test_aws_ofi_nccl_built_from_git(tmp_path: Path) -> None:
    text = b"\0Initializing aws-ofi-nccl git-6e504db\0"
    write_library(tmp_path / "opt/aws-ofi-nccl/lib/libnccl-net-ofi.so", text)
    assert libraries(tmp_path)["aws_ofi_nccl"].startswith("git-6e504db (build ")


def test_a_library_has_the_name_of_its_file_and_its_build(tmp_path: Path) -> None:
    path = tmp_path / "opt/amazon/efa/lib64/libfabric.so.1.21.0"
    write_library(path, b"\0fabric\0", BUILD, "libfabric.so.1", "libfabric.so")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert libraries(tmp_path)["libfabric"] == (
        f"(build {digest[:8]}) /opt/amazon/efa/lib64/libfabric.so.1.21.0"
    )


def test_sharp_and_its_plug_in_of_hpcx(tmp_path: Path) -> None:
    plugin = tmp_path / "opt/hpcx-2.18/nccl_rdma_sharp_plugin/lib/libnccl-net.so.0.0.0"
    write_library(plugin, b"\0NCCL RDMA Plugin v8\0")
    sharp = tmp_path / "opt/hpcx-2.18/sharp/lib/libsharp_coll.so.5.0.0"
    write_library(sharp, b"\0sharp_coll_init\0")
    assert {"nccl_rdma_sharp", "sharp"} == set(libraries(tmp_path))


def test_an_unknown_plug_in_is_listed_by_its_build(tmp_path: Path) -> None:
    write_library(tmp_path / "usr/local/gib/lib64/libnccl-net_internal.so", b"\0gIB\0", BUILD)
    assert libraries(tmp_path)["other_plugins"].startswith("(build ")


def test_the_content_tells_files_apart(tmp_path: Path) -> None:
    builds = set()
    for content in (b"\0one\0", b"\0two\0"):
        path = write_library(tmp_path / "usr/lib/libnccl-net.so", content)
        builds.add(libraries(tmp_path)["other_plugins"])
        path.unlink()
    assert len(builds) == 2


def test_a_linker_script_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/libnccl.so").write_text("INPUT(libnccl.so.2)\n")
    (tmp_path / "usr/lib/libfabric.so").symlink_to("nowhere")
    assert libraries(tmp_path) == {}


def test_folders_of_the_linker(tmp_path: Path) -> None:
    (tmp_path / "etc/ld.so.conf.d").mkdir(parents=True)
    (tmp_path / "etc/ld.so.conf").write_text("include ld.so.conf.d/*.conf\n/opt/lib\n")
    (tmp_path / "etc/ld.so.conf.d/site.conf").write_text("# site\n/sw/lib # ours\nrelative\n")
    folders = host_folders(tmp_path, {"LD_LIBRARY_PATH": "/first:relative:"})
    assert folders[0] == tmp_path / "first"
    assert {tmp_path / "sw/lib", tmp_path / "opt/lib"} <= set(folders)
    assert not [folder for folder in folders if "relative" in folder.name]
