/* Blocks of PyTorch, Keras, Flax and JAX that tests/peers recorded in tests/data/mha: the command reads their weights
 * and inputs as those frameworks leave them, and must come within torch's own tolerance of their results. */
#include "common/npy.h"

#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

extern char **environ;

static const char data[] = "tests/data/mha";
enum { MAX_CASES = 64, MIN_CASES = 24, MAX_WORDS = 64, PATH_BYTES = 512, OUTPUT_BYTES = 4096 };

/* ---- A command line ---- */

typedef struct command {
    char *words[MAX_WORDS];
    int count;
} command;

__attribute__((format(printf, 2, 3))) static void add(command *c, const char *format, ...) {
    char word[2 * PATH_BYTES];
    va_list args;
    va_start(args, format);
    assert_in_range(vsnprintf(word, sizeof word, format, args), 0, sizeof word - 1);
    va_end(args);
    assert_true(c->count < MAX_WORDS - 1);
    c->words[c->count] = strdup(word);
    assert_non_null(c->words[c->count++]);
}

static void free_command(command *c) {
    for (int i = 0; i < c->count; i++) free(c->words[i]);
}

static void read_output(const char *path, char output[OUTPUT_BYTES]) {
    FILE *const file = fopen(path, "r");
    assert_non_null(file);
    output[fread(output, 1, OUTPUT_BYTES - 1, file)] = '\0';
    fclose(file);
}

/* The exit status, and the command's output on either stream. */
static int run(const command *c, const char *folder, char output[OUTPUT_BYTES]) {
    char path[PATH_BYTES];
    posix_spawn_file_actions_t actions;
    pid_t child;
    int status;
    snprintf(path, sizeof path, "%s/output", folder);
    assert_int_equal(posix_spawn_file_actions_init(&actions), 0);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    assert_int_equal(posix_spawn(&child, c->words[0], &actions, NULL, c->words, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    assert_int_equal(waitpid(child, &status, 0), child);
    read_output(path, output);
    unlink(path);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/* ---- A case ---- */

static json_t *read_case(const char *name) {
    char path[PATH_BYTES];
    json_error_t error;
    snprintf(path, sizeof path, "%s/%s/case.json", data, name);
    json_t *const description = json_load_file(path, 0, &error);
    if (!description) fail_msg("%s: %s", path, error.text);
    return description;
}

static const char *text_of(const json_t *description, const char *key) {
    const char *const text = json_string_value(json_object_get(description, key));
    if (!text) fail_msg("case.json has no text '%s'", key);
    return text;
}

static void compose(command *c, const char *name, const json_t *description, const char *folder) {
    static const char *const own[][2] = {{"x", "--x"}, {"x_kv", "--x-kv"}, {"x_v", "--x-v"}};
    const char *key;
    json_t *value;
    add(c, "%s", getenv("ATTUNE"));
    add(c, "mha");
    add(c, "%s", text_of(description, "problem"));
    add(c, "--weights=%s/%s/%s", data, name, text_of(description, "weights"));
    if (json_object_get(description, "prefix")) add(c, "--prefix=%s", text_of(description, "prefix"));
    json_object_foreach(json_object_get(description, "inputs"), key, value) {
        const char *option = NULL;
        for (size_t i = 0; i < sizeof own / sizeof *own; i++)
            if (strcmp(own[i][0], key) == 0) option = own[i][1];
        if (option)
            add(c, "%s=%s/%s/%s", option, data, name, json_string_value(value));
        else
            add(c, "--tensor=%s=%s/%s/%s", key, data, name, json_string_value(value));
    }
    json_object_foreach(json_object_get(description, "expected"), key, value)
        add(c, "--write=%s=%s/%s", key, folder, key);
    add(c, "--check"); /* exits with 1 if the interpreter has other bits */
}

static npy_array read_array(const char *path) {
    char message[ATTUNE_MESSAGE_BYTES];
    npy_array array;
    if (!npy_read(path, &array, message)) fail_msg("%s", message);
    return array;
}

/* Elements of the same number beyond |got - wanted| <= atol + rtol |wanted|; shapes may differ in dims of 1. */
static size_t count_different(const npy_array *got, const npy_array *wanted, double rtol, double atol) {
    size_t different = 0;
    for (size_t i = 0; i < wanted->header.count; i++) {
        const double a = npy_element(got, i), b = npy_element(wanted, i);
        different += !(fabs(a - b) <= atol + rtol * fabs(b)); /* a NaN is different */
    }
    return different;
}

static void compare(const char *name, const char *output, const char *file, const json_t *description,
                    const char *folder) {
    char path[PATH_BYTES];
    const double rtol = json_number_value(json_object_get(description, "rtol"));
    const double atol = json_number_value(json_object_get(description, "atol"));
    snprintf(path, sizeof path, "%s/%s/%s", data, name, file);
    npy_array wanted = read_array(path);
    snprintf(path, sizeof path, "%s/%s", folder, output);
    npy_array got = read_array(path);
    unlink(path);
    assert_true(atol > 0 && atol <= 1e-5 && rtol > 0 && rtol <= 1.3e-6);
    assert_int_equal(got.header.count, wanted.header.count);
    const size_t different = count_different(&got, &wanted, rtol, atol);
    if (different) fail_msg("%s: %zu of %zu elements of %s differ", name, different, wanted.header.count, output);
    /* The tolerance is none for something else. */
    float *const values = wanted.data;
    if (wanted.header.type == NPY_F4) {
        values[wanted.header.count / 2] += 1e-4f;
        assert_int_equal(count_different(&got, &wanted, rtol, atol), 1);
    }
    npy_free(&got);
    npy_free(&wanted);
}

static void test_case(void **state) {
    const char *const name = *state, *key;
    char folder[] = "/tmp/attune-vectors-XXXXXX", output[OUTPUT_BYTES];
    json_t *const description = read_case(name), *value;
    command c = {.count = 0};
    assert_non_null(mkdtemp(folder));
    compose(&c, name, description, folder);
    const int status = run(&c, folder, output);
    if (status) fail_msg("%s (%s): exit status %d: %s", name, text_of(description, "call"), status, output);
    assert_non_null(json_object_get(json_object_get(description, "expected"), "out"));
    json_object_foreach(json_object_get(description, "expected"), key, value)
        compare(name, key, json_string_value(value), description, folder);
    rmdir(folder);
    free_command(&c);
    json_decref(description);
}

/* ---- All of them ---- */

static int is_case(const struct dirent *entry) { return entry->d_name[0] != '.' && !strchr(entry->d_name, '.'); }

static void test_enough_cases(void **state) { assert_in_range(*(const int *)*state, MIN_CASES, MAX_CASES); }

int main(void) {
    struct dirent **entries = NULL;
    struct CMUnitTest tests[MAX_CASES + 1];
    size_t count = 0;
    int found = scandir(data, &entries, is_case, alphasort);
    if (!getenv("ATTUNE") || found < 0) {
        fprintf(stderr, "needs ATTUNE, the command, and %s\n", data);
        return 1;
    }
    tests[count++] = (struct CMUnitTest){"there are enough cases", test_enough_cases, NULL, NULL, &found};
    for (int i = 0; i < found && i < MAX_CASES; i++)
        tests[count++] = (struct CMUnitTest){entries[i]->d_name, test_case, NULL, NULL, entries[i]->d_name};
    const int failed = _cmocka_run_group_tests("test_vectors", tests, count, NULL, NULL);
    for (int i = 0; i < found; i++) free(entries[i]);
    free(entries);
    return failed;
}
