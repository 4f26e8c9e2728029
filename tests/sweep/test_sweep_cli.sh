#!/usr/bin/env bash
# `attune sweep` from outside: grids, the cache it warms, the file it continues, and what it refuses. Needs ATTUNE, the
# command, and an ATTUNE_CACHE_DIR of its own.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/cli.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
attune=$ATTUNE
grid=seq_q=4:16:*2,head_dim=8,16,num_heads=2
sweep=("$attune" sweep --samples=1)
export ATTUNE_CACHE_DIR=$work/cache

# count PATTERN: lines of the last output that match.
count() { grep -cE -- "$1" "$work/stdout"; }

expect "a sweep compiles and measures all" 0 '^6 kernels compiled in .*, 0 cached already' "${sweep[@]}" $grid
[ "$(count '^ +[0-9]+ +(8|16) .*%$')" -eq 6 ] && [ "$(count '^all have num_heads=2$')" -eq 1 ] &&
    [ "$(count '^seq_q  head_dim +median')" -eq 1 ]
report $? "its table has a row for each, and a column for each key that varies"
expect "a second one compiles nothing and says so" 0 '^nothing was compiled: all 6 kernels' "${sweep[@]}" $grid
expect "that is what forbidden misses allow" 0 'nothing was compiled' env ATTUNE_STRICT=1 "${sweep[@]}" $grid
expect "JSON counts the cache" 0 '"hits": 6' "${sweep[@]}" --json $grid
expect "cold compiles all anew" 0 '^6 kernels compiled' "${sweep[@]}" --cold $grid
expect "cold data" 0 'nothing was compiled' "${sweep[@]}" --cold-data $grid
# bandwidth OPTION…: GB/s that a sweep has probed for a problem that fits in the first cache.
bandwidth() { "${sweep[@]}" --json "$@" num_heads=1,seq_q=16,head_dim=16 2>"$work/stderr" |
    sed -n 's/.*"bandwidth_gbs": \([0-9]*\).*/\1/p'; }
if ! ldd "$attune" | grep -qE 'lib(a|t|ub)san'; then # which slow down reading from the caches to the speed of memory
    for _ in 1 2 3 4 5; do [ "$(bandwidth --cold-data)" -lt "$(($(bandwidth) * 2 / 3))" ] 2>"$work/none" && break; done
    report $? "their roofline is that of memory"
fi
expect "run-time sizes" 0 'run-time sizes: seq_q=5,seq_kv=6' "${sweep[@]}" --sizes=seq_q=5,seq_kv=6 \
    seq_q=-1,seq_kv=-1,head_dim=8
expect "a run-time size twice" 2 "sizes: seq_q is given twice" "${sweep[@]}" --sizes=seq_q=5,seq_q=6 \
    seq_q=-1,head_dim=8
expect "a run-time size that is no number" 2 "sizes: seq_q is 'x', which is not a whole number" "${sweep[@]}" \
    --sizes=seq_q=x seq_q=-1,head_dim=8
printf '# two grids\n%s\nembed_dim=16,num_heads=2,seq_q=2:3 # blocks\n' $grid >"$work/grids"
expect "problems that share a kernel share the miss" 0 \
    '^1 kernel compiled in .*, 0 cached already; 3 more problems share them' "${sweep[@]}" \
    num_heads=1:4,seq_q=6,head_dim=8
expect "a file of grids" 0 '^2 kernels compiled in .*, 6 cached already' "${sweep[@]}" --limit=8 "$work/grids"

# Noise: one sample has no spread, ten have some, and 0 % is too little for them.
expect "without noise nothing is measured again" 0 '"measurements": 1' "${sweep[@]}" --max-spread=0 --json \
    num_heads=2,seq_q=4,head_dim=8
expect "noisy problems are measured again, and it is said" 0 '^1 problem was measured more than once' "$attune" sweep \
    --samples=10 \
    --max-spread=0% num_heads=2,seq_q=4,head_dim=8
expect "unless they need not be quiet" 0 '"measurements": 1' "$attune" sweep --samples=10 --max-spread=none --json \
    num_heads=2,seq_q=4,head_dim=8
expect "a spread that is none" 2 "percentage from 0 to 1000, or none, not 'x'" "${sweep[@]}" --max-spread=x $grid

# A file made with a larger limit, or none.
once=num_heads=2,seq_q=4,head_dim=8
expect "noise that does not matter" 0 '%$' "$attune" sweep --samples=10 --max-spread=none -o "$work/noisy.json" $once
expect "is measured again if it does" 0 '^1 measured now; 0 had results' \
    "$attune" sweep --samples=10 --max-spread=0 -o "$work/noisy.json" $once
[ "$(grep -c '"measurements": 3' "$work/noisy.json")" -eq 1 ] && [ "$(grep -c '"median_us"' "$work/noisy.json")" -eq 1 ]
report $? "up to three times in all, in one row"
expect "and not a fourth time" 0 '^0 measured now; 1 had results' \
    "$attune" sweep --samples=10 --max-spread=0 -o "$work/noisy.json" $once

# A share that cannot be.
sed 's/"fraction_of_peak": [0-9.e-]*/"fraction_of_peak": 1.5/' "$work/noisy.json" >"$work/above.json"
expect "shares above the peak are marked" 0 ' 150\.0 % !' "$attune" sweep --samples=10 --max-spread=none -o \
    "$work/above.json" $once
grep -q 'warning: 1 share is above 100 % of the peak: the machine was busy' "$work/stderr"
report $? "and not to be trusted"

# CSV.
"$attune" sweep --samples=3 --csv -o "$work/same.json" $once >"$work/first.csv" 2>"$work/stderr"
"$attune" sweep --samples=3 --max-spread=none --csv -o "$work/same.json" $once >"$work/second.csv" 2>"$work/stderr"
same "CSV of a sweep and of its file" "$work/first.csv" "$work/second.csv"
"${sweep[@]}" --csv $grid,attn_mask_dims=qk >"$work/stdout" 2>"$work/stderr"
[ $? -eq 0 ] && [ "$(wc -l <"$work/stdout")" -eq 7 ]
report $? "CSV has a line of names and one for each problem"
head -n 1 "$work/stdout" | grep -q '^seq_q,head_dim,num_heads,attn_mask_dims,seq_kv,sizes,engine,threads,median_us,'
report $? "the fields come first"
[ "$(sed 1d "$work/stdout" | cut -d, -f1-5 | paste -sd' ')" = \
    "4,8,2,qk,4 4,16,2,qk,4 8,8,2,qk,8 8,16,2,qk,8 16,8,2,qk,16 16,16,2,qk,16" ]
report $? "with the values of each problem"
grep -q ',"num_heads=2,seq_q=4,seq_kv=4,head_dim=8,attn_mask_dims=qk","strategy=' "$work/stdout"
report $? "text with commas is quoted"
# A field, quoted or not, and a comma or the end of the line.
[ "$(sed -E 's/("([^"]|"")*"|[^",]*)(,|$)/x/g' "$work/stdout" | sort -u | wc -l)" -eq 1 ]
report $? "all lines have as many cells"
expect "a field that some problems leave out is empty for them" 0 '^4,8,1,4,,,jit,' "${sweep[@]}" --csv \
    seq_q=4,head_dim=8 seq_q=5,head_dim=8,is_causal=1
expect "cold and warm" 2 'cold and --warm contradict' "${sweep[@]}" --cold --warm $grid
expect "CSV and JSON" 2 'both want standard output' "${sweep[@]}" --csv --json $grid

# The file.
expect "results go to a file" 0 'nothing was compiled' "${sweep[@]}" -o "$work/out.json" \
    seq_q=4,8,num_heads=2,head_dim=8
grep -c '"median_us"' "$work/out.json" >"$work/stdout" && [ "$(cat "$work/stdout")" -eq 2 ]
report $? "two of them"
before=$(grep -m1 -A99 '"results"' "$work/out.json" | grep -m1 median_us)
expect "a larger sweep goes on with it, and says so" 0 '^4 measured now; 2 had results in .*out.json' "${sweep[@]}" -o \
    "$work/out.json" $grid
[ "$(grep -c '"median_us"' "$work/out.json")" -eq 6 ] && [ "$(count '^ +[0-9]+ +(8|16) .*%$')" -eq 6 ] &&
    [ "$before" = "$(grep -m1 -A99 '"results"' "$work/out.json" | grep -m1 median_us)" ]
report $? "what was measured stays"
cp "$work/out.json" "$work/kept.json"
refuse "a file of other settings" 'it was measured with samples=1, and this sweep has samples=2' \
    "$attune" sweep --samples=2 -o "$work/out.json" $grid
same "it is left as it was" "$work/out.json" "$work/kept.json"
sed 's/"machine": "[a-z0-9-]*"/"machine": "zen0"/' "$work/kept.json" >"$work/other.json"
refuse "a file for another tuning class" 'it was measured with machine="zen0", and this sweep has machine=' \
    "${sweep[@]}" -o "$work/other.json" $grid
head -c 500 "$work/kept.json" >"$work/cut.json"
refuse "a file that is cut off" 'no sweep that could be continued' "${sweep[@]}" -o "$work/cut.json" $grid
sed 's/"gflops"/"flops"/' "$work/kept.json" >"$work/odd.json"
refuse "a file whose results are something else" 'its results are damaged' "${sweep[@]}" -o "$work/odd.json" $grid
expect "results of bench" 0 'of peak' "$attune" bench --samples=3 -o "$work/bench.json" \
    num_heads=2,seq_q=4,head_dim=8
refuse "a file of bench" 'is the output of attune bench, not of a sweep' "${sweep[@]}" -o "$work/bench.json" $grid
refuse "a file that cannot be written" '/proc/none' "${sweep[@]}" -o /proc/none $grid

expect "a problem that is there twice is measured once" 0 'nothing was compiled: all 2' "${sweep[@]}" \
    seq_q=4,8,4,num_heads=2,head_dim=8
expect "in other words, too" 0 'all 1 kernel|1 kernel was cached' "${sweep[@]}" seq_q=4,num_heads=2,head_dim=8 \
    "head_dim=8, seq_q=4,num_heads=2,seq_kv=4,is_causal=0"
[ "$(count '%$')" -eq 1 ]
report $? "and has one row"
expect "of a file the table has what was asked for" 0 'had results in' "${sweep[@]}" -o "$work/out.json" \
    seq_q=4,num_heads=2,head_dim=8,16
[ "$(count '%$')" -eq 2 ]
report $? "and no other rows"
expect "without a base, cold compiles what a base has" 0 '^2 kernels compiled' env ATTUNE_CACHE_BASE="$work/cache" \
    "${sweep[@]}" --cold seq_q=4,8,num_heads=2,head_dim=8

# A disk that is full in the middle: what was measured before stays.
expect "on a full disk there is what was measured" 1 '^ +17 .*%$' bash -c \
    'ulimit -f 3; trap "" XFSZ; "$@" 2>&1 | cat; exit "${PIPESTATUS[0]}"' - \
    "${sweep[@]}" -o "$work/full.json" seq_q=17:40,num_heads=2,head_dim=8
[ "$(count 'full.json: cannot write: File too large')" -eq 1 ]
report $? "and a sentence that names the file"
[ "$(grep -c '"median_us"' "$work/full.json")" -ge 1 ] && [ "$(tail -n 1 "$work/full.json")" = "}" ]
report $? "which is whole"
# Only what is JSON is continued.
expect "with room again it goes on" 0 '^2[0-9] measured now; [1-9] had results' "${sweep[@]}" -o "$work/full.json" \
    seq_q=17:40,num_heads=2,head_dim=8
expect "a problem that cannot be measured does not keep the others from it" 1 '1 of 3 problems could not be measured' \
    "${sweep[@]}" num_heads=2,head_dim=8,seq_kv=4,seq_q=4,dynamic,5
[ "$(count '%$')" -eq 2 ]
report $? "which have their rows"
expect "nor does one whose number of keys is not set" 1 'seq_kv is not set' "${sweep[@]}" \
    num_heads=2,head_dim=8,seq_q=4,seq_kv=dynamic,5
[ "$(count '%$')" -eq 1 ]
report $? "which has no row"
grep -q '^attune: num_heads=2,head_dim=8,seq_q=4,seq_kv=dynamic could not be measured$' "$work/stderr"
report $? "and is named"
for rotary in op=rotary rotary_interleaved=1 has_position_ids=1 has_causal_offsets=1 is_causal=1,causal_offset=3 \
    seq_new=4,seq_kv=70 causal_align=bottom_right,seq_kv=70; do
    expect "rotary positions as many as needed, $rotary" 0 '%$' "${sweep[@]}" \
        rotary_dim=8,num_heads=2,seq_q=16,head_dim=8,$rotary
done
refuse "a directory as the file" 'cannot' "${sweep[@]}" -o "$work" $grid
expect "no file to go on with" 2 'json prints' "${sweep[@]}" -o - $grid

refuse "a grid that explodes" '4000 problems, more .*; --limit=4000' "${sweep[@]}" seq_q=1:2000,head_dim=8,16
refuse "a long range" '100000 problems, more .*; --limit=100000 allows' "${sweep[@]}" seq_q=1:100000,head_dim=8
refuse "a range longer than any limit" '200000000 problems; the limit is 1000, and --limit allows at most 10000000' \
    "${sweep[@]}" \
    seq_q=1:100000000,head_dim=8,16
refuse "a grid beyond counting" 'more problems than can be counted' "${sweep[@]}" \
    seq_q=1:65536,seq_kv=1:65536,head_dim=1:65536,batch=1:65536
refuse "one problem more than the limit" '7 problems, more .* of 6; --limit=7' "${sweep[@]}" --limit=6 $grid \
    num_heads=1,seq_q=1,head_dim=8
refuse "a manifest with schedules" 'names a schedule, but' "${sweep[@]}" "num_heads=1,seq_q=1,head_dim=8 | lanes=16"
refuse "a range that never ends" 'never ends' "${sweep[@]}" seq_q=0:9:*2,head_dim=8
refuse "a grid of one bad problem" 'seq_q=-4,head_dim=8: seq_q is -4' "${sweep[@]}" seq_q=-4,head_dim=8
expect "a combination that is no problem" 1 'num_kv_heads=3,seq_q=4,head_dim=8 is left out: .*num_kv_heads' \
    "${sweep[@]}" num_heads=4,num_kv_heads=1:4,seq_q=4,head_dim=8
[ "$(count '%$')" -eq 3 ] && grep -q '1 combination of the grid was refused' "$work/stderr"
report $? "does not keep the others from being measured"
expect "a grid without a problem" 1 'attune refuses every combination of the grid' "${sweep[@]}" seq_q=-4,-3,head_dim=8
refuse "a file of grids that is missing" 'nothing' "${sweep[@]}" "$work/nothing"
printf 'seq_q=4,head_dim=8\nseq_q=1:\n' >"$work/bad"
refuse "a line that is no grid" 'bad, line 2: ' "${sweep[@]}" "$work/bad"
expect "blanks for commas" 1 'arguments are separate grids; join keys with commas' \
    "${sweep[@]}" num_heads=2 seq_q=4 head_dim=8
expect "no grid" 2 'a GRID is needed' "$attune" sweep

for form in --json --csv --cold; do
    "${sweep[@]}" $form num_heads=2,seq_q=4,head_dim=8 2>"$work/stderr" >/dev/full
    [ $? -eq 1 ] && grep -q 'standard output: No space left on device' "$work/stderr"
    report $? "a full disk behind stdout, $form"
done

# Ctrl-C, and kill -9: what was measured is in the file, and the same command goes on.
grid=seq_q=1:30,num_heads=2,head_dim=8
"$attune" sweep --samples=40 --max-spread=none -o "$work/long.json" $grid >"$work/stdout" 2>"$work/stderr" </dev/null &
pid=$!
soon grep -qs median_us "$work/long.json"
kill -INT $pid
wait $pid
status=$?
[ $status -eq 1 ] && grep -q 'interrupted after .* of 30 problems; the same command continues' "$work/stderr" &&
    grep -q median_us "$work/long.json"
report $? "an interrupted sweep says how to go on"
expect "and goes on" 0 'nothing was compiled|cached already' "$attune" sweep --samples=40 --max-spread=none -o \
    "$work/long.json" $grid
[ "$(grep -c '"median_us"' "$work/long.json")" -eq 30 ]
report $? "to the end"

"$attune" sweep --samples=40 --max-spread=none -o "$work/killed.json" $grid >"$work/stdout" 2>"$work/stderr" \
    </dev/null &
pid=$!
soon grep -qs median_us "$work/killed.json"
kill -KILL $pid
wait $pid 2>"$work/none"
before=$(grep -c median_us "$work/killed.json")
expect "a killed one, too" 0 "^$((30 - before)) measured now; $before had results" "$attune" sweep --samples=40 \
    --max-spread=none -o "$work/killed.json" $grid

# In the middle of a long problem, which would take minutes.
"$attune" sweep --samples=100000 -o "$work/one.json" num_heads=2,seq_q=4,32,head_dim=8 >"$work/stdout" \
    2>"$work/stderr" </dev/null &
pid=$!
soon grep -qsE '"(hits|misses)": [1-9]' "$work/one.json"
kill -TERM $pid
wait $pid
status=$?
[ $status -eq 1 ] && grep -q 'interrupted after 0 of 2 problems; the same' "$work/stderr" &&
    [ "$(wc -l <"$work/stderr")" -le 2 ] &&
    [ ! -s "$work/stdout" ]
report $? "an interruption does not wait for the problem at hand"

# Two sweeps with one file.
"$attune" sweep --samples=100000 -o "$work/shared.json" num_heads=2,seq_q=4,32,head_dim=8 >"$work/none" 2>&1 \
    </dev/null &
pid=$!
soon grep -qsE '"(hits|misses)": [1-9]' "$work/shared.json"
ln -s shared.json "$work/link.json"
refuse "a file that another sweep writes to" 'another sweep writes to .*link.json now' "$attune" sweep \
    --samples=100000 -o "$work/link.json" $grid
kill -KILL $pid
wait $pid 2>"$work/none"
rm "$work/shared.json" "$work/link.json"
expect "the lock of a dead one does not count" 0 'cached' "${sweep[@]}" -o "$work/shared.json" \
    num_heads=2,seq_q=4,head_dim=8
[ ! -e "$work/shared.json.lock" ]
report $? "and the lock is gone with the sweep"
: >"$work/empty.json"
expect "an empty file is a new one" 0 'cached' "${sweep[@]}" -o "$work/empty.json" num_heads=2,seq_q=4,head_dim=8
expect "a temporary file of a dead process with this number" 0 'cached' bash -c ': >"$0.$$.tmp" && exec "$@"' \
    "$work/stale.json" \
    "${sweep[@]}" -o "$work/stale.json" num_heads=2,seq_q=4,head_dim=8
[ -s "$work/stale.json" ] && [ "$(find "$work" -name '*.tmp' | wc -l)" -eq 0 ]
report $? "gives way"

# A terminal sees how far it is, and nothing of that in what is kept.
if command -v script >"$work/none"; then
    script -qec "'$attune' sweep --samples=1 num_heads=2,seq_q=4,8,head_dim=8" "$work/none" >"$work/stdout" \
        2>"$work/stderr" </dev/null
    grep -q '1 of 2 problems measured, about [0-9]* s left' "$work/stdout"
    report $? "progress on a terminal"
    script -qec "'$attune' sweep --samples=1 num_heads=2,head_dim=8,seq_kv=4,seq_q=dynamic,5" "$work/none" \
        >"$work/stdout" 2>"$work/stderr" </dev/null
    grep -q $'measured\x1b\\[K\r\x1b\\[Kattune: [^ ]*: --sizes: seq_q is not set' "$work/stdout"
    report $? "which a message replaces"
fi
echo "1..$number"
