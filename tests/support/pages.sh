# Checks of pages written in Markdown, each of which prints what is wrong and fails if anything is. To be sourced.

# prose FILE: its lines without code, which holds no links.
prose() { awk '/^ *```/ { code = !code; next } !code' "$1" | sed -E 's/`[^`]*`//g'; }

# anchors FILE: the names by which its headings can be reached.
anchors() {
    awk '/^```/ { code = !code } !code && /^#+ /' "$1" | sed -E 's/^#+ //; s/[^A-Za-z0-9 _-]//g; s/ /-/g' |
        tr '[:upper:]' '[:lower:]'
}

# links FILE: the targets of its relative links, one in a line.
links() {
    prose "$1" | grep -oE '\]\([^)]+\)' | sed -E 's/^\]\(//; s/\)$//; s/ ".*$//' | grep -vE '^(https?|mailto):' || true
}

# broken_links FILE…: links to files and headings that are not there.
broken_links() {
    local -A headings=()
    local page folder target file anchor status=0
    for page in "$@"; do
        folder=. && [[ $page != */* ]] || folder=${page%/*}
        while IFS= read -r target; do
            file=${target%%#*} anchor=
            [[ $target != *'#'* ]] || anchor=${target#*#}
            file=${file:+$folder/$file} file=${file:-$page}
            [ -z "$anchor" ] || [ -n "${headings[$file]:-}" ] || [ ! -e "$file" ] || headings[$file]=$(anchors "$file")
            if [ ! -e "$file" ]; then
                echo "$page: there is no $target"
                status=1
            elif [ -n "$anchor" ] && [[ $'\n'${headings[$file]}$'\n' != *$'\n'"$anchor"$'\n'* ]]; then
                echo "$page: $target has no such heading"
                status=1
            fi
        done < <(links "$page" | sort -u)
    done
    return $status
}

# reachable FILE: the files that its links lead to, and theirs, sorted.
reachable() {
    local -A seen=() named=()
    local page target queue=("$1")
    while [ ${#queue[@]} -gt 0 ]; do
        page=${queue[0]} queue=("${queue[@]:1}")
        [ -z "${named[$page]:-}" ] || continue
        named[$page]=1
        page=$(realpath --relative-to=. "$page")
        [ -z "${seen[$page]:-}" ] || continue
        seen[$page]=1
        [[ $page == *.md ]] || continue
        while IFS= read -r target; do
            [ -z "${target%%#*}" ] || queue+=("$(dirname "$page")/${target%%#*}")
        done < <(links "$page")
    done
    printf '%s\n' "${!seen[@]}" | LC_ALL=C sort
}

# missing_paths FILE…: files of this tree that are named in code, as `docs/design.md`, and are not there. Names with a
# part that varies ("…", "<", "$") do not count.
missing_paths() {
    local page name status=0
    for page in "$@"; do
        while IFS= read -r name; do
            compgen -G "$name" >/dev/null || { echo "$page: there is no $name" && status=1; }
        done < <(grep -oE '`(src|tools|tests|docs|examples|bench|scripts|include)/[A-Za-z0-9_./*-]+`' "$page" |
            tr -d '`' | sort -u)
    done
    return $status
}

# missing_targets FILE…: targets of make that are named in code and are not in the makefiles.
missing_targets() {
    local page name status=0
    for page in "$@"; do
        while IFS= read -r name; do
            grep -qE "^([a-z0-9-]+ )*$name( [a-z0-9-]+)*:" Makefile mk/*.mk && continue
            echo "$page: make $name is no target"
            status=1
        done < <(grep -oE '(`|^ +|^)make ([A-Z_]+=[^ `]* )*[a-z][a-z0-9-]*( [a-z][a-z0-9-]*)*`?' "$page" |
            grep -E '^ |`$|^make .*[^`]$' | sed -E 's/`//g; s/^ *make //; s/[A-Z_]+=[^ ]* *//g' | tr ' ' '\n' | sort -u)
    done
    return $status
}

# too_wide FILE…: lines of more than 120 characters. Tables, links and code cannot be broken.
too_wide() {
    local page
    for page in "$@"; do
        awk '/^ *```/ { code = !code } !code' "$page" | grep -vE '^ *\||^    |\]\(' | LC_ALL=C.UTF-8 grep -E '^.{121}' |
            sed "s|^|$page: |"
    done | { ! grep .; }
}

# unknown_messages FILE: messages quoted as "> …" that no source has. The quote's dots stand for one value or more.
unknown_messages() {
    local message pattern status=0
    [ -n "${sources:-}" ] ||
        sources=$(cat $(find src adapters tools -name '*.[ch]') scripts/*.sh Makefile mk/*.mk |
            sed -z 's/"[ \t]*\n[ \t]*"//g' | grep '"')
    while IFS= read -r message; do
        pattern=$(sed -E 's/[][(){}.*+?^$|\\/]/\\&/g; s/…/[^"]*/g' <<<"${message#> }")
        LC_ALL=C grep -qE -- "$pattern" <<<"$sources" || { echo "$1: no source says: ${message#> }" && status=1; }
    done < <(grep '^> ' "$1")
    return $status
}

# unknown_names FILE…: members `desc.NAME` and `step.NAME` that attune/attention.h has not, and constants ATTUNE_NAME
# that neither the headers nor the list of environment variables have.
unknown_names() {
    local page name status=0
    for page in "$@"; do
        while IFS= read -r name; do
            grep -qE "[ *]${name#*.}[,;]" include/attune/attention.h && continue
            echo "$page: there is no $name" && status=1
        done < <(grep -oE '\b(desc|step)\.[a-z_]+' "$page" | sort -u)
        while IFS= read -r name; do
            grep -rqw "$name" include docs/environment.md && continue
            echo "$page: there is no $name" && status=1
        done < <(grep -oE '\bATTUNE_[A-Z0-9_]+' "$page" | sort -u)
    done
    return $status
}

# unlisted_variables FILE: environment variables that the sources read and the tables of FILE lack, and those that it
# has in a table and no source reads.
unlisted_variables() {
    {
        grep -rhoE '(getenv|at_codegen_find|is_set|environ\.get)\("[A-Z0-9_]+"|environ\["[A-Z0-9_]+"\]' \
            src adapters tools lab python/attune | grep -oE '[A-Z0-9_]{2,}'
        grep -rhoE '_adapter\.(path|load)\("[a-z]+"' python/attune |
            sed -E 's/.*"([a-z]+)"/ATTUNE_\U\1_LIBRARY/'
        grep -oE 'environ\.get\("ATTUNE_[A-Z_]+"' python/setup.py | grep -oE 'ATTUNE_[A-Z_]+'
    } | LC_ALL=C sort -u >"$work/read"
    grep '^| `' "$1" | cut -d '|' -f 2 | grep -oE '[A-Z0-9_]{2,}' | LC_ALL=C sort -u >"$work/listed"
    # One of builds for tests, and two that only the default of another has.
    LC_ALL=C comm -3 <(grep -vxE 'ATTUNE_JIT_ASAN|XDG_CACHE_HOME|HOME' "$work/read") "$work/listed" | { ! grep .; }
}

# take_blocks FILE DIR: its code blocks as DIR/NN.LANGUAGE, and DIR/NN.c.name where a line "<!-- file: NAME -->" comes
# first.
take_blocks() {
    awk -v dir="$2" '
        /^<!-- file: / { name = $3; next }
        /^```[a-z]+$/ && !out { out = sprintf("%s/%02d.%s", dir, ++number, substr($0, 4)); printf "" > out
                                if (name != "") { print name > (out ".name"); close(out ".name"); name = "" }; next }
        /^```$/ && out { close(out); out = ""; next }
        out { print > out }' "$1"
}

# run_blocks DIR: what take_blocks left, in order and in this directory: sh runs, c and python that have a name are
# written to their files, and of text each line must be in what ran last, in this order ("…": anything). Stops at the
# first that fails.
run_blocks() {
    local block line pattern said=/dev/null from
    for block in "$1"/*.{sh,c,python,text}; do echo "$block"; done | LC_ALL=C sort >"$1/list"
    while IFS= read -r block; do
        [ -e "$block" ] || continue
        case $block in
        *.c | *.python) [ ! -e "$block.name" ] || cp "$block" "$(cat "$block.name")" || return 1 ;;
        *.sh)
            said=$block.said
            bash -euo pipefail "$block" >"$said" 2>&1 </dev/null || { cat "$block" "$said"; return 1; } ;;
        *.text)
            from=1
            while IFS= read -r line; do
                pattern=^$(sed -E 's/[][(){}.*+?^$|\\/]/\\&/g; s/…/.+/g' <<<"$line")\$
                line=$(tail -n +$from "$said" | grep -nE -m 1 -- "$pattern") ||
                    { echo "nothing said: $pattern"; cat "$said"; return 1; }
                from=$((from + ${line%%:*}))
            done <"$block" ;;
        esac
    done <"$1/list"
}

# refused_features FILE: problems of its table of features that the command $ATTUNE refuses, with sizes where they lack.
refused_features() {
    local problem status=0 rows=0
    while IFS= read -r problem; do
        rows=$((rows + 1))
        [[ ,$problem == *,num_heads=* ]] || problem+=,num_heads=8
        [[ ,$problem == *,seq_q=* ]] || problem+=,seq_q=$([[ ,$problem == *,is_ragged=1* ]] && echo dynamic || echo 64)
        [[ ,$problem == *,head_dim=* || ,$problem == *,embed_dim=* ]] || problem+=,head_dim=64
        "$ATTUNE" compile "$problem" --emit=ir 2>&1 >/dev/null </dev/null || status=1
    done < <(awk -F '|' '/^\| feature \| problem \|/ { table = 1; getline; next } !/^\|/ { table = 0 }
                         table { gsub(/[ `]/, "", $3); print $3 }' "$1")
    [ $rows -gt 0 ] && [ $status -eq 0 ]
}
