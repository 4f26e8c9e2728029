#!/usr/bin/env bash
# What the command is given: files without an end, orders of arrays, sizes beside files, schedules, and texts as people
# write them. Needs ATTUNE, the command, and an ATTUNE_CACHE_DIR of its own.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/cli.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
attune=$ATTUNE
small=num_heads=2,seq_q=4,head_dim=8
kernel=$work/matmul.air
without_fma examples/ir/matmul.air >"$kernel"

# ---- Files without an end: a gigabyte of memory must do ----

# AddressSanitizer's shadow takes terabytes of address space, so there it bounds what is touched.
bounded() {
    (
        [ -n "${SANITIZE:-}" ] || ulimit -v 1048576
        ASAN_OPTIONS="${ASAN_OPTIONS:-}:hard_rss_limit_mb=1024" timeout 60 "$@"
    )
}
make_npy "$work/q.npy" '<f4' False '(2, 4, 8)' 256
array='/dev/zero: this is not a .npy file'
text='/dev/zero: this is not a text: it has a NUL at byte 0'
refuse "an array" "$array" bounded "$attune" run --q /dev/zero --k "$work/q.npy" --v "$work/q.npy"
refuse "an expected result" "$array" bounded "$attune" run --q "$work/q.npy" --k "$work/q.npy" --v "$work/q.npy" \
    --expect /dev/zero
refuse "a block's input" "$array" bounded "$attune" run --tensor x=/dev/zero num_heads=2
refuse "a block's weights" '/dev/zero: not a regular file' bounded "$attune" mha --x "$work/q.npy" --weights /dev/zero
refuse "packed weights" 'packed weights of this problem have at most [0-9]+ bytes, and this file has more' \
    bounded "$attune" mha num_heads=2 --x "$work/q.npy" --packed /dev/zero
refuse "loop IR" "$text" bounded "$attune" ir /dev/zero
refuse "a manifest" "$text" bounded "$attune" warm /dev/zero
refuse "problems to tune" "$text" bounded "$attune" tune /dev/zero
refuse "a grid" "$text" bounded "$attune" sweep /dev/zero -o "$work/sweep.json"
mkdir "$work/case" && ln -s /dev/zero "$work/case/case.json"
expect "a case" 1 "case: case.json: this is not a text" bounded "$attune-lab" conform "$work"
endless() { yes "$1" | bounded "${@:2}"; }
refuse "loop IR of blanks" 'standard input: kernels in loop IR have at most [0-9]+ bytes' endless '' "$attune" ir -
refuse "a manifest of comments" 'lists of problems have at most [0-9]+ bytes' endless '#' "$attune" warm -
after_header() {
    make_npy "$work/head.npy" '<f4' False "$1" 0
    cat "$work/head.npy" /dev/zero | bounded "$attune" run --q - --k "$work/q.npy" --v "$work/q.npy"
}
refuse "an array that goes on" 'data follows the array: .* needs 256 bytes of data, 257 or more' \
    after_header '(2, 4, 8)'
refuse "an array beyond any memory" "more than this machine's memory" after_header '(1048576, 1048576, 8)'
printf '%s\0,seq_q=5\n' $small >"$work/nul"
refuse "a manifest whose rest a NUL hides" "not a text: it has a NUL at byte ${#small}" "$attune" warm "$work/nul"

# What is a stream on purpose.
expect "loop IR from a pipe" 0 '@matmul' "$attune" ir --emit=ir <(cat $kernel)
piped() { "$attune" ir --emit=ir /dev/stdin <$kernel; }
expect "loop IR from standard input" 0 '@matmul' piped
"$attune" run --q "$work/q.npy" --k "$work/q.npy" --v "$work/q.npy" -o "$work/o.npy" >/dev/null 2>&1
from_pipes() {
    "$attune" run --q <(cat "$work/q.npy") --k - --v "$work/q.npy" -o "$work/p.npy" <"$work/q.npy"
}
expect "arrays from pipes" 0 'kernel' from_pipes
same "with the same result" "$work/o.npy" "$work/p.npy"

# ---- Arrays ----

make_npy "$work/nul.npy" '<f4'$'\1' False '(2, 4, 8)' 256
sed -i 's/\x01/\x00/2' "$work/nul.npy" # the first one is the version
refuse "a NUL in a dtype" 'has a NUL in a quoted name' \
    "$attune" run --q "$work/nul.npy" --k "$work/q.npy" --v "$work/q.npy"

make_npy "$work/c.npy" '<f4' False '(4, 4, 1)' 64
make_npy "$work/f.npy" '<f4' True '(1, 4, 4)' 64
expect "heads that lie in Fortran order" 0 'num_heads=1,seq_q=4,seq_kv=4,head_dim=4' "$attune" run --q "$work/f.npy" \
    --k "$work/f.npy" --v "$work/f.npy" --check -o "$work/of.npy"
# The same array in C order: element [0, i, j] of a 4 x 4 array in Fortran order is element j * 4 + i.
{
    make_npy "$work/t.npy" '<f4' False '(1, 4, 4)' 0
    for ((i = 0; i < 4; i++)); do
        for ((j = 0; j < 4; j++)); do tail -c 64 "$work/c.npy" | tail -c +$((4 * (j * 4 + i) + 1)) | head -c 4; done
    done >>"$work/t.npy"
}
expect "and in C order" 0 'num_heads=1' \
    "$attune" run --q "$work/t.npy" --k "$work/t.npy" --v "$work/t.npy" -o "$work/ot.npy"
same "give the same" "$work/of.npy" "$work/ot.npy"

make_npy "$work/q0.npy" '<f4' False '(2, 0, 8)' 0
expect "no queries" 0 'seq_q=dynamic,seq_kv=4' "$attune" run --q "$work/q0.npy" --k "$work/q.npy" --v "$work/q.npy" \
    --check -o "$work/o0.npy"
grep -aq "(2, 0, 8)" "$work/o0.npy"
report $? "and the result has no rows"
expect "no keys" 0 'seq_kv=dynamic' "$attune" run --q "$work/q.npy" --k "$work/q0.npy" --v "$work/q0.npy" --check \
    -o "$work/ok.npy"
[ "$(tail -c 256 "$work/ok.npy" | tr -d '\0' | wc -c)" -eq 0 ]
report $? "and the result is zeros"
refuse "no queries where the problem names some" 'seq_q is 4 by the problem but 0 in .*q0.npy' "$attune" run seq_q=4 \
    --q "$work/q0.npy" --k "$work/q.npy" --v "$work/q.npy"
make_npy "$work/pages.npy" '<f4' False '(0, 2, 4, 8)' 0
make_npy "$work/table.npy" '<i4' False '(1, 0)' 0
make_npy "$work/lens.npy" '<i4' False '(1,)' 0
printf '\0\0\0\0' >>"$work/lens.npy"
expect "no pages" 0 'page_size=4' "$attune" run page_size=4,has_kv_lens=1 --q "$work/q.npy" --k "$work/pages.npy" \
    --v "$work/pages.npy" --tensor block_table="$work/table.npy" --tensor kv_lens="$work/lens.npy" --sizes seq_kv=0
make_npy "$work/no_columns.npy" '<f4' False '(2, 4, 0)' 0
refuse "no columns" 'shape \(2, 4, 0\) has a dimension of 0; only the sequence length may be 0' "$attune" run \
    --q "$work/no_columns.npy" --k "$work/q.npy" --v "$work/q.npy"

# ---- Masks: the shape is that of the letters, with or without the dims that are 1 ----

make_npy "$work/q4.npy" '<f4' False '(2, 3, 5, 4)' 480
make_npy "$work/k4.npy" '<f4' False '(2, 3, 6, 4)' 576
batch=(--q "$work/q4.npy" --k "$work/k4.npy" --v "$work/k4.npy")
for shape in '(2, 1, 5, 6)' '(2, 5, 6)'; do make_npy "$work/bqk${#shape}.npy" '|b1' False "$shape" 60; done
for shape in '(2, 1, 1, 6)' '(2, 6)'; do make_npy "$work/bk${#shape}.npy" '|b1' False "$shape" 12; done
make_npy "$work/bias12.npy" '<f4' False '(2, 1, 5, 6)' 240
masked() { "$attune" run "$1" "${batch[@]}" --tensor "${1%%_dims=*}=$2" -o "$3"; }
refuse "a mask that is larger than its letters" \
    'bqk12.npy: shape .* does not fit attn_mask_dims=qk, whose shape is \(1, 1, 5, 6\); attn_mask_dims=bqk would fit' \
    masked attn_mask_dims=qk "$work/bqk12.npy" "$work/o.npy"
refuse "a mask of one element" 'fit attn_mask_dims=1, whose shape is \(1, 1, 1, 1\); attn_mask_dims=bqk would fit' \
    masked attn_mask_dims=1 "$work/bqk12.npy" "$work/o.npy"
refuse "a bias larger than its letters" 'fit attn_bias_dims=qk, whose shape is .*; attn_bias_dims=bqk would fit' \
    masked attn_bias_dims=qk "$work/bias12.npy" "$work/o.npy"
for letters in bqk:12:9 bk:12:6; do
    IFS=: read -r letters whole short <<<"$letters"
    expect "a mask with the dims that are 1: $letters" 0 kernel \
        masked attn_mask_dims="$letters" "$work/$letters$whole.npy" "$work/whole.npy"
    expect "a mask without them: $letters" 0 kernel \
        masked attn_mask_dims="$letters" "$work/$letters$short.npy" "$work/short.npy"
    same "with the same result: $letters" "$work/whole.npy" "$work/short.npy"
done

refuse "numbers as a mask" "bias12.npy is '<f4', but attn_mask is boolean: .* are attn_bias_dims=" \
    masked attn_mask_dims=bqk "$work/bias12.npy" "$work/o.npy"
refuse "a boolean bias" 'bqk12.npy is boolean, but attn_bias has numbers .* a boolean mask is attn_mask_dims=' \
    masked attn_bias_dims=bqk "$work/bqk12.npy" "$work/o.npy"
make_npy "$work/bias64.npy" '<f8' False '(5, 6)' 240
refuse "a bias of another type" 'bias64.npy is f64, but the problem has bias_dtype=f32: set bias_dtype=f64' \
    masked attn_bias_dims=qk "$work/bias64.npy" "$work/o.npy"
make_npy "$work/u2.npy" '<u2' False '(2, 4, 8)' 128
refuse "bf16 in whole numbers" "u2.npy is '<u2', but the problem has dtype=bf16, .*: save a.view\('V2'\)" \
    "$attune" run dtype=bf16 --q "$work/u2.npy" --k "$work/u2.npy" --v "$work/u2.npy"
make_npy "$work/lens_f4.npy" '<f4' False '(1,)' 4
refuse "lengths that are no whole numbers" "lens_f4.npy is '<f4', but kv_lens is i32: save it as int32" \
    "$attune" run has_kv_lens=1 --q "$work/q.npy" --k "$work/q.npy" --v "$work/q.npy" \
    --tensor kv_lens="$work/lens_f4.npy"

# ---- What a result is compared with ----

for size in 4 8; do
    make_npy "$work/zeros$size.npy" "<f$size" False '(2, 4, 8)' 0
    head -c $((64 * size)) /dev/zero >>"$work/zeros$size.npy"
    expected() { "$attune" run --q "$work/q.npy" --k "$work/q.npy" --v "$work/q.npy" --expect "$work/zeros$size.npy"; }
    expect "a result of f32 beside one of <f$size" 0 'max error [0-9.e+-]+, RMS' expected
    grep -o 'max error.* against' "$work/stdout" >"$work/error$size"
done
same "with the same error" "$work/error4" "$work/error8"
make_npy "$work/whole.npy" '<i4' False '(2, 4, 8)' 256
refuse "a result of whole numbers" 'whole.npy: <i4 of shape \(2, 4, 8\) cannot be compared' \
    "$attune" run --q "$work/q.npy" --k "$work/q.npy" --v "$work/q.npy" --expect "$work/whole.npy"

# ---- Ragged batches: cu_seqlens_q says how many sequences there are ----

make_npy "$work/cu.npy" '<i4' False '(4,)' 0
for at in 0 1 2 4; do number_bytes $at 4; done >"$work/numbers"
cat "$work/cu.npy" "$work/numbers" >"$work/cu4.npy"
ragged() {
    "$attune" run "$1" --q "$work/q.npy" --k "$work/q.npy" --v "$work/q.npy" --tensor cu_seqlens_q="$work/cu4.npy" \
        --tensor cu_seqlens_kv="$work/cu4.npy" --check
}
expect "a ragged batch without batch" 0 'problem.*batch=3' ragged is_ragged=1
refuse "another batch than the lengths have" 'batch is 2 by the problem but 3 in .*cu4.npy' ragged is_ragged=1,batch=2

# ---- Tensors that the problem lacks: which field brings them ----

for pair in attn_mask:attn_mask_dims=bqk kv_lens:has_kv_lens=1 cos:rotary_dim=N cu_seqlens_q:is_ragged=1; do
    refuse "${pair%%:*} without its field" \
        "the problem has no tensor named ${pair%%:*}; add ${pair#*:} to the problem" \
        "$attune" run "${batch[@]}" --tensor "${pair%%:*}=$work/q.npy"
done
refuse "weights without a field" 'the problem has no output named weights; add weights_mode=softmax to the problem' \
    "$attune" run "${batch[@]}" --write weights="$work/o.npy"

# ---- Other kinds of files, and standard input ----

expect "two inputs from standard input" 2 'only one input can come from' "$attune" run --q - --k - --v "$work/q.npy"
refuse "nothing on standard input" 'standard input: this is not a .npy file' "$attune" run --q - --k "$work/q.npy" \
    --v "$work/q.npy"
printf 'PK\003\004 and an archive' >"$work/archive"
printf '\200\004\225and a pickle' >"$work/pickle"
refuse "an archive as an array" 'looks like a .npz: save arrays one by one with np.save' "$attune" run --q \
    "$work/archive" \
    --k "$work/q.npy" --v "$work/q.npy"
weights_of() { "$attune" mha num_heads=2 --x "$work/x2.npy" --weights "$1"; }
make_npy "$work/x2.npy" '<f4' False '(4, 16)' 256
refuse "an array as weights" 'q.npy: this is a .npy file; a safetensors file is wanted, or a folder' weights_of \
    "$work/q.npy"
refuse "an archive as weights" 'looks like a .npz or a .pt: save arrays one by one' weights_of "$work/archive"
refuse "a pickle as weights" 'looks like a pickle: save arrays one by one' weights_of "$work/pickle"
make_npy "$work/objects.npy" '|O' False '(2, 4, 8)' 0
refuse "objects" "dtype '.O' is not supported; floats .f2, f4, f8, and V2 for bf16.*b1 are" "$attune" run \
    --q "$work/objects.npy" --k "$work/q.npy" --v "$work/q.npy"
header="{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (2, 4, 8), }"
{ head -c 8 "$work/q.npy" && number_bytes ${#header} 2 && printf '%s' "$header"; } >"$work/fields.npy"
refuse "a structured dtype" 'has a structured dtype; these are not supported' "$attune" run --q "$work/fields.npy" \
    --k "$work/q.npy" --v "$work/q.npy"

# ---- Sizes beside files ----

sized() { "$attune" run --q "$work/q.npy" --k "$work/q.npy" --v "$work/q.npy" "$@"; }
expect "a size that repeats the file's" 0 'seq_kv=4' sized --sizes ' seq_kv = 4, seq_q=4'
refuse "a size that the files fix" '--sizes: seq_kv is 5, but the problem or its files fix it at 4' \
    sized --sizes seq_kv=5
expect "an open size that repeats the file's" 0 'seq_kv=dynamic' sized seq_kv=dynamic --sizes seq_kv=4
refuse "an open size that a file contradicts" '--sizes: seq_kv is 3, but 4 in .*q.npy' \
    sized seq_kv=dynamic --sizes seq_kv=3
refuse "a size of nothing" '--sizes: num_pages is 3, but the problem has no such size' sized --sizes num_pages=3
refuse "sizes of an operator that there is not" "op is 'foo'; it must be attention, " "$attune" run op=foo --sizes seq=3
refuse "a misspelt size" "'seqkv' is not a size; did you mean seq_kv\?" sized --sizes seqkv=3
refuse "such a size of check" 'seq_kv is 5, but the problem or its files fix it at 4' \
    "$attune-lab" check $small --sizes seq_kv=5
refuse "such a size of explain" 'num_pages is 3, but the problem has no' "$attune" explain $small --sizes num_pages=3
make_npy "$work/x.npy" '<f4' False '(1, 4, 16)' 256
refuse "keys that are not those of x" 'seq_kv is 5, but the block projects keys from x, and seq_q is 4' \
    "$attune" bench \
    --samples=1 embed_dim=16,num_heads=2,seq_q=dynamic --sizes seq_q=4,seq_kv=5
refuse "a size that no problem of bench leaves open" 'no problem leaves seq_kv open' \
    "$attune" bench $small --sizes seq_kv=5

# ---- Schedules change the chosen one ----

chosen() { "$attune" compile --json "$1" | grep '"schedule"'; }
wanted=$(chosen $small | sed -E 's/kv_tile=[0-9]+/kv_tile=16/')
files="--q $work/q.npy --k $work/q.npy --v $work/q.npy"
for command in "compile --json" "bench --json --samples=1" "run --json $files"; do
    problem=$small
    [ "${command%% *}" = run ] && problem=
    # shellcheck disable=SC2086
    "$attune" $command $problem --schedule=kv_tile=16 >"$work/stdout" 2>"$work/stderr"
    grep -qF "$(sed -E 's/^ *//; s/,$//' <<<"$wanted")" "$work/stdout"
    report $? "one field of a schedule: ${command%% *}"
done
echo "$small | kv_tile=16" >"$work/manifest"
expect "one field of a schedule: warm" 0 '1 compiled' "$attune" warm --cache-dir="$work/warm" "$work/manifest"
expect "and that is the kernel" 0 'disk cache' env ATTUNE_STRICT=1 "$attune" compile --cache-dir="$work/warm" $small \
    --schedule=kv_tile=16
expect "schedules side by side" 0 'schedule 2: kv_tile=8' "$attune" bench $small --samples=1 --schedule=kv_tile=16 \
    --schedule=kv_tile=8

# ---- One of many ----

expect "a bench goes on" 1 'seq_kv=dynamic,head_dim=8: --sizes: seq_kv is not set' "$attune" bench --samples=1 $small \
    num_heads=2,seq_q=4,seq_kv=dynamic,head_dim=8 num_heads=1,seq_q=3,head_dim=8
[ "$(grep -c '^num_heads' "$work/stdout")" -eq 2 ]
report $? "with the other problems"
expect "the size that leaves no keys is named" 1 'there are no keys to be measured with: seq_kv is 0' "$attune" bench \
    --samples=1 num_heads=2,seq_q=4,seq_kv=dynamic,head_dim=8 $small --sizes seq_kv=0
grep -q '^num_heads=2,seq_q=4,seq_kv=4' "$work/stdout"
report $? "and the other problem measured"
refuse "a bench of nothing" 'max_pages is 0' \
    "$attune" bench --samples=1 $small,page_size=4,has_kv_lens=1 --sizes max_pages=0,num_pages=1
for scale in 0.1 1e36; do
    checked "a scale of the call, $scale" --sizes softmax_scale=$scale \
        num_heads=1,seq_q=32,seq_kv=64,head_dim=16,dtype=bf16,softmax_scale=dynamic
done
# Entries whose lengths only cu_seqlens_kv tells have keys in their pages: the error of nothing would be none.
expect "a ragged batch in pages" 0 '^ordinary +[1-9]\.' "$attune-lab" check --inputs=ordinary \
    num_heads=2,batch=3,is_ragged=1,seq_q=dynamic,seq_kv=dynamic,page_size=16,head_dim=16 \
    --sizes total_q=12,seq_q=8,seq_kv=40,num_pages=9,max_pages=3

# ---- Texts ----

expect "blanks and words" 0 'num_heads=2,seq_q=4,seq_kv=4,head_dim=8,is_causal=1$' "$attune" compile \
    'num_heads = 2, seq_q=4,  head_dim=8, is_causal=true'
make_npy "$work/bshd.npy" '<f4' False '(1, 4, 2, 8)' 256
expect "a layout with blanks" 0 'num_heads=2,seq_q=4' "$attune" run 'batch=1, layout = bshd' --q "$work/bshd.npy" \
    --k "$work/bshd.npy" --v "$work/bshd.npy"
refuse "a key of others" "'causal' is not a field of a problem; did you mean is_causal\?" \
    "$attune" compile $small,causal=1
refuse "a dtype of others" "dtype is 'fp16'; it must be f32, f16, bf16 or f64; did you mean f16\?" "$attune" compile \
    $small,dtype=fp16
refuse "a size that is not there" 'head_dim is not given' "$attune" compile num_heads=2,seq_q=4
refuse "a field of a schedule" "did you mean kv_tile\?" "$attune" compile $small --schedule=kvtile=4
expect "a misspelt command" 2 "unknown command 'bnech'; did you mean bench\?" "$attune" bnech
expect "a command of others" 2 "unknown command 'benchmark'; did you mean bench\?" "$attune" benchmark
expect "a command that is none" 2 "unknown command 'frobnicate'; .attune --help. lists them" "$attune" frobnicate
echo "1..$number"
