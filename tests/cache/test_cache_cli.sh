#!/usr/bin/env bash
# attune cache: why, audit, gc, export, import, and the read-only base. Needs ATTUNE, the command.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/cli.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
attune=$ATTUNE
a=num_heads=2,seq_q=4,head_dim=8
b=num_heads=2,seq_q=5,seq_kv=4,head_dim=8
c=num_heads=2,seq_q=6,seq_kv=4,head_dim=8
export ATTUNE_CACHE_DIR=$work/cache
unset ATTUNE_CACHE_BASE ATTUNE_MACHINE
count() { find "$1" -name '*.attune' | wc -l; }
holds() { [ "$(count "$1")" -eq "$2" ]; report $? "$3"; }

# Why.
expect "an empty cache explains itself" 0 'there are no kernels' "$attune" cache why $a
"$attune" warm $a $b >"$work/stdout" 2>"$work/stderr"
expect "what is cached" 0 "^in $work/cache/[0-9a-f]{32}-[a-z0-9-]+\.attune" "$attune" cache why $a
expect "a miss names the field" 0 '^seq_q +[45] +9$' "$attune" cache why num_heads=2,seq_q=9,seq_kv=4,head_dim=8
expect "and the nearest kernel" 0 '^nearest of 2 kernels: [0-9a-f]{32}-[a-z0-9-]+\.attune in ' "$attune" cache why $c
expect "an explicit schedule" 0 '^schedule: an explicit .*; one that the caller left open is not$' "$attune" cache why \
    $a --schedule=kv_tile=8
# Whether code is for x86-64 anyway, or this CPU does not run it.
has_one_isa() { "$attune" info | grep -Eq '^isa +x86-64$' || ! can_run x86-64; }
if has_one_isa; then
    skip "another instruction set" "this CPU has one only"
else
    expect "another instruction set" 0 '^isa: .*another instruction set' "$attune" cache why --isa=x86-64 $a
fi
usual=num_heads=2,seq_q=90,seq_kv=9,head_dim=64
expect "tier 0 has a kernel" 0 '^tier 0 computes it where .* by its kernel f32_64_many_all$' "$attune" cache why $usual
expect "as JSON, too" 0 '"tier0": "f32_64_many_all"' "$attune" cache why --json $usual
# Its code is of another problem, whose order of sums the interpreter follows.
make_npy "$work/q8.npy" '<f4' False '(8, 1, 64)' 2048
make_npy "$work/k2.npy" '<f4' False '(2, 100, 64)' 51200
expect "tier 0 has the bits of the interpreter" 0 "the same bits" env ATTUNE_CODEGEN=/none "$attune" run \
    window_left=20 --check --cache-dir= --q "$work/q8.npy" --k "$work/k2.npy" --v "$work/k2.npy"
grep -q 'from tier 0' "$work/stdout"
report $? "and computes a step's grouped heads and window"
expect "none for head_dim 8" 0 '"tier0": null' "$attune" cache why --json ${usual%64}8
expect "as JSON" 0 '"field": "is_causal"' "$attune" cache why $a,is_causal=1 --json
expect "what is cached, as JSON" 0 '"cached": true' "$attune" cache why $b --json
refuse "a problem that is none" 'seq_q is not given, or 0' "$attune" cache why num_heads=2,seq_q=0,head_dim=8
refuse "a schedule that is none" 'lanes' "$attune" cache why $a --schedule=lanes=3
holds "$work/cache" 2 "asking compiles nothing"
"$attune" compile $a --schedule=kv_tile=8 --cache-dir="$work/explicit" >"$work/stdout" 2>"$work/stderr"
expect "ls shows an explicit schedule" 0 ' num_heads=2,seq_q=4,.* \| strategy=.*kv_tile=8' "$attune" cache ls \
    --cache-dir="$work/explicit"
expect "and no chosen one" 0 ' num_heads=2,seq_q=4,seq_kv=4,head_dim=8$' "$attune" cache ls

# Kernels in loop IR.
echo 'kernel @ones (o: f32[n] out, n: idx) { assume n >= 0 parallel for i in 0..n { o[i] = 1.0 } }' >"$work/ones.air"
ones() { env "$@" "$attune" ir "$work/ones.air" --arg n=3 --cache-dir="$work/ir"; }
expect "a kernel in loop IR" 0 '^o: f32 \(3\S* = 1 1 1$' ones
expect "is compiled once" 0 '^o: f32 \(3\S* = 1 1 1$' ones ATTUNE_STRICT=1
expect "listed by its name" 0 ' @ones$' "$attune" cache ls --cache-dir="$work/ir"
expect "and compiled anew by an audit" 0 '^1 of 1 kernel compiled anew: 1 the same' "$attune" cache audit \
    --cache-dir="$work/ir"
expect "which why knows" 0 ' is cached$' "$attune" cache why "$work/ones.air" --cache-dir="$work/ir"
sed 's/= 1\.0/= 2.0/' "$work/ones.air" >"$work/twos.air"
expect "and from which it tells another text" 0 '^ir +o\[i\] = 0x1p\+0 +o\[i\] = 0x1p\+1$' "$attune" cache why \
    "$work/twos.air" --cache-dir="$work/ir"
refuse "a file with a schedule" 'a file of loop IR has no schedule' "$attune" cache why "$work/ones.air" \
    --schedule=kv_tile=8
expect "a problem differs from it in the operator" 0 '^operator +ir +attention$' "$attune" cache why $a \
    --cache-dir="$work/ir"

# Audit.
expect "compiling anew gives the same" 0 '^2 of 2 kernels compiled anew: 2 the same, 0 different' "$attune" cache audit
expect "a sample" 0 '^1 of 2 kernels .* \(--seed=7\)$' "$attune" cache audit --sample=1 --seed=7
first=$("$attune" cache audit --sample=1 --seed=7 --json | grep '"file"')
[ "$first" = "$("$attune" cache audit --sample=1 --seed=7 --json | grep '"file"')" ] && [ -n "$first" ]
report $? "a seed chooses the same"

seq -f 'num_heads=1,seq_q=%g,head_dim=24' 200 >"$work/many"
"$attune" warm --cache-dir="$work/large" "$work/many" >"$work/stdout" 2>"$work/stderr"
"$attune" cache audit --cache-dir="$work/large" --sample=200 >"$work/stdout" 2>"$work/stderr" </dev/null &
pid=$!
soon catches $pid TERM
kill -TERM $pid
wait $pid
[ $? -eq 1 ] && grep -Eq '^[0-9]+ of 200 kernels compiled anew: ([0-9]+) the same, 0 different' "$work/stdout" &&
    grep -Eq 'interrupted: [1-9][0-9]* of a sample of 200 were not' "$work/stderr"
report $? "an audit that is interrupted says how far it came"

# Export, import.
expect "exporting" 0 ': 2 new kernels .* 0 known, 0 damaged' "$attune" cache export "$work/out"
expect "exporting again" 0 ': 0 new kernels .* 2 known' "$attune" cache export "$work/out"
expect "importing" 0 '"new": 2' env ATTUNE_CACHE_DIR="$work/fresh" "$attune" cache import --json "$work/out"
expect "what was imported is found" 0 'from +the disk cache' env ATTUNE_STRICT=1 ATTUNE_CACHE_DIR="$work/fresh" \
    "$attune" compile $a
cp -r "$work/out" "$work/partly"
truncate -s 200 "$(find "$work/partly" -name '*.attune' | head -n 1)"
expect "a damaged file is left out" 0 ': 1 new kernel .* 1 damaged' env ATTUNE_CACHE_DIR="$work/fresh2" "$attune" \
    cache import "$work/partly"
holds "$work/fresh2" 1 "and the other one is there"
expect "an audit tells of damaged files" 1 '^1 of 1 kernel compiled anew: 1 the same, 0 different; 1 more damaged' \
    "$attune" cache audit --cache-dir="$work/partly"
refuse "importing from nowhere" "$work/none cannot be opened: No such file" "$attune" cache import "$work/none"
refuse "exporting to where nothing can be made" '/proc/none/x cannot be made' "$attune" cache export /proc/none/x
refuse "exporting into a file" 'README.md cannot be opened' "$attune" cache export "$PWD/README.md"
cp -r "$work/out" "$work/shared" && chmod 777 "$work/shared"
refuse "importing what others can write" 'can be written by others' "$attune" cache import "$work/shared"
full() { (trap '' XFSZ && ulimit -f 0 && "$attune" cache export "$work/full") 2>&1 | cat; }
expect "exporting to a full disk" 0 'full cannot be written: .* \(0 files were copied before\)' full
holds "$work/full" 0 "leaves nothing half"
if [ "$(id -u)" -ne 0 ]; then
    mkdir -m 500 "$work/readonly"
    refuse "exporting without permission" 'cannot be written: Permission denied' "$attune" cache export "$work/readonly"
    mkdir -m 000 "$work/closed"
    refuse "importing without permission" 'cannot be opened: Permission denied' "$attune" cache import "$work/closed"
fi

# The base.
export ATTUNE_CACHE_DIR=$work/own ATTUNE_CACHE_BASE=$work/out
expect "a kernel from the base" 0 'from +the disk cache' env ATTUNE_STRICT=1 "$attune" compile $a
holds "$work/own" 0 "which is not copied"
expect "without a directory to write to" 0 'from +the disk cache' env ATTUNE_STRICT=1 ATTUNE_CACHE_DIR= "$attune" \
    compile $a
expect "named by an option" 0 'from +the disk cache' env -u ATTUNE_CACHE_BASE ATTUNE_STRICT=1 "$attune" compile \
    --cache-dir= \
    --cache-base="$work/out" $a
expect "which overrides the environment" 1 'ATTUNE_STRICT' env ATTUNE_STRICT=1 "$attune" compile --cache-dir= \
    --cache-base= $a
expect "a new one goes elsewhere" 0 'from +the compiler' "$attune" compile $c
[ "$(count "$work/own")" -eq 1 ] && [ "$(count "$work/out")" -eq 2 ]
report $? "and the base stays as it is"
expect "ls says which is where" 0 '^[0-9a-f]{32}-[a-z0-9-]+\.attune +base ' "$attune" cache ls
expect "as JSON" 0 "\"directory\": \"$work/out\"" "$attune" cache ls --json
expect "ls of the base alone" 0 "^2 kernels, .* in the base $work/out" env ATTUNE_CACHE_DIR= "$attune" cache ls
expect "why, too" 0 "^in $work/out/" "$attune" cache why $a
expect "clear leaves the base alone" 0 '^1 kernel removed' "$attune" cache clear
expect "info names it" 0 "^base +$work/out" "$attune" info
refuse "clearing a base" 'the disk cache is off' env ATTUNE_CACHE_DIR= "$attune" cache clear
refuse "importing into a base" 'the disk cache is off' env ATTUNE_CACHE_DIR= "$attune" cache import "$work/partly"
expect "a base that others can write" 0 'warning: .*base.*can be written by others' env \
    ATTUNE_CACHE_BASE="$work/shared" "$attune" cache ls
expect "a base that is missing" 0 'warning: .*none cannot be opened' env ATTUNE_CACHE_BASE="$work/none" "$attune" \
    cache ls
expect "info says so" 0 "^base +not used: the directory $work/none cannot be opened: No such file" \
    env ATTUNE_CACHE_BASE="$work/none" "$attune" info
expect "as JSON" 0 "\"cache_base_refusal\": \"the directory $work/none cannot be opened: No such file" \
    env ATTUNE_CACHE_BASE="$work/none" "$attune" info --json
expect "ls as JSON" 0 '"cache_base_refusal": "the directory ' env ATTUNE_CACHE_BASE="$work/none" "$attune" cache ls \
    --json
expect "a directory that is none, too" 0 '^cache +off: the cache directory /dev/null cannot be opened' \
    env ATTUNE_CACHE_DIR=/dev/null "$attune" info
expect "one that is switched off is just that" 0 '^cache +off$' env ATTUNE_CACHE_DIR= "$attune" info
expect "a damaged base" 1 ' 1 damaged in ' env ATTUNE_CACHE_BASE="$work/partly" "$attune" cache verify
unset ATTUNE_CACHE_BASE

# Collecting.
export ATTUNE_CACHE_DIR=$work/cache
expect "nothing to collect" 0 '^0 kernels .* removed, 2 kernels' "$attune" cache gc
touch -d '2 days ago' "$(find "$work/cache" -name '*.attune' | head -n 1)"
: >"$work/cache/tmp-1-1" && touch -d '2 days ago' "$work/cache/tmp-1-1"
size=$(find "$work/cache" -name '*.attune' -printf '%s\n' | awk '{ s += $1 } END { print s - 1 }')
expect "the least recently used goes, and the orphan" 0 '"orphans": 1' "$attune" cache gc --max-bytes="$size" --json
holds "$work/cache" 1 "one stays"
expect "a cap of nothing" 0 '^1 kernel .* 0 kernels' "$attune" cache gc --max-bytes=0
expect "a large cap" 0 '^0 kernels' "$attune" cache gc --max-bytes=2G
expect "nothing to audit" 0 '^0 of 0 kernels' "$attune" cache audit

# A file that has the name of an entry: verify and export agree, warming heals, and then nothing need be compiled.
export ATTUNE_CACHE_DIR=$work/heals
"$attune" warm $a $b >"$work/stdout" 2>"$work/stderr"
name_of() { "$attune" cache why --json "$1" | sed -n 's/.*"file": "\(.*\)",*/\1/p'; }
first=$work/heals/$(name_of $a) second=$work/heals/$(name_of $b)
plant() {
    rm -f "$first"
    case $1 in
    "another kernel's entry") cp "$second" "$first" ;;
    "a directory") mkdir "$first" ;;
    "a FIFO") mkfifo "$first" ;;
    "a link") ln -s "$second" "$first" ;;
    esac
}
for kind in "another kernel's entry" "a directory" "a FIFO" "a link"; do
    plant "$kind"
    expect "verify finds $kind" 1 '^2 kernels, .* 1 damaged' timeout 20 "$attune" cache verify
    expect "export, too" 0 ': 1 new kernel .* 1 damaged' timeout 20 "$attune" cache export "$work/heals-$number"
    expect "warming replaces $kind" 0 '^1 kernel: 1 compiled, 0 cached already, 0 failed' timeout 20 "$attune" warm $a
    expect "and it is found" 0 'from +the disk cache' env ATTUNE_STRICT=1 "$attune" compile $a
    expect "whole" 0 '^2 kernels, .* 0 damaged' "$attune" cache verify
done

# What a user may not read. Root may, unless it gives that up.
obeying=()
[ "$(id -u)" -ne 0 ] || obeying=(setpriv --bounding-set=-dac_override,-dac_read_search)
chmod 000 "$second"
if "${obeying[@]}" true 2>/dev/null && ! "${obeying[@]}" cat "$second" >/dev/null 2>&1; then
    expect "a file that may not be read" 1 '^2 kernels, .* 1 damaged' "${obeying[@]}" "$attune" cache verify
    expect "and why" 1 'the file cannot be read: Permission denied' "${obeying[@]}" "$attune" cache verify
    expect "is damage for export, too" 0 ': 1 new kernel .* 1 damaged' "${obeying[@]}" "$attune" cache export \
        "$work/heals-000"
    expect "warming replaces it" 0 '^1 kernel: 1 compiled' "${obeying[@]}" "$attune" warm $b
    expect "so that it is found" 0 'from +the disk cache' env ATTUNE_STRICT=1 "${obeying[@]}" "$attune" compile $b
    masked() { (umask 0777 && "${obeying[@]}" "$attune" warm "$@"); }
    expect "what cannot be read back has failed" 1 '^1 kernel: 0 compiled, 0 cached already, 1 failed, 0 left' masked $c
    expect "and is named" 1 "^attune: $c: compiled, but it cannot be read back from $work/heals" masked $c
    grep -q '"compiled": 0' <<<"$(masked $c --json 2>&1)"
    report $? "also in JSON"
else
    number=$((number + 1))
    echo "ok $number - a file that may not be read # SKIP permissions do not bind this user"
    chmod 600 "$second"
fi

# A file system that really is full, then one that is read-only.
small=$work/small-disk
on_full_disk() {
    mount -t tmpfs -o size=8k tmpfs "$small" && head -c 8192 /dev/zero >"$small/filler" 2>/dev/null
    export ATTUNE_CACHE_DIR=$small/cache
    mkdir -m 700 "$ATTUNE_CACHE_DIR" &&
        "$attune" compile $a && "$attune" tune --budget=0.1 $a
    ls -A "$ATTUNE_CACHE_DIR" | sed 's/^/left: /'
    mount -o remount,ro "$small" && "$attune" compile $b
}
mkdir "$small"
if unshare -m mount -t tmpfs tmpfs "$small" 2>/dev/null; then
    export -f on_full_disk
    export attune small a b
    expect "on a full disk a kernel compiles" 0 '^from +the compiler' unshare -m bash -c on_full_disk
    cat "$work/stdout" "$work/stderr" >"$work/full-disk"
    expect "tuning says why it cannot be kept" 0 'tuning.db could not be made: .*full' cat "$work/full-disk"
    ! grep -q '^left: ' "$work/full-disk"
    report $? "and nothing half is left"
    expect "so it does where nothing can be written" 0 'cannot be written: Read-only file system' cat "$work/full-disk"
else
    number=$((number + 1))
    echo "ok $number - on a full disk # SKIP this user may not mount one"
fi

# A link to a directory of one's own.
mkdir "$work/elsewhere" && ln -s elsewhere "$work/linked"
expect "through a link" 0 '1 compiled' env ATTUNE_CACHE_DIR="$work/linked" "$attune" warm $a
holds "$work/elsewhere" 1 "lies where it leads to"

# In order.
"$attune" warm --cache-dir="$work/many-entries" num_heads=2,seq_q={1,2,3,4,5,6,7,8},head_dim=8 >"$work/stdout" \
    2>"$work/stderr"
expect "ls" 0 '^8 kernels' "$attune" cache ls --cache-dir="$work/many-entries"
grep -oE '^[0-9a-f]{32}' "$work/stdout" | sort -c
report $? "is sorted"
expect "ls as JSON" 0 '"kernels": 8' "$attune" cache ls --json --cache-dir="$work/many-entries"
grep -oE '[0-9a-f]{32}-[a-z0-9-]+\.attune' "$work/stdout" | sort -c
report $? "is sorted, too"

# Tuning classes.
for class in zen3 zen4; do
    expect "the class of $class" 0 "^machine +$class \\(" env ATTUNE_MACHINE=$class "$attune" info
done
for what in explain "bench --samples=1 --threads=1"; do
    # shellcheck disable=SC2086 # words of $what are separate arguments
    ATTUNE_MACHINE=zen2 "$attune" $what $a >"$work/stdout" 2>"$work/stderr"
    grep -Eq '(family|part).*, zen2, ' "$work/stdout" && ! grep -Eq 'zen[1345]|lake|rapids|well' "$work/stdout"
    report $? "${what%% *} names the class in use, and no other"
done
refuse "a class that there is not" \
    'unknown ATTUNE_MACHINE "zen99"; there are: zen1, .*, and generic, which may be used on any CPU$' env \
    ATTUNE_MACHINE=zen99 "$attune" info
expect "CPUs can be told apart" 0 '"cpu_description": ".*(family|implementer)' "$attune" info --json
export ATTUNE_CACHE_DIR=$work/classes
ATTUNE_MACHINE=zen3 "$attune" warm $a >"$work/stdout" 2>"$work/stderr"
holds "$work/classes" 1 "an entry for zen3"
export ATTUNE_MACHINE=zen5
expect "is none for zen5" 0 '^machine +zen3 +zen5$' "$attune" cache why $a
expect "and would stand in" 0 "^zen3's kernel would be used" "$attune" cache why $a
expect "as JSON, too" 0 '"stand_in": "zen3"' "$attune" cache why --json $a
expect "no other kernel's does" 0 '"stand_in": null' "$attune" cache why --json $b
expect "it stands in" 0 'the kernel for zen3 is used' env ATTUNE_STRICT=1 "$attune" compile $a
expect "and says so" 0 '"machine": "zen3"' env ATTUNE_STRICT=1 "$attune" compile --json $a
expect "also without a code generator" 0 '"machine": "zen3"' env ATTUNE_CODEGEN=/nowhere "$attune" compile --json $a
expect "or with a worker that does not start" 0 '"machine": "zen3"' env ATTUNE_COMPILE=worker \
    ATTUNE_CODEGEN_WORKER=/bin/false \
    "$attune" compile --json $a
if has_one_isa; then
    skip "refused: another instruction set" "this CPU has one only"
else
    refuse "another instruction set" 'is not cached' env ATTUNE_STRICT=1 "$attune" compile --isa=x86-64 $a
fi
expect "who may compile does" 0 'the compiler' "$attune" compile $a
holds "$work/classes" 2 "and has an entry of its own"
expect "ls names both" 0 '"machine": "zen3"' "$attune" cache ls --json
expect "audit compiles both" 0 '^2 of 2 kernels compiled anew: 2 the same' "$attune" cache audit
expect "export counts other classes" 0 '2 new kernels .*, 1 for other tuning classes than zen5$' "$attune" cache \
    export "$work/out2"
expect "import, too" 0 '"other_class": 2' env ATTUNE_MACHINE=generic ATTUNE_CACHE_DIR="$work/fresh3" "$attune" cache \
    import --json "$work/out2"
unset ATTUNE_MACHINE
if ! "$attune" info | grep -qE '^runs .*avx'; then
    skip "the probe" "this CPU has no multiply-adds that it could measure"
else
    expect "the probe" 0 '^tuning class +[a-z]' "$attune" info --probe-machine
    expect "is kept beside the cache" 0 '^attune machine probe 1$' cat "$work/classes/machine-probe"
    expect "or told only" 0 '"kept": false' env ATTUNE_CACHE_DIR= "$attune" info --probe-machine --json
    grep -Eq '^features 0x[0-9a-f]+$' "$work/classes/machine-probe"
    report $? "with the features of the CPU"
    mkdir -p "$work/no-place/machine-probe/x"
    expect "that it could not be kept" 1 '^attune: .*could not be stored in .*no-place: ' \
        env ATTUNE_CACHE_DIR="$work/no-place" "$attune" info --probe-machine
    grep -Eq '^tuning class +[a-z]' "$work/stdout"
    report $? "is told after the class"
    expect "verify does not mind it" 0 '^2 kernels, .* 0 damaged' "$attune" cache verify
fi

# A directory whose name is no UTF-8.
odd=$work/$'caf\xe9'
"$attune" warm --cache-dir="$odd" $a >"$work/stdout" 2>"$work/stderr"
expect "its name in JSON" 0 'caf\?"' "$attune" cache ls --json --cache-dir="$odd"
expect "verified, too" 0 '"damaged": 0' "$attune" cache verify --json --cache-dir="$odd"
expect "its name in the JSON of other actions, too" 0 'caf\?"' "$attune" cache gc --json --cache-dir="$odd"
expect "and of info" 0 'caf\?"' "$attune" info --json --cache-dir="$odd"

# Usage.
expect "why of two problems" 2 "why takes one PROBLEM, but 'seq_q=2' follows 'seq_q=1'" \
    "$attune" cache why seq_q=1 seq_q=2
expect "an action that is misspelt" 2 "is needed, not 'verfy'; did you mean verify\\?" \
    "$attune" cache verfy
expect "why of nothing" 2 'why needs a PROBLEM' "$attune" cache why
expect "export to nowhere" 2 'export needs a DIR' "$attune" cache export
expect "two directories" 2 "'b' follows 'a'" "$attune" cache export a b
expect "a cap that is none" 2 "not '1T'" "$attune" cache gc --max-bytes=1T
expect "a negative cap" 2 "not '-1'" "$attune" cache gc --max-bytes=-1
expect "a cap beyond all" 2 "not '9999999999G'" "$attune" cache gc --max-bytes=9999999999G
expect "a cap for ls" 2 'for gc, not for ls' "$attune" cache ls --max-bytes=1
expect "a seed for why" 2 'for audit, not for why' "$attune" cache why $a --seed=1
expect "a schedule for ls" 2 'for why, not for ls' "$attune" cache ls --schedule=lanes=8
expect "help" 0 '^  why +say why the kernel of a problem is not found' "$attune" cache --help
echo "1..$number"
