#!/usr/bin/env bash
# Fails on an include that the architecture does not allow, on a folder without a rule, on a circle between folders, and
# on a function of the C library that depends on the locale. Prints each offender. The rules are the table "The folders"
# in docs/folders.md: a row is a folder or a folder in one, as `src/base` and `src/attend/shared`. Its third column has
# what the folder may include of attune beside its own headers, the fourth what of the system beside the plain part of
# the C library.
set -euo pipefail
cd "$(dirname "$0")/.."

plain='(attune|assert|ctype|errno|fenv|float|inttypes|limits|math|setjmp|stdarg|stdatomic|stdbool'
plain+='|stddef|stdint|stdio|stdlib|string|strings)\.h'
offences=0
offend() { echo "$1"; offences=$((offences + 1)); }

# "folder|what it may include|and of the system", without the backticks.
rules=$(awk -F' *[|] *' '/^## /{inside = $0 == "## The folders"} inside && /^\| `/{print $2 "|" $4 "|" $5}' \
    docs/folders.md | tr -d '`–')
[ -n "$rules" ] || { echo "docs/folders.md has no table of folders"; exit 1; }

# own_headers FOLDER NAMES: what a folder may include, as one regular expression: its own headers, and the folders and
# headers that are named. A folder stands for those in it, too, except for these themselves.
own_headers() {
    local word out="^${1#*/}/[^/]*$"
    for word in $2; do
        # From the top: such a folder's headers are named without its first part.
        [[ ! -d $word || $word != */* ]] || [ -d "${1%%/*}/$word" ] || word=${word#*/}
        case $1/$word in
        *.h) out+="|^${word//./\\.}$" ;;
        "${1%%/*}/$word"/*) out+="|^$word/[^/]*$" ;;
        *) out+="|^$word/" ;;
        esac
    done
    echo "$out"
}
system_headers() {
    local word out="^$plain$"
    for word in $1; do
        case $word in
        '*') out+='|^any$' ;;
        *'*') out+="|^${word%'*'}" ;;
        *) out+="|^$word\.h$" ;;
        esac
    done
    echo "$out"
}

declare -A project system
edges=''
set -f
while IFS='|' read -r folder own others; do
    project[$folder]="$(own_headers "$folder" "$own")" system[$folder]=$(system_headers "$others")
    [ -d "$folder" ] || offend "docs/folders.md: there is no folder $folder"
    for word in $own; do
        [[ $word != */*.h ]] || word=${word%/*}
        above=${folder%%/*}/$word
        [ -d "$above" ] || above=$word
        [ -d "$above" ] || continue
        edges+="$folder $above"$'\n'
        [[ $folder == "$above"/* ]] || edges+=$(find "$above" -mindepth 1 -type d -printf "$folder %p\\n")$'\n'
    done
done <<<"$rules"
set +f

while read -r folder; do
    [ -n "${project[$folder]+known}" ] || offend "$folder: no row in the table of docs/folders.md"
done < <(find include src reference tools lab adapters -name '*.[ch]' -printf '%h\n' | LC_ALL=C sort -u)

circle=$({ tsort <<<"$edges" 2>&1 >/dev/null || true; } | sed -n 's/^tsort: \([^ ]*\)$/\1/p' | tr '\n' ' ')
[ -z "$circle" ] || offend "docs/folders.md: a circle of folders: $circle"

includes=0
pattern='^([^:]*)/([^/:]*):([0-9]+):[[:space:]]*#[[:space:]]*include[[:space:]]*([<"])([^>"]+)'
while read -r line; do
    [[ $line =~ $pattern ]] || continue
    folder=${BASH_REMATCH[1]} place="${BASH_REMATCH[1]}/${BASH_REMATCH[2]}:${BASH_REMATCH[3]}" name=${BASH_REMATCH[5]}
    includes=$((includes + 1))
    if [ "${BASH_REMATCH[4]}" = '<' ]; then
        allowed=${system[$folder]-}
        [[ $allowed == *'|^any$'* && ! $name =~ ^llvm ]] && continue
    else
        # A header named without a folder is one that lies beside the file.
        [[ $name != */* && -e $folder/$name ]] && continue
        allowed=${project[$folder]-}
    fi
    [[ $name =~ $allowed ]] || offend "$place: $folder must not include $name"
done < <(grep -rnE --include='*.[ch]' --include='*.def' '^[[:space:]]*#[[:space:]]*include' include src reference \
    tools lab adapters)

# What the C library makes of numbers depends on the locale.
while read -r line; do
    offend "$line: use base/plain_text.h"
done < <(grep -rnE --include='*.c' '\b(vsnprintf|vsprintf|strto(d|f|ld)|atof|to(upper|lower))\(' src |
    grep -vE '^src/(base/plain_text|bundle_run/plain_libc)\.c:' | cut -d: -f1,2)
echo "check-deps: $includes includes, $offences not allowed"
[ "$includes" -gt 0 ] && [ "$offences" -eq 0 ]
