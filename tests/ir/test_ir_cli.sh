#!/usr/bin/env bash
# Files of loop IR with numbers that can be chosen: attune ir --set, attune tune --ir. Needs ATTUNE, the command.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/cli.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
attune=$ATTUNE
export ATTUNE_CACHE_DIR=$work/cache
matmul=$work/matmul_tiled.air
without_fma examples/ir/matmul_tiled.air >"$matmul"
sizes=(--arg m=5 --arg n=13 --arg k=64)
make_npy "$work/a.npy" '<f4' False '(5, 64)' 1280
make_npy "$work/b.npy" '<f4' False '(64, 13)' 3328
multiply() { "$attune" ir $matmul --arg a="$work/a.npy" --arg b="$work/b.npy" "${sizes[@]}" "$@"; }

# The numbers.
expect "the usual numbers" 0 'same bits' multiply --check --out c="$work/c.npy"
for numbers in "rows=8" "rows=1 vectors=3" "rows=5"; do
    set=()
    for number in $numbers; do set+=(--set "$number"); done
    expect "other numbers: $numbers" 0 'same bits' multiply --check --out c="$work/other.npy" "${set[@]}"
    same "have the same bits" "$work/c.npy" "$work/other.npy"
done
expect "they are in the text" 0 'f32x4\[4, 2\]' "$attune" ir $matmul --emit=ir --set lanes=4
expect "each is a kernel of its own" 0 '^4 kernels' "$attune" cache ls
expect "cached" 0 '^c: f32' env ATTUNE_STRICT=1 "$attune" ir $matmul --arg a="$work/a.npy" --arg b="$work/b.npy" \
    "${sizes[@]}" --set rows=8
expect "listed by the kernel's name" 0 ' ir_file\.1 matmul_tiled [0-9a-f]{32}$' "$attune" cache ls
[ "$(grep -cE ' \| rows=[158],vectors=[23],lanes=8$' "$work/stdout")" -eq 3 ]
report $? "with the numbers that were set"
expect "why knows it" 0 ' is cached$' "$attune" cache why $matmul
expect "and with other numbers" 0 ' is cached$' "$attune" cache why $matmul --set rows=8
# Which of the four is the nearest depends on when they were used last.
expect "and which are not there" 0 '^schedule +(rows=[158]|chosen by attune).* rows=7' \
    "$attune" cache why $matmul --set rows=7
cp $matmul "$work/a=b.air"
expect "a path may have an equals sign" 0 ' is cached$' "$attune" cache why "$work/a=b.air" --set rows=5
refuse "numbers of a problem" 'set is for a file of loop IR, and there is no file seq_q=1' "$attune" cache why seq_q=1 \
    --set rows=7
expect "numbers for another action" 2 'set is for why, not for ls' "$attune" cache ls --set rows=7
sed 's/rows = 4/rows = 3/' $matmul >"$work/other.air"
file='ir_file\.1 matmul_tiled [0-9a-f]{32}'
expect "and names another file" 0 "^problem +$file +$file\$" "$attune" cache why "$work/other.air"
expect "and compiled anew by an audit" 0 '^4 of 4 kernels compiled anew: 4 the same' "$attune" cache audit

for blank in 'param\tone = 1' 'param  one=1 in\t1'; do
    printf '%b\nkernel @k (y: f32[1] out) { parallel for i in 0..1 { y[i] = $one.5 } }\n' "$blank" >"$work/blanks.air"
    expect "any blanks: '${blank}'" 0 '^y: f32 \(1\S* = 1\.5$' "$attune" ir "$work/blanks.air"
done

# Tuning: an empty loop that runs as often as `rounds` says.
cat >"$work/rounds.air" <<'AIR'
# y = x
param rounds = 2000 in 1, 2000 # as often
kernel @rounds (x: f32[n] in, y: f32[n] out, n: idx) {
  assume n >= 0
  parallel for i in 0..n {
    alloc a: f32[1] reg
    a[0] = x[i]
    for t in 0..$rounds { a[0] = max(abs(a[0]) - 1.0, a[0]) }
    y[i] = a[0]
  }
}
AIR
expect "tuning takes the faster number" 0 '^  schedule +rounds=1$' "$attune" tune --ir "$work/rounds.air" --budget=20 \
    --arg n=64
make_npy "$work/x.npy" '<f4' False '(64,)' 256
has_tuned_entry() { # --json: the schedule of the kernel that was made last
    expect "$1" 0 '^y: f32' "$attune" ir "$work/rounds.air" --arg x="$work/x.npy" --arg n=64
    expect "with this number" 0 '"schedule": "rounds=1"' "$attune" cache ls --json
}
has_tuned_entry "from then on the file has that"
"$attune" cache clear >"$work/stdout"
has_tuned_entry "also when the entry is lost"
expect "JSON" 0 '"schedule": "rounds=1"' "$attune" tune --ir "$work/rounds.air" --budget=5 --arg n=64 --json

cat >"$work/scaled.air" <<'AIR'
param factor = 1 in 1, 2 # with 1 calls after calls change nothing
kernel @scaled (x: f32[n] inout, n: idx) {
  assume n >= 0
  parallel for i in 0..n { x[i] = x[i] * $factor.0 }
}
AIR
expect "a number that changes what is computed is wrong, also of an inout buffer" 1 'left out: 1, the first factor=2' \
    "$attune" tune --ir "$work/scaled.air" --budget=5 --arg n=8
sed 's/x: f32\[n\]/x: f32[n * $factor]/' "$work/scaled.air" >"$work/shaped.air"
expect "so is one that changes parameters" 1 'other parameters or gives other bits .*: 1, the first factor=2' \
    "$attune" tune --ir "$work/shaped.air" --budget=5 --arg n=8

odd=$work/$'caf\xe9.air'
cp "$work/rounds.air" "$odd"
expect "JSON about a file whose name is no UTF-8" 0 'caf\?\.air"' "$attune" tune --ir "$odd" --budget=1 --arg n=64 \
    --json

# Refusals.
refuse "a parameter that is none" 'set tile=3: the file has no .param. of this name' multiply --set tile=3
refuse "a number that is none" 'set rows=x: that is no whole number' multiply --set rows=x
without_fma examples/ir/matmul.air >"$work/matmul.air"
refuse "a file without parameters" "there is nothing to choose" "$attune" tune --ir "$work/matmul.air" --arg m=1 \
    --arg n=1 --arg k=1
printf 'param a = 1\nkernel @k (x: i32[n] in, y: i32[n] out, n: idx) { parallel for i in 0..n { y[i] = x[i] } }' \
    >"$work/integers.air"
refuse "an input of integers" 'input x: i32 needs a file' "$attune" tune --ir "$work/integers.air" --arg n=1
sed -i 's/y: i32\[n\] out/y: i32[n] inout/; s/x: i32\[n\] in,//; s/= x/= y/' "$work/integers.air"
refuse "an inout buffer of integers" 'input y: i32 needs a file' "$attune" tune --ir "$work/integers.air" --arg n=1
bad() { # NAME LINE PATTERN
    printf '\n%s\nkernel @k (y: f32[1] out) { parallel for i in 0..1 { y[i] = 1.0 } }\n' "$2" >"$work/bad.air"
    refuse "$1" "bad\.air, line 2: $3" "$attune" ir "$work/bad.air"
}
bad "no name" 'param = 3' 'the name is missing'
bad "no number" 'param a =' 'a number is missing'
bad "no equals sign" 'param a 3' "'=' is missing"
bad "a number that is too large" 'param a = 3000000000' 'a number is out of range'
bad "a list without the usual number" 'param a = 3 in 1, 2' 'the usual number is not one of those'
bad "a value twice" 'param a = 1 in 1, 1' 'a value is given twice'
bad "a rest" 'param a = 1 2' 'there is text after the last number'
bad "a number in the next line" $'param a =\n1' 'a number is missing'
bad "a number of the list in the next line" $'param a = 1 in 1,\n2' 'a number is missing'
bad "numbers that are one word with 'in'" 'param a = 1 in1,2' 'there is text after the last number'
printf 'param a = 1\n\nkernel @k (y: f32[1] out) {\n parallel for i in 0..1 { y[i] = $b }\n}\n' >"$work/bad.air"
refuse "a name without a parameter" '4:34: ' "$attune" ir "$work/bad.air"
expect "arguments without a file" 2 'needs --ir' "$attune" tune num_heads=1,seq_q=8,head_dim=8 --arg n=1
expect "sizes of a problem with a file" 2 'sizes is for problems; the scalars of --ir are given by --arg' \
    "$attune" tune --ir $matmul "${sizes[@]}" --sizes=seq_q=3
expect "sizes with nothing to tune" 2 'sizes is for problems$' "$attune" tune --export "$work/results" --sizes=seq_q=3
echo "1..$number"
