"""What `provision --version` prints."""

from __future__ import annotations

from provision import __version__, catalog
from provision.cli.console import Console
from provision.core import notices


def version_text() -> str:
    """The version, and which facts are in use. Warns of a user's facts that cannot be used."""
    notices.listen(Console().warn)
    return f"provision, version {__version__}\n{catalog.edition()}"
