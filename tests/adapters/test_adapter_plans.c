/* The table of plans that all adapters share: what is found again, what is remembered, and what a full table does. */
#include "common/context.h"
#include "common/plans.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>

#include <cmocka.h>

enum { MAX_PLANS = 3, THREADS = 8 };

/* An engine with threads and without kernels of its own. */
const common_engine_info common_engine = {.has_threads = true, .max_plans = MAX_PLANS, .repeats = 5};

static common_kind kind_of(int32_t head_dim) {
    common_kind kind = COMMON_KIND_INIT;
    kind.head_dim = kind.head_dim_v = head_dim;
    kind.group = 1;
    kind.dtype = kind.k_dtype = kind.v_dtype = ATTUNE_F32;
    return kind;
}

static common_plan *find(common_plans *all, int32_t head_dim) {
    const common_kind kind = kind_of(head_dim);
    attune_status status = ATTUNE_INTERNAL;
    const char *message = NULL;
    common_plan *const p = common_plan_of(all, &kind, &status, &message);
    assert_int_equal(status, ATTUNE_OK);
    assert_non_null(p);
    return p;
}

static void a_kind_has_one_plan(void **state) {
    (void)state;
    common_plans all = {0};
    common_plan *const p = find(&all, 32);
    assert_ptr_equal(find(&all, 32), p);
    assert_ptr_not_equal(find(&all, 64), p);
    assert_int_equal(atomic_load(&all.count), 2);
    assert_int_equal(p->problem.head_dim, 32);
    assert_int_equal(p->problem.seq_q, ATTUNE_DYNAMIC);
    common_plans_free(&all);
}

static void texts_that_differ_have_plans_of_their_own(void **state) {
    (void)state;
    static const char text[] = "head_dim=16,seq_q=dynamic,seq_kv=dynamic and more";
    enum { LENGTH = 40 };
    common_plans all = {0};
    attune_status status;
    const char *message;
    common_plan *const p = common_plan_of_text(&all, text, LENGTH, &status, &message);
    assert_non_null(p);
    assert_string_equal(p->key, "head_dim=16,seq_q=dynamic,seq_kv=dynamic");
    assert_null(common_plan_of_text(&all, text, sizeof text - 1, &status, &message));
    assert_int_equal(status, ATTUNE_INVALID_PROBLEM);
    assert_ptr_equal(common_plan_of_text(&all, text, LENGTH, &status, &message), p);
    common_plans_free(&all);
}

/* A full table makes a plan for one call, and keeps those that it has. */
static void a_full_table_still_serves(void **state) {
    (void)state;
    common_plans all = {0};
    common_plan *kept[MAX_PLANS];
    for (int i = 0; i < MAX_PLANS; i++) kept[i] = find(&all, 8 * (i + 1));
    common_plan *const more = find(&all, 128);
    assert_false(more->is_kept);
    common_plan_release(more);
    for (int i = 0; i < MAX_PLANS; i++) {
        common_plan_release(kept[i]);
        assert_ptr_equal(find(&all, 8 * (i + 1)), kept[i]);
    }
    assert_int_equal(atomic_load(&all.count), MAX_PLANS);
    common_plans_free(&all);
}

static void refuse(common_plans *all, const char **message) {
    common_kind kind = kind_of(32);
    attune_status status = ATTUNE_OK;
    kind.rotary_dim = 64;
    assert_null(common_plan_of(all, &kind, &status, message));
    assert_int_equal(status, ATTUNE_INVALID_PROBLEM);
    assert_non_null(strstr(*message, "rotary_dim"));
}

static void a_refusal_is_remembered(void **state) {
    (void)state;
    common_plans all = {0};
    const char *first, *again;
    refuse(&all, &first);
    refuse(&all, &again);
    assert_ptr_equal(first, again); /* the table's, not this thread's last message */
    assert_int_equal(atomic_load(&all.count), 1);
    common_plans_free(&all);
}

static void a_full_table_refuses_with_the_reason(void **state) {
    (void)state;
    common_plans all = {0};
    const char *message;
    for (int i = 0; i < MAX_PLANS; i++) find(&all, 8 * (i + 1));
    refuse(&all, &message);
    refuse(&all, &message);
    common_plans_free(&all);
}

static common_plans shared;
static void *find_at_once(void *barrier) {
    attune_status status;
    const char *message;
    const common_kind kind = kind_of(48);
    pthread_barrier_wait(barrier);
    return common_plan_of(&shared, &kind, &status, &message);
}

static void threads_at_once_get_one_plan(void **state) {
    (void)state;
    pthread_barrier_t barrier;
    pthread_t threads[THREADS];
    void *found[THREADS];
    pthread_barrier_init(&barrier, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) assert_int_equal(pthread_create(&threads[i], NULL, find_at_once, &barrier), 0);
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], &found[i]);
    pthread_barrier_destroy(&barrier);
    for (int i = 0; i < THREADS; i++) assert_ptr_equal(found[i], find(&shared, 48));
    assert_int_equal(atomic_load(&shared.count), 1);
    common_plans_free(&shared);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_kind_has_one_plan),
        cmocka_unit_test(texts_that_differ_have_plans_of_their_own),
        cmocka_unit_test(a_full_table_still_serves),
        cmocka_unit_test(a_refusal_is_remembered),
        cmocka_unit_test(a_full_table_refuses_with_the_reason),
        cmocka_unit_test(threads_at_once_get_one_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
