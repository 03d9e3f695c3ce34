#!/usr/bin/env bash
# Build Kubernetes' API server into a folder, from Debian's source package: for tests/integration/test_kubernetes_server.py.
# As root on Debian 12, whose source is 1.20, the last that Debian has whole: later ones hold kubectl alone.
# Installs Go, etcd and kubectl. Takes 5 minutes on 2 cores, and 4 GB of disk while it builds.
set -euo pipefail
[ $# = 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
folder=$(realpath -m "$1")
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT

export DEBIAN_FRONTEND=noninteractive
packages=(golang-go dpkg-dev etcd-server)
command -v kubectl >/dev/null || packages+=(kubernetes-client)
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null

# The machine's own archives, asked for sources. Its settings and lists stay as they are.
mkdir -p "$work/lists/partial"
# shellcheck disable=SC2016 # these are apt-get's own
apt-get indextargets --format 'deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' | sort -u >"$work/sources.list"
settings=(-o APT::Sandbox::User=root -o "Dir::Etc::sourcelist=$work/sources.list" -o Dir::Etc::sourceparts=/dev/null -o "Dir::State::lists=$work/lists")
apt-get "${settings[@]}" update -qq
cd "$work"
apt-get "${settings[@]}" source --download-only -qq kubernetes
version=$(sed -n 's/^Version: .*really\([0-9.]*\)-.*/\1/p' kubernetes_*.dsc | head -n 1)
[ -n "$version" ] || { echo "$0: this release of Debian has no source of an API server" >&2; exit 1; }

export GOPATH=$work/go GOCACHE=$work/cache GO111MODULE=off CGO_ENABLED=0
source=$GOPATH/src/k8s.io/kubernetes
mkdir -p "$source"
tar -xf kubernetes_*.orig.tar.* -C "$source" --strip-components 1
cd "$source"

# Of the generated code only the descriptions of the types are not in the source.
go build -o "$work/openapi-gen" ./vendor/k8s.io/kube-openapi/cmd/openapi-gen
root=k8s.io/kubernetes/vendor/k8s.io/apimachinery/pkg
types=$root/apis/meta/v1,$root/runtime,$root/version,$root/api/resource,$root/util/intstr
marked=$(grep -rl --include=doc.go '+k8s:openapi-gen=true' staging/src/k8s.io pkg cmd | grep -v -E 'sample-apiserver|code-generator|/testdata|_examples')
for file in $marked; do
  package=$(dirname "$file")
  types=$types,k8s.io/kubernetes/${package/#staging\/src/vendor}
done
touch "$work/header"
"$work/openapi-gen" -O zz_generated.openapi -h "$work/header" -i "$types" -p k8s.io/kubernetes/pkg/generated/openapi -r "$work/violations" -o "$GOPATH/src"

about=k8s.io/kubernetes/vendor/k8s.io/component-base/version
IFS=. read -r major minor _ <<<"$version"
go build -p "$(nproc)" -ldflags "-s -w -X $about.gitVersion=v$version -X $about.gitMajor=$major -X $about.gitMinor=$minor" -o "$work/" ./cmd/kube-apiserver
mkdir -p "$folder"
mv "$work/kube-apiserver" "$folder/kube-apiserver.partial"
mv "$folder/kube-apiserver.partial" "$folder/kube-apiserver"
echo "built kube-apiserver $version in $folder"
