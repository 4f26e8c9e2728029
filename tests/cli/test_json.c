/* The JSON of every command: one document and nothing else on stdout, the same header in all, and every member
 * described in docs/json.md. Needs ATTUNE, the command, as tests/run.sh sets it. */
#define _GNU_SOURCE
#include "common/npy.h"
#include "support/temp_dir.h"
#include "target/target.h"

#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static char folder[TEMP_DIR_CHARS];
static char *manual; /* docs/json.md */

#define SMALL "num_heads=2,seq_q=9,head_dim=8"

/* Words of each command; %s is the test's folder. Together these are all that print results. */
static const char *const commands[] = {
    "run --q examples/minilm/q.npy --k examples/minilm/k.npy --v examples/minilm/v.npy --check "
    "--expect examples/minilm/expected.npy",
    "run op=index,num_heads=4,head_dim=32,num_ids=4 --sizes seq_q=2,seq_kv=20 --check",
    "run op=mla,embed_dim=32,num_heads=2,kv_lora_rank=16,qk_nope_head_dim=16,qk_rope_head_dim=8 --sizes seq=3 --check",
    "compile " SMALL,
    "explain op=conv,channels=32,taps=4",
    "compile embed_dim=24,num_heads=3,seq_q=5",
    "check " SMALL " --threads=1",
    "check --random 3 --max-flops 1e4",
    "check --accuracy --max-flops=1e5 --isa=x86-64",
    "conform tests/data/conform/rotary_f16_positions",
    "bench " SMALL " --samples=2",
    "bench compare tests/data/report.json tests/data/report.json",
    "explain " SMALL,
    "explain " SMALL " --dry-run",
    "tune --budget=0.05s " SMALL,
    "tune --budget=0.05s --export '%s/tuned.db' " SMALL,
    "tune --budget=0.05s --import '%s/tuned.db' " SMALL,
    "sweep --samples=1 num_heads=2,seq_q=4,9,head_dim=8",
    "warm " SMALL,
    "bundle -o '%1$s/libb.a' --header '%1$s/b.h' --name b --targets x86-64 " SMALL,
    "cache ls",
    "cache verify",
    "cache why " SMALL,
    "cache why num_heads=2,seq_q=7,head_dim=8",
    "cache audit --sample=1",
    "cache gc",
    "cache export '%s/out'",
    "cache import '%s/out'",
    "cache clear --cache-dir='%s/out'",
    "info",
    "info --probe-machine",
    "ir examples/ir/scale_rows.air --arg n=3 --arg 'x=%s/x.npy' --check",
};
enum { COMMANDS = sizeof commands / sizeof *commands };

/* check and conform are the laboratory's. */
static const char *program_of(const char *words) {
    return strncmp(words, "check", 5) && strncmp(words, "conform", 7) ? "\"$ATTUNE\"" : "\"$ATTUNE-lab\"";
}

/* What a shell command wrote to stdout; free it. *status is that of pclose. */
static char *output_of(const char *command, int *status) {
    FILE *const pipe = popen(command, "re");
    char *text = NULL;
    size_t bytes = 0;
    assert_non_null(pipe);
    FILE *const memory = open_memstream(&text, &bytes);
    assert_non_null(memory);
    for (int c; (c = getc(pipe)) != EOF;) putc(c, memory);
    *status = pclose(pipe);
    fclose(memory);
    return text;
}

/* The document that `attune WORDS --json` prints. */
static json_t *document_of(const char *words) {
    char *filled, *command;
    int status;
    json_error_t why;
    assert_true(asprintf(&filled, words, folder) > 0);
    assert_true(asprintf(&command, "%s %s --json 2>'%s/stderr'", program_of(words), filled, folder) > 0);
    char *const text = output_of(command, &status);
    if (status) print_error("%s: status %d\n%s\n", command, status, text);
    assert_int_equal(status, 0);
    json_t *const document = json_loads(text, JSON_REJECT_DUPLICATES, &why); /* refuses anything after the document */
    if (!document) print_error("%s: line %d: %s\n%s\n", command, why.line, why.text, text);
    assert_non_null(document);
    free(text);
    free(command);
    free(filled);
    return document;
}

/* ---- Header and manual ---- */

static void check_header(const json_t *document, json_t *wanted, const char *words) {
    static const char *const of_the_run[] = {"threads", "date"};
    json_t *const header = json_copy(json_object_get(document, "header"));
    assert_int_equal(json_integer_value(json_object_get(document, "schema")), 2);
    assert_non_null(header);
    assert_true(json_integer_value(json_object_get(header, "threads")) >= 1);
    assert_int_equal(strlen(json_string_value(json_object_get(header, "date"))), strlen("2026-01-31T12:00:00Z"));
    for (size_t i = 0; i < 2; i++) json_object_set(header, of_the_run[i], json_object_get(wanted, of_the_run[i]));
    /* `check` goes through all instruction sets, or those that are named. */
    if (!strncmp(words, "check ", 6)) json_object_set(header, "isa", json_object_get(wanted, "isa"));
    if (!json_equal(header, wanted)) print_error("attune %s: another header than that of info\n", words);
    assert_true(json_equal(header, wanted));
    json_decref(header);
}

static void check_described(const json_t *value, const char *words) {
    const char *name;
    json_t *member;
    size_t i;
    if (json_is_array(value)) json_array_foreach(value, i, member) check_described(member, words);
    json_object_foreach((json_t *)value, name, member) {
        char quoted[128];
        snprintf(quoted, sizeof quoted, "`%s`", name);
        if (!strstr(manual, quoted)) fail_msg("docs/json.md does not describe %s of attune %s", quoted, words);
        /* Its members are the fields of a problem. */
        if (strcmp(name, "fields") != 0) check_described(member, words);
    }
}

static void test_documents(void **state) {
    (void)state;
    json_t *const info = document_of("info"), *const wanted = json_object_get(info, "header");
    static const char *const members[] = {"version",   "cpu",          "cpu_description", "cpu_family",
                                          "cpu_model", "cpu_stepping", "machine",         "isa",
                                          "llvm",      "generator",    "threads",         "date"};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++) assert_non_null(json_object_get(wanted, members[i]));
    assert_int_equal(json_object_size(wanted), sizeof members / sizeof *members);
    for (size_t i = 0; i < COMMANDS; i++) {
        if (strstr(commands[i], "--probe-machine") && !at_target_runs_here(at_target_find("avx2"))) {
            print_message("the probe is not run: this CPU has no multiply-adds that it could measure\n");
            continue;
        }
        json_t *const document = document_of(commands[i]);
        check_header(document, wanted, commands[i]);
        check_described(document, commands[i]);
        json_decref(document);
    }
    json_decref(info);
}

/* No command is left out above: each that there is takes --json. `mha` prints what `run` does. */
static void test_all_commands(void **state) {
    (void)state;
    int status;
    char *const names = output_of(
        "(\"$ATTUNE\" --help; \"$ATTUNE-lab\" --help) | sed -n 's/^  \\([a-z]*\\)  *[a-z].*/\\1/p' | grep -vx help",
        &status);
    size_t count = 0;
    for (char *rest = NULL, *name = strtok_r(names, "\n", &rest); name; name = strtok_r(NULL, "\n", &rest), count++) {
        char command[128], start[32];
        bool is_tested = strcmp(name, "mha") == 0;
        snprintf(command, sizeof command, "%s %s --help | grep -q -- --json", program_of(name), name);
        free(output_of(command, &status));
        if (status) fail_msg("attune %s has no --json", name);
        snprintf(start, sizeof start, "%s ", name);
        for (size_t i = 0; i < COMMANDS; i++)
            is_tested |= strncmp(commands[i], start, strlen(start)) == 0 || strcmp(commands[i], name) == 0;
        if (!is_tested) fail_msg("attune %s --json is not tested here", name);
    }
    assert_true(count >= 14);
    free(names);
}

/* ---- Failures ---- */

/* Exit status, a message on stderr, and on stdout a whole document or nothing. */
static void test_failures(void **state) {
    (void)state;
    static const struct {
        const char *words;
        int status;
        bool prints;
    } failures[] = {
        {"run --q /nonexistent --k /nonexistent --v /nonexistent", 1, false},
        {"compile head_dim=0,seq_q=4", 1, false},
        {"compile", 2, false},
        {"check head_dim=0,seq_q=4", 1, false},
        {"bench " SMALL " --samples=1 --sizes=seq_q=5", 1, false},
        {"sweep --samples=1 num_heads=2,head_dim=8,seq_kv=4,seq_q=4,dynamic", 1, true},
        {"conform '%s/bad'", 1, true},
        {"conform /nonexistent", 1, true},
        {"ir /nonexistent", 1, false},
        {"ir examples/ir/scale_rows.air --emit=ir", 2, false},
        {"ir examples/ir/scale_rows.air --arg n=3 --arg x=x.npy --out o=-", 2, false},
        {"warm /nonexistent", 1, false},
        {"cache why head_dim=0", 1, false},
        {"cache clear --cache-dir=", 1, false},
        {"explain head_dim=0", 1, false},
        {"tune head_dim=0", 1, false},
    };
    for (size_t i = 0; i < sizeof failures / sizeof *failures; i++) {
        char command[4 * TEMP_DIR_CHARS], words[2 * TEMP_DIR_CHARS];
        int status;
        snprintf(words, sizeof words, failures[i].words, folder);
        snprintf(command, sizeof command, "%s %s --json 2>'%s/stderr'", program_of(words), words, folder);
        char *const text = output_of(command, &status);
        if (status != failures[i].status << 8) print_error("%s: status %d\n", command, status);
        assert_int_equal(status, failures[i].status << 8);
        json_t *const document = json_loads(text, 0, NULL);
        if (!!document != failures[i].prints || (!document && *text)) print_error("%s printed '%s'\n", command, text);
        assert_true(failures[i].prints ? document != NULL : !*text);
        snprintf(command, sizeof command, "wc -c <'%s/stderr'", folder);
        char *const bytes = output_of(command, &status);
        assert_true(atoi(bytes) > 0);
        json_decref(document);
        free(bytes);
        free(text);
    }
}

/* ---- Fields of problems ---- */

static void test_fields(void **state) {
    (void)state;
    json_t *const document = document_of("sweep --samples=1 'num_heads=2,seq_q=4,8,head_dim=8,is_causal=0,1,"
                                         "softmax_scale=0.25,attn_mask_dims=qk,dtype=bf16'");
    json_t *const results = json_object_get(document, "results");
    assert_int_equal(json_array_size(results), 2 * 2);
    for (size_t i = 0; i < json_array_size(results); i++) {
        const json_t *const fields = json_object_get(json_array_get(results, i), "fields");
        assert_true(json_is_integer(json_object_get(fields, "seq_q")));
        assert_int_equal(json_integer_value(json_object_get(fields, "is_causal")), (json_int_t)(i % 2));
        assert_true(json_real_value(json_object_get(fields, "softmax_scale")) == 0.25);
        assert_string_equal(json_string_value(json_object_get(fields, "dtype")), "bf16");
        assert_int_equal(json_integer_value(json_object_get(fields, "seq_kv")), i < 2 ? 4 : 8);
    }
    json_decref(document);
}

/* ---- Texts that are not UTF-8 ---- */

static int build_ones(void *user, const attune_build_request *request, attune_ir_writer *w) {
    (void)user;
    (void)request;
    attune_ir_print(w, "kernel @ones (y: f32[4] out) { parallel for i in 0..4 { y[i] = 1.0 } }");
    return 0;
}

/* Compiles a kernel of the operator that files of loop IR are, for a problem that is not ASCII. */
static void make_entry_beyond_ascii(const char *directory) {
    static const int32_t values[] = {1};
    static const attune_choice choice = {.name = "a", .values = values, .num_values = 1, .usual = 1};
    attune_context_options how = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_operator_options options = ATTUNE_OPERATOR_OPTIONS_INIT;
    attune_context *context = NULL;
    attune_operator *op = NULL;
    attune_kernel *kernel = NULL;
    how.cache_dir = directory;
    options.name = "ir_file";
    options.version = 1;
    options.build = build_ones;
    options.choices = &choice;
    options.num_choices = 1;
    assert_int_equal(attune_context_create(&how, &context), ATTUNE_OK);
    assert_int_equal(attune_operator_add(context, &options, &op), ATTUNE_OK);
    assert_int_equal(attune_operator_compile(op, "caf\xc3\xa9", NULL, &kernel), ATTUNE_OK);
    attune_kernel_release(kernel);
    attune_context_destroy(context);
}

static const char *text_in(const json_t *object, const char *name) {
    const char *const text = json_string_value(json_object_get(object, name));
    return text ? text : "missing";
}

static void test_texts_beyond_ascii(void **state) {
    (void)state;
    static const char *const listings[] = {"cache ls --cache-dir='%s/cafe'", "cache audit --cache-dir='%s/cafe'"};
    char directory[TEMP_DIR_CHARS + 8];
    snprintf(directory, sizeof directory, "%s/cafe", folder);
    make_entry_beyond_ascii(directory);
    for (size_t i = 0; i < 2; i++) {
        json_t *const document = document_of(listings[i]), *const list = json_object_get(document, "list");
        assert_int_equal(json_array_size(list), 1);
        assert_string_equal(text_in(json_array_get(list, 0), "problem"), "ir_file.1 caf\xc3\xa9");
        json_decref(document);
    }
    json_t *const document = document_of("cache why examples/ir/matmul_tiled.air --cache-dir='%s/cafe'");
    json_t *const differences = json_object_get(document, "differences");
    assert_string_equal(text_in(json_object_get(document, "nearest"), "problem"), "ir_file.1 caf\xc3\xa9");
    assert_int_equal(json_array_size(differences), 1);
    assert_string_equal(text_in(json_array_get(differences, 0), "there"), "ir_file.1 caf\xc3\xa9");
    json_decref(document);
}

static int setup(void **state) {
    (void)state;
    enum { ROWS = 3, COLUMNS = 64 };
    static const float x[ROWS * COLUMNS] = {1};
    const int64_t shape[] = {ROWS, COLUMNS};
    char path[TEMP_DIR_CHARS + 8], message[ATTUNE_MESSAGE_BYTES];
    int status;
    temp_dir_make(folder);
    snprintf(path, sizeof path, "%s/x.npy", folder);
    manual = output_of("cat docs/json.md", &status);
    if (status) return status;
    /* A case that is none, for conform. */
    char command[3 * TEMP_DIR_CHARS];
    snprintf(command, sizeof command, "mkdir '%s/bad' && echo '{' >'%s/bad/case.json'", folder, folder);
    free(output_of(command, &status));
    return !npy_write(path, NPY_F4, 2, shape, x, message) || status;
}

static int teardown(void **state) {
    (void)state;
    free(manual);
    temp_dir_remove_all(folder);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_documents), cmocka_unit_test(test_all_commands),       cmocka_unit_test(test_failures),
        cmocka_unit_test(test_fields),    cmocka_unit_test(test_texts_beyond_ascii),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
