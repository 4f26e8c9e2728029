/* The choices that a schedule leaves to attune: what is usually best for its numbers. The figures behind them:
 * notes/README.md.
 *
 * These are rules, not the cost's: samples find their data in nearer caches than a call does, so they make asking ahead
 * look dear, and fits compare only schedules that ask as is said here (docs/tuning.md). What is far depends on the last
 * cache: half of it for a call, as in cost.c, and a quarter for its K and V. Other sizes are bytes: they were the same
 * on a Zen 3 and a Zen 4, whose second caches differ. */
#include "base/integers.h"
#include "problem/problem.h"
#include "problem/problem_sight.h"
#include "schedule/choose.h"
#include "schedule/schedule_fields.h"
#include "schedule/variant.h"

#include <math.h>

/* Keys that a query sees by its position, in the mean. */
static double keys_seen(const attune_problem *p, int64_t queries, int64_t keys) {
    if (queries < 1 || keys < 1) return (double)keys;
    const mha_queries all = {.seq_q = queries, .seq_kv = keys, .end = queries};
    return mha_sight_of_queries(p, &all).pairs / (double)queries;
}

enum { LARGE = 1024 * 1024, NEAR = 4 * LARGE, USUAL_LAST = 32 * LARGE };

/* Bytes of the last cache; without a machine, those of the CPUs that all of this was measured on. */
static double last_cache(const at_description *machine) {
    return machine ? at_description_last_cache(machine) : USUAL_LAST;
}

/* The multiply-adds for each line that a head reads or writes, from which on asking for the next head's lines pays, by
 * the bytes of a call. 49 x 49 scores have PAYS in f32. Under causality and windows more is needed where there is
 * little to wait for, as a call nearly fits the second cache. Half as much pays where a call takes much of the last
 * cache, which others use, too. With few registers it was measured again: the lines of a small call are there, so
 * asking only costs, and those of some megabytes are waited for, however little is computed. The batch is an argument
 * of a kernel, so what holds is that of the first call. */
static double paying_work(const attune_problem *p, const at_target *target, bool by_pairs, double last, double bytes) {
    enum { PAYS_BEYOND = 64, PAYS_FAR = 160, PAYS = 320, PAYS_NEAR = 480 };
    const bool hides = mha_has_first_key(p) || mha_has_last_key(p);
    if (at_has_few_registers(target) && bytes <= LARGE) return INFINITY;
    if (at_has_few_registers(target) && bytes >= NEAR) return PAYS_BEYOND;
    if (hides && bytes <= NEAR && !by_pairs) return PAYS_NEAR;
    return !hides && bytes >= last / 2 ? PAYS_FAR : PAYS;
}

/* A prefetch uses a slot of a load, so a head needs enough arithmetic for each of its lines. What is larger than the
 * second cache would be evicted before the next head begins. Under causality and windows only visible scores count,
 * except for larger calls with many registers. */
static void decide_task_prefetch(const attune_problem *p, const at_target *target, double last, mha_usual *u) {
    const int64_t queries = p->seq_q == ATTUNE_DYNAMIC ? MHA_USUAL_LENGTH : p->seq_q;
    const int64_t rows = queries * (p->num_heads / p->num_kv_heads), columns = p->head_dim + p->head_dim_v;
    const bool by_pairs = mha_attends_by_pairs(p, target);
    const int64_t keys = p->seq_kv == ATTUNE_DYNAMIC ? MHA_USUAL_LENGTH : p->seq_kv;
    const int64_t k = mha_k_row_bytes(p), v = mha_v_row_bytes(p);
    const double bytes = (double)(rows * columns * mha_dtype_bytes(p->dtype) + keys * (k + v));
    const double call = (double)max_of(p->batch, 1) * (double)p->num_kv_heads * bytes;
    const bool counts_seen = at_has_few_registers(target) || (call <= NEAR && !by_pairs);
    u->task_rows = rows;
    u->seen = counts_seen ? keys_seen(p, queries, keys) : (double)keys;
    u->columns = (double)columns;
    u->paying = paying_work(p, target, by_pairs, last, call) * bytes;
    u->may_prefetch_task = mha_attends(p) && keys * (k + v) < LARGE;
}

/* Pairs are multiplied in half the time; so are the pairs in padded lanes. */
static mha_task_prefetch usual_task_prefetch(const mha_usual *u, bool by_pairs, const mha_schedule *s) {
    enum { LINE = 64 };
    const int64_t rows = u->task_rows;
    const double computed = (double)(by_pairs ? ceil_div(rows, s->lanes) * s->lanes / 2 : rows);
    const bool pays = computed * u->seen * u->columns * LINE >= u->paying;
    return u->may_prefetch_task && pays ? MHA_PREFETCH_HEAD : MHA_PREFETCH_NONE;
}

static bool pairs_are_shared(const attune_problem *p) {
    enum { MOST_BYTES = 32 << 20, PAIR_BYTES = 2 };
    const int64_t *const strides = p->v_strides;
    const bool is_broadcast = strides[3] && (!strides[0] || !strides[1]);
    if (p->seq_q < 1 || p->seq_kv < 1 || mha_has_first_key(p) || p->mask_mod[0] || is_broadcast) return false;
    const double heads = (double)(p->batch < 1 ? 1 : p->batch) * (double)p->num_kv_heads;
    return heads * (double)p->seq_kv * (double)p->head_dim_v * PAIR_BYTES <= MOST_BYTES;
}

/* If several tasks share a head's V, its pairs are made once. A single task makes them tile by tile, for a nearer
 * cache. */
static mha_kv_copy usual_kv_copy(const mha_usual *u, const mha_variant *v, const mha_schedule *s) {
    const bool has_tasks = u->known_rows > (int64_t)s->task_row_vectors * s->lanes;
    return has_tasks && u->shares_pairs && v->may_pair_once ? MHA_COPY_ONCE : MHA_COPY_CONVERTED;
}

static void settle_q_lanes(const mha_usual *u, const mha_variant *v, mha_schedule *s) {
    if (!s->value_by) s->value_by = v->usually_by_rows ? MHA_VALUE_BY_ROWS : MHA_VALUE_BY_COLUMNS;
    if (!s->kv_copy) s->kv_copy = usual_kv_copy(u, v, s);
    if (!s->task_prefetch) s->task_prefetch = usual_task_prefetch(u, v->by_pairs, s);
}

/* Further ahead what was asked for is in the prefetchers' way; with several rows there is more to do for each key, and
 * nearer is too late. Codes that are multiplied as they lie are one stream, and used up sooner, in panels soonest.
 *
 * With few registers, which was measured on a Zen 3, nothing is asked for: whatever the distance is, it is in the way
 * there. An exception are short pages, which the prefetchers lose at once: the next one is asked for. */
static int32_t usual_prefetch(const attune_problem *p, const at_target *target, double last) {
    enum {
        NONE = MHA_SCHEDULE_NONE,
        ONE_ROW = 1024,
        MORE_ROWS = 2048,
        CODES = 4096,
        PANELS = 8192,
        PAGE = 4096,
        LISTED = 8192 /* bytes */
    };
    attune_problem seen = *p;
    if (p->low_rank) seen.seq_kv = p->low_rank;
    if (p->kv_ids) return LISTED;
    if (!mha_is_from_memory(&seen) && !mha_is_from_afar(&seen, last)) return NONE;
    if (p->integer) return mha_has_panels(p) ? PANELS : CODES;
    const int64_t page = p->page_size * max_of(mha_k_row_bytes(p), mha_v_row_bytes(p));
    if (at_has_few_registers(target)) return page > 0 && page <= PAGE ? PAGE : NONE;
    return p->seq_q * (p->num_heads / p->num_kv_heads) == 1 ? ONE_ROW : MORE_ROWS;
}

/* Hardware prefetchers follow four streams well, of panels as of rows. With `reproducible` keys are summed in their
 * order, and scores of panels have a stream for each vector of keys. A single stream needs no prefetch. */
static void settle_d_lanes(const mha_usual *u, const mha_variant *v, mha_schedule *s) {
    enum { STREAMS = 4 };
    if (!s->score_streams) s->score_streams = !u->scores_in_order && v->may_stream_scores ? STREAMS : 1;
    if (!s->value_streams)
        s->value_streams = u->values_in_order ? 1 : s->value_keys % STREAMS ? s->value_keys : STREAMS;
    const bool asks = s->score_streams > 1 || s->value_streams > 1 || u->asks_of_one_stream;
    if (!s->kv_prefetch) s->kv_prefetch = asks ? u->kv_prefetch : MHA_SCHEDULE_NONE;
}

/* If all rows fit one register tile there are few tasks, so tasks are narrow. With more rows, each task would copy its
 * rows for fewer columns. */
static void settle_products(const mha_usual *u, const mha_variant *v, mha_schedule *s) {
    enum { TURNS = 64 };
    if (!s->gemm_by) s->gemm_by = v->by_tiles ? MHA_GEMM_BY_TILES : MHA_GEMM_BY_VECTORS;
    if (!s->gemm_prefetch) s->gemm_prefetch = TURNS;
    if (!s->gemm_groups) s->gemm_groups = u->product_rows <= s->gemm_rows ? MHA_GROUPS_NARROW : MHA_GROUPS_WHOLE;
    if (!s->gemm_rest) s->gemm_rest = MHA_REST_OWN;
}

void mha_schedule_leave_choices(mha_schedule *s) {
    for (int i = 0; i < MHA_NUM_SCHEDULE_FIELDS; i++)
        if (mha_schedule_is_choice(&mha_schedule_fields[i]))
            *mha_schedule_at(s, mha_schedule_fields[i].word) = MHA_SCHEDULE_AUTO;
}

void mha_schedule_leave_usual(const attune_problem *p, const at_target *target, const at_description *machine,
                              mha_schedule *s) {
    for (int i = 0; i < MHA_NUM_SCHEDULE_FIELDS; i++) {
        const int word = mha_schedule_fields[i].word;
        mha_schedule left = *s, settled;
        if (!mha_schedule_is_choice(&mha_schedule_fields[i])) continue;
        *mha_schedule_at(&left, word) = MHA_SCHEDULE_AUTO;
        settled = left;
        mha_schedule_settle(p, target, machine, &settled);
        if (mha_schedule_value(&settled, word) == mha_schedule_value(s, word)) *s = left;
    }
}

mha_usual mha_usual_of(const attune_problem *p, const at_target *target, const at_description *machine) {
    const double last = last_cache(machine);
    const bool in_order = p->reproducible || p->kv_ids;
    mha_usual u = {.known_rows = p->seq_q * (p->num_heads / p->num_kv_heads),
                   .shares_pairs = pairs_are_shared(p),
                   .scores_in_order = in_order || p->integer || p->k_layout == ATTUNE_LAYOUT_PANELS,
                   .values_in_order = in_order,
                   .asks_of_one_stream = p->integer || p->kv_ids,
                   .kv_prefetch = usual_prefetch(p, target, last),
                   .product_rows = mha_is_block(p) ? mha_product_rows(p, MHA_USUAL_LENGTH) : 0};
    decide_task_prefetch(p, target, last, &u);
    return u;
}

void mha_settle(const mha_usual *u, const attune_problem *p, const at_target *target, mha_schedule *s) {
    const mha_variant v = mha_variant_of(p, s, target); /* what follows from numbers, not from choices that are left */
    if (s->strategy == MHA_D_LANES)
        settle_d_lanes(u, &v, s);
    else
        settle_q_lanes(u, &v, s);
    if (u->product_rows) settle_products(u, &v, s);
}

void mha_schedule_settle(const attune_problem *p, const at_target *target, const at_description *machine,
                         mha_schedule *s) {
    const mha_usual u = mha_usual_of(p, target, machine);
    mha_settle(&u, p, target, s);
}
