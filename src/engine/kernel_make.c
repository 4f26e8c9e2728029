/* Making the kernel of a problem, level by level (engine/kernel_make.h). */
#include "engine/kernel_make.h"

#include "base/fpenv.h"
#include "host/clock.h"
#include "ir/text.h"
#include "schedule/schedule.h"
#include "threads/job.h"

#include <stdio.h>
#include <string.h>

/* ---- Requests ---- */

/* Logs a line for each compile. All other lines are warnings. Its own function, so that its text is not on the stack
 * during a compile. */
static __attribute__((noinline)) void log_compile(const at_request *request, const at_key *key, double ms) {
    char name[AT_NAME_CHARS + 1], problem[MHA_PROBLEM_TEXT];
    const attune_context *context = request->context;
    if (!at_log_wants(&context->log, ATTUNE_LOG_INFO)) return;
    at_key_name(key, name);
    at_make_print(request, problem, sizeof problem);
    at_log_printf(&context->log, ATTUNE_LOG_INFO, "compiled kernel %s for %s in %.1f ms %s: %s", name,
                  context->target->name, ms, context->codegen.uses_worker ? "by the worker" : "in this process",
                  problem);
}

typedef void save_fn(at_disk_cache *cache, const at_key *key, const at_cache_file *cached);

static void save(attune_context *context, const at_key *key, at_operation operation, const at_built *built,
                 const void *image, size_t image_bytes, save_fn *to_disk) {
    const at_operator *const op = operation.op;
    char problem[MHA_PROBLEM_TEXT], schedule[AT_SCHEDULE_TEXT];
    at_string ir;
    if (op->print(operation, problem, sizeof problem) >= sizeof problem) return;
    if (op->schedule_print(operation, &built->schedule, schedule, sizeof schedule) >= sizeof schedule) return;
    at_string_init(&ir, &context->allocator);
    if (op->keeps_ir) ir_print(built->scheduled, &ir);
    const at_cache_file cached = {.required = ((const at_image_header *)image)->required,
                                  .key = key->bytes,
                                  .key_bytes = key->size,
                                  .problem = problem,
                                  .schedule = schedule,
                                  .isa = context->target->name,
                                  .ir = ir.data,
                                  .image = image,
                                  .image_bytes = image_bytes};
    if (!ir.failed) to_disk(&context->disk, key, &cached);
    at_string_free(&ir);
}

static attune_status make_by_compiling(const at_request *request, const at_key *key, const at_built *built,
                                       attune_kernel **kernel, at_error *err) {
    attune_context *context = request->context;
    void *image = NULL;
    size_t bytes = 0;
    attune_status status =
        at_emit_stage(context, built->scheduled, built->lowered, ATTUNE_STAGE_IMAGE, &image, &bytes, err);
    if (status) return status;
    char name[128];
    at_make_name(request, name, sizeof name);
    const char *why = at_image_check(image, bytes);
    if (!why && !at_make_fits(image, request, built->lowered)) why = "it takes other arguments than the problem gives";
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

/* Whether the machine, not the problem, is why no code could be made or executed. */
static bool has_no_code(attune_status status) {
    return status == ATTUNE_CODEGEN_MISSING || status == ATTUNE_NO_EXEC_MEMORY;
}

static attune_status make_interpreted(const at_request *request, at_arena *arena, const at_built *built,
                                      attune_kernel **kernel, at_error *err) {
    attune_status status = at_kernel_new(request->context, NULL, 0, "", kernel, err);
    if (status) return status;
    status = at_kernel_keep_ir(*kernel, arena, built->lowered, err);
    if (status) at_kernel_destroy(&(*kernel)->node);
    return status;
}

/* In a context that never compiles, fallbacks are intended. */
static attune_log_level level_of_fallbacks(const attune_context *context) {
    return context->codegen.is_off ? ATTUNE_LOG_INFO : ATTUNE_LOG_WARNING;
}

/* Uses the virtual machine, or the interpreter if the caller wants its checks. */
static attune_status make_without_code(const at_request *request, const at_key *key, at_arena *arena,
                                       const at_built *built, const char *why, attune_kernel **kernel, at_error *err) {
    attune_context *context = request->context;
    at_log_printf(&context->log, level_of_fallbacks(context),
                  context->allow_interpreter ? "the interpreter runs this kernel: %s"
                                             : "the virtual machine runs this kernel: %s",
                  why);
    if (context->allow_interpreter) return make_interpreted(request, arena, built, kernel, err);
    attune_status status = at_kernel_from_vm(context, built->lowered, kernel, err);
    if (!status) status = at_make_keep_ir(request, arena, built->lowered, kernel, err);
    if (!status) at_make_tell_tier0(request, key, "the virtual machine", why);
    return status;
}

/* The code generator fails on one problem, so a report must name it. This text, too, must not be on the stack during a
 * compile. */
static __attribute__((noinline)) void fail_to_compile(const at_request *request, attune_status status,
                                                      const at_error *why, at_error *err) {
    char problem[MHA_PROBLEM_TEXT] = "";
    if (status == ATTUNE_CODEGEN_FAILED) at_make_print(request, problem, sizeof problem);
    at_fail(err, status, "%s%s%s", why->message, problem[0] ? "; the problem is " : "", problem);
    const attune_log_level level = status == ATTUNE_CANCELLED ? ATTUNE_LOG_INFO : ATTUNE_LOG_ERROR;
    at_log_line(&request->context->log, level, "a kernel could not be compiled: %s", err->message);
}

/* Used if nothing can be compiled, or compiled code cannot be executed. */
static bool make_without_compiler(const at_request *request, const at_key *key, attune_status status, const char *why,
                                  attune_kernel **kernel) {
    if (status == ATTUNE_CODEGEN_MISSING && at_make_from_stand_in(request, key, why, kernel)) return true;
    if (status != ATTUNE_CODEGEN_MISSING && status != ATTUNE_NO_EXEC_MEMORY) return false;
    if (!at_make_from_tier0(request, key, why, kernel)) return false;
    at_log_line(&request->context->log, level_of_fallbacks(request->context), "tier 0 runs this kernel: %s", why);
    return true;
}

/* *disk: why a cache file could not be loaded, or empty. */
static attune_status compile(const at_request *request, const at_key *key, const at_error *disk, attune_kernel **kernel,
                             at_error *err) {
    attune_context *context = request->context;
    const double started = at_make_clock();
    at_arena arena;
    at_built built;
    at_arena_init(&arena, &context->allocator);
    attune_status status = at_build(context, &arena, request->operation, request->schedule, &built, err);
    if (status == ATTUNE_OK) {
        at_error why = *disk;
        status = disk->status ? disk->status : make_by_compiling(request, key, &built, kernel, &why);
        if (make_without_compiler(request, key, status, why.message, kernel)) {
            at_arena_free(&arena);
            return ATTUNE_OK;
        }
        if (has_no_code(status) && !context->machine_code_only) {
            const char *const reason = disk->status ? "no executable memory" : why.message;
            status = make_without_code(request, key, &arena, &built, reason, kernel, err);
        } else if (status) {
            fail_to_compile(request, status, &why, err);
        } else {
            status = at_make_keep_ir(request, &arena, built.lowered, kernel, err);
        }
    }
    at_arena_free(&arena);
    if (status == ATTUNE_CANCELLED) return status;
    if (status || (*kernel)->engine != ATTUNE_ENGINE_VM)
        atomic_fetch_add(status ? &context->compile_failures : &context->compiles, 1);
    if (status) return status;
    const bool is_vm = (*kernel)->engine == ATTUNE_ENGINE_VM;
    at_make_complete(*kernel, request, key, &built.schedule, is_vm ? ATTUNE_FROM_VM : ATTUNE_FROM_COMPILER, started);
    if ((*kernel)->engine == ATTUNE_ENGINE_JIT) log_compile(request, key, (*kernel)->compile_ms);
    return ATTUNE_OK;
}

/* When a fallback runs because a compile failed, the compile is tried again later: file descriptors or memory for code
 * may be free by then. Attempts take at most 1 % of the time, and become rarer while they fail. */
static void settle_time(attune_context *context, attune_kernel *kernel, int64_t began) {
    enum { SECOND = 1000000000, SHARE = 100 };
    const int64_t now = at_nanoseconds();
    int64_t since = 0;
    if (at_kernel_is_own(kernel) && kernel->engine == ATTUNE_ENGINE_JIT) {
        atomic_store(&context->failing_since, 0);
        return;
    }
    if (context->codegen.is_off || context->record.is_strict) return;
    if (atomic_compare_exchange_strong(&context->failing_since, &since, began)) since = began;
    int64_t wait = SHARE * (now - began);
    if (wait < now - since) wait = now - since;
    kernel->node.made_again_at = now + (wait < SECOND ? SECOND : wait);
}

static attune_status forbid(const attune_context *context, const at_error *why, at_error *err) {
    at_log_line(&context->log, ATTUNE_LOG_ERROR, "%s", why->message);
    return at_fail(err, why->status, "%s", why->message);
}

static attune_status make_anew(const at_request *request, const at_key *key, const at_error *disk,
                               attune_kernel **kernel, at_error *err) {
    attune_context *context = request->context;
    at_record_miss(&context->record, key, request->operation, request->schedule);
    at_make_tell(request, key, (attune_event){.kind = ATTUNE_EVENT_MISS});
    at_error forbidden = {0};
    if (at_record_allow(&context->record, key, request->operation, request->schedule, &forbidden))
        return at_make_from_stand_in(request, key, "ATTUNE_STRICT is set", kernel)
                   ? ATTUNE_OK
                   : forbid(request->context, &forbidden, err);
    at_make_tell(request, key, (attune_event){.kind = ATTUNE_EVENT_COMPILE_BEGIN});
    const double started = at_make_clock();
    const int64_t began = at_nanoseconds();
    attune_status status = compile(request, key, disk, kernel, err);
    if (!status) settle_time(context, *kernel, began);
    const attune_origin origin = status ? ATTUNE_FROM_COMPILER : (*kernel)->origin;
    at_make_tell(request, key,
                 (attune_event){.kind = ATTUNE_EVENT_COMPILE_END,
                                .status = origin == ATTUNE_FROM_COMPILER ? status : ATTUNE_CODEGEN_MISSING,
                                .message = status                           ? err->message
                                           : origin == ATTUNE_FROM_COMPILER ? ""
                                           : origin == ATTUNE_FROM_VM       ? "the virtual machine runs it"
                                           : origin == ATTUNE_FROM_TIER0    ? "tier 0 computes it"
                                                                         : "the kernel of another tuning class is used",
                                .milliseconds = at_make_clock() - started});
    return status;
}

/* The levels that keep compiled kernels. */
static attune_status make_from_kept(const at_request *request, const at_key *key, attune_kernel **kernel,
                                    at_error *err) {
    const attune_status status = at_make_from_bundle(request, key, kernel, err);
    return status || *kernel ? status : at_make_from_disk(request, key, kernel, err);
}

/* The key of another kernel of a problem. It names no cache file. */
static void turn_into_key_apart(at_key *key, uint8_t number) {
    key->bytes[key->size++] = number;
    key->high = ~key->high;
}

/* Makes the kernel after a miss; an at_cache_make_fn. */
static attune_status make_kernel(void *user, const at_key *key, at_cache_node **node, at_error *err) {
    const at_request *request = user;
    attune_kernel *kernel = NULL;
    if (request->signature) at_signature_init(request->signature, request->operation.problem);
    at_error why = {0};
    attune_status status = make_from_kept(request, key, &kernel, &why);
    if (has_no_code(status) || (!status && !kernel))
        status = make_anew(request, key, &why, &kernel, err);
    else if (status)
        at_fail(err, status, "%s", why.message);
    if (status == ATTUNE_OK) *node = &kernel->node;
    return status;
}

/* ---- At once ---- */

/* The key of a fallback that runs while the kernel is compiled. */
static void turn_into_key_at_once(at_key *key, bool may_prepare) { turn_into_key_apart(key, may_prepare ? 1 : 2); }

static const char meanwhile[] = "its own kernel is being compiled";

static attune_status make_by_vm(const at_request *request, const at_key *key, attune_kernel **kernel, at_error *err) {
    at_arena arena;
    at_built built;
    at_arena_init(&arena, &request->context->allocator);
    attune_status status = at_build(request->context, &arena, request->operation, NULL, &built, err);
    if (!status) status = at_kernel_from_vm(request->context, built.lowered, kernel, err);
    at_arena_free(&arena);
    if (status) return status;
    at_make_complete(*kernel, request, key, &built.schedule, ATTUNE_FROM_VM, 0);
    at_make_tell_tier0(request, key, "the virtual machine", meanwhile);
    return ATTUNE_OK;
}

/* The fallback of a compiled kernel. Strict mode refuses whatever was not compiled for this problem. */
static attune_status make_stopgap(const at_request *request, const at_key *key, attune_kernel **kernel, at_error *err) {
    attune_context *const context = request->context;
    if (at_make_from_stand_in(request, key, meanwhile, kernel)) return ATTUNE_OK;
    const attune_status status = at_record_allow(&context->record, key, request->operation, NULL, err);
    if (status) return status;
    if (at_make_from_tier0(request, key, meanwhile, kernel)) return ATTUNE_OK;
    if (request->no_vm) return at_fail(err, ATTUNE_CODEGEN_MISSING, "no machine code is available yet");
    return make_by_vm(request, key, kernel, err);
}

/* Without a compiler; an at_cache_make_fn. */
static attune_status make_at_once(void *user, const at_key *key_at_once, at_cache_node **node, at_error *err) {
    const at_request *request = user;
    attune_kernel *kernel = NULL;
    at_key key;
    at_signature_init(request->signature, request->operation.problem);
    at_key_make(&key, request->operation, NULL, &request->context->machine);
    attune_status status = make_from_kept(request, &key, &kernel, err);
    if (status && !has_no_code(status)) return status;
    at_error_clear(err);
    if (!kernel) status = make_stopgap(request, &key, &kernel, err);
    if (status) return status;
    kernel->node.key = *key_at_once;
    *node = &kernel->node;
    return ATTUNE_OK;
}

/* ---- For tuning ---- */

/* Into the disk cache only. */
static attune_status replace_on_disk(attune_context *context, const at_key *key, at_operation operation,
                                     const mha_schedule *schedule, at_error *err) {
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

attune_status at_kernel_replace(attune_context *context, at_operation operation, const mha_schedule *schedule,
                                at_error *err) {
    at_key key;
    mha_schedule cached;
    at_key_make(&key, operation, NULL, &context->machine);
    attune_status status = ATTUNE_OK;
    if (!at_kernel_on_disk(context, operation, &cached) || !mha_schedule_same(&cached, schedule))
        status = replace_on_disk(context, &key, operation, schedule, err);
    if (!status) at_memory_cache_remove(&context->memory, &key);
    return status;
}

/* ---- From a request to a kernel ---- */

attune_status at_wish(const attune_context *context, const attune_problem *canonical, const char *text,
                      mha_schedule *wish, at_error *err) {
    if (!text) return ATTUNE_OK;
    return mha_schedule_of(text, canonical, context->target, &context->machine_class.description, wish, err);
}

/* Some 29 KB, allocated because LLVM needs the stack next (attune/expert/kernel.h has the limit). */
typedef struct miss {
    attune_problem canonical;
    mha_schedule schedule;
    at_key key, own_key; /* own_key: of a kernel beside a general one */
    at_signature signature;
    at_request request;
    int cancellation; /* of the thread, before */
} miss;

static miss *open_miss(attune_context *context, at_error *err) {
    miss *const m = at_alloc(&context->allocator, sizeof *m);
    if (m)
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &m->cancellation);
    else
        at_fail_memory(err, sizeof *m);
    return m;
}

static void close_miss(attune_context *context, miss *m) {
    const int cancellation = m->cancellation;
    at_free(&context->allocator, m);
    pthread_setcancelstate(cancellation, NULL);
}

static attune_status get(attune_context *context, at_operation operation, const mha_schedule *schedule, miss *m,
                         at_cache_node **node, at_error *err) {
    at_key_make(&m->key, operation, schedule, &context->machine);
    m->request =
        (at_request){context, operation, schedule, operation.op == &at_attention ? &m->signature : NULL, false, false};
    return at_memory_cache_get(&context->memory, &m->key, make_kernel, &m->request, node, err);
}

static attune_status find_or_make(attune_context *context, const attune_problem *problem, const char *schedule, miss *m,
                                  at_cache_node **node, at_error *err) {
    attune_status status = mha_canonicalize(problem, &m->canonical, err);
    if (!status) status = at_wish(context, &m->canonical, schedule, &m->schedule, err);
    if (status) return status;
    return get(context, at_attention_of(&m->canonical), schedule ? &m->schedule : NULL, m, node, err);
}

static attune_status get_at_once(attune_context *context, bool may_prepare, miss *m, at_cache_node **node,
                                 at_error *err) {
    const at_operation operation = at_attention_of(&m->canonical);
    at_key_make(&m->key, operation, NULL, &context->machine);
    *node = at_memory_cache_peek(&context->memory, &m->key);
    if (*node) return ATTUNE_OK;
    turn_into_key_at_once(&m->key, may_prepare);
    m->request = (at_request){context, operation, NULL, &m->signature, !may_prepare || context->never_by_vm, false};
    return at_memory_cache_get(&context->memory, &m->key, make_at_once, &m->request, node, err);
}

attune_status at_kernel_at_once(attune_context *context, const attune_problem *problem, bool may_prepare,
                                attune_kernel **kernel, at_error *err) {
    at_cache_node *node = NULL;
    miss *const m = open_miss(context, err);
    if (!m) return ATTUNE_OUT_OF_MEMORY;
    attune_status status = mha_canonicalize(problem, &m->canonical, err);
    if (!status) status = get_at_once(context, may_prepare, m, &node, err);
    *kernel = (attune_kernel *)node;
    close_miss(context, m);
    return status;
}

attune_status at_kernel_find_or_make(attune_context *context, const attune_problem *problem, const char *schedule,
                                     const uint64_t *hash, attune_kernel **kernel, at_error *err) {
    at_cache_node *node = NULL;
    miss *const m = open_miss(context, err);
    if (!m) return ATTUNE_OUT_OF_MEMORY;
    const attune_status status = find_or_make(context, problem, schedule, m, &node, err);
    if (!status) {
        if (hash) at_memory_cache_alias(&context->memory, node, problem, *hash);
        *kernel = (attune_kernel *)node;
    }
    close_miss(context, m);
    return status;
}

/* An at_cache_make_fn. */
static attune_status make_beside_general(void *user, const at_key *key, at_cache_node **node, at_error *err) {
    miss *const m = user;
    const attune_status status = make_kernel(&m->request, &m->key, node, err);
    if (!status) (*node)->key = *key;
    return status;
}

/* Steps go on to find the general kernel, which is faster. */
static attune_status replace_general(attune_context *context, miss *m, at_cache_node **node, at_error *err) {
    at_cache_node_release(&context->memory, *node);
    *node = NULL;
    m->own_key = m->key;
    turn_into_key_apart(&m->own_key, 3);
    m->request.no_general = true;
    return at_memory_cache_get(&context->memory, &m->own_key, make_beside_general, m, node, err);
}

static attune_status get_kernel(attune_context *context, at_operation operation, const mha_schedule *schedule,
                                bool may_be_general, attune_kernel **kernel, at_error *err) {
    at_cache_node *node = NULL;
    miss *const m = open_miss(context, err);
    if (!m) return ATTUNE_OUT_OF_MEMORY;
    attune_status status = get(context, operation, schedule, m, &node, err);
    if (!status && !may_be_general && ((const attune_kernel *)node)->is_general)
        status = replace_general(context, m, &node, err);
    *kernel = (attune_kernel *)node;
    close_miss(context, m);
    return status;
}

attune_status at_kernel_get(attune_context *context, at_operation operation, const mha_schedule *schedule,
                            attune_kernel **kernel, at_error *err) {
    return get_kernel(context, operation, schedule, false, kernel, err);
}

attune_status at_kernel_get_general(attune_context *context, at_operation operation, attune_kernel **kernel,
                                    at_error *err) {
    return get_kernel(context, operation, NULL, true, kernel, err);
}
