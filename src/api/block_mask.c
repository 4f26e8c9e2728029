/* A table of the tiles that mask_mod hides is made by one call and read by later ones; here it is checked that a call
 * has the tiles that the table was made for. */
#include "api/block_mask.h"

#include "base/fpenv.h"
#include "base/integers.h"
#include "schedule/variant.h"

#include <string.h>

struct attune_block_mask {
    attune_allocator allocator;
    char mask_mod[ATTUNE_FUNCTION_BYTES]; /* in canonical form */
    int64_t seq_q, seq_kv;                /* of the longest sequences */
    int64_t rows, keys, unit;             /* of a tile, and keys of one entry of the table */
    int64_t batch, kv_heads, group;
    bool is_f64;    /* of mask_mod's floating-point values */
    uint64_t bytes; /* of the table; 0: the kernel has none */
    void *tiles;
};

/* ---- Which tables fit which calls ---- */

static void describe(const attune_kernel *kernel, const at_call *call, const int64_t *plan, attune_block_mask *mask) {
    const attune_problem *p = &kernel->signature.problem;
    const mha_schedule *s = &kernel->schedule;
    const mha_variant v = mha_variant_of(p, s, kernel->target);
    memcpy(mask->mask_mod, p->mask_mod, sizeof mask->mask_mod);
    mask->seq_q = call->settled->sizes.of[MHA_SEQ_Q];
    mask->seq_kv = call->settled->sizes.of[MHA_SEQ_KV];
    if (!at_kernel_has_phases(kernel) || !v.has_mask_table) return;
    mask->rows = (int64_t)s->score_row_vectors * s->lanes;
    mask->keys = s->kv_tile;
    mask->unit = v.mask_unit;
    mask->batch = call->settled->sizes.of[MHA_BATCH];
    mask->kv_heads = call->settled->sizes.of[MHA_KV_HEADS];
    mask->group = p->num_heads / p->num_kv_heads;
    mask->is_f64 = p->softmax_precision == ATTUNE_F64;
    mask->bytes = (uint64_t)plan[kernel->num_phases + AT_MASK_SHARED];
}

/* Two tables of one mask_mod may have the same size and other dims: 3 sequences × 2 heads, or 2 × 3. If only one of the
 * two numbers differs and the size does not, mask_mod does not depend on that number. */
static bool has_other_places(const attune_block_mask *have, const attune_block_mask *wanted) {
    const int64_t stripes = ceil_div(have->seq_q * have->group, have->rows), tiles = ceil_div(have->seq_kv, have->keys);
    const uint64_t bytes_of_one = (uint64_t)(stripes * tiles) * MHA_MASK_TILE_BYTES;
    if (have->bytes != wanted->bytes || have->group != wanted->group) return true;
    return have->batch != wanted->batch && have->kv_heads != wanted->kv_heads && have->bytes > bytes_of_one;
}

static attune_status check_fit(const attune_block_mask *have, const attune_block_mask *wanted, at_error *err) {
    if (strcmp(have->mask_mod, wanted->mask_mod) != 0)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "block_mask was made for mask_mod \"%s\", and here it is \"%s\"",
                       have->mask_mod, wanted->mask_mod);
    if (!wanted->bytes) return ATTUNE_OK;
    if (have->seq_q != wanted->seq_q || have->seq_kv != wanted->seq_kv)
        return at_fail(
            err, ATTUNE_INVALID_ARGUMENT, "block_mask is for %lld queries and %lld keys, and here are %lld and %lld",
            (long long)have->seq_q, (long long)have->seq_kv, (long long)wanted->seq_q, (long long)wanted->seq_kv);
    if (have->rows != wanted->rows || have->keys != wanted->keys || have->unit != wanted->unit)
        return at_fail(
            err, ATTUNE_INVALID_ARGUMENT,
            "block_mask has tiles of %lld rows and %lld keys, of a kernel with another schedule; this kernel "
            "has %lld and %lld",
            (long long)have->rows, (long long)have->keys, (long long)wanted->rows, (long long)wanted->keys);
    if (have->is_f64 != wanted->is_f64)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "block_mask was made in %s, and this kernel computes in %s",
                       have->is_f64 ? "f64" : "f32", wanted->is_f64 ? "f64" : "f32");
    if (has_other_places(have, wanted))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "block_mask is for another batch or other heads: it was made for batch %lld, %lld KV heads and "
                       "%lld queries of each, and here are %lld, %lld and %lld",
                       (long long)have->batch, (long long)have->kv_heads, (long long)have->group,
                       (long long)wanted->batch, (long long)wanted->kv_heads, (long long)wanted->group);
    return ATTUNE_OK;
}

attune_status at_block_mask_take(const attune_kernel *kernel, const at_call *call, const int64_t *plan, void **tiles,
                                 at_error *err) {
    attune_block_mask wanted = {.bytes = 0};
    *tiles = NULL;
    if (!call->block_mask) return ATTUNE_OK;
    describe(kernel, call, plan, &wanted);
    if (check_fit(call->block_mask, &wanted, err)) return err->status;
    if (wanted.bytes) *tiles = call->block_mask->tiles;
    return ATTUNE_OK;
}

/* ---- Making one ---- */

/* The first phase alone, whose table is the mask's. */
static attune_status fill(attune_context *context, const attune_kernel *kernel, const at_call *call,
                          attune_block_mask *mask, at_error *err) {
    static const at_run_part first = {.begin = AT_MASK_PHASE, .end = AT_MASK_PHASE + 1};
    const at_run run = {.buffers = call->buffers,
                        .num_buffers = kernel->signature.count,
                        .scalars = call->settled->scalars,
                        .work = at_work_of(call->settled->flops, kernel->target),
                        .team = &context->team,
                        .part = &first,
                        .mask_tiles = mask->tiles};
    return at_run_machine_code(context, kernel, &run, err);
}

static attune_status make(attune_context *context, const attune_kernel *kernel, const at_call *call,
                          attune_block_mask *mask, at_error *err) {
    int64_t plan[AT_PLAN_WORDS];
    if (at_kernel_has_phases(kernel)) at_kernel_plan(kernel, call->settled->scalars, plan);
    describe(kernel, call, plan, mask);
    if (!mask->bytes || call->settled->is_empty) return ATTUNE_OK;
    mask->tiles = at_alloc_aligned(&mask->allocator, mask->bytes, AT_WORKSPACE_ALIGN);
    if (!mask->tiles) return at_fail_memory(err, mask->bytes);
    memset(mask->tiles, 0, mask->bytes);
    return fill(context, kernel, call, mask, err);
}

attune_status attune_block_mask_create(attune_context *context, const attune_kernel *kernel,
                                       const attune_arguments *arguments, attune_block_mask **out) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    at_call call;
    if (!out) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_block_mask_create was given no pointer to the mask");
        return at_report(&err);
    }
    *out = NULL;
    if (at_check_run(context, kernel, arguments, &err) ||
        at_call_make(&kernel->signature, NULL, arguments, &call, &err))
        return at_report(&err);
    attune_block_mask *mask = at_alloc(&context->allocator, sizeof *mask);
    if (!mask) {
        at_fail_memory(&err, sizeof *mask);
        return at_report(&err);
    }
    *mask = (attune_block_mask){.allocator = context->allocator};
    if (make(context, kernel, &call, mask, &err))
        attune_block_mask_destroy(mask);
    else
        *out = mask;
    return at_report(&err);
}

void attune_block_mask_destroy(attune_block_mask *mask) {
    if (!mask) return;
    const attune_allocator allocator = mask->allocator;
    at_free(&allocator, mask->tiles);
    at_free(&allocator, mask);
}
