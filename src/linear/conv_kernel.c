/* The kernel of the causal convolution, as loop IR.
 *
 * Lanes run along channels. A task computes some tokens and some channels of a sequence. A token is a sum over its
 * taps, which are rows of x, or of the state for taps before the first token. A second phase writes the new state:
 *
 *                    channels ►
 *     state    t-2   [ a a a a ]
 *              t-1   [ b b b b ]      out[t] = w0 * (t-2) + w1 * (t-1) + w2 * t        for three taps
 *     x        t     [ c c c c ]
 *
 * If the tokens of a channel are contiguous, and there are many, lanes run along tokens instead. A task computes one
 * channel: a line in scratch begins with the channel's state, then come pieces of x, and each tap is a vector of the
 * line with another start. */
#include "linear/conv_kernel.h"

#include "described/described.h"
#include "described/ir_text.h"
#include "problem/problem_fields.h"

#include <string.h>

typedef struct writer {
    attune_ir_writer *w;
    long long taps, dilation, kept;
    const char *dtype;
    int bias, silu, lanes, has_fma;
    uint32_t which;
} writer;

#define PUT(...) attune_ir_print(x->w, __VA_ARGS__)

static bool read_problem(writer *x, const char *problem) {
    attune_conv_desc d;
    if (!at_described_read(&conv_described, problem, &d, &x->which)) return false;
    x->taps = d.taps, x->dilation = d.dilation, x->kept = conv_kept(&d);
    x->bias = d.has_bias, x->silu = d.has_silu, x->dtype = mha_dtype_name(d.dtype);
    return true;
}

static bool is_f32(const writer *x) { return !strcmp(x->dtype, "f32"); }
/* The operation that converts a stored element to f32, or nothing. */
static const char *cast(const writer *x) { return is_f32(x) ? "" : "cast.f32"; }

static void put_store(const writer *x, const char *value) {
    if (is_f32(x))
        PUT("%s\n", value);
    else
        PUT("cast.%s(%s)\n", x->dtype, value);
}

/* sum = w_i tap + sum. */
static void put_tap(const writer *x, int i, const char *tap) {
    char weight[32];
    snprintf(weight, sizeof weight, "w%d", i);
    PUT("sum[] = ");
    at_put_madd(x->w, x->has_fma, weight, tap, "sum[]");
    PUT("\n");
}

static void put_parameters(const writer *x) {
    const char *const inner = x->which == CONV_TOKENS ? "1" : "x_t", *const y_inner =
                                                                         x->which == CONV_TOKENS ? "1" : "y_t";
    const bool is_unit = x->which < CONV_APART;
    PUT("kernel @causal_conv (\n  x: %s[batches, tokens, channels] strides [x_b, %s, %s] in,\n", x->dtype, inner,
        is_unit ? "1" : "x_c");
    PUT("  weights: %s[channels, %lld] in,\n", x->dtype, x->taps);
    if (x->bias) PUT("  bias: %s[channels] in,\n", x->dtype);
    if (x->kept)
        PUT("  state: %s[states, %lld, channels] strides [s_b, s_t, %s] inout,\n", x->dtype, x->kept,
            x->which == CONV_CHANNELS ? "1" : "s_c");
    PUT("  y: %s[batches, tokens, channels] strides [y_b, %s, %s] out,\n", x->dtype, y_inner, is_unit ? "1" : "y_c");
    PUT("  parts: i32[batch, 3] in,\n  batch: idx, batches: idx, tokens: idx, longest: idx, states: idx, channels: "
        "idx,\n"
        "  x_b: idx, x_c: idx, x_t: idx,\n");
    if (x->kept) PUT("  s_b: idx, s_c: idx, s_t: idx,\n");
    PUT("  y_b: idx, y_c: idx, y_t: idx) {\nassume batches >= 1\nassume channels >= 1\nassume states >= 1\nassume "
        "longest >= 0\nassume tokens >= 0\n");
}

/* Names of a sequence, with the number of the phase: the first of its tokens and the one after the last, the state, the
 * batch of the tensor. Begins a block for those that have tokens. */
static void open_sequence(const writer *x, int phase) {
    PUT("let first%d in 0..tokens + 1 = cast.idx(parts[number%d, 0])\n"
        "let end%d in 0..tokens + 1 = cast.idx(parts[number%d, 1])\n"
        "let slot%d in 0..states = cast.idx(parts[number%d, 2])\n"
        "let b%d in 0..batches = min(number%d, batches - 1)\nif first%d < end%d {\n",
        phase, phase, phase, phase, phase, phase, phase, phase, phase, phase);
}

/* let result = the activation of the sum. */
static void put_result(const writer *x) {
    if (x->silu)
        PUT("let y_ = sum[]\nlet result = y_ / (splat.x%d(1.0) + exp2(y_ * splat.x%d(-0x1.715476p+0)))\n", x->lanes,
            x->lanes);
    else
        PUT("let result = sum[]\n");
}

/* ---- Lanes are channels ---- */

/* value0[] or value1[] of a phase: token `at` of the state followed by x. */
static void put_token(const writer *x, int phase, int number, const char *at) {
    if (!x->kept) {
        PUT("value%d[] = %s(x[b%d, first%d + %s, c%d]:x%d ? (live%d))\n", phase, cast(x), phase, phase, at, phase,
            x->lanes, phase);
        return;
    }
    PUT("let at%d = %s\nif at%d < %lld {\n", number, at, number, x->kept);
    PUT("value%d[] = %s(state[slot%d, at%d, c%d]:x%d ? (live%d))\n} else {\n", phase, cast(x), phase, number, phase,
        x->lanes, phase);
    PUT("value%d[] = %s(x[b%d, first%d + at%d - %lld, c%d]:x%d ? (live%d))\n}\n", phase, cast(x), phase, phase, number,
        x->kept, phase, x->lanes, phase);
}

static void put_channels_phase(const writer *x) {
    enum { TOKENS = 16, VECTORS = 8 };
    const int width = VECTORS * x->lanes;
    char at[48];
    PUT("parallel for number0 in 0..batch, part in 0..(longest + %d) / %d, block in 0..(channels + %d) / %d {\n",
        TOKENS - 1, TOKENS, width - 1, width);
    open_sequence(x, 0);
    PUT("for c0 in block * %d..min(block * %d + %d, channels) by %d {\n", width, width, width, x->lanes);
    PUT("let live0 = ramp.x%d(c0, 1) < splat.x%d(channels)\nalloc sum: f32x%d[] reg\nalloc value0: f32x%d[] reg\n",
        x->lanes, x->lanes, x->lanes, x->lanes);
    for (long long i = 0; i < x->taps; i++)
        PUT("let w%lld = %s(weights[c0, %lld]:x%d @0 ? (live0))\n", i, cast(x), i, x->lanes);
    if (x->bias) PUT("let begin = %s(bias[c0]:x%d ? (live0))\n", cast(x), x->lanes);
    PUT("for t in part * %d..min(part * %d + %d, end0 - first0) {\n", TOKENS, TOKENS, TOKENS);
    if (x->bias)
        PUT("sum[] = begin\n");
    else
        PUT("sum[] = splat.x%d(0.0)\n", x->lanes);
    for (int i = 0; i < (int)x->taps; i++) {
        snprintf(at, sizeof at, "t + %lld", i * x->dilation);
        put_token(x, 0, i, at);
        put_tap(x, i, "value0[]");
    }
    put_result(x);
    PUT("y[b0, first0 + t, c0]:x%d ? (live0) = ", x->lanes);
    put_store(x, "result");
    PUT("}\n}\n}\n}\n");
}

/* Rows of the new state are copies of later rows, so they are written in order. */
static void put_state_phase(const writer *x) {
    PUT("parallel for number1 in 0..batch, block1 in 0..(channels + %d) / %d {\n", x->lanes - 1, x->lanes);
    PUT("let c1 = block1 * %d\nlet live1 = ramp.x%d(c1, 1) < splat.x%d(channels)\nalloc value1: f32x%d[] reg\n",
        x->lanes, x->lanes, x->lanes, x->lanes);
    open_sequence(x, 1);
    PUT("for row in 0..%lld {\n", x->kept);
    put_token(x, 1, (int)x->taps, "end1 - first1 + row");
    PUT("state[slot1, row, c1]:x%d ? (live1) = ", x->lanes);
    put_store(x, "value1[]");
    PUT("}\n}\n}\n");
}

/* ---- Lanes are tokens ---- */

static void put_line(const writer *x) {
    enum { PIECE = 512 };
    char tap[64];
    PUT("parallel for number0 in 0..batch, c in 0..channels {\n");
    open_sequence(x, 0);
    PUT("alloc line: f32[%lld] scratch\nalloc sum: f32x%d[] reg\n", x->kept + PIECE + x->lanes, x->lanes);
    for (long long i = 0; i < x->taps; i++)
        PUT("let w%lld = splat.x%d(%s(weights[c, %lld]))\n", i, x->lanes, cast(x), i);
    if (x->kept) PUT("for k0 in 0..%lld {\nline[k0] = %s(state[slot0, k0, c])\n}\n", x->kept, cast(x));
    PUT("for first in first0..end0 by %d {\nlet count = min(end0 - first, %d)\n", PIECE, PIECE);
    PUT("for i in 0..count by %d {\nlet t0 = first + i\n", x->lanes);
    PUT("line[%lld + i]:x%d = %s(x[b0, t0, c]:x%d @1 ? (ramp.x%d(t0, 1) < splat.x%d(end0)))\n}\n", x->kept, x->lanes,
        cast(x), x->lanes, x->lanes, x->lanes);
    PUT("for j in 0..count by %d {\nlet t = first + j\n", x->lanes);
    if (x->bias)
        PUT("sum[] = splat.x%d(%s(bias[c]))\n", x->lanes, cast(x));
    else
        PUT("sum[] = splat.x%d(0.0)\n", x->lanes);
    for (int i = 0; i < (int)x->taps; i++) {
        snprintf(tap, sizeof tap, "line[j + %lld]:x%d", i * x->dilation, x->lanes);
        put_tap(x, i, tap);
    }
    put_result(x);
    PUT("y[b0, t, c]:x%d @1 ? (ramp.x%d(t, 1) < splat.x%d(end0)) = ", x->lanes, x->lanes, x->lanes);
    put_store(x, "result");
    PUT("}\n");
    if (x->kept) PUT("for k1 in 0..%lld {\nline[k1] = line[count + k1]\n}\n", x->kept);
    PUT("}\n");
    if (x->kept) {
        PUT("for k2 in 0..%lld {\nstate[slot0, k2, c] = ", x->kept);
        put_store(x, "line[k2]");
        PUT("}\n");
    }
    PUT("}\n}\n");
}

int conv_build(void *user, const attune_build_request *request, attune_ir_writer *w) {
    writer all = {.w = w, .lanes = request->vector_bytes / 4, .has_fma = request->has_fma}, *const x = &all;
    (void)user;
    if (!read_problem(x, request->problem)) {
        PUT("%s is no problem of a causal convolution", request->problem);
        return 1;
    }
    put_parameters(x);
    if (x->which == CONV_TOKENS) {
        put_line(x);
    } else {
        put_channels_phase(x);
        if (x->kept) put_state_phase(x);
    }
    PUT("}\n");
    return 0;
}
