#!/usr/bin/env bash
# What `attune-lab check` finds right and wrong, and what scripts/check_random.sh makes of many such checks.
# Needs ATTUNE, the command.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/cli.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
attune=$ATTUNE

# lse may be of other keys: exp(score - lse) is 4e47 here, which is infinite in f32.
expect "weights beyond the range of f32" 0 '^[0-9]+ passed, 0 failed$' "$attune-lab" check \
    op=weights,batch=2,num_heads=1,seq_q=5,seq_kv=1,head_dim=38,softmax_scale=0.625,lse_strides=0:54:1 \
    --threads=1 --inputs=large --seed=1654597137
# Two entries share an lse, which is that of the row without keys.
expect "an lse of a row without keys" 0 '^[0-9]+ passed, 0 failed$' "$attune-lab" check --threads=1 --inputs=ordinary \
    op=weights,batch=2,num_heads=1,seq_q=1,seq_kv=3,head_dim=1,attn_mask_dims=bk,lse_strides=0:1:22 --seed=3859701302
# Whatever the scores are: +infinity and NaN, too.
expect "infinite scores of a row without keys" 0 '^1 passed, 0 failed$' "$attune-lab" check --threads=1 --isa=x86-64 \
    --inputs=nonfinite op=weights,num_heads=5,seq_q=1,seq_kv=14,head_dim=3,lse_strides=33:0:8 --seed=3308535514
scores=integer=scores
# With v_in_k the values are a part of k: scores by integers, values by numbers from the same codes.
expect "codes that are keys and values" 0 '^[0-9]+ passed, 0 failed$' "$attune-lab" check --threads=1 \
    --inputs=ordinary \
    num_heads=4,num_kv_heads=2,seq_q=1,seq_kv=70,head_dim=96,head_dim_v=32,k_dtype=i4,k_scales=token,v_in_k=1,$scores
# The reference left the scales of new values out of the codes of probabilities.
expect "scales of values that are appended" 0 '^1 passed, 0 failed$' "$attune-lab" check --threads=1 --inputs=ordinary \
    --isa=x86-64 --seed=1 num_heads=1,seq_q=1,seq_kv=2,head_dim=1,kv_dtype=i8,v_scales=token,integer=all,seq_new=1
# A number that is appended lies on the border between two codes of f8 as nearly as f32 can tell.
expect "a code that may be either of two" 0 '^all of f32 +[0-9.]+e-07 +.* [0-9.]+e-06 ' "$attune-lab" check --random 1 \
    --seed 77777777777 --first 864
# The bounds prover gave up on a minimum of open sizes.
expect "weights with short masks of open sizes" 0 '^[0-9]+ passed, 0 failed$' "$attune-lab" check --isa=x86-64 \
    seq_q=dynamic,seq_kv=dynamic,head_dim=8,max_seq_kv=256,short_masks=1,attn_mask_dims=k,attn_bias_dims=qk,\
weights_mode=softmax \
    --sizes=seq_q=5,seq_kv=70,mask_seq_kv=50,bias_seq_kv=61 --threads=1 --inputs=ordinary

# A mask without any row divided by zero.
expect "a mask without rows" 0 '^1 passed, 0 failed$' "$attune-lab" check --random 1 --seed 1818 --first 519

expect "random functions" 0 '^25 passed, 0 failed$' "$attune-lab" check --random 25 --functions --seed 4
grep -q '^25 random problems with functions, seed 4, first 0, isa ' "$work/stdout"
report $? "whose heading says so"
expect "random functions by the virtual machine" 0 '^40 passed, 0 failed$' "$attune-lab" check --random 40 --functions \
    --engine=vm --max-flops 2e4
expect "functions of a given problem" 2 '--functions is for --random' "$attune-lab" check --functions \
    num_heads=1,seq_q=2

expect "a command for the virtual machine names it" 1 '^    attune-lab check .* --engine=vm --seed=' \
    env ATTUNE_STRICT=1 "$attune-lab" check --engine=vm --threads=1 --inputs=ordinary --isa=x86-64 \
    num_heads=1,seq_q=2,head_dim=4

expect "a command quotes functions for the shell" 1 \
    "^    attune-lab check 'num_heads=1,.*score_mod=\"2.0 \* score\"' --schedule=" \
    env ATTUNE_STRICT=1 "$attune-lab" check --threads=1 --inputs=ordinary --isa=x86-64 \
    'num_heads=1,seq_q=2,head_dim=4,score_mod="2 * score"'

# Where computed numbers become codes, one that is a whole code off decides any sum: it counts for none.
for ((i = 40; i < 120; i++)); do
    rm -f "$work/record"
    ATTUNE_RECORD=$work/record ATTUNE_COMPILE=never "$ATTUNE-lab" check --random 1 --first $i --max-flops=1e4 --json \
        >"$work/stdout" 2>"$work/stderr"
    grep -Eq 'integer=|x_planes=' "$work/record" && break
done
grep -Eq 'integer=|x_planes=' "$work/record" && grep -q '"errors": \[\]' "$work/stdout" &&
    grep -q '"passed": 1' "$work/stdout"
report $? "errors of codes are in no sum"

# The bounds prover did not know a key again that had been an i32 in the meantime.
window=is_causal=1,causal_align=bottom_right,window_left=9
expect "a tensor of open length under a window" 0 '^[0-9]+ passed, 0 failed$' "$attune-lab" check --isa=x86-64 \
    --threads=1 --inputs=ordinary --sizes=seq_kv=45 \
    "seq_q=17,seq_kv=dynamic,head_dim=8,$window,tensors=\"t:f32[kv]\",mask_mod=\"t[kv] < 1\""

# fake SCRIPT: the command, as check_random.sh calls it.
fake() {
    mkdir -p "$work/build"
    printf '#!/usr/bin/env bash\n%s\n' "$1" >"$work/build/attune-lab"
    chmod +x "$work/build/attune-lab"
}
random() { BUILD="$work/build" JOBS=1 bash scripts/check_random.sh 7 3 5; }
fake 'echo "$3 passed, 0 failed"'
expect "chunks are added up" 0 '^7 passed, 0 failed$' random
fake 'echo "FAILED: errors of f32"; echo "    attune-lab check --random=$3 --first=$5"
    echo "$3 passed, 1 failed"; exit 1'
expect "errors that are too large as a whole count" 1 '^7 passed, 2 failed$' random
grep -qx '    attune-lab check --random=2 --first=5' "$work/stdout"
report $? "with the command that repeats them"
fake 'echo "$3 passed, 0 failed"; exit 139'
expect "a crash counts" 1 '^7 passed, 2 failed$' random
grep -qx '    attune-lab check --random=2 --first=5 --seed=3' "$work/stdout"
report $? "with a command, too"

echo "1..$number"
