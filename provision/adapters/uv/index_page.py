"""The files that a page of a package index names, in both of its forms: HTML (PEP 503) and JSON
(PEP 691)."""

from __future__ import annotations

import json
from typing import NamedTuple
from urllib.parse import unquote, urljoin

from provision.core.package_names import url_filename

# The one major version of these pages (PEP 629).
_MAJOR = "1"


class IndexFile(NamedTuple):
    """A file, with the address from which it is downloaded.

    uploaded: YYYY-MM-DD, empty if the index does not say (PEP 700).
    """

    filename: str
    url: str
    requires_python: str = ""
    is_yanked: bool = False
    uploaded: str = ""


def parse_page(content: bytes, url: str) -> list[IndexFile]:
    """The files of the page at a URL. Raises ValueError, LookupError or TypeError if it is no such
    page, or one of a later major version."""
    if content.lstrip().startswith(b"{"):
        return _from_json(content, url)
    return _from_html(content.decode(), url)


def _from_json(content: bytes, url: str) -> list[IndexFile]:
    page = json.loads(content)
    _check_version(page["meta"]["api-version"])
    return [
        IndexFile(
            filename=file["filename"],
            url=urljoin(url, file["url"]),
            requires_python=file.get("requires-python") or "",
            is_yanked=file.get("yanked", False) is not False,  # or the reason, which may be empty
            uploaded=(file.get("upload-time") or "")[:10],
        )
        for file in page["files"]
    ]


def _check_version(version: str) -> None:
    if version.partition(".")[0] != _MAJOR:
        raise ValueError(f"version {version} of an index's pages")


def _from_html(content: str, url: str) -> list[IndexFile]:
    """Names of files are those of their addresses: pages of wheels also write sizes into the text
    of a link."""
    from html.parser import HTMLParser

    files = []

    class _Page(HTMLParser):
        base = url

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            values = dict(attrs)
            address = urljoin(self.base, values.get("href") or "").partition("#")[0]
            if tag == "meta" and values.get("name") == "pypi:repository-version":
                _check_version(values.get("content") or "")
            elif tag == "base" and "href" in values:
                self.base = address
            elif tag == "a" and "href" in values:
                files.append(
                    IndexFile(
                        filename=unquote(url_filename(address)),
                        url=address,
                        requires_python=values.get("data-requires-python") or "",
                        is_yanked="data-yanked" in values,
                    )
                )

    page = _Page()
    page.feed(content)
    page.close()
    return files
