#!/usr/bin/env bash
# `attune explain` from outside. Needs ATTUNE, the command, and an ATTUNE_CACHE_DIR of its own.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/cli.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
attune=$ATTUNE
small=num_heads=2,seq_q=50,head_dim=16

# choice TARGET OPTION…: what attune chooses for an instruction set, which this CPU need not have, on a machine of one
# class.
choice() { ATTUNE_MACHINE=zen3 "$attune" explain --dry-run --target="$1" "${@:2}"; }

# Documents of 8 of 48 tokens, causal: 6 * 36 of 48 * 48 pairs, by explain and by bench, which counts two heads.
documents=num_heads=2,seq_q=48,head_dim=16,mask_mod='"q // 8 == kv // 8 & q >= kv"'
expect "pairs that a mask_mod hides are no work" 0 '^work +27.6 kFLOP, .*; queries attend to 9.38 % of the keys$' \
    "$attune" explain "$documents"
expect "nor in bench" 0 '"pairs_seen": 432.0' "$attune" bench --samples=1 --json "$documents"
lengths=batch=2,num_heads=3,seq_q=5,seq_kv=30,head_dim=8,has_kv_lens=1,has_sinks=1,has_lse=1
expect "with tensors, sinks and lengths" 0 '"pairs_seen": 300.0' "$attune" bench --samples=1 --json \
    "$lengths,tensors=\"t:f32[h]\",score_mod=\"score + t[h]\",mask_mod=\"(kv + h) % 3 == 0\""

for pattern in '^problem +num_heads=2,seq_q=50' '^why +attune.s choice' '^tiles ' '^model +[0-9.e+]+ cycles' \
    '^roofline' \
    '^machine .* 1 thread$' '^work +[0-9.]+ kFLOP, [0-9.]+ kB' \
    '^predicted +[0-9.]+ (n|µ|m)?s' '^measured +([0-9.]+ (n|µ|m)?s: [0-9.]+ % of the peak|busy, no figure)' \
    '^ +(scores|values) +phase0[.0-9]* +[1-9]' 'multiply .* spill$'; do
    expect "it says $pattern" 0 "$pattern" "$attune" explain $small
done
awk 'length > 120 { exit 1 }' "$work/stdout"
report $? "no line is too long"
tiles=strategy=q_lanes,lanes=4,score_keys=4,score_row_vectors=1,score_columns=1,value_columns=4,value_row_vectors=1
tiles+=,value_keys=1,task_row_vectors=2,kv_tile=4
expect "what is computed for nothing" 0 '12 rows instead of 10: 16.7 % in vain' choice avx2 \
    --schedule=$tiles \
    num_heads=1,seq_q=10,seq_kv=12,head_dim=8
expect "nothing is said of nothing" 0 'at most' choice avx2 num_heads=2,seq_q=64,head_dim=16
! grep -q 'in vain' "$work/stdout"
report $? "where all is needed"

# Heads of 48 columns: scores without a loop over d, and sums of values that stay in registers.
narrow=num_heads=32,num_kv_heads=8,seq_q=1,seq_kv=512,head_dim
expect "scores of all columns at once" 0 '^ +scores +phase' choice avx2 $narrow=48
expect "sums of several streams" 0 'values: .* sums, in registers for a tile of keys$' \
    choice avx2 $narrow=48
expect "sums of one stream" 0 'values: .* sums, in registers for a tile of keys, or read and written for each$' \
    choice avx2 dtype=bf16,num_heads=48,num_kv_heads=8,seq_q=1,seq_kv=8192,head_dim=128
expect "sums in memory" 0 'values: .* sums, read and written once for 4 keys$' \
    choice avx2 $narrow=128
expect "a single sum" 0 'values: 1 x 1 = 1 sum, ' choice avx2 num_heads=1,seq_q=1,seq_kv=64,head_dim=8

# The rules that decided, with what was measured and what would be chosen without them.
afar=dtype=bf16,num_heads=48,num_kv_heads=8,seq_q=1,seq_kv=8192,head_dim=128
expect "a rule that decided" 0 '^ +MEMORY_HELD \(line [0-9]+\), factor ALWAYS' choice avx2 $afar
grep -qE '^ +a converted vector of V serves' "$work/stdout" &&
    grep -qE '^ +without it: .*value_keys=[0-9]' "$work/stdout" && ! grep -qE '.{121}' "$work/stdout"
report $? "its evidence, and what would be chosen without it"
expect "the same as JSON" 0 '"subject": "MEMORY_HELD"' choice avx2 --json $afar
expect "no rule for a schedule of the caller" 0 '"reasons": \[\]' choice avx2 --json --schedule=lanes=8 $afar
line=$(choice avx2 --json $afar | sed -n 's/.*"line": \([0-9]*\).*/\1/p' | head -n 1)
sed -n "${line:-1}p" src/schedule/corrections.def | grep -qE '^(CORRECTION|RULE)\('
report $? "the line is that of a rule"

loop=rotary_dim=32,seq_new=1,seq_kv=dynamic,seq_q=1,num_heads=4,head_dim=32
expect "scores whose loop over d is unrolled away" 0 '^ +scores +phase' choice avx2 \
    --sizes=seq_kv=100 $loop
[ "$(grep -cE '^ +values +phase' "$work/stdout")" -eq 1 ]
report $? "are no sums of values"
expect "without FMA accumulators are not known" 0 '^ +scores +phase[.0-9]* +[0-9]+ +- +[1-9]' choice \
    x86-64 $small
expect "with FMA they are" 0 '"accumulators": [1-9]' choice avx2 --json $small
expect "but not in JSON without it" 0 '"accumulators": null' choice x86-64 --json $small

# The picture of the tiles.
expect "causal tiles" 0 '^ +rows +0 to +3  /\.\.$' choice avx2 --schedule=$tiles \
    num_heads=1,seq_q=12,head_dim=8,is_causal=1
grep -qE '^ +rows +4 to +7  #/\.$' "$work/stdout" && grep -qE '^ +rows +8 to +11  ##/$' "$work/stdout" &&
    grep -q 'a task has 2 stripes by 3 tiles' "$work/stdout" && grep -q ', \. left out' "$work/stdout"
report $? "line by line"
open=num_heads=8,seq_q=dynamic,seq_kv=dynamic,head_dim=64
expect "tasks of sequences with many keys" 0 'a task has [0-9]+ or more stripes by' choice avx2 \
    --sizes=seq_q=512,seq_kv=16384 $open,has_kv_lens=1
expect "but not where all have the same lengths" 0 'a task has [0-9]+ stripes? by' choice avx2 \
    --sizes=seq_q=512,seq_kv=16384 $open
expect "nor with functions of its own" 0 'a task has [0-9]+ stripes? by' choice avx2 \
    --sizes=seq_q=512,seq_kv=16384 $open,has_kv_lens=1,score_mod="score + 1"
expect "a window, heads in groups" 0 '^ +rows +4 to +7  \./\.$' choice avx2 --schedule=$tiles \
    num_heads=2,num_kv_heads=1,seq_q=4,seq_kv=12,head_dim=8,is_causal=1,causal_offset=-4,window_left=1
expect "a window and global keys of a lone query" 0 '^ +rows +0 to +0  /[.|]+/$' choice avx2 \
    --schedule=kv_tile=64 \
    num_heads=1,seq_q=1,seq_kv=1024,head_dim=64,is_causal=1,causal_align=bottom_right,window_left=10,global_tokens=4
expect "global queries see no later key" 0 '^ +rows +0 to +3  /\.\.\.$' choice avx2 --schedule=$tiles \
    num_heads=1,seq_q=16,head_dim=8,is_causal=1,window_left=1,global_tokens=2
grep -qE '^ +rows +8 to +11  ///\.$' "$work/stdout" && grep -qE '^ +rows +12 to +15  /\.//$' "$work/stdout"
report $? "but later ones see the global keys"
expect "queries before the first key see none" 0 '^ +rows +0 to +3  \.\.\.$' choice avx2 \
    --schedule=$tiles \
    num_heads=1,seq_q=12,head_dim=8,window_right=1,causal_offset=-6
# All pairs of queries and keys, one by one, in Python, which is no part of attune.
cat >"$work/tiles.py" <<'PYTHON'
import json, subprocess, sys
def expected(rows, keys, tile, block, causal, base, left, right, tokens):
    number = {"computed": 0, "compared": 0, "left_out": 0}
    def window(at, k):
        is_near = (left < 0 or k >= at - left) and (right < 0 or k <= at + right)
        return (not causal or k <= at) and (at < tokens or is_near)
    def seen(at, k):
        return window(at, k) or (k < tokens and (not causal or k <= at))
    for b in range(0, rows, block):
        at = [q + base for q in range(b, min(b + block, rows))]
        for t in range(0, keys, tile):
            ks = range(t, min(t + tile, keys))
            if all(window(a, k) for a in at for k in ks): number["computed"] += 1
            elif any(seen(a, k) for a in at for k in ks): number["compared"] += 1
            else: number["left_out"] += 1
    return number
bad = 0
for rows, keys, causal, align, left, right, tokens in [
        (30, 30, 1, 0, 5, -1, 3), (30, 41, 1, 1, 5, -1, 9), (30, 41, 0, 0, 2, 7, 6), (13, 50, 0, 1, -1, 3, 0),
        (17, 23, 1, 0, -1, -1, 0), (22, 9, 1, 1, 4, -1, 2), (64, 64, 0, 0, 0, 0, 10),
        (9, 40, 0, 0, 12, -1, 0), (31, 64, 1, 1, 0, -1, 5)]:
    base = keys - rows if align else 0
    if causal == 0 and align: base = keys - rows
    text = f"num_heads=1,seq_q={rows},seq_kv={keys},head_dim=8,is_causal={causal}"
    text += f",window_left={left},window_right={right},global_tokens={tokens}"
    if not align: text += ",causal_align=top_left"
    out = subprocess.run(sys.argv[1:] + [text], capture_output=True, text=True)
    t = json.loads(out.stdout)["tiles"]
    number = expected(rows, keys, t["tile_keys"], t["stripe_rows"], causal, base, left, right, tokens)
    if any(t[k] != number[k] for k in number):
        print(text, t, number)
        bad = 1
sys.exit(bad)
PYTHON
if has_python; then
    python3 "$work/tiles.py" "$attune" explain --dry-run --json --schedule=$tiles >"$work/stdout" 2>"$work/stderr"
    report $? "tiles are counted as pair by pair"
else
    skip "tiles are counted as pair by pair" "there is no Python here"
fi
expect "long lengths, soon" 0 '^ +rows +0 to 3999999  #' timeout 60 "$attune" explain --dry-run \
    num_heads=8,seq_q=4000000,head_dim=64
expect "many tasks" 0 '\.\.\.$' choice avx2 num_heads=8,seq_q=1,seq_kv=65536,head_dim=64
awk 'length > 120 { exit 1 }' "$work/stdout"
report $? "in a line that is not too long"
expect "chunks" 0 '^ +rows +0 to +0  #\|#\|#$' choice avx2 num_heads=1,seq_q=1,seq_kv=3000,head_dim=64
expect "many rows" 0 '^ +rows +0 to +9999  #$' choice avx2 num_heads=1,seq_q=10000,seq_kv=64,head_dim=8
expect "what is not attention has no tiles" 0 '^why +this kernel is not attention, so there is nothing to choose' \
    "$attune" explain op=merge,num_parts=2,num_heads=2,seq_q=8,head_dim=8
! grep -qE '^(tiles|model|predicted)' "$work/stdout"
report $? "and no model"
expect "a block" 0 'products: ' "$attune" explain embed_dim=32,num_heads=2,seq_q=8
expect "decoding" 0 'few, so that reading' choice avx2 num_heads=8,num_kv_heads=2,seq_q=1,seq_kv=300,head_dim=32
expect "lengths of the run" 0 '^ +rows +0 to +4  #$' "$attune" explain --sizes=seq_q=5,seq_kv=9 \
    seq_q=-1,seq_kv=-1,head_dim=8
expect "another schedule" 0 'why +the caller set it' "$attune" explain --schedule=score_columns=1 $small
"$attune" explain --dry-run $small >"$work/stdout" 2>"$work/stderr" && ! grep -q measured "$work/stdout"
report $? "a dry run measures nothing"
"$attune" warm --cache-dir="$work/warm" $small >"$work/stdout" 2>"$work/stderr"
expect "what is explained is the kernel that programs get" 0 '^measured' \
    env ATTUNE_STRICT=1 "$attune" explain --cache-dir="$work/warm" $small
[ "$(find "$work/warm" -name '*.attune' | wc -l)" -eq 1 ]
report $? "and nothing else is left in the cache"
expect "two threads" 0 '^measured' "$attune" explain --threads=2 $small
expect "many threads" 0 '^ +phase 1: 24 tasks, at most 1 for a thread, idle 62\.5 %$' \
    env ATTUNE_MACHINE=generic "$attune" explain --threads=64 --dry-run \
    --schedule=lanes=4,score_row_vectors=2,value_row_vectors=2,task_row_vectors=64 \
    num_heads=12,seq_q=512,head_dim=64
expect "tasks of several phases, each with its time" 0 '^ +phase 2: .* on one thread$' "$attune" explain --threads=64 \
    embed_dim=32,num_heads=2,seq_q=64
grep -qE '^ +idle in all [0-9.]+ %$' "$work/stdout" && grep -qE '^measured .*(; on [0-9]+ threads?, as many as|$)' \
    "$work/stdout"
report $? "and what all phases come to"
one_task=--schedule=lanes=4,score_row_vectors=1,value_row_vectors=1,task_row_vectors=4 # of 16 rows, on any CPU
expect "ranges that get shorter" 0 '^ +phase 1: 102 tasks, at most 26 for a thread, idle 1\.9 %$' \
    env ATTUNE_MACHINE=generic "$attune" explain --threads=4 --dry-run $one_task num_heads=102,seq_q=16,head_dim=64
expect "parts for third caches" 0 '^tasks +shared by 4 threads, 3 to an L3 cache, if all tasks' \
    env ATTUNE_MACHINE=generic,l3_cores=3 "$attune" explain --threads=4 --dry-run $one_task \
    num_heads=17,seq_q=16,head_dim=64
grep -qE '^ +phase 1: 17 tasks, at most 5 for a thread, idle 15\.0 %$' "$work/stdout"
report $? "and threads that are done take tasks of others"
expect "phases whose tasks are not of one length" 0 '"idle": null' "$attune" explain --json --threads=4 --dry-run \
    embed_dim=32,num_heads=2,seq_q=64
expect "tensors of 1 GiB each are not filled" 0 'phase 1: [0-9]+ tasks' timeout 60 \
    "$attune" explain --threads=4 --dry-run batch=32,num_heads=32,seq_q=2048,head_dim=128
expect "tasks as JSON" 0 '"waves": [1-9]' "$attune" explain --json --threads=64 --dry-run $small
cat >"$work/holds.py" <<'PYTHON'
import json, sys
e = json.load(open(sys.argv[1]))
assert e["schema"] == 2 and e["chosen_by"] == "rules" and e["is_measured"]
assert e["loops"] and all(loop["instructions"] >= loop["multiply"] > 0 for loop in e["loops"])
parts = ("scores", "softmax", "values", "tasks", "products")
assert abs(sum(e["model_cycles"][p] for p in parts) - e["model_cycles"]["all"]) < 1e-3 * e["model_cycles"]["all"]
assert {"scores", "softmax", "values"} <= {loop["name"] for loop in e["loops"]}
t = e["tiles"]
assert t["rows"] == t["keys"] == 50 and t["computed"] == t["stripes"] * t["tiles"]
assert t["left_out"] == t["compared"] == 0
assert e["measured"]["flops"] == 4 * 2 * 50 * 50 * 16 and e["measured"]["bytes"] == 4 * 2 * 50 * 16 * 4
assert e["measured"]["median_us"] > 0 and e["measured"]["predicted_us"] > 0
PYTHON
"$attune" explain --json $small >"$work/stdout" 2>"$work/stderr"
report $? "JSON"
if has_python; then
    python3 "$work/holds.py" "$work/stdout" 2>"$work/stderr"
    report $? "it holds the same"
else
    skip "it holds the same" "there is no Python here"
fi
# Loops have the names of the steps, whatever makes vectors, and however few turns loops have.
for problem in num_heads=8,seq_q=512,head_dim=64,is_causal=1 num_heads=8,seq_q=1,seq_kv=4096,head_dim=64 \
    num_heads=8,num_kv_heads=2,seq_q=2,seq_kv=300,head_dim=64 num_heads=2,seq_q=50,head_dim=16; do
    for isa in avx512_bf16 avx2 x86-64 aarch64; do
        choice $isa $problem >"$work/stdout" 2>"$work/stderr" &&
            grep -qE '^ +scores +phase0' "$work/stdout" && grep -qE '^ +softmax +phase0' "$work/stdout" &&
            grep -qE '^ +values +phase0' "$work/stdout"
        report $? "names of loops: $problem, $isa"
    done
done
expect "a block has products, too" 0 '^ +products +phase0' choice avx2 \
    embed_dim=768,num_heads=12,seq_q=128
expect "chunks are merged" 0 '^ +merging +phase1' choice avx2 \
    num_heads=8,seq_q=1,seq_kv=4096,head_dim=64
without_compiler() { env ATTUNE_COMPILE=never ATTUNE_CACHE_DIR= "$attune" explain "$@"; }
expect "schedule and model without a compiler" 0 '^model +[0-9].* cycles' without_compiler \
    num_heads=4,seq_q=301,head_dim=64
expect "what is missing" 0 '^missing +work, tasks, loops and times' without_compiler num_heads=4,seq_q=301,head_dim=64 \
    --threads=2
expect "as JSON" 0 '"lacks_code": true' without_compiler num_heads=4,seq_q=301,head_dim=64 --json
# ---- Descriptions ----

expect "the kernels of a description" 0 'few +.*KiB +1 .* fewer than 8 tokens' "$attune" explain \
    op=linear,num_heads=2,head_dim=16
expect "one of them" 0 'tokens +.*8 or more tokens' "$attune" explain op=conv,channels=8,taps=4,kernel=tokens
expect "an operator with one" 0 'own .*all steps' "$attune" explain \
    op=index,num_heads=2,head_dim=16,num_ids=4
expect "kernels of blocks" 0 '32768 .*up to 32768' "$attune" explain \
    op=blocks,num_heads=2,head_dim=16,block_size=16,stride=4
expect "kernels of MLA" 0 'absorb_1 .*absorbed form' "$attune" explain --cache-dir= \
    op=mla,embed_dim=16,num_heads=1,kv_lora_rank=16,qk_nope_head_dim=8,qk_rope_head_dim=4,form=absorbed
expect "as JSON" 0 '"kernel": "op=conv,channels=1,taps=4,dilation=1,dtype=f32,kernel=apart"' "$attune" explain --json \
    op=conv,channels=8,taps=4
expect "without a compiler" 0 'few +the virtual machine' env ATTUNE_COMPILE=never "$attune" explain --cache-dir= \
    op=linear,num_heads=2,head_dim=24
expect "that steps may use tier 0" 0 '^without a compiler, steps use' env ATTUNE_COMPILE=never "$attune" explain \
    --cache-dir= op=linear,num_heads=2,head_dim=64
expect "a description that is wrong" 1 'taps is 65' "$attune" explain op=conv,channels=8,taps=65
expect "sizes" 2 'a description has no --schedule, .* attune run measures a step' "$attune" explain \
    op=conv,channels=8,taps=4 --sizes seq_q=3
for command in bench "cache why"; do
    # shellcheck disable=SC2086
    expect "$command names others" 1 'for attention; of other operators attune run computes and measures a step' \
        "$attune" $command op=conv,channels=8,taps=4
done
for command in tune sweep; do
    expect "$command says so" 1 'only attention is possible here; attune run measures a step of other operators' \
        "$attune" $command op=conv,channels=8,taps=4
done
expect "an operator that there is not" 1 "op is 'lin'; it must be attention, .*, mha, linear, conv, index, .* or mla" \
    "$attune" explain op=lin,num_heads=2

refuse "a schedule that is not legal" 'lanes must be' "$attune" explain --schedule=lanes=3 $small
refuse "a bad problem" 'head_dim' "$attune" explain num_heads=2,seq_q=4,head_dim=-1
refuse "keys whose number is open" 'seq_kv is not set' "$attune" explain num_heads=2,seq_q=1,seq_kv=dynamic,head_dim=16
refuse "no keys" 'no keys to be measured with' "$attune" explain num_heads=2,seq_q=1,seq_kv=dynamic,head_dim=16 \
    --sizes=seq_kv=0
refuse "queries without keys" 'no query attends to a key' "$attune" explain --json \
    num_heads=2,seq_q=4,head_dim=16,is_causal=1,causal_offset=-4
expect "no problem" 2 'a PROBLEM is needed' "$attune" explain
expect "two problems" 2 'one problem only' "$attune" explain $small $small
echo "1..$number"
