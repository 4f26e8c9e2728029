# Completion of attune for bash. Made by scripts/completions.sh: `make completions` writes it anew.

# The options of a command: --name, or --name=KIND where it takes an argument.
_attune_options() {
    case $1 in
        run) echo '--check --engine=jit|vm|interp --expect=FILE --json --k=FILE --layout=out_in|in_out --lse=FILE -o=FILE --output=FILE --q=FILE --schedule=SCHEDULE --sizes=SIZES --tensor=NAMED --threads=TEXT --v=FILE --write=NAMED --cache-base=DIR --cache-dir=DIR --isa=ISA --help --usage' ;;
        mha) echo '--check --engine=jit|vm|interp --expect=FILE --ignore=TEXT --json --layout=out_in|in_out --lse=FILE --name=TEXT -o=FILE --output=FILE --packed=FILE --prefix=TEXT --save-packed=FILE --schedule=SCHEDULE --sizes=SIZES --tensor=NAMED --threads=TEXT --weights=FILE --write=NAMED --x=FILE --x-kv=FILE --x-v=FILE --cache-base=DIR --cache-dir=DIR --isa=ISA --help --usage' ;;
        compile) echo '--dump-passes --emit=STAGE --json -o=FILE --output=FILE --schedule=SCHEDULE --target=ISA --cache-base=DIR --cache-dir=DIR --isa=ISA --help --usage' ;;
        bench) echo '--engine=jit|vm|interp --json -o=FILE --output=FILE --report=FILE --samples=TEXT --schedule=SCHEDULE --sizes=SIZES --threads=TEXT --cache-base=DIR --cache-dir=DIR --isa=ISA --help --usage' ;;
        explain) echo '--dry-run --json --schedule=SCHEDULE --sizes=SIZES --target=ISA --threads=TEXT --cache-base=DIR --cache-dir=DIR --isa=ISA --help --usage' ;;
        tune) echo '--arg=TEXT --budget=TEXT --export=FILE --import=FILE --ir=FILE --json --sizes=SIZES --threads=TEXT --cache-base=DIR --cache-dir=DIR --isa=ISA --help --usage' ;;
        sweep) echo '--cold --cold-data --csv --dry-run --jobs=TEXT --json --limit=TEXT --max-spread=TEXT -o=FILE --output=FILE --samples=TEXT --shard=TEXT --sizes=SIZES --threads=TEXT --warm --cache-base=DIR --cache-dir=DIR --isa=ISA --help --usage' ;;
        warm) echo '--budget=TEXT --jobs=TEXT --json --cache-base=DIR --cache-dir=DIR --isa=ISA --help --usage' ;;
        cache) echo '--json --max-bytes=TEXT -o=FILE --output=FILE --pack=FILE --sample=TEXT --schedule=SCHEDULE --seed=TEXT --set=TEXT --cache-base=DIR --cache-dir=DIR --isa=ISA --help --usage' ;;
        bundle) echo '--header=FILE --json --kernels-only --name=TEXT -o=FILE --output=FILE --shared --targets=TEXT --cache-base=DIR --cache-dir=DIR --isa=ISA --help --usage' ;;
        info) echo '--json --machine --probe-machine --cache-base=DIR --cache-dir=DIR --isa=ISA --help --usage' ;;
        ir) echo '--arg=TEXT --check --dump-passes --emit=STAGE --engine=jit|vm|interp --json --out=NAMED -o=FILE --output=FILE --set=TEXT --target=ISA --cache-base=DIR --cache-dir=DIR --isa=ISA --help --usage' ;;
    esac
}

# The values that a field of a problem may have, as far as they are words.
_attune_values() {
    case $1 in
        op) echo attention weights rotary merge mha linear conv index blocks mla ;;
        is_cross | is_causal | has_lse | has_alibi_slopes | has_sinks | has_kv_lens | has_causal_offsets | is_ragged | has_kv_id_lens | is_general | kv_projected | v_in_k | no_out_projection | low_rank_heads | low_rank_shared | short_masks | rotary_interleaved | has_position_ids | qk_hadamard | weights_average | has_row_ids | reproducible) echo 0 1 ;;
        seq_q | seq_kv | num_ids | seq_new | num_rows) echo dynamic ;;
        dtype | bias_dtype) echo f32 f16 bf16 f64 ;;
        k_dtype | v_dtype | kv_dtype) echo f32 f16 bf16 f64 i8 f8 i4 ;;
        k_scales | v_scales | kv_scales) echo none head token group channel inline inline_min token_min group_min channel_min ;;
        k_layout | v_layout | kv_layout) echo rows panels ;;
        integer) echo none scores all ;;
        q_planes) echo 1 2 ;;
        w_dtype) echo f32 f16 bf16 f64 i8 i4 ;;
        softmax_precision) echo f32 f64 ;;
        matmul_precision) echo f32 bf16 ;;
        softmax_scale) echo default dynamic ;;
        causal_align) echo bottom_right top_left ;;
        kv_ids) echo none sequence query ;;
        attn_mask_dims | attn_bias_dims) echo qk bqk bhqk bk k ;;
        weights_mode) echo none scaled capped masked softmax ;;
        layout) echo bhsd bshd ;;
        strategy) echo q_lanes d_lanes ;;
        value_by) echo auto columns rows ;;
        kv_copy) echo auto none converted all once ;;
        task_prefetch) echo auto none head ;;
        gemm_by) echo auto vectors tiles ;;
        gemm_groups) echo auto whole narrow ;;
        gemm_rest) echo auto filled own ;;
    esac
}

_attune_commands='run mha compile bench explain tune sweep warm cache bundle info ir help'
_attune_fields='op batch embed_dim kv_embed_dim v_embed_dim out_dim is_cross num_heads num_kv_heads seq_q seq_kv head_dim head_dim_v dtype k_dtype v_dtype kv_dtype k_scales v_scales kv_scales k_group v_group kv_group k_layout v_layout kv_layout integer q_planes w_dtype w_group x_planes bias_dtype softmax_precision matmul_precision softmax_scale logits_soft_cap is_causal causal_align causal_offset window_left window_right global_tokens has_lse has_alibi_slopes has_sinks has_kv_lens has_causal_offsets is_ragged page_size kv_ids num_ids has_kv_id_lens is_general max_seq_q max_seq_kv seq_new kv_projected v_in_k no_out_projection low_rank low_rank_heads low_rank_shared short_masks attn_mask_dims attn_bias_dims rotary_dim rotary_interleaved has_position_ids qk_norm_eps qk_hadamard weights_mode weights_average has_row_ids num_rows tensors score_mod mask_mod prob_mod reproducible num_parts q_strides k_strides v_strides out_strides lse_strides attn_mask_strides attn_bias_strides k_new_strides v_new_strides weights_strides x_strides x_kv_strides x_v_strides k_scale_strides v_scale_strides k_group_strides v_group_strides layout'
_attune_schedule='strategy lanes score_row_vectors score_keys score_columns value_by value_row_vectors value_columns value_keys task_row_vectors kv_tile kv_copy task_prefetch score_rows score_column_vectors score_streams value_rows value_column_vectors value_streams kv_chunk kv_prefetch gemm_rows gemm_column_vectors gemm_task_rows gemm_depth gemm_by gemm_prefetch gemm_groups gemm_rest'
_attune_sizes='seq_q seq_kv seq_new num_rows total_q total_kv num_pages max_pages mask_seq_kv bias_seq_kv rotary_positions rotary_batch_stride num_ids softmax_scale'
_attune_isas='avx512_bf16 amx avx512 avx2 x86-64 aarch64'
_attune_stages='ir lowered llvm asm obj image'

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
