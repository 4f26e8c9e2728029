/* Checks the options and makes the parts of a context in the order in which they need each other; what can fail comes
 * first. */
#define _GNU_SOURCE
#include "engine/create.h"

#include "engine/fork.h"
#include "engine/own_operator.h"
#include "engine/probe_file.h"
#include "engine/tier0.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_MEMORY_BYTES (UINT64_C(256) << 20)
#define DEFAULT_DISK_BYTES   (UINT64_C(1) << 30)

/* ---- Creating ---- */

const at_struct at_context_options = {"attune_context_options", "start from ATTUNE_CONTEXT_OPTIONS_INIT",
                                      sizeof(attune_context_options), NULL, 136};

static attune_status check_options(const attune_context_options *options, at_error *err) {
    enum { MOST_NICENESS = 19 };
    if (options->allocator && (!options->allocator->alloc || !options->allocator->free))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the allocator lacks its %s function",
                       options->allocator->alloc ? "free" : "alloc");
    if (options->isa && options->target)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "isa (\"%.40s\") and target (\"%.40s\") exclude each other",
                       options->isa, options->target);
    if (options->max_workers > AT_MOST_WORKERS)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "max_workers is %u; it may be at most %d", options->max_workers,
                       AT_MOST_WORKERS);
    if (options->strict < -1 || options->strict > 1)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "strict is %d; it must be 1, 0 or -1", options->strict);
    if (options->background_niceness > MOST_NICENESS)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "background_niceness is %u; it may be at most %d",
                       options->background_niceness, MOST_NICENESS);
    return ATTUNE_OK;
}

static void list_isas(attune_context *context) {
    size_t used = 0;
    for (const at_target *target = at_targets(); target->name; target++) {
        if (!at_target_runs_here(target)) continue;
        const int n = snprintf(context->isas + used, sizeof context->isas - used, used ? " %s" : "%s", target->name);
        if (n < 0 || (size_t)n >= sizeof context->isas - used) return;
        used += (size_t)n;
    }
}

static attune_status select_target(const attune_context_options *options, const at_target **target, at_error *err) {
    if (options->target) return at_target_named(options->target, target, err);
    return at_target_select(options->isa, target, err);
}

/* The default deadline of plans. */
static attune_status settle_deadline(attune_context *context, at_error *err) {
    const char *named = getenv("ATTUNE_DEADLINE_US");
    context->deadline_us = -1;
    if (!named || !*named) return ATTUNE_OK;
    char *end;
    errno = 0;
    const unsigned long long value = strtoull(named, &end, 10);
    if (*end || !isdigit((unsigned char)*named) || errno || value > AT_MOST_DEADLINE_US)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "ATTUNE_DEADLINE_US is \"%.64s\"; it must be microseconds, from 0 to %d", named,
                       AT_MOST_DEADLINE_US);
    context->deadline_us = (int64_t)value;
    return ATTUNE_OK;
}

static attune_status settle_checks(attune_context *context, int check, at_error *err) {
    const char *const named = getenv("ATTUNE_CHECK");
    if (check != 0 && check != 1) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "check is %d; it must be 0 or 1", check);
    context->checks = check;
    if (check || !named || !*named || !strcmp(named, "0")) return ATTUNE_OK;
    context->checks = !strcmp(named, "1");
    if (context->checks) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "ATTUNE_CHECK is '%.40s'; it must be 1 or 0", named);
}

static attune_status fill_context(attune_context *context, const attune_context_options *options,
                                  const at_context_hooks *hooks, at_error *err) {
    if (options->machine_code_only < 0 || options->machine_code_only > 2)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "machine_code_only is %d; it must be 0, 1 or 2",
                       options->machine_code_only);
    context->io = hooks && hooks->io ? hooks->io : at_default_io();
    context->allow_interpreter = options->allow_interpreter;
    context->machine_code_only = options->machine_code_only;
    context->never_by_vm = options->machine_code_only > 1;
    context->has_tier0 = at_tier0_is_on();
    context->find_tuned = hooks ? hooks->find_tuned : NULL;
    context->team = (at_team){.pool = options->runner ? NULL : &context->pool, .allocator = &context->allocator};
    attune_status status = at_log_init(&context->log, options, context->io, err);
    if (!status && options->runner) status = at_runner_take(options->runner, &context->team.runner, err);
    if (!status) status = settle_checks(context, options->check, err);
    if (!status) status = select_target(options, &context->target, err);
    if (!status) status = settle_deadline(context, err);
    if (status) return status;
    status = at_machine_choose(options->machine, context->target, &context->machine_class, err);
    if (status) return status;
    list_isas(context);
    status = at_codegen_init(&context->codegen, options, hooks ? hooks->compile : NULL,
                             hooks ? hooks->compile_user : NULL, &context->allocator, context->io, &context->log, err);
    if (status) return status;
    status = at_memory_cache_init(&context->memory, &context->allocator,
                                  options->memory_cache_bytes ? options->memory_cache_bytes : DEFAULT_MEMORY_BYTES,
                                  at_kernel_destroy, at_kernel_evicted, err);
    if (status) {
        at_codegen_free(&context->codegen);
        return status;
    }
    at_symbols_init(&context->symbols, &context->allocator);
    if (context->team.pool)
        context->team.max_workers = options->max_workers ? options->max_workers : at_cpus_allowed();
    else
        context->team.max_workers = context->team.runner.max_workers;
    at_pool_init(&context->pool, &context->allocator, context->team.pool ? context->team.max_workers : 1);
    at_spares_init(&context->spares, &context->allocator);
    at_bundles_init(&context->bundles, &context->allocator);
    at_background_init(&context->background, context->codegen.uses_worker ? 0 : options->background_niceness);
    at_disk_cache_init(&context->disk, options->cache_dir,
                       options->disk_cache_bytes ? options->disk_cache_bytes : DEFAULT_DISK_BYTES, &context->allocator,
                       context->io, &context->log);
    at_disk_cache_open_base(&context->disk, options->cache_base);
    at_disk_cache_open_pack(&context->disk, options->cache_pack, options->cache_keys);
    at_probe_recall(&context->disk, context->target, &context->machine_class);
    at_machine_init(&context->machine, context->target, context->machine_class.name);
    context->team.l3_cores = context->pool.l3_cores = (uint32_t)context->machine_class.description.l3_cores;
    at_record_init(&context->record, options, context->io, &context->log);
    at_tuning_init(&context->tuning, &context->disk, &context->allocator);
    at_fork_add(context);
    return ATTUNE_OK;
}

attune_status at_context_create(const attune_context_options *options, const at_context_hooks *hooks,
                                attune_context **out) {
    attune_context_options whole = ATTUNE_CONTEXT_OPTIONS_INIT;
    at_error err = {0};
    if (!out) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "the pointer to the context is NULL");
        return at_report(&err);
    }
    *out = NULL;
    if (options && at_copy_in(&at_context_options, options, &whole, &err)) return at_report(&err);
    options = &whole;
    if (check_options(options, &err)) return at_report(&err);
    const attune_allocator *allocator = options->allocator ? options->allocator : at_default_allocator();
    attune_context *context = at_alloc_aligned(allocator, sizeof *context, 64);
    if (!context) {
        at_fail_memory(&err, sizeof *context);
        return at_report(&err);
    }
    memset(context, 0, sizeof *context);
    context->allocator = *allocator;
    if (fill_context(context, options, hooks, &err)) {
        at_free(allocator, context);
        return at_report(&err);
    }
    *out = context;
    return ATTUNE_OK;
}

void at_context_destroy(attune_context *context) {
    at_background_end(&context->background);
    at_fork_remove(context);
    at_background_free(&context->background);
    at_memory_cache_free(&context->memory);
    at_operators_free(context);
    at_bundles_free(&context->bundles);
    at_tuning_free(&context->tuning);
    at_disk_cache_free(&context->disk);
    at_codegen_free(&context->codegen);
    at_pool_free(&context->pool);
    at_spares_free(&context->spares);
    const attune_allocator allocator = context->allocator;
    at_free(&allocator, context);
}
