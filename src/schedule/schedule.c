/* Schedules: their text form and which are legal. */
#include "schedule/schedule.h"

#include "problem/pack_layout.h"
#include "problem/suggest.h"
#include "problem/text.h"

#include <string.h>

typedef struct number_field {
    const char *name;
    size_t offset;
    int least;
} number_field;

static const number_field fields[] = {
    {"lanes", offsetof(attune_schedule, lanes), 1},
    {"score_rows", offsetof(attune_schedule, score_rows), 1},
    {"score_vectors", offsetof(attune_schedule, score_vectors), 1},
    {"score_unroll", offsetof(attune_schedule, score_unroll), 1},
    {"value_rows", offsetof(attune_schedule, value_rows), 1},
    {"value_vectors", offsetof(attune_schedule, value_vectors), 1},
    {"value_unroll", offsetof(attune_schedule, value_unroll), 1},
    {"q_vectors", offsetof(attune_schedule, q_vectors), 1},
    {"kv_tile", offsetof(attune_schedule, kv_tile), 1},
    {"kv_chunk", offsetof(attune_schedule, kv_chunk), 0},
    {"gemm_rows", offsetof(attune_schedule, gemm_rows), 0},
    {"gemm_vectors", offsetof(attune_schedule, gemm_vectors), 0},
    {"gemm_block", offsetof(attune_schedule, gemm_block), 0},
    {"gemm_depth", offsetof(attune_schedule, gemm_depth), 0},
};
enum { NUM_FIELDS = sizeof fields / sizeof *fields, NUM_GEMM_FIELDS = 4 };

static const char *const strategy_names[ATTUNE_STRATEGY_COUNT] = {
    [ATTUNE_Q_LANES] = "q_lanes", [ATTUNE_D_LANES] = "d_lanes"};

static int32_t *number_at(attune_schedule *s, int field) {
    return (int32_t *)(void *)((char *)s + fields[field].offset);
}

static attune_status parse_strategy(const mha_pair *pair, attune_strategy *out, at_error *err) {
    for (int i = 0; i < ATTUNE_STRATEGY_COUNT; i++)
        if (mha_value_is(pair, strategy_names[i])) {
            *out = (attune_strategy)i;
            return ATTUNE_OK;
        }
    return at_fail(err, ATTUNE_INVALID_SCHEDULE, "strategy is '%.*s'; it must be q_lanes or d_lanes%s",
                   pair->value_length > 80 ? 80 : pair->value_length, pair->value,
                   mha_suggest_value(pair, strategy_names, ATTUNE_STRATEGY_COUNT).text);
}

static attune_status unknown_field(const mha_pair *pair, at_error *err) {
    const char *names[NUM_FIELDS + 1] = {"strategy"};
    for (int i = 0; i < NUM_FIELDS; i++) names[i + 1] = fields[i].name;
    const mha_suggestion suggestion = mha_suggest_name(pair, names, NUM_FIELDS + 1);
    return at_fail(err, ATTUNE_INVALID_SCHEDULE, "'%.*s' is not a field of a schedule%s",
                   pair->key_length > 80 ? 80 : pair->key_length, pair->key,
                   *suggestion.text ? suggestion.text
                                    : "; there are: strategy, lanes, score_rows, score_vectors, score_unroll, "
                                      "value_rows, value_vectors, value_unroll, q_vectors, kv_tile, kv_chunk, "
                                      "gemm_rows, gemm_vectors, gemm_block, gemm_depth");
}

static attune_status parse_pair(void *user, const mha_pair *pair, at_error *err) {
    attune_schedule *s = user;
    if (mha_key_is(pair, "strategy")) return parse_strategy(pair, &s->strategy, err);
    for (int i = 0; i < NUM_FIELDS; i++) {
        if (!mha_key_is(pair, fields[i].name)) continue;
        int64_t value;
        attune_status status = mha_value_int(pair, ATTUNE_INVALID_SCHEDULE, &value, err);
        if (status) return status;
        if (value < fields[i].least || value > INT32_MAX)
            return at_fail(err, ATTUNE_INVALID_SCHEDULE, "%s is %lld; it must be from %d to %d", fields[i].name,
                           (long long)value, fields[i].least, INT32_MAX);
        *number_at(s, i) = (int32_t)value;
        return ATTUNE_OK;
    }
    return unknown_field(pair, err);
}

const at_struct mha_schedule_struct = {"attune_schedule", "start from ATTUNE_SCHEDULE_INIT", sizeof(attune_schedule),
                                       NULL, 256};

attune_status mha_schedule_in(const attune_schedule **schedule, attune_schedule *whole, at_error *err) {
    if (!*schedule) return ATTUNE_OK;
    const attune_status status = at_copy_in(&mha_schedule_struct, *schedule, whole, err);
    *schedule = whole;
    return status;
}

attune_status mha_schedule_parse(const char *text, attune_schedule *schedule, at_error *err) {
    attune_schedule parsed;
    attune_status status = at_copy_in(&mha_schedule_struct, schedule, &parsed, err);
    if (!status) status = mha_for_each_pair(text, ATTUNE_INVALID_SCHEDULE, parse_pair, &parsed, err);
    return status ? status : at_copy_back(&mha_schedule_struct, &parsed, schedule, err);
}

static bool has_gemm(const attune_schedule *s) {
    return s->gemm_rows || s->gemm_vectors || s->gemm_block || s->gemm_depth;
}

size_t mha_schedule_print(const attune_schedule *schedule, char *text, size_t capacity) {
    mha_writer w = {text, capacity, 0};
    attune_schedule copy;
    if (capacity) *text = '\0';
    if (at_copy_in(&mha_schedule_struct, schedule, &copy, NULL)) return 0;
    if ((unsigned)copy.strategy < ATTUNE_STRATEGY_COUNT) {
        mha_write_key(&w, "strategy");
        mha_write(&w, "%s", strategy_names[copy.strategy]);
    }
    for (int i = 0; i < (has_gemm(&copy) ? NUM_FIELDS : NUM_FIELDS - NUM_GEMM_FIELDS); i++) {
        mha_write_key(&w, fields[i].name);
        mha_write(&w, "%d", *number_at(&copy, i));
    }
    return w.length;
}

/* ---- legality ---- */

/* Bounds that keep code and scratch small: a register tile of more accumulators than this only spills. */
enum {
    MAX_ACCUMULATORS = 64,
    MAX_D_ACCUMULATORS = 32,
    MAX_UNROLL = 16,
    MAX_Q_VECTORS = 64,
    MAX_KV_TILE = 4096,
    MAX_GEMM_BLOCK = 4096
};

typedef struct rule {
    bool kept;
    const char *sentence;
} rule;

static int max_lanes(const attune_problem *p, const at_target *target) {
    return target->vector_bytes / (p->softmax_precision == ATTUNE_F64 ? 8 : 4);
}

static attune_status check_rules(const attune_problem *p, const attune_schedule *s, const at_target *target,
                                 const rule *rules, size_t count, at_error *err) {
    for (size_t i = 0; i < count; i++) {
        if (rules[i].kept) continue;
        char text[320];
        mha_schedule_print(s, text, sizeof text);
        return at_fail(err, ATTUNE_INVALID_SCHEDULE, "%s (%s; head_dim=%lld, head_dim_v=%lld, isa %s has %d lanes)",
                       rules[i].sentence, text, (long long)p->head_dim, (long long)p->head_dim_v, target->name,
                       max_lanes(p, target));
    }
    return ATTUNE_OK;
}

#define CHECK(rules) check_rules(p, s, target, rules, sizeof(rules) / sizeof *(rules), err)

static attune_status check_lanes(const attune_problem *p, const attune_schedule *s, const at_target *target,
                                 at_error *err) {
    const rule rules[] = {
        {s->lanes <= max_lanes(p, target) && !(s->lanes & (s->lanes - 1)),
         "lanes must be a power of two that fits the ISA's vectors"},
    };
    return CHECK(rules);
}

static attune_status check_gemm(const attune_problem *p, const attune_schedule *s, const at_target *target,
                                at_error *err) {
    const bool is_block = mha_is_block(p);
    const rule rules[] = {
        {is_block || !has_gemm(s), "gemm_rows, gemm_vectors, gemm_block and gemm_depth must be 0 without embed_dim"},
        {!is_block || (s->gemm_rows && s->gemm_vectors && s->gemm_block),
         "gemm_rows, gemm_vectors and gemm_block must be at least 1 with embed_dim"},
        {s->gemm_rows * (int64_t)s->gemm_vectors <= MAX_ACCUMULATORS, "gemm_rows * gemm_vectors must be at most 64"},
        {!is_block || (s->gemm_vectors && MHA_PANEL_TILE % (s->gemm_vectors * (int64_t)s->lanes) == 0),
         "gemm_vectors * lanes must divide 64"},
        {!is_block || (s->gemm_rows && s->gemm_block % s->gemm_rows == 0), "gemm_rows must divide gemm_block"},
        {s->gemm_block <= MAX_GEMM_BLOCK, "gemm_block must be at most 4096"},
    };
    return CHECK(rules);
}

static attune_status check_q_lanes(const attune_problem *p, const attune_schedule *s, const at_target *target,
                                   at_error *err) {
    const rule rules[] = {
        {s->q_vectors <= MAX_Q_VECTORS, "q_vectors must be at most 64"},
        {s->score_vectors <= s->q_vectors && s->q_vectors % s->score_vectors == 0,
         "score_vectors must divide q_vectors"},
        {s->value_vectors <= s->score_vectors && s->score_vectors % s->value_vectors == 0,
         "value_vectors must divide score_vectors"},
        {s->score_rows * (int64_t)s->score_vectors <= MAX_ACCUMULATORS,
         "score_rows * score_vectors must be at most 64"},
        {s->value_rows <= p->head_dim_v, "value_rows must not exceed head_dim_v"},
        {s->value_rows * (int64_t)s->value_vectors <= MAX_ACCUMULATORS,
         "value_rows * value_vectors must be at most 64"},
        {s->score_unroll <= MAX_UNROLL && p->head_dim % s->score_unroll == 0,
         "score_unroll must divide head_dim and be at most 16"},
        {s->value_unroll <= MAX_UNROLL, "value_unroll must be at most 16"},
        {s->kv_tile % s->score_rows == 0, "score_rows must divide kv_tile"},
        {s->kv_tile <= MAX_KV_TILE, "kv_tile must be at most 4096"},
        {s->kv_chunk == 0, "kv_chunk is for d_lanes: it must be 0"},
    };
    return CHECK(rules);
}

static attune_status check_d_lanes(const attune_problem *p, const attune_schedule *s, const at_target *target,
                                   at_error *err) {
    const rule rules[] = {
        {mha_attends(p), "d_lanes computes attention only"},
        {s->q_vectors == 1, "q_vectors must be 1 for d_lanes"},
        {s->score_rows * (int64_t)s->score_vectors <= MAX_D_ACCUMULATORS,
         "score_rows * score_vectors must be at most 32 for d_lanes"},
        {s->value_rows * (int64_t)s->value_vectors <= MAX_D_ACCUMULATORS,
         "value_rows * value_vectors must be at most 32 for d_lanes"},
        {s->score_unroll <= MAX_UNROLL, "score_unroll must be at most 16"},
        {s->value_unroll <= MAX_UNROLL, "value_unroll must be at most 16"},
        {s->value_rows * (int64_t)s->value_unroll <= MAX_D_ACCUMULATORS,
         "value_rows * value_unroll must be at most 32 for d_lanes"},
        {s->kv_tile % s->score_rows == 0, "score_rows must divide kv_tile"},
        {s->kv_tile % s->lanes == 0, "lanes must divide kv_tile for d_lanes"},
        {s->kv_tile <= MAX_KV_TILE, "kv_tile must be at most 4096"},
        {s->kv_chunk >= s->kv_tile && s->kv_chunk % s->kv_tile == 0, "kv_tile must divide kv_chunk"},
    };
    return CHECK(rules);
}

/* Rows are the same bits in every schedule only if all schedules rescale after the same keys. */
static attune_status check_reproducible(const attune_problem *p, const attune_schedule *s, at_error *err) {
    const int32_t kv_tile = mha_reproducible_kv_tile(p);
    if (s->kv_tile == kv_tile) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_SCHEDULE, "kv_tile is %d; a reproducible problem of these head sizes needs %d",
                   (int)s->kv_tile, (int)kv_tile);
}

attune_status mha_schedule_check(const attune_problem *p, const attune_schedule *s, const at_target *target,
                                 at_error *err) {
    attune_schedule copy;
    attune_status status = mha_schedule_in(&s, &copy, err);
    if (status) return status;
    if ((unsigned)s->strategy >= ATTUNE_STRATEGY_COUNT)
        return at_fail(err, ATTUNE_INVALID_SCHEDULE, "strategy is %d, which is no attune_strategy", (int)s->strategy);
    for (int i = 0; i < NUM_FIELDS; i++)
        if (*number_at(&copy, i) < fields[i].least)
            return at_fail(err, ATTUNE_INVALID_SCHEDULE, "%s is %d; it must be at least %d", fields[i].name,
                           *number_at(&copy, i), fields[i].least);
    status = check_lanes(p, s, target, err);
    if (!status) status = check_gemm(p, s, target, err);
    if (status) return status;
    if (mha_attends(p) && p->reproducible && check_reproducible(p, s, err)) return ATTUNE_INVALID_SCHEDULE;
    if (s->strategy == ATTUNE_D_LANES) return check_d_lanes(p, s, target, err);
    /* Rotating and merging have no tiles. */
    return mha_has_keys(p) ? check_q_lanes(p, s, target, err) : ATTUNE_OK;
}

bool mha_schedule_same(const attune_schedule *a, const attune_schedule *b) {
    if (a->strategy != b->strategy) return false;
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (memcmp((const char *)a + fields[i].offset, (const char *)b + fields[i].offset, sizeof(int32_t)))
            return false;
    return true;
}
