/* The IR of kernels is what tests/data/golden_ir.txt says: of every fifth case. `make golden`
 * compares all, and prints those that changed. */
#include "support/ir/golden_ir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { STEP = 5 };
static const char path[] = "tests/data/golden_ir.txt";

static void test_ir_is_golden(void **state) {
    (void)state;
    check_machine machine;
    golden_file file;
    size_t changed = 0;
    assert_true(golden_open(&machine));
    assert_true(golden_read(path, &file));
    assert_int_equal(file.count, golden_count());
    for (size_t i = 0; i < golden_count(); i += STEP) {
        golden_case c;
        assert_true(golden_make(&machine, i, &c));
        if (golden_compare(&file, &c.line) != GOLDEN_SAME) {
            print_error("%s differs: see `make golden`\n", c.line.name);
            changed++;
        }
        golden_free(&c);
    }
    assert_int_equal(changed, 0);
    golden_close(&file);
    check_close(&machine);
}

/* Every target of the table has cases, each under a name by which it is found. */
static void test_every_case_has_a_name(void **state) {
    (void)state;
    check_machine machine;
    golden_file file;
    assert_true(golden_open(&machine));
    assert_true(golden_read(path, &file));
    for (size_t i = 0; i < file.count; i++) assert_int_equal(golden_find(file.lines[i].name), i);
    assert_int_equal(golden_find("avx512:x"), golden_count());
    golden_close(&file);
    check_close(&machine);
}

/* The environment decides nothing. */
static void test_environment_is_not_read(void **state) {
    (void)state;
    check_machine machine;
    golden_case before, after;
    assert_true(golden_open(&machine));
    assert_true(golden_make(&machine, 0, &before));
    check_close(&machine);
    setenv("ATTUNE_ISA", "x86-64", 1);
    setenv("ATTUNE_MACHINE", "nonsense beyond all names of classes", 1);
    setenv("ATTUNE_CACHE_DIR", "/proc/none", 1);
    assert_true(golden_open(&machine));
    assert_true(golden_make(&machine, 0, &after));
    assert_memory_equal(&before.line, &after.line, sizeof before.line);
    before.context = after.context;
    golden_free(&before);
    golden_free(&after);
    check_close(&machine);
}

static void test_differences_are_told_apart(void **state) {
    (void)state;
    golden_line lines[] = {{"avx2:0", 1, 2, 3}, {"avx2:1", 4, 5, 6}};
    const golden_file file = {lines, 2};
    assert_int_equal(golden_compare(&file, &(golden_line){"avx2:1", 4, 5, 6}), GOLDEN_SAME);
    assert_int_equal(golden_compare(&file, &(golden_line){"avx2:1", 4, 5, 7}), GOLDEN_OTHER_IR);
    assert_int_equal(golden_compare(&file, &(golden_line){"avx2:1", 4, 9, 6}), GOLDEN_OTHER_TEXT);
    assert_int_equal(golden_compare(&file, &(golden_line){"avx2:1", 9, 5, 6}), GOLDEN_OTHER_TEXT);
    assert_int_equal(golden_compare(&file, &(golden_line){"avx2:1", 9, 5, 7}), GOLDEN_OTHER_DRAWN);
    assert_int_equal(golden_compare(&file, &(golden_line){"avx2:2", 4, 5, 6}), GOLDEN_MISSING);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ir_is_golden),
        cmocka_unit_test(test_every_case_has_a_name),
        cmocka_unit_test(test_environment_is_not_read),
        cmocka_unit_test(test_differences_are_told_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
