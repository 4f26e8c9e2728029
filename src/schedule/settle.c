/* Fills in the choices that a schedule leaves open (auto), by rules: what is usually best for its numbers.
 * notes/README.md lists the measurements.
 *
 * The cost does not decide these. Samples find their data in nearer caches than a call does, so they overestimate the
 * cost of prefetching, and fits compare only schedules that prefetch by these rules (docs/tuning.md). Data count as out
 * of the last-level cache if a call has more than half of it, as in cost.c, or its K and V more than a quarter. Other
 * sizes are in bytes: they were the same on a Zen 3 and a Zen 4, whose L2 caches differ. */
#include "base/integers.h"
#include "problem/problem.h"
#include "problem/problem_sight.h"
#include "schedule/choose.h"
#include "schedule/schedule_fields.h"
#include "schedule/variant.h"

#include <math.h>

/* Keys that a query attends to by its position: the mean of all queries. */
static double keys_seen(const attune_problem *p, int64_t queries, int64_t keys) {
    if (queries < 1 || keys < 1) return (double)keys;
    const mha_queries all = {.seq_q = queries, .seq_kv = keys, .end = queries};
    return mha_sight_of_queries(p, &all).pairs / (double)queries;
}

enum { LARGE = 1024 * 1024, NEAR = 4 * LARGE, USUAL_LAST = 32 * LARGE };

/* Bytes of the last-level cache; without a machine, those of the CPUs on which all of this was measured. */
static double last_cache(const at_description *machine) {
    return machine ? at_description_last_cache(machine) : USUAL_LAST;
}

/* How many multiply-adds a head needs for each line that it reads or writes, so that prefetching the next head pays. It
 * depends on the bytes of a call:
 *
 * - Usually it is PAYS, which 49 x 49 scores have in f32.
 * - With causality or a window it is more, if the call nearly fits into L2 and there is little latency to hide.
 * - It is half as much if a call takes much of the last-level cache, which others use, too.
 * - With few registers it was measured separately: for small calls prefetching only costs, and for calls of some
 *   megabytes little work is enough.
 *
 * The batch is an argument of a kernel, so the rule uses that of the first call. */
static double paying_work(const attune_problem *p, const at_target *target, bool by_pairs, double last, double bytes) {
    enum { PAYS_BEYOND = 64, PAYS_FAR = 160, PAYS = 320, PAYS_NEAR = 480 };
    const bool hides = mha_has_first_key(p) || mha_has_last_key(p);
    if (at_has_few_registers(target) && bytes <= LARGE) return INFINITY;
    if (at_has_few_registers(target) && bytes >= NEAR) return PAYS_BEYOND;
    if (hides && bytes <= NEAR && !by_pairs) return PAYS_NEAR;
    return !hides && bytes >= last / 2 ? PAYS_FAR : PAYS;
}

/* A prefetch takes the issue slot of a load, so a head needs enough arithmetic for each of its lines. A head larger
 * than L2 would be evicted before it is used. With causality or a window only visible scores count, except for larger
 * calls with many registers. */
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

/* Pairs take half the time, including pairs in padded lanes. */
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

/* If several tasks share a head's V, it is interleaved to pairs once. A single task interleaves it tile by tile, which
 * stays in a nearer cache. */
static mha_kv_copy usual_kv_copy(const mha_usual *u, const mha_variant *v, const mha_schedule *s) {
    const bool has_tasks = u->known_rows > (int64_t)s->task_row_vectors * s->lanes;
    return has_tasks && u->shares_pairs && v->may_pair_once ? MHA_COPY_ONCE : MHA_COPY_CONVERTED;
}

static void settle_q_lanes(const mha_usual *u, const mha_variant *v, mha_schedule *s) {
    if (!s->value_by) s->value_by = v->usually_by_rows ? MHA_VALUE_BY_ROWS : MHA_VALUE_BY_COLUMNS;
    if (!s->kv_copy) s->kv_copy = usual_kv_copy(u, v, s);
    if (!s->task_prefetch) s->task_prefetch = usual_task_prefetch(u, v->by_pairs, s);
}

/* The prefetch distance of decoding. A larger one disturbs the hardware prefetchers; with several rows, each key takes
 * more time, and a smaller distance is too late. Quantised values in integer products are one stream and are consumed
 * faster, in panels fastest.
 *
 * With few registers (measured on a Zen 3) there is no prefetching, as every distance slows decoding down. An exception
 * are short pages, which the hardware prefetchers cannot follow: the next page is prefetched. */
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

/* If all rows fit into one register tile there are few tasks, so column groups are narrow. With more rows, narrow
 * groups would copy rows for fewer columns. */
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
    const mha_variant v = mha_variant_of(p, s, target); /* from the numbers, as choices are still open */
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
