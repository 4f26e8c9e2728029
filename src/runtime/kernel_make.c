/* Making the kernel of a problem: from memory, from disk, or by compiling. */
#include "operator/own.h"
#include "runtime/kernel.h"
#include "schedule/decide.h"
#include "schedule/schedule.h"

#include "ir/passes.h"
#include "ir/text.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- Requests ---- */

typedef struct make_request {
    attune_context *context;
    at_operation operation;
    const attune_schedule *schedule; /* explicit, or NULL */
    at_signature *signature;         /* of attention, filled in by make_kernel; else NULL */
} make_request;

static double milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* The request's problem as text. */
static size_t print(const make_request *request, char *text, size_t capacity) {
    return request->operation.op->print(request->operation, text, capacity);
}

/* Whether an image takes the buffers and scalars of the problem's calls. `kernel` is its IR, where a call is made
 * according to that. */
static bool image_fits(const void *bytes, const make_request *request, const ir_kernel *kernel) {
    const at_image_header *image = bytes;
    const at_signature *const signature = request->signature;
    if (signature) return image->num_buffers == signature->count && image->num_scalars == signature->num_scalars;
    uint32_t num_buffers = 0;
    for (uint32_t i = 0; i < kernel->num_params; i++) num_buffers += kernel->params[i].buffer != NULL;
    return image->num_buffers == num_buffers && image->num_scalars == kernel->num_params - num_buffers;
}

/* The name of a kernel's symbols, if symbols are on. Printing a problem takes as long as finding its kernel on disk. */
static void name_of(const make_request *request, char *name, size_t capacity) {
    name[0] = '\0';
    if (request->context->symbols.enabled) print(request, name, capacity);
    for (char *c = name; *c; c++)
        if (*c == ' ') *c = '_';
}

/* Tells the host an event of the request's kernel. */
static void tell(const make_request *request, const at_key *key, attune_event event) {
    char name[AT_NAME_CHARS + 1], problem[MHA_PROBLEM_TEXT];
    const at_log *log = &request->context->log;
    if (!log->event) return;
    at_key_name(key, name);
    print(request, problem, sizeof problem);
    event.key = name;
    event.problem = problem;
    at_log_event(log, event);
}

static void tell_disk_hit(const make_request *request, const at_key *key, const char *message, double started) {
    if (request->context->log.event)
        tell(request, key,
             (attune_event){
                 .kind = ATTUNE_EVENT_DISK_HIT, .message = message, .milliseconds = milliseconds() - started});
}

/* A line for each compile. All other lines are warnings. */
static void log_compile(const make_request *request, const at_key *key, double ms) {
    char name[AT_NAME_CHARS + 1], problem[MHA_PROBLEM_TEXT];
    const attune_context *context = request->context;
    if (!context->log.fn) return;
    at_key_name(key, name);
    print(request, problem, sizeof problem);
    at_log_printf(&context->log, ATTUNE_LOG_INFO, "compiled kernel %s for %s in %.1f ms %s: %s", name,
                  context->target->name, ms, context->codegen.uses_worker ? "by the worker" : "in this process",
                  problem);
}

static void complete(attune_kernel *kernel, const make_request *request, const at_key *key,
                     const attune_schedule *schedule, attune_origin origin, double started) {
    kernel->node.key = *key;
    kernel->op = request->operation.op;
    kernel->arithmetic = kernel->op->arithmetic(request->operation, kernel->target);
    if (request->signature) kernel->signature = *request->signature;
    at_signature_moved(&kernel->signature);
    kernel->schedule = *schedule;
    kernel->origin = origin;
    if (origin == ATTUNE_FROM_COMPILER) kernel->compile_ms = milliseconds() - started;
}

/* Keeps the IR if calls are made according to it, and ends the kernel if that fails. */
static attune_status keep_ir(const make_request *request, at_arena *arena, ir_kernel *lowered, attune_kernel **kernel,
                             at_error *err) {
    const attune_status status =
        request->operation.op->keeps_ir ? at_kernel_keep_ir(*kernel, arena, lowered, err) : ATTUNE_OK;
    if (!status) return ATTUNE_OK;
    at_kernel_destroy(&(*kernel)->node);
    *kernel = NULL;
    return status;
}

/* Whether an entry of an operator of the user has the problem of its key. Attention's text also has what its key leaves
 * out, and a written kernel is its IR. */
static bool has_problem(const make_request *request, const at_entry *entry) {
    char problem[MHA_PROBLEM_TEXT];
    if (!at_own_of(request->operation.op)) return true;
    return print(request, problem, sizeof problem) < sizeof problem && !strcmp(problem, entry->problem);
}

static bool has_schedule(const make_request *request, const at_entry *entry) {
    char schedule[AT_SCHEDULE_TEXT];
    const at_operator *const op = request->operation.op;
    if (!request->schedule) return true;
    op->schedule_print(request->operation, request->schedule, schedule, sizeof schedule);
    return !strcmp(schedule, entry->schedule);
}

/* Reads the parts of an entry. NULL, or a sentence about the part that cannot be used. */
static const char *read_entry(const make_request *request, const at_entry *entry, at_arena *arena,
                              attune_schedule *schedule, ir_kernel **lowered) {
    const at_operator *const op = request->operation.op;
    const char *const source = op->source(request->operation);
    if (op->schedule_parse(request->operation, entry->schedule, schedule, NULL)) return "its schedule cannot be read";
    if (!has_schedule(request, entry)) return "it has not the schedule of its key";
    if (!has_problem(request, entry)) return "it has not the problem of its key";
    if (op->keeps_ir) {
        if (!entry->ir || (source && strcmp(source, entry->ir))) return "it has not the loop IR of its key";
        *lowered = ir_parse(arena, entry->ir, strlen(entry->ir), NULL);
        if (*lowered) *lowered = ir_lower(*lowered, request->context->target, NULL, NULL, NULL);
        if (!*lowered) return "its loop IR cannot be read";
    }
    return image_fits(entry->image, request, *lowered) ? NULL : "its code takes other arguments";
}

/* From a verified entry. ATTUNE_OK with a kernel or without one; otherwise it cannot be loaded, or memory is short. */
static attune_status make_from_entry(const make_request *request, const at_key *key, const at_entry *entry,
                                     attune_kernel **kernel, at_error *err) {
    attune_context *context = request->context;
    attune_schedule schedule = ATTUNE_SCHEDULE_INIT;
    ir_kernel *lowered = NULL;
    attune_status status = ATTUNE_OK;
    at_arena arena;
    at_arena_init(&arena, &context->allocator);
    const char *const why = read_entry(request, entry, &arena, &schedule, &lowered);
    if (arena.failed) {
        status = at_fail_memory(err, entry->image_bytes);
    } else if (why) {
        at_disk_cache_reject(&context->disk, entry, why);
    } else {
        char name[128];
        name_of(request, name, sizeof name);
        status = at_kernel_new(context, entry->image, entry->image_bytes, name, kernel, err);
        if (!status) status = keep_ir(request, &arena, lowered, kernel, err);
    }
    at_arena_free(&arena);
    if (*kernel) {
        const bool is_of_pack = entry->place == AT_IN_PACK;
        atomic_fetch_add(&context->disk_hits, 1);
        if (is_of_pack) atomic_fetch_add(&context->pack_hits, 1);
        complete(*kernel, request, key, &schedule, is_of_pack ? ATTUNE_FROM_PACK : ATTUNE_FROM_DISK, 0);
    }
    return status;
}

/* The level of the cache, as events name it. */
static const char *const where_it_was[AT_NUM_PLACES] = {"", "it lies in the base", "it lies in the pack"};

static attune_status make_from_disk(const make_request *request, const at_key *key, attune_kernel **kernel,
                                    at_error *err) {
    const double started = request->context->log.event ? milliseconds() : 0;
    uint8_t *data = NULL;
    at_entry entry;
    *kernel = NULL;
    if (!at_disk_cache_read(&request->context->disk, key, &data, &entry)) return ATTUNE_OK;
    const attune_status status = make_from_entry(request, key, &entry, kernel, err);
    if (*kernel) tell_disk_hit(request, key, where_it_was[entry.place], started);
    at_free(&request->context->allocator, data);
    return status;
}

/* From a bundle that the program has registered. ATTUNE_OK without a kernel: there is none, or it cannot run here. */
static attune_status make_from_bundle(const make_request *request, const at_key *key, attune_kernel **kernel,
                                      at_error *err) {
    attune_context *context = request->context;
    const at_operator *const op = request->operation.op;
    attune_schedule schedule = ATTUNE_SCHEDULE_INIT;
    char text[AT_SCHEDULE_TEXT];
    if (op != &at_attention) return ATTUNE_OK;
    if (request->schedule) op->schedule_print(request->operation, request->schedule, text, sizeof text);
    const at_bundle_code *code = at_bundles_find(&context->bundles, request->operation.problem, context->target->name,
                                                 context->machine_class.name, request->schedule ? text : NULL);
    if (!code || op->schedule_parse(request->operation, code->schedule, &schedule, NULL)) return ATTUNE_OK;
    const attune_status status = at_kernel_from_bundle(context, code, kernel, err);
    if (status == ATTUNE_OUT_OF_MEMORY) return status;
    if (status) return ATTUNE_OK;
    atomic_fetch_add(&context->bundle_hits, 1);
    complete(*kernel, request, key, &schedule, ATTUNE_FROM_BUNDLE, 0);
    return ATTUNE_OK;
}

/* If nothing can be compiled: takes the kernel of the nearest other tuning class that has a usable one. */
static bool make_from_stand_in(const make_request *request, const at_key *key, const char *why,
                               attune_kernel **kernel) {
    attune_context *context = request->context;
    const double started = context->log.event ? milliseconds() : 0;
    uint8_t *data = NULL;
    at_entry entry;
    const char *found;
    size_t next = 0;
    char name[AT_NAME_CHARS + 1], text[ATTUNE_MESSAGE_BYTES + 128];
    *kernel = NULL;
    while (!*kernel && at_disk_cache_read_near(&context->disk, key, &next, &data, &entry, &found)) {
        make_from_entry(request, key, &entry, kernel, NULL);
        at_free(&context->allocator, data);
    }
    if (!*kernel) return false;
    (*kernel)->tuning_class = found;
    atomic_fetch_add(&context->stand_ins, 1);
    at_key_name(key, name);
    snprintf(text, sizeof text, "the one for %s stands in, as there is none for %s and none can be compiled: %s", found,
             context->machine_class.name, why);
    at_log_printf(&context->log, ATTUNE_LOG_WARNING, "kernel %s: %s", name, text);
    tell_disk_hit(request, key, text, started);
    return true;
}

typedef void save_fn(at_disk_cache *cache, const at_key *key, const at_entry *entry);

static void save(attune_context *context, const at_key *key, at_operation operation, const at_built *built,
                 const void *image, size_t image_bytes, save_fn *to_disk) {
    const at_operator *const op = operation.op;
    char problem[MHA_PROBLEM_TEXT], schedule[AT_SCHEDULE_TEXT];
    at_string ir;
    if (op->print(operation, problem, sizeof problem) >= sizeof problem) return;
    if (op->schedule_print(operation, &built->schedule, schedule, sizeof schedule) >= sizeof schedule) return;
    at_string_init(&ir, &context->allocator);
    if (op->keeps_ir) ir_print(built->scheduled, &ir);
    const at_entry entry = {.required = ((const at_image_header *)image)->required,
                            .key = key->bytes,
                            .key_bytes = key->size,
                            .problem = problem,
                            .schedule = schedule,
                            .isa = context->target->name,
                            .ir = ir.data,
                            .image = image,
                            .image_bytes = image_bytes};
    if (!ir.failed) to_disk(&context->disk, key, &entry);
    at_string_free(&ir);
}

static attune_status make_by_compiling(const make_request *request, const at_key *key, const at_built *built,
                                       attune_kernel **kernel, at_error *err) {
    attune_context *context = request->context;
    void *image = NULL;
    size_t bytes = 0;
    attune_status status =
        at_emit_stage(context, built->scheduled, built->lowered, ATTUNE_STAGE_IMAGE, &image, &bytes, err);
    if (status) return status;
    char name[128];
    name_of(request, name, sizeof name);
    const char *why = at_image_check(image, bytes);
    if (!why && !image_fits(image, request, built->lowered)) why = "it takes other arguments than the problem gives";
    if (why)
        status = at_fail(err, ATTUNE_CODEGEN_FAILED, "the code generator gave a bad image: %s", why);
    else
        status = at_kernel_new(context, image, bytes, name, kernel, err);
    /* This process may not execute the code, but the next one may. */
    if (status == ATTUNE_OK || status == ATTUNE_NO_EXEC_MEMORY)
        save(context, key, request->operation, built, image, bytes, at_disk_cache_write);
    at_free(&context->allocator, image);
    return status;
}

/* Whether no code could be made, or none may be executed, which is no fault of the problem. */
static bool has_no_code(attune_status status) {
    return status == ATTUNE_CODEGEN_MISSING || status == ATTUNE_NO_EXEC_MEMORY;
}

static attune_status make_interpreted(const make_request *request, at_arena *arena, const at_built *built,
                                      attune_kernel **kernel, at_error *err) {
    attune_status status = at_kernel_new(request->context, NULL, 0, "", kernel, err);
    if (status) return status;
    status = at_kernel_keep_ir(*kernel, arena, built->lowered, err);
    if (status) at_kernel_destroy(&(*kernel)->node);
    return status;
}

/* By the virtual machine, or by the interpreter for those who prefer its checks. */
static attune_status make_without_code(const make_request *request, at_arena *arena, const at_built *built,
                                       const char *why, attune_kernel **kernel, at_error *err) {
    attune_context *context = request->context;
    const attune_log_level level = context->codegen.is_off ? ATTUNE_LOG_INFO : ATTUNE_LOG_WARNING;
    at_log_printf(&context->log, level, "%s runs this kernel: %s",
                  context->allow_interpreter ? "the interpreter" : "the virtual machine", why);
    if (context->allow_interpreter) return make_interpreted(request, arena, built, kernel, err);
    const attune_status status = at_kernel_from_vm(context, built->lowered, kernel, err);
    return status ? status : keep_ir(request, arena, built->lowered, kernel, err);
}

/* The code generator fails on one problem, so a report must name it. */
static void fail_to_compile(const make_request *request, attune_status status, const at_error *why, at_error *err) {
    char problem[MHA_PROBLEM_TEXT] = "";
    if (status == ATTUNE_CODEGEN_FAILED) print(request, problem, sizeof problem);
    at_fail(err, status, "%s%s%s", why->message, problem[0] ? "; the problem is " : "", problem);
}

static attune_status compile(const make_request *request, const at_key *key, attune_status disk_status,
                             attune_kernel **kernel, at_error *err) {
    attune_context *context = request->context;
    const double started = milliseconds();
    at_arena arena;
    at_built built;
    at_arena_init(&arena, &context->allocator);
    attune_status status = at_build(context, &arena, request->operation, request->schedule, &built, err);
    if (status == ATTUNE_OK) {
        at_error why = {0};
        status = disk_status ? disk_status : make_by_compiling(request, key, &built, kernel, &why);
        if (status == ATTUNE_CODEGEN_MISSING && make_from_stand_in(request, key, why.message, kernel)) {
            at_arena_free(&arena);
            return ATTUNE_OK;
        }
        if (has_no_code(status)) {
            const char *const reason = disk_status ? "no executable memory" : why.message;
            status = make_without_code(request, &arena, &built, reason, kernel, err);
        } else if (status) {
            fail_to_compile(request, status, &why, err);
        } else {
            status = keep_ir(request, &arena, built.lowered, kernel, err);
        }
    }
    at_arena_free(&arena);
    if (status || (*kernel)->engine != ATTUNE_ENGINE_VM)
        atomic_fetch_add(status ? &context->compile_failures : &context->compiles, 1);
    if (status) return status;
    const bool is_vm = (*kernel)->engine == ATTUNE_ENGINE_VM;
    complete(*kernel, request, key, &built.schedule, is_vm ? ATTUNE_FROM_VM : ATTUNE_FROM_COMPILER, started);
    if ((*kernel)->engine == ATTUNE_ENGINE_JIT) log_compile(request, key, (*kernel)->compile_ms);
    return ATTUNE_OK;
}

static attune_status make_anew(const make_request *request, const at_key *key, attune_status disk_status,
                               attune_kernel **kernel, at_error *err) {
    attune_context *context = request->context;
    at_record_miss(&context->record, key, request->operation, request->schedule);
    tell(request, key, (attune_event){.kind = ATTUNE_EVENT_MISS});
    at_error forbidden = {0};
    if (at_record_allow(&context->record, key, request->operation, request->schedule, &forbidden))
        return make_from_stand_in(request, key, "ATTUNE_STRICT is set", kernel)
                   ? ATTUNE_OK
                   : at_fail(err, forbidden.status, "%s", forbidden.message);
    tell(request, key, (attune_event){.kind = ATTUNE_EVENT_COMPILE_BEGIN});
    const double started = milliseconds();
    attune_status status = compile(request, key, disk_status, kernel, err);
    const attune_origin origin = status ? ATTUNE_FROM_COMPILER : (*kernel)->origin;
    tell(request, key,
         (attune_event){.kind = ATTUNE_EVENT_COMPILE_END,
                        .status = origin == ATTUNE_FROM_COMPILER ? status : ATTUNE_CODEGEN_MISSING,
                        .message = status                           ? err->message
                                   : origin == ATTUNE_FROM_COMPILER ? ""
                                   : origin == ATTUNE_FROM_VM       ? "the virtual machine runs it"
                                                                    : "the kernel of another tuning class stands in",
                        .milliseconds = milliseconds() - started});
    return status;
}

/* Makes the kernel after a miss; an at_cache_make_fn. */
static attune_status make_kernel(void *user, const at_key *key, at_cache_node **node, at_error *err) {
    const make_request *request = user;
    attune_kernel *kernel = NULL;
    if (request->signature) at_signature_init(request->signature, request->operation.problem);
    at_error why = {0};
    attune_status status = make_from_bundle(request, key, &kernel, &why);
    if (!status && !kernel) status = make_from_disk(request, key, &kernel, &why);
    if (status == ATTUNE_OK && !kernel)
        status = make_anew(request, key, ATTUNE_OK, &kernel, err);
    else if (has_no_code(status))
        status = make_anew(request, key, status, &kernel, err);
    else if (status)
        at_fail(err, status, "%s", why.message);
    if (status == ATTUNE_OK) *node = &kernel->node;
    return status;
}

/* ---- For tuning ---- */

/* Into the disk cache only. */
static attune_status replace_on_disk(attune_context *context, const at_key *key, at_operation operation,
                                     const attune_schedule *schedule, at_error *err) {
    at_arena arena;
    at_built built;
    void *image = NULL;
    size_t bytes = 0;
    at_arena_init(&arena, &context->allocator);
    const attune_status status = at_build_image(context, &arena, operation, schedule, &built, &image, &bytes, err);
    if (!status) save(context, key, operation, &built, image, bytes, at_disk_cache_replace);
    at_free(&context->allocator, image);
    at_arena_free(&arena);
    return status;
}

attune_status at_kernel_replace(attune_context *context, at_operation operation, const attune_schedule *schedule,
                                at_error *err) {
    at_key key;
    attune_schedule cached;
    at_key_make(&key, operation, NULL, &context->machine);
    attune_status status = ATTUNE_OK;
    if (!at_kernel_on_disk(context, operation, &cached) || memcmp(&cached, schedule, AT_SCHEDULE_BYTES))
        status = replace_on_disk(context, &key, operation, schedule, err);
    if (!status) at_memory_cache_remove(&context->memory, &key);
    return status;
}

/* ---- From a request to a kernel ---- */

/* Some 9 KB. They are not on the stack because LLVM needs it next (attune.h has the limit). */
typedef struct miss {
    attune_problem canonical;
    attune_schedule schedule;
    at_key key;
    at_signature signature;
    make_request request;
} miss;

static attune_status get(attune_context *context, at_operation operation, const attune_schedule *schedule, miss *m,
                         at_cache_node **node, at_error *err) {
    at_key_make(&m->key, operation, schedule, &context->machine);
    m->request = (make_request){context, operation, schedule, operation.op == &at_attention ? &m->signature : NULL};
    return at_memory_cache_get(&context->memory, &m->key, make_kernel, &m->request, node, err);
}

static attune_status find_or_make(attune_context *context, const attune_problem *problem,
                                  const attune_schedule *schedule, miss *m, at_cache_node **node, at_error *err) {
    attune_status status = mha_canonicalize(problem, &m->canonical, err);
    if (!status) status = mha_schedule_in(&schedule, &m->schedule, &m->canonical, context->target, err);
    return status ? status : get(context, at_attention_of(&m->canonical), schedule, m, node, err);
}

/* If a thread were cancelled (pthread_cancel) in the middle, others would wait for its kernel forever. */
static attune_status compile_slowly(attune_context *context, const attune_problem *problem,
                                    const attune_schedule *schedule, const at_raw_key *raw, uint64_t hash,
                                    attune_kernel **kernel) {
    at_error err = {0};
    at_cache_node *node = NULL;
    int cancellation;
    miss *m = at_alloc(&context->allocator, sizeof *m);
    if (!m) at_fail_memory(&err, sizeof *m);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation);
    if (m && !find_or_make(context, problem, schedule, m, &node, &err)) {
        if (raw) at_memory_cache_alias(&context->memory, node, raw, hash);
        *kernel = (attune_kernel *)node;
    }
    at_free(&context->allocator, m);
    pthread_setcancelstate(cancellation, NULL);
    return at_report(&err);
}

attune_status at_kernel_get(attune_context *context, at_operation operation, const attune_schedule *schedule,
                            attune_kernel **kernel, at_error *err) {
    at_cache_node *node = NULL;
    int cancellation;
    miss *m = at_alloc(&context->allocator, sizeof *m);
    if (!m) return at_fail_memory(err, sizeof *m);
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancellation);
    const attune_status status = get(context, operation, schedule, m, &node, err);
    *kernel = (attune_kernel *)node;
    at_free(&context->allocator, m);
    pthread_setcancelstate(cancellation, NULL);
    return status;
}

/* ---- Public ---- */

attune_status attune_compile(attune_context *context, const attune_problem *problem, const attune_schedule *schedule,
                             attune_kernel **kernel) {
    if (__builtin_expect(!context || !problem || !kernel, 0)) {
        at_error err = {0};
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_compile was given no %s",
                !context   ? "context"
                : !problem ? "problem"
                           : "pointer to the kernel");
        return at_report(&err);
    }
    *kernel = NULL;
    at_raw_key raw;
    uint64_t hash = 0;
    const bool is_raw = at_raw_key_make(&raw, problem, schedule);
    if (__builtin_expect(is_raw, 1)) {
        hash = at_raw_key_hash(&raw);
        *kernel = (attune_kernel *)at_memory_cache_find(&context->memory, &raw, hash);
        if (*kernel) return ATTUNE_OK;
    }
    return compile_slowly(context, problem, schedule, is_raw ? &raw : NULL, hash, kernel);
}

void attune_kernel_release(attune_kernel *kernel) {
    if (kernel) at_cache_node_release(&kernel->context->memory, &kernel->node);
}
