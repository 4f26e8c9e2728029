#!/usr/bin/env bash
# Fills DIR with Debian's arm64 packages of the libraries that attune links to, for `make aarch64`. Nothing is
# installed: apt has lists and caches of its own below DIR, so neither root nor a foreign architecture is needed.
# DEPS=no downloads nothing.
set -euo pipefail
dir=${1:?usage: aarch64_sysroot.sh DIR}
packages=(libxxhash-dev libsqlite3-dev libjansson-dev libjansson4 libcmocka-dev libcmocka0)

[ -e "$dir/complete" ] && exit 0
if [ "${DEPS:-}" = no ] || ! command -v apt-get dpkg-deb >/dev/null; then
    echo "aarch64: the arm64 packages of ${packages[*]} belong into $dir; this script fetches them with apt-get" >&2
    exit 1
fi
rm -rf "$dir"
mkdir -p "$dir/apt/lists/partial" "$dir/apt/archives/partial"
dir=$(realpath "$dir")
: >"$dir/apt/status"
apt=(apt-get -qq -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o APT::Sandbox::User="$(id -un)"
    -o Dir::State="$dir/apt" -o Dir::State::status="$dir/apt/status" -o Dir::Cache="$dir/apt"
    -o Acquire::Languages=none)
# A source without arm64 is no reason to give up: what is missing, the download says.
"${apt[@]}" update >/dev/null || true
(cd "$dir/apt" && "${apt[@]}" download "${packages[@]}" >/dev/null)
for package in "$dir"/apt/*.deb; do dpkg-deb -x "$package" "$dir"; done
rm -rf "$dir/apt" "$dir/usr/share"
touch "$dir/complete"
