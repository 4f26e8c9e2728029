#!/usr/bin/env bash
# Every combination of types that attune.h allows beside the usual ones, in attention and in the block, on every
# instruction set that this CPU runs: machine code against interpreter and reference. Needs ATTUNE, the command.
set -u
[ -z "${SANITIZE:-}" ] || { echo "1..0"; exit 77; } # a minute there, in which it does what others do, with other types
cd "$(dirname "$0")/../.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. tests/support/cli.sh

# check PROBLEM [SIZES]: with ordinary data, and with what no row may see. With ATTUNE_TEST_SHORT=yes, as in .ci/run,
# every second problem has the one, and the others have the other.
checks=0
check() {
    local inputs sorts=(ordinary hidden)
    checks=$((checks + 1))
    [ "${ATTUNE_TEST_SHORT:-}" != yes ] || sorts=("${sorts[checks % 2]}")
    for inputs in "${sorts[@]}"; do
        expect "$1, $inputs" 0 '^[1-9][0-9]* passed, 0 failed$' "$ATTUNE-lab" check "$1" --sizes="${2:-}" --threads=2 \
            --inputs=$inputs
    done
}

many=num_heads=4,num_kv_heads=2,seq_q=37,seq_kv=53,head_dim=24,is_causal=1,causal_align=bottom_right,has_lse=1
one=batch=2,num_heads=8,num_kv_heads=2,seq_q=1,seq_kv=131,head_dim=40
for types in dtype=f64 dtype=f16 dtype=bf16 kv_dtype=bf16 kv_dtype=f16 dtype=bf16,kv_dtype=f16 dtype=f16,v_dtype=bf16 \
    softmax_precision=f64 dtype=f16,k_dtype=f64 kv_dtype=i8 dtype=f16,kv_dtype=i8 \
    dtype=bf16,kv_dtype=i8,kv_scales=token \
    kv_dtype=f8 dtype=bf16,kv_dtype=f8,kv_scales=head dtype=f64,kv_dtype=i8 k_dtype=i8,v_dtype=bf16 \
    k_dtype=f16,v_dtype=f8; do
    check $many,$types
    check $one,$types
done

# Factors that are rounded to bf16 where the instruction set multiplies pairs, and some that must not be.
many32=${many/head_dim=24/head_dim=32}
rounded=matmul_precision=bf16
for types in $rounded kv_dtype=f16,$rounded kv_dtype=i8,kv_scales=inline,$rounded \
    kv_dtype=i4,kv_scales=inline,$rounded \
    kv_dtype=i4,kv_scales=channel_min,$rounded k_dtype=f16,v_dtype=f8,v_scales=token,$rounded \
    dtype=bf16,kv_dtype=i4,kv_scales=inline_min,$rounded dtype=bf16,matmul_precision=f32; do
    check $many32,$types
done

# Vectors of codes that become numbers by tables, and pairs of codes.
wide=num_heads=8,num_kv_heads=2,seq_q=1,seq_kv=131,head_dim=64,head_dim_v=128
for types in kv_dtype=f8 k_dtype=f8 dtype=bf16,kv_dtype=f8,kv_scales=token,has_kv_lens=1 \
    dtype=bf16,v_dtype=f8,has_lse=1; do
    check $wide,$types
done
check $many,dtype=bf16,kv_dtype=f8,kv_scales=token

block=batch=2,embed_dim=48,num_heads=4,num_kv_heads=2,seq_q=21,is_causal=1
cached=batch=2,embed_dim=48,num_heads=4,num_kv_heads=2,seq_q=3,seq_new=3,seq_kv=30,rotary_dim=12
for types in dtype=f64 dtype=f16 dtype=bf16 w_dtype=bf16 w_dtype=f16 dtype=bf16,w_dtype=f32 dtype=f64,w_dtype=f32 \
    w_dtype=f64 \
    dtype=f16,w_dtype=bf16; do
    check $block,$types
    check $cached,$types rotary_positions=40
done
for types in kv_dtype=bf16 kv_dtype=f16 dtype=bf16,k_dtype=f16 dtype=bf16,kv_dtype=i8 \
    dtype=f16,kv_dtype=f8,kv_scales=token dtype=bf16,kv_dtype=f8,kv_scales=token \
    dtype=f64,kv_dtype=i8,kv_scales=token w_dtype=bf16,kv_dtype=i8,kv_scales=token,reproducible=1; do
    check $cached,$types rotary_positions=40
done
ragged=batch=3,embed_dim=32,num_heads=2,is_ragged=1,page_size=4,has_kv_lens=1,rotary_dim=8,causal_align=bottom_right
check $ragged,seq_new=dynamic,kv_dtype=i8,kv_scales=token total_q=12,num_pages=12,max_pages=4,rotary_positions=20
check $ragged,seq_new=dynamic,dtype=bf16,kv_dtype=f8 total_q=12,num_pages=12,max_pages=4,rotary_positions=20

# Prefill of a ragged batch whose keys have scales of their own: where the last key is, only tables tell.
schedule=strategy=q_lanes,lanes=8,score_keys=4,score_row_vectors=2,score_columns=1,value_columns=1,value_row_vectors=2
schedule+=,value_keys=1,task_row_vectors=8,kv_tile=112
last=num_heads=1,seq_q=dynamic,seq_kv=dynamic,head_dim=1,v_dtype=i8,v_scales=token,has_kv_lens=1,is_ragged=1
last+=,seq_new=dynamic
expect "scales of a ragged batch by lanes of queries, for AVX2" 0 '^kernel @attention' \
    "$ATTUNE" compile --target=avx2 --emit=ir --schedule=$schedule $last
expect "scales of a ragged batch by lanes of queries" 0 '^[1-9][0-9]* passed, 0 failed$' \
    "$ATTUNE-lab" check --schedule=${schedule/lanes=8/lanes=4} $last --sizes=total_q=12,total_kv=400
echo "1..$number"
