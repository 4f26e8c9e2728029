#!/usr/bin/env bash
# Functions of how far query and key are apart, which q-lanes computes once for a tile: against the interpreter, bit for
# bit, and the reference. Needs ATTUNE, the command.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/cli.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
attune=$ATTUNE

sizes=num_heads=3,seq_q=64,seq_kv=96,head_dim=16
usual=strategy=q_lanes
wide=strategy=q_lanes,lanes=4,score_row_vectors=2,task_row_vectors=4,score_keys=4,kv_tile=32
wide+=,value_by=columns,value_row_vectors=2
rows=strategy=q_lanes,kv_tile=80,score_keys=8,value_by=rows,value_row_vectors=1

# tables PROBLEM SCHEDULE: how many tables of distances its kernel has.
tables() {
    "$attune" compile --target=avx512 --schedule="$2" --emit=ir "$1" 2>"$work/stderr" | grep -c 'alloc of_distances'
}
# check NAME TABLES FIELDS [SCHEDULE]
check() {
    local problem="$sizes,$3" schedule=${4:-$usual}
    [ "$(tables "$problem" "$schedule")" = "$2" ]
    report $? "$1: $2 tables"
    expect "$1" 0 '^[0-9]+ passed, 0 failed' "$ATTUNE-lab" check --threads=1 --inputs=ordinary \
        --schedule="$schedule" "$problem"
}

near='tensors="t:f32[h, 17]",score_mod="score + t[h, clamp(kv - q + 8)]"'
for schedule in "$usual" "$wide" "$rows"; do check "a table" 1 "$near" "$schedule"; done
check "a table of the other direction, as a factor" 1 'tensors="t:f16[40]",score_mod="score * t[clamp(q - kv)]"'
check "a product that is added in one step" 1 'tensors="t:f32[40]",score_mod="score + 0.5 * t[clamp(q - kv)]"'
check "used twice" 1 'tensors="t:f32[40]",score_mod="t[clamp(q - kv)] + score * t[clamp(q - kv)]"' "$wide"
check "beside values of row and key" 2 \
    'tensors="t:f32[40], u:f32[q]",score_mod="score * u[q] + t[clamp(kv - q)] * float(kv) + exp(float(q - kv) * 0.01)"'
check "a logarithm" 1 'score_mod="score - log2(float(1 + abs(q - kv)))"' "$rows"
check "quotients of integers" 1 'score_mod="score + float((kv - q) // 3 + (kv - q) % 5)"'
check "wide integers" 1 'score_mod="score + float((kv - q) * 5000000000 % 7)"'
buckets='select(abs(q - kv) < 8, abs(q - kv), min(15, 8 + int(2 * log(float(max(1, abs(q - kv))) / 8))))'
check "beyond the last key it is no number of f32" 0 \
    'tensors="t:f32[7]",score_mod="score + t[clamp(int(float(kv * 174761 - q * 174761)) % 7)]"'
large=22605091
check "nor of 32 bits" 0 \
    "score_mod=\"score + float((kv * $large + 5000000000 - q * $large - 5000000000) // $large)\""
check "no distance" 0 'tensors="t:f32[9]",score_mod="score * t[clamp(kv - kv + 3)] + t[clamp(kv * 0)]"'
check "buckets as in T5" 1 "tensors=\"t:f32[h, 16]\",score_mod=\"score + t[h, clamp($buckets)]\""
check "an index from a table" 1 'tensors="t:f32[9], u:i32[96]",score_mod="score + t[clamp(u[clamp(kv - q)])]"'
check "multiples" 1 'tensors="t:f32[40]",score_mod="score + t[clamp(2 * kv - (q + q) + 3)]"'
check "another multiple is no distance" 0 'tensors="t:f32[40]",score_mod="score + t[clamp(2 * kv - q)]"'
check "a distance of the score is none" 0 'tensors="t:f32[9]",score_mod="t[clamp(int(score) + kv - q)]"'
check "what is cheap stays" 0 'score_mod="score + 0.25 * (kv - q)"'
check "a mask" 1 'mask_mod="(q - kv) % 3 == 0 & (kv > q | kv < 40)"'
check "a mask from a table, and a score" 2 \
    'tensors="m:bool[40], t:f32[40]",mask_mod="m[clamp(kv - q + 9)]",score_mod="score + t[clamp(q - kv)]"' "$wide"
check "with causality and a window" 1 "is_causal=1,window_left=30,$near"
check "with ALiBi, a cap, a bias and the LSE" 1 "has_alibi_slopes=1,logits_soft_cap=9,attn_bias_dims=qk,has_lse=1,$near"
check "bf16" 1 "dtype=bf16,$near"
check "f64" 1 "dtype=f64,$near"
check "codes, and weights" 1 "kv_dtype=i8,weights_mode=softmax,$near"
check "reproducible" 1 "reproducible=1,$near"
check "a probability" 0 'tensors="t:f32[40]",prob_mod="prob * t[clamp(q - kv)]"'
sizes=num_heads=4,num_kv_heads=2,seq_q=64,seq_kv=96,head_dim=16
check "heads that share keys" 0 "$near"
sizes=num_heads=3,seq_q=70,seq_kv=96,head_dim=16
check "rows that end within a vector" 0 "$near"
sizes=num_heads=3,seq_q=64,seq_kv=97,head_dim=16
check "keys that end within a register tile" 0 "$near"
echo "1..$number"
