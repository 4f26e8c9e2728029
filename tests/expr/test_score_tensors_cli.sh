#!/usr/bin/env bash
# Tensors with an element for each row and key in score_mod, against the interpreter, bit for bit, and the reference:
# keys loaded some at once and transposed, or one by one where they do not come out even. Needs ATTUNE, the command.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/cli.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

check() { checked "$1" --inputs=ordinary "${@:2}"; }

sizes=num_heads=4,seq_q=37,head_dim=16
wide=--schedule=strategy=q_lanes,lanes=4,score_row_vectors=2,task_row_vectors=4,score_keys=4,kv_tile=32
check "of heads" "$sizes,seq_kv=64,tensors=\"bias:f32[h, q, kv]\",score_mod=\"score + bias[h, q, kv]\""
check "several vectors of rows" "$wide" \
    "$sizes,seq_kv=64,tensors=\"t:f32[q, kv]\",score_mod=\"score * t[q, kv]\""
check "heads that share keys" "$sizes,num_kv_heads=2,seq_kv=64,tensors=\"t:f32[h, kv]\",score_mod=\"score + t[h, kv]\""
check "two of them, halves and bf16" \
    "$sizes,seq_kv=64,tensors=\"t:f16[b, q, kv], u:bf16[q, kv]\",score_mod=\"score * t[b, q, kv] + u[q, kv]\""
check "in f64" "$sizes,seq_kv=64,dtype=f64,tensors=\"t:f32[q, kv]\",score_mod=\"score + t[q, kv]\""
check "used twice, beside a mask" \
    "$sizes,seq_kv=96,tensors=\"t:f32[q, kv]\",score_mod=\"score + t[q, kv] * t[q, kv]\",mask_mod=\"t[q, kv] > -0.5\""
check "keys that do not come out even" "$sizes,seq_kv=61,tensors=\"t:f32[q, kv]\",score_mod=\"score + t[q, kv]\""
check "keys along another dim" "$sizes,seq_kv=64,tensors=\"t:f32[kv, q]\",score_mod=\"score + t[kv, q]\""
check "any number of keys" --sizes=seq_kv=50,seq_q=20 \
    "num_heads=4,seq_q=dynamic,seq_kv=dynamic,head_dim=16,tensors=\"t:f32[q, kv]\",score_mod=\"score + t[q, kv]\""
# Each machine builds it, and so proves that the index is in range.
open='num_heads=1,seq_q=dynamic,seq_kv=dynamic,head_dim=1,window_left=0,max_seq_kv=65,tensors="t:f16[kv_h, kv, 15]",'\
'mask_mod="t[kv_h, kv, clamp(q)] > 0.0"'
tile=--schedule=strategy=q_lanes,lanes=16,kv_tile=92,value_columns=1,value_row_vectors=1
case_name="a tile that holds all keys there may be, a window and an index that is clamped"
expect "$case_name, for AVX-512" 0 '^kernel @attention' "$ATTUNE" compile --target=avx512 --emit=ir $tile "$open"
if can_run avx512; then
    check "$case_name" --sizes=seq_q=20,seq_kv=60 --isa=avx512 --engine=vm $tile "$open"
else
    skip "$case_name" "this CPU cannot run avx512"
fi
echo "1..$number"
