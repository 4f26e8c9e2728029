#!/usr/bin/env bash
# completions.sh COMMAND FOLDER: writes the completions for bash and zsh from the help of the command. The fields of
# problems come from src/problem/fields.def. `make completions` calls it. tests/cli/test_completions.sh fails if the
# files in completions/ differ from its output.
set -euo pipefail
cd "$(dirname "$0")/.."
attune=$(realpath "$1") folder=$2
export ATTUNE_CACHE_DIR= LC_ALL=C
unset ARGP_HELP_FMT

commands=$("$attune" --help | sed -n 's/^  \([a-z]*\)  *[a-z].*/\1/p')

# ---- Words that the command lists when it refuses one ----

# words_in TEXT: what stands after "there are:" or "one of", without commas.
words_in() {
    sed -nE 's/.*(there are:?|is one of) (.*[a-z0-9_])$/\2/p' <<<"$1" | sed -E 's/, not .*//; s/,? and / /; s/,//g'
}
refusal() { "$attune" "$@" 2>&1 </dev/null | head -n 1 | tr -d "'\"" || true; }
small=seq_q=1,head_dim=8
isas=$(words_in "$(refusal compile $small --target=none --emit=ir)")
stages=$(words_in "$(refusal compile $small --emit=none)")
schedule=$(words_in "$(refusal compile $small --schedule=none=1)")
sizes=$(words_in "$(refusal bench $small --sizes=none=1)")
for list in "$isas" "$stages" "$schedule" "$sizes"; do
    [ -n "$list" ] || { echo "a refusal of attune lists no words any more" >&2; exit 1; }
done

# The words of a schedule's field; none: it is a number.
words_of_schedule() { # NAME
    refusal compile $small --schedule="$1=nan" |
        sed -nE 's/.* it must be (one of )?([a-z_]+(,| or) .*)$/\2/p' | sed -E 's/;.*//; s/ or / /; s/,//g'
}
schedule_words=$(for name in $schedule; do echo "$name" $(words_of_schedule "$name"); done)

# ---- Fields of problems: lines "name" or "name value value…" ----

# The words of a field are those that the command lists when it refuses another one.
values_of() { # KIND NAME
    case $1 in
        FLAG) echo 0 1 ;;
        SIZE) echo dynamic ;;
        DIMS) echo qk bqk bhqk bk k ;;
        WORD | NUMBER)
            refusal compile "$2=nan" | sed -nE 's/.* it must be (a number)?(.*)/\2/p' | sed -E 's/ or / /; s/,//g' ;;
    esac
}
fields() {
    local kind name both seen=
    while read -r kind name both; do
        echo "$name" $(values_of "$kind" "$name")
        [[ -n $both && $seen == "$both" ]] && echo "$both" $(values_of "$kind" "$name")
        seen=$both
    done < <(bash scripts/problem_fields.sh)
    echo "layout bhsd bshd"
}
fields=$(fields)
[ "$(wc -l <<<"$fields")" -gt 60 ] || { echo "scripts/problem_fields.sh lists no fields any more" >&2; exit 1; }

# ---- Options: lines "-o,--output KIND DESCRIPTION" ----

# The kind of an option's argument, by its name and by what the help calls the argument.
kind_of() {
    case $1=$2 in
        *=) echo - ;;
        --schedule=*) echo SCHEDULE ;;
        --sizes=*) echo SIZES ;;
        --isa=* | --target=*) echo ISA ;;
        --emit=*) echo STAGE ;;
        *=NAME=F.*) echo NAMED ;;
        --cache-*=DIR) echo DIR ;;
        *=*F.* | *=FILE* | *=DIR*) echo FILE ;;
        *=*[A-Z]*) echo TEXT ;;
        *=*\|*) echo "$2" ;;
        *) echo TEXT ;;
    esac
}

options_of() {
    local line short long argument text
    "$attune" "$1" --help | awk '
        /^ +-/ { if (option) print option "\t" text
                 line = $0; option = substr(line, 1, 29); text = substr(line, 30)
                 # An option that reaches into the column of the text has two blanks after it, or the rest of the line.
                 if (match(line, /^ +(-., )? *--[a-z-]+(=[^ ]+)?/) && RLENGTH > 28) {
                     option = substr(line, 1, RLENGTH); text = substr(line, RLENGTH + 1) }
                 next }
        /^                             [^ ]/ && option { text = text " " $0; next }
        { if (option) print option "\t" text; option = "" }
        END { if (option) print option "\t" text }' | sed -E 's/ +/ /g; s/^ //; s/ ?\t ?/\t/' |
        while IFS=$'\t' read -r line text; do
            short=
            [[ $line == -?,* ]] && short=${line:0:2},
            long=--${line#*--}
            argument=
            [[ $long == *=* ]] && argument=${long#*=}
            long=${long%%=*}
            [ "$long" = --help ] && short='-?,'
            echo "$short$long $(kind_of "$long" "$argument") $text"
        done
}

# ---- bash ----

quoted() { tr '\n' ' ' | sed "s/ $//; s/.*/'&'/"; }
options_for_bash() {
    options_of "$1" | while read -r names kind _; do
        for name in ${names//,/ }; do
            [ "$name" = '-?' ] && continue
            if [ "$kind" = - ]; then echo "$name"; else echo "$name=$kind"; fi
        done
    done | quoted
}
{
    cat <<'END'
# Completion of attune for bash. Made by scripts/completions.sh: `make completions` writes it anew.

# The options of a command: --name, or --name=KIND where it takes an argument.
_attune_options() {
    case $1 in
END
    for command in $commands; do echo "        $command) echo $(options_for_bash "$command") ;;"; done
    cat <<'END'
    esac
}

# The values that a field of a problem may have, as far as they are words.
_attune_values() {
    case $1 in
END
    awk 'NF > 1 {
             name = $1
             $1 = ""
             names[$0] = names[$0] (names[$0] ? " | " : "") name
             if (!seen[$0]++) order[++n] = $0
         }
         END { for (i = 1; i <= n; i++) printf "        %s) echo%s ;;\n", names[order[i]], order[i] }' <<<"$fields"
    cat <<END
$(awk 'NF > 1 { name = $1; $1 = ""; print "        " name ") echo" $0 " ;;" }' <<<"$schedule_words")
    esac
}

_attune_commands='$(echo $commands help)'
_attune_fields='$(cut -d' ' -f1 <<<"$fields" | paste -sd' ')'
_attune_schedule='$schedule'
_attune_sizes='$sizes'
_attune_isas='$isas'
_attune_stages='$stages'
END
    cat scripts/completions.bash
} >"$folder/attune.bash"

# ---- zsh ----

# A description as _arguments and _values take it between brackets.
escaped() { sed -E "s/[][\\\\]/\\\\&/g; s/:/\\\\:/g; s/'/'\\\\''/g" <<<"$1"; }
action_of() {
    case $1 in
        SCHEDULE) echo ':schedule:_attune_schedule' ;;
        SIZES) echo ':sizes:_attune_sizes' ;;
        ISA) echo ":instruction set:($isas)" ;;
        STAGE) echo ":stage:($stages)" ;;
        NAMED) echo ':NAME=FILE:_attune_named' ;;
        DIR) echo ':folder:_files -/' ;;
        FILE) echo ':file:_files' ;;
        TEXT) echo ':value: ' ;;
        *) echo ":value:(${1//|/ })" ;;
    esac
}
options_for_zsh() {
    options_of "$1" | while read -r names kind text; do
        for name in ${names//,/ }; do
            [ "$name" = '-?' ] && continue
            if [ "$kind" = - ]; then
                echo "            '*$name[$(escaped "$text")]'"
            elif [[ $name == --* ]]; then
                echo "            '*$name=[$(escaped "$text")]$(action_of "$kind")'"
            else
                echo "            '*$name+[$(escaped "$text")]$(action_of "$kind")'"
            fi
        done
    done
}
{
    cat <<'END'
#compdef attune
# Completion of attune for zsh. Made by scripts/completions.sh: `make completions` writes it anew.

_attune_commands() {
    local -a commands=(
END
    "$attune" --help | sed -nE "s/:/\\\\:/g; s/'/'\\\\''/g; s/^  ([a-z]+) +([a-z].*)/        '\1:\2'/p"
    cat <<'END'
        'help:explain a command'
    )
    _describe command commands
}

_attune_fields() {
    fields=(
END
    while read -r name values; do
        if [ -n "$values" ]; then echo "        '$name:value:($values)'"; else echo "        '$name:number: '"; fi
    done <<<"$fields"
    cat <<END
    )
}

# Sets the caller's "end" to where what is typed has its last comma that ends a pair; those in quotation marks belong to
# a function. Fails inside of one, where there is nothing to complete. zsh undoes a compset when a function returns.
_attune_pairs_end() {
    local -i is_open=0 i
    end=0
    [[ \$PREFIX == *\"* ]] || return 0
    for ((i = 1; i <= \$#PREFIX; i++)); do
        case \$PREFIX[i] in
            \") is_open=\$((!is_open)) ;;
            ,) ((is_open)) || end=i ;;
        esac
    done
    ((!is_open))
}

_attune_problem() {
    local -a fields
    local -i end
    _attune_pairs_end || return
    compset -p \$end
    _attune_fields
    _values -s , -S = field \$fields
}

# Values may be lists, which _values does not know: a key may follow any comma.
_attune_grid() {
    local -a fields
    local -i end
    _attune_pairs_end || return
    compset -p \$end
    local item=\${PREFIX##*,} spec
    _attune_fields
    if [[ \$item == *=* ]]; then
        spec=\${(M)fields:#\${item%%=*}:*}
        compset -P '*='
        [[ \$spec == *\(*\) ]] && compadd -S '' -- \${=\${spec#*\(}%\)}
    else
        compset -P '*,'
        compadd -S = -- \${fields%%:*}
    fi
}

_attune_schedule() {
    local -a fields=($(while read -r name words; do
        if [ -n "$words" ]; then echo "'$name:value:($words)'"; else echo "'$name:number: '"; fi
    done <<<"$schedule_words" | paste -sd' '))
    _values -s , -S = field \$fields
}

_attune_sizes() {
    local -a fields=($(for name in $sizes; do echo "'$name:number: '"; done | paste -sd' '))
    _values -s , -S = size \$fields
}
END
    cat <<'END'

_attune_named() {
    if compset -P '*='; then _files; else _message 'NAME=FILE'; fi
}

_attune_grid_or_file() { _alternative 'grids:grid:_attune_grid' 'files:file:_files'; }
_attune_problem_or_file() { _alternative 'problems:problem:_attune_problem' 'files:file:_files'; }

_attune_cache() {
    # Options may come before the action.
    local -a actions=(ls verify why audit gc clear export import) given
    given=(${words[2,CURRENT-1]:*actions})
    case $given[1] in
        '') compadd -a actions ;;
        why) _attune_problem ;;
        export | import) _files -/ ;;
    esac
}

# The options of a command as _arguments takes them, in the array `specs`.
_attune_specs() {
    case $1 in
END
    for command in $commands; do
        printf '        %s) specs=(\n%s\n        ) ;;\n' "$command" "$(options_for_zsh "$command")"
    done
    cat <<'END'
    esac
}

_attune() {
    local -a specs
    if (( CURRENT == 2 )) && [[ $PREFIX == -* ]]; then
        compadd -- --help --version
        return
    fi
    if (( CURRENT == 2 )) || [[ $words[2] == help ]]; then
        (( CURRENT <= 3 )) && _attune_commands
        return
    fi
    _attune_specs $words[2]
    case $words[2] in
        cache) specs+=('*: :_attune_cache') ;;
        sweep) specs+=('*: :_attune_grid_or_file') ;;
        tune | warm) specs+=('*: :_attune_problem_or_file') ;;
        conform) specs+=('*:folder:_files -/') ;;
        ir) specs+=(':file:_files') ;;
        bench) specs+=('*: :_attune_problem') ;;
        info) ;;
        *) specs+=(': :_attune_problem') ;;
    esac
    shift words
    (( CURRENT-- ))
    _arguments -S $specs
}

_attune "$@"
END
} >"$folder/_attune"
