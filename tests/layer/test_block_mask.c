/* Block masks that callers keep: the same bits as without, a phase less, and a sentence where one does not fit. */
#include "support/problems.h"
#include "support/tensor_calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define DOCUMENTS                                                                                                      \
    "tensors=\"dq:i32[q], dk:i32[kv]\",mask_mod=\"dq[q] // 8 % 2 == dk[kv] // 8 % 2 & kv // 40 <= q // 20\""
#define BY_ENTRY "mask_mod=\"(kv // 16 + h + b) % 3 == 0\""

typedef struct one_call {
    tensors t;
    attune_kernel *kernel;
} one_call;

static void open_call(attune_context *context, one_call *c, const char *problem, const char *sizes,
                      const mha_schedule *schedule) {
    tensors_open_call(&c->t, problem, sizes, INPUT_ORDINARY, 7);
    if (attune_compile(context, &c->t.problem, TEXT_OF(schedule), &c->kernel)) fail_msg("%s", attune_last_message());
}

static void close_call(one_call *c) {
    attune_kernel_release(c->kernel);
    tensors_free(&c->t);
}

static attune_block_mask *mask_of(attune_context *context, const one_call *c) {
    attune_block_mask *mask = NULL;
    attune_arguments a;
    tensors_arguments(&c->t, &a);
    if (attune_block_mask_create(context, c->kernel, &a, &mask)) fail_msg("%s", attune_last_message());
    assert_non_null(mask);
    return mask;
}

/* Phase by phase; the first one has nothing left to do if the kernel has a table. */
static void run_in_parts(attune_context *context, const one_call *c, const attune_arguments *a, bool has_table) {
    attune_call *call = NULL;
    if (attune_call_begin(context, c->kernel, a, 1, &call)) fail_msg("%s", attune_last_message());
    assert_int_equal(attune_call_num_tasks(call, 0) == 0, has_table);
    for (uint32_t p = 0; p < attune_call_num_phases(call); p++)
        assert_int_equal(attune_call_execute(call, p, 0, attune_call_num_tasks(call, p), 0), ATTUNE_OK);
    assert_int_equal(attune_call_end(call), ATTUNE_OK);
}

static void compare(attune_context *context, const char *problem, const char *sizes, bool has_table) {
    one_call c;
    tensors with_mask, in_parts;
    attune_arguments a;
    open_call(context, &c, problem, sizes, NULL);
    assert_true(tensors_share(&with_mask, &c.t) && tensors_share(&in_parts, &c.t));
    attune_block_mask *mask = mask_of(context, &c);
    tensors_arguments(&c.t, &a);
    if (attune_run(context, c.kernel, &a)) fail_msg("%s: %s", problem, attune_last_message());
    tensors_arguments(&with_mask, &a);
    a.block_mask = mask;
    for (int i = 0; i < 2; i++)
        if (attune_run(context, c.kernel, &a)) fail_msg("%s: %s", problem, attune_last_message());
    tensors_assert_same(&c.t, &with_mask, problem);
    tensors_arguments(&in_parts, &a);
    a.block_mask = mask;
    run_in_parts(context, &c, &a, has_table);
    tensors_assert_same(&c.t, &in_parts, problem);
    attune_block_mask_destroy(mask);
    tensors_free(&with_mask);
    tensors_free(&in_parts);
    close_call(&c);
}

static void bits_are_the_same(void **state) {
    (void)state;
    attune_context *context = tensors_context(NULL, 2);
    compare(context, "num_heads=4,num_kv_heads=2,seq_q=90,seq_kv=150,head_dim=24,has_lse=1," DOCUMENTS, "", true);
    compare(context, "num_heads=2,seq_q=90,seq_kv=150,head_dim=24,dtype=bf16,is_causal=1," DOCUMENTS, "", true);
    compare(context, "num_heads=2,seq_q=90,seq_kv=150,head_dim=24,dtype=f64,reproducible=1," DOCUMENTS, "", true);
    compare(context, "num_heads=2,seq_q=90,seq_kv=150,head_dim=24,weights_mode=softmax," DOCUMENTS, "", true);
    compare(context, "batch=3,num_heads=4,num_kv_heads=2,seq_q=70,seq_kv=130,head_dim=16,has_kv_lens=1," BY_ENTRY, "",
            true);
    compare(context, "batch=3,num_heads=2,seq_q=dynamic,seq_kv=dynamic,head_dim=16,is_ragged=1," BY_ENTRY,
            "seq_q=60,seq_kv=120,total_q=150,total_kv=300", true);
    compare(context, "batch=2,num_heads=2,seq_q=200,seq_kv=dynamic,head_dim=16,page_size=16,has_kv_lens=1," BY_ENTRY,
            "seq_kv=240,num_pages=36,max_pages=16", true);
    compare(context, "num_heads=4,seq_q=1,seq_kv=300,head_dim=32," DOCUMENTS, "", false);
    compare(context, "num_heads=2,seq_q=90,seq_kv=90,head_dim=24,mask_mod=\"q >= kv\"", "", false);
    attune_context_destroy(context);
}

/* ---- What does not fit ---- */

static void refuse(attune_context *context, const one_call *c, const attune_block_mask *mask, const char *sentence) {
    attune_arguments a;
    tensors_arguments(&c->t, &a);
    a.block_mask = mask;
    assert_int_equal(attune_run(context, c->kernel, &a), ATTUNE_INVALID_ARGUMENT);
    assert_memory_equal(attune_last_message(), sentence, strlen(sentence));
}

static void expect_refusal(const char *made_for, const char *made_sizes, const char *problem, const char *sizes,
                           const char *sentence) {
    attune_context *context = tensors_context(NULL, 1);
    one_call made, c;
    open_call(context, &made, made_for, made_sizes, NULL);
    open_call(context, &c, problem, sizes, NULL);
    attune_block_mask *mask = mask_of(context, &made);
    refuse(context, &c, mask, sentence);
    attune_block_mask_destroy(mask);
    close_call(&made);
    close_call(&c);
    attune_context_destroy(context);
}

static void other_calls_refuse(void **state) {
    (void)state;
    const char *const open = "num_heads=2,seq_q=dynamic,seq_kv=dynamic,head_dim=16,mask_mod=\"q % 3 == kv % 3\"";
    expect_refusal("num_heads=2,seq_q=90,head_dim=16,mask_mod=\"q % 3 == kv % 3\"", "",
                   "num_heads=2,seq_q=90,head_dim=16,mask_mod=\"q % 3 != kv % 3\"", "",
                   "block_mask was made for mask_mod \"q % 3 == kv % 3\", and here it is \"q % 3 != kv % 3\"");
    expect_refusal(open, "seq_q=90,seq_kv=100", open, "seq_q=90,seq_kv=101",
                   "block_mask is for 90 queries and 100 keys, and here are 90 and 101");
    expect_refusal("batch=2,num_heads=2,seq_q=90,head_dim=16," BY_ENTRY, "",
                   "batch=3,num_heads=2,seq_q=90,head_dim=16," BY_ENTRY, "",
                   "block_mask is for another batch or other heads");
}

/* Two lanes: every target has them, in f64 too. */
static mha_schedule small_tiles(void) {
    mha_schedule s = {.lanes = 2, .score_keys = 4, .value_keys = 4, .kv_tile = 32};
    s.score_row_vectors = s.value_row_vectors = s.task_row_vectors = 4;
    s.score_columns = s.value_columns = 2;
    s.value_by = MHA_VALUE_BY_COLUMNS;
    return s;
}

static void other_schedules_refuse(void **state) {
    (void)state;
    attune_context *context = tensors_context(NULL, 1);
    one_call made, c;
    mha_schedule s = small_tiles();
    open_call(context, &made, "num_heads=2,seq_q=90,head_dim=16,mask_mod=\"q % 3 == kv % 3\"", "", &s);
    s.kv_tile = 64;
    open_call(context, &c, "num_heads=2,seq_q=90,head_dim=16,mask_mod=\"q % 3 == kv % 3\"", "", &s);
    attune_block_mask *mask = mask_of(context, &made);
    refuse(context, &c, mask,
           "block_mask has tiles of 8 rows and 32 keys, of a kernel with another schedule; this kernel has 8 and 64");
    attune_block_mask_destroy(mask);
    close_call(&made);
    close_call(&c);
    attune_context_destroy(context);
}

/* Tables of as many bytes, of the same schedule. */
static void expect_misfit(const char *made_for, const char *problem, const char *message) {
    attune_context *context = tensors_context(NULL, 1);
    one_call made, c;
    mha_schedule s = small_tiles();
    open_call(context, &made, made_for, "", &s);
    open_call(context, &c, problem, "", &s);
    attune_block_mask *mask = mask_of(context, &made);
    refuse(context, &c, mask, message);
    attune_block_mask_destroy(mask);
    close_call(&made);
    close_call(&c);
    attune_context_destroy(context);
}

static void other_places_refuse(void **state) {
    (void)state;
    static const char message[] = "block_mask is for another batch or other heads";
    expect_misfit("batch=2,num_heads=3,seq_q=90,head_dim=16," BY_ENTRY,
                  "batch=3,num_heads=2,seq_q=90,head_dim=16," BY_ENTRY, message);
    expect_misfit("num_heads=4,seq_q=64,seq_kv=90,head_dim=16," BY_ENTRY,
                  "num_heads=4,num_kv_heads=2,seq_q=64,seq_kv=90,head_dim=16," BY_ENTRY, message);
    expect_misfit("num_heads=4,num_kv_heads=2,seq_q=5,seq_kv=90,head_dim=16,mask_mod=\"q % 3 == kv % 3\"",
                  "num_heads=6,num_kv_heads=2,seq_q=5,seq_kv=90,head_dim=16,mask_mod=\"q % 3 == kv % 3\"", message);
}

/* Floats of mask_mod that another precision rounds otherwise. */
static void other_arithmetic_refuses(void **state) {
    (void)state;
    expect_misfit("num_heads=2,seq_q=90,head_dim=16," BY_ENTRY,
                  "num_heads=2,seq_q=90,head_dim=16,softmax_precision=f64," BY_ENTRY,
                  "block_mask was made in f32, and this kernel computes in f64");
}

/* A mask_mod that asks for neither entry nor head. */
static void other_batches_take_it(void **state) {
    (void)state;
    attune_context *context = tensors_context(NULL, 1);
    one_call made, c;
    attune_arguments a;
    open_call(context, &made, "batch=2,num_heads=3,seq_q=90,head_dim=16,mask_mod=\"q % 3 == kv % 3\"", "", NULL);
    open_call(context, &c, "batch=3,num_heads=2,seq_q=90,head_dim=16,mask_mod=\"q % 3 == kv % 3\"", "", NULL);
    attune_block_mask *mask = mask_of(context, &made);
    tensors_arguments(&c.t, &a);
    a.block_mask = mask;
    if (attune_run(context, c.kernel, &a)) fail_msg("%s", attune_last_message());
    attune_block_mask_destroy(mask);
    close_call(&made);
    close_call(&c);
    attune_context_destroy(context);
}

/* A plan chooses kernels, and changes them; so each makes its own table. */
static void plans_make_their_own(void **state) {
    (void)state;
    static const char PROBLEM[] = "num_heads=2,seq_q=dynamic,seq_kv=dynamic,head_dim=16,mask_mod=\"q % 3 == kv % 3\"";
    attune_context *context = tensors_context(NULL, 1);
    one_call made, c;
    tensors by_plan;
    attune_arguments a;
    attune_plan *plan = NULL;
    open_call(context, &made, PROBLEM, "seq_q=80,seq_kv=100", NULL);
    open_call(context, &c, PROBLEM, "seq_q=90,seq_kv=100", NULL);
    assert_true(tensors_share(&by_plan, &c.t));
    attune_block_mask *mask = mask_of(context, &made);
    tensors_arguments(&c.t, &a);
    assert_int_equal(attune_run(context, c.kernel, &a), ATTUNE_OK);
    if (attune_plan_create(context, &c.t.problem, NULL, &plan)) fail_msg("%s", attune_last_message());
    tensors_arguments(&by_plan, &a);
    a.block_mask = mask;
    if (attune_plan_run(plan, &a, NULL)) fail_msg("%s", attune_last_message());
    tensors_assert_same(&c.t, &by_plan, "by a plan");
    attune_plan_destroy(plan);
    attune_block_mask_destroy(mask);
    tensors_free(&by_plan);
    close_call(&made);
    close_call(&c);
    attune_context_destroy(context);
}

static void bad_arguments(void **state) {
    (void)state;
    attune_context *context = tensors_context(NULL, 1);
    one_call c;
    attune_arguments a;
    attune_block_mask *mask = (attune_block_mask *)&a;
    open_call(context, &c, "num_heads=2,seq_q=90,head_dim=16,mask_mod=\"q % 3 == kv % 3\"", "", NULL);
    tensors_arguments(&c.t, &a);
    assert_int_equal(attune_block_mask_create(context, c.kernel, &a, NULL), ATTUNE_INVALID_ARGUMENT);
    assert_int_equal(attune_block_mask_create(context, NULL, &a, &mask), ATTUNE_INVALID_ARGUMENT);
    assert_null(mask);
    a.q.data = NULL;
    assert_int_equal(attune_block_mask_create(context, c.kernel, &a, &mask), ATTUNE_INVALID_ARGUMENT);
    assert_string_equal(attune_last_message(), "the pointer to q is NULL");
    attune_block_mask_destroy(NULL);
    close_call(&c);
    attune_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bits_are_the_same),        cmocka_unit_test(other_calls_refuse),
        cmocka_unit_test(other_schedules_refuse),   cmocka_unit_test(other_places_refuse),
        cmocka_unit_test(other_arithmetic_refuses), cmocka_unit_test(other_batches_take_it),
        cmocka_unit_test(plans_make_their_own),     cmocka_unit_test(bad_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
