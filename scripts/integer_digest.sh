#!/usr/bin/env bash
# usage: integer_digest.sh COUNT [FILE]: the digests of the first COUNT problems with integer=all (tests/support/
# attend/integer_problems.h), in chunks of 1,000, a process for each chunk, as many at a time as there are processors
# (JOBS).
# Compares them with those that are published, tests/data/integer_digests.txt or FILE. The last line is
# "N as published, N differ, N not published", the one before the digest of all digests; the exit status is 1 if any
# chunk differs or fails.
#
# With LOGS, a folder, what each chunk gave stays there, and a run that was interrupted goes on where it was; another
# build of attune begins anew.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -ge 1 ] || { sed -n 's/^# usage: //p' "$0" >&2; exit 2; }
count=$1 published=${2:-tests/data/integer_digests.txt} chunk=1000
build=${BUILD:-build} most=${JOBS:-$(nproc)}
if [ -n "${LOGS:-}" ]; then
    logs=$LOGS/$(cat "$build/integer_digest" "$build/libattune-codegen.so" | cksum | cut -d ' ' -f 1)
    mkdir -p "$logs"
else
    logs=$(mktemp -d)
fi
finish() {
    local running
    running=$(jobs -rp)
    # shellcheck disable=SC2086 # one word for each process
    [ -z "$running" ] || kill $running 2>/dev/null || true
    [ -n "${LOGS:-}" ] || rm -rf "$logs"
}
trap finish EXIT
trap 'exit 130' INT TERM

# run_chunk FIRST COUNT: its file gets its name when it is complete.
run_chunk() {
    "$build/integer_digest" "$1" "$2" >"$logs/$1-$2.tmp" && mv "$logs/$1-$2.tmp" "$logs/$1-$2.txt"
}

for ((first = 0; first < count; first += chunk)); do
    size=$((count - first < chunk ? count - first : chunk))
    [ ! -e "$logs/$first-$size.txt" ] || continue
    [ "$(jobs -rp | wc -l)" -lt "$most" ] || wait -n || true
    run_chunk "$first" "$size" &
done
wait

# A chunk without a file has failed and said why.
same=0 differ=0 others=0
for ((first = 0; first < count; first += chunk)); do
    size=$((count - first < chunk ? count - first : chunk))
    line=$(grep -v '^#' "$logs/$first-$size.txt" 2>/dev/null) || line="$first $size failed"
    wanted=$(grep "^$first $size " "$published") || wanted=
    case $line in
    *' failed') differ=$((differ + 1)) ;;
    "$wanted") same=$((same + 1)) ;;
    *) if [ -n "$wanted" ]; then differ=$((differ + 1)); else others=$((others + 1)); fi ;;
    esac
    [ "$line" = "$wanted" ] || echo "$line${wanted:+, and published is ${wanted##* }}"
    echo "$line" >>"$logs/all.tmp"
done
cat "$logs"/*-*.txt | grep '^#' | sort -u | sed 's/^# /instruction sets: /'
"$build/integer_digest" join <"$logs/all.tmp"
rm "$logs/all.tmp"
echo "$same as published, $differ differ, $others not published"
[ "$differ" -eq 0 ]
