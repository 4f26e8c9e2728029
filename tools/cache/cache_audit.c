/* attune cache audit: a sample of the cache files, compiled anew and compared. */
#include "cache/cache.h"
#include "common/interruption.h"
#include "common/json_output.h"
#include "common/table.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NAME_BYTES = 96, ISA_BYTES = 32 };

/* A context has at most one of each, and a kernel may lie in all of them. */
typedef enum audit_place { IN_DIRECTORY, IN_BASE, IN_PACK } audit_place;

typedef struct audit_name {
    char file[NAME_BYTES];
    audit_place place;
} audit_name;

typedef struct audit {
    const cache_options *options;
    audit_name *names; /* of the files that this build can make; then the first `chosen` are the sample */
    size_t count, capacity, chosen;
    bool is_out_of_memory;

    attune_context *emitter; /* for files of `isa` */
    char isa[ISA_BYTES];
    size_t done, same, damaged; /* damaged files are all named: they need no compiling to differ */
    table *table;
    json_t *list;
} audit;

/* ---- The sample ---- */

static audit_place place_of(const attune_cache_file *file) {
    if (file->pack) return IN_PACK;
    return file->is_base ? IN_BASE : IN_DIRECTORY;
}

static int collect(void *user, const attune_cache_file *file) {
    audit *const a = user;
    if (file->status != ATTUNE_OK || !file->is_usable) return 0;
    if (a->count == a->capacity) {
        const size_t capacity = a->capacity ? 2 * a->capacity : 256;
        audit_name *const grown = realloc(a->names, capacity * sizeof *grown);
        a->is_out_of_memory = !grown;
        if (!grown) return 1;
        a->names = grown;
        a->capacity = capacity;
    }
    audit_name *const name = &a->names[a->count++];
    snprintf(name->file, sizeof name->file, "%s", file->file);
    name->place = place_of(file);
    return 0;
}

static int by_name(const void *x, const void *y) {
    const audit_name *const a = x, *const b = y;
    const int order = strcmp(a->file, b->file);
    return order ? order : (int)a->place - (int)b->place;
}

/* Sorted first, so that a seed means the same everywhere: directories have no order. */
static void choose(audit *a, uint64_t seed) {
    tool_random random = {seed};
    if (a->count) qsort(a->names, a->count, sizeof *a->names, by_name);
    a->chosen = (uint64_t)a->options->sample < a->count ? (size_t)a->options->sample : a->count;
    for (size_t i = 0; i < a->chosen; i++) {
        const size_t j = (size_t)tool_random_range(&random, (int64_t)i, (int64_t)a->count - 1);
        const audit_name name = a->names[i];
        a->names[i] = a->names[j];
        a->names[j] = name;
    }
}

static bool is_chosen(const audit *a, const attune_cache_file *file) {
    for (size_t i = 0; i < a->chosen; i++)
        if (a->names[i].place == place_of(file) && strcmp(a->names[i].file, file->file) == 0) return true;
    return false;
}

/* ---- One file ---- */

/* The last context stays open: most caches hold files of one instruction set only. */
static attune_context *emitter_for(audit *a, const char *isa) {
    if (a->emitter && strcmp(a->isa, isa) == 0) return a->emitter;
    tool_common common = {.target = isa};
    attune_context_destroy(a->emitter);
    a->emitter = tool_open_context(&common, 1, "");
    snprintf(a->isa, sizeof a->isa, "%s", isa);
    return a->emitter;
}

/* "" or how the images differ. */
static void compare(const attune_cache_file *file, const unsigned char *anew, size_t bytes,
                    char text[ATTUNE_MESSAGE_BYTES]) {
    const unsigned char *const there = file->image;
    size_t first = bytes, differing = 0;
    text[0] = '\0';
    if (bytes != file->image_bytes) {
        snprintf(text, ATTUNE_MESSAGE_BYTES, "the image has %zu bytes, compiled anew %zu", file->image_bytes, bytes);
        return;
    }
    for (size_t i = bytes; i-- > 0;) {
        if (there[i] == anew[i]) continue;
        first = i;
        differing++;
    }
    if (differing)
        snprintf(text, ATTUNE_MESSAGE_BYTES, "%zu of the image's %zu bytes differ, the first at %zu", differing, bytes,
                 first);
}

/* From the loop IR that it holds, or else from its problem and schedule. */
static bool compile_anew(attune_context *emitter, const attune_cache_file *file, void **image, size_t *bytes) {
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    if (*file->ir) return attune_ir_emit(emitter, file->ir, ATTUNE_STAGE_IMAGE, image, bytes) == ATTUNE_OK;
    return attune_problem_parse(&problem, file->problem) == ATTUNE_OK &&
           attune_emit(emitter, &problem, file->schedule, ATTUNE_STAGE_IMAGE, image, bytes) == ATTUNE_OK;
}

static void check(audit *a, const attune_cache_file *file, char text[ATTUNE_MESSAGE_BYTES]) {
    void *anew = NULL;
    size_t bytes = 0;
    attune_context *const emitter = emitter_for(a, file->isa);
    if (emitter && compile_anew(emitter, file, &anew, &bytes))
        compare(file, anew, bytes, text);
    else
        snprintf(text, ATTUNE_MESSAGE_BYTES, "it cannot be compiled anew: %.480s", attune_last_message());
    attune_free(emitter, anew);
}

static int visit(void *user, const attune_cache_file *file) {
    audit *const a = user;
    const bool is_damaged = file->status != ATTUNE_OK;
    char text[ATTUNE_MESSAGE_BYTES];
    if (interruption_came()) return 1;
    if (is_damaged) {
        snprintf(text, sizeof text, "%s", file->message);
        a->damaged++;
    } else {
        if (!is_chosen(a, file)) return 0;
        check(a, file, text);
        a->done++;
        a->same += !*text;
    }
    tool_progress("%zu of %zu compiled anew", a->done, a->chosen);
    if (a->list)
        json_array_append_new(a->list,
                              json_pack("{s:s, s:o, s:b, s:o, s:s, s:o, s:o}", "file", file->file, "directory",
                                        tool_json_text(file->directory), "same", !*text, "message",
                                        tool_json_text(text), "machine", file->machine, "problem",
                                        tool_json_text(file->problem), "schedule", tool_json_text(file->schedule)));
    if (!*text) return 0;
    table_cell(a->table, "%s", file->file);
    table_cell(a->table, "%s", text);
    table_cell(a->table, "%s", file->problem);
    return 0;
}

/* ---- All ---- */

static int print(audit *a, const attune_machine_info *machine, uint64_t seed) {
    const size_t differing = a->done - a->same;
    if (a->options->json)
        return json_print(machine, 0,
                          json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:O}", "seed", (json_int_t)seed, "kernels",
                                    (json_int_t)a->count, "compiled", (json_int_t)a->done, "same", (json_int_t)a->same,
                                    "different", (json_int_t)differing, "damaged", (json_int_t)a->damaged, "list",
                                    a->list));
    if (differing || a->damaged) {
        table_finish(a->table, stdout);
        a->table = NULL;
    }
    printf("%zu of %zu kernel%s compiled anew: %zu the same, %zu different", a->done, a->count, cache_s(a->count),
           a->same, differing);
    if (a->damaged) printf("; %zu more damaged", a->damaged);
    printf(" (--seed=%llu)\n", (unsigned long long)seed);
    return TOOL_OK;
}

int cache_audit(const cache_options *o, attune_context *context, const attune_machine_info *machine) {
    static const char *const headers[] = {"file", "differs", "problem"};
    const uint64_t seed = o->has_seed ? (uint64_t)o->seed : (uint64_t)time(NULL);
    audit a = {.options = o};
    int code = TOOL_FAILED;
    if (o->json)
        a.list = json_array();
    else
        a.table = table_create("lll", headers);
    if (attune_cache_visit(context, collect, &a) == ATTUNE_OK && !a.is_out_of_memory) {
        choose(&a, seed);
        interruption_catch();
        code = attune_cache_visit(context, visit, &a) == ATTUNE_OK ? TOOL_OK : tool_library_error(NULL);
        tool_end_progress();
    } else if (a.is_out_of_memory) {
        tool_error("out of memory");
    } else {
        tool_library_error(NULL);
    }
    if (code == TOOL_OK) code = print(&a, machine, seed);
    if (code == TOOL_OK && (a.same < a.done || a.damaged)) code = TOOL_FAILED;
    if (code == TOOL_OK && a.done < a.chosen && interruption_came()) {
        tool_error("interrupted: %zu of a sample of %zu were not compiled anew", a.chosen - a.done, a.chosen);
        code = TOOL_FAILED;
    }
    attune_context_destroy(a.emitter);
    table_discard(a.table);
    json_decref(a.list);
    free(a.names);
    return code;
}
