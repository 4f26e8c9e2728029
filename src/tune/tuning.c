#include "tune/search.h"

#include "generator_id.h"
#include "tune/tuning.h"

#define XXH_INLINE_ALL
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

void at_tuning_init(at_tuning *t, const char *cache_dir, const attune_allocator *allocator) {
    static const char name[] = "/tuning.db";
    t->allocator = allocator;
    t->is_absent = false;
    pthread_mutex_init(&t->mutex, NULL);
    /* SQLite is told to follow no links, and means those on the way to the directory as well. */
    if (!*cache_dir || !realpath(cache_dir, t->path) || strlen(t->path) + sizeof name > sizeof t->path)
        t->path[0] = '\0';
    else
        strcat(t->path, name);
}

void at_tuning_free(at_tuning *t) { pthread_mutex_destroy(&t->mutex); }

/* ---- Places ---- */

enum { TEXT = 2048 };

/* A problem's text without what its key does not hold: batch, and strides. */
void at_tuning_place(const attune_context *context, const attune_problem *canonical, char *text, size_t capacity,
                     tune_place *place) {
    uint8_t key[MHA_KEY_BYTES];
    const size_t bytes = mha_key(canonical, key);
    const XXH128_hash_t hash = XXH3_128bits(key, bytes);
    attune_problem plain = *canonical;
    plain.batch = 1;
    const size_t strides = offsetof(attune_problem, num_parts) + sizeof plain.num_parts;
    memset((char *)&plain + strides, 0, offsetof(attune_problem, embed_dim) - strides);
    memset(plain.x_strides, 0, sizeof plain - offsetof(attune_problem, x_strides));
    mha_problem_print(&plain, text, capacity);
    *place = (tune_place){.problem = text,
                          .key = {hash.high64, hash.low64},
                          .isa = context->target->name,
                          .cpu = at_cpu_name(),
                          .threads = context->max_workers};
}

/* ---- The database of a context ---- */

/* It is closed again after each use: a handle must not be carried into a child process. */
static attune_status open_database(attune_context *context, int flags, tune_database **database, at_error *err) {
    at_tuning *t = &context->tuning;
    *database = NULL;
    if (!*t->path)
        return at_fail(err, ATTUNE_UNSUPPORTED,
                       "tuning results are kept beside cached kernels, and the disk cache is off");
    return tune_database_open(t->path, flags, t->allocator, database, err);
}

/* ---- Finding ---- */

/* Whether what was found for one problem says something about the other: they differ in lengths and heads only. */
static bool is_alike(const attune_problem *a, const attune_problem *b) {
    return a->op == b->op && a->dtype == b->dtype && a->k_dtype == b->k_dtype && a->v_dtype == b->v_dtype &&
           a->w_dtype == b->w_dtype && a->head_dim == b->head_dim && a->head_dim_v == b->head_dim_v &&
           a->is_causal == b->is_causal && a->page_size == b->page_size && a->embed_dim == b->embed_dim &&
           a->low_rank == b->low_rank && a->reproducible == b->reproducible &&
           a->softmax_precision == b->softmax_precision && !a->attn_mask_dims[3] == !b->attn_mask_dims[3] &&
           !a->attn_bias_dims[3] == !b->attn_bias_dims[3];
}

static double log_ratio(int64_t x, int64_t y) {
    if (x < 0 || y < 0) return x == y ? 0 : INFINITY;
    return fabs(log((double)x / (double)y));
}

typedef struct neighbour_search {
    const attune_context *context;
    const attune_problem *wanted;
    double distance;
    attune_schedule *schedule;
    bool found;
} neighbour_search;

static int consider(void *user, const tune_winner *winner) {
    neighbour_search *n = user;
    attune_problem problem = ATTUNE_PROBLEM_INIT, canonical;
    attune_schedule schedule = ATTUNE_SCHEDULE_INIT;
    const attune_problem *p = n->wanted;
    if (winner->threads != n->context->max_workers || mha_problem_parse(winner->problem, &problem, NULL) ||
        mha_canonicalize(&problem, &canonical, NULL) || !is_alike(p, &canonical))
        return 0;
    const double distance = log_ratio(p->seq_q, canonical.seq_q) + log_ratio(p->seq_kv, canonical.seq_kv) +
                            log_ratio(p->num_heads / p->num_kv_heads, canonical.num_heads / canonical.num_kv_heads);
    if (distance >= n->distance || mha_schedule_parse(winner->schedule, &schedule, NULL) ||
        mha_schedule_check(p, &schedule, n->context->target, NULL))
        return 0;
    n->distance = distance;
    *n->schedule = schedule;
    n->found = true;
    return 0;
}

static attune_status find(attune_context *context, tune_database *database, const attune_problem *canonical,
                          attune_schedule *schedule, bool *found, at_error *err) {
    char text[TEXT], best[512];
    tune_place place;
    at_tuning_place(context, canonical, text, sizeof text, &place);
    attune_status status = tune_database_best(database, &place, best, sizeof best, err);
    if (status) return status;
    attune_schedule parsed = ATTUNE_SCHEDULE_INIT;
    *found = *best && !mha_schedule_parse(best, &parsed, NULL) &&
             !mha_schedule_check(canonical, &parsed, context->target, NULL);
    if (*found) {
        *schedule = parsed;
        return ATTUNE_OK;
    }
    /* A length half as long again, or a third shorter, is near. */
    neighbour_search n = {context, canonical, log(1.5) + 1e-9, schedule, false};
    status = tune_database_visit(database, place.isa, place.cpu, consider, &n, err);
    *found = n.found;
    return status;
}

bool at_tuning_find(attune_context *context, const attune_problem *canonical, attune_schedule *schedule) {
    at_tuning *t = &context->tuning;
    at_error err = {0};
    bool found = false;
    if (!*t->path) return false;
    pthread_mutex_lock(&t->mutex);
    if (!t->is_absent) {
        tune_database *database;
        attune_status status = open_database(context, 0, &database, &err);
        t->is_absent = !database;
        if (database) status = find(context, database, canonical, schedule, &found, &err);
        if (status) t->is_absent = true;
        tune_database_close(database);
        if (status) at_log_printf(&context->log, ATTUNE_LOG_WARNING, "tuning results are not used: %s", err.message);
    }
    pthread_mutex_unlock(&t->mutex);
    return found;
}

/* ---- Tuning ---- */

/* Misses may ask again. */
static void is_there(at_tuning *t) {
    pthread_mutex_lock(&t->mutex);
    t->is_absent = false;
    pthread_mutex_unlock(&t->mutex);
}

static attune_status keep(attune_context *context, const attune_problem *canonical, const tune_search *s,
                          at_error *err) {
    at_tuning *t = &context->tuning;
    const size_t count = s->num_trials;
    char problem[TEXT], (*texts)[512] = at_alloc(&context->allocator, (count + 1) * sizeof *texts);
    tune_timing *timings = at_alloc(&context->allocator, (count + 1) * sizeof *timings);
    tune_place place;
    ptrdiff_t winner = -1;
    attune_status status = texts && timings ? ATTUNE_OK : at_fail_memory(err, count * sizeof *texts);
    for (size_t i = 0; !status && i < count; i++) {
        const tune_trial *trial = &s->trials[i];
        mha_schedule_print(&trial->schedule, texts[i], sizeof texts[i]);
        timings[i] = (tune_timing){texts[i], trial->seconds, trial->ratio, trial->pairs};
        if (s->result->is_faster && !memcmp(&trial->schedule, &s->result->schedule, AT_SCHEDULE_BYTES))
            winner = (ptrdiff_t)i;
    }
    at_tuning_place(context, canonical, problem, sizeof problem, &place);
    tune_database *database = NULL;
    if (!status) status = open_database(context, TUNE_CREATE, &database, err);
    if (!status) status = tune_database_add(database, &place, ATTUNE_GENERATOR_ID, timings, count, winner, err);
    tune_database_close(database);
    if (!status) is_there(t);
    at_free(&context->allocator, timings);
    at_free(&context->allocator, texts);
    return status;
}

static attune_status check_options(const attune_tune_options *options, at_error *err) {
    if (options->struct_size != sizeof *options)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "attune_tune_options.struct_size is %zu, expected %zu: start from ATTUNE_TUNE_OPTIONS_INIT",
                       options->struct_size, sizeof *options);
    if (!(options->budget_seconds >= 0.05 && options->budget_seconds <= 1e6))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "budget_seconds is %g; it must be from 0.05 to 1000000",
                       options->budget_seconds);
    return ATTUNE_OK;
}

/* What cannot be kept is better known before the search than after it. */
static attune_status open_now(attune_context *context, at_error *err) {
    if (!*context->tuning.path) return ATTUNE_OK;
    tune_database *database;
    const attune_status status = open_database(context, TUNE_CREATE, &database, err);
    tune_database_close(database);
    if (!status) is_there(&context->tuning);
    return status;
}

/* *searched: the result is there, even if it could not be kept. */
static attune_status tune(attune_context *context, const attune_problem *canonical, const attune_arguments *arguments,
                          const attune_tune_options *options, attune_tune_result *result, bool *searched,
                          at_error *err) {
    attune_schedule begin = ATTUNE_SCHEDULE_INIT;
    tune_search search;
    if (open_now(context, err)) return err->status;
    if (!at_tuning_find(context, canonical, &begin)) mha_choose(canonical, context->target, &begin);
    attune_status status = tune_search_run(&search, context, canonical, arguments, &begin, options, result, err);
    *searched = !status;
    if (!status && *context->tuning.path) status = keep(context, canonical, &search, err);
    if (!status && result->is_faster) status = at_kernel_replace(context, canonical, &result->schedule, err);
    tune_search_free(&search);
    return status;
}

attune_status attune_tune(attune_context *context, const attune_problem *problem, const attune_arguments *arguments,
                          const attune_tune_options *options, attune_tune_result *result) {
    static const attune_tune_options usual = ATTUNE_TUNE_OPTIONS_INIT;
    at_error err = {0};
    attune_problem canonical;
    attune_tune_result full = {.struct_size = sizeof full, .schedule = ATTUNE_SCHEDULE_INIT};
    if (!context || !problem || !arguments || !result) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_tune was given NULL");
        return at_report(&err);
    }
    if (!options) options = &usual;
    bool searched = false;
    if (!check_options(options, &err) && !mha_canonicalize(problem, &canonical, &err))
        tune(context, &canonical, arguments, options, &full, &searched, &err);
    at_error misfit = {0};
    if (searched && at_copy_out(result, &full, sizeof full, "attune_tune_result", &misfit) && !err.status) err = misfit;
    return at_report(&err);
}

/* ---- Files of results ---- */

attune_status attune_tuning_export(attune_context *context, const char *path) {
    at_error err = {0};
    if (!context || !path) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_tuning_export was given NULL");
        return at_report(&err);
    }
    tune_database *database;
    const attune_status status = open_database(context, 0, &database, &err);
    if (!status && !database)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "nothing has been tuned yet: there is no %s", context->tuning.path);
    if (database) tune_database_export(database, path, &err);
    tune_database_close(database);
    return at_report(&err);
}

attune_status attune_tuning_import(attune_context *context, const char *path, uint64_t *taken, uint64_t *of_here) {
    at_error err = {0};
    uint64_t all = 0, here = 0;
    if (!context || !path) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_tuning_import was given NULL");
        return at_report(&err);
    }
    tune_database *database;
    if (!open_database(context, TUNE_CREATE, &database, &err))
        tune_database_import(database, path, context->target->name, at_cpu_name(), &all, &here, &err);
    tune_database_close(database);
    if (!err.status) is_there(&context->tuning);
    if (taken) *taken = all;
    if (of_here) *of_here = here;
    return at_report(&err);
}

/* ---- What is expected ---- */

attune_status attune_schedule_predict(attune_context *context, const attune_problem *problem,
                                      const attune_schedule *schedule, attune_schedule *chosen,
                                      attune_prediction *prediction) {
    at_error err = {0};
    attune_problem canonical;
    attune_schedule own = ATTUNE_SCHEDULE_INIT;
    if (!context || !problem || !prediction) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_schedule_predict was given NULL");
        return at_report(&err);
    }
    if (mha_canonicalize(problem, &canonical, &err)) return at_report(&err);
    attune_prediction full = {.struct_size = sizeof full};
    if (schedule) {
        if (mha_schedule_check(&canonical, schedule, context->target, &err)) return at_report(&err);
        own = *schedule;
    } else {
        full.is_tuned = at_tuning_find(context, &canonical, &own);
        if (!full.is_tuned) mha_choose(&canonical, context->target, &own);
    }
    const tune_machine machine = tune_machine_here(context->target);
    const tune_costs costs = tune_model(&canonical, &machine, &own);
    full.scores = costs.scores;
    full.softmax = costs.softmax;
    full.values = costs.values;
    full.tasks = costs.tasks;
    full.products = costs.products;
    full.flops_per_cycle = 4.0 * own.lanes;
    if (chosen) *chosen = own;
    at_copy_out(prediction, &full, sizeof full, "attune_prediction", &err);
    return at_report(&err);
}
