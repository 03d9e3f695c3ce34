"""The host's Python as a package: which files are packaged.

Running it is tested in tests/integration.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from provision.channel import host_python as channel


@pytest.mark.parametrize("path", [
    "test/test_os.py", "json/__pycache__/decoder.cpython-311.pyc", "site-packages/pip/x.py", "dist-packages/apt.py", "tkinter/ttk.py",
    "lib-dynload/_tkinter.cpython-311-x86_64-linux-gnu.so", "config-3.11-x86_64-linux-gnu/libpython3.11.a", "EXTERNALLY-MANAGED",
    "idlelib/run.py", "turtle.py", "ensurepip/_bundled/pip.whl", "ctypes/test/x.py", "unittest/tests/x.py",
])  # fmt: skip
def test_files_left_out(path: str) -> None:
    assert channel.LEFT_OUT.search(path)


@pytest.mark.parametrize(
    "path",
    [
        "os.py",
        "json/decoder.py",
        "lib-dynload/_ssl.cpython-311-x86_64-linux-gnu.so",
        "unittest/case.py",
        "doctest.py",
        "config.py",
    ],
)
def test_files_kept(path: str) -> None:
    assert not channel.LEFT_OUT.search(path)


@pytest.mark.parametrize(
    "name",
    [
        "libc.so.6",
        "libm.so.6",
        "ld-linux-x86-64.so.2",
        "libpthread.so.0",
        "libdl.so.2",
        "libresolv.so.2",
    ],
)
def test_glibc_comes_from_the_host(name: str) -> None:
    assert channel.GLIBC.match(name)


@pytest.mark.parametrize(
    "name",
    [
        "libcrypto.so.3",
        "libcrypt.so.1",
        "libmd.so.0",
        "libz.so.1",
        "libuuid.so.1",
        "libnsl.so.2",
        "libncursesw.so.6",
    ],
)
def test_all_other_files_are_packaged(name: str) -> None:
    assert not channel.GLIBC.match(name)


def test_sysconfig_follows_the_environment(tmp_path: Path) -> None:
    table = tmp_path / "_sysconfigdata__linux_x86_64-linux-gnu.py"
    table.write_text(
        "build_time_vars = {'LIBDIR': '/opt/py/lib', 'prefix': '/opt/py', 'CC': 'gcc', 'N': 3, 'OTHER': '/opt/python'}\n"
    )
    channel._make_sysconfig_relocatable(tmp_path, Path("/opt/py"))
    assert "/opt/py/" not in table.read_text()
    answers: dict[str, dict[str, object]] = {}
    exec(table.read_text(), answers)
    import sys

    assert answers["build_time_vars"] == {
        "LIBDIR": f"{sys.base_prefix}/lib",
        "prefix": sys.base_prefix,
        "CC": "gcc",
        "N": 3,
        "OTHER": "/opt/python",
    }


def test_debian_python_searches_site_packages(tmp_path: Path) -> None:
    (tmp_path / "site.py").write_text('sitepackages.append("local/lib/dist-packages")\n')
    (tmp_path / "sysconfig.py").write_text(
        "'purelib': '{base}/local/lib/python{py_version_short}/dist-packages', '{base}/lib/python3/dist-packages'\n"
    )
    channel._use_site_packages(tmp_path)
    assert (tmp_path / "sysconfig.py").read_text().count(
        "{base}/lib/python{py_version_short}/site-packages"
    ) == 2
    assert "site-packages" in (tmp_path / "dist-packages" / "provision.pth").read_text()


def test_other_pythons_are_unchanged(tmp_path: Path) -> None:
    (tmp_path / "site.py").write_text("x = 1\n")
    channel._use_site_packages(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["site.py"]
