#!/usr/bin/env bash
# The command and its kernels on CPUs that lack what this one has, emulated by qemu-user: plain x86-64, and AVX2 without
# AVX-512. The worker compiles, and is not emulated. Skipped without qemu-x86_64, on other architectures, and in builds
# with a sanitizer, which qemu has no address space for. Needs ATTUNE, the command, and an ATTUNE_CACHE_DIR of its own.
set -u
cd "$(dirname "$0")/../.." || exit 1
unset ATTUNE_ISA # each CPU has its own sets, whatever TEST_ISA says
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. tests/support/cli.sh

skip_all() {
    skip "older CPUs" "$1"
    echo "1..$number"
    exit 0
}
[ -z "${SANITIZE:-}" ] || skip_all "not in a build with a sanitizer"
[ "$(uname -m)" = x86_64 ] || skip_all "this is no x86-64 machine"
command -v qemu-x86_64 >"$work/stdout" || skip_all "there is no qemu-x86_64 here (scripts/deps.sh aarch64)"

# on CPU PROGRAM ARGUMENT…: it there. qemu warns of features of the CPU that it does not emulate.
on() {
    local cpu=$1
    shift
    ATTUNE_COMPILE=worker qemu-x86_64 -cpu "$cpu" "$@" 2>"$work/messages"
    local status=$?
    grep -v "^qemu-x86_64: warning" "$work/messages" >&2
    return "$status"
}

# try CPU ISAS: what runs there is exactly this, and it computes what it should.
try() {
    local cpu=$1 seed=${ATTUNE_TEST_SEED:-1}
    expect "$cpu runs $2" 0 "^runs +$2\$" on "$cpu" "$ATTUNE" info
    expect "$cpu: committed cases" 0 '^9 passed, 0 failed$' on "$cpu" "$ATTUNE-lab" conform tests/data/conform
    expect "$cpu: a block" 0 '^[1-9][0-9]* passed, 0 failed$' \
        on "$cpu" "$ATTUNE-lab" check embed_dim=24,num_heads=2,seq_q=9,is_causal=1 --threads=2
    expect "$cpu: 12 random problems of seed $seed" 0 '^12 passed, 0 failed$' \
        on "$cpu" "$ATTUNE-lab" check --random 12 --seed "$seed" --max-flops 4e5
}
try Nehalem x86-64
try Haswell-noTSX 'avx2 x86-64'
expect "an instruction set that the CPU lacks" 1 "cannot run ISA 'avx2'; it can run: x86-64" \
    on Nehalem "$ATTUNE" compile --isa=avx2 num_heads=1,seq_q=4,head_dim=8
echo "1..$number"
