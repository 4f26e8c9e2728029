#!/usr/bin/env bash
# Completion in bash and zsh: the files in completions/ match the command's help, and they complete commands, options,
# and the fields of a problem, also after a comma. Needs ATTUNE, the command.
set -u
cd "$(dirname "$0")/../.." || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. tests/support/cli.sh

mkdir "$work/new"
bash scripts/completions.sh "$ATTUNE" "$work/new" >"$work/stdout" 2>"$work/stderr"
report $? "completions are written from the help"
for file in attune.bash _attune; do
    diff -u "completions/$file" "$work/new/$file" >"$work/stdout" 2>"$work/stderr"
    report $? "completions/$file is that (make completions)"
done
# Every option that a command's help has, found in another way than by the script.
: >"$work/stderr"
: >"$work/stdout"
for command in $("$ATTUNE" --help | awk '/^  [a-z]/ { print $1 }'); do
    line=$(grep -E "^        $command\) echo '" completions/attune.bash) \
        block=$(sed -n "/^        $command) specs=(/,/) ;;/p" completions/_attune)
    for option in $("$ATTUNE" "$command" --help | grep -oE '^ +(-., )? *--[a-z-]+' | grep -oE -- '--[a-z-]+'); do
        [[ $line == *[\'\ ]$option[=\'\ ]* ]] || echo "bash: $command $option" >>"$work/stderr"
        [[ $block == *"'*$option"[[=]* ]] || echo "zsh: $command $option" >>"$work/stderr"
    done
done
[ ! -s "$work/stderr" ]
report $? "both have every option of every command"

# ---- bash ----

# completes LINE WORD…: the words that bash offers at the end of the line, in any order. They begin after the last =
# or :.
completes() {
    local line=$1
    shift
    # As bash does it, in a shell of its own: the words that COMP_LINE has, and nothing from the caller.
    bash --norc -c '. completions/attune.bash; COMP_LINE=$1; COMP_POINT=${#1}
        COMP_WORDBREAKS=$'"' \\t\\n\"\\'><=;|&(:'"'
        _attune attune; [ ${#COMPREPLY[@]} -eq 0 ] || printf "%s\n" "${COMPREPLY[@]}"' - "$line" 2>"$work/stderr" |
        sort >"$work/stdout"
    [ ! -s "$work/stderr" ] && [ "$(paste -sd' ' "$work/stdout")" = "$(printf '%s\n' "$@" | sort | paste -sd' ')" ]
    report $? "bash: $line"
}
completes 'attune c' compile cache
completes 'attune help wa' warm
completes 'attune bench --sa' --samples=
completes 'attune bench --sam' --samples=
# Functions stand in quotation marks, and such a problem in quotes: what is offered replaces all that is in those.
functions='num_heads=8,score_mod="score + max(q, 2)",'
completes "attune bench '${functions}is_ca" "${functions}is_causal="
completes "attune bench --samples=3 '${functions}is_causal=" "${functions}is_causal=0" "${functions}is_causal=1"
completes "attune bench 'num_heads=8,score_mod=\"score + max(q, is_ca"
completes "attune bench '$functions' --sa" --samples=
completes 'attune compile --emit=l' lowered llvm
completes 'attune compile --emit l' lowered llvm
completes 'attune ir x.air --engine=' jit vm interp
completes 'attune bench --isa=avx5' avx512_bf16 avx512
completes 'attune cache ' ls verify why audit gc clear export import
completes 'attune cache why num_h' num_heads=
completes 'attune cache --json w' why
completes 'attune cache --json why num_h' num_heads=
completes 'attune run softmax_precision=' f32 f64
completes 'attune sweep is_causal=0,1,num_h' 0,1,num_heads=
completes 'attune bench num_h' num_heads=
completes 'attune bench --samples=3 num_heads=12,is_ca' 12,is_causal=
completes 'attune bench num_heads=12,dtype=b' bf16
completes 'attune bench num_heads=12,num_' 12,num_kv_heads= 12,num_rows= 12,num_parts= 12,num_ids=
completes 'attune run op=' attention weights rotary merge mha linear conv index blocks mla
completes 'attune run kv_dtype=' f32 f16 bf16 f64 i8 f8 i4
completes 'attune compile x=1 --schedule=strategy=d_lanes,lan' d_lanes,lanes=
completes 'attune compile x=1 --schedule=st' strategy=
completes 'attune bench x=1 --sizes seq_q=4,seq_' 4,seq_kv= 4,seq_new=
completes 'attune bench --threads=' ''
completes 'attune info num' ''
touch "$work/q-one.npy" "$work/q-two.npy"
completes "attune run --q $work/q-" "$work/q-one.npy" "$work/q-two.npy"
completes "attune run --q=$work/q-o" "$work/q-one.npy"
completes "attune run --tensor attn_mask=$work/q-o" "$work/q-one.npy"
completes "attune warm $work/q-o" "$work/q-one.npy"

# ---- zsh ----

if command -v zsh >"$work/none"; then
    zsh -n completions/_attune >"$work/stdout" 2>"$work/stderr"
    report $? "zsh reads its file"
    # A shell at a terminal of its own, with the line and a tab typed; the word under test is the only completion.
    cat >"$work/type.zsh" <<'END'
zmodload zsh/zpty || exit 77
zpty shell "zsh -f -i"
start="PS1='ready>'; fpath=($1 \$fpath); autoload -Uz compinit; compinit -u -D; unsetopt beep list_beep"
zpty -w shell "$start; stty cols 400; print -r rea''dy"
zpty -r shell seen '*ready*ready>*' || exit 1
zpty -w -n shell "$2"$'\t'
zpty -r shell seen "*${3}*" || exit 1
print -r -- "$seen"
END
    # types LINE END: the line is completed so that it ends like this.
    types() {
        timeout 300 zsh -f "$work/type.zsh" "$PWD/completions" "$1" "$2" >"$work/stdout" 2>"$work/stderr"
        report $? "zsh: $1 becomes $2"
    }
    types 'attune comp' 'attune compile'
    types 'attune help swe' 'attune help sweep'
    types 'attune bench --samp' 'attune bench --samples'
    types 'attune compile --emit=low' 'emit=lowered'
    types 'attune cache ver' 'attune cache verify'
    types 'attune cache --json ver' 'attune cache --json verify'
    types 'attune --v' 'attune --version'
    types 'attune sweep is_causal=0,1,num_h' 'is_causal=0,1,num_heads='
    types 'attune sweep is_causal=0,1,dtype=bf' 'is_causal=0,1,dtype=bf16'
    types 'attune bench is_ca' 'attune bench is_causal='
    types 'attune bench num_heads=12,is_ca' 'num_heads=12,is_causal='
    types 'attune bench num_heads=12,dtype=bf' 'num_heads=12,dtype=bf16'
    # Commas in quotation marks belong to a function.
    types "attune bench 'tensors=\"a:f32[h, q]\",mask_mod=\"q >= kv, is\",is_ca" 'is_causal='
    types "attune bench 'mask_mod=\"q >= kv\",num_heads=12,dtype=bf" 'num_heads=12,dtype=bf16'
    types "attune sweep 'is_causal=0,1,mask_mod=\"min(q, kv) > 1\",num_h" 'num_heads='
    types 'attune compile num_heads=12 --schedule=strategy=q' 'strategy=q_lanes'
else
    number=$((number + 1))
    echo "ok $number # SKIP zsh is not there"
fi
echo "1..$number"
