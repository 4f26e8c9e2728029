/* Estimates of which key blocks matter, in the tier for engines: checks descriptions, and binds and runs steps. */
#include "attention/attention.h"
#include "base/fpenv.h"
#include "base/struct.h"
#include "blocks/kernel.h"
#include "engine/own_operator.h"
#include "problem/problem_fields.h"

#include <math.h>
#include <stdlib.h>

/* Kernels exist for up to so many key blocks, as each has scratch for all of them. */
enum { SIZES = 4 };
static const int64_t most_columns[SIZES] = {64, 512, 4096, 32768};

struct attune_blocks {
    attune_context *context;
    attune_operator *op;
    attune_blocks_desc desc; /* with all defaults filled in */
    char problem[SIZES][BLK_PROBLEM_BYTES];
    _Atomic(attune_kernel *) kernels[SIZES];
};

static const attune_blocks_desc initial = ATTUNE_BLOCKS_DESC_INIT;
static const at_struct desc_struct = {"attune_blocks_desc", "start from ATTUNE_BLOCKS_DESC_INIT",
                                      sizeof(attune_blocks_desc), &initial, sizeof(attune_blocks_desc)};
static const at_struct step_struct = {"attune_blocks_step", "start from ATTUNE_BLOCKS_STEP_INIT",
                                      sizeof(attune_blocks_step), NULL, sizeof(attune_blocks_step)};

attune_status attune_blocks_desc_init(attune_blocks_desc *desc, size_t struct_size) {
    at_error err = {0};
    at_struct_init(&desc_struct, desc, struct_size, &err);
    return at_report(&err);
}

attune_status attune_blocks_step_init(attune_blocks_step *step, size_t struct_size) {
    at_error err = {0};
    at_struct_init(&step_struct, step, struct_size, &err);
    return at_report(&err);
}

/* ---- Descriptions ---- */

static attune_status check_sizes(const attune_blocks_desc *d, at_error *err) {
    enum { MOST_HEADS = 1024, MOST_DIM = 512, MOST_BLOCK = 65536, MOST_SQUARE = 32768 };
    if (at_check_size("num_heads", d->num_heads, 1, MOST_HEADS, err) ||
        at_check_size("num_kv_heads", d->num_kv_heads, 1, MOST_HEADS, err) ||
        at_check_size("head_dim", d->head_dim, 1, MOST_DIM, err) ||
        at_check_size("block_size", d->block_size, 1, MOST_BLOCK, err) ||
        at_check_size("stride", d->stride, 1, d->block_size, err) ||
        at_check_size("is_causal", d->is_causal, 0, 1, err))
        return err->status;
    if (d->num_heads % d->num_kv_heads)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "num_kv_heads is %lld, which does not divide num_heads, %lld",
                       (long long)d->num_kv_heads, (long long)d->num_heads);
    if (d->block_size % d->stride)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "stride is %lld; it must divide block_size, %lld",
                       (long long)d->stride, (long long)d->block_size);
    if (d->stride * d->head_dim > MOST_SQUARE)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "stride is %lld and head_dim %lld; their product must be at most %d", (long long)d->stride,
                       (long long)d->head_dim, MOST_SQUARE);
    return ATTUNE_OK;
}

static attune_status settle(attune_blocks_desc *d, at_error *err) {
    if (!d->num_kv_heads) d->num_kv_heads = d->num_heads;
    if (d->dtype == ATTUNE_DTYPE_DEFAULT) d->dtype = ATTUNE_F32;
    if (check_sizes(d, err)) return err->status;
    if (d->dtype != ATTUNE_F32 && d->dtype != ATTUNE_BF16 && d->dtype != ATTUNE_F16)
        return at_fail(err, ATTUNE_UNSUPPORTED, "dtype is %s; it must be f32, bf16 or f16",
                       (unsigned)d->dtype < ATTUNE_DTYPE_COUNT ? mha_dtype_name(d->dtype) : "no attune_dtype");
    if (isnan(d->softmax_scale)) d->softmax_scale = 1 / sqrt((double)d->head_dim);
    if (!(fabs(d->softmax_scale) <= 1e38))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "softmax_scale is %g; it must be within +-1e38", d->softmax_scale);
    return ATTUNE_OK;
}

attune_status attune_blocks_create(attune_context *context, const attune_blocks_desc *desc, attune_blocks **blocks) {
    AT_DEFAULT_FPENV;
    static const attune_operator_options options = {.struct_size = sizeof options,
                                                    .name = "blocks",
                                                    .build = blk_build,
                                                    .choices = blk_choices,
                                                    .num_choices = BLK_NUM_CHOICES,
                                                    .version = 1};
    at_error err = {0};
    blk_kernel k = {.most_columns = 0};
    attune_operator *op;
    if (blocks) *blocks = NULL;
    if (!desc || !blocks) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_blocks_create was given no %s",
                desc ? "pointer to the estimator" : "description");
        return at_report(&err);
    }
    if (at_copy_in(&desc_struct, desc, &k.desc, &err) || settle(&k.desc, &err)) return at_report(&err);
    if (!context) {
        const attune_status status = an_shared_context(&context);
        if (status) return status;
    }
    if (at_operator_of(context, &options, &op, &err)) return at_report(&err);
    attune_blocks *const made = calloc(1, sizeof *made);
    if (!made) {
        at_fail_memory(&err, sizeof *made);
        return at_report(&err);
    }
    *made = (attune_blocks){.context = context, .op = op, .desc = k.desc};
    for (int i = 0; i < SIZES; i++) {
        k.most_columns = most_columns[i];
        blk_print(&k, made->problem[i]);
    }
    *blocks = made;
    return ATTUNE_OK;
}

void attune_blocks_destroy(attune_blocks *blocks) {
    if (!blocks) return;
    for (int i = 0; i < SIZES; i++) attune_kernel_release(atomic_load(&blocks->kernels[i]));
    free(blocks);
}

/* ---- Kernels ---- */

static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

static attune_status find_kernel(attune_blocks *x, int64_t seq_kv, attune_kernel **kernel, at_error *err) {
    const int64_t columns = ceil_div(seq_kv, x->desc.block_size);
    int size = 0;
    while (size < SIZES - 1 && columns > most_columns[size]) size++;
    if (columns > most_columns[size])
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%lld keys are %lld key blocks; there may be %lld",
                       (long long)seq_kv, (long long)columns, (long long)most_columns[size]);
    return at_operator_kernel(x->op, x->problem[size], &x->kernels[size], kernel, err);
}

attune_status attune_blocks_prepare(attune_blocks *blocks, int64_t seq_kv) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_kernel *kernel;
    if (!blocks)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_blocks_prepare was given NULL");
    else if (!at_check_size("seq_kv", seq_kv, 1, INT32_MAX, &err))
        find_kernel(blocks, seq_kv, &kernel, &err);
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

static attune_status run_step(attune_blocks *x, const attune_blocks_step *s, bool is_interpreted, at_error *err) {
    call c = {.d = &x->desc, .step = s};
    attune_kernel *kernel;
    at_team team;
    if (check_step(c.d, s, err) || !s->batch || !s->seq_q || !s->seq_kv || describe(&c, err) ||
        find_kernel(x, s->seq_kv, &kernel, err) || at_operator_team(x->context, s->runner, s->max_threads, &team, err))
        return err->status;
    const at_run run = {.buffers = c.buffers,
                        .num_buffers = c.num_buffers,
                        .scalars = c.scalars,
                        .work = at_work_of(flops_of(&c), kernel->target),
                        .team = &team,
                        .cancel = s->cancel};
    return at_operator_run(kernel, &run, is_interpreted, err);
}

static attune_status run_checked(attune_blocks *blocks, const attune_blocks_step *step, bool is_interpreted) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_blocks_step s;
    if (!blocks || !step)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_blocks_run was given no %s", blocks ? "step" : "estimator");
    else if (!at_copy_in(&step_struct, step, &s, &err))
        run_step(blocks, &s, is_interpreted, &err);
    return at_report(&err);
}

attune_status attune_blocks_run(attune_blocks *blocks, const attune_blocks_step *step) {
    return run_checked(blocks, step, false);
}

attune_status attune_blocks_run_interpreted(attune_blocks *blocks, const attune_blocks_step *step) {
    return run_checked(blocks, step, true);
}
