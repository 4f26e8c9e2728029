/* The causal convolution: taps, dilations, types and layouts beside f64; the same bits by the interpreter, in any
 * layout, and for any cut into steps; and a sentence for what is wrong. */
#include <attune/linear.h>
#include <attune/status.h>

#include "ref_attention.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { BATCH = 2, CHANNELS = 37, MOST_TOKENS = 600, MOST_TAPS = 8 };

/* A call in one of the layouts: tokens of channels, or channels of tokens. */
typedef struct conv_case {
    attune_conv_desc desc;
    int64_t tokens, kept;
    int is_turned;
    void *x, *weights, *bias, *out, *state;
} conv_case;

static uint32_t state_of_numbers;

static void *numbers(attune_dtype dtype, int64_t count) {
    void *const data = calloc((size_t)count + 1, 4);
    for (int64_t i = 0; i < count; i++) {
        state_of_numbers = state_of_numbers * 1664525u + 1013904223u;
        ref_store(dtype, data, i, (double)(state_of_numbers >> 8) / (1 << 23) - 1);
    }
    return data;
}

static int64_t place_of(const conv_case *c, int64_t rows, int64_t b, int64_t row, int64_t channel) {
    return b * rows * CHANNELS + (c->is_turned ? channel * rows + row : row * CHANNELS + channel);
}

/* The same values in the other layout. */
static void *turned(const conv_case *c, const void *data, int64_t rows) {
    const conv_case other = {.is_turned = !c->is_turned};
    void *const to = calloc((size_t)(BATCH * rows * CHANNELS) + 1, 4);
    for (int64_t i = 0; i < BATCH * rows * CHANNELS; i++) {
        const int64_t b = i / rows / CHANNELS, row = i / CHANNELS % rows, channel = i % CHANNELS;
        ref_store(c->desc.dtype, to, place_of(&other, rows, b, row, channel),
                  ref_load(c->desc.dtype, data, place_of(c, rows, b, row, channel)));
    }
    return to;
}

static void open_case(conv_case *c, attune_conv_desc desc, int64_t tokens) {
    const int64_t dilation = desc.dilation ? desc.dilation : 1;
    if (!desc.dtype) desc.dtype = ATTUNE_F32;
    *c = (conv_case){.desc = desc, .tokens = tokens, .kept = (desc.taps - 1) * dilation};
    state_of_numbers = (uint32_t)(tokens * 31 + desc.taps);
    c->x = numbers(desc.dtype, BATCH * tokens * CHANNELS);
    c->weights = numbers(desc.dtype, CHANNELS * desc.taps);
    c->bias = numbers(desc.dtype, CHANNELS);
    c->state = numbers(desc.dtype, BATCH * c->kept * CHANNELS);
    c->out = calloc((size_t)(BATCH * tokens * CHANNELS) + 1, 4);
}

/* Opens the same case in the other layout. */
static void turn(const conv_case *c, conv_case *other) {
    *other = *c;
    other->is_turned = !c->is_turned;
    other->x = turned(c, c->x, c->tokens);
    other->state = turned(c, c->state, c->kept);
    other->out = calloc((size_t)(BATCH * c->tokens * CHANNELS) + 1, 4);
}

static void close_tensors(conv_case *c) {
    free(c->x);
    free(c->out);
    free(c->state);
}

static void close_case(conv_case *c) {
    close_tensors(c);
    free(c->weights);
    free(c->bias);
}

static attune_mutable_view view_of(const conv_case *c, void *data, int64_t rows) {
    attune_mutable_view v = {.data = data};
    if (c->is_turned) v.batch = rows * CHANNELS, v.head = rows, v.token = 1;
    return v;
}

static attune_conv_step step_of(const conv_case *c) {
    attune_conv_step s = ATTUNE_CONV_STEP_INIT;
    const attune_mutable_view x = view_of(c, c->x, c->tokens);
    s.batch = BATCH, s.seq = c->tokens;
    s.x.data = x.data, s.x.batch = x.batch, s.x.head = x.head, s.x.token = x.token;
    s.weights = c->weights, s.bias = c->desc.has_bias ? c->bias : NULL;
    s.out = view_of(c, c->out, c->tokens);
    s.state = view_of(c, c->state, c->kept);
    return s;
}

static attune_conv *make(const attune_conv_desc *desc) {
    attune_conv *conv;
    if (attune_conv_create(NULL, desc, &conv)) fail_msg("%s", attune_last_message());
    return conv;
}

static void run(attune_conv *conv, const attune_conv_step *step) {
    if (attune_conv_run(conv, step)) fail_msg("%s", attune_last_message());
}

/* ---- Beside f64 ---- */

/* The token `at` of the state and x, one after the other. */
static double token_at(const conv_case *c, int64_t b, int64_t at, int64_t channel) {
    return at < c->kept ? ref_load(c->desc.dtype, c->state, place_of(c, c->kept, b, at, channel))
                        : ref_load(c->desc.dtype, c->x, place_of(c, c->tokens, b, at - c->kept, channel));
}

static double wanted(const conv_case *c, int64_t b, int64_t token, int64_t channel) {
    const attune_conv_desc *const d = &c->desc;
    const int64_t dilation = d->dilation ? d->dilation : 1;
    double sum = d->has_bias ? ref_load(d->dtype, c->bias, channel) : 0;
    for (int64_t i = 0; i < d->taps; i++)
        sum += ref_load(d->dtype, c->weights, channel * d->taps + i) * token_at(c, b, token + i * dilation, channel);
    return d->has_silu ? sum / (1 + exp(-sum)) : sum;
}

static void check_result(const conv_case *before, const conv_case *after) {
    const attune_dtype dtype = before->desc.dtype;
    const double tolerance = dtype == ATTUNE_F32 ? 2e-6 : dtype == ATTUNE_F16 ? 4e-3 : 3e-2;
    for (int64_t i = 0; i < BATCH * before->tokens * CHANNELS; i++) {
        const int64_t b = i / before->tokens / CHANNELS, token = i / CHANNELS % before->tokens, channel = i % CHANNELS;
        const double have = ref_load(dtype, after->out, place_of(after, before->tokens, b, token, channel));
        if (!(fabs(have - wanted(before, b, token, channel)) <= tolerance * 4))
            fail_msg("out[%d, %d, %d] is %g, not %g", (int)b, (int)token, (int)channel, have,
                     wanted(before, b, token, channel));
    }
    for (int64_t i = 0; i < BATCH * before->kept * CHANNELS; i++) {
        const int64_t b = i / before->kept / CHANNELS, row = i / CHANNELS % before->kept, channel = i % CHANNELS;
        assert_true(ref_load(dtype, after->state, place_of(after, before->kept, b, row, channel)) ==
                    token_at(before, b, before->tokens + row, channel));
    }
}

/* Both layouts, by machine code and by the interpreter: all have the same bits. */
static void compare(attune_conv_desc desc, int64_t tokens) {
    attune_conv *const conv = make(&desc);
    conv_case before, c, other, interpreted;
    open_case(&before, desc, tokens);
    open_case(&c, desc, tokens);
    turn(&c, &other);
    turn(&other, &interpreted);
    const attune_conv_step s = step_of(&c), by_channels = step_of(&other);
    run(conv, &s);
    check_result(&before, &c);
    run(conv, &by_channels);
    void *const out = turned(&other, other.out, tokens), *const state = turned(&other, other.state, c.kept);
    const size_t bytes = c.desc.dtype == ATTUNE_F32 ? 4 : 2;
    assert_memory_equal(out, c.out, (size_t)(BATCH * tokens * CHANNELS) * bytes);
    if (c.kept) assert_memory_equal(state, c.state, (size_t)(BATCH * c.kept * CHANNELS) * bytes);
    attune_conv_step slow = step_of(&interpreted);
    if (attune_conv_run_interpreted(conv, &slow)) fail_msg("%s", attune_last_message());
    assert_memory_equal(interpreted.out, c.out, (size_t)(BATCH * tokens * CHANNELS) * bytes);
    if (tokens < 20) {
        close_tensors(&interpreted);
        turn(&before, &interpreted);
        slow = step_of(&interpreted);
        if (attune_conv_run_interpreted(conv, &slow)) fail_msg("%s", attune_last_message());
        assert_memory_equal(interpreted.out, other.out, (size_t)(BATCH * tokens * CHANNELS) * bytes);
        if (c.kept) assert_memory_equal(interpreted.state, other.state, (size_t)(BATCH * c.kept * CHANNELS) * bytes);
    }
    free(out);
    free(state);
    close_tensors(&other);
    close_tensors(&interpreted);
    close_case(&c);
    close_case(&before);
    attune_conv_destroy(conv);
}

static attune_conv_desc desc_of(int64_t taps, int64_t dilation, int has_bias, int has_silu) {
    attune_conv_desc d = ATTUNE_CONV_DESC_INIT;
    d.channels = CHANNELS, d.taps = taps, d.dilation = dilation, d.has_bias = has_bias, d.has_silu = has_silu;
    return d;
}

static void taps_and_tokens(void **state) {
    (void)state;
    compare(desc_of(4, 0, 1, 1), 1);
    compare(desc_of(4, 1, 1, 1), 2);
    compare(desc_of(4, 1, 0, 0), 19);
    compare(desc_of(1, 1, 1, 1), 9);
    compare(desc_of(3, 5, 0, 1), 12);
    compare(desc_of(MOST_TAPS, 1, 1, 0), 3);
    compare(desc_of(4, 1, 0, 1), MOST_TOKENS);
}

static void types(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        attune_conv_desc d = desc_of(4, 1, 1, 1);
        d.dtype = i ? ATTUNE_F16 : ATTUNE_BF16;
        compare(d, 1);
        compare(d, 17);
    }
}

/* Steps of any lengths take the state along. */
static void bits_of_cuts(void **state) {
    (void)state;
    enum { TOKENS = 41 };
    static const int cuts[][6] = {{1, 1, 39}, {20, 21}, {2, 9, 1, 29}, {40, 1}};
    const attune_conv_desc d = desc_of(4, 2, 1, 1);
    attune_conv *const conv = make(&d);
    conv_case whole;
    open_case(&whole, d, TOKENS);
    const attune_conv_step all = step_of(&whole);
    run(conv, &all);
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++) {
        conv_case c;
        open_case(&c, d, TOKENS);
        for (int64_t part = 0, token = 0; token < TOKENS; token += cuts[i][part++]) {
            attune_conv_step s = step_of(&c);
            s.seq = cuts[i][part];
            s.x.data = (float *)c.x + token * CHANNELS, s.out.data = (float *)c.out + token * CHANNELS;
            s.x.batch = s.out.batch = TOKENS * CHANNELS, s.x.token = s.out.token = CHANNELS, s.x.head = s.out.head = 1;
            run(conv, &s);
        }
        assert_memory_equal(c.out, whole.out, BATCH * TOKENS * CHANNELS * 4);
        assert_memory_equal(c.state, whole.state, (size_t)(BATCH * c.kept * CHANNELS) * 4);
        close_case(&c);
    }
    close_case(&whole);
    attune_conv_destroy(conv);
}

/* Sequences of several lengths, one empty, with states out of order: each as if it were alone, in both layouts, and by
 * the interpreter. */
static void ragged_batches(void **state) {
    (void)state;
    enum { TOKENS = 29, STATES = 6 };
    static const int32_t starts[] = {0, 5, 5, 6, TOKENS}, ids[] = {3, 0, 5, 1};
    const attune_conv_desc d = desc_of(4, 2, 1, 1);
    const int64_t kept = 6, rows = kept * CHANNELS;
    attune_conv *const conv = make(&d);
    conv_case c;
    open_case(&c, d, TOKENS);
    float *const states = numbers(ATTUNE_F32, STATES * rows), *const again = malloc((size_t)(STATES * rows) * 4);
    memcpy(again, states, (size_t)(STATES * rows) * 4);
    float *const alone = malloc(TOKENS * CHANNELS * 4);
    for (int by_channels = 0; by_channels < 2; by_channels++) {
        attune_conv_step s = step_of(&c);
        s.batch = 4, s.cu_seqlens = starts, s.num_states = STATES, s.state_ids = ids, s.state.data = again;
        if (by_channels) s.x.token = s.out.token = 1, s.x.head = s.out.head = TOKENS, s.x.batch = TOKENS * CHANNELS;
        memcpy(again, states, (size_t)(STATES * rows) * 4);
        run(conv, &s);
        float *const left = malloc((size_t)(STATES * rows) * 4);
        memcpy(left, states, (size_t)(STATES * rows) * 4);
        for (int b = 0; b < 4; b++) {
            attune_conv_step one = s;
            one.batch = 1, one.seq = starts[b + 1] - starts[b], one.cu_seqlens = NULL, one.state_ids = &ids[b];
            one.x.data = (float *)c.x + starts[b] * (by_channels ? 1 : CHANNELS);
            one.out.data = alone + starts[b] * (by_channels ? 1 : CHANNELS), one.state.data = left;
            run(conv, &one);
        }
        assert_memory_equal(c.out, alone, TOKENS * CHANNELS * 4);
        assert_memory_equal(again, left, (size_t)(STATES * rows) * 4);
        memcpy(again, states, (size_t)(STATES * rows) * 4);
        if (attune_conv_run_interpreted(conv, &s)) fail_msg("%s", attune_last_message());
        assert_memory_equal(c.out, alone, TOKENS * CHANNELS * 4);
        assert_memory_equal(again, left, (size_t)(STATES * rows) * 4);
        free(left);
    }
    free(states);
    free(again);
    free(alone);
    close_case(&c);
    attune_conv_destroy(conv);
}

/* The state by channels, x and out by tokens, and the other way round. */
static void state_of_another_layout(void **state) {
    (void)state;
    const attune_conv_desc d = desc_of(4, 2, 1, 1);
    attune_conv *const conv = make(&d);
    for (int64_t tokens = 3; tokens <= 20; tokens += 17) {
        conv_case c, other;
        open_case(&c, d, tokens);
        turn(&c, &other);
        attune_conv_step mixed = step_of(&c), turned_mixed = step_of(&other);
        void *const out = c.out, *const kept = turned(&c, c.state, c.kept);
        void *const out_turned = other.out, *const kept_turned = turned(&other, other.state, c.kept);
        const attune_mutable_view by_tokens = step_of(&c).state, by_channels = step_of(&other).state;
        mixed.state = by_channels, mixed.state.data = kept;
        turned_mixed.state = by_tokens, turned_mixed.state.data = kept_turned;
        run(conv, &mixed);
        run(conv, &turned_mixed);
        attune_conv_step same = step_of(&c);
        void *const wanted_out = calloc((size_t)(BATCH * tokens * CHANNELS) + 1, 4);
        same.out.data = wanted_out;
        run(conv, &same);
        void *const wanted_kept = turned(&c, c.state, c.kept), *const wanted_turned = turned(&c, wanted_out, tokens);
        assert_memory_equal(out, wanted_out, sizeof(float) * (size_t)(BATCH * tokens * CHANNELS));
        assert_memory_equal(kept, wanted_kept, sizeof(float) * (size_t)(BATCH * c.kept * CHANNELS));
        assert_memory_equal(out_turned, wanted_turned, sizeof(float) * (size_t)(BATCH * tokens * CHANNELS));
        assert_memory_equal(kept_turned, c.state, sizeof(float) * (size_t)(BATCH * c.kept * CHANNELS));
        free(kept), free(kept_turned), free(wanted_out), free(wanted_kept), free(wanted_turned);
        close_tensors(&other);
        close_case(&c);
    }
    attune_conv_destroy(conv);
}

static void nothing_to_do(void **state) {
    (void)state;
    const attune_conv_desc d = desc_of(4, 1, 0, 0);
    attune_conv *const conv = make(&d);
    attune_conv_step s = ATTUNE_CONV_STEP_INIT;
    s.batch = 3;
    run(conv, &s);
    s.batch = 0, s.seq = 5;
    run(conv, &s);
    attune_conv_destroy(conv);
    attune_conv_destroy(NULL);
}

/* ---- What is refused ---- */

static void refuse_desc(const attune_conv_desc *d, const char *sentence) {
    attune_conv *conv = (attune_conv *)d;
    assert_int_not_equal(attune_conv_create(NULL, d, &conv), ATTUNE_OK);
    assert_null(conv);
    assert_string_equal(attune_last_message(), sentence);
}

static void wrong_descriptions(void **state) {
    (void)state;
    attune_conv_desc d = desc_of(0, 1, 0, 0);
    refuse_desc(&d, "taps is 0; it must be from 1 to 64");
    d = desc_of(4, 65, 0, 0);
    refuse_desc(&d, "dilation is 65; it must be from 1 to 64");
    d = desc_of(4, 1, 2, 0);
    refuse_desc(&d, "has_bias is 2; it must be from 0 to 1");
    d = desc_of(4, 1, 0, 0), d.channels = 0;
    refuse_desc(&d, "channels is 0; it must be from 1 to 2147483647");
    d = desc_of(4, 1, 0, 0), d.dtype = ATTUNE_F64;
    refuse_desc(&d, "dtype is f64; it must be f32, bf16 or f16");
    refuse_desc(NULL, "attune_conv_create was given no description");
}

static void refuse_step(attune_conv *conv, const attune_conv_step *s, const char *sentence) {
    assert_int_equal(attune_conv_run(conv, s), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), sentence);
}

static const char *overlap(const char *name, int64_t tokens, int64_t batch, int64_t token, int64_t channel) {
    static char sentence[256];
    snprintf(sentence, sizeof sentence,
             "%s has the dims [%d, %lld, %d] and the strides [%lld, %lld, %lld]; its elements would overlap", name,
             BATCH, (long long)tokens, CHANNELS, (long long)batch, (long long)token, (long long)channel);
    return sentence;
}

static void wrong_steps(void **state) {
    (void)state;
    const attune_conv_desc d = desc_of(4, 1, 1, 0);
    attune_conv *const conv = make(&d);
    conv_case c, before;
    open_case(&c, d, 6);
    open_case(&before, d, 6);
    const attune_conv_step good = step_of(&c);
    attune_conv_step s = good;
    s.x.data = NULL;
    refuse_step(conv, &s, "x is NULL");
    s = good, s.bias = NULL;
    refuse_step(conv, &s, "bias is NULL");
    s = good, s.state.data = NULL;
    refuse_step(conv, &s, "state is NULL");
    s = good, s.seq = -1;
    refuse_step(conv, &s, "seq is -1; it must be from 0 to 2147483647");
    s = good, s.x.token = -1;
    refuse_step(conv, &s, "x has a negative stride");
    s = good, s.out.head = 1, s.out.token = 30;
    refuse_step(conv, &s, overlap("out", 6, 0, 30, 1));
    s = good, s.out.head = 1, s.out.token = 37, s.out.batch = 0;
    refuse_step(conv, &s, overlap("out", 6, 0, 37, 1));
    s = good, s.state.head = 1, s.state.token = 37, s.state.batch = 5;
    refuse_step(conv, &s, overlap("state", 3, 5, 37, 1));
    s = good, s.out.batch = 1, s.out.head = s.out.token = (int64_t)1 << 62;
    refuse_step(conv, &s, overlap("out", 6, 1, (int64_t)1 << 62, (int64_t)1 << 62));
    s = good, s.x.column = 7;
    refuse_step(conv, &s, "x has the column stride 7; it must be 0 or 1");
    s = good, s.out = (attune_mutable_view){.data = (void *)(uintptr_t)good.x.data};
    refuse_step(conv, &s, "out overlaps x; they must not share memory");
    s = good, s.state.data = good.out.data; /* the smaller of the two moves, so that it reaches no other tensor */
    refuse_step(conv, &s, "out overlaps state; they must not share memory");
    s = good, s.state.data = (void *)(uintptr_t)good.x.data;
    refuse_step(conv, &s, "state overlaps x; they must not share memory");
    refuse_step(conv, NULL, "attune_conv_run was given no step");
    assert_memory_equal(c.out, before.out, sizeof(float) * BATCH * 6 * CHANNELS);
    assert_memory_equal(c.state, before.state, sizeof(float) * BATCH * 3 * CHANNELS);
    close_case(&before);
    close_case(&c);
    attune_conv_destroy(conv);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(taps_and_tokens), cmocka_unit_test(types),
        cmocka_unit_test(bits_of_cuts),    cmocka_unit_test(ragged_batches),
        cmocka_unit_test(nothing_to_do),   cmocka_unit_test(wrong_descriptions),
        cmocka_unit_test(wrong_steps),     cmocka_unit_test(state_of_another_layout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
