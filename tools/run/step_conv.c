/* attune run op=conv: the tensors of a causal convolution, its step and its reference. */
#include "run/step.h"

#include "ref_described.h"

#include <stdlib.h>

static const attune_conv_desc *desc_of(const step_call *c) { return &c->desc.conv; }

static bool has_bias(const step_call *c) { return desc_of(c)->has_bias; }
static bool has_state(const step_call *c) { return desc_of(c)->taps > 1; }

static const step_tensor list[] = {
    {"x", "batch seq channels", STEP_INPUT, FILL_NORMAL, "dtype", 0, NULL},
    {"weights", "channels taps", STEP_INPUT, FILL_UNIT_ROWS, "dtype", 0, NULL},
    {"bias", "channels", STEP_INPUT, FILL_NORMAL, "dtype", 0, has_bias},
    {"cu_seqlens", "batch+1", STEP_LIST, FILL_ZERO, NULL, ATTUNE_I32, NULL},
    {"state_ids", "batch", STEP_LIST, FILL_ZERO, NULL, ATTUNE_I32, NULL},
    {"state", "num_states kept channels", STEP_STATE, FILL_NORMAL, "dtype", 0, has_state},
    {"out", "batch seq channels", STEP_OUTPUT, FILL_ZERO, "dtype", 0, NULL},
};
static const char *const sizes[] = {"batch", "seq", "tokens", "num_states", NULL};
static const char *const follow[] = {"kept", NULL};

static bool take_files(step_call *c) {
    attune_conv_desc *const d = &c->desc.conv;
    const npy_array *const weights = step_file(c, "weights");
    if (step_file(c, "bias")) d->has_bias = 1;
    if (weights && weights->header.rank == 2 && !d->taps) d->taps = weights->header.shape[1];
    if (!step_file(c, "state_ids") || step_file(c, "state")) return true;
    tool_error("state_ids needs --tensor state=F.npy");
    return false;
}

static bool derive(step_call *c) {
    *step_size(c, "kept") = (desc_of(c)->taps - 1) * desc_of(c)->dilation;
    return step_derive_sequences(c);
}

static attune_status create(step_call *c, attune_context *context) {
    return attune_conv_create(context, desc_of(c), (attune_conv **)&c->object);
}

static attune_status run(step_call *c, bool is_interpreted) {
    attune_conv_step s = ATTUNE_CONV_STEP_INIT;
    s.batch = step_size_of(c, "batch"), s.seq = step_size_of(c, "seq"), s.num_states = step_size_of(c, "num_states");
    s.x.data = step_data(c, "x"), s.weights = step_data(c, "weights"), s.bias = step_data(c, "bias");
    s.cu_seqlens = step_data(c, "cu_seqlens"), s.state_ids = step_data(c, "state_ids");
    s.out.data = step_data(c, "out"), s.state.data = step_data(c, "state"), s.max_threads = c->o->threads;
    return (is_interpreted ? attune_conv_run_interpreted : attune_conv_run)(c->object, &s);
}

static void destroy(step_call *c) { attune_conv_destroy(c->object); }

static double flops(const step_call *c) {
    return 2 * (double)step_tokens(c) * (double)desc_of(c)->channels * (double)desc_of(c)->taps;
}

/* One sequence: out, and its state. */
static bool judge_one(step_call *c, int64_t first, int64_t tokens, int64_t slot) {
    const attune_conv_desc *const d = desc_of(c);
    const int64_t kept = step_size_of(c, "kept") * d->channels, all = tokens * d->channels;
    double *const state = calloc((size_t)kept + 1, sizeof *state), *const exact =
                                                                       calloc((size_t)kept + 1, sizeof *exact);
    double *const out = malloc((size_t)(all + 1) * sizeof *out), *const limits =
                                                                     malloc((size_t)(all + 1) * sizeof *limits);
    const npy_array *const x = step_array(c, "x");
    const ref_conv r = {.desc = d,
                        .tokens = tokens,
                        .x = (const char *)x->data + (size_t)(first * d->channels) * npy_type_bytes(x->header.type),
                        .weights = step_data(c, "weights"),
                        .bias = step_data(c, "bias")};
    bool good = state && exact && out && limits;
    for (int64_t i = 0; good && i < kept; i++)
        state[i] = npy_element(step_before(c, "state"), (size_t)(slot * kept + i));
    good = good && ref_conv_compute(&r, state, out, limits);
    for (int64_t i = 0; good && i < all; i++) limits[i] = step_limit(d->dtype, out[i], limits[i]);
    if (good) step_compare(c, "out", first * d->channels, out, limits, all);
    if (good && kept) step_compare(c, "state", slot * kept, state, exact, kept);
    free(state), free(exact), free(out), free(limits);
    return good;
}

static bool judge(step_call *c) { return step_judge_sequences(c, judge_one); }

const step_operator step_conv = {STEP_OPERATOR(&conv_table), .follow = follow, .take_files = take_files};
