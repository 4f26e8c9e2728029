/* Kernels that need no compile: in a registered bundle, on disk, for another tuning class, in tier 0. */
#include "engine/kernel_make.h"
#include "engine/tier0.h"
#include "schedule/schedule.h"
#include "problem/problem_sight.h"
#include "schedule/variant.h"

#include "ir/passes.h"
#include "ir/text.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- Requests ---- */

double at_make_clock(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

size_t at_make_print(const at_request *request, char *text, size_t capacity) {
    return request->operation.op->print(request->operation, text, capacity);
}

/* Whether an image takes the buffers and scalars of the problem's calls. `kernel`: its IR, if calls are checked by it.
 */
bool at_make_fits(const void *bytes, const at_request *request, const ir_kernel *kernel) {
    const at_image_header *image = bytes;
    const at_signature *const signature = request->signature;
    if (signature) return image->num_buffers == signature->count && image->num_scalars == signature->num_scalars;
    uint32_t num_buffers = 0;
    for (uint32_t i = 0; i < kernel->num_params; i++) num_buffers += kernel->params[i].buffer != NULL;
    return image->num_buffers == num_buffers && image->num_scalars == kernel->num_params - num_buffers;
}

/* The name of a kernel's symbols, if symbols are on. Printing a problem takes as long as finding its kernel on disk. */
void at_make_name(const at_request *request, char *name, size_t capacity) {
    name[0] = '\0';
    if (request->context->symbols.enabled) at_make_print(request, name, capacity);
    for (char *c = name; *c; c++)
        if (*c == ' ') *c = '_';
}

/* Reports an event of the request's kernel to the host. */
void at_make_tell(const at_request *request, const at_key *key, attune_event event) {
    char name[AT_NAME_CHARS + 1], problem[MHA_PROBLEM_TEXT];
    const at_log *log = &request->context->log;
    if (!at_log_wants_event(log, event.kind)) return;
    at_key_name(key, name);
    at_make_print(request, problem, sizeof problem);
    event.key = name;
    event.problem = problem;
    at_log_event(log, event);
}

void at_make_complete(attune_kernel *kernel, const at_request *request, const at_key *key, const mha_schedule *schedule,
                      attune_origin origin, double started) {
    kernel->node.key = *key;
    kernel->op = request->operation.op;
    kernel->arithmetic = kernel->op->arithmetic(request->operation, schedule, kernel->target);
    if (request->signature) kernel->signature = *request->signature;
    at_signature_moved(&kernel->signature);
    kernel->schedule = *schedule;
    kernel->origin = origin;
    if (origin == ATTUNE_FROM_COMPILER) kernel->compile_ms = at_make_clock() - started;
}

/* Keeps the IR if calls are checked by it, and destroys the kernel if that fails. */
attune_status at_make_keep_ir(const at_request *request, at_arena *arena, ir_kernel *lowered, attune_kernel **kernel,
                              at_error *err) {
    const attune_status status =
        request->operation.op->keeps_ir ? at_kernel_keep_ir(*kernel, arena, lowered, err) : ATTUNE_OK;
    if (!status) return ATTUNE_OK;
    at_kernel_destroy(&(*kernel)->node);
    *kernel = NULL;
    return status;
}

/* ---- Cache files ---- */

static void tell_disk_hit(const at_request *request, const at_key *key, const char *message, double started) {
    if (at_log_wants_event(&request->context->log, ATTUNE_EVENT_DISK_HIT))
        at_make_tell(request, key,
                     (attune_event){
                         .kind = ATTUNE_EVENT_DISK_HIT, .message = message, .milliseconds = at_make_clock() - started});
}

/* Whether a cache file of an operator of the user has the problem of its key. Attention's text also has what its key
 * leaves out, and a written kernel is its IR. */
static bool has_problem(const at_request *request, const at_cache_file *cached) {
    char problem[MHA_PROBLEM_TEXT];
    if (!at_own_of(request->operation.op)) return true;
    return at_make_print(request, problem, sizeof problem) < sizeof problem && !strcmp(problem, cached->problem);
}

static bool has_schedule(const at_request *request, const at_cache_file *cached) {
    char schedule[AT_SCHEDULE_TEXT];
    const at_operator *const op = request->operation.op;
    if (!request->schedule) return true;
    op->schedule_print(request->operation, request->schedule, schedule, sizeof schedule);
    return !strcmp(schedule, cached->schedule);
}

/* Reads the parts of a cache file. NULL, or a sentence about the part that cannot be used. */
static const char *read_cache_file(const at_request *request, const at_cache_file *cached, at_arena *arena,
                                   mha_schedule *schedule, ir_kernel **lowered) {
    const at_operator *const op = request->operation.op;
    const char *const source = op->source(request->operation);
    if (op->schedule_parse(request->operation, cached->schedule, schedule, NULL)) return "its schedule cannot be read";
    if (!has_schedule(request, cached)) return "its schedule is not that of its key";
    if (!has_problem(request, cached)) return "its problem is not that of its key";
    if (op->keeps_ir) {
        if (!cached->ir || (source && strcmp(source, cached->ir))) return "its loop IR is not that of its key";
        *lowered = ir_parse(arena, cached->ir, strlen(cached->ir), NULL);
        if (*lowered) *lowered = ir_lower(*lowered, request->context->target, NULL, NULL, NULL);
        if (!*lowered) return "its loop IR cannot be read";
    }
    return at_make_fits(cached->image, request, *lowered) ? NULL : "its code takes other arguments";
}

/* Loads a verified cache file. No kernel and ATTUNE_OK: the file was rejected. A failure: its code cannot be loaded,
 * or memory is short. */
static attune_status make_from_cache_file(const at_request *request, const at_key *key, const at_cache_file *cached,
                                          attune_kernel **kernel, at_error *err) {
    attune_context *context = request->context;
    mha_schedule schedule = {0};
    ir_kernel *lowered = NULL;
    attune_status status = ATTUNE_OK;
    at_arena arena;
    at_arena_init(&arena, &context->allocator);
    const char *const why = read_cache_file(request, cached, &arena, &schedule, &lowered);
    if (arena.failed) {
        status = at_fail_memory(err, cached->image_bytes);
    } else if (why) {
        at_disk_cache_reject(&context->disk, cached, why);
    } else {
        char name[128];
        at_make_name(request, name, sizeof name);
        status = at_kernel_new(context, cached->image, cached->image_bytes, name, kernel, err);
        if (!status) status = at_make_keep_ir(request, &arena, lowered, kernel, err);
    }
    at_arena_free(&arena);
    if (*kernel) {
        const bool is_of_pack = cached->place == AT_IN_PACK;
        atomic_fetch_add(&context->disk_hits, 1);
        if (is_of_pack) atomic_fetch_add(&context->pack_hits, 1);
        at_make_complete(*kernel, request, key, &schedule, is_of_pack ? ATTUNE_FROM_PACK : ATTUNE_FROM_DISK, 0);
    }
    return status;
}

/* The level of the cache, as events name it. */
static const char *const where_it_was[AT_NUM_PLACES] = {"", "it is in the base", "it is in the pack"};

attune_status at_make_from_disk(const at_request *request, const at_key *key, attune_kernel **kernel, at_error *err) {
    const double started = at_log_wants_event(&request->context->log, ATTUNE_EVENT_DISK_HIT) ? at_make_clock() : 0;
    uint8_t *data = NULL;
    at_cache_file cached;
    *kernel = NULL;
    if (!at_disk_cache_read(&request->context->disk, key, &data, &cached)) return ATTUNE_OK;
    const attune_status status = make_from_cache_file(request, key, &cached, kernel, err);
    if (*kernel) tell_disk_hit(request, key, where_it_was[cached.place], started);
    at_free(&request->context->allocator, data);
    return status;
}

/* Gives code that came without its loop IR the IR that it was compiled from, or destroys the kernel. */
static attune_status build_ir(const at_request *request, const mha_schedule *schedule, attune_kernel **kernel,
                              at_error *err) {
    at_arena arena;
    at_built built;
    at_arena_init(&arena, &request->context->allocator);
    attune_status status = at_build(request->context, &arena, request->operation, schedule, &built, err);
    if (status) {
        at_kernel_destroy(&(*kernel)->node);
        *kernel = NULL;
    } else {
        status = at_make_keep_ir(request, &arena, built.lowered, kernel, err);
    }
    at_arena_free(&arena);
    return status;
}

/* From a bundle that the program has registered. ATTUNE_OK without a kernel: there is none, or it cannot run here. */
attune_status at_make_from_bundle(const at_request *request, const at_key *key, attune_kernel **kernel, at_error *err) {
    attune_context *context = request->context;
    const at_operator *const op = request->operation.op;
    mha_schedule schedule = {0};
    char text[AT_SCHEDULE_TEXT];
    if (!at_is_of_attune(op)) return ATTUNE_OK;
    if (request->schedule) op->schedule_print(request->operation, request->schedule, text, sizeof text);
    const at_bundle_code *code = at_bundles_find(&context->bundles, request->operation, context->target->name,
                                                 context->machine_class.name, request->schedule ? text : NULL, NULL);
    if (!code || op->schedule_parse(request->operation, at_bundle_code_schedule(code), &schedule, NULL))
        return ATTUNE_OK;
    at_error unusable = {0}; /* of a bundle: then the kernel comes from elsewhere */
    attune_status status = at_kernel_from_bundle(context, code, kernel, &unusable);
    if (!status && op->keeps_ir) status = build_ir(request, &schedule, kernel, &unusable);
    if (status == ATTUNE_OUT_OF_MEMORY) return at_fail(err, status, "%s", unusable.message);
    if (status) return ATTUNE_OK;
    atomic_fetch_add(&context->bundle_hits, 1);
    at_make_complete(*kernel, request, key, &schedule, ATTUNE_FROM_BUNDLE, 0);
    at_make_tell(request, key, (attune_event){.kind = ATTUNE_EVENT_BUNDLE_HIT});
    return ATTUNE_OK;
}

/* If nothing can be compiled: takes the kernel of the nearest other tuning class that has a usable one. */
bool at_make_from_stand_in(const at_request *request, const at_key *key, const char *why, attune_kernel **kernel) {
    attune_context *context = request->context;
    const double started = at_log_wants_event(&context->log, ATTUNE_EVENT_DISK_HIT) ? at_make_clock() : 0;
    uint8_t *data = NULL;
    at_cache_file cached;
    const char *found;
    size_t next = 0;
    char name[AT_NAME_CHARS + 1], text[ATTUNE_MESSAGE_BYTES + 128];
    *kernel = NULL;
    while (!*kernel && at_disk_cache_read_near(&context->disk, key, &next, &data, &cached, &found)) {
        make_from_cache_file(request, key, &cached, kernel, NULL);
        at_free(&context->allocator, data);
    }
    if (!*kernel) return false;
    (*kernel)->tuning_class = found;
    (*kernel)->stands_in = true;
    atomic_fetch_add(&context->stand_ins, 1);
    at_key_name(key, name);
    snprintf(text, sizeof text, "the kernel for %s is used, because there is none for %s: %s", found,
             context->machine_class.name, why);
    at_log_printf(&context->log, ATTUNE_LOG_WARNING, "kernel %s: %s", name, text);
    tell_disk_hit(request, key, text, started);
    return true;
}

/* ---- Tier 0 ---- */

void at_make_tell_tier0(const at_request *request, const at_key *key, const char *what, const char *why) {
    char text[ATTUNE_MESSAGE_BYTES + 128];
    atomic_fetch_add(&request->context->tier0_hits, 1);
    snprintf(text, sizeof text, "%s computes it: %s", what, why);
    at_make_tell(request, key, (attune_event){.kind = ATTUNE_EVENT_TIER0_HIT, .message = text});
}

/* Code that was compiled for a more general problem. */
static attune_status make_from_code(const at_request *request, const at_key *key, const at_tier0_kernel *found,
                                    attune_kernel **kernel, at_error *err) {
    attune_problem problem;
    mha_schedule schedule = {0};
    /* Sizes of added tensors stand before those of the code's own buffers in a plan of AT_PLAN_WORDS. */
    if (found->code->num_phases + found->code->num_shared + AT_NUM_ADDED > AT_PLAN_WORDS)
        return at_fail(err, ATTUNE_UNSUPPORTED, "%s has too many phases and buffers", at_bundle_code_name(found->code));
    attune_status status = at_tier0_problem(found->kernel, &problem, err);
    if (!status)
        status = request->operation.op->schedule_parse(at_attention_of(&problem), at_bundle_code_schedule(found->code),
                                                       &schedule, err);
    if (!status) status = at_kernel_from_bundle(request->context, found->code, kernel, err);
    if (status) return status;
    at_make_complete(*kernel, request, key, &schedule, ATTUNE_FROM_TIER0, 0);
    at_signature_take(&(*kernel)->signature, &problem, found->folds_group);
    (*kernel)->num_shared += (uint32_t)at_signature_added(&(*kernel)->signature);
    (*kernel)->tier0 = found->kernel;
    (*kernel)->merges = mha_merges_chunks(&problem, &schedule);
    (*kernel)->falls = mha_sees_more_later(&problem);
    return ATTUNE_OK;
}

/* Described operators: by the kernel's own text, else by those of more and more general ones. */
static bool make_described(const at_request *request, const at_key *key, const at_tier0_place *place,
                           at_tier0_kernel *found, attune_kernel **kernel) {
    const at_own *const own = at_own_of(request->operation.op);
    at_request from = *request;
    char texts[2][AT_OWN_PROBLEM_CHARS + 1];
    mha_schedule schedule = {0};
    for (int i = 0; !at_tier0_find_described(from.operation, place, found); i++) {
        if (request->no_general || !own->find_general(from.operation.problem, texts[i % 2])) return false;
        from.operation.problem = texts[i % 2];
    }
    if (own->row.schedule_parse(from.operation, at_bundle_code_schedule(found->code), &schedule, NULL) ||
        at_kernel_from_bundle(request->context, found->code, kernel, NULL) || build_ir(&from, &schedule, kernel, NULL))
        return false;
    at_make_complete(*kernel, request, key, &schedule, ATTUNE_FROM_TIER0, 0);
    (*kernel)->is_general = from.operation.problem != request->operation.problem;
    return true;
}

bool at_make_from_tier0(const at_request *request, const at_key *key, const char *why, attune_kernel **kernel) {
    attune_context *context = request->context;
    const at_operator *const op = request->operation.op;
    at_tier0_kernel found;
    *kernel = NULL;
    if (!context->has_tier0 || request->schedule || !at_is_of_attune(op)) return false;
    const at_tier0_place place = {.target = context->target,
                                  .machine = context->machine_class.name,
                                  .registered = &context->bundles,
                                  .log = &context->log};
    const bool is_made = op == &at_attention ? at_tier0_find(request->operation.problem, &place, &found) &&
                                                   !make_from_code(request, key, &found, kernel, NULL)
                                             : make_described(request, key, &place, &found, kernel);
    if (!is_made) return false;
    at_make_tell_tier0(request, key, at_bundle_name(found.kernel), why);
    return true;
}
