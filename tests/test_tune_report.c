/* What attune tune prints of results that searches seldom have: intervals without an end, and wrong kernels. */
#define _GNU_SOURCE
#include "tool.h"

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

attune_status __wrap_attune_tune(attune_context *context, const attune_problem *problem,
                                 const attune_arguments *arguments, const attune_tune_options *options,
                                 attune_tune_result *result);

/* In place of the library's, by the linker: one pair was too few for an end of the interval. */
attune_status __wrap_attune_tune(attune_context *context, const attune_problem *problem,
                                 const attune_arguments *arguments, const attune_tune_options *options,
                                 attune_tune_result *result) {
    (void)arguments, (void)options;
    *result = (attune_tune_result){.struct_size = sizeof *result,
                                   .schedule = ATTUNE_SCHEDULE_INIT,
                                   .ratio = 1.5,
                                   .ratio_high = (double)INFINITY,
                                   .space = 10,
                                   .measured = 1,
                                   .wrong = wrong};
    assert_int_equal(attune_schedule_choose(context, problem, &result->schedule), ATTUNE_OK);
    if (wrong) attune_schedule_print(&result->schedule, result->wrong_schedule, sizeof result->wrong_schedule);
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
        const char *const command = strstr(text, "please report: attune check ");
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
        cmocka_unit_test(the_command_to_report_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
