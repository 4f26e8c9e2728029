/* attune run op=blocks: the tensors of an estimator of key blocks, its step and its reference. */
#include "run/step.h"

#include "ref_described.h"

#include <stdlib.h>

static const attune_blocks_desc *desc_of(const step_call *c) { return &c->desc.blocks; }

static const step_tensor list[] = {
    {"q", "batch num_heads seq_q head_dim", STEP_INPUT, FILL_NORMAL, "dtype", 0, NULL},
    {"k", "batch num_kv_heads seq_kv head_dim", STEP_INPUT, FILL_NORMAL, "dtype", 0, NULL},
    {"shares", "batch num_heads row_blocks key_blocks", STEP_OUTPUT, FILL_ZERO, NULL, ATTUNE_F32, NULL},
};
static const char *const sizes[] = {"batch", "seq_q", "seq_kv", NULL};
static const char *const follow[] = {"row_blocks", "key_blocks", NULL};

static bool derive(step_call *c) {
    const int64_t block = desc_of(c)->block_size;
    const int64_t queries = step_size_of(c, "seq_q");
    step_set_default(c, "batch", 1);
    step_set_default(c, "seq_kv", queries);
    const int64_t keys = step_size_of(c, "seq_kv");
    if (queries >= 0) *step_size(c, "row_blocks") = (queries + block - 1) / block;
    if (keys >= 0) *step_size(c, "key_blocks") = (keys + block - 1) / block;
    return true;
}

static attune_status create(step_call *c, attune_context *context) {
    return attune_blocks_create(context, desc_of(c), (attune_blocks **)&c->object);
}

static attune_status run(step_call *c, bool is_interpreted) {
    attune_blocks_step s = ATTUNE_BLOCKS_STEP_INIT;
    s.batch = step_size_of(c, "batch"), s.seq_q = step_size_of(c, "seq_q"), s.seq_kv = step_size_of(c, "seq_kv");
    s.q.data = step_data(c, "q"), s.k.data = step_data(c, "k"), s.shares = step_data(c, "shares");
    s.max_threads = c->o->threads;
    return (is_interpreted ? attune_blocks_run_interpreted : attune_blocks_run)(c->object, &s);
}

static void destroy(step_call *c) { attune_blocks_destroy(c->object); }

/* Of a causal prompt about half of the squares are computed. */
static double flops(const step_call *c) {
    const attune_blocks_desc *const d = desc_of(c);
    const double heads = (double)step_size_of(c, "batch") * (double)d->num_heads;
    return 2 * heads * (double)step_size_of(c, "seq_q") * (double)step_size_of(c, "seq_kv") * (double)d->head_dim /
           (double)d->stride * (d->is_causal && step_size_of(c, "seq_q") > d->stride ? 0.5 : 1);
}

static bool judge(step_call *c) {
    const attune_blocks_desc *const d = desc_of(c);
    const int64_t queries = step_size_of(c, "seq_q"), keys = step_size_of(c, "seq_kv");
    const int64_t all = step_size_of(c, "row_blocks") * step_size_of(c, "key_blocks");
    const int64_t heads = step_size_of(c, "batch") * d->num_heads, group = d->num_heads / d->num_kv_heads;
    const size_t bytes = npy_type_bytes(step_array(c, "q")->header.type);
    double *const shares = malloc((size_t)(2 * all + 1) * sizeof *shares), *const limits = shares + all;
    bool good = shares != NULL;
    for (int64_t head = 0; good && head < heads; head++) {
        const ref_blocks r = {.desc = d,
                              .seq_q = queries,
                              .seq_kv = keys,
                              .q = (const char *)step_data(c, "q") + (size_t)(head * queries * d->head_dim) * bytes,
                              .k = (const char *)step_data(c, "k") +
                                   (size_t)(head / group * keys * d->head_dim) * bytes};
        good = ref_blocks_compute(&r, shares, limits);
        for (int64_t i = 0; i < all; i++) limits[i] = step_limit(ATTUNE_F32, shares[i], limits[i]);
        if (good) step_compare(c, "shares", head * all, shares, limits, all);
    }
    free(shares);
    return good;
}

const step_operator step_blocks = {STEP_OPERATOR(&blk_table), .follow = follow, .has_pairs = true};
