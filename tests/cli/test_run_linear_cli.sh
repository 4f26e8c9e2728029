#!/usr/bin/env bash
# `attune run op=linear` from outside: a step on files, cut in two, checked, and a sentence for what is wrong. Needs
# ATTUNE, the command, and an ATTUNE_CACHE_DIR of its own.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/cli.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
attune=$ATTUNE

# rows NAME SHAPE NUMBERS: an array of f32.
rows() { make_npy "$work/$1.npy" '<f4' False "$2" $((4 * $3)); }
rows q '(2, 9, 2, 8)' 288
rows k '(2, 9, 2, 8)' 288
rows v '(2, 9, 4, 8)' 576
rows beta '(2, 9, 4)' 72
rows decay '(2, 9, 4, 8)' 576
rows norm '(8,)' 8
call=(--q "$work/q.npy" --k "$work/k.npy" --v "$work/v.npy")
delta=("${call[@]}" --tensor "beta=$work/beta.npy")

expect "the delta rule, beside interpreter and f64" 0 'interpreter +the same bits' "$attune" run \
    op=linear,rule=delta,qk_norm_eps=1e-6 "${delta[@]}" -o "$work/out.npy" --write "state=$work/state.npy" --check
expect "out has the shape of v" 0 "'shape': \(2, 9, 4, 8\)" head -c 128 "$work/out.npy"
expect "the state is an output" 0 "'shape': \(2, 4, 8, 8\)" head -c 128 "$work/state.npy"
expect "errors are within their limits" 0 'RMS [^,]*, at most [0-9.e-]+ % of what rounding explains' "$attune" run \
    op=linear,rule=delta,qk_norm_eps=1e-6,reproducible=1 "${delta[@]}" --check
expect "JSON" 0 '"same_bits": true' "$attune" run op=linear,rule=delta,qk_norm_eps=1e-6 "${delta[@]}" --check --json
expect "the interpreter gives the same" 0 'max error 0\.00e\+00 against' "$attune" run \
    op=linear,rule=delta,qk_norm_eps=1e-6 "${delta[@]}" --engine=interp --expect "$work/out.npy"
expect "with decays of keys, a norm and a state" 0 'the same bits' "$attune" run op=linear,rule=gated_delta,scale=0.5 \
    "${delta[@]}" --tensor "decay=$work/decay.npy" --tensor "norm_weights=$work/norm.npy" \
    --tensor "state=$work/state.npy" --check

# odd NAME FROM NUMBER BYTES: a copy of an array with one number of 4 bytes replaced.
odd() {
    cp "$work/$2.npy" "$work/$1.npy"
    local place=$(($(stat -c %s "$work/$1.npy") - 4 * $3))
    printf '%b' "$4" | dd of="$work/$1.npy" bs=1 seek=$place conv=notrunc status=none
}
rows decay_head '(2, 9, 4)' 72
odd forgets decay_head 9 '\x00\x00\x80\xff'
odd nan v 300 '\x00\x00\xc0\x7f'
odd infinite k 150 '\x00\x00\x80\x7f'
# ones NAME FROM NUMBERS: an array of ones in f16, of the shape of one in f32.
ones() {
    head -c $(($(stat -c %s "$work/$2.npy") - 4 * $3)) "$work/$2.npy" | sed 's/<f4/<f2/' >"$work/$1.npy"
    for ((i = 0; i < $3; i++)); do printf '\x00\x3c'; done >>"$work/$1.npy"
}
ones q16 q 288
ones v16 v 576
expect "--check of a decay of -infinity" 0 'the same bits' "$attune" run op=linear,rule=gated "${call[@]}" \
    --tensor "decay=$work/forgets.npy" --check
expect "--check with NaN in v" 0 'the same bits' "$attune" run op=linear,rule=delta --q "$work/q.npy" \
    --k "$work/k.npy" --v "$work/nan.npy" --check
expect "--check with an infinity in k" 0 'the same bits' "$attune" run op=linear,rule=delta --q "$work/q.npy" \
    --k "$work/infinite.npy" --v "$work/v.npy" --check
expect "--check of results beyond f32" 0 'the same bits' "$attune" run op=linear,rule=delta,scale=1e38 "${call[@]}" \
    --check
expect "--check of results beyond f16" 0 'the same bits' "$attune" run op=linear,rule=linear,scale=1e5 \
    --q "$work/q16.npy" --k "$work/q16.npy" --v "$work/v16.npy" --check
ones norm16 norm 8
expect "--check of results beyond f16 before a norm" 0 'the same bits' "$attune" run op=linear,rule=linear,scale=1e5 \
    --q "$work/q16.npy" --k "$work/q16.npy" --v "$work/v16.npy" --tensor "norm_weights=$work/norm16.npy" --check
expect "--check of results beyond f16 before a gate" 0 'the same bits' "$attune" run \
    op=linear,rule=linear,scale=1e4,gate=sigmoid --q "$work/q16.npy" --k "$work/q16.npy" --v "$work/v16.npy" \
    --tensor "gate=$work/v16.npy" --check

expect "a rule that there is not" 1 'rule is .nope.; it must be linear, gated, delta or gated_delta' "$attune" run \
    op=linear,rule=nope "${call[@]}"
expect "a field that it has not" 1 "op=linear has no field 'num_head'; did you mean num_heads\?" "$attune" run \
    op=linear,num_head=2 "${call[@]}"
expect "sizes, types and kinds as the files have them" 0 'interpreter +the same bits' "$attune" run \
    op=linear,num_heads=2,num_kv_heads=4,dtype=f32,rule=delta,has_beta=1 "${delta[@]}" --check
expect "another size than the files have" 1 \
    'v has the shape \(2, 9, 4, 8\); it must be \(batch=2, seq=9, num_kv_heads=2, head_dim_v\)' \
    "$attune" run op=linear,num_kv_heads=2 "${call[@]}"
expect "another type than the files have" 1 'q is f32; it must be bf16, as dtype' \
    "$attune" run op=linear,dtype=bf16 "${call[@]}"
expect "a kernel" 1 'the problem names a kernel, but a step chooses its own' "$attune" run \
    op=linear,kernel=few "${call[@]}"
expect "a flag that is neither 0 nor 1" 1 'reproducible is 2; it must be 0 or 1' "$attune" run \
    op=linear,reproducible=2 "${call[@]}"
expect "a word for a number" 1 'scale is .x., which is not a number' "$attune" run op=linear,scale=x "${call[@]}"
expect "a decay that is missing" 1 'the rule gated_delta has a decay, but decay is none' "$attune" run \
    op=linear,rule=gated_delta "${call[@]}"
expect "no rule is the rule of a description without one" 0 'problem +op=linear,num_heads=2,' "$attune" run op=linear \
    "${call[@]}"
expect "a decay without a rule" 1 'decay is given, but the rule linear has none; say rule=gated or rule=gated_delta' \
    "$attune" run op=linear "${call[@]}" --tensor "decay=$work/decay.npy"
expect "a beta of another rule" 1 'beta is given, but the rule gated has none; say rule=delta or rule=gated_delta' \
    "$attune" run op=linear,rule=gated "${delta[@]}"
expect "a field given twice" 1 "'rule' is given twice" "$attune" run op=linear,rule=delta,rule=linear "${call[@]}"
expect "a gate without a file" 1 'op=linear needs --tensor gate=F.npy' "$attune" run op=linear,gate=silu "${call[@]}"
expect "no v" 1 'op=linear needs --v' "$attune" run op=linear --q "$work/q.npy" --k "$work/k.npy"
expect "an input that it has not" 1 'op=linear has no input bias' "$attune" run op=linear "${call[@]}" \
    --tensor "bias=$work/beta.npy"
expect "an output that it has not" 1 'op=linear has no output lse' "$attune" run op=linear "${call[@]}" \
    --lse "$work/lse.npy"
expect "beta of another shape" 1 'beta has the shape \(8\)|beta has the shape \(8,\)' "$attune" run \
    op=linear,rule=delta "${call[@]}" --tensor "beta=$work/norm.npy"
expect "a state of another shape" 1 \
    'state has the shape \(2, 9, 4\); it must be \(num_states, num_kv_heads=4, head_dim=8, head_dim_v=8\)' \
    "$attune" run op=linear,rule=delta "${call[@]}" --tensor "state=$work/beta.npy"
expect "no virtual machine" 1 'op=linear takes no --schedule and no --engine=vm' "$attune" run op=linear "${call[@]}" \
    --engine=vm
echo "1..$number"
