#!/usr/bin/env bash
# The generator id: what changes it, what does not, and what is made anew then. Needs LLVM_CONFIG.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/cli.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp -r src scripts "$work"
cd "$work" || exit 1
id() { LLVM_CONFIG=$LLVM_CONFIG JIT_ASAN=${JIT_ASAN:-} LLVM_LINK=${LLVM_LINK:-} sh scripts/generator_id.sh |
    grep ATTUNE_GENERATOR_ID; }
first=$(id)
[[ $first =~ [0-9a-f]{32} ]]
report $? "an id"
mv src sources && ln -s sources src
[ "$(id)" = "$first" ]
report $? "the same where src is a link"
rm src && mv sources src
changes() { echo "/* more */" >>"$1" && [ "$(id)" != "$first" ] && first=$(id); }
keeps() { echo "/* more */" >>"$1" && [ "$(id)" = "$first" ]; }

for file in src/base/integers.h src/ir/ops.def src/target/target.c src/target/kernel_abi.h src/target/machines.def \
    src/problem/problem.c src/schedule/choose.c src/nest/gemm.c src/attend/prefill/task.c src/layer/block.c \
    src/operator/build.c src/codegen/emit_expr.c; do
    changes $file
    report $? "$file changes it"
done
# Another model in the table, and nobody's entries are lost.
for file in src/target/tuning_class.c src/target/tuning_class.h src/target/cpu.c src/target/cpu.h src/cache/key.c \
    src/base/memory.c src/plan/plan.c src/tune/search.c; do
    keeps $file
    report $? "$file does not"
done
first=$(id)
LLVM_LINK=shared
[ "$(id)" != "$first" ]
report $? "another way to link LLVM changes it"

# Which is right as long as code generation does not ask what CPU this is.
! grep -rlE 'at_class_|at_cpu_identity|at_cpu_description|tuning_class\.h' \
    src/{ir,problem,schedule,nest,attend,layer,operator,codegen}
report $? "no kernel depends on the table"

# Objects that include it are made anew however the folder of products is written: their lists of headers name it as
# the compiler was told, or, by ccache, from here.
cd "$OLDPWD" && cp -r Makefile mk include third_party "$work" && cd "$work" || exit 1
object=build/obj/src/cache/key.o
unset LLVM_LINK
make_object() { env -u MAKEFLAGS -u MAKELEVEL make --no-print-directory DEPS=no BUILD="$1" $object; }
make_object build >"$work/stdout" 2>&1 && touch -d "1 hour ago" $object build/gen/generator_id.h
report $? "an object is made"
echo "/* more */" >>src/ir/ops.def
make_object "$PWD/build" >"$work/stdout" 2>&1 && grep -q "cc src/cache/key.c" "$work/stdout"
report $? "and made anew for another id, with the whole path of the folder"
rm $object
env -u MAKEFLAGS -u MAKELEVEL make --no-print-directory DEPS=no BUILD="$PWD/build" "$PWD/$object" >"$work/stdout" 2>&1
[ -f $object ]
report $? "a product may be named by its whole path"
echo "1..$number"
