"""What a user or a site has set once: settings.yml in the configuration folder, and the variables that stand for options.

Today that is mirrors. The file says `mirrors:` and a list of what `--mirror` takes; relative paths start from the file's folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from provision.core.errors import NOT_YAML, InvalidSpec
from provision.core.mirrors import (
    ALL_CHANNELS,
    MirrorSetting,
    merge_settings,
    parse_mirror,
    path_from_url,
)

FILE = "settings.yml"
CONFIG = "PROVISION_CONFIG"
MIRRORS = "PROVISION_MIRRORS"
CHANNEL_ALIAS = "PROVISION_CHANNEL_ALIAS"
KEYS = ("mirrors",)


def mirror_settings(
    options: Sequence[str], alias: str | None, environ: Mapping[str, str]
) -> tuple[MirrorSetting, ...]:
    """What was asked for on the command line, else by variables, else in the user's file, else in the site's."""
    here = Path.cwd()
    given = [parse_mirror(text, here) for text in options] + (
        [_alias(alias, here)] if alias else []
    )
    variables = [parse_mirror(text, here) for text in environ.get(MIRRORS, "").split()]
    if environ.get(CHANNEL_ALIAS):
        variables.append(_alias(environ[CHANNEL_ALIAS], here))
    return merge_settings(given, variables, *(_in_file(path) for path in settings_files(environ)))


def _alias(text: str, here: Path) -> MirrorSetting:
    """A mirror of all channel names. It is a URL, seldom a folder: one that is not there is a slip of the pen, not an outage."""
    found = parse_mirror(f"{ALL_CHANNELS}={text}", here)
    if "://" not in text and not path_from_url(found.url).is_dir():
        raise InvalidSpec(
            f"{path_from_url(found.url)} is not there.",
            advice="A channel alias is a URL (https://…), or a folder of channels.",
        )
    return found


def settings_files(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The settings files there are, the user's before the site's; PROVISION_CONFIG names the one to use instead."""
    import platformdirs

    if environ.get(CONFIG):
        path = Path(environ[CONFIG]).absolute()
        if not path.is_file():
            raise InvalidSpec(f"{path}, which {CONFIG} names, is not there.")
        return (path,)
    usual = (
        platformdirs.user_config_path("provision") / FILE,
        platformdirs.site_config_path("provision") / FILE,
    )
    return tuple(path for path in usual if path.is_file())


def _in_file(path: Path) -> list[MirrorSetting]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, *NOT_YAML) as error:
        raise InvalidSpec(f"{path} is not YAML: {' '.join(str(error).split())}.") from error
    if not isinstance(content, dict) or (
        unknown := sorted(str(key) for key in content if key not in KEYS)
    ):
        said = f"says {', '.join(unknown)}" if isinstance(content, dict) else "is not a mapping"
        raise InvalidSpec(f"{path} {said}.", advice=f"It may say: {', '.join(KEYS)}.")
    rows = content.get("mirrors") or []
    if not isinstance(rows, list) or not all(isinstance(row, str) for row in rows):
        raise InvalidSpec(
            f"{path}: `mirrors` is not a list of what --mirror takes.",
            advice="Write `- NAME_OR_URL=URL` or `- DIR`.",
        )
    return [parse_mirror(row, path.parent) for row in rows]
