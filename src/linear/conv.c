/* Causal convolutions in the tier for engines: binds the tensors of a step, and runs its kernel. */
#include "described/described.h"
#include "linear/conv_kernel.h"
#include "linear/parts.h"
#include "linear/places.h"
#include "problem/problem_fields.h"

#include <string.h>

struct attune_conv {
    at_described described;
    attune_conv_desc desc; /* with all defaults filled in */
};

static attune_status run(at_described *object, const void *given, bool is_interpreted, at_error *err);

const at_described_op conv_described = {AT_DESCRIBED_OP(conv, CONV, &conv_table, sizeof(attune_conv_step)),
                                        .options = {.struct_size = sizeof(attune_operator_options),
                                                    .name = "causal_conv",
                                                    .build = conv_build,
                                                    .version = 2},
                                        .run = run};

/* ---- Steps ---- */

/* A call, as the kernel has it. */
typedef struct call {
    lin_parts parts;
    int64_t batches; /* of a tensor */
    void *buffers[CONV_NUM_TENSORS + 1];
    int64_t scalars[CONV_NUM_SIZES + 3 * CONV_NUM_TENSORS];
    size_t num_buffers, num_scalars;
} call;

/* A view of zeros is contiguous. */
static attune_status settle_view(const char *name, const attune_mutable_view *given, int64_t tokens, int64_t channels,
                                 attune_mutable_view *v, at_error *err) {
    *v = *given;
    if (!v->data) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s is NULL", name);
    if (v->batch < 0 || v->head < 0 || v->token < 0)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s has a negative stride", name);
    if (v->column != 0 && v->column != 1)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s has the column stride %lld; it must be 0 or 1", name,
                       (long long)v->column);
    if (!v->batch && !v->head && !v->token) v->head = 1, v->token = channels, v->batch = tokens * channels;
    return ATTUNE_OK;
}

static lin_places places_of(const char *name, const attune_conv_desc *d, int64_t batches, int64_t tokens,
                            const attune_mutable_view *v) {
    return (lin_places){.name = name,
                        .data = v->data,
                        .rank = 3,
                        .dims = {batches, tokens, d->channels},
                        .strides = {v->batch, v->token, v->head},
                        .bytes = mha_dtype_bytes(d->dtype)};
}

/* Some tasks write their tokens while others still read x and the old state, so outputs must not overlap these. */
static attune_status check_places(const attune_conv_desc *d, const call *c, const attune_mutable_view *x,
                                  const attune_mutable_view *out, const attune_mutable_view *state, at_error *err) {
    const int64_t tokens = c->parts.tokens;
    const lin_places of_x = places_of("x", d, c->batches, tokens, x),
                     of_out = places_of("out", d, c->batches, tokens, out);
    if (lin_check_places(&of_out, err) || lin_check_ranges(&of_out, &of_x, err) || !conv_kept(d)) return err->status;
    const lin_places of_state = places_of("state", d, c->parts.states, conv_kept(d), state);
    if (lin_check_places(&of_state, err) || lin_check_ranges(&of_state, &of_x, err)) return err->status;
    return lin_check_ranges(&of_out, &of_state, err);
}

static void add_tensor(call *c, const attune_mutable_view *v) {
    c->buffers[c->num_buffers++] = v->data;
    const int64_t strides[] = {v->batch, v->head, v->token};
    memcpy(&c->scalars[c->num_scalars], strides, sizeof strides);
    c->num_scalars += 3;
}

static conv_which kernel_of(const attune_mutable_view *x, const attune_mutable_view *out,
                            const attune_mutable_view *state, int64_t tokens) {
    enum { FEW_TOKENS = 8 };
    if (x->head == 1 && out->head == 1) return !state->data || state->head == 1 ? CONV_CHANNELS : CONV_STATE_APART;
    return x->token == 1 && out->token == 1 && tokens >= FEW_TOKENS ? CONV_TOKENS : CONV_APART;
}

static attune_status describe(const attune_conv_desc *d, const attune_conv_step *s, call *c, conv_which *which,
                              at_error *err) {
    const int64_t kept = conv_kept(d);
    attune_mutable_view given = {.data = (void *)(uintptr_t)s->x.data};
    memcpy(given.strides, s->x.strides, sizeof given.strides);
    attune_mutable_view x, out, state = {0};
    c->batches = s->cu_seqlens ? 1 : s->batch;
    if (settle_view("x", &given, c->parts.tokens, d->channels, &x, err) ||
        settle_view("out", &s->out, c->parts.tokens, d->channels, &out, err) ||
        (kept && settle_view("state", &s->state, kept, d->channels, &state, err)) ||
        check_places(d, c, &x, &out, &state, err))
        return err->status;
    if (!s->weights || (d->has_bias && !s->bias))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s is NULL", s->weights ? "bias" : "weights");
    const lin_parts *const p = &c->parts;
    const int64_t sizes[CONV_NUM_SIZES] = {s->batch, c->batches, p->tokens, p->longest, p->states, d->channels};
    memcpy(c->scalars, sizes, sizeof sizes);
    c->num_scalars = CONV_NUM_SIZES;
    add_tensor(c, &x);
    c->buffers[c->num_buffers++] = (void *)(uintptr_t)s->weights;
    if (d->has_bias) c->buffers[c->num_buffers++] = (void *)(uintptr_t)s->bias;
    if (kept) add_tensor(c, &state);
    add_tensor(c, &out);
    c->buffers[c->num_buffers++] = c->parts.of;
    *which = kernel_of(&x, &out, &state, c->parts.longest);
    return ATTUNE_OK;
}

static attune_status run_step(attune_conv *conv, const attune_conv_step *s, bool is_interpreted, at_error *err) {
    const lin_sequences sequences = {.batch = s->batch,
                                     .seq = s->seq,
                                     .cu_seqlens = s->cu_seqlens,
                                     .num_states = s->num_states,
                                     .state_ids = s->state_ids};
    const attune_conv_desc *const d = &conv->desc;
    call c = {0};
    conv_which which = CONV_CHANNELS;
    if (!lin_find_parts(&sequences, &c.parts, err) && c.parts.all && !describe(d, s, &c, &which, err)) {
        const double flops = (double)(2 * d->taps + (d->has_silu ? 16 : 0)) * (double)d->channels;
        const at_described_call called = {c.buffers, c.num_buffers, c.scalars, flops * (double)c.parts.all};
        const at_described_step how = {s->runner, s->max_threads, s->cancel, is_interpreted};
        at_described_execute(&conv->described, which, &called, &how, err);
    }
    lin_free_parts(&c.parts);
    return err->status;
}

static attune_status run(at_described *object, const void *given, bool is_interpreted, at_error *err) {
    attune_conv_step s;
    if (at_copy_in(&conv_described.step, given, &s, err)) return err->status;
    return run_step((attune_conv *)object, &s, is_interpreted, err);
}

AT_DESCRIBED_FUNCTIONS(conv, conv_described)
