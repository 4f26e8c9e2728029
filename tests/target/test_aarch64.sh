#!/usr/bin/env bash
# Kernels for AArch64, and the library on it: built by a cross compiler (make aarch64), run under qemu-user. Machine
# code is compared with the interpreter, bit for bit; it comes from the worker of the machine that this runs on.
#
# With AARCH64_SHORT=yes, as in .ci/run, there are three of five test programs, every second kind of kernel, half as
# many numbers of lanes, one sort of data for each kind, a third of the products, phases by one strategy, and fewer
# random problems (AARCH64_RANDOM). What is built is optimised less, in half the time.
#
# Skipped without the cross compiler, qemu-user or the arm64 libraries (scripts/deps.sh aarch64, which `make test`
# calls, and scripts/aarch64_sysroot.sh), and in builds with a sanitizer, which would be no different.
set -u
unset ATTUNE_ISA # it has an instruction set of its own, whatever TEST_ISA says
cd "$(dirname "$0")/../.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# shellcheck source=tests/support/cli.sh
source tests/support/cli.sh

skip_all() {
    echo "1..1"
    echo "ok 1 # SKIP AArch64: $1"
    exit 0
}
[ -z "${SANITIZE:-}" ] || skip_all "not in a build with a sanitizer"
for tool in qemu-aarch64 "${AARCH64_CC:-aarch64-linux-gnu-gcc}"; do
    command -v "$tool" >/dev/null || skip_all "there is no $tool here (scripts/deps.sh aarch64)"
done
arm=$BUILD/aarch64
bash scripts/aarch64_sysroot.sh "$arm/sysroot" >"$work/stdout" 2>&1 || skip_all "the arm64 libraries cannot be had"

# A make of its own, with its own jobs.
programs=(codegen phases gemm loader vm)
if [ "${AARCH64_SHORT:-}" = yes ]; then
    programs=(codegen loader vm)
    export CFLAGS=-O1
fi
export AARCH64_TESTS="${programs[*]}"
env -u MAKEFLAGS -u MAKELEVEL -u CC -u TEST_CFLAGS make --no-print-directory -j"$(nproc)" aarch64 \
    >"$work/stdout" 2>"$work/stderr"
built=$?
report $built "the library, the command and tests build"
[ $built -eq 0 ] || { echo "1..$number"; exit 1; }

# Where the loader and the C library of the cross compiler lie.
export QEMU_LD_PREFIX=${QEMU_LD_PREFIX:-/usr/aarch64-linux-gnu}
export ATTUNE_COMPILE=worker ATTUNE_CODEGEN_WORKER=$BUILD/attune-codegen-worker
emulate() { qemu-aarch64 "$@"; }

# ---- The library and its command ----

expect "the best instruction set of an AArch64 CPU is aarch64" 0 '"isa": *"aarch64"' emulate "$arm/attune" info --json
expect "the tuning class is told by MIDR" 0 '^machine +cortex-a72 ' emulate -cpu cortex-a72 "$arm/attune" info
refuse "a tuning class of another architecture" 'unknown ATTUNE_MACHINE for this CPU "zen4"; there are: cortex-a53' \
    env ATTUNE_MACHINE=zen4 qemu-aarch64 "$arm/attune" info
refuse "a probe" 'there is no probe for this architecture' emulate "$arm/attune" info --probe-machine
refuse "an instruction set of another machine" "cannot run ISA 'avx2'; it can run: aarch64" \
    emulate "$arm/attune" compile num_heads=1,seq_q=4,head_dim=8 --isa=avx2

# On a busy machine there is no speed.
expect "the peak, the bandwidth and a speed are measured" 0 '"gflops": *([0-9.e+]+|null)' \
    emulate "$arm/attune" bench num_heads=1,seq_q=16,head_dim=16 --threads=1 --json

# ---- Every operator, access, statement; phases of every sort; products; loading ----

lanes=all
[ "${AARCH64_SHORT:-}" != yes ] || lanes=few
export ATTUNE_TEST_SHORT=${AARCH64_SHORT:-}
for test in "${programs[@]}"; do
    expect "test_$test" 0 'PASSED|^ok' env ATTUNE_TEST_TARGETS=here ATTUNE_TEST_LANES=$lanes \
        qemu-aarch64 "$arm/tests/test_$test"
done

# ---- The same bits as on other instruction sets ----

published=$(grep '^0 5 ' tests/data/integer_digests.txt)
expect "integer problems have the published digest" 0 "^$published\$" emulate "$arm/integer_digest" 0 5 5

# ---- Every kind of kernel ----

# check NAME PROBLEM [SIZES [ARGUMENT…]]: machine code against interpreter, on data of several sorts.
kinds=0
sorts=(hidden ordinary large overflow denormal constant nonfinite)
check() {
    local name=$1 problem=$2 sizes=${3:-} sort=()
    shift $(($# < 3 ? $# : 3))
    kinds=$((kinds + 1))
    if [ "${AARCH64_SHORT:-}" = yes ]; then
        ((kinds % 2)) || return 0
        sort=("--inputs=${sorts[kinds / 2 % ${#sorts[@]}]}")
    fi
    expect "$name" 0 '^[1-9][0-9]* passed, 0 failed$' emulate "$arm/attune-lab" check "$problem" \
        ${sizes:+"--sizes=$sizes"} --threads=2 "${sort[@]}" "$@"
}
ragged=batch=3,is_ragged=1,num_heads=4,num_kv_heads=2,head_dim=8
check "q-lanes" batch=2,num_heads=4,num_kv_heads=2,seq_q=29,seq_kv=37,head_dim=20,head_dim_v=12,has_lse=1
check "d-lanes" num_heads=4,num_kv_heads=2,seq_q=1,seq_kv=150,head_dim=24,has_lse=1
check "causal, a window, global tokens" \
    num_heads=2,seq_q=33,seq_kv=40,head_dim=8,is_causal=1,window_left=9,global_tokens=3
check "the caller flushes denormals" num_heads=2,seq_q=9,head_dim=8 "" --ftz --inputs=denormal
check "mask and bias" num_heads=3,seq_q=19,seq_kv=21,head_dim=8,attn_mask_dims=qk,attn_bias_dims=bhk
check "ALiBi, sinks, a soft cap" \
    num_heads=3,seq_q=17,head_dim=8,has_alibi_slopes=1,has_sinks=1,logits_soft_cap=3,is_causal=1
check "ragged" "$ragged,is_causal=1,causal_align=bottom_right,max_seq_q=8,has_lse=1" total_q=12,total_kv=24
check "paged" batch=2,seq_q=1,seq_kv=dynamic,num_heads=4,num_kv_heads=2,head_dim=8,page_size=4,has_kv_lens=1 \
    num_pages=9,max_pages=4
check "pages, appended and rotated keys" \
    "$ragged,page_size=4,seq_new=dynamic,has_kv_lens=1,rotary_dim=8,is_causal=1,causal_align=bottom_right" \
    total_q=12,num_pages=8,max_pages=3,rotary_positions=11
check "merge" op=merge,num_heads=2,seq_q=13,head_dim=12,num_parts=3,has_lse=1
check "weights" \
    op=weights,batch=2,num_heads=2,seq_q=19,seq_kv=11,head_dim=8,has_lse=1,weights_mode=softmax,weights_average=1
check "rotary" op=rotary,batch=2,num_heads=2,seq_q=16,head_dim=12,rotary_dim=8,rotary_interleaved=1,dtype=bf16 \
    rotary_positions=16
check "f64" num_heads=2,seq_q=19,head_dim=10,dtype=f64,is_causal=1
check "f16" num_heads=2,seq_q=19,head_dim=10,dtype=f16,has_lse=1
check "bf16" num_heads=2,seq_q=19,head_dim=10,dtype=bf16,attn_bias_dims=qk
check "keys in f16, values in bf16" num_heads=2,seq_q=1,seq_kv=65,head_dim=16,k_dtype=f16,v_dtype=bf16
check "keys and values in i8, scales of heads" num_heads=4,num_kv_heads=2,seq_q=1,seq_kv=65,head_dim=16,kv_dtype=i8
check "keys and values in f8, appended with scales of tokens" \
    batch=2,num_heads=2,seq_q=9,seq_kv=24,seq_new=9,head_dim=12,has_kv_lens=1,is_causal=1,kv_dtype=f8,kv_scales=token
check "a block" \
    batch=2,embed_dim=24,num_heads=4,num_kv_heads=2,head_dim=6,out_dim=19,seq_q=11,is_causal=1,rotary_dim=4 \
    rotary_positions=11
check "a block that decodes into a cache" \
    batch=2,embed_dim=16,num_heads=4,num_kv_heads=2,seq_q=2,seq_kv=16,seq_new=2,has_kv_lens=1,is_causal=1 ""
check "a block of low rank" embed_dim=16,num_heads=2,seq_q=19,low_rank=5,low_rank_heads=1
check "a block in bf16" embed_dim=32,num_heads=2,seq_q=13,dtype=bf16

seed=${ATTUNE_TEST_SEED:-1}
[ "${AARCH64_SHORT:-}" != yes ] || AARCH64_RANDOM=${AARCH64_RANDOM:-3}
count=${AARCH64_RANDOM:-80}
expect "$count random problems of seed $seed" 0 "^$count passed, 0 failed\$" \
    emulate "$arm/attune-lab" check --random "$count" --seed "$seed" --max-flops 4e5

# ---- Without a compiler: tier 0, and the virtual machine ----

alone() { env -u ATTUNE_CODEGEN_WORKER ATTUNE_COMPILE=never ATTUNE_CACHE_DIR= qemu-aarch64 "$@"; }
expect "tier 0 has a kernel" 0 '^from *tier 0 in' \
    alone "$arm/attune" compile num_heads=2,seq_q=9,seq_kv=20,head_dim=32
expect "it is right" 0 '^[0-9]+ passed, 0 failed$' \
    alone "$arm/attune-lab" check num_heads=2,seq_q=9,seq_kv=20,head_dim=32,has_lse=1
expect "8 random problems by the virtual machine" 0 '^8 passed, 0 failed$' \
    alone "$arm/attune-lab" check --random 8 --seed 13 --max-flops 1e5

# ---- --target, on the machine that this runs on ----

problem=num_heads=2,seq_q=33,head_dim=64,is_causal=1
for stage in lowered image; do
    "$ATTUNE" compile "$problem" --target=aarch64 --emit=$stage -o "$work/here.$stage"
    emulate "$arm/attune" compile "$problem" --emit=$stage -o "$work/there.$stage"
    same "--target=aarch64 --emit=$stage is what an AArch64 machine makes" "$work/here.$stage" "$work/there.$stage"
done
expect "an object of --target=aarch64" 0 'Machine: *AArch64' sh -c \
    "'$ATTUNE' compile $problem --target=aarch64 --emit=obj -o '$work/o' && LC_ALL=C readelf -h '$work/o'"
expect "products multiply by an element" 0 'fmla.*\.s\[0\]' \
    "$ATTUNE" ir examples/ir/matmul.air --target=aarch64 --emit=asm

# Both instruction sets fuse and round, so an example is the same lowered IR for both: the same bits come out of it.
run_example() {
    local example=$1 out=$2
    shift 2
    "$ATTUNE" ir "examples/ir/$example.air" --isa=avx2 --out "$out=$work/here.npy" "$@" >"$work/stdout" \
        2>"$work/stderr" &&
        emulate "$arm/attune" ir "examples/ir/$example.air" --out "$out=$work/there.npy" "$@" >"$work/stdout" \
            2>"$work/stderr" && cmp "$work/here.npy" "$work/there.npy" >"$work/stdout" 2>&1
    report $? "$example gives the bits of avx2"
}
if "$ATTUNE" info --json | grep -q '"avx2"'; then
    make_npy "$work/x.npy" '<f4' False '(37, 9)' $((37 * 9 * 4))
    make_npy "$work/y.npy" '<f4' False '(9, 21)' $((9 * 21 * 4))
    run_example matmul c --arg a="$work/x.npy" --arg b="$work/y.npy" --arg m=37 --arg n=21 --arg k=9
    run_example softmax_rows o --arg x="$work/x.npy" --arg n=37 --arg m=9
fi
echo "1..$number"
