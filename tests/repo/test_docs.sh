#!/usr/bin/env bash
# The documentation: links and names lead somewhere, quoted messages and features are real, and the commands and the
# program of "Getting started" work. Seeded bugs name real tests and fit the sources. Each check is also tried on a page
# or a patch that it must reject.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/cli.sh
. tests/support/pages.sh
work=$(mktemp -d)
trap 'rm -rf "$work" "${build_copy:-}"' EXIT
touch "$work/stdout" "$work/stderr"

# good NAME COMMAND…, bad NAME COMMAND…: it succeeds; it fails and says something.
good() {
    local name=$1
    shift
    "$@" >"$work/stdout" 2>&1
    report $? "$name"
}
bad() {
    local name=$1
    shift
    ! "$@" >"$work/stdout" 2>&1 && [ -s "$work/stdout" ]
    report $? "$name"
}

[ -n "${SANITIZE:-}" ] && echo "1..39" || echo "1..61"
# What a note says was so on its day.
mapfile -t pages < <(ls ./*.md docs/*.md notes/*.md examples/*/*.md | sed 's|^\./||')
mapfile -t current < <(printf '%s\n' "${pages[@]}" | grep -v '^notes/')
guides=({README,CONTRIBUTING,examples/minilm/README}.md
    docs/{bench,index,getting-started,troubleshooting,platforms,performance}.md)

mkdir "$work/docs"
cat >"$work/docs/bad.md" <<'PAGE'
# A page with mistakes

[a file](none.md), [a heading](#no-such-heading), `src/base/none.c`, `make nonsense`

> a message that attune never … prints

PAGE
printf '%0121d\n' 0 >>"$work/docs/bad.md"
printf '# A page\n\n[this](#a-page)\n\n> … is not a field of a problem…\n' >"$work/docs/good.md"

good "links of all pages lead somewhere" broken_links "${pages[@]}"
bad "a link that leads nowhere is found" broken_links "$work/docs/bad.md"
grep -q 'none.md' "$work/stdout" && grep -q 'no-such-heading' "$work/stdout"
report $? "a file and a heading"
good "a heading is found" broken_links "$work/docs/good.md"

reachable docs/index.md >"$work/reached"
# The notes of the laboratory have a list of their own.
printf '%s\n' "${pages[@]}" docs/*.svg docs/*.png docs/attune.1 include/attune.h | grep -v '^notes/' |
    LC_ALL=C sort >"$work/wanted"
unreached() { LC_ALL=C comm -13 "$1" "$work/wanted" | { ! grep .; }; }
good "all pages and pictures are reached from docs/index.md" unreached "$work/reached"
good "the README links to the index" grep -qF '](docs/index.md)' README.md
reachable "$work/docs/good.md" >"$work/few"
bad "a page that nothing links to is found" unreached "$work/few"

good "files that pages name are there" missing_paths "${current[@]}"
bad "a file that is not there is found" missing_paths "$work/docs/bad.md"
good "targets of make that pages name are there" missing_targets "${pages[@]}"
bad "a target that is not there is found" missing_targets "$work/docs/bad.md"
good "no line is too wide" too_wide "${guides[@]}"
bad "a wide line is found" too_wide "$work/docs/bad.md"

good "quoted messages are in the sources" unknown_messages docs/troubleshooting.md
[ "$(grep -c '^> ' docs/troubleshooting.md)" -ge 30 ]
report $? "there are messages"
bad "a message that no source has is found" unknown_messages "$work/docs/bad.md"
good "a message with values is found" unknown_messages "$work/docs/good.md"

good "the table of features has problems" refused_features docs/features.md
printf '\n| feature | problem |\n|---|---|\n| none | `sparkle=1` |\n' >>"$work/docs/bad.md"
bad "a feature that there is not is found" refused_features "$work/docs/bad.md"

if command -v python3 >/dev/null && [ -z "${SANITIZE:-}" ]; then
    good "its columns are those that its script finds" eval \
        "ATTUNE_LIBRARY='$BUILD/libattune.so' python3 scripts/features.py <docs/features.md | diff - docs/features.md"
else
    skip "its columns are those that its script finds" "no python3, or a sanitizer"
fi

good "members and constants that pages name are in the headers" \
    unknown_names docs/{coming-from,engine-attention,serving}.md
# shellcheck disable=SC2016
printf '\n`desc.sparkle`\n' >>"$work/docs/bad.md"
bad "a member that there is not is found" unknown_names "$work/docs/bad.md"

good "the environment variables are those that the sources read" unlisted_variables docs/environment.md
sed '/ATTUNE_TIER0/d' docs/environment.md >"$work/docs/few.md"
bad "a variable that the page lacks is found" unlisted_variables "$work/docs/few.md"
printf '\n| `ATTUNE_SPARKLE` | | | |\n' | cat docs/environment.md - >"$work/docs/more.md"
bad "a variable that nothing reads is found" unlisted_variables "$work/docs/more.md"

# unnamed_fields PAGE: the fields of problems that a manual page does not name in bold.
unnamed_fields() {
    bash scripts/problem_fields.sh | tr ' ' '\n' | grep -v '^[A-Z]' | sort -u >"$work/fields"
    grep -oE '^\.B.*|\\fB[a-z_]+' "$1" | sed 's/^\\fB//; s/^\.BR*//' | tr -d '",' | tr ' ' '\n' | sort -u >"$work/bold"
    comm -23 "$work/fields" "$work/bold" | { ! grep .; }
}
good "the manual names all fields of problems" unnamed_fields docs/attune.1
sed 's/soft_cap/soft cap/' docs/attune.1 >"$work/docs/bad.1"
bad "a field that it does not name is found" unnamed_fields "$work/docs/bad.1"

if command -v python3 >/dev/null; then
    good "seeded bugs fit the sources and name tests" python3 scripts/seed_bug.py check tests/mutants/*.bug
    mutant=tests/mutants/pass-unroll-drops-last.bug
    sed '/^find:$/a // no such line' "$mutant" >"$work/old.bug"
    bad "a bug that does not fit is found" python3 scripts/seed_bug.py check "$mutant" "$work/old.bug"
    sed 's/^tests: .*/tests: test_of_nothing/' "$mutant" >"$work/untested.bug"
    bad "a bug that names no test is found" python3 scripts/seed_bug.py check "$work/untested.bug"
    sed '/^find:$/,$d' "$mutant" >"$work/vague.bug"
    printf 'find:\nreturn NULL;\nreplace:\nreturn 0;\n' >>"$work/vague.bug"
    bad "a bug that fits several places is found" python3 scripts/seed_bug.py check "$work/vague.bug"
else
    for name in "seeded bugs fit the sources and name tests" "a bug that does not fit is found" \
        "a bug that names no test is found" "a bug that fits several places is found"; do
        skip "$name" "no python3"
    done
fi

if command -v python3 >/dev/null; then
    for name in architecture layouts; do
        good "$name.svg is made by its script" eval "python3 scripts/$name.py | cmp - docs/$name.svg"
    done
else
    for name in architecture layouts; do skip "$name.svg is made by its script" "no python3"; done
fi

# site_lacks FOLDER: what the pages that are prepared for the site in it lack.
site_lacks() {
    local file
    for file in docs/*.md include/attune/*.h include/attune/expert/*.h; do
        case $file in
        *.md) [ -s "$1/$file" ] ;;
        *) grep -q "doxygenfile:: $(basename "$file")" "$1/reference/c-$(basename "$file" .h).md" ;;
        esac || echo "$file has no page"
    done
    grep -q '^## flash_attn_func$' "$1/reference/attune.torch.md" || echo "attune.torch.flash_attn_func is not there"
    grep -qF '**kv_lens**: ' "$1/reference/attune.md" || echo "arguments are no list"
    grep -qx '/docs/getting-started' "$1/index.md" || echo "the pages are in no list"
}
if command -v python3 >/dev/null; then
    good "pages of the site are made" eval "mkdir '$work/site' && python3 scripts/site.py '$work/site'"
    good "the site has all pages, headers and modules" eval "site_lacks '$work/site' | { ! grep .; }"
    rm -f "$work/site/reference/c-plan.md"
    bad "a page that it lacks is found" eval "site_lacks '$work/site' 2>/dev/null | { ! grep .; }"
else
    for name in "pages of the site are made" "the site has all pages, headers and modules" \
        "a page that it lacks is found"; do
        skip "$name" "no python3"
    done
fi

# The manual of the header, where Doxygen is installed: warnings are errors.
if command -v doxygen >/dev/null; then
    good "make docs" make --no-print-directory docs BUILD="$work/manual" DEPS=no
    good "all comments of the header are in it" bash scripts/check_manual.sh "$work/manual/docs"
    sed -i 's/Gives a reference back//' "$work"/manual/docs/xml/*.xml
    bad "a comment that is lost is found" bash scripts/check_manual.sh "$work/manual/docs"
else
    for name in "make docs" "all comments of the header are in it" "a comment that is lost is found"; do
        number=$((number + 1))
        echo "ok $number # SKIP $name: no doxygen"
    done
fi
[ -z "${SANITIZE:-}" ] || exit 0 # a sanitized library needs a sanitized program

# Getting started, in a directory that looks like the sources: what it builds must not be left there.
# shellcheck source=tests/support/build_copy.sh
source tests/support/build_copy.sh
mkdir "$work/tree" "$work/home" "$work/blocks"
for name in *; do [ "$name" = build ] || ln -s "$PWD/$name" "$work/tree/$name"; done
ln -s "$build_copy" "$work/tree/build"
unset MAKEFLAGS MAKELEVEL
export HOME=$work/home DEPS=no
take_blocks docs/getting-started.md "$work/blocks"
[ "$(ls "$work/blocks"/*.sh | wc -l)" -ge 5 ] && [ -s "$work/blocks"/*.c ]
report $? "the page has commands and a program"
export ATTUNE_CACHE_DIR=$work/home/cache
in_tree() { (cd "$work/tree" && BUILD=build ATTUNE_LIBRARY=$build_copy/libattune.so run_blocks "$1"); }
good "what the page says to type works" in_tree "$work/blocks"

# The pages by task, and of operators of their own. Those with Python need NumPy.
for page in engine-attention serving production quantised-caches same-bits your-mask tune-and-sweep linear-attention \
    mla sparse-index sparse-attention python costs numerics; do
    mkdir "$work/$page"
    take_blocks "docs/$page.md" "$work/$page"
    if compgen -G "$work/$page/*.python" >/dev/null && ! python3 -c 'import numpy' 2>"$work/stderr"; then
        skip "what docs/$page.md says to type works" "no NumPy"
    else
        good "what docs/$page.md says to type works" in_tree "$work/$page"
    fi
done

# The README's programs. That in C is the body of a main; values are ones, and so are their means.
mkdir "$work/readme"
take_blocks README.md "$work/readme"
{
    echo '#include <attune/attention.h>'
    echo '#include <stdio.h>'
    echo 'static float q[4 * 100 * 8 * 64], k[4 * 100 * 2 * 64], v[4 * 100 * 2 * 64], out[4 * 100 * 8 * 64];'
    echo 'int main(void) {'
    echo 'for (size_t i = 0; i < sizeof v / sizeof *v; i++) v[i] = 1;'
    cat "$work/readme"/*.c
    echo 'return out[0] != 1 || out[sizeof out / sizeof *out - 1] != 1; }'
} >"$work/readme.c"
readme_in_c() {
    ${CC:-cc} -std=gnu11 -Wall -Wextra -Werror -Iinclude "$work/readme.c" "$build_copy/libattune.so" \
        -Wl,-rpath,"$build_copy" -o "$work/readme.out" && "$work/readme.out"
}
good "the README's program in C works" readme_in_c
if python3 -c 'import numpy' 2>"$work/stderr"; then
    expect "the README's program in Python works" 0 '^\(1, 8, 512, 64\) \(1, 8, 1, 64\)$' \
        env ATTUNE_LIBRARY="$build_copy/libattune.so" PYTHONPATH=python python3 "$work/readme"/*.python
else
    skip "the README's program in Python works" "no NumPy"
fi
[ "$(wc -l <README.md)" -le 150 ]
report $? "the README has at most 150 lines"

# Pages on which a command fails, a program is wrong, and an output is another.
try() {
    rm -rf "$work/try"
    mkdir "$work/try"
    cat >"$work/page.md"
    take_blocks "$work/page.md" "$work/try"
    in_tree "$work/try"
}
bad "a command that fails is found" try <<'PAGE'
```sh
true
build/attune info --nonsense
true
```
PAGE
bad "a program that does not compile is found" try <<'PAGE'
<!-- file: wrong.c -->
```c
int main(void) { return nothing; }
```
```sh
cc wrong.c -o wrong
```
PAGE
bad "an output that is not there is found" try <<'PAGE'
```sh
build/attune info
```
```text
no …
```
PAGE
good "an output that is there is found" try <<'PAGE'
```sh
build/attune info
```
```text
attune     …
isa        …
```
PAGE
