#!/usr/bin/env bash
# `attune run op=...` for all described operators: random numbers and files, checked; a wrong result, which a library in
# between makes; sizes, and a sentence for what is wrong. Needs ATTUNE, the command, and an ATTUNE_CACHE_DIR of its own.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/cli.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
attune=$ATTUNE

linear=(op=linear,num_heads=2,head_dim=16,rule=gated_delta,decay=key,has_beta=1,gate=silu,out_norm_eps=1e-6
    --sizes seq=20)
conv=(op=conv,channels=19,taps=3,dilation=2,has_bias=1,has_silu=1 --sizes batch=2,seq=9)
index=(op=index,num_heads=4,head_dim=16,num_ids=8,is_causal=1,has_scores=1 --sizes batch=2,seq_q=3,seq_kv=50)
blocks=(op=blocks,num_heads=4,num_kv_heads=2,head_dim=16,block_size=16,stride=4,is_causal=1 --sizes seq_q=70,seq_kv=90)
mla=(op=mla,embed_dim=24,num_heads=2,kv_lora_rank=32,qk_nope_head_dim=16,qk_rope_head_dim=8 --sizes seq=5,seq_kv=21)
judged='f64 reference +max error [0-9.e-]+, RMS [0-9.e-]+, at most [0-9.]+ % of what rounding explains'

for op in linear conv index blocks mla; do
    declare -n call=$op
    expect "op=$op beside f64" 0 "$judged" "$attune" run "${call[@]}" --check
    expect "op=$op says its sizes" 0 'sizes +.*seq(_q)?=[0-9]+.*; inputs are random numbers' "$attune" run "${call[@]}"
    expect "op=$op as JSON" 0 '"is_right": true' "$attune" run "${call[@]}" --check --json
    expect "op=$op beside the interpreter" 0 'interpreter +the same bits' "$attune" run "${call[@]}" --check
    expect "op=$op by the interpreter" 0 'interpreter +not compared: it computed the result' "$attune" run \
        "${call[@]}" --check --engine=interp
done
expect "bf16 and pages" 0 "$judged" "$attune" run "${mla[0]},q_lora_rank=16,dtype=bf16,page_size=16,form=absorbed" \
    --sizes batch=2,seq=3,seq_kv=37 --check
expect "f16, unabsorbed" 0 "$judged" "$attune" run "${mla[0]},dtype=f16,rope_interleaved=1,form=unabsorbed" \
    --sizes seq=21 --check
expect "i8, pages and scores" 0 "$judged" "$attune" run "${index[0]},dtype=i8,w_dtype=bf16,page_size=16" \
    --sizes batch=2,seq_q=3,seq_kv=50 --check
expect "f8" 0 "$judged" "$attune" run "${index[0]},dtype=f8" --sizes seq_q=60 --check
expect "bf16 of the others" 0 "$judged" "$attune" run "${blocks[0]},dtype=bf16" "${blocks[@]:1}" --check
expect "f16 of a convolution" 0 "$judged" "$attune" run "${conv[0]},dtype=f16" "${conv[@]:1}" --check

# The states, 32 MB, are copied before each run, but are no part of its time; it uses 32 bytes of them.
expect "the time is that of a step alone" 0 '"median_us": [0-9]{1,3}\.[0-9]' "$attune" run op=conv,channels=8,taps=2 \
    --sizes seq=1,num_states=1000000 --json

# says_flops NAME FLOPS OPTION…: the speed times the time, the operations of a step, rounded as JSON rounds both.
says_flops() {
    local name=$1 wanted=$2
    shift 2
    "$attune" run --json "$@" >"$work/stdout" 2>"$work/stderr" &&
        awk -v wanted="$wanted" -F '[:,]' '/"median_us"/ { us = $2 } /"gflops"/ { speed = $2 }
            END { ratio = us * speed * 1000 / wanted; exit !(ratio > 0.999 && ratio < 1.001) }' "$work/stdout"
    report $? "$name"
}
for form in by_cost absorbed; do
    says_flops "operations of MLA: one token, $form" 38656 "${mla[0]},form=$form" --sizes seq=1,seq_kv=100
done
says_flops "operations of MLA: one token, unabsorbed" 431360 "${mla[0]},form=unabsorbed" --sizes seq=1,seq_kv=100
says_flops "operations of MLA: a prompt" 1793600 "${mla[0]}" --sizes seq=100

# ---- A wrong result ----

cat >"$work/spoil.c" <<'C'
#define _GNU_SOURCE
#include <attune/blocks.h>
#include <attune/index.h>
#include <attune/linear.h>
#include <attune/mla.h>
#include <dlfcn.h>
#include <stdlib.h>
/* A run of an operator, after which `spoil` is done if SPOIL is the operator. */
#define SPOILED(op, spoil)                                                                                             \
    attune_status attune_##op##_run(attune_##op *object, const attune_##op##_step *s) {                               \
        attune_status (*next)(attune_##op *, const attune_##op##_step *);                                              \
        *(void **)&next = dlsym(RTLD_NEXT, "attune_" #op "_run");                                                      \
        const attune_status status = next(object, s);                                                                  \
        if (!status) spoil;                                                                                            \
        return status;                                                                                                 \
    }
static float by(void) { return strtof(getenv("BY"), NULL); }
SPOILED(linear, ((float *)(getenv("STATE") ? s->state.data : s->out.data))[7] += by())
SPOILED(conv, ((float *)(getenv("STATE") ? s->state.data : s->out.data))[7] += by())
SPOILED(blocks, s->shares[7] += by())
SPOILED(mla, ((float *)(getenv("STATE") ? s->cache.data : s->out.data))[7] += by())
SPOILED(index, if (getenv("SCORE")) s->scores[3] += by(); else s->ids[9] -= 1)
/* An interpreter that writes nothing, if LAZY is set. */
attune_status attune_blocks_run_interpreted(attune_blocks *object, const attune_blocks_step *s) {
    attune_status (*next)(attune_blocks *, const attune_blocks_step *);
    *(void **)&next = dlsym(RTLD_NEXT, "attune_blocks_run_interpreted");
    return getenv("LAZY") ? ATTUNE_OK : next(object, s);
}
C
# spoiled ARG...: runs with a spoiled result; BY, STATE, SCORE and LAZY say how.
spoiled() { env LD_PRELOAD="$work/spoil.so" "$attune" run "$@" --check; }
if [ -n "${SANITIZE:-}" ] || ! ${CC:-cc} -Iinclude -shared -fPIC -o "$work/spoil.so" "$work/spoil.c" -ldl; then
    report 0 "a spoiled result # SKIP a sanitizer, or no C compiler"
else
    export BY=1e-3
    wrong='wrong, compared with the f64 reference: number 7 of'
    expect "a wrong linear attention" 1 "$wrong out is" spoiled "${linear[@]}"
    expect "which is another than the interpreter's" 1 'machine code and interpreter differ' spoiled "${linear[@]}"
    STATE=1 expect "a wrong state of linear attention" 1 "$wrong state is" spoiled "${linear[@]}"
    expect "a wrong convolution" 1 "$wrong out is" spoiled "${conv[@]}"
    STATE=1 expect "a wrong state" 1 "$wrong state is" spoiled "${conv[@]}"
    expect "wrong shares of blocks" 1 "$wrong shares is" spoiled "${blocks[@]}"
    expect "a wrong MLA block" 1 "$wrong out is" spoiled "${mla[@]}"
    STATE=1 expect "a row of the cache that is changed" 1 "$wrong cache is" spoiled "${mla[@]}"
    expect "a key that is worse than one left out" 1 'query 1 lists key [0-9]+ with the score .*, but not key' \
        spoiled "${index[@]}"
    SCORE=1 expect "a wrong score" 1 'number 3 of scores is' spoiled "${index[@]}"
    # Where all is forgotten, only a token's own key and value count: a decay of -infinity does not widen the limits.
    header="{'descr': '<f4', 'fortran_order': False, 'shape': (1, 4, 2), }"
    { printf '\x93NUMPY\x01\x00' && number_bytes ${#header} 2 && printf '%s' "$header" &&
        printf '\x00\x00\x80\xff%.0s' 1 2 3 4 5 6 7 8; } >"$work/forgets.npy"
    make_npy "$work/rows.npy" '<f4' False '(1, 4, 2, 8)' $((4 * 64))
    forgets=(op=linear,rule=gated --q "$work/rows.npy" --k "$work/rows.npy" --v "$work/rows.npy"
        --tensor "decay=$work/forgets.npy")
    expect "a wrong number after a decay of -infinity" 1 "$wrong out is" spoiled "${forgets[@]}"
    expect "and a right one" 0 "$judged" "$attune" run "${forgets[@]}" --check
    BY=0 LAZY=1 expect "an interpreter that writes nothing" 1 'machine code and interpreter differ' \
        spoiled "${blocks[@]}"
    BY=1e-9 expect "what rounding explains" 0 "$judged" spoiled "${mla[@]}"
    unset BY
fi

# ---- Files ----

make_npy "$work/x.npy" '<f4' False '(2, 9, 19)' $((4 * 342))
make_npy "$work/weights.npy" '<f4' False '(19, 3)' $((4 * 57))
make_npy "$work/starts.npy" '<i4' False '(1,)' 4
files=(--tensor "x=$work/x.npy" --tensor "weights=$work/weights.npy")
expect "files say sizes, taps and types" 0 'problem +op=conv,channels=19,taps=3,dilation=1,dtype=f32$' "$attune" run \
    op=conv "${files[@]}" --check -o "$work/out.npy" --write "state=$work/state.npy"
expect "out has the shape of x" 0 "'shape': \(2, 9, 19\)" head -c 128 "$work/out.npy"
expect "the state is written" 0 "'shape': \(2, 2, 19\)" head -c 128 "$work/state.npy"
expect "the interpreter gives the same" 0 'max error 0\.00e\+00 against' "$attune" run op=conv "${files[@]}" \
    --engine=interp --expect "$work/out.npy"
expect "a state from a file" 0 "$judged" "$attune" run op=conv "${files[@]}" --tensor "state=$work/state.npy" --check
expect "ids of an index" 0 "'shape': \(2, 3, 8\)" sh -c '"$@" >&2 && head -c 128 "$0"' "$work/ids.npy" "$attune" run \
    "${index[@]}" --write "ids=$work/ids.npy"

# ---- What is wrong ----

expect "a size that is missing" 1 'seq is not known; say --sizes seq=N, or give files' "$attune" run "${conv[0]}"
expect "a size that there is not" 1 "op=conv has no size 'sek'; --sizes may have batch, seq," "$attune" run \
    "${conv[0]}" --sizes sek=3
expect "a negative size" 1 'seq is -1; it must be from 0' "$attune" run "${conv[0]}" --sizes seq=-1
for op in linear,num_heads=8,head_dim=256 conv,channels=700,taps=4; do
    refuse "fewer states than sequences, op=$op" \
        'num_states is 0; for a batch of 16 without state_ids it must be at least 16$' \
        "$attune" run "op=$op" --sizes seq=1,batch=16,num_states=0
done
make_npy "$work/no_states.npy" '<f4' False '(0, 2, 19)' 0
make_npy "$work/ids.npy" '<i4' False '(2,)' 8
refuse "a file without states" 'num_states is 0; for a batch of 2 without state_ids it must be at least 2$' \
    "$attune" run op=conv "${files[@]}" --tensor "state=$work/no_states.npy"
refuse "a file without states, which ids name" \
    'num_states is 0; for a batch of 2 with state_ids it must be at least 1$' "$attune" run op=conv "${files[@]}" \
    --tensor "state=$work/no_states.npy" --tensor "state_ids=$work/ids.npy"
make_npy "$work/rows.npy" '<f4' False '(2, 4, 2, 8)' $((4 * 128))
make_npy "$work/no_states.npy" '<f4' False '(0, 2, 8, 8)' 0
rows=(op=linear --q "$work/rows.npy" --k "$work/rows.npy" --v "$work/rows.npy"
    --tensor "state=$work/no_states.npy")
refuse "linear attention on a file without states" \
    'num_states is 0; for a batch of 2 without state_ids it must be at least 2$' "$attune" run "${rows[@]}"
refuse "linear attention on a file without states, which ids name" \
    'num_states is 0; for a batch of 2 with state_ids it must be at least 1$' "$attune" run "${rows[@]}" \
    --tensor "state_ids=$work/ids.npy"
# Sizes as --json prints them may be given: without seq where cu_seqlens has the lengths.
printf '\0\0\0\0\2\0\0\0\4\0\0\0' >"$work/numbers"
make_npy "$work/starts.npy" '<i4' False '(3,)' 0
cat "$work/numbers" >>"$work/starts.npy"
make_npy "$work/ragged.npy" '<f4' False '(4, 2, 8)' $((4 * 64))
ragged=(op=linear --q "$work/ragged.npy" --k "$work/ragged.npy" --v "$work/ragged.npy"
    --tensor "cu_seqlens=$work/starts.npy" --json)
expect "sizes beside cu_seqlens" 0 '"sizes": "batch=2,tokens=4,num_states=2"' "$attune" run "${ragged[@]}"
expect "they are sizes" 0 '"sizes": "batch=2,tokens=4,num_states=2"' "$attune" run "${ragged[@]}" \
    --sizes batch=2,tokens=4,num_states=2
refuse "tokens without cu_seqlens" 'tokens is 7, which is a size of batches with cu_seqlens; say seq=N' "$attune" run \
    "${conv[0]}" --sizes seq=3,tokens=7
refuse "an operator that comes second" 'op=linear must come first' "$attune" run num_heads=2,op=linear
refuse "an operator that comes second, explained" 'op=mla must come first' "$attune" explain num_heads=2,op=mla
refuse "a decay that the rule has not" \
    'decay is given, but the rule delta has none; say rule=gated or rule=gated_delta' "$attune" run \
    op=linear,rule=delta "${rows[@]:1:6}" --tensor "decay=$work/rows.npy"
expect "two files of q" 2 'q is given twice' "$attune" run op=linear --q a.npy "${rows[@]:1:6}"
expect "two files of q of attention" 2 'q is given twice' "$attune" run --q a.npy --q b.npy
expect "two files of another tensor" 2 'x is given twice' "$attune" run op=conv "${files[@]}" \
    --tensor "x=$work/x.npy"
expect "two files for an output" 2 'state is given twice' "$attune" run "${conv[@]}" \
    --write "state=$work/a.npy" --write "state=$work/b.npy"
expect "sizes that the files have not" 1 'x has the shape \(2, 9, 19\); it must be \(batch=2, seq=8, channels\)' \
    "$attune" run op=conv "${files[@]}" --sizes seq=8
expect "tensors that are missing" 1 'op=conv needs --tensor weights=F.npy' "$attune" run op=conv,taps=3 \
    "${files[@]:0:2}"
expect "a tensor that the description has not" 1 'k_scale is given, but op=index,.* has none' "$attune" run \
    "${index[0]}" --tensor "k_scale=$work/x.npy"
expect "an output that the description has not" 1 'op=blocks has no output scores; it has shares' "$attune" run \
    "${blocks[@]}" --write "scores=$work/no.npy"
expect "starts beyond the tokens" 1 'x has the shape \(2, 9, 19\); it must be \(tokens, channels\)' "$attune" run \
    op=conv "${files[@]}" --tensor "cu_seqlens=$work/starts.npy"
make_npy "$work/tokens.npy" '<f4' False '(7, 19)' 532
make_npy "$work/taps.npy" '<f4' False '(19, 3)' 228
make_npy "$work/lengths.npy" '<i4' False '(3,)' 0
for start in 0 3 7; do number_bytes $start 4 >>"$work/lengths.npy"; done
ragged=(op=conv --tensor "x=$work/tokens.npy" --tensor "weights=$work/taps.npy" --tensor "cu_seqlens=$work/lengths.npy")
expect "sequences of some lengths" 0 'sizes +batch=2,.*tokens=7' "$attune" run "${ragged[@]}"
refuse "a length beside those of cu_seqlens" 'seq is 3, but cu_seqlens has the length of each sequence' "$attune" \
    run "${ragged[@]}" --sizes seq=3
expect "a description that is wrong" 1 'taps is 65; it must be from 1 to 64' "$attune" run op=conv,channels=8,taps=65 \
    --sizes seq=3
expect "more than the memory" 1 'the tensors of this step need [0-9.]+ GB, and the machine has [0-9.]+ GB' \
    "$attune" run op=conv,channels=65536,taps=4 --sizes seq=2000000000
expect "more than a check can do" 1 '--check would take about .*: this step has [0-9.e+]+ operations' "$attune" run \
    op=conv,channels=65536,taps=64 --sizes seq=2000000 --check
expect "lists of keys" 1 'has no lists of keys for op=mla: leave out has_ids' "$attune" run "${mla[0]},has_ids=1" \
    "${mla[@]:1}"
echo "1..$number"
