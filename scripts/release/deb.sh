#!/usr/bin/env bash
# usage: deb.sh SOURCES OUT: Debian packages of a source tree, built in a copy of it, into OUT. lintian must find no
# error and no warning, and the packages must work in a root of their own (scripts/release/try_debs.sh).
# DEBFULLNAME and DEBEMAIL name who builds, SOURCE_DATE_EPOCH the time of the release (that of the newest file).
set -euo pipefail
[ $# = 2 ] || { echo "usage: deb.sh SOURCES OUT" >&2; exit 2; }
sources=$(realpath "$1") scripts=$(realpath "$(dirname "$0")")
mkdir -p "$2"
out=$(realpath "$2")
for tool in dpkg-buildpackage dh lintian; do
    command -v $tool >/dev/null || { echo "deb: $tool was not found: scripts/deps.sh release installs it" >&2; exit 1; }
done
version=$(sed -n 's/^#define ATTUNE_VERSION_STRING "\(.*\)"/\1/p' "$sources/include/attune.h")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tree=$work/attune-$version
mkdir "$tree"
tar -C "$sources" --exclude=./.git --exclude=./build --exclude='./build-*' -cf - . | tar -C "$tree" -xf -

maintainer="${DEBFULLNAME:-attune maintainers} <${DEBEMAIL:-attune@example.org}>"
newest=$(cd "$tree" && find . -type f -printf '%T@\n' | sort -n | tail -n 1 | cut -d. -f1)
# Names are free text: sed would take some of it for commands.
MAINTAINER=$maintainer awk '/^Maintainer: / { $0 = "Maintainer: " ENVIRON["MAINTAINER"] } { print }' \
    "$sources/debian/control" >"$tree/debian/control"
cat >"$tree/debian/changelog" <<CHANGELOG
attune ($version) unstable; urgency=medium

  * Version $version: see CHANGELOG.md.

 -- $maintainer  $(LC_ALL=C date -R -u -d "@${SOURCE_DATE_EPOCH:-$newest}")
CHANGELOG

# A make around this one has its own jobs and variables.
unset MAKEFLAGS MAKELEVEL MFLAGS BUILD CFLAGS LDFLAGS
(cd "$tree" && DEB_BUILD_OPTIONS="${DEB_BUILD_OPTIONS:-noautodbgsym parallel=$(nproc)}" \
    dpkg-buildpackage -b -us -uc -d) >"$out/deb.log" 2>&1 ||
    { tail -n 40 "$out/deb.log"; echo "deb: the build failed; its log is $out/deb.log" >&2; exit 1; }
rm -f "$out"/*.deb
cp "$work"/*.deb "$out"
lintian --allow-root --fail-on error,warning "$work"/*.changes
bash "$scripts/try_debs.sh" "$out"
