#!/usr/bin/env bash
# usage: release.sh OUT: makes a release of the commit that is checked out, from nothing else than that commit, tests it
# and leaves in OUT:
#   attune-VERSION.tar.gz        the sources
#   *.deb                        Debian packages
#   attune-VERSION-*.whl         the Python wheel
#   attune-VERSION-html.tar.gz   the documentation
#   attune-VERSION-ARCH.abi      what programs depend on, for abidiff
#   SHA256SUMS
# The sources are unpacked elsewhere, built, and tested there: by all tests, or those of RELEASE_TESTS.
set -euo pipefail
cd "$(dirname "$0")/../.."
[ $# = 1 ] || { echo "usage: release.sh OUT" >&2; exit 2; }
fail() { echo "release: $*" >&2; exit 1; }
say() { echo "==== $*"; }
[ -z "$(git status --porcelain)" ] || fail "there are changes that are not committed: a release is a commit"
version=$(sed -n 's/^#define ATTUNE_VERSION_STRING "\(.*\)"/\1/p' include/attune.h)
grep -qE "^## ${version//./\\.}( \([0-9-]+\))?\$" CHANGELOG.md || fail "CHANGELOG.md has no section '## $version'"
[ ! -e "$1" ] || [ -z "$(ls -A "$1")" ] || fail "$1 is not empty"
mkdir -p "$1"
out=$(realpath "$1") name=attune-$version
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
unset BUILD MAKEFLAGS MAKELEVEL MFLAGS

say "sources"
git archive --format=tar --prefix="$name/" HEAD | gzip -n -9 >"$out/$name.tar.gz"
tar -xzf "$out/$name.tar.gz" -C "$work"
cd "$work/$name"

say "building and testing them"
make
make test TESTS_ONLY="${RELEASE_TESTS:-}"
make abi
cp build/abi.xml "$out/$name-$(uname -m).abi"

say "Debian packages"
bash scripts/release/deb.sh . "$out"
rm "$out/deb.log"

say "wheel"
make wheel
mv build/dist/*.whl "$out"
python3 -m venv --without-pip "$work/venv"
"$work/venv/bin/python" -c 'import sys, sysconfig, zipfile
zipfile.ZipFile(sys.argv[1]).extractall(sysconfig.get_path("purelib"))' "$out"/*.whl
(cd / && env -u ATTUNE_LIBRARY ATTUNE_CACHE_DIR="$work/cache" "$work/venv/bin/python" -c 'import attune
print(attune.info()["library"]); attune.check("num_heads=2,seq_q=9,head_dim=8")')

say "documentation"
bash scripts/html.sh "$work/$name-html"
tar -C "$work" --sort=name --owner=0 --group=0 --mtime="@$SOURCE_DATE_EPOCH" -cf - "$name-html" |
    gzip -n -9 >"$out/$name-html.tar.gz"

(cd "$out" && sha256sum -- * >"$work/SHA256SUMS" && mv "$work/SHA256SUMS" .)
say "attune $version is in $out"
ls -l "$out"
