#!/usr/bin/env bash
# `attune sweep --shard` and `attune sweep merge`: each problem is in one shard, and merged results name their machines.
# Needs ATTUNE, the command, and an ATTUNE_CACHE_DIR of its own.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/cli.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
attune=$ATTUNE
grid=seq_q=4:16:*2,head_dim=8,16,num_heads=2
sweep=("$attune" sweep --samples=1 --max-spread=none)
export ATTUNE_CACHE_DIR=$work/cache
problems() { sed -n 's/^ *"problem": "\(.*\)",*$/\1/p' "$1"; }

# ---- Shards ----

"$attune" sweep --dry-run $grid >"$work/all"
expect "a dry run prints the problems in order" 0 '^seq_q=4,head_dim=16,num_heads=2$' cat "$work/all"
[ "$(wc -l <"$work/all")" -eq 6 ] && [ ! -e "$work/cache" ]
report $? "and does nothing else"
for shard in 1 2 3 4; do "$attune" sweep --dry-run --shard=$shard/4 $grid; done >"$work/shards"
[ "$(head -n 2 "$work/shards")" = "$(sed -n '1p;5p' "$work/all")" ] &&
    cmp <(sort "$work/shards") <(sort "$work/all")
report $? "every problem is in one shard, and neighbours are in different ones"
for bad in 0/2 3/2 2 1/ /2 -1/2 1/0 1/2/3 x/y 1/2x '1/ 2' ' 1/2' '1/+2' '+1/2' \
    99999999999999999999/2 1/99999999999999999999; do
    expect "no shard: $bad" 2 "--shard must be I/N with I from 1 to N, such as 2/8, not '${bad//+/[+]}'" \
        "${sweep[@]}" "--shard=$bad" $grid
done
expect "a shard without a problem" 1 'shard 7 of 7 has no problem: there are 6' "${sweep[@]}" --shard=7/7 $grid
expect "a shard is measured" 0 '^3 kernels compiled' "${sweep[@]}" --shard=1/2 -o "$work/one.json" $grid
expect "and the other one" 0 'cached' "${sweep[@]}" --shard=2/2 -o "$work/two.json" $grid
expect "an interrupted shard goes on" 0 '^0 measured now; 3 had results' \
    "${sweep[@]}" --shard=1/2 -o "$work/one.json" $grid

# ---- Merging ----

expect "shards of one machine" 0 '^6 problems on .*, attune [0-9.]*$' \
    "$attune" sweep merge -o "$work/merged.json" "$work/one.json" "$work/two.json"
"${sweep[@]}" -o "$work/whole.json" $grid >"$work/none"
cmp <(problems "$work/merged.json") <(problems "$work/whole.json")
report $? "are in the order of the grid"
[ "$(grep -c '^ *"header": {' "$work/merged.json")" -eq 7 ] && [ "$(grep -c '"cpu_family"' "$work/merged.json")" -eq 7 ]
report $? "each result names its machine, and the file the common one"
expect "a sweep goes on from there" 0 '^1 measured now; 6 had results' \
    "${sweep[@]}" -o "$work/merged.json" $grid seq_q=5,head_dim=8,num_heads=2
expect "JSON" 0 '"problem":|"problem": ' "$attune" sweep merge --json "$work/one.json" "$work/two.json"
expect "CSV has a row for each" 0 '^seq_q,|^num_heads,' "$attune" sweep merge --csv "$work/one.json" "$work/two.json"
[ "$(wc -l <"$work/stdout")" -eq 7 ]
report $? "and a heading"
expect "results of a problem on one machine" 0 '^3 more results of the same problems and machines; the quietest' \
    "$attune" sweep merge "$work/one.json" "$work/two.json" "$work/one.json"

# The quieter one stays, wherever it is.
sed 's/"spread": .*/"spread": 0.5,/' "$work/one.json" >"$work/noisy.json"
sed 's/"spread": .*/"spread": 0.25,/' "$work/one.json" >"$work/quiet.json"
for order in "noisy quiet" "quiet noisy"; do
    read -r first second <<<"$order"
    "$attune" sweep merge -o "$work/both.json" "$work/$first.json" "$work/$second.json" >"$work/none"
    [ "$(grep -c '"spread": 0.25,' "$work/both.json")" -eq 3 ] && ! grep -q '"spread": 0.5,' "$work/both.json"
    report $? "the quieter result is kept: $order"
done

# Another machine, as its file would be.
sed 's/"cpu_model": [0-9]*/"cpu_model": 99/; s/"date": "[^"]*"/"date": "2999-01-01T00:00:00Z"/' "$work/one.json" \
    >"$work/other.json"
expect "results of two machines" 0 '^6 problems on ' \
    "$attune" sweep merge -o "$work/machines.json" "$work/one.json" "$work/other.json" "$work/two.json"
[ "$(grep -c '^3 problems on ' "$work/stdout")" -eq 1 ] &&
    [ "$(grep -c '"cpu_model": 99' "$work/machines.json")" -eq 3 ]
report $? "are kept apart"
sed -n '1,/"results"/p' "$work/machines.json" >"$work/head"
! grep -q cpu_model "$work/head" && grep -q '"date": "2999' "$work/head" && grep -q '"cpu_family"' "$work/head"
report $? "and the header has what they have in common, with the last date"
refuse "which no sweep goes on from" 'cannot be continued: it was measured with cpu_model=.unknown.' \
    "${sweep[@]}" -o "$work/machines.json" $grid
expect "merged files can be merged" 0 '^3 problems on ' \
    "$attune" sweep merge "$work/machines.json" "$work/one.json" "$work/other.json"

# ---- Refusals ----

"$attune" sweep --samples=2 -o "$work/samples.json" seq_q=4,head_dim=8 >"$work/none"
refuse "other settings" 'one.json and .*samples.json cannot be merged: .* samples=1 and samples=2' \
    "$attune" sweep merge "$work/one.json" "$work/samples.json"
sed 's/"threads": 1,/"threads": 2,/' "$work/one.json" >"$work/threads.json"
refuse "other threads" 'cannot be merged: .* threads=1 and threads=2' \
    "$attune" sweep merge "$work/one.json" "$work/threads.json"
"$attune" bench --json --samples=1 seq_q=4,head_dim=8 >"$work/bench.json"
echo '{"results": [3]}' >"$work/damaged.json"
echo '{' >"$work/half.json"
# Each file has one mistake, made by an edit of one line.
damage() { # WHY EDIT
    sed "$2" "$work/one.json" >"$work/broken.json"
    cmp -s "$work/one.json" "$work/broken.json"
    [ $? -eq 1 ]
    report $? "an edit that damages: $2"
    refuse "damaged: $2" "broken.json is no sweep, or its results are damaged: $1" \
        "$attune" sweep merge "$work/broken.json"
}
damage 'it has no schema' 's/"schema": [0-9]*/"schema": null/'
damage 'it has no header with a number of threads' '0,/"threads": 1,*/s/"threads": 1/"threads": "1"/'
damage 'it has no number of samples' 's/^ "samples": 1/ "samples": 1.5/'
damage 'it has no sizes' 's/^ "sizes": ""/ "sizes": 0/'
damage 'it does not say whether data were cold' 's/"cold_data": false/"cold_data": null/'
damage 'it has no numbers of the cache' 's/"cache": {/"cash": {/'
damage 'it has no numbers of the cache' 's/"compile_ms": [0-9.]*/"compile_ms": ""/'
damage 'a result lacks members, or has some of another kind' 's/"spread": [0-9.e-]*/"spread": -1/'
damage 'a result lacks members, or has some of another kind' 's/"median_us": [0-9.e-]*/"median_us": 0/'
damage 'a result lacks members, or has some of another kind' 's/^   "bound": /   "header": 5, "bound": /'
damage 'a result has other sizes than the file' 's/^   "sizes": ""/   "sizes": "seq_kv=7"/'
damage 'a result has another number of threads than the file' 's/^   "bound": /   "header": {"threads": 9}, "bound": /'
sed 's/"spread": [0-9.e-]*/"spread": -1/' "$work/one.json" >"$work/broken.json"
refuse "which no sweep goes on from either" 'cannot be continued: its results are damaged: a result lacks members' \
    "${sweep[@]}" --shard=1/2 -o "$work/broken.json" $grid
refuse "the output of bench" 'bench.json is no sweep, or its results are damaged' \
    "$attune" sweep merge "$work/bench.json"
refuse "damaged results" 'damaged.json is no sweep' "$attune" sweep merge "$work/one.json" "$work/damaged.json"
refuse "half a file" 'half.json is no sweep: line' "$attune" sweep merge "$work/half.json"
refuse "no file" 'none.json' "$attune" sweep merge "$work/none.json"
refuse "a place that cannot be written" 'no/where' "$attune" sweep merge -o "$work/no/where" "$work/one.json"
expect "nothing" 2 '^attune sweep merge: files of sweeps are needed' "$attune" sweep merge
expect "the name in the help" 0 '^Usage: attune sweep merge .OPTION.... FILE' "$attune" sweep merge --help
expect "merge after an option" 2 'merge must be the first argument' "$attune" sweep --json merge "$work/one.json"
expect "two kinds of output" 2 'both want standard output' "$attune" sweep merge --csv --json "$work/one.json"
echo "1..$number"
