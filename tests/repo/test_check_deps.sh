#!/usr/bin/env bash
# The include rules: what check_deps.sh finds in a copy of the tree where one rule is broken.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/cli.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/docs"
cp -r include src reference tools lab adapters scripts "$work"
cp docs/folders.md "$work/docs"
page=$work/docs/folders.md
check() { bash "$work/scripts/check_deps.sh" >"$work/stdout" 2>"$work/stderr"; }
# found NAME SENTENCE: the copy is refused, and with this sentence.
found() {
    ! check && grep -qF -- "$2" "$work/stdout"
    report $? "$1"
}

check
report $? "the tree keeps the rules"

file=$work/src/problem/fields_text.c
cp "$file" "$work/kept"
sed -i '1i #include "nest/gemm.h"' "$file"
found "a room below that includes one above" "src/problem/fields_text.c:1: src/problem must not include nest/gemm.h"
cp "$work/kept" "$file"
sed -i '1i #include <pthread.h>' "$file"
found "a system header without a rule" "src/problem must not include pthread.h"
cp "$work/kept" "$file"
sed -i 's/at_read_double(text, &end)/strtod(text, \&end)/' "$file"
found "a number that the locale changes" "src/problem/fields_text.c:"
cp "$work/kept" "$file"

file=$work/src/attend/prefill/task.c
cp "$file" "$work/kept"
sed -i '1i #include "attend/decode/layout.h"' "$file"
found "a room in a room that includes the one beside it" \
    "src/attend/prefill/task.c:1: src/attend/prefill must not include attend/decode/layout.h"
cp "$work/kept" "$file"

file=$work/adapters/ort/model/note.c
cp "$file" "$work/kept"
sed -i '1i #include "ort/operators/call.h"' "$file"
found "a room that may include the outer one's headers, not its rooms" \
    "adapters/ort/model/note.c:1: adapters/ort/model must not include ort/operators/call.h"
cp "$work/kept" "$file"
file=$work/adapters/ort/tensor.c
cp "$file" "$work/kept"
sed -i '1i #include "ort/model/note.h"' "$file"
found "an outer room that includes its own" "adapters/ort must not include ort/model/note.h"
cp "$work/kept" "$file"

mkdir "$work/src/attic"
: >"$work/src/attic/dust.c"
found "a folder without a row" "src/attic: no row in the table of docs/folders.md"
rm -r "$work/src/attic"

mkdir -p "$work"/src/attic/{floor,roof}
: >"$work/src/attic/roof/tile.c"
echo '#include "attic/roof/tile.h"' >"$work/src/attic/floor/board.c"
cp "$page" "$work/kept"
sed -i 's/^| `src\/wheel`/| `src\/attic\/floor` | boards | – | – |\n| `src\/attic\/roof` | tiles | – | – |\n&/' "$page"
found "a room that includes one beside it" "src/attic/floor must not include attic/roof/tile.h"
sed -i '/^| `src\/attic\/floor`/s/| – | – |/| `attic\/roof` | – |/' "$page"
check
report $? "unless its row allows it"
sed -i '/^| `src\/attic\/roof`/s/| – | – |/| `attic\/floor` | – |/' "$page"
found "a circle of rooms" "a circle of folders: src/attic/"
cp "$work/kept" "$page"
rm -r "$work/src/attic"

cp "$page" "$work/kept"
sed -i '/^| `src\/attic`/d; s/^| `src\/wheel`/| `src\/attic` | dust | – | – |\n&/' "$page"
found "a row without a folder" "there is no folder src/attic"
cp "$work/kept" "$page"
sed -i '/^| `src\/schedule`/s/`base`/`base` `attend`/' "$page"
found "a circle in the table" "a circle of folders: src/"
cp "$work/kept" "$page"
sed -i '/^| `src\/attend\/shared`/s/`base`/`base` `attend\/around`/' "$page"
found "a circle of rooms in a room" "a circle of folders: src/attend/"
cp "$work/kept" "$page"
sed -i '/^| `adapters\/ort` /s/`common`/`common` `ort\/model`/' "$page"
found "a circle of a room and one in it" "a circle of folders: adapters/ort"
cp "$work/kept" "$page"
sed -i '/^## The folders/s/folders/rooms/' "$page"
found "a page without the table" "docs/folders.md has no table of folders"
cp "$work/kept" "$page"

check
report $? "the copy is whole again"
echo "1..$number"
