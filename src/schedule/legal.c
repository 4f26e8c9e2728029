/* Which schedules are legal. */
#include "problem/weights_layout.h"
#include "schedule/choose.h"
#include "schedule/schedule.h"
#include "schedule/schedule_fields.h"
#include "schedule/space.h"
#include "schedule/variant.h"

#include <string.h>

/* Bounds that keep code and scratch small: a register tile of more accumulators than this only spills. */
enum {
    MAX_ACCUMULATORS = 64,
    MAX_UNROLL = 16,
    MAX_TASK_VECTORS = 64,
    MAX_STREAMS = 4,
    MAX_KV_TILE = 4096,
    MAX_GEMM_TASK = 4096,
    MAX_PREFETCH = 65536
};

typedef struct rule {
    bool kept;
    const char *sentence;
} rule;

static attune_status check_rules(const attune_problem *p, const mha_schedule *s, const at_target *target,
                                 const rule *rules, size_t count, at_error *err) {
    for (size_t i = 0; i < count; i++) {
        if (rules[i].kept) continue;
        char text[340];
        mha_schedule_print(s, text, sizeof text);
        return at_fail(err, ATTUNE_INVALID_SCHEDULE, "%s (%s; head_dim=%lld, head_dim_v=%lld, isa %s has %d lanes)",
                       rules[i].sentence, text, (long long)p->head_dim, (long long)p->head_dim_v, target->name,
                       mha_widest_lanes(p, target));
    }
    return ATTUNE_OK;
}

#define CHECK(rules) check_rules(p, s, target, rules, sizeof(rules) / sizeof *(rules), err)

static attune_status check_lanes(const attune_problem *p, const mha_schedule *s, const at_target *target,
                                 at_error *err) {
    const rule rules[] = {
        {s->lanes <= mha_widest_lanes(p, target) && !(s->lanes & (s->lanes - 1)),
         "lanes must be a power of two that fits the ISA's vectors"},
    };
    return CHECK(rules);
}

static bool has_products(const mha_schedule *s) { return mha_schedule_parts(s) & MHA_PART_PRODUCTS; }

static attune_status check_gemm(const attune_problem *p, const mha_schedule *s, const at_target *target,
                                const mha_variant *v, at_error *err) {
    const bool is_block = mha_is_block(p);
    const rule rules[] = {
        {is_block || !has_products(s), "gemm_rows and the other numbers of products must be 0 without embed_dim"},
        {!is_block || (s->gemm_rows && s->gemm_column_vectors && s->gemm_task_rows),
         "gemm_rows, gemm_column_vectors and gemm_task_rows must be at least 1 with embed_dim"},
        {s->gemm_rows * (int64_t)s->gemm_column_vectors <= MAX_ACCUMULATORS,
         "gemm_rows * gemm_column_vectors must be at most 64"},
        {!is_block || (s->gemm_column_vectors && MHA_PANEL_TILE % (s->gemm_column_vectors * (int64_t)s->lanes) == 0),
         "gemm_column_vectors * lanes must divide 64"},
        {!is_block || (s->gemm_rows && s->gemm_task_rows % s->gemm_rows == 0), "gemm_rows must divide gemm_task_rows"},
        {s->gemm_task_rows <= MAX_GEMM_TASK, "gemm_task_rows must be at most 4096"},
        {s->gemm_by != MHA_GEMM_BY_TILES || v->by_tiles,
         "gemm_by=tiles needs an ISA with hardware tiles, bf16 without reproducible, and register tiles of 16 lanes "
         "and 16 or 32 rows that eight of them hold"},
        {s->gemm_prefetch <= MAX_PREFETCH, "gemm_prefetch must be at most 65536"},
    };
    return CHECK(rules);
}

static attune_status check_q_lanes(const attune_problem *p, const mha_schedule *s, const at_target *target,
                                   const mha_variant *v, at_error *err) {
    const rule rules[] = {
        {!p->integer || mha_quantises_keys(p), "integer=scores and integer=all of quantised K need strategy=d_lanes"},
        {s->task_row_vectors <= MAX_TASK_VECTORS, "task_row_vectors must be at most 64"},
        {s->score_row_vectors <= s->task_row_vectors && s->task_row_vectors % s->score_row_vectors == 0,
         "score_row_vectors must divide task_row_vectors"},
        {s->value_row_vectors <= s->score_row_vectors && s->score_row_vectors % s->value_row_vectors == 0,
         "value_row_vectors must divide score_row_vectors"},
        {!p->kv_ids, "listed keys (kv_ids) are computed by strategy=d_lanes"},
        {s->score_keys * (int64_t)s->score_row_vectors <= MAX_ACCUMULATORS,
         "score_keys * score_row_vectors must be at most 64"},
        {s->value_columns <= p->head_dim_v, "value_columns must not exceed head_dim_v"},
        {s->value_columns * (int64_t)s->value_row_vectors <= MAX_ACCUMULATORS,
         "value_columns * value_row_vectors must be at most 64"},
        {s->score_columns <= MAX_UNROLL && p->head_dim % s->score_columns == 0,
         "score_columns must divide head_dim and be at most 16"},
        {s->value_keys <= MAX_UNROLL, "value_keys must be at most 16"},
        {s->kv_tile % s->score_keys == 0, "score_keys must divide kv_tile"},
        {s->kv_tile % mha_tile_step(p, s) == 0, "kv_tile must be even where v is bf16 in panels"},
        {s->kv_tile <= MAX_KV_TILE, "kv_tile must be at most 4096"},
        {s->value_by != MHA_VALUE_BY_ROWS || v->may_go_by_rows,
         "value_by=rows needs K and V that are not quantised, no short masks, and head_dim_v of at least one vector of "
         "4 lanes or more; or few keys, in one tile and all visible"},
        {s->kv_copy == MHA_COPY_CONVERTED || s->kv_copy == MHA_COPY_ONCE || !v->by_pairs,
         "kv_copy must be converted or once where products are of pairs of bf16"},
        {s->kv_copy != MHA_COPY_ONCE || v->may_pair_once,
         "kv_copy=once needs products of pairs of bf16, an even kv_tile or one tile, and a batch that is neither "
         "ragged nor paged, without short masks"},
        {s->kv_copy != MHA_COPY_NONE || !mha_dequantises_rows(p),
         "kv_copy must not be none where quantised values are packed or have scales of their own"},
    };
    return CHECK(rules);
}

static attune_status check_d_lanes(const attune_problem *p, const mha_schedule *s, const at_target *target,
                                   const mha_variant *v, at_error *err) {
    const rule rules[] = {
        {mha_attends(p), "d_lanes computes attention only"},
        {!p->prob_mod[0], "prob_mod is computed by strategy=q_lanes"},
        {!mha_quantises_keys(p), "integer=scores of k that is not quantised needs strategy=q_lanes"},
        {s->score_keys * (int64_t)s->score_rows * mha_query_planes(p) <= MHA_MAX_D_SUMS,
         p->integer ? "score_keys * score_rows * q_planes must be at most 32 for d_lanes"
                    : "score_keys * score_rows must be at most 32 for d_lanes"},
        {s->value_rows * (int64_t)s->value_column_vectors <= MHA_MAX_D_SUMS,
         "value_rows * value_column_vectors must be at most 32 for d_lanes"},
        {p->integer != ATTUNE_INTEGER_ALL || s->kv_tile == mha_reproducible_kv_tile(p),
         "kv_tile must be 512 with integer=all"},
        {p->integer != ATTUNE_INTEGER_ALL || v->has_integer_chunk,
         "kv_chunk must be kv_tile, or at least all keys, with integer=all"},
        {!p->integer || p->k_layout == ATTUNE_LAYOUT_PANELS || s->score_rows == 1 || s->score_rows % 2 == 0,
         "score_rows must be 1 or even with integer=scores and integer=all"},
        {!p->integer || s->score_rows % v->rows_in_vector == 0,
         "score_rows must be a multiple of the rows that share a vector of quantised values: as many as leave it one "
         "group of k"},
        {!p->integer || s->score_streams == 1, "score_streams must be 1 with integer=scores and integer=all"},
        {p->integer != ATTUNE_INTEGER_ALL || (s->value_rows <= 4 && s->value_keys == 1),
         "value_rows must be at most 4 with integer=all, and value_keys 1"},
        {p->integer != ATTUNE_INTEGER_ALL || p->v_layout == ATTUNE_LAYOUT_PANELS || s->value_column_vectors == 1,
         "value_column_vectors must be 1 with integer=all where v is no panels"},
        {s->score_column_vectors <= MAX_UNROLL, "score_column_vectors must be at most 16"},
        {s->value_keys <= MAX_UNROLL, "value_keys must be at most 16"},
        {s->value_rows * (int64_t)s->value_keys <= MHA_MAX_D_SUMS,
         "value_rows * value_keys must be at most 32 for d_lanes"},
        {s->value_rows * (int64_t)s->value_streams <= MHA_MAX_D_SUMS,
         "value_rows * value_streams must be at most 32 for d_lanes"},
        {s->kv_tile % s->score_keys == 0, "score_keys must divide kv_tile"},
        {s->kv_tile % s->lanes == 0, "lanes must divide kv_tile for d_lanes"},
        {s->kv_tile <= MAX_KV_TILE, "kv_tile must be at most 4096"},
        {!mha_has_panels(p) || s->kv_tile % ATTUNE_PANEL_TOKENS == 0, "16 must divide kv_tile for d_lanes with panels"},
        {p->k_layout != ATTUNE_LAYOUT_PANELS || s->score_streams == 1, "score_streams must be 1 with k_layout=panels"},
        {s->kv_chunk >= s->kv_tile && s->kv_chunk % s->kv_tile == 0, "kv_tile must divide kv_chunk"},
        {s->score_streams == 1 || s->score_streams == MAX_STREAMS, "score_streams must be 1 or 4"},
        {s->score_streams == 1 || v->may_stream_scores,
         "score_streams=4 needs at least 4 lanes, 4 must divide score_keys, and score_keys / 4 must divide lanes"},
        {s->value_streams <= MAX_UNROLL && (s->value_keys % s->value_streams == 0 || v->holds_values),
         "value_streams must divide value_keys, or value_keys be 1 where sums may stay in registers"},
        {!p->reproducible || (s->score_streams == 1 && s->value_streams == 1),
         "score_streams and value_streams must be 1 with reproducible"},
        {s->kv_prefetch < 0 || s->score_streams > 1 || s->value_streams > 1 || p->integer || p->kv_ids,
         "kv_prefetch must be none where keys are read in one stream"},
        {s->kv_prefetch <= MAX_PREFETCH, "kv_prefetch must be at most 65536"},
    };
    return CHECK(rules);
}

/* Rows are the same bits in every schedule only if all schedules rescale after the same keys. */
static attune_status check_reproducible(const attune_problem *p, const mha_schedule *s, at_error *err) {
    const int32_t kv_tile = mha_reproducible_kv_tile(p);
    if (s->kv_tile == kv_tile) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_SCHEDULE, "kv_tile is %d; a reproducible problem of these head sizes needs %d",
                   (int)s->kv_tile, (int)kv_tile);
}

/* ---- Ranges ---- */

static const char *strategy_of(unsigned part) { return part & MHA_PART_D_LANES ? "d_lanes" : "q_lanes"; }

/* A text that changes the strategy alone leaves the numbers of the other one 0. */
static attune_status too_small(const mha_schedule_field *field, int32_t value, int32_t least, at_error *err) {
    if (!value && (field->part == MHA_PART_D_LANES || field->part == MHA_PART_Q_LANES))
        return at_fail(err, ATTUNE_INVALID_SCHEDULE,
                       "%s is 0; it must be at least %d: strategy=%s needs its numbers, too", field->name, (int)least,
                       strategy_of(field->part));
    return at_fail(err, ATTUNE_INVALID_SCHEDULE, "%s is %d; it must be at least %d", field->name, (int)value,
                   (int)least);
}

static attune_status check_range(const mha_schedule_field *field, int32_t value, at_error *err) {
    int32_t count = 0;
    while (field->words && field->words[count]) count++;
    const int32_t least = field->words                           ? 0
                          : field->kind == MHA_SCHEDULE_DISTANCE ? MHA_SCHEDULE_NONE
                          : field->kind == MHA_SCHEDULE_COUNT    ? MHA_SCHEDULE_AUTO
                                                                 : field->least;
    if (value < least) return too_small(field, value, least, err);
    if (field->words && value >= count)
        return at_fail(err, ATTUNE_INVALID_SCHEDULE, "%s is %d, which is no mha_%s", field->name, (int)value,
                       field->name);
    return ATTUNE_OK;
}

/* The field of the other strategy that is not 0; NULL: there is none. */
static const mha_schedule_field *stranger(const mha_schedule *s) {
    bool is_here[MHA_SCHEDULE_WORDS] = {false};
    const unsigned parts = mha_schedule_parts(s) | MHA_PART_PRODUCTS;
    for (int i = 0; i < MHA_NUM_SCHEDULE_FIELDS; i++)
        if (mha_schedule_has(parts, &mha_schedule_fields[i])) is_here[mha_schedule_fields[i].word] = true;
    for (int i = 0; i < MHA_NUM_SCHEDULE_FIELDS; i++) {
        const mha_schedule_field *field = &mha_schedule_fields[i];
        if (!is_here[field->word] && mha_schedule_value(s, field->word)) return field;
    }
    return NULL;
}

static attune_status check_ranges(const mha_schedule *s, at_error *err) {
    if ((unsigned)s->strategy >= MHA_STRATEGY_COUNT)
        return at_fail(err, ATTUNE_INVALID_SCHEDULE, "strategy is %d, which is no mha_strategy", (int)s->strategy);
    const unsigned parts = mha_schedule_parts(s);
    attune_status status = ATTUNE_OK;
    for (int i = 0; !status && i < MHA_NUM_SCHEDULE_FIELDS; i++) {
        const mha_schedule_field *field = &mha_schedule_fields[i];
        if (mha_schedule_has(parts, field)) status = check_range(field, mha_schedule_value(s, field->word), err);
    }
    const mha_schedule_field *const other = status ? NULL : stranger(s);
    if (other)
        return at_fail(err, ATTUNE_INVALID_SCHEDULE, "%s is for %s, and the strategy is %s: leave it out", other->name,
                       strategy_of(other->part), strategy_of(parts));
    return status;
}

/* ---- All of it ---- */

static attune_status check_settled(const attune_problem *p, const mha_schedule *s, const at_target *target,
                                   at_error *err) {
    const mha_variant v = mha_variant_of(p, s, target);
    attune_status status = check_lanes(p, s, target, err);
    if (!status) status = check_gemm(p, s, target, &v, err);
    if (status) return status;
    if (mha_attends(p) && p->reproducible && check_reproducible(p, s, err)) return ATTUNE_INVALID_SCHEDULE;
    if (s->strategy == MHA_D_LANES) return check_d_lanes(p, s, target, &v, err);
    /* Rotating and merging have no tiles. */
    return mha_has_keys(p) ? check_q_lanes(p, s, target, &v, err) : ATTUNE_OK;
}

attune_status mha_schedule_in(const mha_schedule **schedule, mha_schedule *whole, const attune_problem *p,
                              const at_target *target, at_error *err) {
    if (!*schedule) return ATTUNE_OK;
    *whole = **schedule;
    if (check_ranges(whole, err)) return ATTUNE_INVALID_SCHEDULE;
    mha_schedule_settle(p, target, NULL, whole);
    *schedule = whole;
    return check_settled(p, whole, target, err);
}

attune_status mha_schedule_check(const attune_problem *p, const mha_schedule *s, const at_target *target,
                                 at_error *err) {
    mha_schedule whole;
    return mha_schedule_in(&s, &whole, p, target, err);
}

attune_status mha_schedule_of(const char *text, const attune_problem *p, const at_target *target,
                              const at_description *machine, mha_schedule *schedule, at_error *err) {
    mha_choose(mha_read(p), target, machine, schedule);
    if (!*text) return ATTUNE_OK;
    mha_schedule asked = *schedule;
    const mha_schedule *settled = &asked;
    const attune_status status = mha_schedule_parse(text, &asked, err);
    return status ? status : mha_schedule_in(&settled, schedule, p, target, err);
}

bool mha_schedule_same(const mha_schedule *a, const mha_schedule *b) { return !memcmp(a, b, sizeof *a); }
