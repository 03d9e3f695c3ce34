"""What `provision pack` prints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from provision_runtime.report.text import format_bytes

if TYPE_CHECKING:
    from provision.cluster.pack import Pack


def pack_json(pack: Pack, is_new: bool) -> dict[str, object]:
    return {"image": pack.image, "made": is_new, **pack.sidecar}


def pack_lines(pack: Pack, is_new: bool) -> list[str]:
    sidecar = pack.sidecar
    needs = [sidecar["platform"], f"glibc {sidecar['glibc_min']}"]
    if sidecar["driver_min"]:
        needs.append(f"driver {sidecar['driver_min']}")
    unpacked = f"{format_bytes(sidecar['unpacked_size'])} in {sidecar['unpacked_files']} files"
    return [
        f"{'packed' if is_new else 'already packed'}: {pack.image}",
        f"size    {format_bytes(sidecar['size'])}; unpacked {unpacked}",
        f"sha256  {sidecar['sha256']}",
        f"path    {sidecar['install_path']}",
        f"needs   {', '.join(needs)}",
    ]
