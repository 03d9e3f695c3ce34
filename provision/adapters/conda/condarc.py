"""Mirrors that conda's own configuration names.

conda-docs, "Using the .condarc conda configuration file": `channel_alias` is the address under
which channel names are looked up, `custom_channels` maps single names to such addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from provision.core.mirrors import ALL_CHANNELS
from provision.core.yaml_text import YamlError, parse_yaml

SITE_FILES = (Path("/etc/conda/.condarc"), Path("/etc/conda/condarc"))
USER_FILES = (".condarc", ".conda/.condarc", ".config/conda/.condarc", ".config/conda/condarc")


def condarc_files(environ: Mapping[str, str], home: Path) -> list[Path]:
    """The existing files, the user's before the site's."""
    candidates = [home / name for name in USER_FILES]
    if environ.get("CONDARC"):
        candidates.insert(0, Path(environ["CONDARC"]))
    return [path for path in (*candidates, *SITE_FILES) if path.is_file()]


def condarc_mirrors(files: list[Path]) -> dict[str, str]:
    """Channel names, or `*` for all, with the addresses that stand for them; the first file that
    names one decides. A file that cannot be read has none."""
    mirrors: dict[str, str] = {}
    for path in files:
        try:
            content = parse_yaml(path.read_bytes())
        except (OSError, YamlError):
            continue
        if not isinstance(content, dict):
            continue
        alias = content.get("channel_alias")
        if isinstance(alias, str):
            mirrors.setdefault(ALL_CHANNELS, alias)
        custom = content.get("custom_channels")
        if isinstance(custom, dict):
            for name, address in custom.items():
                if isinstance(address, str):
                    mirrors.setdefault(str(name), f"{address.rstrip('/')}/{name}")
    return mirrors
