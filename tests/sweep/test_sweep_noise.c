/* Noisy measurements of a sweep: how often they are repeated, and which is kept. */
#include "sweep/sweep_noise.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

/* Measurements with these spreads, one after the other; a negative one fails. */
typedef struct script {
    double spreads[4];
    size_t taken;
} script;

static json_t *measure(void *user) {
    script *const s = user;
    assert_true(s->taken < 4);
    const double spread = s->spreads[s->taken++];
    return spread < 0 ? NULL : json_pack("{s:f, s:I}", "spread", spread, "which", (json_int_t)s->taken);
}

static void check(script s, double max_spread, int which, int measurements) {
    json_t *const result = sweep_measure_quietly(measure, &s, NULL, max_spread);
    assert_non_null(result);
    assert_int_equal(json_integer_value(json_object_get(result, "which")), which);
    assert_int_equal(json_integer_value(json_object_get(result, "measurements")), measurements);
    json_decref(result);
}

static void test_quiet(void **state) {
    (void)state;
    check((script){.spreads = {0.1}}, 0.1, 1, 1);
    check((script){.spreads = {0.2, 0.05}}, 0.1, 2, 2);
    check((script){.spreads = {0.2, 0.3, 0.05}}, 0.1, 3, 3);
}

static void test_noisy(void **state) {
    (void)state;
    check((script){.spreads = {0.4, 0.2, 0.3}}, 0.1, 2, 3);
    check((script){.spreads = {0.2, 0.3, 0.4}}, 0.1, 1, 3);
    check((script){.spreads = {0.9}}, (double)INFINITY, 1, 1);
}

/* An interruption or a failure loses nothing that was measured before. */
static void test_failed(void **state) {
    (void)state;
    script s = {.spreads = {-1}};
    assert_null(sweep_measure_quietly(measure, &s, NULL, 0.1));
    assert_int_equal(s.taken, 1);
    check((script){.spreads = {0.2, -1}}, 0.1, 1, 1);
    check((script){.spreads = {0.4, 0.2, -1}}, 0.1, 2, 2);
}

/* What an earlier run measured counts. */
static void test_before(void **state) {
    (void)state;
    script s = {.spreads = {0.3, 0.1}};
    json_t *const before = json_pack("{s:f, s:i, s:i}", "spread", 0.2, "which", 0, "measurements", 2);
    assert_true(sweep_is_noisy(before, 0.1));
    assert_false(sweep_is_noisy(before, 0.2));
    json_t *const result = sweep_measure_quietly(measure, &s, before, 0.1);
    assert_int_equal(s.taken, 1);
    assert_int_equal(json_integer_value(json_object_get(result, "which")), 0);
    assert_int_equal(json_integer_value(json_object_get(result, "measurements")), 3);
    assert_false(sweep_is_noisy(result, 0.1));
    json_decref(result);
    json_decref(before);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quiet),
        cmocka_unit_test(test_noisy),
        cmocka_unit_test(test_before),
        cmocka_unit_test(test_failed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
