"""The packages of a base image, as its package manager wrote them down: dpkg's (also distroless images') and apk's.

rpm's database is a binary one of three kinds, and is not read; that it is there is said.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from provision.core.sbom import SbomPackage
from provision.image.image_files import Within

STATUS, STATUS_FOLDER, APK = "var/lib/dpkg/status", "var/lib/dpkg/status.d/", "lib/apk/db/installed"
OS_RELEASE = ("etc/os-release", "usr/lib/os-release")
FILES = re.compile(
    rf"{STATUS}|{STATUS_FOLDER}[^/]+(?<!\.md5sums)|(?:usr/)?{APK}|{'|'.join(OS_RELEASE)}|usr/share/doc/[^/]+(?:/copyright)?"
)
RPM = re.compile(r"(?:var/lib/rpm|usr/lib/sysimage/rpm)/(?:Packages(?:\.db)?|rpmdb\.sqlite)")
LIMIT = 64 << 20  # a whole Debian's status is 10 MB


def base_packages(found: Within) -> tuple[SbomPackage, ...]:
    """What the base's package manager says is installed. Its packages are named by what they are, so that no two are the same."""
    system = _os_release(found)
    parts = [*_dpkg(found, system), *_apk(found, system)]
    return tuple({part.key: part for part in parts}.values())


def unread(found: Within) -> tuple[str, ...]:
    """What of a base is not in its bill, in words."""
    if found.seen:
        return (f"the base's rpm database (/{min(found.seen)}), so its packages are not listed",)
    if not any(
        FILES.fullmatch(path) and not path.startswith(("usr/share", *OS_RELEASE))
        for path in found.files
    ):
        return (
            "the base has no package database that is known here (dpkg, apk), so its files are not listed",
        )
    return ()


def _os_release(found: Within) -> Mapping[str, str]:
    text = next(
        (content for path in OS_RELEASE if (content := found.get(path)) is not None), b""
    ).decode(errors="replace")
    pairs = (line.partition("=") for line in text.splitlines() if "=" in line)
    return {key.strip(): value.strip().strip("\"'") for key, _, value in pairs}


def _distribution(system: Mapping[str, str], default: str) -> tuple[str, str]:
    """The namespace and the `distro` of package addresses: debian and debian-12."""
    name = system.get("ID") or default
    return name, "-".join(filter(None, (name, system.get("VERSION_ID"))))


def _stanzas(content: bytes) -> Iterator[Mapping[str, str]]:
    """Paragraphs of `key: value`; of a value only its first line, which is all that is asked for."""
    for paragraph in re.split(r"\n\s*\n", content.decode(errors="replace")):
        lines = (
            line.partition(":") for line in paragraph.splitlines() if line and not line[0].isspace()
        )
        fields = {key: value.strip() for key, _, value in lines}
        if fields:
            yield fields


def _dpkg(found: Within, system: Mapping[str, str]) -> Iterator[SbomPackage]:
    for path in sorted(found.files):
        if path == STATUS or path.startswith(STATUS_FOLDER):
            for fields in _stanzas(found.files[path]):
                installed = fields.get("Status", "install ok installed").split()[-1:] == [
                    "installed"
                ]
                if installed and fields.get("Package") and fields.get("Version"):
                    yield _deb(fields, found, system)


def _deb(fields: Mapping[str, str], found: Within, system: Mapping[str, str]) -> SbomPackage:
    name, version = fields["Package"], fields["Version"]
    kind, distribution = _distribution(system, "debian")
    said = _copyright(found.get(f"usr/share/doc/{name}/copyright") or b"")
    return _part(
        "deb",
        kind,
        name,
        version,
        {"arch": fields.get("Architecture", ""), "distro": distribution},
        said,
    )


def _copyright(content: bytes) -> str:
    """The licenses that a machine-readable copyright file names, in Debian's words; nothing where it is prose."""
    text = content.decode(errors="replace")
    if not text.lstrip().startswith("Format:"):
        return ""
    return ", ".join(
        dict.fromkeys(
            name.strip() for name in re.findall(r"^License:[ \t]*(\S.*)$", text, re.MULTILINE)
        )
    )


def _apk(found: Within, system: Mapping[str, str]) -> Iterator[SbomPackage]:
    kind, distribution = _distribution(system, "alpine")
    for path in (APK, f"usr/{APK}"):
        for fields in _stanzas(found.files.get(path, b"")):
            if fields.get("P") and fields.get("V"):
                qualifiers = {"arch": fields.get("A", ""), "distro": distribution}
                yield _part("apk", kind, fields["P"], fields["V"], qualifiers, fields.get("L", ""))


def _part(
    manager: str, namespace: str, name: str, version: str, qualifiers: Mapping[str, str], said: str
) -> SbomPackage:
    from packageurl import PackageURL

    known = {key: value for key, value in qualifiers.items() if value}
    purl = PackageURL(manager, namespace, name, version, known).to_string()
    return SbomPackage(
        key=purl, manager=manager, name=name, version=version, purl=purl, license=said
    )
