#!/usr/bin/env bash
# Kernels without a code generator, a cache or a compiler: the virtual machine. Needs ATTUNE, the command.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/cli.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
attune=$ATTUNE
export ATTUNE_CACHE_DIR= ATTUNE_CODEGEN=/nowhere/libattune-codegen.so

# Random problems choose instruction sets, blocks, functions, types and threads; the interpreter has the same bits.
expect "random problems" 0 '^40 passed, 0 failed' "$attune-lab" check --random 40 --seed 11 --max-flops 4e5
[ "$(grep -c 'the virtual machine runs this kernel' "$work/stderr")" = 1 ]
report $? "with one warning for all of them"
expect "machine code was asked for" 1 'compiling failed: .*/nowhere/libattune-codegen.so' \
    "$attune-lab" check --engine=jit --threads=1 --inputs=ordinary num_heads=1,seq_q=2,head_dim=4
expect "a block with threads" 0 '^[0-9]+ passed, 0 failed' "$attune-lab" check --threads=3 \
    num_heads=3,seq_q=21,head_dim=8,embed_dim=24,is_causal=1
expect "a function on scores" 0 '^[0-9]+ passed, 0 failed' "$attune-lab" check \
    'num_heads=2,seq_q=9,seq_kv=33,head_dim=20,score_mod="score + 0.5 * (q - kv)"'
expect "scales that are bytes and NaN" 0 '^[0-9]+ passed, 0 failed' "$attune-lab" check --inputs=nonfinite \
    num_heads=2,seq_q=1,seq_kv=2,head_dim=64,k_dtype=i8,k_scales=inline,seq_new=2
expect "the log says why" 0 'the virtual machine runs this kernel: .*/nowhere/libattune-codegen.so' "$attune" compile \
    num_heads=1,seq_q=2,head_dim=4
expect "the command names it" 0 'the virtual machine in' "$attune" compile num_heads=1,seq_q=2,head_dim=4
refuse "strict is strict" 'ATTUNE_STRICT: kernel' env ATTUNE_STRICT=1 "$attune" compile num_heads=1,seq_q=2,head_dim=4
printf 'num_heads=1,seq_q=2,head_dim=4\n' >"$work/manifest"
expect "nothing is warmed" 1 'nothing was compiled: there is no code generator' \
    env ATTUNE_CACHE_DIR="$work/cache" "$attune" warm "$work/manifest"

cat >"$work/own.ir" <<'IR'
kernel @own (n: idx, s: f32, o: f32[n] out) {
  assume n >= 0
  parallel for i in 0..n { o[i] = s * cast.f32(i) }
}
IR
expect "a kernel in loop IR" 0 '^both engines give the same bits' \
    "$attune" ir "$work/own.ir" --arg=n=7 --arg=s=3 --check

unset ATTUNE_CODEGEN
expect "never compiles" 0 'the virtual machine in' \
    env ATTUNE_COMPILE=never "$attune" compile num_heads=1,seq_q=2,head_dim=4
expect "and so does --engine=vm" 0 '"engine": "vm"' "$attune" bench --engine=vm --samples=1 --json \
    num_heads=1,seq_q=2,head_dim=4
# Tier 0 answers ATTUNE_COMPILE=never with machine code; --engine=vm must not even open its library.
opened=$(env -u ATTUNE_TIER0 LD_DEBUG=files "$attune" bench --engine=vm --samples=1 num_heads=1,seq_q=2,head_dim=4 2>&1)
expect "it is not tier 0 that answers" 1 '^0$' grep -c libattune-tier0 <<<"$opened"
refuse "another word" 'it must be worker, in-process or never' \
    env ATTUNE_COMPILE=no "$attune" compile head_dim=4,seq_q=2
echo "1..$number"
