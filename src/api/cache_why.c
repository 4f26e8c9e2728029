/* Why a kernel is not in the disk cache: its key compared with those of the cache files. */
#include "engine/own_operator.h"

#include "base/fpenv.h"
#include "cache/disk_files.h"
#include "problem/key_words.h"
#include "schedule/schedule.h"
#include "target/kernel_abi.h"

#include <stdio.h>
#include <string.h>

/* A cache file of the same problem is nearer than one of any other, whichever machine made it. One of another operator
 * is farther than all others. */
enum { WEIGHT_PROBLEM = 16, WEIGHT_SCHEDULE = 8, WEIGHT_MACHINE = 1, WEIGHT_OPERATOR = WEIGHT_PROBLEM * MHA_KEY_WORDS };
enum { MAX_DIFFERENCES = MHA_KEY_WORDS + 8, VALUE_CHARS = 1024 };

static const char chosen[] = "chosen by attune";

typedef struct why_search {
    const attune_allocator *allocator;
    at_operation operation;
    const at_key *key;
    char file[AT_FILE_CHARS]; /* the problem's, whether it exists or not */
    const char *problem;      /* canonical text */
    const char *schedule;
    at_key_parts parts;
    mha_key_word words[MHA_KEY_WORDS]; /* of attention */
    size_t num_words;

    uint64_t compared, least; /* the weight of the nearest */
    bool is_found, is_told;
    const char *nearest_directory; /* as cache files of this cache have it */
    const char *neighbours[AT_MAX_CLASSES];
    size_t stand_in; /* index in neighbours: the nearest class that has a cache file */
    size_t num_neighbours;
    char nearest[AT_FILE_CHARS];
    int64_t nearest_used_at;

    attune_cache_answer_fn *answer;
    void *user;
} why_search;

/* The differences of one cache file; without an arena only their weight. */
typedef struct difference_list {
    uint64_t weight;
    at_arena *arena;
    attune_cache_difference items[MAX_DIFFERENCES];
    size_t count;
} difference_list;

static void add(difference_list *list, unsigned weight, const char *field, const char *there, const char *here) {
    list->weight += weight;
    if (!list->arena || list->count == MAX_DIFFERENCES) return;
    const attune_cache_difference copy = {at_arena_strndup(list->arena, field, strlen(field)),
                                          at_arena_strndup(list->arena, there, strlen(there)),
                                          at_arena_strndup(list->arena, here, strlen(here))};
    if (!list->arena->failed) list->items[list->count++] = copy;
}

static void compare_text(difference_list *list, const char *field, const char *there, const char *here) {
    if (strcmp(there, here)) add(list, WEIGHT_MACHINE, field, there, here);
}

/* ---- The problem ---- */

static void add_word(difference_list *list, const mha_key_word *there, const mha_key_word *here) {
    char text[3][64];
    mha_writer name = {text[0], sizeof text[0], 0}, a = {text[1], sizeof text[1], 0}, b = {text[2], sizeof text[2], 0};
    mha_key_word_name(here, &name);
    mha_key_word_value(there, &a);
    mha_key_word_value(here, &b);
    add(list, WEIGHT_PROBLEM, text[0], text[1], text[2]);
}

/* A word that only one of them has is not reported: its tensor follows from a field, which differs as well. */
static void compare_words(const why_search *s, const mha_key_word *there, size_t count, difference_list *list) {
    for (size_t i = 0; i < s->num_words; i++) {
        const mha_key_word *const here = &s->words[i];
        for (size_t j = 0; j < count; j++)
            if (there[j].kind == here->kind && !strcmp(there[j].name, here->name) && there[j].value != here->value)
                add_word(list, &there[j], here);
    }
}

/* Reads the cache file's problem from its text: keys of another version of attune may have other words. */
static void compare_attention(const why_search *s, const attune_cache_file *file, difference_list *list) {
    attune_problem problem = ATTUNE_PROBLEM_INIT, canonical;
    mha_key_word words[MHA_KEY_WORDS];
    if (mha_problem_parse(file->problem, &problem, NULL) == ATTUNE_OK &&
        mha_canonicalize(&problem, &canonical, NULL) == ATTUNE_OK)
        compare_words(s, words, mha_key_words(&canonical, words), list);
}

/* The first line in which two texts differ; one that is the beginning of the other has no such line. */
static void compare_lines(const char *there, const char *here, difference_list *list) {
    enum { LINE_CHARS = 160 };
    char lines[2][LINE_CHARS];
    size_t same = 0, line = 0;
    for (; there[same] && there[same] == here[same]; same++)
        if (there[same] == '\n') line = same + 1;
    const char *const texts[2] = {there + line, here + line};
    for (int i = 0; i < 2; i++) {
        const char *const from = texts[i] + strspn(texts[i], " ");
        snprintf(lines[i], sizeof lines[i], "%.*s", (int)strcspn(from, "\n"), from);
    }
    add(list, WEIGHT_PROBLEM, "ir", lines[0], lines[1]);
}

static void compare_problems(const why_search *s, const attune_cache_file *file, const at_key_parts *parts,
                             difference_list *list) {
    const char *const source = s->operation.op->source(s->operation);
    const uint64_t before = list->weight;
    if (parts->problem_bytes == s->parts.problem_bytes &&
        !memcmp(parts->problem, s->parts.problem, parts->problem_bytes))
        return;
    if (s->operation.op == &at_attention) compare_attention(s, file, list);
    if (source && !strcmp(file->problem, s->problem)) compare_lines(file->ir, source, list);
    if (list->weight == before) add(list, WEIGHT_PROBLEM, "problem", file->problem, s->problem);
}

/* ---- The schedule ---- */

/* Writes the items of a list, separated by commas, that the other list lacks. */
static void write_own_items(const char *items, const char *others, mha_writer *w) {
    while (*items) {
        const size_t length = strcspn(items, ",");
        bool is_shared = false;
        for (const char *other = others; *other && !is_shared;) {
            const size_t n = strcspn(other, ",");
            is_shared = n == length && !memcmp(items, other, n);
            other += n + (other[n] == ',');
        }
        if (!is_shared) mha_write(w, "%s%.*s", w->length ? "," : "", (int)length, items);
        items += length + (items[length] == ',');
    }
}

static void compare_schedules(const why_search *s, const attune_cache_file *file, const at_key_parts *parts,
                              difference_list *list) {
    const bool is_given_there = parts->schedule_bytes > 0, is_given_here = s->parts.schedule_bytes > 0;
    char there[VALUE_CHARS] = "", here[VALUE_CHARS] = "";
    mha_writer a = {there, sizeof there, 0}, b = {here, sizeof here, 0};
    if (parts->schedule_bytes == s->parts.schedule_bytes &&
        !memcmp(parts->schedule, s->parts.schedule, parts->schedule_bytes))
        return;
    if (is_given_there && is_given_here) {
        write_own_items(file->schedule, s->schedule, &a);
        write_own_items(s->schedule, file->schedule, &b);
    } else {
        mha_write(&a, "%s", is_given_there ? file->schedule : chosen);
        mha_write(&b, "%s", is_given_here ? s->schedule : chosen);
    }
    add(list, WEIGHT_SCHEDULE, "schedule", there, here);
}

/* ---- A cache file ---- */

static void compare_features(const attune_cache_file *file, difference_list *list) {
    char missing[AT_CPU_FEATURES_TEXT];
    at_image_header header;
    memcpy(&header, file->image, sizeof header);
    const uint32_t lacking = header.required & ~at_cpu_features();
    if (lacking) add(list, WEIGHT_MACHINE, "cpu_features", at_cpu_feature_names(lacking, missing), "not on this CPU");
}

static void compare(const why_search *s, const attune_cache_file *file, difference_list *list) {
    at_key_parts parts;
    char there[16], here[16];
    if (file->status) return; /* the damaged file of this very key */
    if (!at_key_split(file->key, file->key_bytes, &parts)) {
        add(list, WEIGHT_OPERATOR, "key", "of an unknown form", "of this version's");
        return;
    }
    if (strcmp(parts.op, s->parts.op)) {
        add(list, WEIGHT_OPERATOR, "operator", parts.op, s->parts.op);
        return;
    }
    compare_problems(s, file, &parts, list);
    compare_schedules(s, file, &parts, list);
    compare_text(list, "isa", parts.isa, s->parts.isa);
    compare_text(list, "machine", parts.tuning_class, s->parts.tuning_class);
    compare_text(list, "llvm", parts.llvm, s->parts.llvm);
    compare_text(list, "generator", parts.generator, s->parts.generator);
    snprintf(there, sizeof there, "%u", parts.image_version);
    snprintf(here, sizeof here, "%u", s->parts.image_version);
    compare_text(list, "image_version", there, here);
    compare_features(file, list);
}

/* ---- All of them ---- */

/* Among equally near cache files the one used last counts; after that the order of names. */
static bool is_nearer(const why_search *s, uint64_t weight, const attune_cache_file *file) {
    if (weight != s->least) return weight < s->least;
    if (file->used_at != s->nearest_used_at) return file->used_at > s->nearest_used_at;
    return strcmp(file->file, s->nearest) < 0;
}

/* Finds the fallback: this kernel's cache file for another class. */
static void look_for_stand_in(why_search *s, const attune_cache_file *file) {
    if (file->status || !file->is_usable || !at_key_is_near(s->key, file->key, file->key_bytes)) return;
    for (size_t i = 0; i < s->stand_in; i++)
        if (!strcmp(s->neighbours[i], file->machine)) s->stand_in = i;
}

/* First walk: finds the nearest. */
static int weigh(void *user, const attune_cache_file *file) {
    why_search *s = user;
    const bool is_own = !strcmp(file->file, s->file);
    if (file->status && !is_own) return 0;
    difference_list list = {0};
    compare(s, file, &list);
    look_for_stand_in(s, file);
    /* Only a whole cache file, perhaps of the base, is nearer than the problem's own damaged file. */
    const uint64_t weight = file->status ? 1 : 2 * list.weight;
    s->compared++;
    if (s->is_found && !is_nearer(s, weight, file)) return 0;
    s->is_found = true;
    s->least = weight;
    s->nearest_directory = file->directory;
    s->nearest_used_at = file->used_at;
    snprintf(s->nearest, sizeof s->nearest, "%s", file->file);
    return weight == 0;
}

static void answer(const why_search *s, const attune_cache_file *nearest, difference_list *list) {
    char name[AT_NAME_CHARS + 1];
    at_key_name(s->key, name);
    const bool is_cached = nearest && !nearest->status && !list->weight;
    const char *stand_in = is_cached || s->stand_in == s->num_neighbours ? NULL : s->neighbours[s->stand_in];
    const attune_cache_answer full = {.struct_size = sizeof full,
                                      .is_cached = is_cached,
                                      .key = name,
                                      .compared = s->compared,
                                      .nearest = nearest,
                                      .differences = list->items,
                                      .num_differences = list->count,
                                      .stand_in = stand_in};
    s->answer(s->user, &full);
}

/* Second walk: reports that one. */
static int tell(void *user, const attune_cache_file *file) {
    why_search *s = user;
    if (strcmp(file->file, s->nearest) || file->directory != s->nearest_directory) return 0;
    at_arena arena;
    at_arena_init(&arena, s->allocator);
    difference_list list = {.arena = &arena};
    compare(s, file, &list);
    answer(s, file, &list);
    at_arena_free(&arena);
    s->is_told = true;
    return 1;
}

static attune_status search(attune_context *context, const mha_schedule *schedule, why_search *s, at_error *err) {
    const at_operation o = s->operation;
    char problem[MHA_PROBLEM_TEXT], schedule_text[VALUE_CHARS] = "";
    o.op->print(o, problem, sizeof problem);
    if (schedule) o.op->schedule_print(o, schedule, schedule_text, sizeof schedule_text);
    s->problem = problem;
    s->schedule = schedule_text;
    if (o.op == &at_attention) s->num_words = mha_key_words(o.problem, s->words);
    at_file_name(s->key, s->file);
    if (!at_key_split(s->key->bytes, s->key->size, &s->parts))
        return at_fail(err, ATTUNE_INTERNAL, "the key of this problem cannot be taken apart");
    s->num_neighbours = s->stand_in = at_class_neighbours(s->parts.tuning_class, s->neighbours);
    attune_status status = at_disk_cache_visit(&context->disk, weigh, s, err);
    if (!status && s->is_found) status = at_disk_cache_visit(&context->disk, tell, s, err);
    /* There was none, or it was evicted meanwhile. */
    if (!status && !s->is_told) answer(s, NULL, &(difference_list){0});
    return status;
}

static void ask(attune_context *context, at_operation operation, const mha_schedule *schedule,
                attune_cache_answer_fn *answer_fn, void *user, at_error *err) {
    at_key key;
    at_key_make(&key, operation, schedule, &context->machine);
    why_search s = {
        .allocator = &context->allocator, .operation = operation, .key = &key, .answer = answer_fn, .user = user};
    search(context, schedule, &s, err);
}

/* ---- Public ---- */

attune_status attune_cache_why(attune_context *context, const attune_problem *problem, const char *schedule,
                               attune_cache_answer_fn *answer_fn, void *user) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_problem canonical;
    mha_schedule wish;
    if (!context || !problem || !answer_fn) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_cache_why was given NULL");
        return at_report(&err);
    }
    attune_status status = mha_canonicalize(problem, &canonical, &err);
    if (!status) status = at_wish(context, &canonical, schedule, &wish, &err);
    if (!status) ask(context, at_attention_of(&canonical), schedule ? &wish : NULL, answer_fn, user, &err);
    return at_report(&err);
}

attune_status attune_ir_cache_why(attune_context *context, const char *text, attune_cache_answer_fn *answer_fn,
                                  void *user) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    if (!context || !text || !answer_fn) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_ir_cache_why was given NULL");
        return at_report(&err);
    }
    at_string canonical;
    at_written written;
    at_string_init(&canonical, &context->allocator);
    if (!at_written_read(text, &canonical, &written, &err))
        ask(context, at_written_of(&written), NULL, answer_fn, user, &err);
    at_string_free(&canonical);
    return at_report(&err);
}

attune_status attune_operator_cache_why(attune_operator *op, const char *problem, const int32_t *numbers,
                                        attune_cache_answer_fn *answer_fn, void *user) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    mha_schedule schedule;
    if (!op || !problem || !answer_fn) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_operator_cache_why was given NULL");
        return at_report(&err);
    }
    if (!at_operator_schedule(op, problem, numbers, &schedule, &err))
        ask(op->context, at_own_operation(&op->own, problem), numbers ? &schedule : NULL, answer_fn, user, &err);
    return at_report(&err);
}
