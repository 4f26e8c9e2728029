/* From a caller's problem to its place in the database, a search there, a winner for a miss, and files of results. */
#include "tune/tuning.h"

#include "base/fpenv.h"
#include "engine/own_operator.h"
#include "generator_id.h"
#include "host/foreign.h"
#include "problem/key_words.h"
#include "schedule/schedule.h"
#include "tune/search.h"

#define XXH_INLINE_ALL
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* ---- Places ---- */

enum { TEXT = MHA_PROBLEM_TEXT };

/* The words of a key in which problems of one kind may differ. */
static bool is_length(const mha_key_word *word) {
    static const char *const names[] = {
        "seq_q", "seq_kv", "max_seq_q", "max_seq_kv", "seq_new", "heads_per_kv_head", "num_heads", "few_rows"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (word->kind == MHA_KEY_FIELD && !strcmp(word->name, names[i])) return true;
    return false;
}

/* The key without its lengths. Of a length only two things count: whether there is one, and whether it is known. Where
 * products of few rows are chosen is a difference in kind. */
static __attribute__((noinline)) XXH128_hash_t kind_of(const attune_problem *canonical) {
    mha_key_word words[MHA_KEY_WORDS];
    int64_t values[MHA_KEY_WORDS];
    const size_t count = mha_key_words(canonical, words);
    for (size_t i = 0; i < count; i++) values[i] = is_length(&words[i]) && words[i].value > 0 ? 1 : words[i].value;
    return XXH3_128bits(values, count * sizeof *values);
}

static int64_t length_of(int64_t size, int64_t bound) { return size > 0 ? size : bound > 0 ? bound : 1; }

static void hash_into(uint64_t to[2], XXH128_hash_t hash) {
    to[0] = hash.high64;
    to[1] = hash.low64;
}

/* A problem's text without batch and strides, which its key does not hold. On its own, because it takes more stack than
 * all the rest. */
static __attribute__((noinline)) void print_plain(const attune_problem *p, char *text, size_t capacity) {
    attune_problem plain = *p;
    plain.batch = 1;
    const size_t strides = offsetof(attune_problem, num_parts) + sizeof plain.num_parts;
    memset((char *)&plain + strides, 0, offsetof(attune_problem, embed_dim) - strides);
    memset(plain.x_strides, 0, offsetof(attune_problem, has_softmax_scale) - offsetof(attune_problem, x_strides));
    if (mha_make_canonical(&plain, NULL))
        *text = '\0';
    else
        mha_canonical_print(&plain, text, capacity);
}

static void place_attention(const attune_problem *p, char *text, size_t capacity, tune_place *place) {
    uint8_t key[MHA_KEY_BYTES];
    const size_t bytes = mha_key(p, key);
    print_plain(p, text, capacity);
    hash_into(place->key, XXH3_128bits(key, bytes));
    hash_into(place->kind, kind_of(p));
    place->queries = length_of(p->seq_q, p->max_seq_q);
    place->keys = length_of(p->seq_kv, p->max_seq_kv);
    place->heads_per_kv_head = p->num_heads / p->num_kv_heads;
}

/* Each problem of a user's operator is a separate kind, as attune cannot tell which problems are similar. */
static void place_own(at_operation o, char *text, size_t capacity, tune_place *place) {
    uint8_t bytes[AT_KEY_TEXT + AT_OPERATION_KEY_BYTES] = {0};
    strncpy((char *)bytes, o.op->name, AT_KEY_TEXT);
    const size_t size = AT_KEY_TEXT + o.op->key(o, bytes + AT_KEY_TEXT);
    o.op->print(o, text, capacity);
    hash_into(place->key, XXH3_128bits(bytes, size));
    memcpy(place->kind, place->key, sizeof place->kind);
    place->queries = place->keys = place->heads_per_kv_head = 1;
}

void at_tuning_place(const attune_context *context, at_operation operation, char *text, size_t capacity,
                     tune_place *place) {
    *place = (tune_place){.problem = text,
                          .isa = context->target->name,
                          .machine = context->machine_class.name,
                          .cpu = at_cpu_description(),
                          .threads = context->team.max_workers};
    if (operation.op == &at_attention)
        place_attention(operation.problem, text, capacity, place);
    else
        place_own(operation, text, capacity, place);
}

/* ---- The databases of a context ---- */

/* They are closed again after each use: a handle must not be carried into a child process. */
static attune_status open_own(attune_context *context, int flags, tune_database **database, at_error *err) {
    at_tuning *t = &context->tuning;
    *database = NULL;
    if (!*t->own.path)
        return at_fail(err, ATTUNE_UNSUPPORTED,
                       "tuning results are kept with cached kernels, and the disk cache is off");
    if (flags & TUNE_CREATE && !at_disk_cache_refresh(&context->disk, true, err)) return ATTUNE_IO_ERROR;
    at_foreign_enter(AT_FOREIGN_DATABASE, err);
    const attune_status status = tune_database_open(t->own.path, flags, t->allocator, database, err);
    if (!*database) at_foreign_leave(AT_FOREIGN_DATABASE);
    return status;
}

static void close_own(tune_database *database) {
    tune_database_close(database);
    if (database) at_foreign_leave(AT_FOREIGN_DATABASE);
}

/* ---- Finding ---- */

typedef struct lookup {
    const attune_context *context;
    at_operation wanted;
    tune_place place;
    mha_schedule *schedule;
    bool found;
    at_error complaints[2]; /* of the two files, at most one each */
    int num_complaints;
} lookup;

/* One that cannot be read or is not legal any more is passed over. */
static bool parse_legal(const lookup *l, const char *text, at_operation o, mha_schedule *schedule) {
    *schedule = (mha_schedule){0};
    return !o.op->schedule_parse(o, text, schedule, NULL) &&
           !o.op->schedule_check(o, schedule, l->context->target, NULL);
}

/* The winner of there, here: what attune would choose there it chooses anew. */
static bool move_here(const lookup *l, const attune_problem *there, mha_schedule *schedule) {
    const attune_problem *const here = l->wanted.problem;
    const at_description *const machine = &l->context->machine_class.description;
    mha_schedule_leave_usual(there, l->context->target, machine, schedule);
    if (mha_schedule_check(here, schedule, l->context->target, NULL)) return false;
    mha_schedule_settle(here, l->context->target, machine, schedule);
    return true;
}

static int take(lookup *l, const mha_schedule *schedule) {
    *l->schedule = *schedule;
    l->found = true;
    return 1;
}

static int take_same(void *user, const tune_winner *winner) {
    lookup *l = user;
    mha_schedule schedule;
    return parse_legal(l, winner->schedule, l->wanted, &schedule) ? take(l, &schedule) : 0;
}

mha_machine tune_machine_of(const attune_context *context) {
    return (mha_machine){context->target, &context->machine_class.description};
}

/* The model's cycles over those of the schedule that the rules choose. */
static double modelled_ratio(const lookup *l, const attune_problem *p, const mha_schedule *schedule) {
    const mha_machine machine = tune_machine_of(l->context);
    mha_schedule usual;
    mha_choose(mha_read(p), machine.target, machine.description, &usual);
    return mha_cost(p, &machine, schedule) / mha_cost(p, &machine, &usual);
}

/* The model's error is assumed to be the same for both problems. So the measured ratio of the winner's time to the time
 * before changes from there to here as the model's ratio does. The result must be less than 1. */
static int take_near(void *user, const tune_winner *winner) {
    lookup *l = user;
    attune_problem there = ATTUNE_PROBLEM_INIT;
    mha_schedule schedule;
    if (l->wanted.op != &at_attention || mha_problem_parse(winner->problem, &there, NULL) ||
        mha_make_canonical(&there, NULL) || !parse_legal(l, winner->schedule, at_attention_of(&there), &schedule))
        return 0;
    const double ratio_there = modelled_ratio(l, &there, &schedule);
    if (!move_here(l, &there, &schedule)) return 0;
    const double change = modelled_ratio(l, l->wanted.problem, &schedule) / ratio_there;
    return winner->ratio * change < 1 ? take(l, &schedule) : 0;
}

typedef attune_status step_fn(lookup *l, tune_database *database, at_error *err);

static attune_status find_same(lookup *l, tune_database *database, at_error *err) {
    return tune_database_same(database, &l->place, take_same, l, err);
}

/* A length half as long again, or a third shorter, is near. */
static attune_status find_near(lookup *l, tune_database *database, at_error *err) {
    return tune_database_near(database, &l->place, 1.5, take_near, l, err);
}

/* A file that something is wrong with is left alone from then on. */
static void give_up(lookup *l, at_tuning_file *file, const at_error *err) {
    file->is_absent = true;
    l->complaints[l->num_complaints++] = *err;
}

static tune_database *open_to_find(lookup *l, at_tuning_file *file, int flags) {
    at_error err = {0};
    tune_database *database = NULL;
    if (!*file->path || file->is_absent) return NULL;
    if (tune_database_open(file->path, flags, l->context->tuning.allocator, &database, &err)) give_up(l, file, &err);
    file->is_absent = !database;
    return database;
}

static void try_step(lookup *l, step_fn *step, at_tuning_file *file, tune_database *database) {
    at_error err = {0};
    if (!l->found && !file->is_absent && database && step(l, database, &err)) give_up(l, file, &err);
}

/* Called with the mutex. */
static void find(lookup *l, at_tuning *t) {
    char text[TEXT];
    tune_database *const own = open_to_find(l, &t->own, 0);
    tune_database *const base = open_to_find(l, &t->base, TUNE_BASE);
    if (own || base) {
        at_tuning_place(l->context, l->wanted, text, sizeof text, &l->place);
        try_step(l, find_same, &t->own, own);
        try_step(l, find_same, &t->base, base);
        try_step(l, find_near, &t->own, own);
        try_step(l, find_near, &t->base, base);
    }
    tune_database_close(own);
    tune_database_close(base);
}

/* SQLite is entered before the mutex is taken, as fork() wants it, and complaints come after both: the log function
 * may do anything. */
bool at_tuning_find(attune_context *context, at_operation operation, mha_schedule *schedule) {
    at_tuning *t = &context->tuning;
    lookup l = {.context = context, .wanted = operation, .schedule = schedule};
    if (operation.op == &at_written_ir) return false;
    if (at_foreign_enter(AT_FOREIGN_DATABASE, NULL)) return false;
    pthread_mutex_lock(&t->mutex);
    find(&l, t);
    pthread_mutex_unlock(&t->mutex);
    at_foreign_leave(AT_FOREIGN_DATABASE);
    for (int i = 0; i < l.num_complaints; i++)
        at_log_printf(&context->log, ATTUNE_LOG_WARNING, "tuning results are not used: %s", l.complaints[i].message);
    return l.found;
}

/* ---- Tuning ---- */

/* Misses may ask again. */
static void is_there(at_tuning *t) {
    pthread_mutex_lock(&t->mutex);
    t->own.is_absent = false;
    pthread_mutex_unlock(&t->mutex);
}

static attune_status keep(attune_context *context, at_operation operation, const tune_search *s, at_error *err) {
    const size_t count = s->num_trials;
    char problem[TEXT], (*texts)[AT_SCHEDULE_TEXT] = at_alloc(&context->allocator, (count + 1) * sizeof *texts);
    tune_timing *timings = at_alloc(&context->allocator, (count + 1) * sizeof *timings);
    tune_place place;
    ptrdiff_t winner = -1;
    attune_status status = texts && timings ? ATTUNE_OK : at_fail_memory(err, count * sizeof *texts);
    for (size_t i = 0; !status && i < count; i++) {
        const tune_trial *trial = &s->trials[i];
        operation.op->schedule_print(operation, &trial->schedule, texts[i], sizeof texts[i]);
        timings[i] = (tune_timing){texts[i], trial->seconds, trial->ratio, trial->pairs};
        if (!s->result->is_faster || !mha_schedule_same(&trial->schedule, &s->winner)) continue;
        winner = (ptrdiff_t)i;
        timings[i].ratio = tune_search_ratio_to_usual(s);
    }
    at_tuning_place(context, operation, problem, sizeof problem, &place);
    tune_database *database = NULL;
    if (!status) status = open_own(context, TUNE_CREATE, &database, err);
    if (!status) status = tune_database_add(database, &place, ATTUNE_GENERATOR_ID, timings, count, winner, err);
    close_own(database);
    if (!status) is_there(&context->tuning);
    at_free(&context->allocator, timings);
    at_free(&context->allocator, texts);
    return status;
}

static const attune_tune_options usual = ATTUNE_TUNE_OPTIONS_INIT;
static const at_struct tune_options = {"attune_tune_options", "start from ATTUNE_TUNE_OPTIONS_INIT",
                                       sizeof(attune_tune_options), &usual, 32};

attune_status attune_tune_options_init(attune_tune_options *options, size_t struct_size) {
    at_error err = {0};
    at_struct_init(&tune_options, options, struct_size, &err);
    return at_report(&err);
}

static attune_status check_options(const attune_tune_options *options, at_error *err) {
    if (!(options->budget_seconds >= 0.05 && options->budget_seconds <= 1e6))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "budget_seconds is %g; it must be from 0.05 to 1000000",
                       options->budget_seconds);
    return ATTUNE_OK;
}

/* With how many threads the cached kernel won, if it is known to have won. */
typedef struct incumbent {
    at_operation operation;
    bool is_cached;
    mha_schedule schedule;
    uint32_t threads; /* 0: not known */
} incumbent;

static int recognise(void *user, const tune_winner *winner) {
    incumbent *i = user;
    mha_schedule schedule = {0};
    if (i->operation.op->schedule_parse(i->operation, winner->schedule, &schedule, NULL) ||
        !mha_schedule_same(&schedule, &i->schedule))
        return 0;
    i->threads = winner->threads;
    return 1;
}

/* If results cannot be kept, the caller should know before the search. */
static attune_status look_ahead(attune_context *context, at_operation operation, incumbent *cached, at_error *err) {
    char text[TEXT];
    tune_place place;
    tune_database *database;
    cached->is_cached = at_kernel_on_disk(context, operation, &cached->schedule);
    attune_status status = open_own(context, TUNE_CREATE, &database, err);
    if (!status) status = tune_database_can_write(database, err);
    at_tuning_place(context, operation, text, sizeof text, &place);
    if (!status && cached->is_cached) status = tune_database_same(database, &place, recognise, cached, err);
    close_own(database);
    if (!status) is_there(&context->tuning);
    return status;
}

/* There is one cached kernel for all numbers of threads, and it is the one that was tuned last. */
static void put_into_place(attune_context *context, at_operation operation, const mha_schedule *schedule,
                           const incumbent *cached, at_error *err) {
    const bool stays = cached->is_cached && mha_schedule_same(&cached->schedule, schedule);
    if (at_kernel_replace(context, operation, schedule, err) || stays) return;
    if (cached->threads && cached->threads != context->team.max_workers)
        at_log_printf(&context->log, ATTUNE_LOG_WARNING,
                      "the cached kernel, tuned with %u thread%s, is replaced by one tuned with %u", cached->threads,
                      cached->threads == 1 ? "" : "s", context->team.max_workers);
}

/* *searched: the result is there, even if it could not be kept; then the kernel takes its place all the same. */
static attune_status tune(attune_context *context, const tune_task *task, const attune_tune_options *options,
                          mha_schedule *winner, attune_tune_result *result, bool *searched, at_error *err) {
    const at_operation operation = task->operation;
    mha_schedule begin = {0};
    tune_search search;
    incumbent cached = {.operation = operation};
    const bool keeps = *context->tuning.own.path;
    if (keeps && look_ahead(context, operation, &cached, err)) return err->status;
    if (!at_tuning_find(context, operation, &begin))
        operation.op->schedule_choose(operation, context->target, &context->machine_class.description, &begin);
    attune_status status = tune_search_run(&search, context, task, &begin, options, result, err);
    *searched = !status;
    /* Timings from before a failure are kept, too; the caller is told of the failure. */
    at_error failure = {0};
    if (keeps && (!status || search.num_trials)) keep(context, operation, &search, status ? &failure : err);
    if (!status && keeps && result->measured) put_into_place(context, operation, &search.winner, &cached, err);
    *winner = search.winner;
    tune_search_free(&search);
    return err->status;
}

attune_status attune_tune(attune_context *context, const attune_problem *problem, const attune_arguments *arguments,
                          const attune_tune_options *options, attune_tune_result *result) {
    AT_DEFAULT_FPENV;
    attune_tune_options whole = usual;
    at_error err = {0};
    attune_problem canonical;
    attune_tune_result full = {.struct_size = sizeof full};
    mha_schedule winner;
    if (!context || !problem || !arguments || !result) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_tune was given NULL");
        return at_report(&err);
    }
    bool searched = false;
    if ((!options || !at_copy_in(&tune_options, options, &whole, &err)) && !check_options(&whole, &err) &&
        !mha_canonicalize(problem, &canonical, &err))
        tune(context, &(tune_task){at_attention_of(&canonical), .arguments = arguments}, &whole, &winner, &full,
             &searched, &err);
    if (searched) mha_schedule_print(&winner, full.schedule, sizeof full.schedule);
    at_error misfit = {0};
    if (searched && at_copy_out(result, &full, sizeof full, "attune_tune_result", &misfit) && !err.status) err = misfit;
    return at_report(&err);
}

attune_status attune_operator_tune(attune_operator *op, const char *problem, void *const *buffers,
                                   const int64_t *scalars, const attune_tune_options *options, int32_t *numbers,
                                   attune_tune_result *result) {
    AT_DEFAULT_FPENV;
    attune_tune_options whole = usual;
    at_error err = {0};
    attune_tune_result full = {.struct_size = sizeof full};
    mha_schedule winner;
    if (!op || !problem || !result) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_operator_tune was given NULL");
        return at_report(&err);
    }
    const tune_task task = {at_own_operation(&op->own, problem), .buffers = buffers, .scalars = scalars};
    bool searched = false;
    if ((!options || !at_copy_in(&tune_options, options, &whole, &err)) && !check_options(&whole, &err) &&
        !at_own_check_problem(&op->own, problem, &err))
        tune(op->context, &task, &whole, &winner, &full, &searched, &err);
    if (searched && numbers) memcpy(numbers, at_own_numbers(&winner), op->own.num_choices * sizeof *numbers);
    at_error misfit = {0};
    if (searched && at_copy_out(result, &full, sizeof full, "attune_tune_result", &misfit) && !err.status) err = misfit;
    return at_report(&err);
}

/* ---- Files of results ---- */

attune_status attune_tuning_export(attune_context *context, const char *path) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    if (!context || !path) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_tuning_export was given NULL");
        return at_report(&err);
    }
    tune_database *database;
    const attune_status status = open_own(context, 0, &database, &err);
    if (!status && !database)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "nothing has been tuned yet: there is no %s", context->tuning.own.path);
    if (database) tune_database_export(database, path, &err);
    close_own(database);
    return at_report(&err);
}

attune_status attune_tuning_import(attune_context *context, const char *path, uint64_t *taken, uint64_t *of_here) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    uint64_t all = 0, here = 0;
    if (!context || !path) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_tuning_import was given NULL");
        return at_report(&err);
    }
    tune_database *database;
    if (!open_own(context, TUNE_CREATE, &database, &err))
        tune_database_import(database, path, context->target->name, context->machine_class.name, &all, &here, &err);
    close_own(database);
    if (!err.status) is_there(&context->tuning);
    if (taken) *taken = all;
    if (of_here) *of_here = here;
    return at_report(&err);
}
