/* Which schedules the tuner tries of an operator of the user. */
#include "tune/space.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { CAPACITY = 3000 };

static int32_t values[AT_OWN_VALUES];
static tune_candidate candidates[CAPACITY];

/* Choices with so many values each (10, 20, 30 …), the usual one in the middle. */
static at_own make(const size_t *counts, size_t num_choices) {
    at_own own = {.num_choices = num_choices};
    for (int i = 0; i < AT_OWN_VALUES; i++) values[i] = 10 * (i + 1);
    for (size_t i = 0; i < num_choices; i++)
        own.choices[i] = (attune_choice){"c", values, counts[i], values[counts[i] / 2], 0};
    return own;
}

static int by_schedule(const void *a, const void *b) {
    return memcmp(&((const tune_candidate *)a)->schedule, &((const tune_candidate *)b)->schedule, sizeof(mha_schedule));
}

static void assert_each_value(const at_own *own, size_t count) {
    for (size_t c = 0; c < own->num_choices; c++) {
        bool seen[AT_OWN_VALUES] = {false};
        for (size_t i = 0; i < count; i++) seen[at_own_numbers(&candidates[i].schedule)[c] / 10 - 1] = true;
        for (size_t v = 0; v < own->choices[c].num_values; v++)
            if (!seen[v]) fail_msg("value %zu of choice %zu of %zu is in no schedule", v, c, own->num_choices);
    }
}

static void assert_space(const size_t *counts, size_t num_choices, size_t expected) {
    const at_own own = make(counts, num_choices);
    const size_t count = tune_own_space(&own, candidates, CAPACITY);
    assert_int_equal(count, expected);
    for (size_t c = 0; c < num_choices; c++) /* the usual one comes first */
        assert_int_equal(at_own_numbers(&candidates[0].schedule)[c], own.choices[c].usual);
    for (size_t i = 1; i < count; i++) assert_true(candidates[i - 1].cost <= candidates[i].cost);
    assert_each_value(&own, count);
    qsort(candidates, count, sizeof *candidates, by_schedule);
    for (size_t i = 1; i < count; i++) assert_true(by_schedule(&candidates[i - 1], &candidates[i]) != 0);
}

#define SPACE(expected, ...)                                                                                           \
    do {                                                                                                               \
        static const size_t counts[] = {__VA_ARGS__};                                                                  \
        assert_space(counts, sizeof counts / sizeof *counts, expected);                                                \
    } while (0)

static void small_spaces_are_whole(void **state) {
    (void)state;
    const at_own none = make(NULL, 0);
    assert_int_equal(tune_own_space(&none, candidates, CAPACITY), 1);
    SPACE(1, 1);
    SPACE(6, 2, 3);
    SPACE(3000, 10, 12, 25);
    SPACE(2985, 15, 199);
}

static void large_spaces_show_every_value(void **state) {
    (void)state;
    SPACE(3000, 1, 43, 70);
    SPACE(3000, 13, 231); /* 3003 */
    SPACE(3000, 4, 10, 10, 30);
    SPACE(3000, 8, 8, 8, 8);
    SPACE(3000, 2, 15, 20, 10);
    SPACE(3000, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2);
    SPACE(3000, 256, 256, 256, 256, 256, 256, 256, 256, 256, 256, 256, 256);
}

static void neighbours_differ_in_one_number(void **state) {
    (void)state;
    static const size_t counts[] = {3, 1, 4};
    const at_own own = make(counts, 3);
    mha_schedule middle = {0};
    tune_candidate around[8];
    const int32_t numbers[] = {20, 10, 40}, expected[][3] = {{10, 10, 40}, {30, 10, 40}, {20, 10, 30}};
    memcpy(at_own_numbers(&middle), numbers, sizeof numbers);
    assert_int_equal(tune_own_neighbours(&own, &middle, around, 8), 3);
    for (int i = 0; i < 3; i++)
        assert_memory_equal(at_own_numbers(&around[i].schedule), expected[i], sizeof expected[i]);
    assert_int_equal(tune_own_neighbours(&own, &middle, around, 2), 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(small_spaces_are_whole),
        cmocka_unit_test(large_spaces_show_every_value),
        cmocka_unit_test(neighbours_differ_in_one_number),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
