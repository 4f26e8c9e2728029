
# Replies with the words of a list that begin with $2, each with $1 before it.
_attune_reply() {
    local prefix=$1 start=$2 word
    shift 2
    for word in "$@"; do [[ $word == "$start"* ]] && COMPREPLY+=("$prefix$word"); done
}

_attune_files() { # PREFIX START OPTION: -f or -d
    local name
    compopt -o filenames 2>/dev/null
    while IFS= read -r name; do COMPREPLY+=("$1$name"); done < <(compgen "$3" -- "$2")
}

# key=value,key=…: keys that are not there yet, or the values of the last one. PREFIX TEXT KEY…
_attune_pairs() {
    local prefix=$1 text=$2 item key
    shift 2
    compopt -o nospace 2>/dev/null # a comma and the next key may follow
    item=$text # commas in quotation marks belong to a function
    local past='^([^,"]|"[^"]*")*,'
    while [[ $item =~ $past ]]; do item=${item:${#BASH_REMATCH[0]}}; done
    prefix+=${text%"$item"}
    if [[ $item == *=* ]]; then
        key=${item%%=*}
        # shellcheck disable=SC2046 # a list of words
        _attune_reply "$prefix$key=" "${item#*=}" $(_attune_values "$key")
        return
    fi
    for key in "$@"; do
        [[ ,$text == *,$key=* ]] || _attune_reply "$prefix" "$item" "$key="
    done
}

# The argument of an option. PREFIX KIND START
_attune_argument() {
    # shellcheck disable=SC2086 # lists of words
    case $2 in
        FILE) _attune_files "$1" "$3" -f ;;
        DIR) _attune_files "$1" "$3" -d ;;
        NAMED) [[ $3 == *=* ]] && _attune_files "$1${3%%=*}=" "${3#*=}" -f ;;
        SCHEDULE) _attune_pairs "$1" "$3" $_attune_schedule ;;
        SIZES) _attune_pairs "$1" "$3" $_attune_sizes ;;
        ISA) _attune_reply "$1" "$3" $_attune_isas ;;
        STAGE) _attune_reply "$1" "$3" $_attune_stages ;;
        TEXT) ;;
        *) _attune_reply "$1" "$3" ${2//|/ } ;;
    esac
}

# What is no option. COMMAND ACTION WORD, the action being that of `attune cache`.
_attune_operand() {
    # shellcheck disable=SC2086 # a list of words
    case $1 in
        help) _attune_reply '' "$3" $_attune_commands ;;
        info) ;;
        conform) _attune_files '' "$3" -d ;;
        ir) _attune_files '' "$3" -f ;;
        cache)
            case $2 in
                '') _attune_reply '' "$3" $_attune_actions ;;
                why) _attune_pairs '' "$3" $_attune_fields ;;
                export | import) _attune_files '' "$3" -d ;;
            esac ;;
        *)
            _attune_pairs '' "$3" $_attune_fields
            [ "$1" != sweep ] || _attune_reply '' "$3" merge
            case $1 in tune | sweep | warm) [[ $3 == *=* ]] || _attune_files '' "$3" -f ;; esac ;;
    esac
}

_attune_actions='ls verify why audit gc clear export import'

# The action among words, which options may come before.
_attune_action() {
    local word
    for word in "$@"; do [[ " $_attune_actions " == *" $word "* ]] && echo "$word" && return; done
}

# Cuts a line at the blanks outside of quotes: `words` before the last one, `word`, and the quote that it is in, `open`.
_attune_split() {
    local i c
    for ((i = 0; i < ${#1}; i++)); do
        c=${1:i:1}
        if [[ -n $open ]]; then
            if [[ $c == "$open" ]]; then open=; else word+=$c; fi
        else
            case $c in
                [\'\"]) open=$c ;;
                [[:blank:]]) [[ -z $word ]] || words+=("$word"); word= ;;
                *) word+=$c ;;
            esac
        fi
    done
}

_attune() {
    # COMP_WORDS is cut at = and : as well, so the line is cut again, at blanks.
    local line=${COMP_LINE:0:COMP_POINT} word='' open='' before option kind cut
    local -a words=()
    COMPREPLY=()
    _attune_split "$line"
    before=${words[-1]}
    if [ "${#words[@]}" -lt 2 ]; then
        # shellcheck disable=SC2086 # a list of words
        _attune_reply '' "$word" $_attune_commands --help --version
    else
        kind=
        for option in $(_attune_options "${words[1]}"); do
            case $word in
                "${option%%=*}"=*) kind=${option#*=} ; _attune_argument "${word%%=*}=" "$kind" "${word#*=}" ;;
            esac
            [[ $option == *=* && $before == "${option%%=*}" ]] && kind=${option#*=} && _attune_argument '' "$kind" "$word"
        done
        if [ -z "$kind" ]; then
            if [[ $word == -* ]]; then
                for option in $(_attune_options "${words[1]}"); do
                    kind=${option%%=*}
                    [[ $option == --*=* ]] && kind+='='
                    _attune_reply '' "$word" "$kind"
                done
            else
                _attune_operand "${words[1]}" "$(_attune_action "${words[@]:2}")" "$word"
            fi
        fi
    fi
    # After a key or an option that waits for its value there is no blank.
    [[ ${#COMPREPLY[@]} -gt 0 && ${COMPREPLY[0]} == *= ]] && compopt -o nospace 2>/dev/null
    # Readline replaces what follows the last of its word breaks only; within quotes, all that follows these.
    cut=${word%"${word##*[=:]}"}
    [[ -z $open && $COMP_WORDBREAKS == *=* ]] && COMPREPLY=("${COMPREPLY[@]#"$cut"}")
    return 0
}
complete -F _attune attune
