"""The names of files of packages."""

import pytest

from provision.core.package_names import wheel_variant


@pytest.mark.parametrize(
    ("filename", "label"),
    [
        ("torch-2.9.0-cp313-cp313-manylinux_2_28_x86_64.whl", ""),
        ("torch-2.9.0-1cu-cp313-cp313-manylinux_2_28_x86_64.whl", ""),
        ("torch-2.9.0-cp313-cp313-manylinux_2_28_x86_64-cu128.whl", "cu128"),
        ("torch-2.9.0-1cu-cp313-cp313-manylinux_2_28_x86_64-x86_64_v3.whl", "x86_64_v3"),
        ("torch-2.9.0-py3-none-any-null.whl", "null"),
        ("torch-2.9.0-variants.json", ""),
        ("torch-2.9.0.tar.gz", ""),
        ("", ""),
    ],
)
def test_variant_of_a_wheel(filename: str, label: str) -> None:
    assert wheel_variant(filename) == label
