/* Estimates of which key blocks matter, in the tier for engines: binds and runs steps. */
#include "base/fpenv.h"
#include "blocks/kernel.h"
#include "described/described.h"
#include "problem/problem_fields.h"

struct attune_blocks {
    at_described described;
    attune_blocks_desc desc; /* with all defaults filled in */
};

static attune_status run(at_described *object, const void *given, bool is_interpreted, at_error *err);

const at_described_op blk_described = {AT_DESCRIBED_OP(blocks, BLOCKS, &blk_table, sizeof(attune_blocks_step)),
                                       .options = {.struct_size = sizeof(attune_operator_options),
                                                   .name = "blocks",
                                                   .build = blk_build,
                                                   .choices = blk_choices,
                                                   .num_choices = BLK_NUM_CHOICES,
                                                   .version = 1},
                                       .run = run};

/* ---- Kernels ---- */

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static attune_status find_kernel(const attune_blocks_desc *d, int64_t seq_kv, uint32_t *which, at_error *err) {
    const int64_t columns = ceil_div(seq_kv, d->block_size);
    *which = 0;
    while (*which < BLK_NUM_KERNELS - 1 && columns > blk_columns[*which]) ++*which;
    if (columns <= blk_columns[*which]) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%lld keys are %lld key blocks; there may be %lld", (long long)seq_kv,
                   (long long)columns, (long long)blk_columns[*which]);
}

attune_status attune_blocks_prepare(attune_blocks *blocks, int64_t seq_kv) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_kernel *kernel;
    uint32_t which;
    if (!blocks)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_blocks_prepare was given NULL");
    else if (!at_check_size("seq_kv", seq_kv, 1, INT32_MAX, &err) && !find_kernel(&blocks->desc, seq_kv, &which, &err))
        at_described_kernel(&blocks->described, which, &kernel, &err);
    return at_report(&err);
}

/* ---- Steps ---- */

/* The arguments of a kernel, in the order of its parameters. */
typedef struct call {
    const attune_blocks_desc *d;
    const attune_blocks_step *step;
    void *buffers[3];
    int64_t scalars[13];
    size_t num_buffers, num_scalars;
} call;

static attune_status check_step(const attune_blocks_desc *d, const attune_blocks_step *s, at_error *err) {
    if (at_check_size("batch", s->batch, 0, INT32_MAX, err) || at_check_size("seq_q", s->seq_q, 0, INT32_MAX, err) ||
        at_check_size("seq_kv", s->seq_kv, 0, INT32_MAX, err))
        return err->status;
    if (d->is_causal && (s->seq_kv - s->seq_q) % d->stride)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "seq_q is %lld and seq_kv %lld, which differ by %lld; with is_causal that must be a multiple of "
                       "stride, %lld",
                       (long long)s->seq_q, (long long)s->seq_kv, (long long)(s->seq_kv - s->seq_q),
                       (long long)d->stride);
    if (s->batch && s->seq_q && s->seq_kv && !s->shares) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "shares is NULL");
    return ATTUNE_OK;
}

static void add_scalar(call *c, int64_t value) { c->scalars[c->num_scalars++] = value; }

static attune_status add_view(call *c, const char *name, const attune_view *view, int64_t heads, int64_t tokens,
                              at_error *err) {
    attune_view v = *view;
    if (!v.data) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s is NULL", name);
    if (v.batch < 0 || v.head < 0 || v.token < 0)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s has a negative stride", name);
    if (v.column != 0 && v.column != 1)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s.column is %lld; it must be 0 or 1", name, (long long)v.column);
    if (!v.batch && !v.head && !v.token) v.token = c->d->head_dim, v.head = tokens * v.token, v.batch = heads * v.head;
    c->buffers[c->num_buffers++] = (void *)(uintptr_t)v.data;
    add_scalar(c, v.batch);
    add_scalar(c, v.head);
    add_scalar(c, v.token);
    return ATTUNE_OK;
}

static attune_status describe(call *c, at_error *err) {
    const attune_blocks_desc *d = c->d;
    const attune_blocks_step *s = c->step;
    add_scalar(c, s->batch);
    add_scalar(c, s->seq_q);
    add_scalar(c, s->seq_kv);
    add_scalar(c, ceil_div(s->seq_q, d->block_size));
    add_scalar(c, ceil_div(s->seq_kv, d->block_size));
    add_scalar(c, ceil_div(s->seq_q, d->stride));
    add_scalar(c, ceil_div(s->seq_kv, d->stride));
    if (add_view(c, "q", &s->q, d->num_heads, s->seq_q, err) ||
        add_view(c, "k", &s->k, d->num_kv_heads, s->seq_kv, err))
        return err->status;
    c->buffers[c->num_buffers++] = s->shares;
    return ATTUNE_OK;
}

/* The products of all squares, of which a causal prompt has about half. */
static double flops_of(const call *c) {
    const attune_blocks_desc *d = c->d;
    const attune_blocks_step *s = c->step;
    const double all = 2 * (double)s->batch * (double)d->num_heads * (double)s->seq_q * (double)s->seq_kv;
    return all * (double)d->head_dim / (double)d->stride;
}

static attune_status run(at_described *object, const void *given, bool is_interpreted, at_error *err) {
    attune_blocks_step s;
    call c = {.d = &((attune_blocks *)object)->desc, .step = &s};
    uint32_t which;
    if (at_copy_in(&blk_described.step, given, &s, err) || check_step(c.d, &s, err) || !s.batch || !s.seq_q ||
        !s.seq_kv || describe(&c, err) || find_kernel(c.d, s.seq_kv, &which, err))
        return err->status;
    const at_described_call called = {c.buffers, c.num_buffers, c.scalars, flops_of(&c)};
    const at_described_step how = {s.runner, s.max_threads, s.cancel, is_interpreted};
    return at_described_execute(object, which, &called, &how, err);
}

AT_DESCRIBED_FUNCTIONS(blocks, blk_described)
