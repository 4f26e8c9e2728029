#!/usr/bin/env bash
# Bundles as users have them: C99 and C++11, static and shared, musl, seccomp, another architecture; notes, symbols and
# sizes of what is linked; refusals of manifests. Needs ATTUNE, the command, and CC.
set -u
[ -z "${SANITIZE:-}" ] || { echo "1..0"; exit 77; } # programs without attune have nothing that a sanitizer would see
cd "$(dirname "$0")/../.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
touch "$work/stdout" "$work/stderr"
. tests/support/cli.sh
CC=${CC:-cc}
export ATTUNE_CACHE_DIR=
one="attn: num_heads=4,seq_q=20,seq_kv=45,head_dim=16"
two="attn: num_heads=4,seq_q=dynamic,seq_kv=dynamic,head_dim=16,is_causal=1"
case $(uname -m) in
x86_64) targets=avx512_bf16,avx512,avx2,x86-64 ;;
*) targets=aarch64 ;;
esac
# quiet NAME COMMAND…: it succeeds and says nothing.
quiet() {
    local name=$1
    shift
    "$@" >"$work/stdout" 2>"$work/stderr" && [ ! -s "$work/stdout" ] && [ ! -s "$work/stderr" ]
    report $? "$name"
}
bundle() { "$ATTUNE" bundle -o "$work/lib$1.a" --header "$work/$1.h" --name "$1" --targets "$3" "$2"; }
quiet "a bundle is written" bundle one "$one" "$targets"
quiet "another one" bundle two "$two" "$targets"

# ---- Programs ----

read -ra names <<<"${targets//,/ }"
# build NAME COMPILER…: tests/bundle/user.c and both bundles become a program.
build() {
    local name=$1
    shift
    quiet "$name: it compiles" "$@" -O1 -I"$work" -o "$work/$name" -L"$work" -lone -ltwo
}
warnings=(-Wall -Wextra -Werror -pedantic)
build c99 "$CC" -std=c99 "${warnings[@]}" tests/bundle/user.c
"$work/c99" "${names[@]}" >"$work/bits" 2>&1
report $? "it runs"
"$CC" -std=c99 -O1 -I"$work" -c -o "$work/user.o" tests/bundle/user.c
# as_c99 NAME: the program prints the same.
as_c99() {
    "$work/$1" "${names[@]}" >"$work/stdout" 2>"$work/stderr" && cmp -s "$work/stdout" "$work/bits"
    report $? "$1: equal bits"
}
grep -q ' 0 ' "$work/bits" && ! grep -q ' 0 00000000$' "$work/bits"
report $? "a target runs here"
if command -v "${CXX:-c++}" >/dev/null; then
    build c++11 "${CXX:-c++}" -x c++ -std=c++11 "${warnings[@]}" tests/bundle/user.c -x none
    as_c99 c++11
else
    skip c++11 "there is no C++ compiler"
fi
build static "$CC" -std=c99 -static tests/bundle/user.c
as_c99 static
build filtered "$CC" -std=gnu99 -DFILTERED tests/bundle/user.c
as_c99 filtered
build filtered-static "$CC" -std=gnu99 -static -DFILTERED tests/bundle/user.c
as_c99 filtered-static
if command -v musl-gcc >/dev/null; then
    build musl musl-gcc -std=c99 -static tests/bundle/user.c
    as_c99 musl
else
    skip musl "musl-gcc was not found (Debian: musl-tools)"
fi
for name in one two; do
    "$ATTUNE" bundle --shared -o "$work/lib$name.so" --header "$work/$name.h" --name $name --targets "$targets" \
        "${!name}" >"$work/stdout" 2>"$work/stderr"
    report $? "lib$name.so is linked"
done
printf '#!/bin/sh\nkill -INT $PPID\nsleep 0.1\nexit 1\n' >"$work/ld" && chmod +x "$work/ld" && mkdir "$work/interrupted"
LD=$work/ld refuse "Ctrl-C while the linker works" "ld could not link the library" "$ATTUNE" bundle --shared \
    -o "$work/interrupted/libone.so" --header "$work/interrupted/one.h" --name one --targets "$targets" "$one"
[ -z "$(ls -A "$work/interrupted")" ]
report $? "leaves no archive"
build shared "$CC" -std=c99 -Wl,-rpath,"$work" tests/bundle/user.c
as_c99 shared

"$ATTUNE" bundle -o "$work/libmodel.a" --header "$work/model.h" --name model --targets "$targets" \
    "minilm: num_heads=12,seq_q=217,seq_kv=217,head_dim=32" &&
    "$CC" -std=gnu11 "${warnings[@]}" -I"$work" examples/bundle.c "$work/libmodel.a" -lm -o "$work/minilm"
report $? "examples/bundle.c compiles"
expect "it computes MiniLM's attention" 0 'largest error [0-9.]+e-0[6-9]' "$work/minilm" examples/minilm

# Tensors of functions may be called as C, C++ and the struct will have it.
awk '/^named:/' tests/data/bundle.txt >"$work/named"
printf '#include "words.h"\nwords_named_args a = WORDS_NAMED_ARGS;\nint main(void) { return a.batch != 1; }\n' \
    >"$work/words.c"
bundle words "$work/named" "${targets%%,*}" && for standard in c99 gnu11 c++11; do
    compiler=$CC language=c
    case $standard in c++*) compiler=${CXX:-c++} language=c++ ;; esac
    command -v "$compiler" >/dev/null || continue
    quiet "tensors called like words of $standard" "$compiler" -x $language -std=$standard "${warnings[@]}" \
        -I"$work" -o "$work/words" "$work/words.c"
    "$work/words"
    report $? "$standard: their struct is initialised"
done

# Targets of two architectures give two libraries and one header, as if each were made alone.
mkdir "$work/apart" "$work/mixed"
mixed() { "$ATTUNE" bundle -o "$work/$1/libone.a" --header "$work/$1/one.h" --name one --targets "$2" "$one"; }
quiet "targets of two architectures" mixed mixed avx2,aarch64,x86-64
quiet "those of one of them" mixed apart avx2,x86-64
same "have the library of the given name" "$work/mixed/libone.a" "$work/apart/libone.a"
quiet "and those of the other" mixed apart aarch64
same "one with its name" "$work/mixed/libone-aarch64.a" "$work/apart/libone.a"
same "whose header is the same" "$work/mixed/one.h" "$work/apart/one.h"
[ "$(ls "$work/mixed" | wc -l)" = 3 ]
report $? "nothing else is written"
refuse "two architectures and one linker" 'two architectures, but LD names one linker, ld: make one bundle for each' \
    env LD=ld "$ATTUNE" bundle --shared -o "$work/none.so" --header "$work/none.h" --name one \
    --targets avx2,aarch64 "$one"
[ ! -e "$work/none.so" ] && [ ! -e "$work/none.h" ]
report $? "nothing is written"
refuse "a library in the place of the header" 'libone-aarch64.a is named both as a library and as the header' \
    "$ATTUNE" bundle -o "$work/libone.a" --header "$work/libone-aarch64.a" --name one --targets avx2,aarch64 "$one"
refuse "a target that neither has" "unknown ISA 'avx3'" mixed mixed aarch64,avx3

# With reproducible=1, targets with fused multiply-adds have equal bits: those of AVX2 are compared with AArch64's.
arm=${AARCH64_CC:-aarch64-linux-gnu-gcc}
if command -v "$arm" >/dev/null && command -v qemu-aarch64 >/dev/null && grep -q '^avx2 0 ' "$work/bits"; then
    for target in avx2 aarch64; do
        mkdir "$work/$target"
        for name in one two; do
            "$ATTUNE" bundle -o "$work/$target/lib$name.a" --header "$work/$target/$name.h" --name $name \
                --targets $target "${!name},reproducible=1"
        done
    done >"$work/stdout" 2>"$work/stderr"
    "$CC" -O1 -I"$work/avx2" tests/bundle/user.c -L"$work/avx2" -lone -ltwo -o "$work/here" &&
        "$arm" -O1 -static -I"$work/aarch64" tests/bundle/user.c -L"$work/aarch64" -lone -ltwo -o "$work/there"
    report $? "an archive of AArch64 is linked by its own compiler"
    expect "it runs there" 0 '^aarch64 0 ' qemu-aarch64 "$work/there" aarch64
    [ "$("$work/here" avx2 | cut -d' ' -f2-)" = "$(cut -d' ' -f2- "$work/stdout")" ]
    report $? "reproducible bits are those of AVX2"
    readelf -nW "$work/aarch64/libone.a" 2>/dev/null | grep -q 'AArch64 feature: BTI'
    report $? "its objects have BTI's note"
else
    skip "AArch64" "a cross compiler, qemu-user or AVX2 is missing"
fi

# ---- What is inside ----

nm -D --undefined-only "$work/libone.so" | awk '{print $NF}' | sed 's/@.*//' >"$work/stdout"
[ "$(cat "$work/stdout")" = memcpy ]
report $? "it needs memcpy alone"
nm -D --defined-only "$work/libone.so" | awk '{print $NF}' | LC_ALL=C sort >"$work/stdout"
! grep -v '^one_' "$work/stdout" >"$work/stderr" && grep -qx one_attn_execute "$work/stdout"
report $? "it exports the functions of the header"
nm "$work/static" | grep -Eq ' t one\.attn\.[a-z0-9_-]+\.phase0\.code$'
report $? "kernels have symbols"
readelf -sW "$work/static" | awk '$8 ~ /^one\.attn\..*\.phase0\.code$/ && ($4 != "FUNC" || $3 == 0)' >"$work/stdout"
[ ! -s "$work/stdout" ]
report $? "as functions of a size"
# spans: lines of BEGIN SIZE NAME in hexadecimal become BEGIN END NAME in decimal, in their order.
spans() {
    local begin bytes name
    while read -r begin bytes name; do
        printf '%d %d %s\n' "$((16#$begin))" "$((16#$begin + 16#$bytes))" "$name"
    done | sort -n
}
nm -S --defined-only "$work/libone.so" | awk '$4 ~ /^one\.attn\./ { print $1, $2, $4 }' | spans >"$work/symbols"
awk '$1 < end { print } { end = $2 }' "$work/symbols" >"$work/stdout"
[ -s "$work/symbols" ] && [ ! -s "$work/stdout" ]
report $? "none overlaps another"
readelf --debug-dump=frames "$work/libone.so" 2>/dev/null |
    sed -n 's/.* FDE .*pc=\([0-9a-f]*\)\.\.\([0-9a-f]*\)$/\1 \2/p' >"$work/frames"
while read -r begin end; do echo "$((16#$begin)) $((16#$end))"; done <"$work/frames" | LC_ALL=C sort >"$work/described"
awk '$3 ~ /\.code$/ { print $1, $2 }' "$work/symbols" | LC_ALL=C sort >"$work/named"
[ -s "$work/named" ] && [ -z "$(LC_ALL=C comm -23 "$work/named" "$work/described")" ]
report $? "each has the bytes of one function"
# Each record between the first and the last of them is of one function, or of landing pads, which lie side by side.
awk 'NR == FNR { begins[$1]; ends[$2]; if (NR == 1) first = $1; last = $2; next }
    $1 >= first && $2 <= last { n++; if (!($1 in begins && $2 in ends)) print } END { if (!n) print "none" }' \
    "$work/symbols" "$work/described" >"$work/stdout"
[ ! -s "$work/stdout" ]
report $? "and each function has a name"
if [ "$(uname -m)" = x86_64 ]; then
    expect "also what an entry calls" 0 ' one\.attn\.avx512\.helper0\.code$' cat "$work/symbols"
fi
for kind in -static -rdynamic; do
    "$CC" -std=gnu11 -O1 $kind -I"$work" -o "$work/unwind" tests/bundle/unwind.c -L"$work" -l:libone.a \
        >"$work/stdout" 2>&1
    report $? "unwind$kind: it compiles"
    for name in "${names[@]}"; do
        "$work/unwind" "$name"
        case $? in
        0) report 0 "unwind$kind: out of a kernel for $name" ;;
        77) ;;
        *) report 1 "unwind$kind: out of a kernel for $name" ;;
        esac
    done
done
readelf --debug-dump=frames "$work/libone.so" >"$work/stdout" 2>"$work/stderr"
[ ! -s "$work/stderr" ] && [ "$(grep -c ' FDE ' "$work/stdout")" -gt $((8 * ${#names[@]})) ]
report $? "debuggers read its unwind tables"
readelf -nW "$work/libone.so" >"$work/stdout" 2>&1
grep -Eq 'IBT, SHSTK|BTI' "$work/stdout"
report $? "the notes of protected branches are there"
readelf -lW "$work/static" >"$work/stdout"
grep GNU_STACK "$work/stdout" | grep -q 'RW ' && ! grep -q 'LOAD.*RWE' "$work/stdout"
report $? "neither the stack nor data is executable"
bundle one "$one" "$targets" && cp "$work/libone.a" "$work/again.a" && bundle one "$one" "$targets"
same "equal input gives an equal library" "$work/libone.a" "$work/again.a"
echo 'int main(void) { return 0; }' >"$work/empty.c"
"$CC" -O1 -static -o "$work/empty" "$work/empty.c" && "$CC" -O1 -static -I"$work" -o "$work/sized" tests/bundle/user.c \
    -L"$work" -l:libone.a -l:libtwo.a
strip "$work/empty" "$work/sized"
grown=$(($(stat -c %s "$work/sized") - $(stat -c %s "$work/empty")))
[ $grown -lt 600000 ] && [ $grown -gt 10000 ]
report $? "two kernels for all targets take $grown bytes of a static program"

# ---- Refusals ----

refuse "a name that is no identifier" 'a kernel is "2nd"; it must be a C identifier' \
    bundle one "2nd: seq_q=1,head_dim=8" avx2
refuse "a bundle's name" 'the bundle is "my-model"' "$ATTUNE" bundle -o "$work/x.a" --header "$work/x.h" \
    --name my-model seq_q=1,head_dim=8
printf 'a: seq_q=1,head_dim=8\na: seq_q=2,head_dim=8\n' >"$work/twice"
refuse "one name twice" 'two kernels are called "a"' bundle one "$work/twice" avx2
printf 'a: seq_q=1,head_dim=8\na_check: seq_q=2,head_dim=8\n' >"$work/clash"
refuse "names of functions that clash" '"a_check" and "a" would share a name' bundle one "$work/clash" avx2
printf 'Attn: seq_q=1,head_dim=8\nattn: seq_q=2,head_dim=8\n' >"$work/capitals"
refuse "names that differ in capitals" '"Attn" and "attn" differ in capitals alone' bundle one "$work/capitals" avx2
refuse "a name that the bundle has" 'no kernel can be called "use"' bundle one "use: seq_q=1,head_dim=8" avx2
refuse "an unknown target" "unknown ISA 'avx3'; there are: avx512_bf16" bundle one "$one" avx3
refuse "no target" "unknown ISA ''" bundle one "$one" avx2,
refuse "an unknown class" 'unknown tuning class "zen9"' bundle one "$one" avx2:zen9
refuse "a class of another architecture" 'unknown tuning class "neoverse-n1"' bundle one "$one" avx2:neoverse-n1
refuse "a target twice" 'avx2 is named twice' bundle one "$one" avx2,avx2:generic
refuse "a schedule that a target cannot have" 'attn for avx2: lanes must be' bundle one "$one | lanes=16" avx512,avx2
refuse "a problem that is none" "'sequence' is not a field" bundle one "attn: sequence=3" avx2
refuse "a file that cannot be written" 'no-such-directory' "$ATTUNE" bundle -o "$work/no-such-directory/x.a" \
    --header "$work/x.h" --name one "$one"
echo "1..$number"
