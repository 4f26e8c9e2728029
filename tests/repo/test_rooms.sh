#!/usr/bin/env bash
# Rooms of tests: each test is in one, under a name that no other has, since make and tests/run.sh find it by its name
# alone. No folder of the repository has more than 30 source files, and what docs/folders.md names is there.
set -u
[ -z "${SANITIZE:-}" ] || { echo "1..0"; exit 77; }
cd "$(dirname "$0")/../.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=tests/support/cli.sh
source tests/support/cli.sh
touch "$work/stderr"

# none NAME: what comes in is no lines.
none() {
    cat >"$work/stdout"
    [ ! -s "$work/stdout" ]
    report $? "$1"
}
names() { find tests -name 'test_*' \( -name '*.c' -o -name '*.sh' -o -name '*.py' \); }

[ "$(names | wc -l)" -gt 100 ]
report $? "there are tests"
none "each is in a room" < <(names |
    grep -vE '^tests/[a-z0-9_]+/(test_[^/]*|with_[a-z]+/test_[^/]*\.py|package/test_[^/]*\.py)$')
none "no two have the same name" < <(names | sed 's|.*/||; s|\.c$||' | LC_ALL=C sort | uniq -d)
none "no folder has more than 30 source files" < <(
    find adapters bench examples include lab python reference scripts src tests tools \
        -regextype posix-extended -regex '.*\.(awk|c|h|cpp|hpp|def|py|sh)' ! -path '*/build/*' -printf '%h\n' |
        LC_ALL=C sort | uniq -c | awk '$1 > 30 { print $2 ": " $1 " files" }')
none "a room's README has at most ten lines" < <(find adapters lab src tools -name README.md ! -path '*/build/*' |
    while read -r file; do [ "$(wc -l <"$file")" -le 10 ] || echo "$file"; done)
# "Where do I change" is how a newcomer finds a place; test_docs.sh looks for its files.
places() { sed -n '/^## Where do I change/,$p' docs/folders.md | grep -oE '`[a-z][a-z0-9_]+`' | tr -d '`' | sort -u; }
[ "$(places | wc -l)" -gt 10 ]
report $? "docs/folders.md names functions"
none "each is there" < <(places | while read -r name; do grep -rqw "$name" src || echo "$name"; done)
# Files that include each other: rows of caches, plain, in panels and quantised; a product and its register tile; a cost
# and its parts; the bounds of the verifier; the reference.
if command -v python3 >/dev/null; then
    none "no circles of files but five, each one thought" < <(
        python3 scripts/circles.py src tools lab reference adapters | grep -vxF \
            -e "reference/ref_attention reference/ref_codes reference/ref_functions" \
            -e "src/ir/verify/bounds src/ir/verify/bounds_internal" -e "src/nest/gemm src/nest/gemm_tile" \
            -e "src/nest/cached src/nest/panel_rows src/nest/rows" -e "src/schedule/cost src/schedule/cost_parts")
fi
echo "1..$number"
