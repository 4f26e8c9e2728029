/* Run-time sizes of a call: sizes that are not set, sizes that contradict the compiled problem, and masks that end
 * before the keys do. */
#include "support/calls.h"
#include "support/problems.h"
#include "support/statuses.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static attune_arguments arguments_of(const char *text, attune_problem *problem) {
    attune_arguments arguments;
    *problem = problem_parsed(text);
    memset(&arguments, 0x5a, sizeof arguments);
    assert_ok_for(attune_arguments_init(&arguments, problem), text);
    return arguments;
}

/* Both engines refuse it with a message that has `part` in it, and write nothing. */
static void assert_refused(const sample_call *c, const attune_arguments *a, const char *part) {
    attune_kernel *kernel;
    sample_call_assert_refused(sample_context, c, a, part);
    assert_ok_for(attune_compile(sample_context, &c->problem, NULL, &kernel), "compile");
    assert_fails(attune_run(sample_context, kernel, a), ATTUNE_INVALID_ARGUMENT, part);
    attune_kernel_release(kernel);
}

#define BAD(c, change, part)                                                                                           \
    do {                                                                                                               \
        attune_arguments bad = (c).arguments;                                                                          \
        bad.change;                                                                                                    \
        assert_refused(&(c), &bad, part);                                                                              \
    } while (0)

static void assert_runs(const sample_call *c, const attune_arguments *a, const char *what) {
    attune_kernel *kernel;
    assert_ok_for(attune_run_interpreted(sample_context, &c->problem, NULL, a), what);
    assert_ok_for(attune_compile(sample_context, &c->problem, NULL, &kernel), what);
    assert_ok_for(attune_run(sample_context, kernel, a), what);
    attune_kernel_release(kernel);
}

/* ---- What attune_arguments_init writes ---- */

static void assert_sizes(const attune_arguments *a, const int64_t expected[11]) {
    const int64_t sizes[11] = {a->seq_q,       a->seq_kv,      a->seq_new,         a->num_rows,
                               a->total_q,     a->total_kv,    a->num_pages,       a->max_pages,
                               a->mask_seq_kv, a->bias_seq_kv, a->rotary_positions};
    for (int i = 0; i < 11; i++)
        if (sizes[i] != expected[i]) fail_msg("size %d is %lld", i, (long long)sizes[i]);
}

/* Sizes that the problem fixes have their values; sizes that it leaves open or does not have are not set. */
static void initial_sizes(void **state) {
    (void)state;
    attune_problem p;
    attune_arguments a = arguments_of("seq_q=3,seq_kv=7,head_dim=4", &p);
    assert_sizes(&a, (int64_t[]){3, 7, -1, -1, -1, -1, -1, -1, -1, -1, -1});
    a = arguments_of("seq_q=3,seq_kv=7,seq_new=2,head_dim=4,rotary_dim=4,short_masks=1,attn_mask_dims=5", &p);
    assert_sizes(&a, (int64_t[]){3, 7, 2, -1, -1, -1, -1, -1, -1, -1, -1});
    a = arguments_of("seq_q=dynamic,seq_kv=dynamic,seq_new=dynamic,head_dim=4", &p);
    assert_sizes(&a, (int64_t[]){-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1});
    a = arguments_of("is_ragged=1,batch=2,seq_q=9,head_dim=4", &p);
    assert_sizes(&a, (int64_t[]){-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1});
    a = arguments_of("op=weights,seq_q=3,seq_kv=7,head_dim=4,has_row_ids=1,num_rows=2", &p);
    assert_sizes(&a, (int64_t[]){3, 7, -1, 2, -1, -1, -1, -1, -1, -1, -1});
    a = arguments_of("op=rotary,seq_q=3,head_dim=4,rotary_dim=4", &p);
    assert_sizes(&a, (int64_t[]){3, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1});
    a = arguments_of("embed_dim=8,seq_q=3", &p);
    assert_sizes(&a, (int64_t[]){3, 3, -1, -1, -1, -1, -1, -1, -1, -1, -1});
    assert_int_equal(a.batch, 1);
    assert_int_equal(a.rotary_batch_stride, 0);
}

/* ---- Not set ---- */

static void open_sizes_must_be_set(void **state) {
    (void)state;
    sample_call c;
    sample_call_open(&c, &samples[DYNAMIC], ON_THE_HEAP);
    BAD(c, seq_q = -1, "seq_q is not set");
    BAD(c, seq_kv = ATTUNE_NOT_SET, "seq_kv is not set");
    sample_call_close(&c);
    sample_call_open(&c, &samples[RAGGED], ON_THE_HEAP);
    BAD(c, total_q = -1, "total_q is not set");
    BAD(c, total_kv = -1, "total_kv is not set");
    sample_call_close(&c);
    sample_call_open(&c, &samples[RAGGED_MASK], ON_THE_HEAP); /* the mask's layout depends on both */
    BAD(c, seq_q = -1, "seq_q is not set");
    BAD(c, seq_kv = -1, "seq_kv is not set");
    sample_call_close(&c);
    sample_call_open(&c, &samples[PAGED], ON_THE_HEAP);
    BAD(c, num_pages = -1, "num_pages is not set");
    BAD(c, max_pages = -1, "max_pages is not set");
    sample_call_close(&c);
    sample_call_open(&c, &samples[ROTATED], ON_THE_HEAP);
    BAD(c, rotary_positions = -1, "rotary_positions is not set");
    sample_call_close(&c);
    const sample appends = {.problem = "seq_q=2,seq_kv=9,seq_new=dynamic,head_dim=4", .sizes = "seq_new=2"};
    sample_call_open(&c, &appends, ON_THE_HEAP);
    BAD(c, seq_new = -1, "seq_new is not set");
    sample_call_close(&c);
    const sample rows = {.problem = "op=weights,seq_q=4,seq_kv=5,head_dim=4,has_row_ids=1,num_rows=dynamic",
                         .sizes = "num_rows=3"};
    sample_call_open(&c, &rows, ON_THE_HEAP);
    BAD(c, num_rows = -1, "num_rows is not set");
    sample_call_close(&c);
}

/* The other functions that take arguments know it, too. */
static void not_set_without_pointers(void **state) {
    (void)state;
    attune_problem p;
    attune_kernel *kernel;
    attune_tensor tensors[SAMPLE_TENSORS];
    size_t count, bytes;
    attune_arguments a = arguments_of("seq_q=3,seq_kv=dynamic,head_dim=4", &p);
    assert_int_equal(attune_tensors(&p, &a, tensors, SAMPLE_TENSORS, &count), ATTUNE_INVALID_ARGUMENT);
    assert_non_null(strstr(attune_last_message(), "seq_kv is not set"));
    assert_ok_for(attune_compile(sample_context, &p, NULL, &kernel), "compile");
    assert_int_equal(attune_workspace_size(sample_context, kernel, &a, &bytes), ATTUNE_INVALID_ARGUMENT);
    assert_non_null(strstr(attune_last_message(), "seq_kv is not set"));
    a.seq_kv = 0;
    assert_ok_for(attune_workspace_size(sample_context, kernel, &a, &bytes), "workspace");
    attune_kernel_release(kernel);
}

/* Where tables tell the lengths, not set means the longest, and 0 means that there is nothing. */
static void tables_tell_lengths(void **state) {
    (void)state;
    sample_call c, bounded;
    sample_call_open(&c, &samples[RAGGED], ON_THE_HEAP);
    sample_call_open(&bounded, &samples[RAGGED], ON_THE_HEAP);
    bounded.arguments.seq_q = 6;
    bounded.arguments.seq_kv = 11;
    assert_runs(&c, &c.arguments, "longest");
    assert_runs(&bounded, &bounded.arguments, "bounds");
    assert_true(sample_calls_agree(&c, &bounded));
    BAD(c, seq_q = 0, "sequence 0 of cu_seqlens_q has 5 tokens; this call takes at most 0");
    BAD(c, seq_kv = 0, "sequence 0 of cu_seqlens_kv has 9 tokens; this call takes at most 0");
    sample_call_close(&bounded);
    sample_call_close(&c);
    sample_call_open(&c, &samples[PAGED], ON_THE_HEAP);
    BAD(c, seq_kv = 0, "kv_lens[0] is 13; it must be from 0 to 0");
    sample_call_close(&c);
}

/* ---- Contradictions ---- */

static void fixed_sizes(void **state) {
    (void)state;
    sample_call c;
    const sample all = {.problem = "seq_q=3,seq_kv=9,seq_new=2,head_dim=4", .sizes = ""};
    sample_call_open(&c, &all, ON_THE_HEAP);
    BAD(c, seq_q = 4, "seq_q is 4; this kernel was compiled for 3");
    BAD(c, seq_q = 0, "seq_q is 0; this kernel was compiled for 3");
    BAD(c, seq_q = -2, "seq_q is -2; this kernel was compiled for 3");
    BAD(c, seq_kv = 8, "seq_kv is 8; this kernel was compiled for 9");
    BAD(c, seq_new = 3, "seq_new is 3; this kernel was compiled for 2");
    attune_arguments other = c.arguments;
    other.seq_q = other.seq_kv = other.seq_new = -1; /* as compiled */
    other.num_rows = other.total_q = other.total_kv = other.num_pages = other.max_pages = other.rotary_positions =
        77; /* it has none of these */
    assert_runs(&c, &other, "as compiled");
    sample_call_close(&c);
    const sample rows = {.problem = "op=weights,seq_q=4,seq_kv=5,head_dim=4,has_row_ids=1,num_rows=3", .sizes = ""};
    sample_call_open(&c, &rows, ON_THE_HEAP);
    BAD(c, num_rows = 2, "num_rows is 2; this kernel was compiled for 3");
    sample_call_close(&c);
}

/* Keys of x are as many as its rows. */
static void sizes_that_follow(void **state) {
    (void)state;
    sample_call c;
    sample_call_open(&c, &samples[BLOCK], ON_THE_HEAP);
    BAD(c, seq_kv = c.arguments.seq_q + 1, "but the block projects keys from x");
    sample_call_close(&c);
    sample_call_open(&c, &samples[BLOCK_RAGGED], ON_THE_HEAP);
    BAD(c, total_kv = c.arguments.total_q + 1, "but the block projects keys from x");
    BAD(c, seq_kv = 12, "seq_q is not set");
    sample_call_close(&c);
}

/* ---- Masks ---- */

/* A mask of 4 columns whose next byte is another page: the kernel read 8 columns of it. */
static void short_mask_before_a_guard(void **state) {
    (void)state;
    const sample from = {.problem = "seq_q=4096,seq_kv=dynamic,head_dim=8,short_masks=1,attn_mask_dims=1:1:4096:-1",
                         .sizes = "seq_kv=8,mask_seq_kv=4"};
    const char *const without = "seq_q=4096,seq_kv=dynamic,head_dim=8,attn_mask_dims=1:1:4096:-1";
    sample_call c;
    sample_call_open(&c, &from, BEFORE_A_GUARD);
    c.problem.short_masks = 0;
    BAD(c, mask_seq_kv = 4, "short_masks");
    BAD(c, mask_seq_kv = 0, "short_masks");
    BAD(c, mask_seq_kv = 16, "mask_seq_kv is 16");
    c.problem.short_masks = 1;
    assert_runs(&c, &c.arguments, without);
    sample_call_close(&c);
}

static void columns_of_masks(void **state) {
    (void)state;
    sample_call c;
    const sample plain = {.problem = "seq_q=4,seq_kv=8,head_dim=8,attn_bias_dims=qk", .sizes = ""};
    sample_call_open(&c, &plain, BEFORE_A_GUARD);
    BAD(c, bias_seq_kv = 16, "bias_seq_kv is 16, but attn_bias has seq_kv = 8 columns");
    BAD(c, bias_seq_kv = 16, "short_masks");
    attune_arguments other = c.arguments;
    other.bias_seq_kv = 8;
    other.mask_seq_kv = 5; /* there is no mask */
    assert_runs(&c, &other, "as many as keys");
    sample_call_close(&c);
    sample_call_open(&c, &samples[LONG_MASK], BEFORE_A_GUARD);
    BAD(c, mask_seq_kv = 9, "mask_seq_kv is 9, but attn_mask was compiled with 17 columns");
    c.arguments.mask_seq_kv = 17;
    assert_runs(&c, &c.arguments, "as compiled");
    sample_call_close(&c);
    sample_call_open(&c, &samples[SHORT_MASK], BEFORE_A_GUARD);
    other = c.arguments;
    other.mask_seq_kv = 0; /* every key is hidden */
    other.attn_mask.data = NULL;
    assert_runs(&c, &other, "no columns");
    const float *out = c.arguments.out.data;
    for (int i = 0; i < 2 * 4 * 8; i++) assert_true(out[i] == 0.0f);
    BAD(c, mask_seq_kv = 31, "attn_mask has 31 columns; it must have from 0 to seq_kv = 30");
    sample_call_close(&c);
    const sample full = {.problem = "seq_q=4,seq_kv=8,head_dim=8,short_masks=1,attn_mask_dims=1:1:4:dynamic",
                         .sizes = ""};
    const sample same = {.problem = "seq_q=4,seq_kv=8,head_dim=8,attn_mask_dims=qk", .sizes = ""};
    sample_call d;
    sample_call_open(&c, &full, BEFORE_A_GUARD);
    sample_call_open(&d, &same, BEFORE_A_GUARD);
    assert_runs(&c, &c.arguments, "not set: as many as keys");
    assert_runs(&d, &d.arguments, "as many as keys");
    assert_true(sample_calls_agree(&c, &d));
    sample_call_close(&c);
    sample_call_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(initial_sizes),
        cmocka_unit_test(open_sizes_must_be_set),
        cmocka_unit_test(not_set_without_pointers),
        cmocka_unit_test(tables_tell_lengths),
        cmocka_unit_test(fixed_sizes),
        cmocka_unit_test(sizes_that_follow),
        cmocka_unit_test(short_mask_before_a_guard),
        cmocka_unit_test(columns_of_masks),
    };
    return cmocka_run_group_tests(tests, sample_context_open, sample_context_close);
}
