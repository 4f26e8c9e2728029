#include "support/every_function/record.h"

#include "support/temp_dir.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

record *now;

void note(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    now->length += (size_t)vsnprintf(now->text + now->length, RECORD_BYTES - now->length, format, arguments);
    va_end(arguments);
    assert_true(now->length < RECORD_BYTES);
}

static uint64_t hash_of(const void *data, size_t bytes) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ ((const unsigned char *)data)[i]) * UINT64_C(0x100000001b3);
    return hash;
}

void note_bytes(const char *what, const void *data, size_t bytes) {
    note("%s: %zu bytes, %016llx\n", what, bytes, (unsigned long long)hash_of(data, bytes));
}

void note_double(const char *what, double value) { note_bytes(what, &value, sizeof value); }

/* Names of functions that were called. */
enum { MOST_CALLED = 160 };
static char called[MOST_CALLED][48];
static size_t num_called;

void remember(const char *call) {
    char name[48];
    const char *const at = strstr(call, "attune_");
    assert_true(at && sscanf(at, "%47[a-z_0-9]", name) == 1);
    for (size_t i = 0; i < num_called; i++)
        if (!strcmp(called[i], name)) return;
    assert_true(num_called < MOST_CALLED);
    strcpy(called[num_called++], name);
}

bool was_called(const char *name) {
    for (size_t i = 0; i < num_called; i++)
        if (!strcmp(called[i], name)) return true;
    return false;
}

void note_kernel(const attune_kernel *kernel) {
    attune_kernel_info info = {.struct_size = sizeof info};
    OK(attune_kernel_get_info(kernel, &info));
    note("key %s, %llu bytes of code\n", info.key, (unsigned long long)info.code_bytes);
}

void note_outputs(const sample_call *call) {
    for (size_t i = 0; i < call->count; i++)
        if (call->tensors[i].is_output) note_bytes(call->tensors[i].name, call->memory[i].data, call->memory[i].bytes);
}

void make_denormals(const sample_call *call) {
    for (size_t i = 0; i < call->count; i++)
        if (call->tensors[i].is_input && call->tensors[i].dtype == ATTUNE_F32 && call->tensors[i].rank > 1)
            for (size_t n = 0; n < call->memory[i].bytes / 16; n++)
                ((uint32_t *)call->memory[i].data)[n] &= 0x807fffffu;
}

void note_emitted(attune_context *context, const attune_problem *problem, attune_stage stage) {
    void *data = NULL;
    size_t bytes = 0;
    OK(attune_emit(context, problem, NULL, stage, &data, &bytes));
    note_bytes("emitted", data, bytes);
    CALL(attune_free(context, data));
}

attune_context *record_context(attune_compile_mode mode) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context = NULL;
    char dir[TEMP_DIR_CHARS + 16];
    snprintf(dir, sizeof dir, "%s/cache", now->dir);
    options.cache_dir = dir;
    options.compile_mode = mode;
    options.max_workers = 2;
    OK(attune_context_create(&options, &context));
    return context;
}

void record_run(record *r, environment where, void (*run)(void)) {
    char dir[TEMP_DIR_CHARS];
    temp_dir_make(dir);
    *r = (record){.where = where, .dir = dir, .text = malloc(RECORD_BYTES)};
    assert_non_null(r->text);
    now = r;
    run();
    temp_dir_remove_all(dir);
}

void assert_same_record(const record *a, const record *b) {
    size_t line = 0;
    for (size_t i = 0; i < a->length || i < b->length; i++) {
        if (a->text[i] != b->text[i])
            fail_msg("under %s: %.*s\nand by default: %.*s", environment_names[b->where],
                     (int)strcspn(b->text + line, "\n"), b->text + line, (int)strcspn(a->text + line, "\n"),
                     a->text + line);
        if (a->text[i] == '\n') line = i + 1;
    }
}

void compare_environments(void (*run)(void)) {
    record usual, other;
    record_run(&usual, ENV_DEFAULT, run);
    for (environment where = ENV_DOWNWARD; where < NUM_ENVIRONMENTS; where++) {
        record_run(&other, where, run);
        assert_same_record(&usual, &other);
        free(other.text);
    }
    free(usual.text);
}
