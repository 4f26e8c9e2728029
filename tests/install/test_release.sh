#!/usr/bin/env bash
# What a release is made of: the version is written once, packages have all that `make install` installs, and the
# scripts refuse what is no release. `make release` itself builds and tries everything.
set -u
[ -z "${SANITIZE:-}" ] || { echo "1..0"; exit 77; } # nothing there that other tests do not run
cd "$(dirname "$0")/../.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work" "${build_copy:-}"' EXIT
# shellcheck source=tests/support/cli.sh
source tests/support/cli.sh
# shellcheck source=tests/support/build_copy.sh
source tests/support/build_copy.sh
unset MAKEFLAGS MAKELEVEL
version=$(sed -n 's/^#define ATTUNE_VERSION_STRING "\(.*\)"/\1/p' include/attune.h)

# ---- The version ----

numbers=$(sed -nE 's/^#define ATTUNE_VERSION_(MAJOR|MINOR|PATCH) ([0-9]+)$/\2/p' include/attune.h | paste -sd.)
[ "$numbers" = "$version" ]
report $? "the three numbers are those of the text"
expect "the manual has it" 0 "^\.TH ATTUNE 1 \"\" \"attune $version\"" cat docs/attune.1
expect "CHANGELOG.md begins with it" 0 "^## $version" sh -c "grep -m 1 '^## ' CHANGELOG.md"
grep -rlF "$version" debian scripts cmake python Makefile mk attune.pc.in --include='*' 2>"$work/stderr" |
    grep -vE 'debian/libattune0\.symbols|__pycache__' >"$work/stdout"
[ ! -s "$work/stdout" ]
report $? "nothing that is built says it again"

# ---- Packages ----

make --no-print-directory install DESTDIR="$work/root" PREFIX=/usr LIBDIR=/usr/lib/triplet RPATH=no DEPS=no \
    BUILD="$BUILD" DOCDIR=/usr/share/doc/attune-doc >"$work/stdout" 2>"$work/stderr"
report $? "what packages are made of is installed"
# unpacked PATTERN…: what no pattern of debian/*.install takes.
unpacked() {
    (cd "$work/root" && find . -type f -o -type l) | sed 's|^\./||' | while read -r file; do
        for pattern in "$@"; do
            # shellcheck disable=SC2254 # a pattern it is
            case $file in $pattern | $pattern/*) continue 2 ;; esac
        done
        echo "$file"
    done
}
mapfile -t patterns < <(cat debian/*.install)
unpacked "${patterns[@]}" >"$work/stdout"
[ ! -s "$work/stdout" ]
report $? "each file is in a package"
mapfile -t fewer < <(cat debian/*.install | grep -v worker)
expect "a file that is in none is found" 0 '^usr/lib/triplet/attune/attune-codegen-worker$' unpacked "${fewer[@]}"
sed -n 's/^Package: //p' debian/control | sort >"$work/packages"
ls debian/*.install | sed 's|^debian/||; s|\.install$||' | sort | cmp "$work/packages" - >"$work/stdout" 2>&1
report $? "each package has a list"

mkdir "$work/tools" "$work/little"
cp -r include debian "$work/little"
for tool in dh lintian dpkg-buildpackage; do
    printf '#!/bin/sh\nhead debian/control\nexit 1\n' >"$work/tools/$tool"
    chmod +x "$work/tools/$tool"
done
expect "who builds may have any name" 1 '^Maintainer: A/B & C\\1 <a@example\.org>$' env PATH="$work/tools:$PATH" \
    DEBFULLNAME='A/B & C\1' DEBEMAIL=a@example.org bash scripts/release/deb.sh "$work/little" "$work/debs"

# ---- What is no release ----

if command -v git >"$work/stdout"; then
    mkdir "$work/clone"
    cp -r scripts include CHANGELOG.md "$work/clone"
    in_clone() { (cd "$work/clone" && git -c user.name=a -c user.email=a@example.org "$@") >"$work/stdout" 2>&1; }
    in_clone init && in_clone add . && in_clone commit -m one
    touch "$work/clone/more"
    expect "changes that are not committed" 1 'a release is a commit' \
        bash "$work/clone/scripts/release/release.sh" "$work/out"
    rm "$work/clone/more"
    mkdir "$work/full"
    touch "$work/full/file"
    expect "a folder that is not empty" 1 'full is not empty' bash "$work/clone/scripts/release/release.sh" "$work/full"
    sed -i "s/^## $version.*/## $version, not released/" "$work/clone/CHANGELOG.md"
    in_clone commit -am two
    expect "a version without its changes" 1 "CHANGELOG.md has no section '## $version'" \
        bash "$work/clone/scripts/release/release.sh" "$work/out"
    [ ! -e "$work/out" ]
    report $? "nothing is left of them"
else
    skip "what is no release" "no git"
fi
expect "no packages to try" 1 'there are no packages in' bash scripts/release/try_debs.sh "$work"
echo "1..$number"
