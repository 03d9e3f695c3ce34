#!/bin/bash
# Made by provision; remake with: provision image contract toy --format sqsh
# Makes torch2-3-cuda12-1-py311.sqsh, or the file of the first argument, of the image of torch2.3-cuda12.1-py311, as `enroot import` would: without an
# engine, a registry or root. It needs provision, umoci, jq and mksquashfs here, and about three times the image's size where the
# file goes. Enroot's format is a squashfs with three files: https://github.com/NVIDIA/enroot/blob/main/doc/image-format.md
set -euo pipefail
file=$(realpath -- "${1:-torch2-3-cuda12-1-py311.sqsh}")
for program in umoci jq mksquashfs; do
    command -v "$program" > /dev/null || { echo "$program is not installed" >&2; exit 9; }
done
work=$(mktemp --directory --tmpdir="$(dirname -- "$file")" .provision-sqsh.XXXXXXXX)
trap 'chmod -R u+w -- "$work"; rm -rf -- "$work"' EXIT
provision image build torch2.3-cuda12.1-py311 --output "oci:$work/image"
umoci raw unpack --rootless --image "$work/image:"provision/torch2.3-cuda12.1-py311:abababababab "$work/root"
blobs=$work/image/blobs/sha256
manifest=$(jq --raw-output '.manifests[0].digest | ltrimstr("sha256:")' "$work/image/index.json")
config=$blobs/$(jq --raw-output '.config.digest | ltrimstr("sha256:")' "$blobs/$manifest")
# The image's variables, no mounts, and the program that starts a command in the working folder.
jq --raw-output '.config.Env[]' "$config" > "$work/root/etc/environment"
: > "$work/root/etc/fstab"
cat > "$work/root/etc/rc" << 'EOF'
cd /workspace && unset OLDPWD || exit 1
if [ -s /etc/rc.local ]; then
    . /etc/rc.local
fi
if [ $# -gt 0 ]; then
    exec "$@"
else
    exec /opt/env/bin/python
fi
EOF
# No file is newer than this, so the same image gives the same bytes.
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-315532800}
mksquashfs "$work/root" "$work/made.sqsh" -all-root -no-progress -comp zstd > /dev/null
mv -- "$work/made.sqsh" "$file"
echo "made $file: enroot create --name torch2-3-cuda12-1-py311 $file; or, with Pyxis: srun --container-image=$file"
