/* What samples and probes amount to, and when they amount to nothing. The samples are given, so no clock matters. */
#define _GNU_SOURCE
#include "measure/bench_json.h"
#include "measure/bench_text.h"
#include "explain/explain.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

enum { COUNT = 12 };

/* 1 MFLOP in some 10 µs is 100 GFLOP/s, half of a peak of 200. */
typedef struct measurement {
    double us[COUNT], peaks[COUNT], bandwidths[COUNT];
} measurement;

static measurement quiet(void) {
    measurement m;
    for (int i = 0; i < COUNT; i++) {
        m.us[i] = 10 + 0.01 * i;
        m.peaks[i] = 200 - 0.1 * i;
        m.bandwidths[i] = 100 + 0.1 * i;
    }
    return m;
}

static bench_case summary(measurement *m, size_t count) {
    bench_case e = {.text = (char *)"num_heads=1", .work = {.flops = 1e6, .bytes = 1000}, .peak_dtype = ATTUNE_F32};
    e.count = count;
    e.samples_us = m->us;
    e.peaks = m->peaks;
    e.bandwidths = m->bandwidths;
    assert_true(bench_summarise(&e));
    return e;
}

static void on_a_quiet_machine_there_are_figures(void **state) {
    (void)state;
    measurement m = quiet();
    const bench_case e = summary(&m, COUNT);
    assert_false(e.is_busy);
    assert_true(e.median_us > 10.05 && e.median_us < 10.06 && e.min_us == 10);
    assert_true(e.fraction > 0.49 && e.fraction < 0.51 && e.fraction == e.fraction_of_roofline);
}

/* A machine whose clock changes is not busy: the probes around a slow sample are as slow. */
static void a_slower_clock_is_no_disturbance(void **state) {
    (void)state;
    measurement m = quiet();
    for (int i = 0; i < COUNT; i += 2) m.us[i] *= 1.3, m.peaks[i] /= 1.3;
    const bench_case e = summary(&m, COUNT);
    assert_false(e.is_busy);
    assert_true(e.fraction > 0.49 && e.fraction < 0.51);
}

static void disturbed_samples_are_no_figures(void **state) {
    (void)state;
    measurement m = quiet();
    for (int i = 0; i < COUNT; i += 2) m.us[i] = 264; /* a spread of 185 % of the median, and more of the best */
    assert_true(summary(&m, COUNT).is_busy);
    m = quiet();
    for (int i = 0; i < COUNT; i += 2) m.us[i] = 16; /* a spread of 46 %, but shares lie as far apart as these */
    assert_false(summary(&m, COUNT).is_busy);
    for (int i = 0; i < COUNT; i += 2) m.us[i] = 22;
    assert_true(summary(&m, COUNT).is_busy);
    m = quiet();
    for (int i = 1; i < COUNT; i++) m.us[i] = 40 + i; /* all but one */
    assert_true(summary(&m, COUNT).is_busy);
    m = quiet();
    m.us[5] = 4000; /* one does not change the median */
    assert_false(summary(&m, COUNT).is_busy);
}

/* A probe that was disturbed makes a share too large: 56.7 % of a peak that is fourteen times as high. */
static void disturbed_probes_are_no_figures(void **state) {
    (void)state;
    measurement m = quiet();
    for (int i = 0; i < COUNT; i++) m.us[i] *= 12;
    bench_case e = summary(&m, COUNT);
    assert_true(!e.is_busy && e.fraction > 0.04 && e.fraction < 0.05);
    for (int i = 1; i < COUNT; i++) m.peaks[i] = 14; /* each share alone looks right, and they all agree but one */
    e = summary(&m, COUNT);
    assert_true(e.is_busy && e.fraction > 0.5);
    for (int i = 1; i < COUNT; i++) m.peaks[i] = i % 2 ? 200 : 80;
    assert_true(summary(&m, COUNT).is_busy);
}

/* Where memory is the bound, the shares come from the bandwidth. */
static void disturbed_bandwidths_are_no_figures(void **state) {
    (void)state;
    measurement m = quiet();
    for (int i = 0; i < COUNT; i += 2) m.bandwidths[i] = 20;
    assert_false(summary(&m, COUNT).is_busy);
    bench_case e = {.work = {.flops = 1e5, .bytes = 1e6}, .count = COUNT};
    e.samples_us = m.us;
    e.peaks = m.peaks;
    e.bandwidths = m.bandwidths;
    assert_true(bench_summarise(&e) && e.is_memory_bound && e.is_busy);
}

static void few_samples_have_no_spread(void **state) {
    (void)state;
    measurement m = quiet();
    m.us[0] = 1000;
    assert_false(summary(&m, 1).is_busy);
    assert_false(summary(&m, 3).is_busy);
    m.us[1] = 1000;
    assert_true(summary(&m, 4).is_busy);
}

/* ---- How it is said ---- */

/* What a function prints to standard output. */
static void printed(void (*print)(const bench_case *), const bench_case *e, char *text, size_t capacity) {
    FILE *const output = tmpfile();
    assert_non_null(output);
    fflush(stdout);
    const int own = dup(STDOUT_FILENO);
    dup2(fileno(output), STDOUT_FILENO);
    print(e);
    fflush(stdout);
    dup2(own, STDOUT_FILENO);
    close(own);
    rewind(output);
    text[fread(text, 1, capacity - 1, output)] = '\0';
    fclose(output);
}

static void print_table(const bench_case *e) { bench_print(e, 1, NULL, 0); }

static void print_explanation(const bench_case *e) {
    explanation all = {.text = (char *)"num_heads=1", .schedule_text = "lanes=8", .threads = 1};
    all.machine.cpu_description = all.machine.machine = all.machine.isa = "x";
    all.measured_threads = 1;
    all.is_measured = true;
    all.bench = *e;
    explain_print(&all);
}

static void a_busy_machine_is_said_in_text(void **state) {
    (void)state;
    char text[4096];
    measurement m = quiet();
    bench_case e = summary(&m, COUNT);
    printed(print_table, &e, text, sizeof text);
    assert_null(strstr(text, "busy"));
    assert_non_null(strstr(text, " % "));
    printed(print_explanation, &e, text, sizeof text);
    assert_non_null(strstr(text, "measured      10.1 µs: 49.9 % of the peak, 49.9 % of the roofline\n"));
    for (int i = 0; i < COUNT; i += 2) m.us[i] = 264;
    e = summary(&m, COUNT);
    printed(print_table, &e, text, sizeof text);
    assert_non_null(strstr(text, "busy, no figure  10.0 µs       -        -  199.4 f32        -"));
    assert_null(strchr(text, '%'));
    printed(print_explanation, &e, text, sizeof text);
    assert_non_null(strstr(text, "measured      busy, no figure; the fastest sample took 10.0 µs\n"));
    assert_null(strchr(text, '%'));
}

static void a_busy_machine_is_said_in_json(void **state) {
    (void)state;
    static const char *const figures[] = {"spread", "gflops", "fraction_of_peak", "fraction_of_roofline"};
    const call_sizes sizes = CALL_SIZES_NONE;
    for (int is_busy = 0; is_busy < 2; is_busy++) {
        measurement m = quiet();
        for (int i = 0; is_busy && i < COUNT; i += 2) m.us[i] = 264;
        const bench_case e = summary(&m, COUNT);
        json_t *const result = bench_busy_json(&e, bench_result_json(&e, &sizes, 1));
        assert_int_equal(json_is_true(json_object_get(result, "is_busy")), is_busy);
        for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
            const json_t *const figure = json_object_get(result, figures[i]);
            assert_true(is_busy ? json_is_null(figure) : json_is_real(figure));
        }
        assert_int_equal(json_array_size(json_object_get(result, "samples_us")), COUNT);
        json_decref(result);
    }
    const bench_case quiet_entry = {.is_busy = true};
    assert_null(bench_busy_json(&quiet_entry, NULL));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_a_quiet_machine_there_are_figures), cmocka_unit_test(a_slower_clock_is_no_disturbance),
        cmocka_unit_test(disturbed_samples_are_no_figures),     cmocka_unit_test(disturbed_probes_are_no_figures),
        cmocka_unit_test(disturbed_bandwidths_are_no_figures),  cmocka_unit_test(few_samples_have_no_spread),
        cmocka_unit_test(a_busy_machine_is_said_in_text),       cmocka_unit_test(a_busy_machine_is_said_in_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
