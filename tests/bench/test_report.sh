#!/usr/bin/env bash
# attune bench --report, which people send in, and attune bench compare, which shows such files beside each other.
set -u
cd "$(dirname "$0")/../.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=tests/support/cli.sh
source tests/support/cli.sh
report=$work/report.json

expect "a report prints the table as well" 0 'of peak' "$ATTUNE" bench --report "$report" --samples=1
cp "$report" "$work/stdout"
[ "$(grep -c '"median_us"' "$report")" = 13 ] && [ "$(grep -c 'problem": ".*dtype=bf16' "$report")" = 3 ]
report $? "it has the standard problems and three in bf16"
status=0
for member in isas machine_description cpus memory_bytes system libc peaks_gflops f32 cpu_family version llvm; do
    grep -q "\"$member\": " "$report" || { status=1; echo "# no $member"; }
done
report $status "it describes the machine"
host=$(uname -n)
! "$ATTUNE" info | grep -qwF -e "$host" || host=$work # as avx2, which reports may have
! grep -vE '"(cpu|cpu_description|system)":' "$report" | grep -qwF -e "$host" -e "${HOME:-/root}" -e "$PWD"
report $? "it names no host, user or directory"
refuse "a report where nothing can be written, before anything is measured" \
    '/nowhere/r.json: cannot write: No such file' "$ATTUNE" bench --report /nowhere/r.json
expect "a report of other problems" 2 'a fixed set of problems' "$ATTUNE" bench --report "$report" num_heads=1
expect "a report and another file" 2 'exclude each other' "$ATTUNE" bench --report "$report" -o "$work/o.json"
expect "a report on standard output" 2 '--report needs a file' "$ATTUNE" bench --report -

# ---- Beside each other ----

# Another machine, whose file lacks the first problem and was made with two threads.
other=tests/data/report.json
problem=num_heads=12,seq_q=512,seq_kv=512,head_dim=64
expect "each file has its line" 0 \
    '^B  .*\(family 26, model 2, stepping 1\), zen5, avx512_bf16, 2 threads, attune 0.2.0$' \
    "$ATTUNE" bench compare "$report" "$other"
grep -Eq '^problem +A +of roof +B +of roof' "$work/stdout"
report $? "and two columns"
grep -Eq "^$problem +[^ ]+ [^ ]*s +[0-9]+ % +- +-\$" "$work/stdout"
report $? "a problem that one file lacks"
grep -Eq '^num_heads=32,seq_q=512,.* +[^ ]+ [^ ]*s +[0-9]+ % +1.25 ms +50 %$' "$work/stdout"
report $? "a problem that both have"
"$ATTUNE" bench compare --json "$report" "$other" >"$work/stdout" 2>"$work/stderr" &&
    tr -d ' \n' <"$work/stdout" | grep -q "{\"problem\":\"$problem\",\"results\":\[{.*},null\]}"
report $? "the same as JSON"

echo '{"schema": 2, "header": {}, "results": [{"problem": "x"}]}' >"$work/incomplete.json"
echo '{"schema": 1, "results": []}' >"$work/old.json"
refuse "a file that is none" 'cannot read: No such file' "$ATTUNE" bench compare "$work/none.json"
refuse "a file that is no JSON" 'is no JSON: line 1' "$ATTUNE" bench compare Makefile
refuse "a file of another schema" 'old.json: no results of .attune bench., schema 2' "$ATTUNE" bench compare \
    "$work/old.json"
refuse "a result without a time" 'result 1 lacks its problem or its median_us' "$ATTUNE" bench compare \
    "$work/incomplete.json"
expect "no files" 2 'are needed' "$ATTUNE" bench compare
expect "more files than fit" 2 'at most 16 files' "$ATTUNE" bench compare $(seq 17)
expect "compare after a problem" 2 'compare must be the first argument' "$ATTUNE" bench num_heads=1 compare
echo "1..$number"
