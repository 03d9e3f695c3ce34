"""Settings of a user or a site: settings.yml in the configuration folder, and the variables that
stand for options.

Today these are mirrors: the file has `mirrors:` with a list of what `--mirror` takes; relative
paths start from the file's folder.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from provision.core.errors import InvalidSpec
from provision.core.mirrors import (
    ALL_CHANNELS,
    MirrorSetting,
    merge_settings,
    parse_mirror,
    path_from_url,
)
from provision.core.yaml_text import YamlError, parse_yaml

FILE = "settings.yml"
CONFIG = "PROVISION_CONFIG"
MIRRORS = "PROVISION_MIRRORS"
CHANNEL_ALIAS = "PROVISION_CHANNEL_ALIAS"
KEYS = ("mirrors",)


def mirror_settings(
    options: Sequence[str], alias: str | None, environ: Mapping[str, str]
) -> tuple[MirrorSetting, ...]:
    """Mirrors from the command line, else from variables, else from the user's file, else from the
    site's.

    options: values of --mirror. alias: the value of --channel-alias.
    """
    directory = Path.cwd()
    from_options = [parse_mirror(text, directory) for text in options]
    if alias:
        from_options.append(_alias_setting(alias, directory))
    from_variables = [parse_mirror(text, directory) for text in environ.get(MIRRORS, "").split()]
    if environ.get(CHANNEL_ALIAS):
        from_variables.append(_alias_setting(environ[CHANNEL_ALIAS], directory))
    from_files = [_read_mirrors(path) for path in settings_files(environ)]
    return merge_settings(from_options, from_variables, *from_files)


def _alias_setting(text: str, directory: Path) -> MirrorSetting:
    """A mirror of all channel names. It is a URL, seldom a folder: a folder that does not exist is
    a typing error, not an outage."""
    setting = parse_mirror(f"{ALL_CHANNELS}={text}", directory)
    if "://" not in text and not path_from_url(setting.url).is_dir():
        raise InvalidSpec(
            f"{path_from_url(setting.url)} does not exist.",
            advice="A channel alias is a URL (https://…), or a folder of channels.",
        )
    return setting


def settings_files(environ: Mapping[str, str]) -> tuple[Path, ...]:
    """The existing settings files, the user's before the site's; PROVISION_CONFIG names the one to
    use instead."""
    import platformdirs

    if environ.get(CONFIG):
        path = Path(environ[CONFIG]).absolute()
        if not path.is_file():
            raise InvalidSpec(f"{path}, which {CONFIG} names, does not exist.")
        return (path,)
    default_paths = (
        platformdirs.user_config_path("provision") / FILE,
        platformdirs.site_config_path("provision") / FILE,
    )
    return tuple(path for path in default_paths if path.is_file())


def _read_mirrors(path: Path) -> list[MirrorSetting]:
    try:
        content = parse_yaml(path.read_text(encoding="utf-8")) or {}
    except UnicodeDecodeError as error:
        raise InvalidSpec(f"{path} is not YAML: it is not UTF-8.") from error
    except YamlError as error:
        raise InvalidSpec(f"{path} is not YAML: {error.problem}.") from error
    advice = f"Its keys: {', '.join(KEYS)}."
    if not isinstance(content, dict):
        raise InvalidSpec(f"{path} is not a mapping.", advice=advice)
    unknown_keys = sorted(str(key) for key in content if key not in KEYS)
    if unknown_keys:
        raise InvalidSpec(f"{path} has unknown keys: {', '.join(unknown_keys)}.", advice=advice)
    rows = content.get("mirrors") or []
    if not isinstance(rows, list) or not all(isinstance(row, str) for row in rows):
        raise InvalidSpec(
            f"{path}: `mirrors` is not a list of what --mirror takes.",
            advice="Write `- NAME_OR_URL=URL` or `- DIR`.",
        )
    return [parse_mirror(row, path.parent) for row in rows]
