#!/usr/bin/env bash
# prob_mod against the interpreter, bit for bit, and the reference: one tile of keys and several, hidden keys, scores of
# -infinity that hide nothing, sinks, the weights output, codes. Needs ATTUNE, the command.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/cli.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

check() { checked "$1" "${@:2}"; }

sizes=num_heads=4,num_kv_heads=2,seq_q=19,head_dim=24
check "one tile" "$sizes,seq_kv=21,weights_mode=softmax,prob_mod=\"prob * prob + 0.01\""
check "several tiles" --schedule=kv_tile=16,score_keys=4 \
    "$sizes,seq_kv=150,has_lse=1,prob_mod=\"min(prob, 0.01) + 0.001\""
check "hidden keys" "$sizes,seq_kv=150,is_causal=1,window_left=9,mask_mod=\"kv % 3 != q % 2\",prob_mod=\"prob + 0.5\""
check "scores of -infinity" "$sizes,seq_kv=90,score_mod=\"select(kv > q, -inf, score)\",prob_mod=\"prob + 0.125\""
check "no score at all" "$sizes,seq_kv=90,has_sinks=1,score_mod=\"-inf * float(1 + h)\",prob_mod=\"prob + 0.125\""
check "codes" \
    "$sizes,seq_kv=150,kv_dtype=i8,kv_scales=token,attn_bias_dims=qk,has_sinks=1,prob_mod=\"prob * (1 - prob)\""
check "a tensor" "$sizes,seq_kv=40,dtype=bf16,tensors=\"on:bool[h, q, kv]\",prob_mod=\"select(on[h, q, kv], prob, 0)\""
check "one query" "num_heads=2,seq_q=1,seq_kv=700,head_dim=32,reproducible=1,prob_mod=\"2 * max(0, prob - 0.001)\""
d_lanes=strategy=d_lanes,lanes=4,score_rows=4,score_keys=2,score_column_vectors=1
d_lanes+=,value_rows=2,value_column_vectors=1,value_keys=1,kv_tile=16,kv_chunk=16
refuse "d-lanes" 'prob_mod is computed by strategy=q_lanes' "$ATTUNE" compile \
    "--schedule=$d_lanes" "$sizes,seq_kv=21,prob_mod=\"prob * 2\""
check "scores in integers, of keys that are numbers" "$sizes,seq_kv=150,integer=scores,prob_mod=\"prob * (1 - prob)\""
codes=$sizes,seq_kv=150,kv_dtype=i8,kv_scales=token,prob_mod=\"prob*2\"
refuse "scores of codes" 'prob_mod needs the sum of a row before values' "$ATTUNE" compile "$codes,integer=scores"
refuse "all of codes" 'prob_mod changes probabilities before they are quantised' "$ATTUNE" compile "$codes,integer=all"
echo "1..$number"
