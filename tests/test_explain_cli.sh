#!/usr/bin/env bash
# `attune explain` from outside. Needs ATTUNE, the command, and an ATTUNE_CACHE_DIR of its own.
set -u
cd "$(dirname "$0")/.." || exit 1
. tests/support/cli.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
attune=$ATTUNE
small=num_heads=2,seq_q=50,head_dim=16

for pattern in '^problem +num_heads=2,seq_q=50' '^why +attune.s rules' '^one task' '^model +[0-9.e+]+ cycles' '^roofline' \
    '^predicted +[0-9.]+ us' '^measured +[0-9.]+ us: [0-9.]+ % of the peak' '^ +phase0 +[1-9]' 'multiply .* spill$'; do
    expect "it says $pattern" 0 "$pattern" "$attune" explain $small
done
expect "a block" 0 'products: ' "$attune" explain embed_dim=32,num_heads=2,seq_q=8
expect "decoding" 0 'few, so that reading' "$attune" explain num_heads=8,num_kv_heads=2,seq_q=1,seq_kv=300,head_dim=32
expect "lengths of the run" 0 '^measured' "$attune" explain --sizes=seq_q=5,seq_kv=9 seq_q=-1,seq_kv=-1,head_dim=8
expect "another schedule" 0 'why +it was asked for' "$attune" explain --schedule=score_unroll=1 $small
"$attune" explain --dry-run $small >"$work/stdout" 2>"$work/stderr" && ! grep -q measured "$work/stdout"
report $? "a dry run measures nothing"
expect "two threads" 0 '^measured' "$attune" explain --threads=2 $small
"$attune" explain --json $small >"$work/stdout" 2>"$work/stderr" &&
    python3 - "$work/stdout" <<'PYTHON'
import json, sys
e = json.load(open(sys.argv[1]))
assert e["schema"] == 1 and e["chosen_by"] == "rules" and e["is_measured"]
assert e["loops"] and all(loop["instructions"] >= loop["multiply"] > 0 for loop in e["loops"])
parts = ("scores", "softmax", "values", "tasks", "products")
assert abs(sum(e["model_cycles"][p] for p in parts) - e["model_cycles"]["all"]) < 1e-3 * e["model_cycles"]["all"]
assert e["measured"]["median_us"] > 0 and e["measured"]["predicted_us"] > 0
PYTHON
report $? "JSON holds the same"
refuse "a schedule that is not legal" 'lanes must be' "$attune" explain --schedule=lanes=3 $small
refuse "a bad problem" 'head_dim' "$attune" explain num_heads=2,seq_q=4,head_dim=-1
expect "no problem" 2 'a PROBLEM is needed' "$attune" explain
expect "two problems" 2 'one PROBLEM only' "$attune" explain $small $small
echo "1..$number"
