#!/bin/bash
# Made by provision; remake with: provision image contract toy --format sif
# Makes torch2-3-cuda12-1-py311.sif, or the file of the first argument, of the image of torch2.3-cuda12.1-py311: without an engine, a registry or root.
# It needs provision and Apptainer here, and about three times the image's size where the file goes.
set -euo pipefail
file=$(realpath -- "${1:-torch2-3-cuda12-1-py311.sif}")
work=$(mktemp --directory --tmpdir="$(dirname -- "$file")" .provision-sif.XXXXXXXX)
trap 'chmod -R u+w -- "$work"; rm -rf -- "$work"' EXIT
provision image build torch2.3-cuda12.1-py311 --output "oci:$work/image"
# Apptainer unpacks the image in this folder; /tmp may be too small.
export APPTAINER_TMPDIR=$work
apptainer build "$work/made.sif" "oci:$work/image"
mv -- "$work/made.sif" "$file"
echo "made $file: apptainer exec --cleanenv $file python (with --nv for GPUs)"
