#!/usr/bin/env bash
# Kernels of linear attention, the convolution, the index, the estimate of blocks and MLA where no compiler is: a
# program's misses are recorded, the record becomes a bundle or fills a cache, and the program has the same bits. Needs
# ATTUNE, BUILD, the command, and CC.
set -u
[ -z "${SANITIZE:-}" ] || { echo "1..0"; exit 77; } # the program has no sanitizer
cd "$(dirname "$0")/../.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
touch "$work/stdout" "$work/stderr"
. tests/support/cli.sh
library=$(dirname "$ATTUNE")
export ATTUNE_CACHE_DIR= ATTUNE_TIER0=off
isa=$("$ATTUNE" info | awk '$1 == "isa" { print $2 }')
# program NAME ARGUMENTS…: tests/bundle/described_user.c as a program.
program() {
    local name=$1
    shift
    "${CC:-cc}" -std=c11 -Wall -Wextra -Werror -O1 -Iinclude -o "$work/$name" "$@" tests/bundle/described_user.c \
        -L"$work" -L"$library" -Wl,-rpath,"$library" ${1:+-lopen} -lattune >"$work/stdout" 2>"$work/stderr"
    report $? "$name: it compiles"
}
# same NAME PATTERN COMMAND…: the program prints the bits, and where kernels came from.
same() {
    local name=$1 pattern=$2
    shift 2
    "$@" >"$work/stdout" 2>"$work/stderr" && cmp -s "$work/stdout" "$work/bits" && grep -Eq "$pattern" "$work/stderr"
    report $? "$name"
}
without_compiler() { ATTUNE_CODEGEN=/nowhere "$@"; }

program plain
ATTUNE_RECORD=$work/kernels.txt "$work/plain" >"$work/bits" 2>"$work/stderr"
report $? "it runs with a compiler"
cp "$work/stderr" "$work/first"
count=$(grep -c . "$work/kernels.txt")
expect "each kernel is compiled" 0 "^bundle 0, compiled $count, without a compiler 0$" cat "$work/first"
for op in linear conv index blocks mla; do
    expect "op=$op is recorded as a problem" 0 "^op=$op," cat "$work/kernels.txt"
done
! grep '^#' "$work/kernels.txt" >"$work/stdout"
report $? "and nothing as a comment"
same "without a compiler the virtual machine runs them" "^bundle 0, compiled 0, without a compiler $count$" \
    without_compiler "$work/plain"

# ---- A bundle ----

"$ATTUNE" bundle --kernels-only -o "$work/libopen.a" --name open --targets "$isa" "$work/kernels.txt" \
    >"$work/stdout" 2>"$work/stderr"
report $? "the record becomes a bundle"
program bundled -DWITH_BUNDLE
same "its kernels need no compiler" "^bundle $count, compiled 0, without a compiler 0$" \
    without_compiler "$work/bundled"
same "nor is a compiler used" "^bundle $count, compiled 0, without a compiler 0$" "$work/bundled"
refuse "a bundle with functions" 'line [0-9]+ is a description \(op=[a-z]+\): its bundle needs --kernels-only$' \
    "$ATTUNE" bundle -o "$work/libx.a" --header "$work/x.h" --name x --targets "$isa" "$work/kernels.txt"

# A description has all kernels that its steps may need.
gdn=op=linear,num_heads=2,num_kv_heads=4,num_k_heads=2,head_dim=24,rule=gated_delta,decay=head,has_beta=1
names() { "$ATTUNE" bundle --kernels-only -o "$work/libx.a" --name x --targets "$isa" --json "$@" |
    python3 -c 'import json, sys; print(" ".join(k["name"] for k in json.load(sys.stdin)["kernels"]))'; }
if has_python; then
    expect "a description names several kernels" 0 '^gdn_few gdn_chunks k2$' names "gdn: $gdn" "$gdn,kernel=tokens"
    expect "a reproducible one others" 0 '^gdn_few gdn_tokens$' names "gdn: $gdn,reproducible=1"
else
    skip "a description names several kernels" "there is no Python"
fi

# ---- A cache ----

export ATTUNE_CACHE_DIR=$work/cache
expect "the record fills a cache" 0 "$count" "$ATTUNE" warm "$work/kernels.txt"
same "its kernels need no compiler" "^bundle 0, compiled 0, without a compiler 0$" without_compiler "$work/plain"
expect "the cache lists them as problems" 0 'op=linear,.*,kernel=few' "$ATTUNE" cache ls
expect "and an audit compiles them anew" 0 "$count" "$ATTUNE" cache audit --sample=100
export ATTUNE_CACHE_DIR=

# ---- One kernel ----

expect "its loop IR" 0 '^kernel @linear_attention \(' "$ATTUNE" compile --emit=ir "$gdn,kernel=few"
expect "its machine code" 0 "^kernel  *$isa" "$ATTUNE" compile "$gdn,kernel=chunks"
refuse "a text of several kernels" "has 2 kernels; name one, such as kernel=few" "$ATTUNE" compile "$gdn"
refuse "a field that there is none of" "op=linear has no field 'num_head'; did you mean num_heads" \
    "$ATTUNE" warm "op=linear,num_head=2"
refuse "a word that is none" "rule is 'gatd'; it must be linear, gated, delta or gated_delta" \
    "$ATTUNE" compile "op=linear,num_heads=2,head_dim=8,rule=gatd"
refuse "a member out of range" "channels is 0; it must be from 1" "$ATTUNE" compile "op=conv,taps=4,kernel=apart"
refuse "a schedule" "a description has no schedule" "$ATTUNE" bundle --kernels-only -o "$work/libx.a" --name x \
    "$gdn | vectors=2"
refuse "what is for attention alone" "only attention is possible here" "$ATTUNE" tune "$gdn"
echo "1..$number"
