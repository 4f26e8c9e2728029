#!/usr/bin/env bash
# `attune explain` from outside. Needs ATTUNE, the command, and an ATTUNE_CACHE_DIR of its own.
set -u
cd "$(dirname "$0")/.." || exit 1
. tests/support/cli.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
attune=$ATTUNE
small=num_heads=2,seq_q=50,head_dim=16

for pattern in '^problem +num_heads=2,seq_q=50' '^why +attune.s rules' '^tiles ' '^model +[0-9.e+]+ cycles' '^roofline' \
    '^machine .* 1 thread$' '^work +[0-9.]+ kFLOP, [0-9.]+ kB' \
    '^predicted +[0-9.]+ µs' '^measured +[0-9.]+ µs: [0-9.]+ % of the peak' '^ +phase0 +[1-9]' 'multiply .* spill$'; do
    expect "it says $pattern" 0 "$pattern" "$attune" explain $small
done
awk 'length > 120 { exit 1 }' "$work/stdout"
report $? "no line is too long"
tiles=strategy=q_lanes,lanes=4,score_rows=4,score_vectors=1,score_unroll=1,value_rows=4,value_vectors=1,value_unroll=1,q_vectors=2,kv_tile=4,kv_chunk=0
expect "what is computed for nothing" 0 '12 rows instead of 10: 16.7 % for nothing' "$attune" explain --dry-run --schedule=$tiles \
    num_heads=1,seq_q=10,seq_kv=12,head_dim=8
expect "nothing is said of nothing" 0 'at most' "$attune" explain --dry-run num_heads=2,seq_q=64,head_dim=16
! grep -q 'for nothing' "$work/stdout"
report $? "where all is needed"

# The picture of the tiles.
expect "causal tiles" 0 '^ +rows +0 to +3  /\.\.$' "$attune" explain --dry-run --schedule=$tiles \
    num_heads=1,seq_q=12,head_dim=8,is_causal=1
grep -qE '^ +rows +4 to +7  #/\.$' "$work/stdout" && grep -qE '^ +rows +8 to +11  ##/$' "$work/stdout" &&
    grep -q 'a task has 2 blocks by 3 tiles' "$work/stdout" && grep -q ', \. left out' "$work/stdout"
report $? "line by line"
expect "a window, heads in groups" 0 '^ +rows +4 to +7  \./\.$' "$attune" explain --dry-run --schedule=$tiles \
    num_heads=2,num_kv_heads=1,seq_q=4,seq_kv=12,head_dim=8,is_causal=1,causal_offset=4,window_left=1
expect "chunks" 0 '^ +rows +0 to +0  #\|#\|#$' "$attune" explain --dry-run num_heads=1,seq_q=1,seq_kv=3000,head_dim=64
expect "many rows" 0 '^ +rows +0 to +9999  #$' "$attune" explain --dry-run num_heads=1,seq_q=10000,seq_kv=64,head_dim=8
expect "what is not attention has no tiles" 0 '^why +there is no choice' "$attune" explain op=merge,num_parts=2,num_heads=2,seq_q=8,head_dim=8
! grep -qE '^(tiles|model|predicted)' "$work/stdout"
report $? "and no model"
expect "a block" 0 'products: ' "$attune" explain embed_dim=32,num_heads=2,seq_q=8
expect "decoding" 0 'few, so that reading' "$attune" explain num_heads=8,num_kv_heads=2,seq_q=1,seq_kv=300,head_dim=32
expect "lengths of the run" 0 '^ +rows +0 to +4  #$' "$attune" explain --sizes=seq_q=5,seq_kv=9 seq_q=-1,seq_kv=-1,head_dim=8
expect "another schedule" 0 'why +it was asked for' "$attune" explain --schedule=score_unroll=1 $small
"$attune" explain --dry-run $small >"$work/stdout" 2>"$work/stderr" && ! grep -q measured "$work/stdout"
report $? "a dry run measures nothing"
"$attune" warm --cache-dir="$work/warm" $small >"$work/stdout" 2>"$work/stderr"
expect "what is explained is the kernel that programs get" 0 '^measured' \
    env ATTUNE_STRICT=1 "$attune" explain --cache-dir="$work/warm" $small
[ "$(find "$work/warm" -name '*.attune' | wc -l)" -eq 1 ]
report $? "and nothing else is left in the cache"
expect "two threads" 0 '^measured' "$attune" explain --threads=2 $small
"$attune" explain --json $small >"$work/stdout" 2>"$work/stderr" &&
    python3 - "$work/stdout" <<'PYTHON'
import json, sys
e = json.load(open(sys.argv[1]))
assert e["schema"] == 1 and e["chosen_by"] == "rules" and e["is_measured"]
assert e["loops"] and all(loop["instructions"] >= loop["multiply"] > 0 for loop in e["loops"])
parts = ("scores", "softmax", "values", "tasks", "products")
assert abs(sum(e["model_cycles"][p] for p in parts) - e["model_cycles"]["all"]) < 1e-3 * e["model_cycles"]["all"]
assert any(loop["accumulators"] > 0 for loop in e["loops"])
t = e["tiles"]
assert t["rows"] == t["keys"] == 50 and t["computed"] == t["blocks"] * t["tiles"] and t["left_out"] == t["compared"] == 0
assert e["measured"]["flops"] == 4 * 2 * 50 * 50 * 16 and e["measured"]["bytes"] == 4 * 2 * 50 * 16 * 4
assert e["measured"]["median_us"] > 0 and e["measured"]["predicted_us"] > 0
PYTHON
report $? "JSON holds the same"
refuse "a schedule that is not legal" 'lanes must be' "$attune" explain --schedule=lanes=3 $small
refuse "a bad problem" 'head_dim' "$attune" explain num_heads=2,seq_q=4,head_dim=-1
refuse "keys whose number is open" 'no keys to be measured with: --sizes' "$attune" explain num_heads=2,seq_q=1,seq_kv=dynamic,head_dim=16
refuse "queries that see nothing" 'no query sees a key' "$attune" explain --json \
    num_heads=2,seq_q=4,head_dim=16,is_causal=1,causal_offset=-4
expect "no problem" 2 'a PROBLEM is needed' "$attune" explain
expect "two problems" 2 'one PROBLEM only' "$attune" explain $small $small
echo "1..$number"
