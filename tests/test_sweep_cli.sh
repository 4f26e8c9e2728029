#!/usr/bin/env bash
# `attune sweep` from outside: grids, the cache it warms, the file it continues, and what it refuses. Needs ATTUNE, the
# command, and an ATTUNE_CACHE_DIR of its own.
set -u
cd "$(dirname "$0")/.." || exit 1
. tests/support/cli.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
attune=$ATTUNE
grid=seq_q=4:16:*2,head_dim=8,16,num_heads=2
sweep=("$attune" sweep --samples=1)
export ATTUNE_CACHE_DIR=$work/cache

# count PATTERN: lines of the last output that match.
count() { grep -cE -- "$1" "$work/stdout"; }

expect "a sweep compiles and measures all" 0 '^6 kernels compiled in .*, 0 were cached' "${sweep[@]}" $grid
[ "$(count '^num_heads=2,seq_q=')" -eq 6 ]
report $? "its table has a row for each"
expect "a second one compiles nothing and says so" 0 '^nothing was compiled: all 6 kernels' "${sweep[@]}" $grid
expect "that is what forbidden misses allow" 0 'nothing was compiled' env ATTUNE_STRICT=1 "${sweep[@]}" $grid
expect "JSON counts the cache" 0 '"hits": 6' "${sweep[@]}" --json $grid
expect "cold compiles all anew" 0 '^6 kernels compiled' "${sweep[@]}" --cold $grid
expect "cold data" 0 'nothing was compiled' "${sweep[@]}" --cold-data $grid
expect "run-time sizes" 0 'seq_q=dynamic' "${sweep[@]}" --sizes=seq_q=5,seq_kv=6 seq_q=-1,seq_kv=-1,head_dim=8
printf '# two grids\n%s\nembed_dim=16,num_heads=2,seq_q=2:3 # blocks\n' $grid >"$work/grids"
expect "a file of grids" 0 '^2 kernels compiled in .*, 6 were cached' "${sweep[@]}" --limit=8 "$work/grids"

# The file.
expect "results go to a file" 0 'nothing was compiled' "${sweep[@]}" -o "$work/out.json" seq_q=4,8,num_heads=2,head_dim=8
grep -c '"median_us"' "$work/out.json" >"$work/stdout" && [ "$(cat "$work/stdout")" -eq 2 ]
report $? "two of them"
before=$(grep -m1 -A99 '"results"' "$work/out.json" | grep -m1 median_us)
expect "a larger sweep goes on with it" 0 'nothing was compiled' "${sweep[@]}" -o "$work/out.json" $grid
[ "$(grep -c '"median_us"' "$work/out.json")" -eq 6 ] &&
    [ "$before" = "$(grep -m1 -A99 '"results"' "$work/out.json" | grep -m1 median_us)" ]
report $? "what was measured stays"
cp "$work/out.json" "$work/kept.json"
refuse "a file of other settings" 'its samples is 1, and this sweep.s 2' "$attune" sweep --samples=2 -o "$work/out.json" $grid
same "it is left as it was" "$work/out.json" "$work/kept.json"
head -c 500 "$work/kept.json" >"$work/cut.json"
refuse "a file that is cut off" 'no sweep that could be continued' "${sweep[@]}" -o "$work/cut.json" $grid
sed 's/"gflops"/"flops"/' "$work/kept.json" >"$work/odd.json"
refuse "a file whose results are something else" 'its results are damaged' "${sweep[@]}" -o "$work/odd.json" $grid
refuse "a file that cannot be written" '/proc/none' "${sweep[@]}" -o /proc/none $grid

expect "a problem that is there twice is measured once" 0 'nothing was compiled' "${sweep[@]}" seq_q=4,8,4,num_heads=2,head_dim=8

# Pictures.
expect "a plot as PNG" 0 'nothing was compiled' "${sweep[@]}" --plot="$work/p.png" $grid
[ "$(od -An -tx1 -N8 "$work/p.png" | tr -d ' \n')" = 89504e470d0a1a0a ]
report $? "which it is"
expect "a plot as SVG" 0 'nothing was compiled' "${sweep[@]}" --plot="$work/p.svg" $grid
[ "$(grep -c '<g class="line">' "$work/p.svg")" -eq 2 ] && grep -q '<title>head_dim 16</title>' "$work/p.svg" &&
    [ "$(grep -c '<line ' "$work/p.svg")" -eq 4 ]
report $? "with a line for each head_dim, and a part of it between any two lengths"
expect "nothing to plot against" 1 'nothing to plot against' "${sweep[@]}" --plot="$work/p.png" num_heads=2,seq_q=4,head_dim=8
expect "too many lines" 1 'at most 24 lines' "${sweep[@]}" --plot="$work/p.png" \
    seq_q=1:2,num_heads=2,head_dim=8,causal_offset=0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21,22,23,24,is_causal=1
expect "a plot of two grids" 2 'draws one GRID' "${sweep[@]}" --plot="$work/p.png" $grid $grid
expect "a plot that cannot be written" 1 '/proc/none' "${sweep[@]}" --plot=/proc/none.png $grid

# A disk that is full in the middle: what was measured before stays.
"${sweep[@]}" -o "$work/out.json" $grid >"$work/stdout" 2>&1
expect "a full disk is named" 1 'out.json' bash -c 'ulimit -f 3; trap "" XFSZ; "$@"' - "${sweep[@]}" -o "$work/out.json" \
    seq_q=17:40,num_heads=2,head_dim=8
[ "$(grep -c '"median_us"' "$work/out.json")" -ge 6 ] && python3 -c 'import json, sys; json.load(open(sys.argv[1]))' "$work/out.json"
report $? "and nothing measured is lost"

refuse "a grid that explodes" 'a sweep of 4000 problems; --limit=4000' "${sweep[@]}" seq_q=1:2000,head_dim=8,16
refuse "a grid beyond counting" 'problems and more' "${sweep[@]}" seq_q=1:65536,seq_kv=1:65536,head_dim=1:65536,batch=1:65536
refuse "a range that never ends" 'never ends' "${sweep[@]}" seq_q=0:9:*2,head_dim=8
refuse "a grid with a bad problem" 'seq_q is -4' "${sweep[@]}" seq_q=4,-4,head_dim=8
refuse "a file of grids that is missing" 'nothing' "${sweep[@]}" "$work/nothing"
printf 'seq_q=4,head_dim=8\nseq_q=1:\n' >"$work/bad"
refuse "a line that is no grid" 'bad, line 2: ' "${sweep[@]}" "$work/bad"
expect "no grid" 2 'a GRID is needed' "$attune" sweep

# Ctrl-C: what was measured is in the file, and the same command goes on.
grid=seq_q=1:30,num_heads=2,head_dim=8
"$attune" sweep --samples=40 -o "$work/long.json" $grid >"$work/stdout" 2>"$work/stderr" </dev/null &
pid=$!
for _ in $(seq 200); do grep -q median_us "$work/long.json" 2>"$work/none" && break; sleep 0.1; done
kill -INT $pid
wait $pid
status=$?
[ $status -eq 1 ] && grep -q 'interrupted after .* of 30 problems; the same command goes on' "$work/stderr" &&
    grep -q median_us "$work/long.json"
report $? "an interrupted sweep says how to go on"
expect "and goes on" 0 'nothing was compiled|were cached' "$attune" sweep --samples=40 -o "$work/long.json" $grid
[ "$(grep -c '"median_us"' "$work/long.json")" -eq 30 ]
report $? "to the end"
echo "1..$number"
