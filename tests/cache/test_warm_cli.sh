#!/usr/bin/env bash
# Recording misses, warming a cache from the record, and forbidding misses. Needs ATTUNE, the command, and an
# ATTUNE_CACHE_DIR of its own.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/cli.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
attune=$ATTUNE
a=num_heads=2,seq_q=4,head_dim=8
b=num_heads=2,seq_q=5,head_dim=8
schedule=strategy=d_lanes,lanes=4,score_keys=4,score_rows=2,score_column_vectors=1,value_rows=2,value_column_vectors=1
schedule+=,value_keys=2,kv_tile=32,kv_chunk=64
export ATTUNE_CACHE_DIR=$work/cache

# What had to be compiled is written down, once each; hits are not.
ATTUNE_RECORD=$work/manifest "$attune" compile $a >"$work/stdout" 2>"$work/stderr"
ATTUNE_RECORD=$work/manifest "$attune" compile $a >"$work/stdout" 2>"$work/stderr"
ATTUNE_RECORD=$work/manifest "$attune" compile --schedule=$schedule $b >"$work/stdout" 2>"$work/stderr"
[ "$(wc -l <"$work/manifest")" -eq 2 ] && grep -q '^num_heads=2,seq_q=4' "$work/manifest" &&
    grep -q '^num_heads=2,seq_q=5.* | strategy=d_lanes,lanes=4' "$work/manifest"
report $? "misses are recorded"
{ cat "$work/manifest"; printf 'num_heads=3,se'; } >"$work/cut"
ATTUNE_RECORD=$work/cut "$attune" compile num_heads=2,seq_q=7,head_dim=8 >"$work/stdout" 2>"$work/stderr"
[ "$(sed -n 3,4p "$work/cut")" = "$(printf 'num_heads=3,se\nnum_heads=2,seq_q=7,seq_kv=7,head_dim=8')" ]
report $? "a line that was cut does not spoil the next one"
expect "a record that cannot be written is named" 0 'could not be recorded in /proc/none' \
    env ATTUNE_RECORD=/proc/none "$attune" compile num_heads=2,seq_q=6,head_dim=8

# A cache warmed from it needs no compiler.
export ATTUNE_CACHE_DIR=$work/fresh
expect "warming compiles all" 0 '^2 kernels: 2 compiled, 0 cached already, 0 failed, 0 left' "$attune" warm \
    "$work/manifest"
expect "warming again compiles nothing" 0 '^2 kernels: 0 compiled, 2 cached already' "$attune" warm "$work/manifest"
expect "what was warmed is found" 0 'from +the disk cache' env ATTUNE_STRICT=1 "$attune" compile $a
expect "and with its schedule" 0 'from +the disk cache' env ATTUNE_STRICT=1 "$attune" compile --schedule=$schedule $b
expect "what was warmed is measured" 0 'of peak' env ATTUNE_STRICT=1 "$attune" bench --samples=1 $a
refuse "a miss that is forbidden" 'ATTUNE_STRICT: kernel [0-9a-f]{32} is not cached: num_heads=2,seq_q=5' \
    env ATTUNE_STRICT=1 "$attune" compile $b
ATTUNE_STRICT=1 ATTUNE_RECORD=$work/lacks "$attune" compile $b >"$work/stdout" 2>"$work/stderr"
[ $? -eq 1 ] && [ "$(cat "$work/lacks")" = "num_heads=2,seq_q=5,seq_kv=5,head_dim=8" ]
report $? "what is forbidden is recorded"
expect "and is what a manifest lacks" 0 '1 compiled' "$attune" warm --cache-dir="$work/lacking" "$work/lacks"
expect "a strictness that is none" 0 "ATTUNE_STRICT is 'yes'" env ATTUNE_STRICT=yes "$attune" compile $a
either='num_heads=1,seq_q=4,head_dim=8,mask_mod="q < 3 | q >= kv"' # a bar, and no schedule after it
expect "a record with a function" 0 'from +the compiler' env ATTUNE_RECORD="$work/either" "$attune" compile "$either"
expect "can be warmed" 0 '^1 kernel: 1 compiled' "$attune" warm --cache-dir="$work/either.cache" "$work/either"
name=a_tensor_with_a_long_name # texts of more than 2048 characters
long="num_heads=1,seq_q=4,head_dim=8,tensors=\"$name:f32[kv]\""
long+=",score_mod=\"score$(printf " + $name[kv] * 1.5%d" {10..34})\""
long+=",mask_mod=\"q > 0$(printf " | $name[kv] > 1.5%d" {10..34})\""
expect "problems with long functions are kept" 0 '^1 kernel: 1 compiled' "$attune" warm --cache-dir="$work/long" "$long"
expect "and found" 0 '0 compiled, 1 cached' "$attune" warm --cache-dir="$work/long" "$long"
expect "problems as arguments, jobs, JSON" 0 '"compiled": 1' "$attune" warm --jobs=2 --json $a $b

# Not all of it.
for i in 1 2 3 4 5 6 7 8 9; do echo "num_heads=1,seq_q=$i,head_dim=16"; done >"$work/nine"
expect "a budget ends it" 1 '[1-9] left' "$attune" warm --jobs=1 --budget=0.001 "$work/nine"
expect "what was left is done later" 0 '^9 kernels: .* 0 failed, 0 left' "$attune" warm "$work/nine"
printf '%s\n%s | lanes=3\n' $a $a >"$work/partly"
expect "one that fails does not stop the others" 1 '1 failed, 0 left' "$attune" warm "$work/partly"
printf '%s\nnum_heads=0\n' $a >"$work/bad"
expect "a line that is no problem is named" 1 'bad, line 2: num_heads=0: num_heads is 0' "$attune" warm "$work/bad"
printf '# of another version\r\n%s,frobs=1\n%s # again\n\n  %s\nnum_heads=2,seq_' $b $a $b >"$work/bad"
expect "those that can be read are compiled" 1 '^2 kernels: .* 0 failed, 0 left' "$attune" warm "$work/bad"
[ "$(wc -l <"$work/stderr")" -eq 3 ] && grep -q 'not problems: 2$' "$work/stderr"
report $? "and the others counted"
expect "in JSON, too" 1 '"damaged_lines": 2' "$attune" warm --json "$work/bad"
head -c 2000 "$attune" | od -An -tx1 -v | tr -d ' ' >"$work/noise"
"$attune" warm "$work/noise" >"$work/stdout" 2>"$work/stderr"
[ $? -eq 1 ] && [ "$(wc -l <"$work/stderr")" -eq 21 ] && tail -n 1 "$work/stderr" | grep -q 'this is not a manifest'
report $? "what is no manifest is not read to its end"
expect "problems that share a kernel" 0 \
    '^1 kernel: 1 compiled, 0 cached already, 0 failed, 0 left; 2 more problems share them' "$attune" warm \
    num_heads=1,seq_q=77,head_dim=8 \
    num_heads=2,seq_q=77,head_dim=8 batch=3,num_heads=2,seq_q=77,head_dim=8
printf '\n# nothing\n' >"$work/empty"
refuse "a manifest without problems" 'names no problem' "$attune" warm "$work/empty"
refuse "a manifest that is missing" 'none' "$attune" warm "$work/none"
ATTUNE_CACHE_DIR=$work/small expect "a full disk" 1 'small could not be written, so some compiled' bash -c \
    'ulimit -f 1; trap "" XFSZ; "$@" 2>&1 | cat; exit "${PIPESTATUS[0]}"' - "$attune" warm \
    num_heads=2,seq_q=4,head_dim=64
expect "once there is room" 0 '1 compiled, 0 cached' "$attune" warm --cache-dir="$work/small" \
    num_heads=2,seq_q=4,head_dim=64
refuse "a cache that is off" 'the disk cache is off' env ATTUNE_CACHE_DIR= "$attune" warm $a

# Interrupted: whole entries are there, and the same command goes on.
seq -f 'num_heads=1,seq_q=%g,head_dim=24' 200 >"$work/many"
"$attune" warm --cache-dir="$work/late" --jobs=1 "$work/many" >"$work/stdout" 2>"$work/stderr" </dev/null &
pid=$!
has_some() { ls "$work/late/"*.attune >"$work/none" 2>&1; }
soon has_some
kill -TERM $pid
wait $pid
[ $? -eq 1 ] && grep -q '^200 kernels: .* [1-9][0-9]* left' "$work/stdout" &&
    grep -q 'interrupted with .* left; the same' "$work/stderr"
report $? "SIGTERM ends warming with a report"
expect "the rest is done later" 0 '^200 kernels: .*, [1-9][0-9]* cached already, 0 failed, 0 left' "$attune" warm \
    --cache-dir="$work/late" "$work/many"
expect "no manifest" 2 'MANIFEST is needed' "$attune" warm
echo "1..$number"
