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

/* A prefetch takes a slot of a load, so a head has to compute enough for each of its lines. What is larger than the
 * second cache would be gone before the next head begins. Pairs are multiplied in half the time, those of lanes that
 * are filled up, too. Under causality and windows only what is seen counts, but for larger calls with many registers.
 */
static mha_task_prefetch usual_task_prefetch(const attune_problem *p, const at_target *target, bool by_pairs,
                                             double last, const mha_schedule *s) {
    enum { LINE = 64 };
    const int64_t queries = p->seq_q == ATTUNE_DYNAMIC ? MHA_USUAL_LENGTH : p->seq_q;
    const int64_t rows = queries * (p->num_heads / p->num_kv_heads), columns = p->head_dim + p->head_dim_v;
    const double computed = (double)(by_pairs ? ceil_div(rows, s->lanes) * s->lanes / 2 : rows);
    const int64_t keys = p->seq_kv == ATTUNE_DYNAMIC ? MHA_USUAL_LENGTH : p->seq_kv;
    const int64_t k = mha_k_row_bytes(p), v = mha_v_row_bytes(p);
    const double bytes = (double)(rows * columns * mha_dtype_bytes(p->dtype) + keys * (k + v));
    const double call = (double)max_of(p->batch, 1) * (double)p->num_kv_heads * bytes;
    const bool counts_seen = at_has_few_registers(target) || (call <= NEAR && !by_pairs);
    const double seen = counts_seen ? keys_seen(p, queries, keys) : (double)keys;
    const bool pays = computed * seen * (double)columns * LINE >= paying_work(p, target, by_pairs, last, call) * bytes;
    return pays && keys * (k + v) < LARGE ? MHA_PREFETCH_HEAD : MHA_PREFETCH_NONE;
}

bool mha_pairs_are_shared(const attune_problem *p) {
    enum { MOST_BYTES = 32 << 20, PAIR_BYTES = 2 };
    const int64_t *const strides = p->v_strides;
    const bool is_broadcast = strides[3] && (!strides[0] || !strides[1]);
    if (p->seq_q < 1 || p->seq_kv < 1 || mha_has_first_key(p) || p->mask_mod[0] || is_broadcast) return false;
    const double heads = (double)(p->batch < 1 ? 1 : p->batch) * (double)p->num_kv_heads;
    return heads * (double)p->seq_kv * (double)p->head_dim_v * PAIR_BYTES <= MOST_BYTES;
}

/* Pairs of a head's V that several tasks share are made once; a lone task makes them tile by tile, for a nearer
 * cache. */
static mha_kv_copy usual_kv_copy(const attune_problem *p, const mha_variant *v, const mha_schedule *s) {
    const bool has_tasks = p->seq_q * (p->num_heads / p->num_kv_heads) > (int64_t)s->task_row_vectors * s->lanes;
    const bool are_shared = has_tasks && mha_pairs_are_shared(p) && v->may_pair_once;
    return are_shared ? MHA_COPY_ONCE : MHA_COPY_CONVERTED;
}

static void settle_q_lanes(const attune_problem *p, const at_target *target, const mha_variant *v, double last,
                           mha_schedule *s) {
    if (!s->value_by) s->value_by = v->usually_by_rows ? MHA_VALUE_BY_ROWS : MHA_VALUE_BY_COLUMNS;
    if (!s->kv_copy) s->kv_copy = usual_kv_copy(p, v, s);
    if (s->task_prefetch) return;
    s->task_prefetch = mha_attends(p) ? usual_task_prefetch(p, target, v->by_pairs, last, s) : MHA_PREFETCH_NONE;
}

/* Further ahead what was asked for is in the prefetchers' way; with several rows there is more to do for each key, and
 * nearer is too late. Codes that are multiplied as they lie are one stream, and used up sooner, in panels soonest.
 *
 * With few registers, which was measured on a Zen 3, nothing is asked for: whatever the distance is, it is in the way
 * there. An exception are short pages, which the prefetchers lose at once: the next one is asked for. */
static int32_t usual_prefetch(const attune_problem *p, const at_target *target, double last, const mha_schedule *s) {
    enum {
        NONE = -1,
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
    if (s->score_streams == 1 && s->value_streams == 1 && !p->integer) return NONE;
    if (p->integer) return mha_has_panels(p) ? PANELS : CODES;
    const int64_t page = p->page_size * max_of(mha_k_row_bytes(p), mha_v_row_bytes(p));
    if (at_has_few_registers(target)) return page > 0 && page <= PAGE ? PAGE : NONE;
    return p->seq_q * (p->num_heads / p->num_kv_heads) == 1 ? ONE_ROW : MORE_ROWS;
}

/* Prefetchers follow four streams well, of panels as of rows. With `reproducible` keys are summed in their order, and
 * scores of panels have a stream for each vector of keys. */
static void settle_d_lanes(const attune_problem *p, const at_target *target, const mha_variant *v, double last,
                           mha_schedule *s) {
    enum { STREAMS = 4 };
    const bool in_order = p->reproducible || p->kv_ids || p->integer || p->k_layout == ATTUNE_LAYOUT_PANELS;
    if (!s->score_streams) s->score_streams = !in_order && v->may_stream_scores ? STREAMS : 1;
    if (!s->value_streams)
        s->value_streams = p->reproducible || p->kv_ids ? 1 : s->value_keys % STREAMS ? s->value_keys : STREAMS;
    if (!s->kv_prefetch) s->kv_prefetch = usual_prefetch(p, target, last, s);
}

/* The rows of one register tile make few tasks: narrow ones. With more of them each task would copy its rows for fewer
 * columns. */
static void settle_products(const attune_problem *p, const mha_variant *v, mha_schedule *s) {
    enum { TURNS = 64 };
    const bool few = mha_product_rows(p, MHA_USUAL_LENGTH) <= s->gemm_rows;
    if (!s->gemm_by) s->gemm_by = v->by_tiles ? MHA_GEMM_BY_TILES : MHA_GEMM_BY_VECTORS;
    if (!s->gemm_prefetch) s->gemm_prefetch = TURNS;
    if (!s->gemm_groups) s->gemm_groups = few ? MHA_GROUPS_NARROW : MHA_GROUPS_WHOLE;
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

void mha_schedule_settle(const attune_problem *p, const at_target *target, const at_description *machine,
                         mha_schedule *s) {
    const mha_variant v = mha_variant_of(p, s, target); /* what follows from numbers, not from choices that are left */
    if (s->strategy == MHA_D_LANES)
        settle_d_lanes(p, target, &v, last_cache(machine), s);
    else
        settle_q_lanes(p, target, &v, last_cache(machine), s);
    if (mha_is_block(p)) settle_products(p, &v, s);
}
