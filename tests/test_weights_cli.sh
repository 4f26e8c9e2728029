#!/usr/bin/env bash
# `attune weights` from outside: pictures of the right kind, size and colours, and one clear sentence for everything
# that can be wrong. Needs ATTUNE, the command, and an ATTUNE_CACHE_DIR of its own.
set -u
cd "$(dirname "$0")/.." || exit 1
. tests/support/cli.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
attune=$ATTUNE
minilm=examples/minilm
small=num_heads=2,seq_q=4,head_dim=5

# refuse_picture NAME PATTERN ARGUMENT…: as refuse does; at the end there must be no such picture, be it half of one.
refuse_picture() { refuse "$1" "$2" "$attune" weights -o "$work/refused.png" "${@:3}"; }

# picture NAME ARGUMENT…: a PNG whose header has the size that the command printed.
picture() {
    local name=$1 status=0 header size
    shift
    "$attune" weights -o "$work/p.png" "$@" >"$work/stdout" 2>"$work/stderr" </dev/null || status=$?
    header=$(od -An -tx1 -v -N 24 "$work/p.png" | tr -d ' \n')
    size="$((16#${header:32:8})) x $((16#${header:40:8}))"
    [ "$status" -eq 0 ] && [ "${header:0:16}" = 89504e470d0a1a0a ] && grep -q ", $size pixels\$" "$work/stdout"
    report $? "$name"
}

# count NAME WANTED PATTERN: how many lines of the last SVG match an extended regex.
count() {
    local found
    found=$(grep -cE -- "$3" "$work/p.svg")
    [ "$found" -eq "$2" ] || echo "found $found times, not $2: $3" >>"$work/stderr"
    [ "$found" -eq "$2" ]
    report $? "$1"
}

# svg NAME ARGUMENT…
svg() { expect "$1" 0 'pixels$' "$attune" weights -o "$work/p.svg" "${@:2}"; }

# make_f32 FILE SHAPE HEX…: an array of numbers given by their bits.
make_f32() {
    local file=$1 bits
    make_npy "$file" '<f4' False "$2" 0
    for bits in "${@:3}"; do printf "\\x${bits:6:2}\\x${bits:4:2}\\x${bits:2:2}\\x${bits:0:2}" >>"$file"; done
}
zero=00000000 quarter=3e800000 half=3f000000 one=3f800000 nan=7fc00000 minus_one=bf800000 minus_infinity=ff800000

# ---- Help ----

expect "attune weights --help" 0 "Usage: attune weights" "$attune" weights --help
expect "attune --help names it" 0 'weights +draw' "$attune" --help
expect "an unknown option" 2 "unrecognized option '--frobnicate'" "$attune" weights --frobnicate
manual=$(sed 's/\\-/-/g' docs/attune.1)
: >"$work/stderr"
for option in $("$attune" weights --help | grep -oE -- '--[a-z-]+' | sort -u | grep -vxE -- '--(help|usage)'); do
    grep -qF -- "$option" <<<"$manual" || echo "$option" >>"$work/stderr"
done
grep -qw ATTUNE_DRAW <<<"$manual" || echo ATTUNE_DRAW >>"$work/stderr"
[ ! -s "$work/stderr" ]
report $? "the man page names every option"

# ---- Pictures ----

picture "eight tokens, random" num_heads=1,seq_q=8,head_dim=64
picture "a real layer, its largest heads" --tensor q=$minilm/q.npy --tensor k=$minilm/k.npy --heads 8,1
grep -q '2 heads, 217 queries x 217 keys, attention weight from 0 to 0\.9' "$work/stdout"
report $? "the command says what it drew"
picture "the mean of the heads" --tensor q=$minilm/q.npy --tensor k=$minilm/k.npy --average
grep -q '1 head,' "$work/stdout"
report $? "there is one head then"
picture "one query, many keys" num_heads=3,seq_q=1,seq_kv=100,head_dim=8,batch=3 --batch 2
picture "a cache whose length is known at run time" num_heads=2,seq_q=1,seq_kv=dynamic,head_dim=8 --sizes seq_kv=21
picture "a paged cache" num_heads=2,seq_q=1,head_dim=8,page_size=4,kv_lens=1 --sizes num_pages=9,max_pages=8,seq_kv=32
picture "weights of chosen rows" op=weights,weights=softmax,row_ids=1,num_rows=3,num_heads=2,seq_q=9,head_dim=4 \
    --labels "a b c d e f g h i"
picture "a block" embed_dim=24,num_heads=3,seq_q=7,is_causal=1
picture "a block of cross-attention, the mean of its heads" embed_dim=24,num_heads=3,seq_q=7,seq_kv=5,kv_embed_dim=8 \
    --average
picture "a block of low rank" embed_dim=24,num_heads=3,seq_q=7,low_rank=4
picture "32 heads of 300 tokens" num_heads=32,seq_q=300,head_dim=4,is_causal=1

svg "an SVG of a causal problem" $small,is_causal=1 --labels '[CLS] ##ing <s> naïve' --title 'A & B'
count "a group for each head" 2 '<g class="head">'
count "a title for each head" 2 '>head [01]</text>'
count "the first label, in rows and columns" 4 '>\[CLS\]</text>'
count "a piece of a word" 4 '>##ing</text>'
count "a label with a special character" 4 '>&lt;s&gt;</text>'
count "a label beyond ASCII" 4 '>naïve</text>'
count "the title" 1 '>A &amp; B</text>'
count "what hidden means" 1 '>hidden key</text>'
svg "queries and keys of their own" num_heads=2,seq_q=2,seq_kv=3,head_dim=5 --labels 'q0 q1' --labels-kv 'k0 k1 k2'
count "labels of queries" 4 '>q[01]</text>'
count "labels of keys" 6 '>k[012]</text>'
svg "keys without names have numbers" num_heads=2,seq_q=2,seq_kv=3,head_dim=5 --labels 'q0 q1'
count "from 0 on" 4 '>[12]</text>'
printf '\xef\xbb\xbftwo words\r\n\r\n\ttab\r\nlast' >"$work/labels.txt"
svg "labels from a file are its lines" $small --labels "$work/labels.txt"
count "with spaces" 4 '>two words</text>'
count "or empty" 4 ' fill="#1c2126"></text>'
count "without control characters" 4 '>�tab</text>'
printf 'a b c d\n' >"$work/line.txt"
svg "labels from a file of one line are its words" $small --labels "$work/line.txt"
count "each of them" 4 '>d</text>'
svg "rows and keys of row_ids keep their names" \
    op=weights,weights=softmax,row_ids=1,num_rows=1,seq_q=3,seq_kv=2,head_dim=4 \
    --labels 'r0 r1 r2'
count "those that were chosen" 1 '>r[012]</text>'
svg "queries that see no key" seq_q=9,seq_kv=4,head_dim=3,is_causal=1,causal_align=bottom_right
count "are striped, in the legend too" 2 'url\(#stripes\)'
svg "scores before softmax" $small,is_causal=1,weights=masked
count "are called so" 1 '>attention score</text>'
count "and have hidden keys too" 1 '>hidden key</text>'
svg "many keys" num_heads=1,seq_q=40,head_dim=3
count "have colours by the root" 1 '>attention weight; colours show the square root</text>'
svg "unless told otherwise" num_heads=1,seq_q=40,head_dim=3 --scale linear
count "in which case they have not" 1 '>attention weight</text>'
svg "few tokens of a small cell" num_heads=1,seq_q=4,head_dim=3 --cell 5
count "share names" 1 '; every third token is named</text>'
svg "many tokens" num_heads=1,seq_q=40,head_dim=3 --cell 1
count "share a name, too" 1 '; one token of 15 is named</text>'
picture "twelve heads of 128 tokens" num_heads=12,seq_q=128,head_dim=8
[ "$((16#$(od -An -tx1 -j 16 -N 4 "$work/p.png" | tr -d ' \n')))" -le 2400 ]
report $? "fit a screen"
picture "a width of one's own" $small --width 600
[ "$((16#$(od -An -tx1 -j 16 -N 4 "$work/p.png" | tr -d ' \n')))" -le 600 ]
report $? "is kept to"
# within NAME WIDTH ARGUMENT…: a picture no wider than that.
within() {
    picture "$1" "${@:3}"
    [ "$((16#$(od -An -tx1 -j 16 -N 4 "$work/p.png" | tr -d ' \n')))" -le "$2" ]
    report $? "$1: no wider than $2 pixels"
}
within "more tokens than pixels" 2400 num_heads=1,seq_q=4096,head_dim=1
within "four heads that fit in one column only" 2400 num_heads=4,seq_q=2300,head_dim=1
within "a decoder's heads" 2400 num_heads=32,seq_q=1,seq_kv=4096,head_dim=1
within "two heads in a narrow picture" 400 num_heads=2,seq_q=20,head_dim=16 --width 400
within "four tokens in the narrowest picture" 200 num_heads=1,seq_q=4,head_dim=2 --width 200
within "300 tokens in a narrow picture" 250 seq_q=300,head_dim=1 --width 250
refuse_picture "more heads than a width has room for" \
    '1000 heads of 2 x 2 cells in a width of 200 pixels would make a picture beyond 32000 pixels of height' \
    num_heads=1000,seq_q=2,head_dim=1 --width 200
expect "a width of nothing" 2 "from 200 to 32000, not '10'" "$attune" weights $small --width 10 -o p.png
expect "two sizes" 2 'one of them is enough' "$attune" weights $small --width 600 --cell 5 -o p.png

# ---- Colours of known weights ----

make_f32 "$work/w.npy" '(2, 2, 2)' $zero $quarter $half $one $nan $one $zero $zero
svg "weights from a file" --weights-file "$work/w.npy" --cell 50
sed -n '/class="head"/,$p' "$work/p.svg" | grep -oE 'width="50" height="50" fill="#[0-9a-f]{6}"' |
    grep -oE '#[0-9a-f]{6}' \
    | paste -sd' ' >"$work/colours"
# Exactly 0 is taken for hidden; 1/4 and 1/2 lie on points of the colour map; the last row is one rectangle.
[ "$(cat "$work/colours")" = '#eceef0 #3b528b #21908c #fde725 #f0185a #fde725' ]
report $? "each has the colour of its value: $(cat "$work/colours")"
count "numbers stand in large cells" 1 '>0\.25</text>'
count "an empty row is striped" 2 'url\(#stripes\)'
count "NaN is explained" 1 '>NaN</text>'
svg "and one of two batch entries" --weights-file "$work/w.npy" --cell 50 --heads 0
count "with one head" 1 '<g class="head">'
make_f32 "$work/w2.npy" '(2, 1, 1, 2)' $one $half $quarter $half
svg "a file with batches" --weights-file "$work/w2.npy" --batch 1
count "has the entry's numbers" 1 '>0\.25</text>'
make_f32 "$work/w3.npy" '(1, 2)' $minus_one $minus_infinity
svg "a file with scores of one head" --weights-file "$work/w3.npy"
count "has a hidden key" 1 '>hidden, or exactly 0</text>'
grep -q 'w3.npy has negative values, so they were taken for scores before softmax' "$work/stdout"
report $? "the command says what it took them for"
make_f32 "$work/mean.npy" '(2, 1, 2)' $half $zero $one $zero
svg "a mean" --weights-file "$work/mean.npy" --average
count "is between its heads, and at the end of the scale" 2 '>0\.75</text>'
count "and hidden where all are" 1 '>hidden, or exactly 0</text>'
"$attune" run weights=softmax --q $minilm/q.npy --k $minilm/k.npy --v $minilm/v.npy \
    --write weights="$work/weights.npy" >"$work/stdout" 2>"$work/stderr" &&
    "$attune" weights --weights-file "$work/weights.npy" --heads 3,1 -o "$work/from-file.png" >>"$work/stdout" \
        2>>"$work/stderr" &&
    "$attune" weights --tensor q=$minilm/q.npy --tensor k=$minilm/k.npy --heads 3,1 -o "$work/from-qk.png" \
        >>"$work/stdout" 2>>"$work/stderr"
report $? "weights that attune run wrote, and those of the same inputs"
same "are one picture" "$work/from-file.png" "$work/from-qk.png"
expect "the same random numbers with the same seed" 0 '' "$attune" weights $small --seed 3 -o "$work/a.png"
"$attune" weights $small --seed 3 -o "$work/b.png" >/dev/null && "$attune" weights $small -o "$work/c.png" >/dev/null &&
    cmp -s "$work/a.png" "$work/b.png" && ! cmp -s "$work/a.png" "$work/c.png"
report $? "and others with another"

# ---- Files ----

touch "$work/target.png" && ln -s target.png "$work/link.png"
expect "a link stays one" 0 'link.png:' "$attune" weights $small -o "$work/link.png"
[ -L "$work/link.png" ] && [ -s "$work/target.png" ] && [ -z "$(find "$work" -name '*.tmp')" ]
report $? "its target is written, and no temporary file stays behind"
ln -s /dev/full "$work/full.svg"
expect "a full disk" 1 'cannot write: No space left' "$attune" weights $small -o "$work/full.svg"
expect "a missing directory" 1 'missing/p.png: cannot write: No such file' "$attune" weights $small -o \
    "$work/missing/p.png"

# ---- The plug-in ----

[ -z "$(readelf -d "$attune" | grep -i cairo)" ]
report $? "the command does not link to cairo"
expect "no plug-in where ATTUNE_DRAW says" 1 'libattune-draw.so, which draws .*could not be loaded: /nonexistent' \
    env ATTUNE_DRAW=/nonexistent.so "$attune" weights $small -o "$work/p.png"
expect "another library" 1 'does not draw pictures for this version of attune: it has no attune_draw_2' \
    env ATTUNE_DRAW="$BUILD/libattune.so" "$attune" weights $small -o "$work/p.png"
mkdir -p "$work/prefix/bin" "$work/prefix/lib/attune"
cp "$attune" "$work/prefix/bin/attune"
cp "$BUILD/libattune.so.0" "$work/prefix/lib/"
expect "a command without its plug-in" 1 'pictures are drawn by libattune-draw.so, which was not found; install it' \
    "$work/prefix/bin/attune" weights --weights-file "$work/w.npy" -o "$work/p.png"
cp "$BUILD/libattune-draw.so" "$work/prefix/lib/attune/"
expect "an installed command finds it" 0 'pixels$' \
    "$work/prefix/bin/attune" weights --weights-file "$work/w.npy" -o "$work/p.png"
# The rules are the code generator's: tests/test_codegen_search.sh.
planted() {
    "$work/prefix/bin/attune" weights --weights-file "$work/w.npy" -o "$work/p.png" && [ ! -e "$work/it-ran" ]
}
cat >"$work/planted.c" <<PLANTED
#include <stdio.h>
__attribute__((constructor)) static void run(void) { fclose(fopen("$work/it-ran", "w")); }
PLANTED
${CC:-cc} -shared -fPIC "$work/planted.c" -o "$work/planted.so"
draw=$work/prefix/lib/attune/libattune-draw.so
install -m 757 "$work/planted.so" "$draw"
expect "one that all users may write to is refused" 1 "^attune: $draw is not used: all users may write to it\$" planted
if [ "$(id -u)" = 0 ]; then
    chmod 755 "$draw"
    chown 12345 "$draw"
    expect "so is another user's" 1 "^attune: $draw is not used: it belongs to user 12345, neither root" planted
    install -m 755 "$BUILD/libattune-draw.so" "$draw"
    chown 12345 "$draw" "$work/prefix/lib/libattune.so.0"
    expect "but not if the library is that user's as well" 0 'pixels$' planted
    chown 0 "$work/prefix/lib/libattune.so.0"
fi
install -m 755 "$BUILD/libattune-draw.so" "$work/prefix/bin/libattune-draw.so"
install -m 757 "$work/planted.so" "$draw"
expect "and the first that is trusted is taken" 0 'pixels$' planted
rm "$work/prefix/bin/libattune-draw.so"
mkdir "$work/prefix/attune"
for place in prefix prefix/attune; do install -m 755 "$work/planted.so" "$work/$place/libattune-draw.so"; done
rm "$draw"
above() { planted || [ ! -e "$work/it-ran" ]; }
expect "above the command and its library nothing is looked for" 0 '' above

# ---- Wrong usage ----

expect "no picture's name" 2 '-o is needed' "$attune" weights $small
expect "a picture of another kind" 2 "must end in .png or .svg, not as 'p.jpg' does" "$attune" weights $small -o p.jpg
expect "nothing to draw" 2 'a problem is needed' "$attune" weights -o p.png
expect "a problem and a file" 2 'it takes no problem' "$attune" weights $small --weights-file "$work/w.npy" -o p.png
expect "two problems" 2 "'b=2' follows 'a=1'" "$attune" weights a=1 b=2 -o p.png
expect "a tensor without a file" 2 "'q' is not NAME=F.npy" "$attune" weights --tensor q -o p.png
expect "an unknown scale" 2 "'linear' or 'sqrt', not 'log'" "$attune" weights $small --scale log -o p.png
expect "a cell of no pixels" 2 "from 1 to 200, not '0'" "$attune" weights $small --cell 0 -o p.png
expect "a batch entry that is no number" 2 "not 'x'" "$attune" weights $small --batch x -o p.png

# ---- Bad input ----

refuse_picture "fewer labels than tokens" "--labels 'a b c' has 3 labels, but there are 4 queries" $small --labels \
    'a b c'
refuse_picture "one label that is no file" "--labels 'tokens.txt' has 1 label, but there are 4 queries" $small \
    --labels tokens.txt
refuse_picture "more labels than keys" "--labels-kv '1 2 3 4 5' has 5 labels, but there are 4 keys" $small --labels-kv \
    '1 2 3 4 5'
refuse_picture "labels that are not UTF-8" "--labels: label 2 is not UTF-8" $small --labels $'a b \xff\xfe d'
refuse_picture "labels with too long a form of a character" "--labels: label 0 is not UTF-8" $small --labels \
    $'\xc0\xaf b c d'
printf 'a\0b\n' >"$work/nul.txt"
refuse_picture "labels with a NUL" 'this is not a text: it has a NUL at byte 1' $small --labels "$work/nul.txt"
refuse_picture "a title that is not UTF-8" '--title is not UTF-8' $small --title $'\x80'
refuse_picture "a head that is not there" 'there is no head 2; the last one is 1' $small --heads 0,2
refuse_picture "a head that is named twice" 'head 1 is named twice' $small --heads 0-1,1
for list in '' , 0, -1 1-0 x 0..1 0-; do
    refuse_picture "heads '$list'" "'$list' is not a list of heads" $small --heads "$list"
done
refuse_picture "a batch entry that is not there" '--batch is 1, but the last entry is 0' $small --batch 1
refuse_picture "a problem that is none" 'frobnicate' frobnicate=1
refuse_picture "a problem of another operation" 'op=rotary has no attention weights' \
    op=rotary,rotary_dim=4,head_dim=4,seq_q=3
refuse_picture "a ragged problem" 'ragged' ragged=1,head_dim=4,batch=2
refuse_picture "sizes that are none" "'x' is not a size" $small --sizes x=3
refuse_picture "no keys" 'nothing to draw: heads x queries x keys is 1 x 2 x 0' seq_q=2,seq_kv=dynamic,head_dim=3 \
    --sizes=seq_kv=0
refuse_picture "queries without keys" 'needs --tensor k=F.npy too' --tensor q=$minilm/q.npy
make_npy "$work/x.npy" '<f4' False '(7, 24)' 672
refuse_picture "the input of a block without its weights" 'what attune mha writes with --write weights=F.npy' \
    embed_dim=24,num_heads=3 --tensor x="$work/x.npy"
refuse_picture "a file that is not there" 'nonexistent.npy: cannot read' --tensor q=/nonexistent.npy --tensor \
    k=$minilm/k.npy
refuse_picture "a tensor that is not there" 'no tensor named frob' $small --tensor frob=$minilm/q.npy
refuse_picture "an output as input" 'weights is an output of the problem' $small --tensor weights=$minilm/q.npy
refuse_picture "sizes that contradict the files" 'num_heads is 3 by the problem but 12' num_heads=3 --tensor \
    q=$minilm/q.npy \
    --tensor k=$minilm/k.npy
refuse_picture "a file of weights that is not there" 'nonexistent.npy: cannot read' --weights-file /nonexistent.npy
refuse_picture "a file of weights that is none" 'README.md: ' --weights-file README.md
make_f32 "$work/flat.npy" '(2,)' $one $one
refuse_picture "weights of one dimension" 'shape \(2,\) is not \[\[batch,\] heads,\] queries, keys' --weights-file \
    "$work/flat.npy"
make_f32 "$work/empty.npy" '(1, 0, 3)'
refuse_picture "weights of no query" 'nothing to draw: heads x queries x keys is 1 x 0 x 3' --weights-file \
    "$work/empty.npy"
refuse_picture "a batch entry that the file does not have" '--batch is 2, but the last entry is 1' --weights-file \
    "$work/w2.npy" --batch 2
refuse_picture "too large a picture" '1 head of 4 x 40000 cells of 1 pixel would make a picture beyond 32000 pixels' \
    seq_q=4,seq_kv=40000,head_dim=1 --cell 1
refuse_picture "too large a cell" '1 head of 300 x 300 cells of 150 pixels would' seq_q=300,head_dim=1 --cell 150
[ -z "$(find "$work" -name 'refused.png*')" ]
report $? "nothing refused left a file behind"

echo "1..$number"
