/* The decisions, one function for each; mha_variant_of calls them in the order of their dependencies. Sizes that are
 * known at run time only are less than 1 here, and count as if they could be anything. */
#include "schedule/variant.h"

#include "base/integers.h"
#include "problem/problem.h"
#include "problem/problem_sight.h"

/* ---- Arithmetic ---- */

static bool has_dot2(const at_target *target) { return target->flags & AT_TARGET_BF16_DOT; }

/* Whether elements of K or V are bf16, or are converted to it exactly. */
static bool is_half_of_pair(attune_dtype dtype, attune_scales scales) {
    return dtype == ATTUNE_BF16 || (dtype == ATTUNE_F8 && !mha_scales_elements(scales));
}

static bool has_halves(const attune_problem *p) {
    return p->dtype == ATTUNE_BF16 && is_half_of_pair(p->k_dtype, p->k_scales) &&
           is_half_of_pair(p->v_dtype, p->v_scales);
}

/* Whether Q, K and V of other types may be rounded to bf16. Integer products need no rounding, and probabilities that
 * are an output must be those of unrounded scores. */
static bool may_round(const attune_problem *p) {
    const bool is_quantised = mha_is_quantised(p->k_dtype) || mha_is_quantised(p->v_dtype);
    const bool may = p->matmul_precision == ATTUNE_BF16 || (p->dtype == ATTUNE_BF16 && !is_quantised);
    return may && p->op == ATTUNE_ATTENTION && !p->integer && !p->weights_mode && !mha_has_panels(p);
}

static bool may_pair(const attune_problem *p, const at_target *target) {
    return has_dot2(target) && mha_attends(p) && !p->reproducible && !p->prob_mod[0] &&
           p->softmax_precision == ATTUNE_F32 && p->matmul_precision != ATTUNE_F32 && p->head_dim % 2 == 0;
}

bool mha_attends_by_pairs(const attune_problem *p, const at_target *target) {
    return may_pair(p, target) && (has_halves(p) || may_round(p));
}

bool mha_decodes_by_pairs(const attune_problem *p, const at_target *target) {
    return may_pair(p, target) && has_halves(p);
}

bool mha_projects_by_pairs(const attune_problem *p, const at_target *target) {
    return has_dot2(target) && mha_is_block(p) && p->dtype == ATTUNE_BF16 && p->w_dtype == ATTUNE_BF16 &&
           p->softmax_precision == ATTUNE_F32;
}

/* ---- Properties that several decisions need ---- */

static bool is_float(attune_dtype dtype) {
    return dtype == ATTUNE_F32 || dtype == ATTUNE_F16 || dtype == ATTUNE_BF16 || dtype == ATTUNE_F64;
}

/* Query rows of a KV head. */
static int64_t rows_of(const attune_problem *p) { return p->seq_q * (p->num_heads / p->num_kv_heads); }

/* The number of keys in attention; low_rank of them in a block of low rank. */
static int64_t keys_of(const attune_problem *p) { return p->low_rank ? p->low_rank : p->seq_kv; }

static bool has_bounds(const attune_problem *p) { return mha_has_first_key(p) || mha_has_last_key(p); }

static bool has_elements(const attune_problem *p) {
    return mha_has_dims(p->attn_mask_dims) || mha_has_dims(p->attn_bias_dims);
}

/* Whether query i attends to keys 0 … i, and the heads of a group are not interleaved. */
static bool is_causal_square(const attune_problem *p) {
    const bool is_square = p->is_causal && p->num_heads == p->num_kv_heads && p->seq_kv >= p->seq_q;
    const bool starts_at_0 =
        mha_is_base_known(p) ? !mha_first_position(p, p->seq_q, p->seq_kv) : !p->causal_offset && p->seq_kv == p->seq_q;
    const bool has_offset = !starts_at_0 || p->has_causal_offsets || p->global_tokens;
    return is_square && !has_offset && !p->has_kv_lens && !p->page_size && !p->short_masks && !p->low_rank;
}

/* ---- Prefill: scores ---- */

/* For few rows, lanes along the columns pay: Q is not transposed, hidden scores on the diagonal are skipped, and rows
 * after the last whole vector cost no more than others. Eight sums are reduced together; with fewer columns, the
 * reduction would take longer than the products. Targets with vectors of 8 lanes have 16 registers, which hold the sums
 * of four rows: there only causal squares gain. */
static bool scores_by_columns(const attune_problem *p, const mha_schedule *s, const at_target *target) {
    enum { LANES = 8 };
    const bool has_halves = target->vector_bytes == 2 * LANES * 4 && !at_has_few_registers(target);
    const bool has_wholes = target->vector_bytes == LANES * 4 && is_causal_square(p);
    const int64_t most_rows = has_halves ? 64 : p->head_dim >= 96 ? 32 : 24, least_columns = has_halves ? 40 : 48;
    const bool has_vectors = s->lanes == LANES && s->score_row_vectors == 1 && s->score_keys == LANES;
    if (!(has_halves || has_wholes) || !has_vectors || p->softmax_precision != ATTUNE_F32) return false;
    if (p->seq_q < 1 || rows_of(p) > most_rows || p->is_ragged || p->reproducible || mha_quantises_keys(p))
        return false;
    if (p->k_layout == ATTUNE_LAYOUT_PANELS || mha_attends_by_pairs(p, target)) return false;
    return is_float(p->k_dtype) && p->head_dim % LANES == 0 && p->head_dim >= least_columns;
}

/* With lanes along the columns, a score takes some multiply-adds of whole vectors, and shuffles for the reduction. With
 * lanes along the rows, it takes one vector of the schedule for each column. The gain is at most a part of one stripe.
 * It is not possible for quantised values, which have four columns in a lane, nor for panels, where the columns of a
 * key are not contiguous. */
static int64_t rest_rows(const attune_problem *p, const mha_schedule *s, const at_target *target) {
    enum { ADDING = 5, MOST_STRIPES = 20, LEAST_COLUMNS = 8 };
    const int64_t wide = target->vector_bytes / (p->softmax_precision == ATTUNE_F64 ? 8 : 4);
    const int64_t rows = rows_of(p), rest = rows % s->lanes;
    const int64_t stripes = ceil_div(rows, (int64_t)s->score_row_vectors * s->lanes);
    if (p->seq_q < 1 || p->is_ragged || p->reproducible || mha_attends_by_pairs(p, target)) return 0;
    if (mha_quantises_keys(p) || p->k_layout == ATTUNE_LAYOUT_PANELS) return 0;
    if (rest == 0 || rows < s->lanes || p->head_dim % LEAST_COLUMNS || p->head_dim < wide) return 0;
    if (stripes > MOST_STRIPES || (stripes > 1 && s->score_row_vectors > 1)) return 0;
    const int64_t by_columns = rest * (ceil_div(p->head_dim, wide) + ADDING) * wide, by_rows = p->head_dim * s->lanes;
    return 2 * by_columns <= by_rows ? rest : 0;
}

static bool score_tiles_overlap(const attune_problem *p, const mha_schedule *s) {
    const bool is_known = p->seq_kv >= 1 && !p->low_rank && !p->is_ragged && !p->has_kv_lens && !p->page_size;
    if (!is_known || has_elements(p) || p->score_mod[0] || p->mask_mod[0]) return false;
    if (s->score_keys < 1 || s->kv_tile < 1 || p->seq_kv % s->score_keys == 0) return false;
    return p->seq_kv - (ceil_div(p->seq_kv, s->kv_tile) - 1) * s->kv_tile >= s->score_keys;
}

int32_t mha_tile_step(const attune_problem *p, const mha_schedule *s) {
    const bool has_pairs = p->v_layout == ATTUNE_LAYOUT_PANELS && p->v_dtype == ATTUNE_BF16;
    return has_pairs && s->score_keys % 2 ? 2 * s->score_keys : s->score_keys;
}

static void decide_scores(const attune_problem *p, const mha_schedule *s, const at_target *target, mha_variant *v) {
    v->scores_by_columns = scores_by_columns(p, s, target);
    v->is_square = v->scores_by_columns && is_causal_square(p) && p->seq_kv <= s->kv_tile;
    v->rest_rows = v->scores_by_columns ? 0 : rest_rows(p, s, target);
    v->score_tiles_overlap = !v->is_square && score_tiles_overlap(p, s);
}

/* ---- Prefill: values ---- */

static bool hides_keys(const attune_problem *p) {
    return has_bounds(p) || p->has_kv_lens || has_elements(p) || p->mask_mod[0];
}

/* Whether each query has a visible key, by causality and window, in sequences of equal length. */
static bool sees_some_key(const attune_problem *p) {
    const bool is_known = p->seq_q >= 1 && p->seq_kv >= 1;
    const int64_t first = mha_first_position(p, p->seq_q, p->seq_kv);
    if (!has_bounds(p)) return is_known;
    return is_known && !p->has_causal_offsets && first >= 0 && (!mha_has_first_key(p) || first + p->seq_q <= p->seq_kv);
}

/* Whether values by rows can read V: in place, or as pairs in scratch. */
static bool reads_rows(const attune_problem *p, const at_target *target) {
    const bool rounds = mha_attends_by_pairs(p, target) && !mha_decodes_by_pairs(p, target);
    return rounds || (is_float(p->v_dtype) && is_float(p->k_dtype));
}

static bool may_keep_rows(const attune_problem *p, const mha_schedule *s, const at_target *target) {
    return p->head_dim_v >= s->lanes && s->lanes >= 4 && reads_rows(p, target) && !p->short_masks;
}

/* Keys are one tile, all of them are visible to all rows, and rows fill their stripes. */
static bool may_be_whole(const attune_problem *p, const mha_schedule *s, const at_target *target) {
    const int64_t rows = rows_of(p), keys = keys_of(p), stripe = (int64_t)s->score_row_vectors * s->lanes;
    return p->seq_q >= 1 && keys >= 1 && keys <= s->kv_tile && (rows <= stripe || rows % stripe == 0) &&
           !p->is_ragged && !p->page_size && !p->has_sinks && !hides_keys(p) && reads_rows(p, target);
}

/* Keys are one tile, of which each row attends to a part. */
static bool may_be_one_tile(const attune_problem *p, const mha_schedule *s, const at_target *target) {
    return keys_of(p) <= s->kv_tile && sees_some_key(p) && may_keep_rows(p, s, target) && !p->is_ragged &&
           !p->page_size && !p->has_kv_lens && !p->has_sinks && !p->low_rank;
}

static bool may_pair_once(const attune_problem *p, const mha_schedule *s) {
    const int64_t keys = keys_of(p);
    const bool is_one_tile = keys >= 1 && keys <= s->kv_tile;
    if (p->v_layout == ATTUNE_LAYOUT_PANELS) return false; /* V is in pairs */
    return !p->is_ragged && !p->page_size && !p->short_masks && (s->kv_tile % 2 == 0 || is_one_tile);
}

static void decide_values(const attune_problem *p, const mha_schedule *s, const at_target *target, mha_variant *v) {
    enum { WIDE = 64 };
    const bool is_whole = may_be_whole(p, s, target);
    v->may_keep_rows = may_keep_rows(p, s, target);
    v->may_go_by_rows = mha_attends(p) && (is_whole || v->may_keep_rows);
    v->usually_by_rows = mha_attends(p) && (is_whole || (target->vector_bytes >= WIDE && v->may_keep_rows));
    v->values = s->value_by != MHA_VALUE_BY_ROWS ? MHA_VALUES_TRANSPOSED
                : is_whole                       ? MHA_VALUES_WHOLE
                : may_be_one_tile(p, s, target)  ? MHA_VALUES_ONE_TILE
                                                 : MHA_VALUES_KEPT;
    v->may_pair_once = v->by_pairs && may_pair_once(p, s);
    v->writes_probabilities = v->values == MHA_VALUES_WHOLE && p->weights_mode == ATTUNE_WEIGHTS_SOFTMAX &&
                              !p->weights_average && !p->low_rank && !p->reproducible && !v->by_pairs;
}

static void decide_mask_table(const attune_problem *p, const mha_schedule *s, mha_variant *v) {
    enum { FEW_KEYS = 64 };
    const bool attends = p->op == ATTUNE_ATTENTION || p->op == ATTUNE_MHA;
    v->has_mask_table = attends && p->mask_mod[0] && mha_most_keys(p) > FEW_KEYS;
    v->mask_unit = s->score_keys % 2 && v->by_pairs ? 2 * s->score_keys : s->score_keys;
}

mha_strips mha_next_strips(const attune_problem *p, const mha_schedule *s, const at_target *target, int64_t left) {
    enum { MANY_SUMS = 12, NARROW = 3, WIDE = 4 };
    const bool has_few = at_has_few_registers(target) && (target->flags & AT_TARGET_FMA);
    const bool is_narrow = has_few && has_bounds(p) && s->value_columns * (int64_t)s->value_row_vectors >= MANY_SUMS;
    const int64_t vectors = ceil_div(left, ceil_div(left, is_narrow ? NARROW : WIDE)), alike = left / vectors;
    /* A strip of one vector has as many loads of P as products, so the last four vectors are split into two and two. */
    const bool leaves_one = is_narrow && alike > 1 && left - alike * vectors == 1;
    return (mha_strips){.vectors = (int)vectors, .alike = alike - leaves_one};
}

/* ---- Decoding ---- */

static bool may_stream_scores(const mha_schedule *s) {
    enum { QUARTERS = 4 };
    return s->lanes >= QUARTERS && s->score_keys >= QUARTERS && s->score_keys % QUARTERS == 0 &&
           s->lanes % (s->score_keys / QUARTERS) == 0;
}

static bool holds_values(const attune_problem *p, const mha_schedule *s, bool by_pairs) {
    if (s->value_keys != 1 || by_pairs) return false;
    if (p->integer || p->v_layout == ATTUNE_LAYOUT_PANELS || mha_scales_elements(p->v_scales)) return false;
    return p->v_dtype != ATTUNE_I4;
}

static int rows_in_vector(const attune_problem *p, const mha_schedule *s) {
    enum { WORD = 4, BYTE_BITS = 8 };
    const int64_t bits = p->k_dtype == ATTUNE_I4 ? BYTE_BITS / 2 : BYTE_BITS;
    int pack = s->lanes >= 8 && s->score_rows > 1 ? 2 : 1;
    if (p->k_layout == ATTUNE_LAYOUT_PANELS) return 1;
    if (!mha_is_by_group(p->k_scales)) return pack;
    while ((int64_t)WORD * s->lanes / pack * BYTE_BITS > p->k_group * bits) pack *= 2;
    return pack;
}

static mha_score_form scores_of_keys(const attune_problem *p) {
    const bool has_panels = p->k_layout == ATTUNE_LAYOUT_PANELS;
    if (p->integer) return has_panels ? MHA_SCORES_QUANTISED_PANELS : MHA_SCORES_QUANTISED;
    return has_panels ? MHA_SCORES_PANELS : p->reproducible ? MHA_SCORES_SERIAL : MHA_SCORES_BY_COLUMNS;
}

static mha_sum_form sums_of_values(const attune_problem *p, bool holds_values) {
    if (p->integer != ATTUNE_INTEGER_ALL) return holds_values ? MHA_SUMS_HELD : MHA_SUMS_IN_MEMORY;
    return p->v_layout == ATTUNE_LAYOUT_PANELS ? MHA_SUMS_QUANTISED_PANELS : MHA_SUMS_QUANTISED;
}

static void decide_decoding(const attune_problem *p, const mha_schedule *s, mha_variant *v) {
    v->may_stream_scores = may_stream_scores(s);
    v->scores_of_keys = scores_of_keys(p);
    v->holds_values = holds_values(p, s, v->by_pairs);
    v->sums_of_values = sums_of_values(p, v->holds_values);
    v->rows_in_vector = rows_in_vector(p, s);
    v->has_integer_chunk = s->kv_chunk == s->kv_tile || mha_most_keys(p) <= s->kv_chunk;
}

/* ---- Products of a block ---- */

bool mha_gemm_tiles(int64_t rows, int64_t vectors, int64_t depth) {
    enum { TILE = 16, TILE_DEPTH = 32, NUM_TILES = 8 };
    const int64_t high = rows / TILE;
    return rows % TILE == 0 && depth % TILE_DEPTH == 0 && high * vectors + high + vectors <= NUM_TILES;
}

/* Not with `reproducible`: hardware tiles sum in another order, and schedules for few rows do not use them. */
static void decide_products(const attune_problem *p, const mha_schedule *s, const at_target *target, mha_variant *v) {
    enum { TILE_LANES = 16, TILE_DEPTH = 32 };
    v->may_use_tiles = target->flags & AT_TARGET_TILES && v->projects_by_pairs && !p->reproducible;
    v->by_tiles =
        v->may_use_tiles && s->lanes == TILE_LANES && mha_gemm_tiles(s->gemm_rows, s->gemm_column_vectors, TILE_DEPTH);
}

/* ---- All of it ---- */

bool mha_merges_chunks(const attune_problem *p, const mha_schedule *s) {
    return s->strategy == MHA_D_LANES && !p->reproducible && mha_most_scored(p) > s->kv_chunk;
}

bool mha_bounds_chunks(const attune_problem *p) { return p->integer != ATTUNE_INTEGER_ALL; }

int64_t mha_most_chunks(const attune_problem *p, const mha_schedule *s, int64_t keys, int64_t kv_heads) {
    const int64_t units = ceil_div(keys, s->kv_chunk);
    return mha_bounds_chunks(p) ? min_of(units, ceil_div(MHA_CHUNK_TASKS, kv_heads)) : units;
}

/* Whether a call may have more stripes than a task usually has, and many keys. If lengths are known when compiling,
 * task_row_vectors was chosen for them. Tier 0's kernels have no room for the code. */
static bool may_be_long(const attune_problem *p, const mha_schedule *s) {
    const int64_t rows = mha_likely_queries(p) * (p->num_heads / p->num_kv_heads);
    if (p->is_general || !(p->is_ragged || p->has_kv_lens || p->page_size)) return false;
    return (p->is_ragged || p->seq_q < 0) && p->seq_kv < 0 && !p->low_rank && mha_most_keys(p) >= MHA_LONG_KEYS &&
           rows > (int64_t)s->task_row_vectors * s->lanes && !mha_has_functions(p);
}

/* Scratch of a task has Q and O of its rows. */
int64_t mha_most_stripes(const attune_problem *p, const mha_schedule *s) {
    enum { MOST_ROWS = 512, MOST_BYTES = 512 * 1024 };
    if (!may_be_long(p, s)) return mha_usual_stripes(s);
    const int64_t numbers = p->head_dim + p->head_dim_v * (p->reproducible ? 2 : 1);
    const int64_t fit = MOST_BYTES / (numbers * mha_dtype_bytes(p->softmax_precision));
    return max_of(min_of(MOST_ROWS, fit) / ((int64_t)s->score_row_vectors * s->lanes), mha_usual_stripes(s));
}

int64_t mha_task_stripes(const attune_problem *p, const mha_schedule *s, int64_t heads, int64_t stripes, int64_t keys) {
    if (keys < MHA_LONG_KEYS) return mha_usual_stripes(s);
    return max_of(min_of(heads * stripes / MHA_LONG_TASKS, mha_most_stripes(p, s)), mha_usual_stripes(s));
}

mha_variant mha_variant_of(const attune_problem *p, const mha_schedule *s, const at_target *target) {
    const bool decodes = s->strategy == MHA_D_LANES;
    mha_variant v = {.by_pairs = decodes ? mha_decodes_by_pairs(p, target) : mha_attends_by_pairs(p, target),
                     .projects_by_pairs = mha_projects_by_pairs(p, target)};
    if (mha_is_block(p)) decide_products(p, s, target, &v);
    if (decodes) {
        decide_decoding(p, s, &v);
        return v;
    }
    decide_scores(p, s, target, &v);
    decide_values(p, s, target, &v);
    decide_mask_table(p, s, &v);
    return v;
}
