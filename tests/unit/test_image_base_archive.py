"""Bases on disk and places for images: no engine takes part."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import subprocess
import tarfile
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from provision.core.errors import (
    IntegrityError,
    InUse,
    InvalidSpec,
    ProvisionError,
    ToolMissing,
)
from provision.core.types import Image, Layer
from provision.image import base, base_archive, docker, export, layers, oci_layout
from tests.unit.test_image_layers import archive, digest, ignore

ENVIRONMENT = ["PATH=/bin", "LANG=C"]


class Silent:
    def say(self, text: str) -> None: ...

    warn = say

    def meter(self, title: str, total: int) -> Silent:
        return self

    def advance(self, amount: int) -> None: ...

    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *exc: object) -> None: ...


LIBC = b"\0GNU C Library (Debian GLIBC 2.36-9) stable release version 2.36.\n"
LAYERS = [
    archive(("bin/sh", b"shell"), ("lib/x86_64-linux-gnu/libc.so.6", LIBC)),
    archive(("etc/os-release", b"debian")),
]


def config(architecture: str = "amd64", parts: list[bytes] | None = None) -> bytes:
    rootfs = {"type": "layers", "diff_ids": [digest(layer) for layer in parts or LAYERS]}
    return json.dumps(
        {
            "os": "linux",
            "architecture": architecture,
            "config": {"Env": ENVIRONMENT},
            "rootfs": rootfs,
        }
    ).encode()


def layout(
    folder: Path,
    *,
    nested: bool = False,
    platforms: tuple[str, ...] = ("amd64",),
    name: str | None = "lab:12",
) -> Path:
    """An OCI image layout as other tools write it; nested: an index in the index, as buildx has it."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def put(content: bytes, media: str, **more: Any) -> dict[str, Any]:
        value = digest(content)
        (blobs / value.removeprefix("sha256:")).write_bytes(content)
        return {"mediaType": media, "digest": value, "size": len(content), **more}

    rows = []
    for platform in platforms:
        parts = [put(layer, oci_layout.LAYER) for layer in LAYERS]
        manifest = {
            "schemaVersion": 2,
            "mediaType": oci_layout.MANIFEST,
            "config": put(config(platform), oci_layout.CONFIG),
            "layers": parts,
        }
        given = (
            {"platform": {"os": "linux", "architecture": platform}} if len(platforms) > 1 else {}
        )
        rows.append(put(json.dumps(manifest).encode(), oci_layout.MANIFEST, **given))
    if nested:
        rows = [
            put(
                json.dumps(
                    {"schemaVersion": 2, "mediaType": oci_layout.INDEX, "manifests": rows}
                ).encode(),
                oci_layout.INDEX,
            )
        ]
    if name:
        rows[0]["annotations"] = {"org.opencontainers.image.ref.name": name}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": rows}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    return folder


def docker_archive(path: Path, tags: object = None) -> Path:
    names = [f"layer{index}/layer.tar" for index in range(len(LAYERS))]
    manifest = json.dumps([{"Config": "config.json", "RepoTags": tags, "Layers": names}]).encode()
    members = [
        *zip(names, LAYERS, strict=True),
        ("config.json", config()),
        ("manifest.json", manifest),
    ]
    path.write_bytes(archive(*members))
    return path


def layers_of(base: Any, folder: Path) -> list[bytes]:
    folder.mkdir()
    made = layers.write_base(base.archive(), base.diff_ids, folder, ignore)
    return [(folder / layer.digest.removeprefix("sha256:")).read_bytes() for layer in made]


@pytest.mark.parametrize(
    "kind", ["oci", "nested", "platforms", "oci-archive", "docker-archive", "gzip"]
)
def test_a_base_on_disk_is_read_whole(tmp_path: Path, kind: str) -> None:
    if kind == "docker-archive":
        reference = f"docker-archive:{docker_archive(tmp_path / 'base.tar', ['lab:12'])}"
    else:
        folder = layout(
            tmp_path / "base",
            nested=kind == "nested",
            platforms=("arm64", "amd64") if kind == "platforms" else ("amd64",),
        )
        reference = f"oci:{folder}"
    if kind in ("oci-archive", "gzip"):
        with tarfile.open(tmp_path / "base.tar", "w:gz" if kind == "gzip" else "w") as whole:
            whole.add(folder, ".")
        reference = f"oci-archive:{tmp_path / 'base.tar'}"
    base = base_archive.read_disk_base(reference)
    assert (base.digest, base.environment) == (digest(config()), tuple(ENVIRONMENT))
    assert base.reference == ("lab:12" if kind != "platforms" else base.digest)
    assert layers_of(base, tmp_path / "blobs") == LAYERS


def test_the_place_of_a_base_is_not_in_its_name(tmp_path: Path) -> None:
    assert base_archive.read_disk_base(
        f"oci:{layout(tmp_path / 'a', name=None)}"
    ).reference == digest(config())


@pytest.mark.parametrize("tags", [5, True, "lab:12", {"lab:12": 1}, [5, None], []])
def test_an_archive_whose_tags_are_none_is_read_by_its_digest(tmp_path: Path, tags: object) -> None:
    base = base_archive.read_disk_base(
        f"docker-archive:{docker_archive(tmp_path / 'base.tar', tags)}"
    )
    assert (base.reference, layers_of(base, tmp_path / "blobs")) == (digest(config()), LAYERS)


def broken(folder: Path, what: str) -> str:
    made = layout(folder / "base", platforms=("arm64",) if what == "platform" else ("amd64",))
    blob = oci_layout.blob(made, digest(LAYERS[1]))
    if what == "nothing":
        return f"oci:{folder / 'nowhere'}"
    if what == "lacks":
        blob.unlink()
    if what == "index":
        (made / "index.json").write_text("{")
    if what == "manifest":
        row = json.loads((made / "index.json").read_text())["manifests"][0]
        oci_layout.blob(made, row["digest"]).write_text("{}")
    if what == "config":
        oci_layout.blob(made, digest(config())).write_bytes(config().replace(b"LANG=C", b"LANG=D"))
    if what == "archive":
        (folder / "file").write_bytes(b"not a tar archive")
        return f"docker-archive:{folder / 'file'}"
    if what == "escape":
        index = json.loads((made / "index.json").read_text())
        index["manifests"][0]["digest"] = "sha256:../../../../../../../../etc/passwd"
        (made / "index.json").write_text(json.dumps(index))
    return f"oci:{made}"


@pytest.mark.parametrize(
    ("what", "error", "words"),
    [
        ("nothing", ToolMissing, "not a folder with an OCI image layout"),
        (
            "platform",
            InvalidSpec,
            "linux/arm64, but the environment's packages are for linux/amd64",
        ),
        ("lacks", IntegrityError, "lacks its layer"),
        ("index", IntegrityError, "is not JSON"),
        ("manifest", IntegrityError, "does not match its digest"),
        ("archive", IntegrityError, "cannot be read as an archive"),
        ("escape", IntegrityError, "digest: .* does not match"),
        ("config", IntegrityError, "does not match its digest"),
    ],
)
def test_what_is_no_whole_base_is_refused(
    tmp_path: Path, what: str, error: type[ProvisionError], words: str
) -> None:
    with pytest.raises(error, match=words):
        base_archive.read_disk_base(broken(tmp_path, what))


GOOD = {"os": "linux", "architecture": "amd64", "rootfs": {"diff_ids": [digest(LAYERS[0])]}}
ENTRY = {"Config": "c.json", "Layers": ["l.tar"], "RepoTags": ["a:b"]}


@pytest.mark.parametrize(
    ("document", "manifest"),
    [
        ({"os": "linux", "architecture": "amd64"}, [ENTRY]),
        ({**GOOD, "rootfs": {"diff_ids": [5]}}, [ENTRY]),
        ({**GOOD, "rootfs": {"diff_ids": []}}, [ENTRY]),
        ({**GOOD, "config": {"Env": "PATH=/bin"}}, [ENTRY]),
        ({**GOOD, "config": []}, [{**ENTRY, "Layers": ["l.tar", "l.tar"]}]),
        ([], [ENTRY]),
        (GOOD, [{"Config": "c.json"}]),
        (GOOD, [{**ENTRY, "Layers": None}]),
        (GOOD, [None]),
        (GOOD, 5),
        (GOOD, None),
    ],
)
def test_documents_of_an_archive_that_say_nothing(
    tmp_path: Path, document: object, manifest: object
) -> None:
    members = (
        ("l.tar", LAYERS[0]),
        ("c.json", json.dumps(document).encode()),
        ("manifest.json", json.dumps(manifest).encode()),
    )
    (tmp_path / "x.tar").write_bytes(archive(*members))
    with pytest.raises(IntegrityError, match=r"is not a complete image"):
        base_archive.read_disk_base(f"docker-archive:{tmp_path / 'x.tar'}")


ZEROS = "sha256:" + "0" * 64


@pytest.mark.parametrize(
    "index",
    [
        [],
        {},
        {"manifests": None},
        {"manifests": [5]},
        {"manifests": [{"mediaType": oci_layout.MANIFEST}]},
        {"manifests": [{"mediaType": oci_layout.MANIFEST, "digest": 5}]},
        {
            "manifests": [
                {"mediaType": oci_layout.MANIFEST, "digest": ZEROS, "platform": {"os": "linux"}}
            ]
        },
        {"manifests": [{"mediaType": oci_layout.MANIFEST, "digest": ZEROS, "platform": 5}]},
    ],
)
def test_an_index_that_says_nothing(tmp_path: Path, index: object) -> None:
    (layout(tmp_path / "x") / "index.json").write_text(json.dumps(index))
    with pytest.raises((IntegrityError, InvalidSpec), match=r"not a complete image"):
        base_archive.read_disk_base(f"oci:{tmp_path / 'x'}")


def test_a_document_without_an_end_is_not_read(tmp_path: Path) -> None:
    """400 MB of zeros, which are nowhere."""
    member = tarfile.TarInfo("manifest.json")
    member.size = 400 << 20
    with (tmp_path / "x.tar").open("wb") as file:
        file.write(member.tobuf(tarfile.USTAR_FORMAT))
        file.truncate((400 << 20) + 2048)
    tracemalloc.start()
    try:
        with pytest.raises(
            IntegrityError, match=r"manifest\.json is larger than such a document can be"
        ):
            base_archive.read_disk_base(f"docker-archive:{tmp_path / 'x.tar'}")
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()


def long_names(kind: bytes, size: int, count: int) -> bytes:
    member = tarfile.TarInfo("x")
    member.type, member.size = kind, size
    return (
        (member.tobuf(tarfile.USTAR_FORMAT) + bytes(-(-size // 512) * 512)) * count
        + tarfile.TarInfo("a").tobuf()
        + bytes(1024)
    )


@pytest.mark.parametrize("kind", [b"x", b"g", b"L", b"K"])
@pytest.mark.parametrize(("size", "count"), [(2 << 20, 1), (10, 3000)])
def test_names_that_cost_memory_are_no_archive(
    tmp_path: Path, kind: bytes, size: int, count: int
) -> None:
    content = long_names(kind, size, count)
    (tmp_path / "x.tar").write_bytes(content)
    with pytest.raises(IntegrityError, match="cannot be read as an archive"):
        base_archive.read_disk_base(f"docker-archive:{tmp_path / 'x.tar'}")
    with pytest.raises(IntegrityError, match="is not a tar archive"):
        base.check_base("evil", [tmp_path / "x.tar"], "2.28")
    with pytest.raises(IntegrityError, match="cannot be read"):
        layers.write_base([content], [ZEROS], tmp_path, ignore)


def test_an_archive_that_breaks_off_in_its_compression(tmp_path: Path) -> None:
    (tmp_path / "x.tar").write_bytes(
        gzip.compress(archive(("manifest.json", os.urandom(9000))))[:-4000]
    )
    with pytest.raises(IntegrityError, match="cannot be read as an archive"):
        base_archive.read_disk_base(f"docker-archive:{tmp_path / 'x.tar'}")


def test_a_flipped_bit_in_a_layer_is_refused(tmp_path: Path) -> None:
    made = layout(tmp_path / "base")
    blob = oci_layout.blob(made, digest(LAYERS[0]))
    content = bytearray(blob.read_bytes())
    content[600] ^= 1
    blob.write_bytes(content)
    with pytest.raises(IntegrityError, match="does not hold its layer"):
        layers_of(base_archive.read_disk_base(f"oci:{made}"), tmp_path / "blobs")


@pytest.fixture
def image(tmp_path: Path) -> Image:
    made = layout(tmp_path / "image")
    manifest = json.loads((made / "index.json").read_text())["manifests"][0]["digest"]
    found = tuple(Layer(group="base", digest=digest(layer), size=len(layer)) for layer in LAYERS)
    return Image(
        reference="provision/toy:1", layout=made, manifest_digest=manifest, image_id=digest(config()), base="lab:12",
        base_digest=digest(b""), lock_sha256="0" * 64, layers=found,
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["oci", "oci-archive", "docker-archive"])
def test_what_is_written_is_the_image_and_can_be_a_base_again(
    image: Image, tmp_path: Path, kind: str
) -> None:
    to = export.parse_output(f"{kind}:{tmp_path / 'out' / 'toy'}")
    for _ in range(2):  # the second replaces the first
        export.export_image(image, to, Silent())
    base = base_archive.read_disk_base(str(to))
    assert base.digest == image.image_id
    assert base.reference == ("provision/toy:1" if kind == "docker-archive" else "lab:12")
    assert layers_of(base, tmp_path / "blobs") == LAYERS
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["toy"]


@pytest.mark.parametrize("kind", ["oci", "oci-archive", "docker-archive"])
def test_what_is_written_has_the_names_that_were_asked_for(
    image: Image, tmp_path: Path, kind: str
) -> None:
    to = export.parse_output(f"{kind}:{tmp_path / 'toy'}")
    export.export_image(image, to, Silent(), ["lab.org:5000/ml/toy:2"])
    base = base_archive.read_disk_base(str(to))
    assert (base.reference, base.digest) == ("lab.org:5000/ml/toy:2", image.image_id)
    export.export_image(image, to, Silent(), ["lab/toy:2", "lab/toy:latest"])
    if kind == "oci":
        rows = json.loads((tmp_path / "toy" / "index.json").read_bytes())["manifests"]
        assert [row["annotations"][oci_layout.NAME] for row in rows] == [
            "lab/toy:2",
            "lab/toy:latest",
        ]
        assert {row["digest"] for row in rows} == {image.manifest_digest}
    assert (
        base_archive.read_disk_base(str(to)).digest == image.image_id
    )  # one image, whatever it is called


@pytest.mark.parametrize(
    "text,name",
    [
        ("toy", "toy:latest"),
        ("ml/toy:2.3-cuda_12", "ml/toy:2.3-cuda_12"),
        ("Host.lab:5000/toy", "Host.lab:5000/toy:latest"),
    ],
)
def test_names_of_images(text: str, name: str) -> None:
    assert base.parse_tag(text) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Toy",
        "toy:",
        "toy:-x",
        "a//b",
        f"toy@sha256:{'0' * 64}",
        f"sha256:{'0' * 64}",
        "toy tag",
        "-toy",
        "toy:x:y",
    ],
)
def test_what_is_no_name_of_an_image(text: str) -> None:
    with pytest.raises(InvalidSpec, match="is not a valid name for an image"):
        base.parse_tag(text)


def test_an_archive_is_the_same_bytes_each_time(image: Image, tmp_path: Path) -> None:
    sums = set()
    for name in ("a", "b"):
        export.export_image(image, export.parse_output(f"oci-archive:{tmp_path / name}"), Silent())
        sums.add(hashlib.sha256((tmp_path / name).read_bytes()).hexdigest())
    assert len(sums) == 1
    with tarfile.open(fileobj=io.BytesIO((tmp_path / "a").read_bytes())) as whole:
        assert whole.getnames()[:2] == ["oci-layout", "index.json"]


@pytest.mark.parametrize("said", [None, {}])
def test_an_image_whose_config_sets_nothing_is_known_by_its_layers(
    image: Image, said: object
) -> None:
    """In an engine, which says every setting by its name."""
    document = {**json.loads(config()), "config": said}
    content = json.dumps(document).encode()
    mine = replace(image, image_id=digest(content))
    oci_layout.blob(image.layout, mine.image_id).write_bytes(content)
    there = {
        "RootFS": {"Layers": [layer.digest for layer in image.layers]},
        "Config": {"Env": None, "Labels": {}, "User": ""},
    }
    assert docker.is_same(there, mine)
    assert not docker.is_same({**there, "Config": {"User": "root"}}, mine)


def test_what_is_no_image_is_never_replaced(image: Image, tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "thesis.tex").write_text("years")
    for place in (f"oci:{tmp_path / 'home'}", f"docker-archive:{tmp_path / 'home'}"):
        with pytest.raises(InUse, match="exists and is not"):
            export.export_image(image, export.parse_output(place), Silent())
    assert (tmp_path / "home" / "thesis.tex").read_text() == "years"


def test_a_layout_of_several_images_is_never_replaced(image: Image, tmp_path: Path) -> None:
    several = layout(tmp_path / "several", platforms=("amd64", "arm64"))
    with pytest.raises(InUse, match="a layout of several images"):
        export.export_image(image, export.parse_output(f"oci:{several}"), Silent())
    assert len(json.loads((several / "index.json").read_bytes())["manifests"]) == 2


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def of_several_platforms(folder: Path) -> None:
    """Under one index, which is the only one that the layout names."""
    layout(folder, platforms=("amd64", "arm64"), nested=True)


def with_index(text: str) -> Callable[[Path], None]:
    return lambda folder: put_index(folder, text)


def put_index(folder: Path, text: str) -> None:
    (layout(folder) / "index.json").write_text(text)


def without_index(folder: Path) -> None:
    (layout(folder) / "index.json").unlink()


def beside(name: str) -> Callable[[Path], object]:
    return lambda folder: (layout(folder) / name).write_bytes(b"years")


@pytest.mark.parametrize(
    ("there", "words"),
    [
        (of_several_platforms, "is a layout of several images"),
        (without_index, "has an index that cannot be read"),
        *(
            (with_index(text), "has an index that cannot be read")
            for text in ("{", "[]", "{}", '{"manifests": 5}', '{"manifests": [5]}')
        ),
        (with_index('{"manifests": ' + "[" * 100_000), "has an index that cannot be read"),
        (beside("blobs/thesis.tex"), r"holds more than an image layout, blobs/thesis\.tex"),
        (
            beside("blobs/sha256/thesis.tex"),
            r"holds more than an image layout, blobs/sha256/thesis\.tex",
        ),
        (beside(f"blobs/{'0' * 64}"), "holds more than an image layout, blobs/0000"),
    ],
)
def test_a_layout_that_may_hold_more_than_an_image_stays(
    image: Image, tmp_path: Path, there: Callable[[Path], None], words: str
) -> None:
    there(tmp_path / "there")
    before = contents(tmp_path / "there")
    with pytest.raises(InUse, match=words):
        export.export_image(image, export.parse_output(f"oci:{tmp_path / 'there'}"), Silent())
    assert contents(tmp_path / "there") == before


def test_a_place_where_a_file_system_is_mounted_stays_one(
    image: Image, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is empty, and a folder in it will do."""
    (tmp_path / "disk").mkdir()
    monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == tmp_path / "disk")
    with pytest.raises(InUse, match=r"is the mount point of a file system.*Choose a folder in it"):
        export.export_image(image, export.parse_output(f"oci:{tmp_path / 'disk'}"), Silent())
    assert not list((tmp_path / "disk").iterdir())
    export.export_image(image, export.parse_output(f"oci:{tmp_path / 'disk' / 'toy'}"), Silent())
    assert [path.name for path in (tmp_path / "disk").iterdir()] == ["toy"]


def test_an_empty_folder_is_a_place_for_a_layout(image: Image, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    export.export_image(image, export.parse_output(f"oci:{tmp_path / 'empty'}"), Silent())
    assert base_archive.read_disk_base(f"oci:{tmp_path / 'empty'}").digest == image.image_id


def test_what_killed_runs_had_written_of_an_archive_goes(image: Image, tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    names = [f".toy.tar.{pid}.new" for pid in (gone.pid, os.getpid(), os.getppid())] + [
        ".toy.tar.new",
        f".other.{gone.pid}.new",
    ]
    for name in names:
        (tmp_path / name).write_bytes(b"half")
    export.export_image(image, export.parse_output(f"oci-archive:{tmp_path / 'toy.tar'}"), Silent())
    assert {path.name for path in tmp_path.iterdir()} == {"image", "toy.tar", *names[2:]}


@pytest.mark.parametrize("text", ["", "oci", "oci:", "registry:x", "docker:x"])
def test_places_that_are_none(text: str) -> None:
    with pytest.raises(InvalidSpec, match="is not a destination for an image"):
        export.parse_output(text)


def test_a_place_that_holds_more_than_a_layout_stays(image: Image, tmp_path: Path) -> None:
    to = tmp_path / "out"
    export.export_image(image, export.parse_output(f"oci:{to}"), Silent())
    export.export_image(image, export.parse_output(f"oci:{to}"), Silent())
    (to / "lab.sif").write_text("Apptainer's")
    with pytest.raises(InUse, match=r"holds more than an image layout, lab\.sif"):
        export.export_image(image, export.parse_output(f"oci:{to}"), Silent())
    assert (to / "lab.sif").read_text() == "Apptainer's"


@pytest.mark.parametrize("kind", ["oci", "oci-archive"])
def test_a_place_that_is_a_link_stays_one(image: Image, tmp_path: Path, kind: str) -> None:
    """To a disk with room, perhaps; and what is written goes there each time."""
    folder = tmp_path / "links"
    folder.mkdir()
    (folder / "scratch").mkdir()
    (folder / "link").symlink_to("scratch/out")
    for _ in range(2):
        export.export_image(image, export.parse_output(f"{kind}:{folder / 'link'}"), Silent())
        assert (folder / "link").is_symlink()
    assert [path.name for path in (folder / "scratch").iterdir()] == ["out"]
    assert not list(folder.glob(".*"))
