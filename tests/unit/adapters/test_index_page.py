"""Pages of an index in both of their forms name the same files."""

import json

import pytest

from provision.adapters.uv.index_page import IndexFile, parse_page

URL = "https://index.invalid/simple/demo/"
HTML = """<!DOCTYPE html><html><head>
<meta name="pypi:repository-version" content="1.4"><base href="../../files/"></head><body>
<a href="demo-1%2Bcu121-py3-none-any.whl#sha256=00" data-requires-python="&gt;=3.9">demo (2 MB)</a>
<a href="/more/demo-2.tar.gz?token=1" data-yanked="">demo</a><a name="top">no file</a></body></html>
"""
FILES = [
    IndexFile(
        "demo-1+cu121-py3-none-any.whl",
        "https://index.invalid/files/demo-1%2Bcu121-py3-none-any.whl",
        requires_python=">=3.9",
    ),
    IndexFile("demo-2.tar.gz", "https://index.invalid/more/demo-2.tar.gz?token=1", is_yanked=True),
]
ROWS = [
    {
        "filename": "demo-1+cu121-py3-none-any.whl",
        "url": "../../files/demo-1%2Bcu121-py3-none-any.whl",
        "requires-python": ">=3.9",
        "yanked": False,
        "upload-time": "2026-03-01T23:59:59.5Z",
    },
    {
        "filename": "demo-2.tar.gz",
        "url": "/more/demo-2.tar.gz?token=1",
        "requires-python": None,
        "yanked": "",
    },
]


def page(**changes: object) -> bytes:
    return json.dumps({"meta": {"api-version": "1.4"}, "files": ROWS, **changes}).encode()


def test_both_forms() -> None:
    assert parse_page(HTML.encode(), URL) == FILES
    assert parse_page(page(), URL) == [FILES[0]._replace(uploaded="2026-03-01"), FILES[1]]


@pytest.mark.parametrize(
    "content",
    [
        page(meta={"api-version": "2.0"}),
        page(meta={}),
        page(files=["demo-1.tar.gz"]),
        page(files=[{"filename": "demo-1.tar.gz"}]),
        b"{}",
        HTML.replace("1.4", "2.0").encode(),
        b"<a href='demo-1.tar.gz'>\xff</a>",
    ],
)
def test_other_pages(content: bytes) -> None:
    with pytest.raises((ValueError, LookupError, TypeError)):
        parse_page(content, URL)
