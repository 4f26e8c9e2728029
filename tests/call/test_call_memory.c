/* Calls of every sort: both engines agree, nothing outside of the tensors is touched, empty ones need no memory, and
 * whatever tables hold is refused or right. */
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

static void run_in(attune_context *where, sample_call *c, const char *what) {
    attune_kernel *kernel;
    assert_ok_for(attune_compile(where, &c->problem, NULL, &kernel), what);
    assert_ok_for(attune_run(where, kernel, &c->arguments), what);
    attune_kernel_release(kernel);
}

static void run(sample_call *c, const char *what) { run_in(sample_context, c, what); }

static void keeps_within(attune_context *where, const sample *from, const char *isa) {
    sample_call reference, c;
    sample_call_open(&reference, from, ON_THE_HEAP);
    assert_ok_for(attune_run_interpreted(where, &reference.problem, NULL, &reference.arguments), from->problem);
    for (int place = ON_THE_HEAP; place <= AFTER_A_GUARD; place++) {
        sample_call_open(&c, from, (placement)place);
        run_in(where, &c, from->problem);
        if (!sample_calls_agree(&c, &reference)) fail_msg("%s: other bits on %s at %d", from->problem, isa, place);
        sample_call_close(&c);
    }
    sample_call_close(&reference);
}

/* Both engines on the heap, and machine code between pages that fault, inputs being read-only: the same bits. */
static void nothing_outside_is_touched(void **state) {
    (void)state;
    attune_machine_info machine = {.struct_size = sizeof machine};
    assert_ok_for(attune_get_machine_info(sample_context, &machine), "machine");
    char isas[128];
    snprintf(isas, sizeof isas, "%s", machine.isas);
    for (char *rest = isas, *isa; (isa = strtok_r(rest, " ", &rest));) {
        attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
        attune_context *of_isa;
        options.cache_dir = "";
        options.isa = isa;
        assert_ok_for(attune_context_create(&options, &of_isa), isa);
        for (size_t i = 0; i < NUM_SAMPLES; i++) keeps_within(of_isa, &samples[i], isa);
        attune_context_destroy(of_isa);
    }
}

/* Sizes of 0 need no pointers; rows without keys are 0, and -infinity in lse. */
static void empty_tensors(void **state) {
    (void)state;
    static const sample no_queries = {.problem = "seq_q=dynamic,seq_kv=dynamic,head_dim=4,has_lse=1",
                                      .sizes = "seq_q=0,seq_kv=3"};
    static const sample no_tokens = {
        .problem = "batch=2,is_ragged=1,head_dim=4", .sizes = "total_q=0,total_kv=0", .q = {0, 0}, .kv = {0, 0}};
    sample_call c;
    sample_call_open(&c, &no_queries, ON_THE_HEAP);
    c.arguments.q.data = c.arguments.k.data = c.arguments.v.data = c.arguments.out.data = c.arguments.lse.data = NULL;
    assert_int_equal(attune_run_interpreted(sample_context, &c.problem, NULL, &c.arguments), ATTUNE_INVALID_ARGUMENT);
    assert_non_null(strstr(attune_last_message(), "the pointer to k is NULL"));
    c.arguments.seq_kv = 0;
    run(&c, "nothing at all");
    assert_ok_for(attune_run_interpreted(sample_context, &c.problem, NULL, &c.arguments), "nothing at all");
    sample_call_close(&c);
    sample_call_open(&c, &no_tokens, ON_THE_HEAP);
    c.arguments.q.data = c.arguments.k.data = c.arguments.v.data = c.arguments.out.data = NULL;
    run(&c, "no tokens");
    sample_call_close(&c);
}

/* Masks of no keys have no elements either. */
static void empty_keys(const char *fields) {
    char problem[128];
    snprintf(problem, sizeof problem, "num_heads=2,seq_q=dynamic,seq_kv=dynamic,head_dim=4,has_lse=1%s", fields);
    const sample no_keys = {.problem = problem, .sizes = "seq_q=5,seq_kv=0"};
    sample_call c;
    sample_call_open(&c, &no_keys, ON_THE_HEAP);
    c.arguments.k.data = c.arguments.v.data = NULL;
    c.arguments.attn_mask.data = c.arguments.attn_bias.data = NULL;
    for (int engine = 0; engine < 2; engine++) {
        float *out = c.arguments.out.data, *lse = c.arguments.lse.data;
        memset(out, 0x55, 2 * 5 * 4 * sizeof *out);
        memset(lse, 0x55, 2 * 5 * sizeof *lse);
        if (engine)
            assert_ok_for(attune_run_interpreted(sample_context, &c.problem, NULL, &c.arguments), "no keys");
        else
            run(&c, "no keys");
        for (int i = 0; i < 2 * 5 * 4; i++) assert_true(out[i] == 0.0f);
        for (int i = 0; i < 2 * 5; i++) assert_true(isinf(lse[i]) && lse[i] < 0);
    }
    sample_call_close(&c);
}

static void no_keys(void **state) {
    (void)state;
    empty_keys("");
    empty_keys(",attn_mask_dims=qk");
    empty_keys(",attn_mask_dims=k,attn_bias_dims=bhqk");
}

/* A call needs at most the workspace that attune_workspace_size computes without the tables. */
static void workspace_without_tables(void **state) {
    (void)state;
    for (size_t i = 0; i < NUM_SAMPLES; i++) {
        sample_call c;
        attune_kernel *kernel;
        size_t bytes = 0;
        sample_call_open(&c, &samples[i], ON_THE_HEAP);
        assert_ok_for(attune_compile(sample_context, &c.problem, NULL, &kernel), samples[i].problem);
        attune_arguments blind = c.arguments;
        for (size_t t = 0; t < c.count; t++) memset((char *)&blind + c.tensors[t].pointer_offset, 0, sizeof(void *));
        assert_ok_for(attune_workspace_size(sample_context, kernel, &blind, &bytes), samples[i].problem);
        c.arguments.workspace = aligned_alloc(64, (bytes + 64) / 64 * 64);
        c.arguments.workspace_bytes = bytes;
        assert_ok_for(attune_run(sample_context, kernel, &c.arguments), samples[i].problem);
        free(c.arguments.workspace);
        attune_kernel_release(kernel);
        sample_call_close(&c);
    }
}

/* Problems that differ only in batch, heads and strides share a kernel; each call must use its own tensors. */
static void masks_of_a_shared_kernel(void **state) {
    (void)state;
    static const sample both[] = {
        {.problem = "num_heads=2,seq_q=4,seq_kv=9,head_dim=4,attn_mask_dims=qk"},
        {.problem = "batch=3,num_heads=2,seq_q=4,seq_kv=9,head_dim=4,attn_mask_dims=bhqk"},
        {.problem = "batch=3,num_heads=2,seq_q=4,seq_kv=9,head_dim=4,attn_mask_dims=qk"},
        {.problem = "batch=3,num_heads=2,seq_q=dynamic,seq_kv=9,head_dim=4,attn_mask_dims=hqk", .sizes = "seq_q=4"},
        {.problem = "batch=3,num_heads=2,seq_q=dynamic,seq_kv=9,head_dim=4,attn_mask_dims=bqk", .sizes = "seq_q=4"},
    };
    for (size_t i = 0; i < sizeof both / sizeof *both; i++) {
        sample_call jit, interpreted;
        sample_call_open(&jit, &both[i], ON_THE_HEAP);
        sample_call_open(&interpreted, &both[i], ON_THE_HEAP);
        run(&jit, both[i].problem);
        assert_ok_for(attune_run_interpreted(sample_context, &interpreted.problem, NULL, &interpreted.arguments),
                      both[i].problem);
        if (!sample_calls_agree(&jit, &interpreted)) fail_msg("%s: other bits", both[i].problem);
        sample_call_close(&jit);
        sample_call_close(&interpreted);
    }
}

/* ---- Any tables ---- */

static unsigned draw(unsigned *seed, unsigned below) {
    *seed = *seed * 1664525u + 1013904223u;
    return (*seed >> 8) % below;
}

/* One number of one table becomes another, often one that is just right or just wrong. */
static void spoil_table(sample_call *c, unsigned *seed) {
    const attune_tensor *t = &c->tensors[draw(seed, (unsigned)c->count)];
    const size_t numbers = c->memory[t - c->tensors].bytes / sizeof(int32_t);
    if (t->dtype != ATTUNE_I32 || !numbers) return;
    int32_t *number = (int32_t *)c->memory[t - c->tensors].data + draw(seed, (unsigned)numbers);
    const int64_t old = *number;
    const int64_t choices[] = {old - 1, old + 1, 0, -1, draw(seed, 24), old - 4096, INT32_MIN, INT32_MAX, old / 2};
    *number = (int32_t)choices[draw(seed, sizeof choices / sizeof *choices)];
}

/* One size becomes smaller, so that the memory still holds the tensors. */
static void spoil_size(sample_call *c, unsigned *seed) {
    attune_arguments *a = &c->arguments;
    int64_t *const sizes[] = {&a->seq_q,       &a->seq_kv,      &a->seq_new,         &a->num_rows,
                              &a->total_q,     &a->total_kv,    &a->num_pages,       &a->max_pages,
                              &a->mask_seq_kv, &a->bias_seq_kv, &a->rotary_positions};
    int64_t *size = sizes[draw(seed, sizeof sizes / sizeof *sizes)];
    if (*size > 0) *size -= 1 + draw(seed, (unsigned)*size);
}

/* Whatever tables and sizes say, a call is refused or right: an access out of bounds would be ATTUNE_CHECK_FAILED. */
static void spoilt_calls(void **state) {
    (void)state;
    enum { TRIES = 40 };
    unsigned seed = 1, refused = 0, done = 0;
    for (size_t i = 0; i < NUM_SAMPLES; i++) {
        for (int try = 0; try < TRIES; try++) {
            sample_call c;
            sample_call_open(&c, &samples[i], ON_THE_HEAP);
            const unsigned from = seed, changes = 1 + draw(&seed, 4);
            for (unsigned n = 0; n < changes; n++) spoil_table(&c, &seed);
            if (draw(&seed, 3) == 0) spoil_size(&c, &seed);
            const attune_status status = attune_run_interpreted(sample_context, &c.problem, NULL, &c.arguments);
            if (status && status != ATTUNE_INVALID_ARGUMENT)
                fail_msg("%s, seed %u: %s", samples[i].problem, from, attune_last_message());
            *(status ? &refused : &done) += 1;
            sample_call_close(&c);
        }
    }
    assert_true(refused > 100 && done > 100);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(empty_tensors),
        cmocka_unit_test(no_keys),
        cmocka_unit_test(nothing_outside_is_touched),
        cmocka_unit_test(workspace_without_tables),
        cmocka_unit_test(masks_of_a_shared_kernel),
        cmocka_unit_test(spoilt_calls),
    };
    return cmocka_run_group_tests(tests, sample_context_open, sample_context_close);
}
