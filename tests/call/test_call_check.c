/* The debug mode: what it refuses is what reaches an output, and its sentences name tensor, index and value. */
#define _GNU_SOURCE
#include "support/calls.h"
#include "support/statuses.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static attune_context *checking;

static int open_contexts(void **state) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.cache_dir = "";
    options.check = 1;
    return sample_context_open(state) || attune_context_create(&options, &checking) != ATTUNE_OK;
}

static int close_contexts(void **state) {
    attune_context_destroy(checking);
    return sample_context_close(state);
}

/* ---- One element that is not a number ---- */

/* The bytes of a NaN; 0: the type has none. */
static size_t nan_of(attune_dtype dtype, void *bytes) {
    static const uint64_t f64 = UINT64_C(0x7ff8000000000000);
    static const uint32_t f32 = 0x7fc00000;
    static const uint16_t f16 = 0x7e00, bf16 = 0x7fc0;
    static const uint8_t f8 = 0x7f;
    const struct {
        attune_dtype dtype;
        const void *from;
        size_t bytes;
    } types[] = {{ATTUNE_F64, &f64, 8},
                 {ATTUNE_F32, &f32, 4},
                 {ATTUNE_F16, &f16, 2},
                 {ATTUNE_BF16, &bf16, 2},
                 {ATTUNE_F8, &f8, 1}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].dtype == dtype) return memcpy(bytes, types[i].from, types[i].bytes), types[i].bytes;
    return 0;
}

/* Sorts of problems that the samples lack. */
static const sample others[] = {
    {.problem = "batch=2,num_heads=4,num_kv_heads=2,seq_q=5,seq_kv=9,head_dim=8,mask_mod=\"kv % 4 != 1\""},
    {.problem = "num_heads=2,seq_q=5,seq_kv=9,head_dim=8,tensors=\"doc:i32[q], of:i32[kv]\","
                "mask_mod=\"doc[q] == of[kv]\""},
    {.problem = "num_heads=2,seq_q=5,seq_kv=9,head_dim=8,tensors=\"far:f32[h]\","
                "mask_mod=\"float(kv) * 0.25 <= far[h] + float(q)\",score_mod=\"score * 2\",prob_mod=\"prob * 2\""},
    {.problem = "batch=2,num_heads=2,seq_q=3,seq_kv=9,head_dim=8,weights_mode=scaled,has_kv_lens=1,is_causal=1",
     .kv = {9, 4}},
    {.problem = "batch=2,num_heads=2,seq_q=3,seq_kv=9,head_dim=8,has_kv_lens=1,is_causal=1,integer=scores",
     .kv = {9, 4}},
    {.problem = "batch=2,num_heads=2,seq_q=3,seq_kv=9,head_dim=32,has_kv_lens=1,is_causal=1,integer=all,kv_dtype=i8,"
                "kv_scales=token",
     .kv = {9, 4}},
    {.problem = "num_heads=2,seq_q=3,seq_kv=9,head_dim=64,kv_dtype=i4,kv_scales=group_min,is_causal=1,"
                "causal_align=top_left"},
    {.problem = "num_heads=2,seq_q=3,seq_kv=9,head_dim=64,kv_dtype=i8,kv_scales=channel"},
    {.problem = "num_heads=2,seq_q=3,seq_kv=21,head_dim=8,kv_layout=panels,dtype=bf16,is_causal=1,"
                "causal_align=top_left"},
    {.problem = "num_heads=2,seq_q=3,seq_kv=9,head_dim=8,q_strides=96:8:32:2,k_strides=999:8:16:1"},
    {.problem = "num_heads=2,seq_q=5,head_dim=8,qk_norm_eps=1e-6,rotary_dim=8,qk_hadamard=1",
     .sizes = "rotary_positions=9"},
    {.problem = "op=weights,num_heads=2,seq_q=5,seq_kv=9,head_dim=8,weights_mode=capped,has_row_ids=1,num_rows=3"},
    {.problem = "batch=2,embed_dim=16,num_heads=2,seq_q=3,weights_mode=scaled,has_kv_lens=1,is_causal=1", .kv = {3, 1}},
    {.problem = "batch=2,embed_dim=16,num_heads=2,seq_q=3,seq_kv=5,is_cross=1,weights_mode=scaled,has_kv_lens=1",
     .kv = {5, 2}},
    {.problem = "batch=2,embed_dim=64,num_heads=2,seq_q=3,w_dtype=i4,has_kv_lens=1,is_causal=1", .kv = {3, 1}},
    {.problem = "batch=2,embed_dim=12,num_heads=2,seq_q=3,low_rank=2,low_rank_shared=1,w_dtype=bf16"},
};

/* A call, and what its tensors held at first and after a run. */
typedef struct tried {
    sample_call call;
    attune_kernel *plain, *checked;
    char *first[SAMPLE_TENSORS], *after[SAMPLE_TENSORS];
} tried;

static char *copy_of(const tensor_memory *m) {
    char *const copy = malloc(m->bytes ? m->bytes : 1);
    assert_non_null(copy);
    return memcpy(copy, m->data, m->bytes);
}

static void reset_outputs(const tried *t) {
    for (size_t i = 0; i < t->call.count; i++)
        if (t->call.tensors[i].is_output) memcpy(t->call.memory[i].data, t->first[i], t->call.memory[i].bytes);
}

static void try_begin(tried *t, const sample *from) {
    for (size_t i = 0; i < t->call.count; i++) t->first[i] = copy_of(&t->call.memory[i]);
    assert_int_equal(attune_compile(sample_context, &t->call.problem, NULL, &t->plain), ATTUNE_OK);
    assert_int_equal(attune_compile(checking, &t->call.problem, NULL, &t->checked), ATTUNE_OK);
    if (attune_run(checking, t->checked, &t->call.arguments)) fail_msg("%s: %s", from->problem, attune_last_message());
    reset_outputs(t);
    assert_int_equal(attune_run(sample_context, t->plain, &t->call.arguments), ATTUNE_OK);
    for (size_t i = 0; i < t->call.count; i++) t->after[i] = copy_of(&t->call.memory[i]);
    reset_outputs(t);
}

static void try_open(tried *t, const sample *from) {
    sample_call_open(&t->call, from, ON_THE_HEAP);
    for (size_t i = 0; i < t->call.count; i++) { /* negative scales of V make NaN with integer=all */
        float *const scales = t->call.memory[i].data;
        const size_t count = strcmp(t->call.tensors[i].name, "v_scale") ? 0 : t->call.memory[i].bytes / sizeof *scales;
        for (size_t n = 0; n < count; n++) scales[n] = fabsf(scales[n]);
    }
    try_begin(t, from);
}

static void try_close(tried *t) {
    for (size_t i = 0; i < t->call.count; i++) {
        free(t->first[i]);
        free(t->after[i]);
    }
    attune_kernel_release(t->plain);
    attune_kernel_release(t->checked);
    sample_call_close(&t->call);
}

/* Whether outputs hold what they held in `held`, apart from `skipped` bytes of a tensor. */
static bool are_as(const tried *t, char *const *held, size_t tensor, size_t at, size_t skipped) {
    for (size_t i = 0; i < t->call.count; i++) {
        const char *const data = t->call.memory[i].data;
        const size_t bytes = t->call.memory[i].bytes, end = at + skipped;
        if (!t->call.tensors[i].is_output) continue;
        if (i != tensor && memcmp(data, held[i], bytes)) return false;
        if (i == tensor && (memcmp(data, held[i], at) || memcmp(data + end, held[i] + end, bytes - end))) return false;
    }
    return true;
}

/* The element becomes NaN: the checking context refuses the call if and only if an output changes by it. */
static bool poison(tried *t, const sample *from, size_t tensor, size_t at, const void *nan, size_t size) {
    char *const element = (char *)t->call.memory[tensor].data + at;
    memcpy(element, nan, size);
    assert_int_equal(attune_run(sample_context, t->plain, &t->call.arguments), ATTUNE_OK);
    const bool reached = !are_as(t, t->after, tensor, at, size);
    reset_outputs(t);
    memcpy(element, nan, size);
    const attune_status status = attune_run(checking, t->checked, &t->call.arguments);
    if (status && status != ATTUNE_INVALID_ARGUMENT) fail_msg("%s", attune_last_message());
    if (status) assert_true(are_as(t, t->first, tensor, at, size));
    if (status && strncmp(attune_last_message(), "ATTUNE_CHECK: ", 14)) fail_msg("%s", attune_last_message());
    if (reached != (status != ATTUNE_OK))
        fail_msg("%s: NaN in %s, byte %zu %s: %s", from->problem, t->call.tensors[tensor].name, at,
                 reached ? "reaches an output" : "reaches no output", status ? attune_last_message() : "not refused");
    reset_outputs(t);
    memcpy(element, t->first[tensor] + at, size);
    return reached;
}

/* What functions read is theirs to judge. */
static bool is_read_by_a_function(const tried *t, size_t tensor) {
    for (int i = 0; i < ATTUNE_MAX_USER_TENSORS; i++)
        if (!strcmp(t->call.problem.tensors[i].name, t->call.tensors[tensor].name)) return true;
    return false;
}

static void poison_all(const sample *from) {
    tried t;
    int reached = 0;
    try_open(&t, from);
    for (size_t n = 0; n < t.call.count; n++) {
        char nan[8];
        const bool is_blob = !strcmp(t.call.tensors[n].name, "packed_weights");
        const size_t size = nan_of(t.call.tensors[n].dtype, nan), step = is_blob ? 37 : 1;
        if (!t.call.tensors[n].is_input || !size || is_read_by_a_function(&t, n)) continue;
        for (size_t at = is_blob ? 64 : 0; at + size <= t.call.memory[n].bytes; at += step * size)
            reached += poison(&t, from, n, at, nan, size);
    }
    assert_true(reached > 0);
    try_close(&t);
}

static void nan_is_refused_where_it_reaches_an_output(void **state) {
    (void)state;
    for (int i = 0; i < NUM_SAMPLES; i++) poison_all(&samples[i]);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) poison_all(&others[i]);
}

/* Scales that lie among codes: an f16, or two, before each 32 columns. */
static void scales_inline_are_looked_at(void **state) {
    (void)state;
    static const struct {
        sample sample;
        size_t block, scales;
    } cases[] = {
        {{.problem = "batch=2,num_heads=2,seq_q=3,seq_kv=9,head_dim=64,kv_dtype=i8,kv_scales=inline,has_kv_lens=1",
          .kv = {9, 4}},
         34,
         1},
        {{.problem = "num_heads=2,seq_q=3,seq_kv=9,head_dim=64,kv_dtype=i4,kv_scales=inline_min,is_causal=1,"
                     "causal_align=top_left"},
         20,
         2}};
    static const uint16_t nan = 0x7e00;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tried t;
        int counts[2] = {0};
        sample_call_open(&t.call, &cases[i].sample, ON_THE_HEAP);
        for (size_t n = 1; n <= 2; n++) memset(t.call.memory[n].data, 0x11, t.call.memory[n].bytes);
        try_begin(&t, &cases[i].sample);
        for (size_t n = 1; n <= 2; n++)
            for (size_t at = 0; at < t.call.memory[n].bytes; at += cases[i].block)
                for (size_t scale = 0; scale < cases[i].scales; scale++)
                    counts[poison(&t, &cases[i].sample, n, at + 2 * scale, &nan, sizeof nan)]++;
        assert_true(counts[0] > 20 && counts[1] > 20);
        try_close(&t);
    }
}

/* Blobs of codes: biases of the output projection come first, then scales. */
static void scales_of_packed_weights_are_looked_at(void **state) {
    (void)state;
    static const sample block = {.problem = "batch=2,embed_dim=64,num_heads=2,seq_q=3,w_dtype=i8"};
    static const uint32_t wide = 0x7fc00000;
    static const uint16_t half = 0x7e00;
    tried t;
    size_t n = 0;
    try_open(&t, &block);
    while (strcmp(t.call.tensors[n].name, "packed_weights")) n++;
    assert_true(poison(&t, &block, n, 64, &wide, sizeof wide));
    assert_non_null(strstr(attune_last_message(), "has nan in the bias of the projection of out, output 0"));
    assert_true(poison(&t, &block, n, 128 + 4 * 5 + 2, &half, sizeof half));
    assert_non_null(
        strstr(attune_last_message(), "has nan in the scales of the projection of out, group 1 of output 5"));
    try_close(&t);
}

/* ---- Sentences ---- */

static void set_f32(const sample_call *c, const char *tensor, size_t at, float value) {
    ((float *)sample_call_data(c, tensor))[at] = value;
}

/* The call is refused with this sentence by every way to make it, and nothing is written; without the check it runs. */
static void assert_sentence(const sample_call *c, const char *sentence) {
    attune_call *parts;
    attune_plan *plan;
    char whole[ATTUNE_MESSAGE_BYTES];
    snprintf(whole, sizeof whole, "ATTUNE_CHECK: %s", sentence);
    sample_call_assert_refused(checking, c, &c->arguments, whole);
    attune_kernel *kernel = kernel_of(checking, &c->problem);
    assert_int_equal(attune_run(checking, kernel, &c->arguments), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), whole);
    assert_int_equal(attune_call_begin(checking, kernel, &c->arguments, 1, &parts), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), whole);
    attune_kernel_release(kernel);
    assert_int_equal(attune_plan_create(checking, &c->problem, NULL, &plan), ATTUNE_OK);
    assert_int_equal(attune_plan_run(plan, &c->arguments, NULL), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), whole);
    attune_plan_destroy(plan);
    assert_int_equal(attune_run_interpreted(sample_context, &c->problem, NULL, &c->arguments), ATTUNE_OK);
}

static void sentences_name_tensor_index_and_value(void **state) {
    (void)state;
    sample_call c;
    sample_call_open(&c, &samples[PLAIN], ON_THE_HEAP); /* q [2, 4, 13, 12], k [2, 2, 21, 12] */
    set_f32(&c, "q", ((1 * 4 + 2) * 13 + 7) * 12 + 5, NAN);
    assert_sentence(&c, "q[1, 2, 7, 5] is nan: query 7 of sequence 1");
    set_f32(&c, "q", ((1 * 4 + 2) * 13 + 7) * 12 + 5, 0);
    set_f32(&c, "k", ((0 * 2 + 1) * 21 + 3) * 12 + 11, INFINITY);
    assert_sentence(&c, "k[0, 1, 3, 11] is inf: key 3 of sequence 0");
    set_f32(&c, "k", ((0 * 2 + 1) * 21 + 3) * 12 + 11, 0);
    set_f32(&c, "v", 0, -INFINITY);
    assert_sentence(&c, "v[0, 0, 0, 0] is -inf: key 0 of sequence 0");
    sample_call_close(&c);
    sample_call_open(&c, &samples[MASKED], ON_THE_HEAP); /* bias [2, 3, 1, 19] */
    set_f32(&c, "attn_bias", (1 * 3 + 2) * 19 + 4, INFINITY);
    assert_sentence(&c, "attn_bias[1, 2, 0, 4] is inf");
    sample_call_close(&c);
    sample_call_open(&c, &samples[PLACED], ON_THE_HEAP);
    set_f32(&c, "alibi_slopes", 2, NAN);
    assert_sentence(&c, "alibi_slopes[2] is nan");
    sample_call_close(&c);
    sample_call_open(&c, &samples[SERVED], ON_THE_HEAP); /* 8 pages of 4, sequence 2 has keys 0 to 4 in pages before */
    set_f32(&c, "k_new", (6 * 2 + 1) * 8 + 3, NAN);
    assert_sentence(&c, "k_new[0, 1, 6, 3] is nan: new key 0 of sequence 2");
    sample_call_close(&c);
    sample_call_open(&c, &samples[ROTATED], ON_THE_HEAP);
    set_f32(&c, "sin", 4 * 3 + 1, NAN);
    assert_sentence(&c, "sin[0, 4, 1] is nan: position 4 occurs in sequence 0");
    sample_call_close(&c);
}

/* Infinities that mean something. */
static void infinities_that_are_meant(void **state) {
    (void)state;
    sample_call c;
    sample_call_open(&c, &samples[MASKED], ON_THE_HEAP);
    for (size_t i = 0; i < 19; i++) set_f32(&c, "attn_bias", i, -INFINITY);
    assert_int_equal(attune_run_interpreted(checking, &c.problem, NULL, &c.arguments), ATTUNE_OK);
    sample_call_close(&c);
    sample_call_open(&c, &samples[PLACED], ON_THE_HEAP);
    set_f32(&c, "sinks", 0, -INFINITY);
    set_f32(&c, "sinks", 1, INFINITY);
    assert_int_equal(attune_run_interpreted(checking, &c.problem, NULL, &c.arguments), ATTUNE_OK);
    sample_call_close(&c);
}

/* ---- Pages ---- */

/* Tables of SERVED: sequences have 9, 3 and 11 keys in pages of 4, of which 5, 1 and 6 are new. */
static void a_page_that_is_written_belongs_to_one_sequence(void **state) {
    (void)state;
    sample_call c;
    sample_call_open(&c, &samples[SERVED], ON_THE_HEAP);
    int32_t *const table = sample_call_data(&c, "block_table"), third = table[6], second = table[3];
    assert_int_equal(attune_run_interpreted(checking, &c.problem, NULL, &c.arguments), ATTUNE_OK);
    table[6] = table[0]; /* page 0 of sequence 0 holds keys 0 to 3, which are old, as those of sequence 2 are */
    assert_int_equal(attune_run_interpreted(checking, &c.problem, NULL, &c.arguments), ATTUNE_OK);
    table[6] = table[2];
    assert_sentence(&c, "block_table[0, 2] and block_table[2, 0] are both page 4, to which sequence 0 appends keys: it "
                        "must have that page to itself");
    table[6] = third;
    table[3] = table[8]; /* both write */
    assert_sentence(&c, "block_table[1, 0] and block_table[2, 2] are both page 0, to which sequence 1 appends keys: it "
                        "must have that page to itself");
    table[3] = second;
    table[0] = table[1]; /* one sequence, twice the same page */
    assert_sentence(&c, "block_table[0, 1] and block_table[0, 0] are both page 5, to which sequence 0 appends keys: it "
                        "must have that page to itself");
    sample_call_close(&c);
}

/* Nothing is appended: prefixes may be shared. */
static void pages_that_are_read_may_be_shared(void **state) {
    (void)state;
    sample_call c;
    sample_call_open(&c, &samples[PAGED], ON_THE_HEAP);
    int32_t *const table = sample_call_data(&c, "block_table");
    table[4] = table[0];
    assert_int_equal(attune_run_interpreted(checking, &c.problem, NULL, &c.arguments), ATTUNE_OK);
    sample_call_close(&c);
}

/* ---- Switching it on ---- */

static attune_status create_with(const char *variable, uint32_t check, attune_context **context) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.cache_dir = "";
    options.check = check;
    if (variable)
        setenv("ATTUNE_CHECK", variable, 1);
    else
        unsetenv("ATTUNE_CHECK");
    const attune_status status = attune_context_create(&options, context);
    unsetenv("ATTUNE_CHECK");
    return status;
}

static void the_option_and_the_variable(void **state) {
    (void)state;
    static const struct {
        const char *variable;
        uint32_t option;
        bool is_on;
    } cases[] = {{NULL, 0, false}, {"", 0, false}, {"0", 0, false}, {"1", 0, true}, {NULL, 1, true}, {"0", 1, true}};
    sample_call c;
    sample_call_open(&c, &samples[PLAIN], ON_THE_HEAP);
    set_f32(&c, "q", 0, NAN);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attune_context *context;
        assert_int_equal(create_with(cases[i].variable, cases[i].option, &context), ATTUNE_OK);
        assert_int_equal(attune_run_interpreted(context, &c.problem, NULL, &c.arguments),
                         cases[i].is_on ? ATTUNE_INVALID_ARGUMENT : ATTUNE_OK);
        attune_context_destroy(context);
    }
    attune_context *context;
    assert_int_equal(create_with("yes", 0, &context), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), "ATTUNE_CHECK is 'yes'; it must be 1 or 0");
    assert_int_equal(create_with(NULL, 2, &context), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), "check is 2; it must be 0 or 1");
    sample_call_close(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nan_is_refused_where_it_reaches_an_output),
        cmocka_unit_test(scales_inline_are_looked_at),
        cmocka_unit_test(scales_of_packed_weights_are_looked_at),
        cmocka_unit_test(sentences_name_tensor_index_and_value),
        cmocka_unit_test(infinities_that_are_meant),
        cmocka_unit_test(a_page_that_is_written_belongs_to_one_sequence),
        cmocka_unit_test(pages_that_are_read_may_be_shared),
        cmocka_unit_test(the_option_and_the_variable),
    };
    return cmocka_run_group_tests(tests, open_contexts, close_contexts);
}
