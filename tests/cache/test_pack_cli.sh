#!/usr/bin/env bash
# attune cache pack, seal, index, add and --pack, with minisign as the other side. Needs ATTUNE, the command.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/cli.sh
command -v minisign >/dev/null || { echo "1..0 # SKIP minisign is not there"; exit 77; }
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$work"' EXIT
attune=$ATTUNE pack=$work/kernels.pack
a=num_heads=2,seq_q=4,head_dim=8
b=num_heads=2,seq_q=5,seq_kv=4,head_dim=8
unset ATTUNE_CACHE_BASE ATTUNE_CACHE_PACK ATTUNE_MACHINE ATTUNE_STRICT
export ATTUNE_CACHE_DIR=$work/cache ATTUNE_CACHE_KEYS=$work/keys
mkdir -m 755 "$work/keys"
new_key() {
    (umask 022; echo | minisign -G -W -f -p "$work/$1.pub" -s "$work/$1.key") >"$work/stdout" 2>"$work/stderr"
    chmod 644 "$work/$1.pub"
}
sign() { minisign -S -s "$work/$1.key" -m "$pack.index"; }
# without DIR COMMAND…: on a machine that has the pack and no compiler.
without() {
    local dir=$1
    shift
    env ATTUNE_CACHE_DIR="$dir" ATTUNE_CODEGEN=/nonexistent ATTUNE_CODEGEN_WORKER=/nonexistent "$@"
}

# Making one.
new_key fleet && new_key other && cp -p "$work/fleet.pub" "$work/keys"
printf '%s\n%s\n' $a $b >"$work/manifest"
expect "a manifest is compiled and packed" 0 '^[^ ]+kernels\.pack: 2 kernels \(' \
    "$attune" cache pack -o "$pack" "$work/manifest"
refuse "a pack that is not signed" 'the pack .* is not signed$' "$attune" cache verify --pack="$pack"
refuse "sealing without a signature" 'kernels\.pack\.index\.minisig cannot be read' "$attune" cache seal "$pack"
sign other >"$work/stdout" 2>"$work/stderr"
report $? "minisign signs the index"
refuse "a signature of a key that is not trusted" 'is signed by key [0-9A-F]{16}, which is none of the 1 keys in ' \
    "$attune" cache seal "$pack"
sign fleet >"$work/stdout" 2>"$work/stderr"
expect "sealing" 0 'kernels\.pack is signed$' "$attune" cache seal "$pack"
mkdir "$work/there" && cp "$pack" "$work/there" && (cd "$work/there" && "$attune" cache index kernels.pack) \
    >"$work/stdout" 2>"$work/stderr"
expect "minisign agrees" 0 '^Signature and comment signature verified$' \
    minisign -V -p "$work/fleet.pub" -m "$work/there/kernels.pack.index"
expect "and so it does with another key" 1 '^but the key id in the public key is ' \
    minisign -V -p "$work/other.pub" -m "$work/there/kernels.pack.index"

# Using it.
expect "it is verified" 0 '^2 kernels.* 0 damaged' "$attune" cache verify --pack="$pack"
expect "compiled anew, it is the same" 0 '^2 of 2 kernels compiled anew: 2 the same, 0 different' \
    "$attune" cache audit --pack="$pack"
expect "a sample of one is one, although the same kernel lies in the directory" 0 '^1 of 4 kernels compiled anew: 1 ' \
    env ATTUNE_CACHE_PACK="$pack" "$attune" cache audit --sample=1 --seed=1
expect "a kernel comes from it without LLVM" 0 ' the pack in ' \
    without '' env ATTUNE_CACHE_PACK="$pack" "$attune" compile $a
expect "which is named in JSON" 0 '"origin": "pack"' \
    without '' env ATTUNE_CACHE_PACK="$pack" "$attune" compile --json $b
expect "the command says where a kernel is" 0 "^in $pack/[0-9a-f]{32}-" \
    env ATTUNE_CACHE_DIR= ATTUNE_CACHE_PACK="$pack" "$attune" cache why $a
expect "what is not in it is missed" 0 'the code generator could not be loaded' \
    without '' env ATTUNE_CACHE_PACK="$pack" "$attune" compile $a,is_causal=1

# A new pack has all kernels of its manifest, wherever programs may find them.
printf '%s\n%s\n%s,is_causal=1\n' $a $b $a >"$work/three-lines"
expect "kernels of a pack that is in use are packed again" 0 '^[^ ]+more\.pack: 3 kernels \(' \
    env ATTUNE_CACHE_DIR="$work/fresh" ATTUNE_CACHE_PACK="$pack" \
    "$attune" cache pack -o "$work/more.pack" "$work/three-lines"
ATTUNE_CACHE_DIR=$work/small expect "a full disk makes no pack" 1 'not all that was compiled .*: there is no pack$' \
    bash -c 'ulimit -f 1; trap "" XFSZ; "$@" 2>&1 | cat; exit "${PIPESTATUS[0]}"' - \
    "$attune" cache pack -o "$work/full.pack" "$work/three-lines"

# Ctrl-C just before the pack gets its name: it becomes whole, and nothing else is left.
cat >"$work/ctrl_c.c" <<'C'
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    if (strstr(to, ".pack")) kill(getpid(), SIGINT);
    return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, 0);
}
C
if [ -z "${SANITIZE:-}" ] && ${CC:-cc} -shared -fPIC -o "$work/ctrl_c.so" "$work/ctrl_c.c"; then
    mkdir "$work/ctrl_c"
    expect "Ctrl-C while a pack is written" 0 'ctrl_c\.pack: 2 kernels' env LD_PRELOAD="$work/ctrl_c.so" \
        "$attune" cache pack -o "$work/ctrl_c/ctrl_c.pack" "$work/manifest"
    [ "$(ls -A "$work/ctrl_c")" = "ctrl_c.pack
ctrl_c.pack.index" ]
    report $? "leaves no temporary"
fi

# Taking it in.
expect "a file is added" 0 ': 2 new kernels .* 0 known, 0 damaged' without "$work/one" "$attune" cache add "$pack"
expect "and its kernels stay without it" 0 'disk cache' without "$work/one" "$attune" compile $a
head -c 1600 "$pack" >"$work/short.pack"
refuse "one that is cut off" 'is not as long as its header says' without "$work/two" "$attune" cache add \
    "$work/short.pack"
cp "$pack" "$work/tampered.pack"
printf 'x' | dd of="$work/tampered.pack" bs=1 seek=100 conv=notrunc 2>/dev/null
refuse "one whose index was changed" 'was changed, or key [0-9A-F]{16} has not signed it' \
    without "$work/two" "$attune" cache add "$work/tampered.pack"
cp "$pack" "$work/tampered.pack"
printf 'x' | dd of="$work/tampered.pack" bs=1 seek=$(($(stat -c %s "$pack") - 9)) conv=notrunc 2>/dev/null
expect "and of kernels the changed one" 0 ': 1 new kernel .* 1 damaged' without "$work/two" "$attune" cache add \
    "$work/tampered.pack"

# From a server, at a port that the system picks.
url=http://127.0.0.1:9 # where nothing listens
if has_python; then
    python3 -u -m http.server --bind 127.0.0.1 --directory "$work" 0 >"$work/server.log" 2>&1 &
    server=$!
fi
if [ -n "$server" ]; then
    soon grep -q '^Serving HTTP on .* port [0-9]' "$work/server.log"
    port=$(sed -n 's/^Serving HTTP on .* port \([0-9]*\) .*/\1/p' "$work/server.log")
    url=http://127.0.0.1:$port
    expect "a URL is added" 0 ': 2 new kernels .* 0 known, 0 damaged' without "$work/three" "$attune" cache add \
        "$url/kernels.pack"
    expect "and not once more" 0 ': 0 new kernels .* 2 known' without "$work/three" "$attune" cache add \
        "$url/kernels.pack"
    { cat "$pack" && head -c 300000 /dev/zero; } >"$work/long.pack"
    expect "one that is longer than its header says is not fetched to its end" 1 \
        'long\.pack cannot be fetched: it is longer than its header says' "$attune" cache add "$url/long.pack"
    # Bytes 16 to 23 are the size: 2^40.
    { head -c 16 "$pack" && printf '\0\0\0\0\0\1\0\0' && tail -c +25 "$pack"; } >"$work/large.pack"
    expect "nor one whose header says too much" 1 'large\.pack cannot be fetched: it is larger than the limit' \
        "$attune" cache add "$url/large.pack"
    expect "nor what is no pack" 1 'manifest cannot be fetched: it is no pack' "$attune" cache add "$url/manifest"
    expect "a file that the server lacks" 1 'none\.pack cannot be fetched: .*404' "$attune" cache add "$url/none.pack"
    refuse "what a server gives is not trusted" 'short\.pack: the pack .* is not as long as its header says' \
        "$attune" cache add "$url/short.pack"
    kill "$server"
    wait "$server" 2>/dev/null
    server=
else
    skip "a server" "Python is missing"
fi
expect "a dead server" 1 'kernels\.pack cannot be fetched: ' "$attune" cache add "$url/kernels.pack"
expect "a protocol that is not fetched" 1 'the pack ftp://.* cannot be opened: ' "$attune" cache add ftp://127.0.0.1/x

# An end in the middle leaves whole entries only, and the same command goes on.
seq -f 'num_heads=1,seq_q=%g,head_dim=16' 60 >"$work/many"
ATTUNE_CACHE_DIR=$work/sixty "$attune" cache pack -o "$pack" "$work/many" >"$work/stdout" 2>"$work/stderr" &&
    sign fleet >"$work/stdout" 2>"$work/stderr" && "$attune" cache seal "$pack" >"$work/stdout" 2>"$work/stderr"
report $? "a pack of many kernels"
for ((i = 0; i < 8; i++)); do
    without "$work/killed" "$attune" cache add "$pack" >/dev/null 2>&1 &
    pid=$!
    sleep 0.0$i
    kill -9 $pid 2>/dev/null
    wait $pid 2>/dev/null
done
if [ -d "$work/killed" ]; then
    expect "kill -9 leaves no damage" 0 ' 0 damaged' "$attune" cache verify --cache-dir="$work/killed"
fi
without "$work/killed" "$attune" cache add "$pack" >"$work/stdout" 2>"$work/stderr"
expect "and what is missing comes with the next try" 0 '^60 kernels.* 0 damaged' \
    "$attune" cache verify --cache-dir="$work/killed"

# Keys in turn.
new_key new && cp -p "$work/new.pub" "$work/keys"
sign new >"$work/stdout" 2>"$work/stderr"
expect "another key of several signs" 0 'is signed$' "$attune" cache seal "$pack"
rm "$work/keys/new.pub"
refuse "a key that was taken away" 'which is none of the 1 keys in ' "$attune" cache verify --pack="$pack"
expect "pack needs a file to write" 2 'pack needs --output=FILE' "$attune" cache pack
expect "and nothing else does" 2 '--output is for pack, not for ls' "$attune" cache ls -o x
expect "why looks into no pack alone" 2 '--pack is for ls, verify and audit, not for gc' "$attune" cache gc --pack=x
expect "no file is no pack" 2 '--pack needs a FILE' "$attune" cache ls --pack=
echo "1..$number"
