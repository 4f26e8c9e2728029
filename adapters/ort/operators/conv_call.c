/* A call of CausalConvWithState: a step of attune/linear.h. The input is [batch, channels, tokens], or with
 * channels_last [batch, tokens, channels, …]. */
#include "conv.h"

#include "kept.h"

#include <string.h>

/* ---- Inputs ---- */

typedef struct step {
    call *c;
    tensor in[CONV_NUM_INPUTS];
    int64_t tokens, kept;
    attune_conv_desc desc;
    attune_conv_step step;
} step;

static const char *const names[CONV_NUM_INPUTS] = {"input", "weight", "bias", "past_state"};

static bool is_last(const step *s) { return s->c->n->spec.attributes.channels_last; }

/* Dims of the input, or of the state, which has a different number of tokens. */
static int dims_of(const step *s, int64_t tokens, int64_t dims[TENSOR_MAX_RANK]) {
    const tensor *const input = &s->in[CONV_INPUT];
    memcpy(dims, input->dims, sizeof input->dims);
    dims[is_last(s) ? 1 : 2] = tokens;
    return input->rank;
}

/* [batch, channels, tokens] or [batch, tokens, channels]. */
static attune_mutable_view view_of(const step *s, void *data, int64_t tokens) {
    const int64_t channels = s->desc.channels;
    return (attune_mutable_view){
        .data = data, .batch = tokens * channels, .head = is_last(s) ? 1 : tokens, .token = is_last(s) ? channels : 1};
}

static bool take_input(step *s) {
    call *const c = s->c;
    const tensor *const input = &s->in[CONV_INPUT];
    for (int i = 0; i < CONV_NUM_INPUTS; i++)
        if (!call_input(c, (size_t)i, names[i], i > CONV_WEIGHT, &s->in[i])) return false;
    if (!common_is_float(input->dtype) || input->dtype == ATTUNE_F64)
        return call_fail(c, "input must be float, float16 or bfloat16");
    if (input->rank < 3 || (input->rank > 3 && !is_last(s)))
        return call_fail(c, "input has %d dims; it must have 3%s", input->rank, is_last(s) ? " or more" : "");
    s->tokens = input->dims[is_last(s) ? 1 : 2];
    s->desc.channels = is_last(s) ? 1 : input->dims[1];
    for (int i = 2; i < input->rank && is_last(s); i++) s->desc.channels *= input->dims[i];
    s->step.batch = input->dims[0], s->step.seq = s->tokens;
    return true;
}

static bool take_weights(step *s) {
    call *const c = s->c;
    const node_attributes *const a = &c->n->spec.attributes;
    const tensor *const weight = &s->in[CONV_WEIGHT], *const bias = &s->in[CONV_BIAS], *const past = &s->in[CONV_PAST];
    int64_t dims[TENSOR_MAX_RANK];
    if (!call_expect(c, "weight", weight, 3, (int64_t[]){s->desc.channels, 1, -1})) return false;
    if (weight->dims[2] < 1 || weight->dims[2] > CONV_MOST_TAPS)
        return call_fail(c, "weight has %lld taps; attune computes 1 to %d", (long long)weight->dims[2],
                         CONV_MOST_TAPS);
    s->desc.taps = weight->dims[2], s->desc.dilation = a->dilation;
    s->desc.dtype = s->in[CONV_INPUT].dtype;
    s->desc.has_bias = bias->is_given, s->desc.has_silu = a->activation != 0;
    s->kept = (s->desc.taps - 1) * a->dilation;
    const int rank = dims_of(s, s->kept, dims);
    s->step.weights = weight->data, s->step.bias = bias->data;
    return (!bias->is_given || call_expect(c, "bias", bias, 1, &s->desc.channels)) &&
           (!past->is_given || call_expect(c, "past_state", past, rank, dims));
}

/* ---- Outputs ---- */

static bool make_outputs(step *s) {
    call *const c = s->c;
    const tensor *const past = &s->in[CONV_PAST];
    const size_t element = adapter_type_bytes(s->desc.dtype);
    const size_t row = (size_t)(s->step.batch * s->desc.channels) * element, bytes = row * (size_t)s->kept;
    int64_t dims[TENSOR_MAX_RANK];
    tensor out, present;
    const int rank = dims_of(s, s->tokens, dims);
    if (!call_output_tensor(c, 0, rank, dims, &out)) return false;
    dims_of(s, s->kept, dims);
    if (!call_output_tensor(c, 1, rank, dims, &present)) return false;
    if (!out.is_given && !(out.data = call_scratch(c, row * (size_t)s->tokens))) return false;
    if (!present.is_given && !(present.data = call_scratch(c, bytes))) return false;
    if (!past->is_given && bytes) memset(present.data, 0, bytes);
    if (past->is_given && bytes && past->data != present.data) memcpy(present.data, past->data, bytes);
    const attune_mutable_view x = view_of(s, s->in[CONV_INPUT].data, s->tokens);
    s->step.x = (attune_view){.data = x.data, .batch = x.batch, .head = x.head, .token = x.token};
    s->step.out = view_of(s, out.data, s->tokens);
    s->step.state = view_of(s, present.data, s->kept);
    return true;
}

/* ---- Running ---- */

KEPT_KIND(conv);

bool call_conv(call *c) {
    static const attune_conv_desc initial = ATTUNE_CONV_DESC_INIT;
    step s = {.c = c, .step = ATTUNE_CONV_STEP_INIT};
    memcpy(&s.desc, &initial, sizeof s.desc); /* padding included, so that descriptions can be compared as bytes */
    const attune_runner runner = ort_runner(&c->place);
    s.step.runner = &runner;
    if (!take_input(&s) || !take_weights(&s) || !make_outputs(&s)) return false;
    return !s.step.batch || !s.desc.channels || kept_run(c, &kind, &s.desc, &s.step);
}
