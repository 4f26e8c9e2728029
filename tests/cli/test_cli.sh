#!/usr/bin/env bash
# The `attune` command from outside: what each subcommand gives, and one clear sentence for everything that can be wrong
# with its input. Needs ATTUNE, the command, and an ATTUNE_CACHE_DIR of its own.
set -u
cd "$(dirname "$0")/../.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. tests/support/cli.sh

# make_i32 FILE SHAPE VALUE…: an array of whole numbers.
make_i32() {
    local file=$1 value hex
    make_npy "$file" '<i4' False "$2" 0
    for value in "${@:3}"; do
        hex=$(printf '%08x' $((value & 0xffffffff)))
        printf "\\x${hex:6:2}\\x${hex:4:2}\\x${hex:2:2}\\x${hex:0:2}" >>"$file"
    done
}

attune=$ATTUNE
minilm=examples/minilm
layer=(--q $minilm/q.npy --k $minilm/k.npy --v $minilm/v.npy)
small=num_heads=2,seq_q=9,head_dim=5

# ---- Help and usage ----

expect "attune without arguments explains itself" 2 'Usage: attune COMMAND' "$attune"
expect "attune --help lists the commands" 0 'bench +measure' "$attune" --help
expect "attune --version" 0 '^attune [0-9]+\.[0-9]+\.[0-9]+$' "$attune" --version
commands=$("$attune" --help | awk '/^  [a-z]/ { print $1 }')
[ "$(wc -w <<<"$commands")" -ge 12 ]
report $? "there are 12 of them"
expect "check is a command of another program" 2 "^attune: 'check' is a command of attune-lab" "$attune" check $small
expect "and so is conform" 2 "^attune: 'conform' is a command of attune-lab" "$attune" conform tests/data/conform
expect "attune-lab --help lists its commands" 0 'conform +run conformance' "$attune-lab" --help
for command in check conform; do
    expect "attune-lab $command --help" 0 "Usage: attune-lab $command" "$attune-lab" "$command" --help
done
for command in $commands; do
    expect "attune $command --help" 0 "Usage: attune $command" "$attune" "$command" --help
    "$attune" help "$command" >"$work/stdout" 2>"$work/stderr" && "$attune" "$command" --help |
        cmp - "$work/stdout" >>"$work/stderr"
    report $? "attune help $command is the same"
    expect "attune $command with an unknown option" 2 "unrecognized option '--frobnicate'" "$attune" "$command" \
        --frobnicate
done
manual=$(sed 's/\\-/-/g' docs/attune.1)
: >"$work/stderr"
for command in $commands; do
    # In the command's own section or among the common options, as a whole word.
    section=$(sed -n "/^\.SS attune $command\$/,/^\.SS/p; /^\.SS Common/,/^\.SH/p" <<<"$manual")
    [ "$command" = mha ] && section+=$(sed -n '/^\.SS attune run$/,/^\.SS/p' <<<"$manual")
    for option in $("$attune" "$command" --help | grep -oE '^ +(-., )? *--[a-z-]+' | grep -oE -- '--[a-z-]+|-[a-z],' |
        tr -d ,); do
        grep -qE -- "(^|[^a-z-])$option([^a-z-]|\$)" <<<"$section" || echo "$command $option" >>"$work/stderr"
    done
done
lab_manual=$(sed 's/\\-/-/g' lab/attune-lab.1; sed 's/\\-/-/g; /^\.SS Common/,/^\.SH/!d' docs/attune.1)
for option in $("$attune-lab" check --help; "$attune-lab" conform --help) ; do
    [[ $option == --[a-z]* ]] || continue
    option=${option%%=*}
    grep -qE -- "(^|[^a-z-])${option%,}([^a-z-]|\$)" <<<"$lab_manual" || echo "attune-lab $option" >>"$work/stderr"
done
for name in $(grep -rohE --include='*.c' '"ATTUNE_[A-Z_]+"' src/{host,machine,threads,cache,compiler,engine,api} |
    tr -d '"' | grep -v _INIT | sort -u); do
    grep -qw -- "$name" <<<"$manual" || echo "$name" >>"$work/stderr"
done
[ ! -s "$work/stderr" ]
report $? "the man page names every option and every variable"
# Each row of the table of features is a problem, but for the sizes that all of them need.
rows=$(sed -nE 's/^\|[^|]*\| `([a-z_]+=[^`]*)` \|.*/\1/p' docs/features.md)
[ "$(wc -l <<<"$rows")" -ge 18 ]
report $? "there is a table of features"
while IFS= read -r row; do
    given=$row
    for default in num_heads=8 seq_q=8 head_dim=64; do
        [[ ,$row == *,"${default%%=*}"=* ]] || given+=,$default
    done
    expect "features: $row" 0 '^problem +[a-z]' "$attune" compile "$given"
done <<<"$rows"
# The fields of problems, as the library lists them.
: >"$work/stderr"
for field in $(sed -nE 's/^    [A-Z_]+\("?([a-z_]+)"?[,)].*/\1/p' src/problem/problem_fields.c); do
    grep -qw -- "$field" <<<"$manual" || [[ $field == *_strides ]] || echo "$field" >>"$work/stderr"
done
[ ! -s "$work/stderr" ]
report $? "and every key of problems"
if command -v man >"$work/none" && man --version >"$work/none" 2>&1; then
    MANWIDTH=80 man --warnings -l docs/attune.1 2>"$work/stderr" | sed -n '/^SYNOPSIS/,/^DESCRIPTION/p' >"$work/stdout"
    [ ! -s "$work/stderr" ] && [ "$(grep -c '^ *attune' "$work/stdout")" -ge 14 ] &&
        [ "$(awk 'NF && !/^[A-Z]+$|^ +attune/' "$work/stdout" | wc -l)" -eq 0 ] &&
        [ "$(awk 'length > 80' "$work/stdout" | wc -l)" -eq 0 ]
    report $? "man has nothing to complain of, and each SYNOPSIS is a line"
fi
if command -v mandoc >"$work/none"; then
    mandoc -Tlint -Wwarning docs/attune.1 >"$work/stdout" 2>"$work/stderr"
    [ "$(grep -vc 'missing date' "$work/stdout")" -eq 0 ]
    report $? "nor has mandoc"
fi
expect "help for all commands" 0 'bench +measure' "$attune" help
expect "help for an unknown command" 2 "unknown command 'frobnicate'" "$attune" help frobnicate
expect "help for two commands" 2 "'bench' follows 'run'" "$attune" help run bench
expect "an unknown command" 2 "unknown command 'frobnicate'" "$attune" frobnicate
expect "run without inputs" 2 '--q, --k and --v' "$attune" run
expect "compile without a problem" 2 'a problem is needed' "$attune" compile
expect "two problems" 2 "'b=2' follows 'a=1'" "$attune" compile a=1 b=2
expect "an unknown stage" 2 "not 'elf'" "$attune" compile $small --emit=elf
expect "an unknown engine" 2 "not 'llvm'" "$attune" run "${layer[@]}" --engine=llvm
expect "no threads" 2 "from 1 to [0-9]+, not '0'" "$attune" run "${layer[@]}" --threads=0
expect "threads that are no number" 2 "not '2x'" "$attune" bench --threads=2x
expect "conform without a folder" 2 'a folder with cases is needed' "$attune-lab" conform
expect "conform by an unknown engine" 2 "'jit', 'interp' or 'both', not 'llvm'" "$attune-lab" conform . --engine=llvm
expect "check of nothing" 2 'either a problem or --random' "$attune-lab" check
expect "an unknown cache action" 2 "not 'shrink'" "$attune" cache shrink
expect "two cache actions" 2 "ls takes no argument, but 'verify' follows it" "$attune" cache ls verify
expect "an unknown kind of inputs" 2 "one of ordinary, .* not 'odd'" "$attune-lab" check $small --inputs=odd
expect "two outputs in one file" 2 "both want '.*same.npy'" "$attune" run "${layer[@]}" -o "$work/same.npy" --lse \
    "$work/same.npy"
# A second value: refused, wherever it stands and however the option is written, unless the option is for several.
twice() { expect "$1 has two values" 2 "^attune[a-z -]*: --$1 has two values, '$2' and '$3'; one is wanted" "${@:4}"; }
twice expect a.npy b.npy "$attune" run "${layer[@]}" --expect a.npy --expect=b.npy
twice isa avx2 x86-64 "$attune" compile --isa=avx2 $small --isa x86-64
twice output a.ll a.ll "$attune" compile $small --emit=llvm -o a.ll -oa.ll
twice threads 1 2 "$attune" explain $small --threads=1 --thr 2
twice sizes seq_kv=1 seq_q=2 "$attune" bench $small --sizes seq_kv=1 --sizes seq_q=2
twice seed 1 1 "$attune" cache audit --seed=1 --seed=1
twice budget 1s 2 "$attune" warm --budget 1s --budget 2 $small
twice ir a.air b.air "$attune" tune --ir a.air --ir b.air
twice weights a b "$attune" mha --x x.npy --weights a --weights b num_heads=2
twice name a b "$attune" bundle --name a --name b -o a.a --kernels-only $small
twice output a.json b.json "$attune" sweep merge -o a.json --output b.json c.json
twice random 1 2 "$attune-lab" check --random 1 --random 2
expect "a weight has two tensors" 2 "--name: q_weight has two tensors, 'a' and 'b'; one is wanted" "$attune" mha \
    --x x.npy --weights a --name q_weight=a --name q_weight=b num_heads=2
expect "JSON and lse on standard output" 2 'both want standard output' "$attune" run "${layer[@]}" --json --lse -
expect "JSON and a dump" 2 '--json and --dump-passes' "$attune" compile $small --json --dump-passes
expect "a stage and a run" 2 '--emit runs nothing' "$attune" ir examples/ir/scale_rows.air --emit=ir --arg n=3

# ---- What it does ----

expect "run on a real layer: bits, reference, expected" 0 'the same bits' "$attune" run "${layer[@]}" --check \
    --expect $minilm/expected.npy -o "$work/out.npy" --lse "$work/lse.npy"
grep -Eq 'reference +max error [0-9.]+e-0[6-9], RMS' "$work/stdout" &&
    grep -Eq 'expected +max error [0-9.]+e-0[5-9], RMS' "$work/stdout" && ! grep -q $'\e' "$work/stdout"
report $? "the report has both errors and no colour"
[ "$(stat -c %s "$work/out.npy")" -eq "$(stat -c %s $minilm/expected.npy)" ] && [ -s "$work/lse.npy" ]
report $? "the outputs are written whole"
touch "$work/target.npy" && ln -s target.npy "$work/link.npy"
"$attune" run "${layer[@]}" -o "$work/link.npy" >"$work/stdout" 2>"$work/stderr"
[ -L "$work/link.npy" ] && cmp "$work/target.npy" "$work/out.npy"
report $? "a link stays one, and its target is written"
[ "$(find "$work" -name '*.tmp' | wc -l)" -eq 0 ]
report $? "no temporary file stays behind"
expect "the interpreter computes the layer" 0 'interpreted' "$attune" run "${layer[@]}" --engine=interp \
    -o "$work/interp.npy" --lse "$work/interp-lse.npy"
cmp "$work/out.npy" "$work/interp.npy" && cmp "$work/lse.npy" "$work/interp-lse.npy"
report $? "its files are those of the machine code"
expect "the virtual machine computes the layer" 0 'from the virtual machine' "$attune" run "${layer[@]}" --engine=vm \
    -o "$work/vm.npy" --lse "$work/vm-lse.npy"
cmp "$work/out.npy" "$work/vm.npy" && cmp "$work/lse.npy" "$work/vm-lse.npy"
report $? "its files are those of the machine code, too"
expect "the second process hits the disk cache" 0 'from the disk cache' "$attune" run "${layer[@]}" --lse \
    "$work/lse.npy"
expect "a hit needs no code generator" 0 'from the disk cache' env ATTUNE_CODEGEN=/nonexistent.so "$attune" run \
    "${layer[@]}" --lse "$work/lse.npy"
"$attune" run "${layer[@]}" --lse "$work/lse.npy" -o - 2>"$work/stderr" | cmp - "$work/out.npy"
report $? "-o - writes the array to standard output, and only that"
"$attune" run "${layer[@]}" --lse - 2>"$work/stderr" | cmp - "$work/lse.npy"
report $? "--lse - does so too"
expect "run --json" 0 '"same_bits": true' "$attune" run "${layer[@]}" --check --json
expect "sizes named in the text as well as in the files" 0 'num_heads=12' "$attune" run num_heads=12,is_causal=1 \
    "${layer[@]}"

make_npy "$work/3d.npy" '<f4' False '(4, 6, 8)' 768
expect "three dimensions are a batch of one" 0 'num_heads=4' "$attune" run --q "$work/3d.npy" --k "$work/3d.npy" \
    --v "$work/3d.npy" -o "$work/3d-out.npy"
grep -aq "'shape': (4, 6, 8)" "$work/3d-out.npy"
report $? "and come out as three"
expect "layout=bshd reads [seq, heads, dim]" 0 'num_heads=6,.*seq_q=4' "$attune" run layout=bshd --q "$work/3d.npy" \
    --k "$work/3d.npy" --v "$work/3d.npy"

make_npy "$work/mask.npy" '|b1' False '(6, 6)' 36
expect "any input and any output by name" 0 'the same bits' "$attune" run \
    seq_kv=dynamic,attn_mask_dims=qk,weights_mode=softmax --check \
    --q "$work/3d.npy" --k "$work/3d.npy" --v "$work/3d.npy" --tensor attn_mask="$work/mask.npy" --write \
    weights="$work/w.npy"
grep -aq "'shape': (4, 6, 6)" "$work/w.npy"
report $? "with the shapes that they have"
for scale in default 0.5 -3; do
    by_name=--sizes=softmax_scale=$scale
    [ $scale = default ] && by_name=--sizes=seq_q=6
    "$attune" run softmax_scale=$scale --q "$work/3d.npy" --k "$work/3d.npy" --v "$work/3d.npy" -o "$work/fixed.npy" \
        >"$work/stdout" 2>"$work/stderr" &&
        "$attune" run softmax_scale=dynamic "$by_name" --q "$work/3d.npy" --k "$work/3d.npy" --v "$work/3d.npy" \
            -o "$work/dynamic.npy" >"$work/stdout" 2>"$work/stderr" && cmp "$work/fixed.npy" "$work/dynamic.npy"
    report $? "softmax_scale=dynamic with the scale $scale has the bits of softmax_scale=$scale"
done
refuse "a scale that the problem fixes" 'softmax_scale is 2, but the problem fixes it' "$attune-lab" check \
    seq_q=4,head_dim=4 --sizes=softmax_scale=2
refuse "a scale that is no number" "softmax_scale is 'abc', which is not a number" "$attune-lab" check \
    seq_q=4,head_dim=4,softmax_scale=dynamic --sizes=softmax_scale=abc
refuse "an input that the problem has and nobody gives" 'the problem needs --tensor attn_mask=' "$attune" run \
    attn_mask_dims=qk \
    --q "$work/3d.npy" --k "$work/3d.npy" --v "$work/3d.npy"
refuse "an input that the problem does not have" 'the problem has no tensor named sinks' "$attune" run \
    --q "$work/3d.npy" --k "$work/3d.npy" --v "$work/3d.npy" --tensor sinks="$work/mask.npy"
refuse "a mask of another shape" '3d.npy: shape \(4, 6, 8\) does not fit attn_mask' "$attune" run attn_mask_dims=hqk \
    --q "$work/3d.npy" --k "$work/3d.npy" --v "$work/3d.npy" --tensor attn_mask="$work/3d.npy"
refuse "a size of no name" "'frobs' is not a size" "$attune-lab" check seq_q=dynamic,head_dim=4 --sizes=frobs=3

for stage in ir lowered llvm asm obj image; do
    "$attune" compile $small --emit=$stage -o "$work/stage" >"$work/stdout" 2>"$work/stderr" &&
        "$attune" compile $small --emit=$stage 2>"$work/stderr" | cmp - "$work/stage"
    report $? "compile --emit=$stage to a file and to standard output"
    case $stage in
        ir | lowered) pattern='kernel @' ;;
        llvm) pattern='define' ;;
        asm) pattern='\.text' ;;
        obj) pattern='ELF' ;;
        image) pattern='attimg' ;;
    esac
    head -c 4096 "$work/stage" | grep -aq "$pattern"
    report $? "$stage looks like it"
done
"$attune" compile $small --emit=ir -o "$work/kernel.air" && "$attune" ir "$work/kernel.air" --emit=ir |
    cmp - "$work/kernel.air"
report $? "the printed IR is its own input"
expect "compile into the cache" 0 'key +[0-9a-f]{32}' "$attune" compile $small
expect "compile again" 0 'from +the disk cache' "$attune" compile $small
# All fields and strides that a block may have: an entry holds them.
long=batch=2,embed_dim=24,kv_embed_dim=20,v_embed_dim=20,out_dim=20,num_heads=4,num_kv_heads=2,seq_q=16,seq_kv=256
long+=,seq_new=16,head_dim=16,head_dim_v=24,dtype=f16,k_dtype=bf16,v_dtype=bf16,bias_dtype=f64,w_dtype=bf16
long+=,softmax_scale=0.12345678901234567,logits_soft_cap=12.345678901234567,is_causal=1,causal_align=bottom_right
long+=,causal_offset=-100000,window_left=100000,global_tokens=10,has_lse=1,has_alibi_slopes=1,has_sinks=1,has_kv_lens=1
long+=,has_causal_offsets=1,short_masks=1,attn_mask_dims=2:4:16:100,attn_bias_dims=2:4:16:100,rotary_dim=12
long+=,rotary_interleaved=1,has_position_ids=1,weights_mode=softmax,weights_average=1,reproducible=1
for name in k v weights attn_mask attn_bias; do long+=,${name}_strides=1000000000000:100000000000:100000000:1; done
for name in out x x_kv x_v lse; do long+=,${name}_strides=1000000000000:10000000000:1; done
expect "a long problem" 0 'from +the compiler' "$attune" compile $long
expect "is cached, too" 0 'from +the disk cache' "$attune" compile $long
expect "compile --json" 0 '"origin": "disk cache"' "$attune" compile $small --json
expect "an explicit schedule has its own entry" 0 'from +the compiler' "$attune" compile $small \
    --schedule=value_keys=2
expect "--dump-passes goes to standard error" 0 '# after parse' "$attune" compile $small --dump-passes
[ ! -s "$work/stdout" ]
report $? "and leaves standard output alone"

expect "check of one problem" 0 '^[0-9]+ passed, 0 failed$' "$attune-lab" check $small,is_causal=1,has_lse=1
expect "check of one problem with run-time sizes" 0 '^[0-9]+ passed, 0 failed$' "$attune-lab" check \
    num_heads=2,seq_q=dynamic,seq_kv=dynamic,head_dim=5,has_kv_lens=1,page_size=4 \
    --sizes=seq_q=3,num_pages=7,max_pages=3
expect "check without the sizes that it needs says so" 1 '^attune: .*head_dim=4: --sizes: seq_q is not set; .*' \
    "$attune-lab" check \
    seq_q=dynamic,head_dim=4 --inputs=ordinary
expect "a size that contradicts the problem" 1 'seq_kv is 5, but the problem or its files fix it at 4' \
    "$attune-lab" check seq_q=4,head_dim=4 --inputs=ordinary --sizes=seq_kv=5
expect "no queries at all" 0 '^[0-9]+ passed, 0 failed$' "$attune-lab" check seq_q=dynamic,head_dim=4 \
    --sizes=seq_q=0,seq_kv=3
expect "check of bfloat16" 0 '^all of bf16 .*$' "$attune-lab" check \
    $small,dtype=bf16,attn_bias_dims=qk,is_causal=1,has_lse=1
bf16=tests/data/conform/past_mask_bf16
expect "run on arrays of bfloat16" 0 'the same bits' "$attune" run dtype=bf16,is_causal=1 --check --q $bf16/Q.npy \
    --k $bf16/K.npy --v $bf16/V.npy -o "$work/bf16.npy"
grep -aq "'descr': '<V2'" "$work/bf16.npy"
report $? "which writes one"
expect "and reads it again" 0 'the same bits' "$attune" run dtype=bf16,is_causal=1 --check --q $bf16/Q.npy \
    --k $bf16/K.npy --v $bf16/V.npy --expect "$work/bf16.npy"
expect "raw bytes are no f16" 1 'Q.npy is bf16, but the problem has dtype=f16: set dtype=bf16, or save it as float16' \
    "$attune" run dtype=f16 \
    --q $bf16/Q.npy --k $bf16/K.npy --v $bf16/V.npy
# So few numbers may be worse than promised by chance.
expect "errors of all types, on what is small" 0 '^\| f32, i8 by token \| many queries \| ' bash -c \
    '"$0" check --accuracy --max-flops=3e5 --isa=x86-64; [ $? -le 1 ]' "$attune-lab"
expect "errors of all types are of one schedule and all threads" 2 'takes --isa, --seed and --max-flops only' \
    "$attune-lab" \
    check --accuracy --threads=2
isas=$("$attune" info | sed -n 's/^runs *//p' | wc -w)
expect "check of codes" 0 "^$((7 * isas)) passed, 0 failed$" "$attune-lab" check \
    $small,kv_dtype=i8,kv_scales=token,is_causal=1 \
    --threads=1
make_npy "$work/codes.npy" '|i1' False '(4, 6, 8)' 192
make_npy "$work/scales.npy" '<f4' False '(4, 6)' 96
expect "run on codes and scales" 0 'the same bits' "$attune" run kv_dtype=i8,kv_scales=token --check --q \
    "$work/3d.npy" \
    --k "$work/codes.npy" --v "$work/codes.npy" --tensor k_scale="$work/scales.npy" --tensor v_scale="$work/scales.npy"
refuse "codes without their scales" 'the problem needs --tensor k_scale=' "$attune" run kv_dtype=i8 --q "$work/3d.npy" \
    --k "$work/codes.npy" --v "$work/codes.npy"
refuse "signed bytes are no f8" 'is i8, but the problem has k_dtype=f8: set k_dtype=i8, or save it as uint8' "$attune" \
    run kv_dtype=f8 \
    --q "$work/3d.npy" --k "$work/codes.npy" --v "$work/codes.npy"
refuse "scales of another shape" 'scales.npy: shape \(4, 6\) does not fit k_scale' "$attune" run kv_dtype=i8 \
    --q "$work/3d.npy" --k "$work/codes.npy" --v "$work/codes.npy" --tensor k_scale="$work/scales.npy" \
    --tensor v_scale="$work/scales.npy"
expect "bench of codes" 0 'GB/s|GFLOP' "$attune" bench \
    num_heads=4,seq_q=1,seq_kv=256,head_dim=64,kv_dtype=i8,kv_scales=token
expect "check of random problems" 0 '^20 passed, 0 failed$' "$attune-lab" check --random 20 --seed 7 --max-flops 1e5
[ "$(tail -n 1 "$work/stdout")" = "20 passed, 0 failed" ]
report $? "whose last line counts them"
# Words of bf16 are two vectors of columns: with one in the schedule a register tile has 32 sums still, not 64.
held_tile() {
    "$attune" compile --target=avx2 --emit=ir num_heads=32,num_kv_heads=1,seq_q=1,seq_kv=100,head_dim=64,dtype=bf16 \
        --schedule="strategy=d_lanes,lanes=8,score_rows=1,score_keys=1,score_column_vectors=1,score_streams=1,$1,\
value_keys=1,value_streams=1,kv_tile=64,kv_chunk=512"
}
expect "sums are at most 32" 0 'alloc acc.1: f32x8\[16, 2\] reg' held_tile value_rows=32,value_column_vectors=1
expect "rows divide the schedule's" 0 'alloc acc.1: f32x8\[5, 4\] reg' held_tile value_rows=10,value_column_vectors=3
"$attune" compile num_heads=8,seq_q=128,seq_kv=64,head_dim=1024 --schedule=task_prefetch=head --emit=lowered >"$work/ir"
[ "$(grep -c prefetch "$work/ir")" -gt 0 ] && [ "$(grep -c prefetch "$work/ir")" -lt 20 ]
report $? "prefetches of the next head are loops, not thousands of lines"
# Of a window in one task the rows that come next are another head's.
ask_behind_windows() {
    "$attune" compile --target=avx2 --emit=ir "num_heads=6,seq_q=40,head_dim=16,is_causal=1,$1" \
        --schedule=task_row_vectors=8,task_prefetch=head
}
expect "a window in one task asks for the next head" 0 'prefetch q\[next_entry, next_head' \
    ask_behind_windows window_left=30
# The same key of the next page is asked for where the distance is a quarter of a page or more; else one of this page.
ask_ahead() {
    "$attune" compile --target=avx2 --emit=ir "num_heads=4,head_dim=64,seq_kv=9999,has_kv_lens=1,$1" \
        --schedule=kv_prefetch=$2
}
expect "asking for the next page" 0 'prefetch.far k\[page.1, h, i \+ turn' ask_ahead seq_q=1,page_size=16 4096
expect "asking within a page" 0 'prefetch.far k\[page, h, token' ask_ahead seq_q=1,page_size=64 2048
# Where pages are not read side by side, nothing is known of the next one.
asks() { ask_ahead "$1" 4096 >"$work/ir" && echo "$(grep -c 'prefetch' "$work/ir") times"; }
expect "pages that are no part of a tile ask for no others" 0 '^0 times$' asks seq_q=1,page_size=12
expect "nor do those behind a window" 0 '^0 times$' asks \
    seq_q=2,page_size=16,is_causal=1,causal_align=bottom_right,window_left=5000
expect "others do" 0 '^[1-9][0-9]* times$' asks seq_q=2,page_size=16,is_causal=1,causal_align=bottom_right
# A projected key of f64 that lies in the middle of two numbers of bf16 once it is f32.
expect "a cache of bf16 takes numbers of f64 by way of f32" 0 '^[0-9]+ passed, 0 failed$' "$attune-lab" check \
    embed_dim=14,num_heads=2,seq_q=13,seq_kv=13,head_dim=56,dtype=f64,k_dtype=bf16,w_dtype=f16,seq_new=13 \
    --threads=1 --inputs=ordinary --seed=1885779114
expect "random problems from the middle of a seed" 0 '^3 random problems, seed 7, first 17, ' \
    "$attune-lab" check --random 3 --seed 7 \
    --first 17 --max-flops 1e5
expect "the first problem of one that is given" 2 '--first is for --random' "$attune-lab" check $small --first 1

expect "bench" 0 'GFLOP/s +peak +of peak +touches +GB/s +bound +of roof +cold compile +warm disk +memory hit' \
    "$attune" bench $small --samples=3
"$attune" bench $small --samples=3 --json >"$work/stdout" 2>"$work/stderr"
status=$?
for key in schema cpu machine isa llvm version results problem schedule threads median_us min_us samples_us gflops \
    peak_gflops \
    fraction_of_peak footprint_bytes bandwidth_gbs bound roofline_gflops fraction_of_roofline cold_compile_ms \
    warm_disk_us memory_hit_ns; do
    grep -q "\"$key\":" "$work/stdout" || status=1
done
report $status "bench --json has every field of its schema"
ones=score_keys=1,score_row_vectors=1,score_columns=1,value_columns=1,value_row_vectors=1
ones+=,value_keys=1,task_row_vectors=1,kv_tile=8
expect "bench of schedules side by side" 0 'schedule 2: strategy=q_lanes' "$attune" bench $small --samples=3 \
    --schedule="$("$attune" explain $small --json | sed -n 's/.*"schedule": "\(strategy[^"]*\)".*/\1/p' | head -n 1)" \
    --schedule="strategy=q_lanes,lanes=4,$ones"
[ "$(grep -c '^num_heads.* [12]$' "$work/stdout")" = 2 ]
report $? "a line for each of them"
expect "bench of a schedule that is none" 2 "not a field of a schedule" "$attune" bench $small --schedule=tiles=3
expect "bench of a schedule that does not fit" 1 'lanes must be' "$attune" bench $small --samples=3 \
    --schedule=strategy=q_lanes,lanes=1024,$ones
expect "schedules and the interpreter" 2 'needs machine code' "$attune" bench $small --engine=interp --schedule=lanes=4
expect "bench says what bounds a problem" 0 '"bound": "(memory|compute)"' "$attune" bench --json --samples=3 \
    num_heads=16,seq_q=1,seq_kv=4096,head_dim=64
# 2 heads of 32 keys of 8 columns, twice, and 2 rows of q and out: 4 bytes each.
expect "the footprint counts the keys that a window leaves" 0 '"footprint_bytes": 4224' "$attune" bench --json \
    --samples=1 num_heads=2,seq_q=1,seq_kv=300,head_dim=8,is_causal=1,causal_align=bottom_right,window_left=31
expect "sizes at run time" 0 '"footprint_bytes": 2304' "$attune" bench --json --samples=1 --sizes seq_q=4,seq_kv=32 \
    num_heads=1,seq_q=dynamic,seq_kv=dynamic,head_dim=8
# 4 sequences of 32 keys in pages of 4, in 2 heads of 8 columns, twice; q and out; a table of 8 columns and 4 lengths.
expect "a paged cache is full" 0 '"footprint_bytes": 17040' "$attune" bench --json --samples=1 \
    --sizes num_pages=40,max_pages=8 batch=4,num_heads=2,seq_q=1,head_dim=8,page_size=4,has_kv_lens=1
# 6 queries and 10 keys of 8 columns, each twice, and two tables of 3.
expect "ragged batches have all tokens" 0 '"footprint_bytes": 1048' "$attune" bench --json --samples=1 \
    --sizes total_q=6,total_kv=10 batch=2,head_dim=8,is_ragged=1
"$attune" bench $small --samples=2 --json -o "$work/bench.json" >"$work/stdout" 2>"$work/stderr"
[ $? -eq 0 ] && [ "$(tr -d ' \n' <"$work/bench.json")" = "$(tr -d ' \n' <"$work/stdout")" ]
report $? "bench -o writes the JSON that --json prints"
expect "and a table is printed with it" 0 'of peak' "$attune" bench $small --samples=2 -o "$work/bench.json"
grep -q '"median_us"' "$work/bench.json"
report $? "beside the file"
refuse "bench -o where nothing can be written, before anything is measured" \
    '/nowhere/b.json: cannot write: No such file' \
    "$attune" bench $small --samples=100000 -o /nowhere/b.json
refuse "bench -o on a directory" 'cannot write: Is a directory' "$attune" bench $small --samples=100000 -o "$work"
expect "bench -o on standard output" 2 'json prints' "$attune" bench $small -o -
refuse_sizes() { expect "$1" 2 "$2" "$attune" bench --sizes "$3" "$small"; }
refuse_sizes "a size that there is not" "'heads' is not a size" heads=3
refuse_sizes "a size that is no number" "seq_q is 'x3', which is not a whole number" seq_q=x3

expect "cache ls" 0 '[0-9]+ kernels, .* 0 damaged' "$attune" cache ls
expect "cache ls --json" 0 '"schema": 2' "$attune" cache ls --json
expect "cache verify" 0 ' 0 damaged' "$attune" cache verify
expect "info" 0 '^llvm +[0-9]+' "$attune" info
expect "info says how it found the tuning class" 0 \
    '^machine +[a-z0-9-]+ \((found by|the nearest|named by|attune does not)' "$attune" info
expect "info says who named it" 0 '^machine +zen3 \(named by ATTUNE_MACHINE\)' env ATTUNE_MACHINE=zen3 "$attune" info
expect "info has the class of numbers" 0 '^machine +custom-[0-9a-f]{16} \(numbers of ATTUNE_MACHINE\)' \
    env ATTUNE_MACHINE=zen3,l2=2M "$attune" info
expect "info --machine" 0 '^fma +2  multiply-adds begun in a cycle$' env ATTUNE_MACHINE=zen3 "$attune" info --machine
grep -q '^zen3 (named by ATTUNE_MACHINE)$' "$work/stdout" && grep -qE '^l1 +32K  ' "$work/stdout"
report $? "has the class, and sizes as they are written"
given=$(sed -n 's/^ATTUNE_MACHINE takes such numbers, too: //p' "$work/stdout")
ATTUNE_MACHINE=$given,x=1 "$attune" info >"$work/stdout" 2>"$work/stderr"
grep -q 'there is no number "x"' "$work/stderr"
report $? "and a text that ATTUNE_MACHINE takes"
expect "info --machine --json" 0 '"l2": 2097152' env ATTUNE_MACHINE=zen3,l2=2M "$attune" info --machine --json
refuse "a machine of nonsense" 'ATTUNE_MACHINE: fma is 99; it must be from 0.25 to 8' \
    env ATTUNE_MACHINE=fma=99 "$attune" info
refuse "a misspelt class" 'unknown ATTUNE_MACHINE "zen44" \(did you mean "zen4"\?\)' \
    env ATTUNE_MACHINE=zen44 "$attune" info
expect "info --json" 0 '"cache_dir": "' "$attune" info --json

make_npy "$work/x.npy" '<f4' False '(3, 64)' 768
scale=examples/ir/scale_rows.air
expect "ir runs a kernel" 0 'o: f32 \(3, 64\) = -?0\.[0-9]+ .* …' "$attune" ir $scale --arg x="$work/x.npy" --arg n=3
expect "ir --engine=interp --check" 0 'same bits' "$attune" ir $scale --arg x="$work/x.npy" --arg n=3 --engine=interp \
    --check
expect "ir --engine=vm --check" 0 'same bits' "$attune" ir $scale --arg x="$work/x.npy" --arg n=3 --engine=vm --check
expect "ir --out writes instead of showing" 0 '^both engines' "$attune" ir $scale --arg x="$work/x.npy" --arg n=3 \
    --out o="$work/o.npy" --check
cmp "$work/o.npy" <("$attune" ir - --arg x="$work/x.npy" --arg n=3 --out o=- <$scale)
report $? "ir reads standard input and writes standard output"
make_npy "$work/b.npy" '<f4' False '(64, 5)' 1280
without_fma examples/ir/matmul.air >"$work/matmul.air"
expect "ir runs two phases" 0 'same bits' "$attune" ir "$work/matmul.air" --arg a="$work/x.npy" --arg \
    b="$work/b.npy" \
    --arg m=3 --arg k=64 --arg n=5 --check
expect "ir runs an inout buffer" 0 'same bits' "$attune" ir examples/ir/softmax_rows.air --arg x="$work/x.npy" --arg \
    n=3 \
    --arg m=64 --check

# ---- Calls that are not sound: nothing is computed and nothing written ----

# refuse_call NAME PATTERN PROBLEM ARGUMENT…: with q, k and v of 4 heads, 6 tokens and 8 columns, unless said otherwise.
refuse_call() {
    local keys=(--k "$work/3d.npy" --v "$work/3d.npy")
    [ "${4-}" != --k ] || keys=()
    refuse "$1" "$2" "$attune" run "$3" --q "$work/3d.npy" "${keys[@]}" -o "$work/none.npy" --lse "$work/none-lse.npy" \
        "${@:4}"
}
make_npy "$work/pages.npy" '<f4' False '(3, 4, 4, 8)' 1536
make_npy "$work/other.npy" '|b1' False '(5, 6)' 30
make_npy "$work/turns.npy" '<f4' False '(1, 5, 4)' 80
paged=(--k "$work/pages.npy" --v "$work/pages.npy" --tensor "kv_lens=$work/lens.npy" --tensor \
    "block_table=$work/table.npy")
ragged=(--tensor "cu_seqlens_q=$work/cu_q.npy" --tensor "cu_seqlens_kv=$work/cu_kv.npy")
make_i32 "$work/lens.npy" '(1,)' 6
make_i32 "$work/table.npy" '(1, 2)' 2 0
make_i32 "$work/cu_q.npy" '(3,)' 0 4 6
make_i32 "$work/cu_kv.npy" '(3,)' 0 1 6
expect "pages" 0 'the same bits' "$attune" run has_kv_lens=1,page_size=4 --check --q "$work/3d.npy" "${paged[@]}"
expect "a ragged batch" 0 'the same bits' "$attune" run is_ragged=1,batch=2 --check --q "$work/3d.npy" \
    --k "$work/3d.npy" --v "$work/3d.npy" "${ragged[@]}"
refuse_call "more queries than the bound" 'seq_q is 6; this kernel takes 0 to 5' seq_q=dynamic,max_seq_q=5
refuse_call "more keys than the bound" 'seq_kv is 6; this kernel takes 0 to 5' seq_kv=dynamic,max_seq_kv=5
refuse_call "sizes and files that differ" 'seq_q is 7, but 6 in .*3d.npy' \
    seq_q=dynamic --sizes seq_q=7
refuse_call "more new keys than keys" 'seq_new is 7, more than seq_kv = 6' seq_new=7
refuse_call "a mask of another number of rows" \
    'other.npy: shape \(5, 6\) does not fit attn_mask_dims=qk, whose shape is \(1, 1, 6, 6\)' \
    attn_mask_dims=qk --tensor attn_mask="$work/other.npy"
refuse_call "a mask that does not broadcast" 'attn_mask_dims\[2\] is 5; it must be 1 or seq_q = 6' attn_mask_dims=5:6 \
    --tensor attn_mask="$work/other.npy"
refuse_call "a bias of heads that there are not" 'attn_bias_dims\[1\] is 3; it must be 1 or num_heads = 4' \
    attn_bias_dims=3:6:6
refuse_call "a window to the left below -1" 'window_left is -2; it must be from -1' window_left=-2
refuse_call "a window to the right below -1" 'window_right is -3; it must be from -1' window_right=-3
refuse_call "an odd number of columns to rotate" 'rotary_dim is 7; it must be even' rotary_dim=7
refuse_call "angles for fewer positions" 'positions 0 to 5; rotary_positions is 5' rotary_dim=8 \
    --tensor cos="$work/turns.npy" --tensor sin="$work/turns.npy"
refuse_call "weights of a ragged batch" 'weights' is_ragged=1,weights_mode=softmax
make_i32 "$work/lens.npy" '(1,)' 7
refuse_call "more keys in kv_lens than there are" 'kv_lens\[0\] is 7; it must be from 0 to 6' has_kv_lens=1 \
    --tensor kv_lens="$work/lens.npy"
make_i32 "$work/lens.npy" '(1,)' 9
refuse_call "more keys than the pages hold" 'kv_lens\[0\] is 9; it must be from 0 to 8' has_kv_lens=1,page_size=4 \
    "${paged[@]}"
make_i32 "$work/lens.npy" '(1,)' -1
refuse_call "fewer keys than none" 'kv_lens\[0\] is -1; it must be from 0 to 6' has_kv_lens=1 --tensor \
    kv_lens="$work/lens.npy"
make_i32 "$work/lens.npy" '(1,)' 0
expect "no key at all" 0 'the same bits' "$attune" run has_kv_lens=1 --check --q "$work/3d.npy" --k "$work/3d.npy" --v \
    "$work/3d.npy" \
    --tensor kv_lens="$work/lens.npy"
make_i32 "$work/lens.npy" '(1,)' 6
make_i32 "$work/table.npy" '(1, 2)' 0 3
refuse_call "a page beyond the last" 'block_table\[0, 1\] is 3; num_pages is 3' has_kv_lens=1,page_size=4 "${paged[@]}"
make_i32 "$work/table.npy" '(1, 2)' -1 0
refuse_call "a page below the first" 'block_table\[0, 0\] is -1; num_pages is 3' has_kv_lens=1,page_size=4 "${paged[@]}"
make_i32 "$work/cu_q.npy" '(3,)' 0 4 3
refuse_call "cu_seqlens that fall" 'cu_seqlens_q falls from 4 to 3 at index 2' is_ragged=1,batch=2 "${ragged[@]}"
make_i32 "$work/cu_q.npy" '(3,)' 0 4 6
make_i32 "$work/cu_kv.npy" '(3,)' 0 4 7
refuse_call "cu_seqlens beyond the last token" 'cu_seqlens_kv\[2\] is 7, but there are only 6 tokens' \
    is_ragged=1,batch=2 "${ragged[@]}"
make_i32 "$work/cu_kv.npy" '(3,)' -1 4 6
refuse_call "cu_seqlens before the first token" 'cu_seqlens_kv\[0\] is -1' is_ragged=1,batch=2 "${ragged[@]}"
make_i32 "$work/rows.npy" '(2,)' 0 6
make_npy "$work/lse-in.npy" '<f4' False '(1, 4, 6)' 96
refuse "a row that there is not" 'row_ids\[1\] is 6; it must be from 0 to 5' "$attune" run \
    op=weights,weights_mode=softmax,has_row_ids=1,num_rows=2 --q "$work/3d.npy" --k "$work/3d.npy" --tensor \
    lse="$work/lse-in.npy" \
    --tensor row_ids="$work/rows.npy" --write weights="$work/none.npy"
[ ! -e "$work/none.npy" ] && [ ! -e "$work/none-lse.npy" ]
report $? "refused calls write nothing"
refuse "a size of bench beyond the bound" 'seq_q is 5; this kernel takes 0 to 4' "$attune" bench --samples=1 \
    seq_q=dynamic,max_seq_q=4,head_dim=4 --sizes seq_q=5
refuse "a size of check beyond the bound" 'seq_q is 5; this kernel takes 0 to 4' "$attune-lab" check \
    seq_q=dynamic,max_seq_q=4,head_dim=4 --sizes seq_q=5

# ---- Bad problems and schedules ----

for bad in batch=0 batch=-1 num_heads=0 num_kv_heads=-2 seq_q=0 seq_q=-5 seq_kv=-2 head_dim=0 head_dim_v=-3 \
    num_kv_heads=5 is_causal=2 has_lse=x causal_align=middle layout=sbhd dtype=f17 softmax_scale=inf softmax_scale=1x \
    batch=1e3 seq_kv=99999999999999999999 frobs=7 q_strides=1:2:3 q_strides=-1:1:1:1 out_strides=1:1:1:1; do
    key=${bad%%=*}
    case $bad in frobs=* | out_strides=* | num_kv_heads=5) value= ;; *) value=${bad##*=} ;; esac
    base=
    for default in num_heads=3 seq_q=3 head_dim=4; do [ "${default%%=*}" = "$key" ] || base+=$default,; done
    refuse "$bad" "$key.*${value%%:*}" "$attune" compile "$base$bad"
done
# What a block says against itself: the sentence has the value.
refuse_block() { refuse "$1" "$2" "$attune" compile "$1"; }
refuse_block embed_dim=700,num_heads=12,seq_q=4 'num_heads is 12, which does not divide embed_dim = 700'
refuse_block embed_dim=-8,num_heads=2,seq_q=4 'embed_dim is -8; it must be from 1 to 262144'
refuse_block op=mha,num_heads=2,seq_q=4 'embed_dim is not given, or 0; it must be from 1 to 262144'
refuse_block embed_dim=8,out_dim=-1,seq_q=4 'out_dim is -1; it must be from 1 to 262144'
refuse_block embed_dim=8,kv_embed_dim=-1,seq_q=4 'kv_embed_dim is -1; it must be from 1'
refuse_block embed_dim=8,v_embed_dim=-1,seq_q=4 'v_embed_dim is -1; it must be from 0'
refuse_block embed_dim=8,num_heads=100,head_dim=4096,seq_q=4 '100 times head_dim = 4096 are 409600 columns'
refuse_block op=weights,embed_dim=8,seq_q=4 'embed_dim is 8, but op=weights has no projections'
refuse_block embed_dim=8,seq_q=4,seq_kv=5 'seq_kv is 5, but without is_cross.*seq_q is 4'
refuse_block embed_dim=8,seq_q=4,seq_new=3,seq_kv=9 'seq_new is 3, but without is_cross.*seq_q is 4'
refuse_block embed_dim=8,seq_q=4,seq_new=4,kv_projected=1 'seq_new is 4, but with kv_projected'
refuse_block embed_dim=8,seq_q=4,page_size=16,has_kv_lens=1 'page_size is 16, but pages are of caches'
refuse_block embed_dim=8,seq_q=4,v_in_k=1,v_embed_dim=5 'v_in_k takes v from k, but v_embed_dim is 5'
refuse_block embed_dim=8,seq_q=4,no_out_projection=1,out_dim=7 'out_dim is 7, but with no_out_projection.* = 8 columns'
refuse_block embed_dim=8,seq_q=4,w_dtype=f64,softmax_precision=f32 'softmax_precision is f32, but w_dtype is f64'
refuse_block embed_dim=8,seq_q=4,low_rank=-2 'low_rank is -2; it must be from 0 to 262144'
refuse_block embed_dim=8,seq_q=4,low_rank=2,is_causal=1 'low_rank is 2, .* no order: is_causal cannot be 1'
refuse_block embed_dim=8,seq_q=4,low_rank=2,attn_mask_dims=qk 'low_rank is 2, .* attn_mask_dims cannot be set'
refuse_block embed_dim=8,seq_q=dynamic,low_rank=2 'low_rank is 2, but seq_kv is dynamic'
refuse_block embed_dim=8,seq_q=4,low_rank=2,v_in_k=1 'low_rank is 2 and v_in_k is 1'
refuse_block embed_dim=8,seq_q=4,layout=bshd 'layout=bshd is for q, k, v and out of attention alone'
refuse_block embed_dim=8,seq_q=4,out_strides=32:8:1:1 "out_strides is '32:8:1:1'; it must be 3 strides"
refuse_block embed_dim=8,seq_q=4,x_strides=0:-8:1 'x_strides.1. is -8'
refuse "a product of sizes that overflows" 'too many elements.*overflows' "$attune" compile \
    batch=2147483647,num_heads=2147483647,seq_q=2147483647,head_dim=8192
expect "tensors beyond any memory" 1 'out of memory: a tensor needs [0-9]+ elements' "$attune" bench \
    batch=2147483647,seq_q=4096,head_dim=64
timed_check() { timeout 60 "$attune-lab" check batch=2147483647,seq_q=4096,head_dim=64; }
expect "a check beyond any memory" 1 'out of memory: a tensor needs [0-9]+ elements' timed_check
[ "$(grep -c 'out of memory' "$work/stderr")" -eq 1 ]
report $? "which it says once"
refuse "more threads than CPUs" '--threads is 1024, but the process may use [0-9]+' "$attune" run "${layer[@]}" \
    --threads=1024
refuse "a line end in a value: still one line" "seq_q is '9[?]1'" "$attune" compile $'seq_q=9\n1,head_dim=5'
refuse "strides that overwrite a file's elements" 'q_strides is 1:1:1:1, .*q.npy' "$attune" run q_strides=1:1:1:1 \
    "${layer[@]}"
refuse "a key twice" 'seq_q' "$attune" compile seq_q=3,seq_q=3,head_dim=4
refuse "a key without a value" 'seq_q' "$attune" compile head_dim=4,seq_q
refuse "an empty problem" '.' "$attune" compile ''
refuse "an unknown key of a schedule" 'tile_size' "$attune" compile $small --schedule=tile_size=3
refuse "a schedule out of range" 'score_keys' "$attune" compile $small --schedule=score_keys=0
refuse "an illegal schedule" 'kv_tile' "$attune" compile $small --schedule=score_keys=3,kv_tile=7
refuse "an unknown ISA" "mmx" "$attune" compile $small --isa=mmx
other=aarch64
can_run x86-64 || other=avx2
refuse "an ISA this CPU lacks" "this CPU \\(.*\\) cannot run ISA '$other'; it can run: " "$attune" compile $small \
    --isa=$other
refuse "an unknown target" "unknown ISA 'mmx'; there are: .*aarch64" "$attune" compile $small --target=mmx --emit=ir
expect "a target whose code would not be kept" 2 'target needs --emit or --dump-passes' \
    "$attune" compile $small --target=aarch64
expect "a target, and an ISA" 2 'exclude each other' "$attune" ir examples/ir/matmul.air --target=avx2 --isa=avx2 \
    --emit=ir
expect "code for AArch64" 0 'fmla' "$attune" compile $small --target=aarch64 --emit=asm
expect "what the passes make for AArch64" 0 'lower_math' "$attune" ir examples/ir/softmax_rows.air --target=aarch64 \
    --dump-passes
expect "code for AMX" 0 'tdpbf16ps[[:space:]]%tmm7, %tmm5, %tmm3' \
    "$attune" compile embed_dim=64,num_heads=2,seq_q=64,dtype=bf16 --target=amx --emit=asm
refuse "a check on an unknown ISA" 'mmx' "$attune-lab" check $small --isa=x86-64,mmx

# ---- Bad files ----

q=$minilm/q.npy
use() { "$attune" run --q "$1" --k "${2:-$q}" --v "${3:-$q}" "${@:4}"; }
refuse "a file that does not exist" 'missing.npy: cannot read: No such file' use "$work/missing.npy"
refuse "a directory" 'Is a directory' use "$work"
refuse "a path that is empty" "'': cannot read" "$attune" run "${layer[@]:2}" --q ''
refuse "an output path that is empty" "'': cannot write" "$attune" run "${layer[@]}" -o ''
[ "$(id -u)" -eq 0 ] || { cp $q "$work/secret.npy" && chmod 0 "$work/secret.npy"; }
[ "$(id -u)" -eq 0 ] || refuse "an unreadable file" 'Permission denied' use "$work/secret.npy"
: >"$work/bad.npy"
refuse "an empty file" 'bad.npy: this is not a .npy file' use "$work/bad.npy"
cp README.md "$work/bad.npy"
refuse "another kind of file" 'bad.npy: this is not a .npy file' use "$work/bad.npy"
head -c 5000 $q >"$work/bad.npy"
refuse "a truncated file" \
    'bad.npy: the file is truncated: shape \(.*\) of <f4 needs [0-9]+ bytes of data, 4872 follow' \
    use "$work/bad.npy"
head -c 50 $q >"$work/bad.npy"
refuse "a truncated header" 'bad.npy: the file is truncated' use "$work/bad.npy"
cat $q $q >"$work/bad.npy"
refuse "data behind the array" 'bad.npy: data follows the array' use "$work/bad.npy"
make_npy "$work/bad.npy" '<f8' False '(2, 2, 2)' 64
refuse "another dtype" \
    'bad.npy is f64, but the problem has dtype=f32 \(the default\): set dtype=f64, or save it as float32' use \
    "$work/bad.npy"
make_npy "$work/bad.npy" '>f4' False '(2, 2, 2)' 32
refuse "big-endian numbers" "bad.npy: dtype '>f4' is big-endian" use "$work/bad.npy"
make_npy "$work/bad.npy" '<f4' False '(4, 2)' 32
refuse "another number of dimensions" 'bad.npy: shape \(4, 2\) has 2 dimensions' use "$work/bad.npy"
make_npy "$work/bad.npy" '<f4' False '(0, 4, 2)' 0
refuse "an array without heads" 'bad.npy: shape \(0, 4, 2\) has a dimension of 0' use "$work/bad.npy"
make_npy "$work/bad.npy" '<f4' False '(4294967296, 4294967296, 4294967296)' 32
refuse "a shape that overflows" 'bad.npy: shape .* overflows' use "$work/bad.npy"

make_npy "$work/a.npy" '<f4' False '(2, 3, 4)' 96
make_npy "$work/b.npy" '<f4' False '(2, 3, 5)' 120
make_npy "$work/c.npy" '<f4' False '(2, 7, 4)' 224
make_npy "$work/d.npy" '<f4' False '(3, 3, 4)' 144
make_npy "$work/e.npy" '<f4' False '(2, 2, 3, 4)' 192
refuse "head_dim that differs" 'head_dim is 4 by .*a.npy but 5 in .*b.npy' use "$work/a.npy" "$work/b.npy" "$work/a.npy"
refuse "seq_kv that differs" 'seq_kv is 3 by .*a.npy but 7 in .*c.npy' use "$work/a.npy" "$work/a.npy" "$work/c.npy"
refuse "heads that do not divide" 'num_kv_heads.*3|3.*num_kv_heads' use "$work/a.npy" "$work/d.npy" "$work/d.npy"
refuse "batch that differs" 'batch is 1 by .*a.npy but 2 in .*e.npy' use "$work/a.npy" "$work/e.npy" "$work/e.npy"
refuse "text and file that differ" 'seq_q is 9 by the problem but 3 in .*a.npy' "$attune" run seq_q=9 \
    --q "$work/a.npy" --k "$work/a.npy" --v "$work/a.npy"
refuse "an unknown key beside files" "frobs" "$attune" run frobs=9 "${layer[@]}"
refuse "an expected result of another shape" 'a.npy: <f4 of shape \(2, 3, 4\) cannot be compared' "$attune" run \
    "${layer[@]}" --expect "$work/a.npy"

refuse "IR that does not exist" 'missing.air: cannot read' "$attune" ir "$work/missing.air"
echo 'kernel @broken (x: f32[n' >"$work/bad.air"
refuse "IR that does not parse" 'bad.air' "$attune" ir "$work/bad.air"
head -c 100 $q >"$work/bad.air"
refuse "IR that is no text" 'bad.air' "$attune" ir "$work/bad.air"
refuse "a missing scalar" 'parameter n: idx needs a value' "$attune" ir $scale --arg x="$work/x.npy"
refuse "a missing buffer" 'input x: f32 needs a file' "$attune" ir $scale --arg n=3
refuse "a scalar that is no number" "'3x' is no value" "$attune" ir $scale --arg x="$work/x.npy" --arg n=3x
refuse "a buffer of another shape" '\(3, 64\), but the parameter x: f32 is <f4 of shape \(4, 64\)' "$attune" ir $scale \
    --arg x="$work/x.npy" --arg n=4
refuse "a value for an output" 'o is an output' "$attune" ir $scale --arg x="$work/x.npy" --arg n=3 --arg o=o.npy
refuse "a parameter that does not exist" 'no such parameter' "$attune" ir $scale --arg x="$work/x.npy" --arg n=3 --arg \
    y=1

# ---- Blocks ----

# slice FILE FROM OFFSET BYTES SHAPE: an array of f32 with a part of what another one holds.
slice() {
    local bytes
    bytes=$(wc -c <"$2")
    make_npy "$1" '<f4' False "$5" 0
    tail -c "$((bytes - $(header_of "$2") - $3))" "$2" | head -c "$4" >>"$1"
}
# header_of FILE: its bytes before the data; a header that make_npy wrote ends with the brace and a blank.
header_of() { echo $((10 + $(od -An -tu2 -j 8 -N 2 "$1"))); }
make_npy "$work/x2.npy" '<f4' False '(2, 5, 24)' 960
make_npy "$work/x_kv.npy" '<f4' False '(7, 16)' 448
make_npy "$work/qkv.npy" '<f4' False '(72, 24)' 6912
make_npy "$work/qkv_bias.npy" '<f4' False '(72,)' 288
make_npy "$work/square.npy" '<f4' False '(24, 24)' 2304
make_npy "$work/narrow.npy" '<f4' False '(24, 16)' 1536
make_npy "$work/bias.npy" '<f4' False '(24,)' 96
make_npy "$work/cache.npy" '<f4' False '(3, 9, 8)' 864
make_i32 "$work/lens.npy" '(1,)' 7
slice "$work/x_1.npy" "$work/x2.npy" 480 480 '(5, 24)'
for part in 0 1 2; do
    slice "$work/w$part.npy" "$work/qkv.npy" $((2304 * part)) 2304 '(24, 24)'
    slice "$work/b$part.npy" "$work/qkv_bias.npy" $((96 * part)) 96 '(24,)'
done
out=(--tensor out_weight="$work/square.npy" --tensor out_bias="$work/bias.npy")
packed=(--tensor qkv_weight="$work/qkv.npy" --tensor qkv_bias="$work/qkv_bias.npy" "${out[@]}")
separate=(--tensor q_weight="$work/w0.npy" --tensor k_weight="$work/w1.npy" --tensor v_weight="$work/w2.npy"
    --tensor q_bias="$work/b0.npy" --tensor k_bias="$work/b1.npy" --tensor v_bias="$work/b2.npy" "${out[@]}")
near='f64 reference +max error [0-9.]+e-0[4-9]'
run_block_of() { "$attune" run num_heads=3 --tensor x="$work/$1.npy" "${@:2}"; }
run_block() { run_block_of x_1 "$@"; }
expect "a block from its weights" 0 "$near" run_block "${packed[@]}" --check -o "$work/block.npy"
grep -q 'problem +embed_dim=24,num_heads=3,seq_q=5,seq_kv=5,head_dim=8$' -E "$work/stdout" &&
    grep -q 'interpreter +the same bits' -E "$work/stdout"
report $? "its sizes are those of the files, its bits those of the interpreter"
grep -aq "'shape': (5, 24)" "$work/block.npy"
report $? "a result without a batch, as its input"
expect "the same weights one by one" 0 'GFLOP' run_block "${separate[@]}" -o "$work/other.npy"
cmp "$work/block.npy" "$work/other.npy"
report $? "give the same bits"
expect "a batch of two" 0 "$near" run_block_of x2 "${packed[@]}" --check -o "$work/other.npy"
cmp <(tail -c 480 "$work/block.npy") <(tail -c 480 "$work/other.npy")
report $? "has the bits of each"
expect "cross-attention" 0 'embed_dim=24,kv_embed_dim=16,num_heads=3,seq_q=5,seq_kv=7' run_block --check \
    --tensor x_kv="$work/x_kv.npy" --tensor q_weight="$work/square.npy" --tensor k_weight="$work/narrow.npy" \
    --tensor v_weight="$work/narrow.npy" "${out[@]}"
expect "caches that are appended to" 0 'the same bits' "$attune" run num_heads=3,seq_new=5,has_kv_lens=1 --check \
    --tensor x="$work/x_1.npy" --tensor k="$work/cache.npy" --tensor v="$work/cache.npy" "${packed[@]}" \
    --tensor kv_lens="$work/lens.npy" --write k="$work/k.npy" --write v="$work/v.npy"
! cmp -s "$work/cache.npy" "$work/k.npy" && ! cmp -s "$work/k.npy" "$work/v.npy" &&
    [ "$(stat -c %s "$work/k.npy")" -ge 864 ]
report $? "are written"
refuse "a block without weights" 'q_weight is missing' run_block
refuse "a block that lacks one" 'v_weight is missing' run_block --tensor q_weight="$work/square.npy" \
    --tensor k_weight="$work/square.npy" "${out[@]}"
refuse "a weight of another shape" 'k_weight is \[24, 16\] f32; expected \[24, 24\] f32' run_block \
    "${separate[@]/w1/narrow}"
refuse "a weight of the other layout" 'k_weight is \[24, 16\] f32; expected \[16, 24\] f32 \(\[in_dim, out_dim\]\)' \
    run_block "${separate[@]/w1/narrow}" --tensor x_kv="$work/x_kv.npy" --layout=in_out
refuse "a weight of another dtype" 'q_weight is .* f32; expected \[24, 24\] f16' "$attune" run num_heads=3,w_dtype=f16 \
    --tensor x="$work/x_1.npy" "${separate[@]}"
refuse "weights twice" 'q_weight and qkv_weight are both given' run_block "${packed[@]:0:4}" "${separate[@]}"
refuse "weights of attention alone" 'square.npy: the problem has no tensor named q_weight' "$attune" run "${layer[@]}" \
    --tensor q_weight="$work/square.npy"
refuse "another embed_dim" 'embed_dim is 48 by the problem but 24 in .*x_1.npy' "$attune" run num_heads=3,embed_dim=48 \
    --tensor x="$work/x_1.npy" "${packed[@]}"
refuse "heads that do not divide embed_dim" 'num_heads is 5, which does not divide embed_dim = 24' "$attune" run \
    num_heads=5 --tensor x="$work/x_1.npy" "${packed[@]}"
refuse "inputs of two batches" 'batch is 2 by .*x2.npy but 1 in .*x_kv.npy' run_block_of x2 \
    --tensor x_kv="$work/x_kv.npy"
refuse "an input of four dimensions" '4 dimensions instead of 3, or 2 for a batch of one' run_block_of e
expect "an unknown layout" 2 "'out_in' or 'in_out', not 'oi'" run_block --layout=oi
expect "compile shows phases and weights" 0 'in [2-9] phases' "$attune" compile embed_dim=64,num_heads=4,seq_q=32
grep -Eq '^weights +[0-9.]+ KiB packed$' "$work/stdout"
report $? "in the report"
expect "and in JSON" 0 '"packed_weights_bytes": [1-9][0-9]+,?$' "$attune" compile embed_dim=24,num_heads=3,seq_q=5 \
    --json
bytes=$(grep -oE '"packed_weights_bytes": [0-9]+' "$work/stdout" | grep -oE '[0-9]+$')
make_npy "$work/blob.npy" '<f4' False "($((bytes / 4)),)" "$bytes"
refuse "numbers that are no packed weights" 'packed_weights' run_block --tensor packed_weights="$work/blob.npy"
expect "check of a block" 0 '^7 passed, 0 failed$' "$attune-lab" check \
    embed_dim=20,num_heads=2,num_kv_heads=1,seq_q=7,is_causal=1 \
    --isa=x86-64 --threads=1
# Lengths that leave room for the new keys, a score of a hundred million, and an infinite one that hides a chunk of keys
# from a row.
for seed in 2 3 6; do
    expect "check of rotated keys at the end, data $seed" 0 '^1 passed, 0 failed$' "$attune-lab" check \
        num_heads=1,seq_q=1,seq_kv=2,head_dim=2,causal_align=bottom_right,has_kv_lens=1,seq_new=2,rotary_dim=2 \
        --sizes=rotary_positions=9 --isa=x86-64 --threads=1 --inputs=ordinary --seed=$seed
done
expect "check of a weight of which rounding leaves nothing" 0 '^1 passed, 0 failed$' "$attune-lab" check \
    op=weights,num_heads=1,seq_q=1,seq_kv=1,head_dim=1,causal_offset=-264500713,has_alibi_slopes=1 \
    --isa=x86-64 --threads=1 --inputs=ordinary --seed=4084703285
hidden=batch=2,num_heads=1,seq_q=12,seq_kv=54,head_dim=4,head_dim_v=16,seq_new=35
scalar=strategy=d_lanes,lanes=1,score_keys=1,score_rows=2,score_column_vectors=2,value_rows=5,value_column_vectors=2
scalar+=,kv_tile=9,kv_chunk=18,value_keys=1
expect "check of keys that an infinite score hides" 0 '^1 passed, 0 failed$' "$attune-lab" check \
    $hidden,attn_mask_dims=qk,k_new_strides=595:1193:17:1 \
    --schedule=$scalar \
    --isa=x86-64 --threads=1 --inputs=nonfinite --seed=2187155438
refuse "a block too large to check" 'floating-point operations, more than --max-flops=' "$attune-lab" check \
    embed_dim=2048,num_heads=16,seq_q=2048 --isa=x86-64
expect "bench of a block" 0 '"footprint_bytes": [1-9][0-9]{4},' "$attune" bench embed_dim=48,num_heads=3,seq_q=4 \
    --samples=1 \
    --json

# ---- Conformance cases: those that pass, and everything that can be wrong with one ----

cases=tests/data/conform
expect "conform runs the committed cases" 0 '^[1-9][0-9]* passed, 0 failed$' "$attune-lab" conform $cases
[ "$(wc -l <"$work/stdout")" -eq 1 ] && [ ! -s "$work/stderr" ]
report $? "and says nothing of those that pass"
expect "--verbose names them" 0 '^passed tests/data/conform/mask_of_one_column$' "$attune-lab" conform $cases -v \
    --engine=jit
sed '$d' "$work/stdout" | LC_ALL=C sort -c &&
    [ "$(wc -l <"$work/stdout")" -eq $(($(find $cases -name case.json | wc -l) + 1)) ]
report $? "all of them, sorted"
expect "two folders, interpreted" 0 '^2 passed, 0 failed$' "$attune-lab" conform --engine=interp $cases/present_f64 \
    $cases/rotary_f16_positions

# broken NAME CASE PATTERN COMMAND…: a copy of a case, changed by a command in its folder, fails with that sentence; a
# good one beside it passes.
broken() {
    local name=$1 pattern=$3
    rm -rf "$work/cases"
    mkdir "$work/cases"
    cp -r "$cases/$2" "$work/cases/bad"
    cp -r $cases/rotary_f16_positions "$work/cases/good"
    shift 3
    (cd "$work/cases/bad" && "$@")
    expect "a bad case: $name" 1 "^failed .*/cases/bad: $pattern" "$attune-lab" conform --engine=interp "$work/cases"
    [ "$(tail -n 1 "$work/stdout")" = "1 passed, 1 failed" ] && [ "$(wc -l <"$work/stdout")" -eq 2 ] &&
        [ ! -s "$work/stderr" ]
    report $? "in one line, and the other passes: $name"
}
edit() { sed -i "$@" case.json; }
replace() { cd - >/dev/null && make_npy "$work/cases/bad/$1" "${@:2}"; }
wrong_element() { printf '\0\0\xc8\x42' | dd of=Y.npy bs=1 seek=$((128 + 4 * 14)) conv=notrunc status=none; }
rotary=rotary_3d_interleaved_part window=window_past_f16
broken "one element of an output" $rotary \
    'interpreter: Y\[0, 1, 2\]: wanted 100, found [-.0-9e]+, and 1 of 72 elements are beyond rtol 0.001' wrong_element
broken "another shape" present_f64 \
    'interpreter: Y: wanted <f8 of shape \(1, 2, 3, 4\), found <f8 of shape \(1, 2, 3, 3\)' \
    cp K.npy Y.npy
broken "another type" present_f64 'interpreter: Y: wanted <f4' replace Y.npy '<f4' False '(1, 2, 3, 3)' 72
broken "no JSON" $rotary 'case.json line [0-9]+: ' edit 's/:/;/'
broken "an empty file" $rotary 'case.json line 1: ' cp /dev/null case.json
broken "JSON that is no object" $rotary 'case.json is no JSON object' sh -c 'echo [] >case.json'
broken "a key twice" $rotary 'case.json line [0-9]+: duplicate object key' edit 's/"rtol"/"atol"/'
broken "no operator" $rotary 'case.json has no "op"' edit 's/"op"/"no"/'
broken "an unknown operator" $rotary "the operator 'Softmax' is not known" edit 's/"RotaryEmbedding"/"Softmax"/'
broken "an unknown attribute" $rotary "RotaryEmbedding has no attribute 'heads'" edit 's/"num_heads"/"heads"/'
broken "an attribute of another type" $rotary 'attribute num_heads is no whole number' edit \
    's/"num_heads": 2/"num_heads": 2.5/'
broken "an attribute out of range" $rotary 'attribute interleaved is 2; it must be from 0 to 1' \
    edit 's/"interleaved": 1/"interleaved": 2/'
broken "an unknown input" $rotary "RotaryEmbedding has no 'tan_cache' among its inputs" edit \
    's/"sin_cache":/"tan_cache":/'
broken "a missing input" $rotary 'RotaryEmbedding lacks its input sin_cache' edit \
    '/"sin_cache":/d; s/\("cos_cache.npy"\),/\1/'
broken "an output that is none" $rotary "RotaryEmbedding has no 'Z' among its outputs" edit 's/"Y":/"Z":/'
broken "nothing expected" $rotary 'the case expects no output' edit '/"Y":/d'
broken "no tolerance" $rotary 'case.json has no "atol"' edit 's/"rtol": 0.001,/"rtol": 0.001/; /"atol"/d'
broken "a negative tolerance" $rotary 'case.json has no "rtol" that is a number from 0 on' edit 's/"rtol": /"rtol": -/'
broken "a missing file" $rotary 'X.npy: cannot read: No such file' rm X.npy
broken "a folder for a file" $rotary '\.: cannot read: Is a directory' edit 's/"X.npy"/"."/'
broken "a truncated file" $rotary 'X.npy: the file is truncated' truncate -s 200 X.npy
broken "raw bytes" $rotary "X.npy: dtype '\\|V4' is not supported" replace X.npy '|V4' False '(2, 3, 12)' 288
broken "bfloat16 beside f32" $rotary "cos_cache is of dtype '<f4'; it must be of '<V2'" \
    replace X.npy '|V2' False '(2, 3, 12)' 144
broken "Fortran order, which is another array" $rotary 'interpreter: Y\[[0-9], [0-9], [0-9]+\]: wanted' \
    sed -i "s/'fortran_order': False/'fortran_order': True /" X.npy
broken "caches of another size" $rotary 'cos_cache is of shape \(2, 3, 2\); it must be of shape \(2, 3, 1\)' \
    edit 's/"rotary_embedding_dim": 4/"rotary_embedding_dim": 2/'
broken "a past key without a value" $window 'past_key and past_value must be given together' \
    edit '/"past_value":/d; s/\("past_key.npy"\),/\1/'
broken "heads that do not fit" $window 'Q, K and V do not go together: .* columns of Q and K 8, 6' \
    edit 's/"q_num_heads": 4/"q_num_heads": 3/'
broken "a window below -1" $window 'attribute left_window_size is -2' edit \
    's/"left_window_size": 3/"left_window_size": -2/'
broken "a mask that does not broadcast" present_f64 \
    'attn_mask is of shape \(2, 2, 3\), which does not broadcast to \(1, 2, 3, 3\)' \
    replace attn_mask.npy '<f8' False '(2, 2, 3)' 96
linear=linear_past_f16
broken "an unknown update rule" $linear "attribute update_rule is 'mamba', which it cannot be" \
    edit 's/"gated_delta"/"mamba"/'
broken "a rule without its decay" $linear 'interpreter: the rule gated_delta has a decay, but decay is none' \
    edit '/"decay":/d'
broken "a past of another shape" $linear 'past_state is of shape \(1, 4, 4, 3\); it must be of shape \(2, 2, 4, 3\)' \
    replace past_state.npy '<f2' False '(1, 4, 4, 3)' 96
broken "betas of some heads" $linear 'beta has 3 numbers for each token; it must have 1 or 2' \
    replace beta.npy '<f2' False '(2, 3, 3)' 36
refuse_folder() {
    expect "$1" 1 "$2" "$attune-lab" conform "${@:3}"
    [ "$(tail -n 1 "$work/stdout")" = "0 passed, 0 failed" ]
    report $? "nothing passes: $1"
}
refuse_folder "conform of a folder that does not exist" 'missing: cannot search: No such file' "$work/missing"
refuse_folder "conform of a file" 'README.md is not a folder' README.md
refuse_folder "conform of a folder without cases" 'there is no case.json below the folders' docs

# ---- Outputs that cannot be written ----

refuse "a full device for the result" '/dev/full: cannot write: No space left' "$attune" run "${layer[@]}" -o /dev/full
refuse "a directory that does not exist" 'missing/o.npy: cannot write' "$attune" run "${layer[@]}" -o \
    "$work/missing/o.npy"
refuse "a full device for a stage" 'cannot write' "$attune" compile $small --emit=obj -o /dev/full
"$attune" info >/dev/full 2>"$work/stderr"
[ $? -eq 1 ] && grep -q 'cannot write to standard output: No space left' "$work/stderr"
report $? "a full standard output"
set -o pipefail
"$attune" compile $small --emit=asm 2>"$work/stderr" | head -n 1 >"$work/stdout"
status=${PIPESTATUS[0]}
[ "$status" -le 1 ]
report $? "a reader that goes away is no crash"
set +o pipefail

# ---- Caches and code generators that do not work: the result is right anyway, or the sentence clear ----

cache=$work/cache
mkdir -m 700 "$cache"
run_cached() { "$attune" run "${layer[@]}" --cache-dir="$1" --check; }
expect "a new cache directory" 0 'from the compiler' run_cached "$cache"
entry=$(find "$cache" -type f -size +1k | head -n 1)
damage() { printf '\xff\xfe\xfd' | dd of="$entry" bs=1 seek=$(($(stat -c %s "$entry") / 2)) conv=notrunc status=none; }
damage
expect "cache verify names a damaged entry" 1 ' 1 damaged' "$attune" cache verify --cache-dir="$cache"
[ -e "$entry" ] || run_cached "$cache" >/dev/null 2>&1
damage
expect "a damaged entry is compiled anew" 0 'from the compiler' run_cached "$cache"
expect "and is whole again" 0 'from the disk cache' run_cached "$cache"
: >"$entry"
expect "an empty entry is compiled anew" 0 'from the compiler' run_cached "$cache"
expect "cache clear" 0 '^1 kernel removed' "$attune" cache clear --cache-dir="$cache"
expect "an empty cache" 0 '^0 kernels' "$attune" cache ls --cache-dir="$cache"
full() { (trap '' XFSZ && ulimit -f 0 && "$attune" run "${layer[@]}" --cache-dir="$cache" --check) 2>&1 | cat; }
expect "a full cache directory: one warning, and the result" 0 'warning: .*cannot be written' full
grep -q 'the same bits' "$work/stdout"
report $? "which is right"
touch "$work/file"
expect "a cache directory that is a file" 0 'the same bits' run_cached "$work/file"
mkdir -m 777 "$work/shared"
chmod 777 "$work/shared"
expect "a cache directory that others can write to is not used" 0 'warning: .*shared' run_cached "$work/shared"
mkdir -m 500 "$work/readonly"
expect "a read-only cache directory" 0 'the same bits' run_cached "$work/readonly"
expect "a cache directory that cannot be made" 0 'warning: .* /proc/none/x cannot be made: ' run_cached /proc/none/x
expect "no cache at all" 0 'from the compiler' run_cached ''
refuse "listing a cache that is off" 'the disk cache is off' "$attune" cache ls --cache-dir=
expect "a missing code generator" 0 'warning: .*/nonexistent.so' env ATTUNE_CODEGEN=/nonexistent.so \
    "$attune" compile $small --cache-dir=
expect "a code generator that is none" 0 'warning: .*README.md' env ATTUNE_CODEGEN="$PWD/README.md" \
    "$attune" compile $small --cache-dir=
cat >"$work/other.c" <<'END'
#include "target/codegen_abi.h"
__attribute__((visibility("default"))) at_codegen_exports_fn attune_codegen_exports;
const at_codegen_exports *attune_codegen_exports(void) {
    static const at_codegen_exports exports = {.abi = AT_CODEGEN_ABI, .generator_id = "an-older-one"};
    return &exports;
}
END
${CC:-cc} -shared -fPIC -Iinclude -Isrc "$work/other.c" -o "$work/other.so"
expect "a code generator of another version" 0 'warning: .*other.so is of build an-older-one' env \
    ATTUNE_CODEGEN="$work/other.so" "$attune" compile $small --cache-dir=
expect "explain says so, too" 0 'missing +.*other.so is of build an-older-one, this library of [0-9a-f]{32}' env \
    ATTUNE_CODEGEN="$work/other.so" "$attune" explain $small --cache-dir=
expect "and its JSON" 0 '"why_no_code": "the code generator .*other.so is of build an-older-one' env \
    ATTUNE_CODEGEN="$work/other.so" "$attune" explain $small --cache-dir= --json
expect "and info" 0 '^codegen +/.*/other.so, not used: .* is of build an-older-one, this library of [0-9a-f]{32}' \
    env ATTUNE_CODEGEN="$work/other.so" "$attune" info
cat >"$work/tier0.c" <<'END'
#include "target/bundle_abi.h"
const at_bundle attune_tier0_bundle = {.version = AT_BUNDLE_VERSION, .generator_id = "an-older-one"};
END
${CC:-cc} -shared -fPIC -Iinclude -Isrc "$work/tier0.c" -o "$work/tier0.so"
expect "and of built-in kernels" 0 '^tier 0 +/.*tier0.so is not used: it is of another build' env \
    ATTUNE_TIER0="$work/tier0.so" "$attune" info
expect "its JSON, too" 0 '"tier0_refusal": ".*tier0.so is not used: it is of another build' env \
    ATTUNE_TIER0="$work/tier0.so" "$attune" info --json
expect "nothing else is refused" 0 '"codegen_refusal": "",' "$attune" info --json
expect "info tries no compiler that nobody wants" 0 '^codegen +/.*/other.so$' env ATTUNE_COMPILE=never \
    ATTUNE_CODEGEN="$work/other.so" "$attune" info
info_by() { env ATTUNE_COMPILE=worker ATTUNE_CODEGEN_WORKER="$1" ATTUNE_CODEGEN="$2" "$attune" info; }
expect "info by a worker" 0 '^worker +/.*/attune-codegen-worker$' env ATTUNE_COMPILE=worker "$attune" info
expect "info names a worker that is none" 0 '^worker +/.*bin/false, not used: the worker .* does not start' \
    info_by /bin/false "$BUILD/libattune-codegen.so"
expect "info blames a worker's code generator" 0 '^codegen +/.*other.so, not used: .*this worker of' \
    info_by "$BUILD/attune-codegen-worker" "$work/other.so"
printf '#!/bin/sh\nexec sleep 60\n' >"$work/silent"
chmod 755 "$work/silent"
expect "info does not wait long for a silent worker" 0 '^worker +/.*/silent, not used: .* says nothing for 5 s' \
    timeout 20 env ATTUNE_COMPILE=worker ATTUNE_CODEGEN_WORKER="$work/silent" "$attune" info
# In the directory above, anybody may have put it there, as in /tmp.
mkdir -p "$work/above/app"
cp "$ATTUNE" "$BUILD/libattune.so.0" "$work/above/app"
touch "$work/above/attune-codegen-worker" "$work/above/libattune-codegen.so"
"$work/above/app/attune" info >"$work/stdout" 2>"$work/stderr" && ! grep -q "$work/above" "$work/stdout"
report $? "a code generator in the directory above is left alone"
by_worker() { env ATTUNE_COMPILE=worker ATTUNE_CODEGEN="$1" "$attune" compile $small --cache-dir=; }
expect "a worker without a code generator" 0 'warning: .*could not be loaded: .*/nonexistent.so' \
    by_worker /nonexistent.so
expect "a worker with one of another version" 0 'warning: .*other.so is of build an-older-one, this worker of' \
    by_worker "$work/other.so"
expect "a worker that is none" 0 'warning: .*worker (/usr)?/bin/false' env ATTUNE_COMPILE=worker \
    ATTUNE_CODEGEN_WORKER=/bin/false "$attune" compile $small --cache-dir=
refuse "an unknown way to compile" 'elsewhere' env ATTUNE_COMPILE=elsewhere "$attune" compile $small --cache-dir=
# A minimal container or chroot may lack it.
if unshare -rm true 2>"$work/stderr"; then
    expect "the worker starts without /dev/null" 0 'from +the compiler' env ATTUNE_COMPILE=worker unshare -rm sh -c \
        'mount -t tmpfs none /dev && exec "$@"' - "$attune" compile $small,is_causal=1 --cache-dir=
else
    skip "the worker starts without /dev/null" "no namespace can be made here"
fi
expect "the worker process compiles" 0 'from +the compiler' env ATTUNE_COMPILE=worker "$attune" compile $small \
    --cache-dir=

echo "1..$number"
