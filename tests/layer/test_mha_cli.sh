#!/usr/bin/env bash
# `attune mha` from outside: what it gives, and one clear sentence for everything that can be wrong with its files.
# Needs ATTUNE, the command, and an ATTUNE_CACHE_DIR of its own.
set -u
cd "$(dirname "$0")/../.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. tests/support/cli.sh
attune=$ATTUNE

# ---- A block of 3 heads of 8 on 24 columns, in every form ----

# entry NAME SHAPE BEGIN END [DTYPE]: one tensor of a safetensors header.
entry() { printf '"%s":{"dtype":"%s","shape":[%s],"data_offsets":[%d,%d]}' "$1" "${5:-F32}" "$2" "$3" "$4"; }

# The four projections and their biases have all their values from the same numbers: real_bytes gives the last ones.
matrix=2304 bias=96
separate() { # separate PREFIX: the names of BERT
    local at=0 name list=
    for name in self.query self.key self.value output.dense; do
        list+=$(entry "$1$name.weight" 24,24 $at $((at + matrix))),$(entry "$1$name.bias" 24 $((at + matrix)) \
            $((at + matrix + bias))),
        at=$((at + matrix + bias))
    done
    printf '%s' "${list%,}"
}
total=$((4 * (matrix + bias)))
make_safetensors "$work/bert.safetensors" "{\"__metadata__\":{\"format\":\"pt\"},$(separate layer.0.attention.)}" $total
make_safetensors "$work/root.safetensors" "{$(separate "")}" $total

# The same bytes as files of a directory, by attune's names.
mkdir "$work/weights"
at=0
for name in q k v out; do
    for part in weight bias; do
        bytes=$([ $part = weight ] && echo $matrix || echo $bias)
        shape=$([ $part = weight ] && echo '(24, 24)' || echo '(24,)')
        make_npy "$work/weights/${name}_$part.npy" '<f4' False "$shape" 0
        real_bytes $total | tail -c +$((at + 1)) | head -c "$bytes" >>"$work/weights/${name}_$part.npy"
        at=$((at + bytes))
    done
done

make_npy "$work/x.npy" '<f4' False '(5, 24)' 480
make_npy "$work/x3.npy" '<f4' False '(2, 5, 24)' 960
make_npy "$work/x_kv.npy" '<f4' False '(7, 24)' 672
make_npy "$work/x_v.npy" '<f4' False '(7, 24)' 672
make_npy "$work/mask.npy" '|b1' False '(5, 5)' 25

mha() { "$attune" mha num_heads=3 --x "$work/x.npy" "$@"; }
bert=(--weights "$work/bert.safetensors")
near='f64 reference +max error [0-9.]+e-0[5-9]'

# ---- Help and usage ----

expect "attune --help names it" 0 'mha +compute a whole block' "$attune" --help
expect "no input" 2 '--x is needed' "$attune" mha num_heads=3 "${bert[@]}"
expect "no weights" 2 'either --weights or --packed is needed' mha
expect "weights and packed weights" 2 'either --weights or --packed' mha "${bert[@]}" --packed "$work/blob"
expect "packed weights packed again" 2 'are packed already' mha --packed "$work/blob" --save-packed "$work/again"
expect "a prefix for packed weights" 2 'packed weights have no names' mha --packed "$work/blob" --prefix=a
expect "packed weights as a tensor" 2 'by --packed, not by --tensor' mha "${bert[@]}" \
    --tensor packed_weights="$work/x.npy"
expect "an unknown layout" 2 "'out_in' or 'in_out', not 'rows'" mha "${bert[@]}" --layout=rows
expect "a name for no weight" 2 "'w' is not one of q_weight, " mha "${bert[@]}" --name w=a
expect "a name without a tensor" 2 "'q_weight' is not WEIGHT=TENSOR" mha "${bert[@]}" --name q_weight
expect "two problems" 2 "'b' follows 'num_heads=3'" mha "${bert[@]}" b
expect "two outputs in one file" 2 "both want '.*same.npy'" mha "${bert[@]}" -o "$work/same.npy" \
    --write weights="$work/same.npy"
expect "an output where packed weights go" 2 "out and the packed weights both want '.*same.npy'" mha "${bert[@]}" \
    -o "$work/same.npy" --save-packed "$work/same.npy"
expect "JSON and packed weights on standard output" 2 'both want standard output' mha "${bert[@]}" --json \
    --save-packed -
expect "JSON and an array on standard output" 2 'both want standard output' mha "${bert[@]}" --json -o -
many=()
for i in $(seq 65); do many+=(--ignore="t$i"); done
expect "too many tensors to ignore" 2 '--ignore=t65 is one too many' mha "${bert[@]}" "${many[@]}"

# ---- What it does ----

expect "a block from a safetensors file, sizes from its shapes" 0 \
    'embed_dim=24,num_heads=3,seq_q=5,seq_kv=5,head_dim=8' mha "${bert[@]}" --check -o "$work/out.npy"
grep -q 'the same bits' "$work/stdout" && grep -Eq "$near" "$work/stdout" &&
    grep -q 'layer.0.attention., named as by BERT; packed to' "$work/stdout"
report $? "the report has the interpreter, the reference and where the weights came from"
grep -aq "'shape': (5, 24)" "$work/out.npy"
report $? "an input without a batch gives an output without one"
expect "from a file without a prefix" 0 'named as by BERT' mha --weights "$work/root.safetensors" -o "$work/root.npy"
expect "from a directory" 0 'named as by attune' mha --weights "$work/weights" -o "$work/dir.npy"
one_by_one=()
for name in q k v out; do
    one_by_one+=(--tensor "${name}_weight=$work/weights/${name}_weight.npy"
        --tensor "${name}_bias=$work/weights/${name}_bias.npy")
done
"$attune" run num_heads=3 --tensor x="$work/x.npy" "${one_by_one[@]}" -o "$work/run.npy" >"$work/stdout" \
    2>"$work/stderr"
same "all of them, and attune run with the same weights, give the same bits" "$work/out.npy" "$work/root.npy" \
    "$work/dir.npy" "$work/run.npy"
expect "one thread" 0 '1 thread' mha "${bert[@]}" --threads=1 -o "$work/one.npy"
expect "the interpreter" 0 'interpreted' mha "${bert[@]}" --engine=interp -o "$work/interp.npy"
mha "${bert[@]}" -o - >"$work/piped.npy" 2>"$work/stderr"
same "one thread, the interpreter and standard output give the same bits" "$work/out.npy" "$work/one.npy" \
    "$work/interp.npy" "$work/piped.npy"
expect "--expect" 0 'expected +max error 0.00e\+00' mha "${bert[@]}" --expect "$work/out.npy"
expect "--json" 0 '"weights": ".*named as by BERT' mha "${bert[@]}" --json
expect "a batch" 0 'batch=2,embed_dim=24,num_heads=3,seq_q=5' "$attune" mha num_heads=3 --x "$work/x3.npy" \
    "${bert[@]}" --check -o "$work/batch.npy"
grep -q 'the same bits' "$work/stdout" && grep -aq "'shape': (2, 5, 24)" "$work/batch.npy"
report $? "it has the interpreter's bits, and comes out as one"
for code in i8 i4,w_group=64 i4,x_planes=1; do
    expect "weights as codes: $code" 0 'the same bits' "$attune" mha num_heads=3,w_dtype=$code --x "$work/x.npy" \
        "${bert[@]}" --check
done
expect "a mask, and the probabilities" 0 'the same bits' "$attune" mha \
    num_heads=3,attn_mask_dims=qk,weights_mode=softmax --x "$work/x.npy" \
    --tensor attn_mask="$work/mask.npy" "${bert[@]}" --check --write weights="$work/probabilities.npy"
grep -aq "'shape': (3, 5, 5)" "$work/probabilities.npy"
report $? "which are a matrix for each head"
expect "cross-attention" 0 'is_cross=1,.*seq_q=5,seq_kv=7' mha --x-kv "$work/x_kv.npy" "${bert[@]}" --check -o \
    "$work/cross.npy"
grep -q 'the same bits' "$work/stdout" && ! cmp -s "$work/out.npy" "$work/cross.npy"
report $? "its keys are those of the other input"
expect "values from an input of their own" 0 'v_embed_dim=24' mha --x-kv "$work/x_kv.npy" --x-v "$work/x_v.npy" \
    "${bert[@]}" --check -o "$work/cross_v.npy"
same "which makes no difference where it holds the same" "$work/cross.npy" "$work/cross_v.npy"
expect "layout and names by hand" 0 'named one by one' mha "${bert[@]}" --layout=out_in \
    --name q_weight=layer.0.attention.self.query.weight --name q_bias=layer.0.attention.self.query.bias \
    --name k_weight=layer.0.attention.self.key.weight --name k_bias=layer.0.attention.self.key.bias \
    --name v_weight=layer.0.attention.self.value.weight --name v_bias=layer.0.attention.self.value.bias \
    --name out_weight=layer.0.attention.output.dense.weight --name out_bias=layer.0.attention.output.dense.bias \
    -o "$work/named.npy"
same "which are the same weights" "$work/out.npy" "$work/named.npy"
expect "the other layout" 0 'GFLOP' mha "${bert[@]}" --layout=in_out -o "$work/turned.npy"
! cmp -s "$work/out.npy" "$work/turned.npy"
report $? "which are other weights"

# Names of textbooks: those of any list, whatever the prefix. All are the same bytes.
textbook() { # textbook Q K V OUT [BIASES]: the four layers' names
    local at=0 name list=
    for name in "$@"; do
        list+=$(entry "$name.weight" 24,24 $at $((at + matrix))),$(entry "$name.bias" 24 $((at + matrix)) \
            $((at + matrix + bias))),
        at=$((at + matrix + bias))
    done
    printf '%s' "${list%,}"
}
for names in 'query key value combine' 'W_q W_k W_v W_o' 'q_proj k_proj v_proj fc' \
    'attn.query attn.key attn.value attn.output' \
    'w_qs w_ks w_vs fc' 'to_q to_k to_v to_out.0' 'a.linears.0 a.linears.1 a.linears.2 a.linears.3' \
    'query.linear key.linear value.linear output' 'q_linear k_linear v_linear out' 'WQ WK WV WO'; do
    # shellcheck disable=SC2086
    make_safetensors "$work/textbook.safetensors" "{$(textbook $names)}" $total
    expect "textbook: $names" 0 'named as by textbooks' mha --weights "$work/textbook.safetensors" -o \
        "$work/textbook.npy"
    same "are the same weights" "$work/out.npy" "$work/textbook.npy"
done
bare=$(entry W_Q 24,24 0 2304),$(entry W_K 24,24 2304 4608),$(entry W_V 24,24 4608 6912),$(entry W_O 24,24 6912 9216)
make_safetensors "$work/bare.safetensors" "{$bare,$(entry b_Q 24 9216 9312)}" 9312
refuse "matrices whose layout no name tells" 'do not tell their layout: give --layout=in_out' mha \
    --weights "$work/bare.safetensors"
expect "unless it is given" 0 'named as by textbooks' mha --weights "$work/bare.safetensors" --layout=in_out
make_safetensors "$work/twice.safetensors" "{$(textbook query key value combine),$(entry fc.weight 24,24 $total \
    $((total + matrix)))}" $((total + matrix))
refuse "two outputs" "'combine.weight' and 'fc.weight' are both usual names of out_weight" mha \
    --weights "$work/twice.safetensors"
make_safetensors "$work/stray.safetensors" "{$(textbook query key value combine),$(entry norm.weight 24 $total \
    $((total + bias)))}" $((total + bias))
refuse "what is no weight" "tensor 'norm.weight' lies among the weights .*textbooks" mha \
    --weights "$work/stray.safetensors"

# Norms of queries and keys lie among the weights of Qwen3 and Gemma 3, and are inputs of their own.
llama() {
    local at=0 name list=
    for name in q_proj k_proj v_proj o_proj; do
        list+=$(entry $name.weight 24,24 $at $((at + matrix))),
        at=$((at + matrix))
    done
    printf '%s' "$list$(entry q_norm.weight 8 $at $((at + 32))),$(entry k_norm.weight "$1" $((at + 32)) $2)"
}
norms=$((4 * matrix + 64))
make_safetensors "$work/qwen.safetensors" "{$(llama 8 $norms)}" $norms
for at in q:64 k:32; do
    make_npy "$work/${at%:*}_norm.npy" '<f4' False '(8,)' 0
    real_bytes ${at#*:} | head -c 32 >>"$work/${at%:*}_norm.npy"
done
named() { "$attune" mha num_heads=3,qk_norm_eps=1e-6 --x "$work/x.npy" --weights "$work/qwen.safetensors" "$@"; }
refuse "norms that the problem lacks" "'q_norm.weight' normalises queries, but the problem has no qk_norm_eps" mha \
    --weights "$work/qwen.safetensors"
expect "norms by the names of Qwen3" 0 "$near" named --check -o "$work/named.npy"
expect "and as tensors" 0 'named as by Llama' named --ignore q_norm.weight --ignore k_norm.weight \
    --tensor q_norm="$work/q_norm.npy" --tensor k_norm="$work/k_norm.npy" -o "$work/given.npy"
same "they are the same" "$work/named.npy" "$work/given.npy"
refuse "norms that nothing gives" 'the problem needs --tensor q_norm=F.npy' named --ignore q_norm.weight \
    --ignore k_norm.weight
make_safetensors "$work/wide.safetensors" "{$(llama 9 $((norms + 4)))}" $((norms + 4))
refuse "a norm of other heads" "'k_norm.weight' has 9 elements; k_norm has head_dim = 8" "$attune" mha \
    num_heads=3,qk_norm_eps=1e-6 --x "$work/x.npy" --weights "$work/wide.safetensors"

# A separator at the beginning of a name, as in ONNX's, and nothing after one.
for name in /layer/query.weight .bias layer. ..; do
    make_safetensors "$work/odd.safetensors" "{$(entry $name 24,24 0 $matrix)}" $matrix
    timeout 60 "$attune" mha num_heads=3 --x "$work/x.npy" --weights "$work/odd.safetensors" >"$work/stdout" \
        2>"$work/stderr"
    [ $? = 1 ]
    report $? "a tensor of the name $name alone is refused"
done
make_safetensors "$work/strays.safetensors" "{$(textbook query key value combine),$(entry norm.weight 24 $total \
    $((total + bias))),$(entry gate.weight 24 $((total + bias)) $((total + 2 * bias)))}" $((total + 2 * bias))
refuse "all that is no weight, at once" "tensors 'gate.weight', 'norm.weight' lie among .*--ignore=gate.weight" mha \
    --weights "$work/strays.safetensors"
make_safetensors "$work/unify.safetensors" "{$(textbook toqueries tokeys tovalues unifyheads)}" $total
expect "toqueries to unifyheads" 0 'named as by textbooks' mha --weights "$work/unify.safetensors"
heads=$(entry W_Q 3,24,8 0 2304),$(entry W_K 3,24,8 2304 4608),$(entry W_V 3,24,8 4608 6912)
make_safetensors "$work/heads.safetensors" "{$heads,$(entry W_O 3,8,24 6912 9216)}" 9216
refuse "heads in front" "'W_Q' is \[3, 24, 8\]: its dims must be \[in, heads, head_dim\]; transpose it by \(1, 0, 2\)" \
    mha --weights "$work/heads.safetensors" --layout=in_out
wide=$(entry W_Q 48,24 0 4608),$(entry W_K 48,24 4608 9216),$(entry W_V 48,24 9216 13824)
make_safetensors "$work/turned.safetensors" "{$wide,$(entry W_O 24,48 13824 18432)}" 18432
refuse "the other layout" 'ATTUNE_OUT_IN \(--layout=out_in\)' "$attune" mha num_heads=3,head_dim=16 --x "$work/x.npy" \
    --weights "$work/turned.safetensors" --layout=in_out
make_safetensors "$work/no_out.safetensors" "{$(entry w 24,24 0 2304)}" 2304
refuse "no matrix of the output" 'no tensor is named for out_weight; the file has .* or set no_out_projection=1' mha \
    --weights "$work/no_out.safetensors" --name q_weight=w --name k_weight=w --name v_weight=w

# ---- Packed weights ----

expect "packed weights are saved" 0 'packed to' mha "${bert[@]}" --save-packed "$work/blob"
mha "${bert[@]}" --save-packed - >"$work/piped_blob" 2>"$work/stderr"
same "also to standard output, and nothing else with them" "$work/blob" "$work/piped_blob"
packed() { "$attune" mha "$1" --x "$work/x.npy" --packed "$2" -o "$work/from_blob.npy"; }
expect "and loaded" 0 'packed before' packed num_heads=3 "$work/blob"
same "to the same bits" "$work/out.npy" "$work/from_blob.npy"
expect "checked by the interpreter alone" 0 'f64 reference +none' "$attune" mha num_heads=3 --x "$work/x.npy" \
    --packed "$work/blob" --check
grep -q 'the same bits' "$work/stdout"
report $? "whose bits they are"
"$attune" mha num_heads=3 --x "$work/x.npy" --packed "$work/blob" --check --json >"$work/stdout" 2>"$work/stderr"
grep -q '"same_bits": true' "$work/stdout" && ! grep -q max_error "$work/stdout"
report $? "in JSON too"
refuse "packed weights without a number of heads" 'does not name num_heads' packed seq_q=5 "$work/blob"
refuse "packed weights of another problem" 'blob' packed num_heads=3,head_dim=16 "$work/blob"
head -c 2000 "$work/blob" >"$work/short"
refuse "packed weights cut off" 'short' packed num_heads=3 "$work/short"
{ head -c 1000 "$work/blob" && printf 'x' && tail -c +1002 "$work/blob"; } >"$work/damaged"
refuse "packed weights with another byte" 'damaged' packed num_heads=3 "$work/damaged"
refuse "no packed weights" 'nothing: cannot read: No such file' packed num_heads=3 "$work/nothing"
refuse "packed weights in no directory" 'cannot write: No such file' mha "${bert[@]}" --save-packed "$work/no/blob"

# ---- Caches ----

make_npy "$work/k.npy" '<f4' False '(3, 9, 8)' 864
make_npy "$work/v.npy" '<f4' False '(3, 9, 8)' 864
decode() { # a step of two tokens on a cache of nine keys
    "$attune" mha num_heads=3,seq_new=2,seq_kv=9,is_causal=1,causal_align=bottom_right --x "$work/two.npy" \
        --tensor k="$work/k.npy" --tensor v="$work/v.npy" "${bert[@]}" "$@"
}
make_npy "$work/two.npy" '<f4' False '(2, 24)' 192
expect "a step on a cache" 0 'the same bits' decode --check --write k="$work/k_after.npy" -o "$work/step.npy"
cmp -s <(tail -c 864 "$work/k.npy" | head -c 224) <(tail -c 864 "$work/k_after.npy" | head -c 224) &&
    ! cmp -s <(tail -c 864 "$work/k.npy") <(tail -c 864 "$work/k_after.npy")
report $? "which changes the last keys of each head only"
make_npy "$work/k7.npy" '<f4' False '(3, 7, 8)' 672
cross=(--x "$work/x.npy" "${bert[@]}")
expect "keys of another input, into a cache" 0 'the same bits' "$attune" mha num_heads=3,seq_new=7 "${cross[@]}" \
    --x-kv "$work/x_kv.npy" --tensor k="$work/k7.npy" --tensor v="$work/k7.npy" --check -o "$work/first.npy" \
    --write k="$work/k_kept.npy" --write v="$work/v_kept.npy"
given=(--tensor k="$work/k_kept.npy" --tensor v="$work/v_kept.npy")
expect "and from there" 0 'the same bits' "$attune" mha num_heads=3,kv_projected=1 "${cross[@]}" "${given[@]}" --check \
    -o "$work/second.npy"
same "give the same" "$work/first.npy" "$work/second.npy"
refuse "keys that are given in another number of heads" 'num_kv_heads' "$attune" mha \
    num_heads=3,num_kv_heads=1,kv_projected=1 \
    "${cross[@]}" "${given[@]}"
expect "lengths known at run time" 0 'seq_q=dynamic' "$attune" mha num_heads=3,seq_q=dynamic --x "$work/x.npy" \
    "${bert[@]}" -o "$work/dynamic.npy" --check
grep -q 'the same bits' "$work/stdout" && grep -aq "'shape': (5, 24)" "$work/dynamic.npy"
report $? "come from the input"
expect "keys of a length known at run time" 0 'seq_kv=dynamic' "$attune" mha num_heads=3,seq_kv=dynamic,reproducible=1 \
    --x "$work/x.npy" --x-kv "$work/x_kv.npy" "${bert[@]}" -o "$work/dynamic.npy"
expect "and at a fixed one" 0 '' "$attune" mha num_heads=3,reproducible=1 --x "$work/x.npy" --x-kv "$work/x_kv.npy" \
    "${bert[@]}" -o "$work/fixed.npy"
same "give the same where bits are reproducible" "$work/fixed.npy" "$work/dynamic.npy"

# ---- What is wrong with weights ----

out_before=$(cat "$work/out.npy" | md5sum)
bad() { mha --weights "$work/bad.safetensors" -o "$work/out.npy" "$@"; }
refuse "no such file" 'nothing: cannot read: No such file' mha --weights "$work/nothing"
mkdir "$work/empty"
refuse "an empty directory" 'empty: no weights of a block, .*the file has nothing' mha --weights "$work/empty"
: >"$work/bad.safetensors"
refuse "an empty file" 'it has 0 bytes' bad
make_safetensors "$work/bad.safetensors" "{$(separate "")}" $((total - 1))
refuse "a truncated file" "truncated: tensor 'output.dense.bias' ends at byte 9600 of the data, which has 9599" bad
make_safetensors "$work/bad.safetensors" "{$(separate "")}" $((total + 4))
refuse "a file with data of no tensor" 'the last 4 bytes of the data belong to no tensor' bad
make_safetensors "$work/bad.safetensors" "{$(entry q_weight 24,24 0 2300)}" 2300
refuse "a tensor of another size than its shape" "'q_weight' has 576 elements of F32, which do not take the 2300" bad
make_safetensors "$work/bad.safetensors" "{$(entry q_weight 24,24 0 2304),$(entry k_weight 24,24 96 2400)}" 2400
refuse "tensors that overlap" "'q_weight' and 'k_weight' overlap at byte 96" bad
make_safetensors "$work/bad.safetensors" "{$(entry q_weight 1 0 4),$(entry q_weight 1 4 8)}" 8
refuse "a name twice" 'names a key twice' bad
make_safetensors "$work/bad.safetensors" "{$(entry q_weight -1 0 4)}" 4
refuse "a negative size" 'shape that is not a list of whole numbers' bad
make_safetensors "$work/bad.safetensors" 'weights' 0
refuse "a header that is not JSON" "does not begin with '\{'" bad
real_bytes 100 >"$work/bad.safetensors"
refuse "something else" 'bad.safetensors: the file is truncated or no safetensors file' bad
make_safetensors "$work/bad.safetensors" "{$(entry q_weight 24,24 0 576 I8)}" 576
refuse "whole numbers" "'q_weight' has the dtype I8; weights are of f32, f16, bf16 or f64" bad
make_safetensors "$work/bad.safetensors" "{$(entry q_weight 24,2,2,2,3 0 2304)}" 2304
refuse "five dimensions" "'q_weight' has 5 dimensions; weights have from 1 to 4" bad
make_safetensors "$work/bad.safetensors" "{$(entry q_weight 24,24 0 1152 F16)}" 1152
refuse "a missing weight, and what there is" "there is no tensor 'k_weight' \(k_weight of attune\), but 'q_weight'" bad
half=$(entry qkv_weight 72,24 0 3456 F16),$(entry out_weight 24,24 3456 4608 F16)
make_safetensors "$work/bad.safetensors" "{$half}" 4608
refuse "weights of f16" "'out_weight' is of f16, but the problem has w_dtype=f32: .* set w_dtype=f16" bad
expect "unless the problem says so" 0 'w_dtype=f16' "$attune" mha num_heads=3,w_dtype=f16 --x "$work/x.npy" --check \
    --weights "$work/bad.safetensors"
short=$(entry q_weight 24,24 0 2304),$(entry k_weight 24,16 2304 3840),$(entry v_weight 24,24 3840 6144)
make_safetensors "$work/bad.safetensors" "{$short,$(entry out_weight 24,24 6144 8448)}" 8448
refuse "a weight of another shape" "'k_weight': k_weight is \[24, 16\] f32; expected \[24, 24\] f32" bad
twice=$(entry q_proj_weight 24,24 0 2304),$(entry in_proj_weight 72,24 2304 9216),$(entry out_proj.weight 24,24 9216 \
    11520)
make_safetensors "$work/bad.safetensors" "{$twice}" 11520
refuse "weights twice" 'q_weight and qkv_weight are both given' bad
torch=$(entry in_proj_weight 72,24 0 6912),$(entry out_proj.weight 24,24 6912 9216),$(entry bias_k 1,1,24 9216 9312)
make_safetensors "$work/bad.safetensors" "{$torch}" 9312
refuse "a tensor that the block cannot have" "tensor 'bias_k' lies among the weights .*torch.nn.MultiheadAttention" bad
expect "unless it is left aside" 0 'GFLOP' mha --weights "$work/bad.safetensors" --ignore=bias_k
refuse "nothing to leave aside" "there is no tensor 'bias_q' to ignore, but 'bias_k'" bad --ignore=bias_q
refuse "a name that the file does not have" "there is no tensor 'w' \(for q_weight\), but 'bias_k'" bad --name \
    q_weight=w
make_safetensors "$work/bad.safetensors" "{$(entry w 24,24 0 2304)}" 2304
refuse "names of no convention" "no weights of a block, .*the file has 'w'; --name q_weight=TENSOR" bad
refuse "names that were looked for" 'by the names of attune, .* or by other usual names .query.* combine, output' \
    bad
refuse "names for some weights only" 'no tensor is named for k_weight; the file has' bad --name q_weight=w
mkfifo "$work/pipe"
refuse "a pipe that nobody writes to" 'pipe: not a regular file' timeout 20 "$attune" mha num_heads=3 --x \
    "$work/x.npy" \
    --weights "$work/pipe"
blocks=$(separate a.),$(separate b. | sed -E 's/\[([0-9]+),([0-9]+)\]}/[\1+,\2+]}/g')
while [[ $blocks =~ \[([0-9]+)\+,([0-9]+)\+\] ]]; do
    blocks=${blocks/"${BASH_REMATCH[0]}"/[$((BASH_REMATCH[1] + total)),$((BASH_REMATCH[2] + total))]}
done
make_safetensors "$work/bad.safetensors" "{$blocks}" $((2 * total))
refuse "several blocks" "several blocks: --prefix must be one of 'a.', 'b.'" bad
refuse "a prefix of none" "no block has the prefix 'c'; there is 'a.', 'b.'" bad --prefix=c
expect "one of several" 0 ', b., named as by BERT' mha --weights "$work/bad.safetensors" --prefix=b
cp "$work/weights/q_weight.npy" "$work/weights/q_wieght.npy"
refuse "a slip of the pen" "tensor 'q_wieght' lies among the weights" mha --weights "$work/weights"
rm "$work/weights/q_wieght.npy"
make_npy "$work/weights/q_weight.npy" '<f4' False '(24, 24)' 2300
refuse "a truncated file of a directory" 'q_weight.npy: the file is truncated' mha --weights "$work/weights"
rm "$work/weights/q_weight.npy"
refuse "a missing file of a directory" 'no weights of a block' mha --weights "$work/weights"

# ---- What is wrong with sizes ----

refuse "a number of heads that nothing tells" 'does not name num_heads' "$attune" mha --x "$work/x.npy" "${bert[@]}"
refuse "heads that do not divide" "query.weight' has 24 outputs, which num_heads=5 does not divide" "$attune" mha \
    num_heads=5 --x "$work/x.npy" "${bert[@]}"
refuse "another head_dim" "query.weight': q_weight is \[24, 24\] f32; expected \[48, 24\]" "$attune" mha \
    num_heads=3,head_dim=16 --x "$work/x.npy" "${bert[@]}"
refuse "another embed_dim" 'embed_dim is 48 by the problem but 24 in .*x.npy' "$attune" mha num_heads=3,embed_dim=48 \
    --x "$work/x.npy" "${bert[@]}"
refuse "another number of tokens" 'seq_q is 6 by the problem but 5 in .*x.npy' "$attune" mha num_heads=3,seq_q=6 \
    --x "$work/x.npy" "${bert[@]}"
refuse "an unknown key" "frobs" "$attune" mha num_heads=3,frobs=1 --x "$work/x.npy" "${bert[@]}"
make_npy "$work/wide.npy" '<f4' False '(5, 32)' 640
refuse "an input that is too wide" "expected \[24, 32\] f32" "$attune" mha num_heads=3 --x "$work/wide.npy" "${bert[@]}"
refuse "an input of four dimensions" 'has 4 dimensions instead of 3, or 2' "$attune" mha num_heads=3 \
    --x examples/minilm/q.npy "${bert[@]}"
make_npy "$work/whole.npy" '<i4' False '(5, 24)' 480
refuse "an input of whole numbers" "is '<i4', but the problem has dtype=f32 .*: save it as float32" "$attune" mha \
    num_heads=3 --x \
    "$work/whole.npy" \
    "${bert[@]}"
refuse "a tensor that the problem does not have" 'the problem has no tensor named q_weight' mha "${bert[@]}" \
    --tensor q_weight="$work/x.npy"
refuse "queries beside what they are projected from" 'x3.npy: the problem has no tensor named q: a block projects' mha \
    "${bert[@]}" --tensor q="$work/x3.npy"
refuse "an output that the problem does not have" 'no output named weights' mha "${bert[@]}" --write \
    weights="$work/w.npy"
refuse "such an output after one that it has" 'no output named weights' mha "${bert[@]}" -o "$work/early.npy" \
    --write weights="$work/w.npy"
[ ! -e "$work/early.npy" ]
report $? "which is not written either"
refuse "an output in no directory" 'cannot write: No such file' mha "${bert[@]}" -o "$work/no/out.npy"
refuse "more threads than processors" '--threads is 1024, but the process may use' mha "${bert[@]}" --threads=1024
[ "$out_before" = "$(cat "$work/out.npy" | md5sum)" ] && [ "$(find "$work" -name '*.tmp' | wc -l)" -eq 0 ]
report $? "whatever was refused left the output alone, and no temporary file"

# ---- NaN in weights is computed, not hidden ----

{ head -c -$((total - 4)) "$work/root.safetensors" | head -c -4 && printf '\x00\x00\xc0\x7f' &&
    tail -c $((total - 4)) "$work/root.safetensors"; } >"$work/nan.safetensors"
expect "NaN in a weight of the queries" 0 'the same bits' mha --weights "$work/nan.safetensors" --check -o \
    "$work/nan.npy"
[ "$(od -An -v -tf4 -w4 -j "$(($(stat -c %s "$work/nan.npy") - 480))" "$work/nan.npy" | grep -ci nan)" -eq 120 ]
report $? "makes every row NaN"
echo "1..$number"
