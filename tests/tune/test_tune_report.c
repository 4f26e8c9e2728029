/* What attune tune prints: times and noise, and results that searches seldom have, intervals without an end and wrong
 * kernels. */
#define _GNU_SOURCE
#include "common/tool.h"
#include "lab.h"

#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#define PROBLEM "num_heads=2,seq_q=-1,seq_kv=-1,head_dim=16"
#define SIZES   "--sizes=seq_q=9,seq_kv=11"

static uint64_t wrong;
static attune_tune_result reported; /* what the search tells, if it measured anything */

attune_status __wrap_attune_tune(attune_context *context, const attune_problem *problem,
                                 const attune_arguments *arguments, const attune_tune_options *options,
                                 attune_tune_result *result);

/* In place of the library's, by the linker: one pair was too few for an end of the interval. */
attune_status __wrap_attune_tune(attune_context *context, const attune_problem *problem,
                                 const attune_arguments *arguments, const attune_tune_options *options,
                                 attune_tune_result *result) {
    (void)arguments, (void)options;
    *result = (attune_tune_result){.struct_size = sizeof *result,
                                   .ratio = 1.5,
                                   .ratio_high = (double)INFINITY,
                                   .space = 10,
                                   .measured = 1,
                                   .wrong = wrong};
    if (reported.measured) *result = reported;
    assert_int_equal(attune_schedule_choose(context, problem, NULL, result->schedule, sizeof result->schedule),
                     ATTUNE_OK);
    if (wrong) strcpy(result->wrong_schedule, result->schedule);
    return ATTUNE_OK;
}

typedef int command_fn(int argc, char **argv);

/* Runs a command of at most 15 words; what it wrote to stdout or stderr is in `text`. */
static int run(command_fn *command, const char *words, int stream, char *text, size_t capacity) {
    char *const line = strdup(words), *arguments[16] = {NULL}, *save = NULL;
    int argc = 0;
    assert_non_null(line);
    for (char *word = strtok_r(line, " \n", &save); word && argc < 15; word = strtok_r(NULL, " \n", &save))
        arguments[argc++] = word;
    FILE *const output = tmpfile();
    assert_non_null(output);
    fflush(stdout);
    const int terminal = dup(stream);
    dup2(fileno(output), stream);
    const int code = command(argc, arguments);
    fflush(stdout);
    dup2(terminal, stream);
    close(terminal);
    rewind(output);
    text[fread(text, 1, capacity - 1, output)] = '\0';
    fclose(output);
    free(line);
    return code;
}

/* JSON has no infinity. */
static void an_interval_without_an_end_is_null(void **state) {
    (void)state;
    char text[8192];
    wrong = 0;
    assert_int_equal(run(cmd_tune, "tune --cache-dir= --json " SIZES " " PROBLEM, STDOUT_FILENO, text, sizeof text),
                     TOOL_OK);
    json_t *const all = json_loads(text, 0, NULL), *const results = json_object_get(all, "results");
    assert_int_equal(json_array_size(results), 1);
    assert_true(json_is_null(json_object_get(json_array_get(results, 0), "ratio_high")));
    assert_true(json_real_value(json_object_get(json_array_get(results, 0), "ratio")) == 1.5);
    json_decref(all);
}

/* ---- Times and noise ---- */

static const attune_tune_result quiet = {.struct_size = sizeof quiet,
                                         .is_faster = 1,
                                         .ratio = 0.8,
                                         .ratio_low = 0.79,
                                         .ratio_high = 0.81,
                                         .space = 10,
                                         .measured = 7,
                                         .seconds = 2,
                                         .threads = 2,
                                         .seconds_before = 1.25,
                                         .seconds_after = 1,
                                         .spread_before = 0.031,
                                         .spread_after = 0.042,
                                         .noise = 0.011,
                                         .detectable = 0.02};

static void tell(const attune_tune_result *result, int stream, const char *options, char *text, size_t capacity) {
    char words[512];
    snprintf(words, sizeof words, "tune --cache-dir= %s " SIZES " " PROBLEM, options);
    reported = *result;
    wrong = 0;
    assert_int_equal(run(cmd_tune, words, stream, text, capacity), TOOL_OK);
    reported.measured = 0;
}

static void assert_tells(const char *text, const char *part) {
    if (!strstr(text, part)) fail_msg("'%s' is not in: %s", part, text);
}

static void times_are_told(void **state) {
    (void)state;
    char text[8192];
    tell(&quiet, STDOUT_FILENO, "", text, sizeof text);
    assert_tells(text, "\n  threads   2\n");
    assert_tells(text, "\n  before    1.25 s ± 3.1 %, ");
    assert_tells(text, "\n  after     1.00 s ± 4.2 %, ");
    assert_tells(text, " % of the peak of ");
    assert_tells(text, "20.0 % faster (19.0 to 21.0 %)");
    assert_null(strstr(text, "certainty"));
    tell(&quiet, STDERR_FILENO, "", text, sizeof text);
    assert_null(strstr(text, "busy"));
}

static void times_are_in_json(void **state) {
    (void)state;
    char text[8192];
    tell(&quiet, STDOUT_FILENO, "--json", text, sizeof text);
    json_t *const all = json_loads(text, 0, NULL), *const r = json_array_get(json_object_get(all, "results"), 0);
    assert_int_equal(json_integer_value(json_object_get(r, "threads")), 2);
    assert_true(json_real_value(json_object_get(r, "noise")) == 0.011);
    assert_true(json_real_value(json_object_get(r, "detectable")) == 0.02);
    assert_true(json_real_value(json_object_get(json_object_get(r, "before"), "seconds")) == 1.25);
    assert_true(json_real_value(json_object_get(json_object_get(r, "after"), "spread")) == 0.042);
    assert_true(json_real_value(json_object_get(r, "peak_gflops")) > 0);
    assert_true(json_real_value(json_object_get(json_object_get(r, "after"), "fraction_of_peak")) > 0);
    json_decref(all);
}

/* "Nothing faster" is worth as much as the measurements were. */
static void nothing_faster_says_how_sure_it_is(void **state) {
    (void)state;
    char text[8192];
    attune_tune_result result = quiet;
    result.is_faster = 0;
    result.ratio = result.ratio_low = result.ratio_high = 1;
    result.noise = 0.2;
    result.detectable = 0.163;
    result.interrupted = 0.31;
    tell(&result, STDOUT_FILENO, "", text, sizeof text);
    assert_tells(text, "nothing faster was found");
    assert_tells(text, "one that is 16.3 % faster would have been seen");
    assert_tells(text, "times of one kernel differ by 20.0 %");
    tell(&result, STDERR_FILENO, "", text, sizeof text);
    assert_tells(text,
                 "the machine was busy: other programs took a CPU away during 31 % of the measurements, and times");
    result.noise = 0.01;
    tell(&result, STDERR_FILENO, "", text, sizeof text);
    assert_tells(text, "during 31 % of the measurements; on a quiet machine");
    assert_null(strstr(text, "times of one kernel"));
    result.ratio = 0.93;
    result.ratio_low = 0.85;
    result.ratio_high = 1.02;
    result.detectable = 1;
    tell(&result, STDOUT_FILENO, "", text, sizeof text);
    assert_tells(text,
                 "nothing is faster beyond doubt; the best is 7.0 % faster, between 15.0 % faster and 2.0 % slower");
    assert_tells(text, "certainty none");
}

/* It is a command that runs what was wrong, here a kernel that is right, as it was run: whatever the CPU's widest
 * instruction set is. */
static void the_command_to_report_runs(void **state) {
    static const char *const isas[] = {"", "--isa=x86-64 "};
    (void)state;
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        char words[256], text[8192], out[8192];
        wrong = 1;
        snprintf(words, sizeof words, "tune --cache-dir= --json %s" SIZES " " PROBLEM, isas[i]);
        assert_int_equal(run(cmd_tune, words, STDERR_FILENO, text, sizeof text), TOOL_FAILED);
        const char *const command = strstr(text, "please report: attune-lab check ");
        assert_non_null(command);
        assert_non_null(strstr(command, "--seed=1"));
        assert_non_null(strstr(command, " " SIZES));
        assert_int_equal(run(cmd_check, strstr(command, "check "), STDOUT_FILENO, out, sizeof out), TOOL_OK);
        assert_non_null(strstr(out, "passed"));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_interval_without_an_end_is_null),
        cmocka_unit_test(times_are_told),
        cmocka_unit_test(times_are_in_json),
        cmocka_unit_test(nothing_faster_says_how_sure_it_is),
        cmocka_unit_test(the_command_to_report_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
