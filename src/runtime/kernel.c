#include "runtime/kernel.h"

#include "ir/passes.h"
#include "ir/text.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* ---- Kernels ---- */

void at_kernel_destroy(at_cache_node *node) {
    attune_kernel *kernel = (attune_kernel *)node;
    attune_context *context = kernel->context;
    at_symbols_remove(&context->symbols, kernel->symbol);
    at_code_unload(&kernel->code);
    if (kernel->ir) {
        at_arena_free(&kernel->ir->arena);
        at_free(&context->allocator, kernel->ir->parameters);
        at_free(&context->allocator, kernel->ir);
    }
    at_free(&context->allocator, kernel);
}

void at_kernel_evicted(const at_cache_node *node) {
    char name[AT_NAME_CHARS + 1];
    at_key_name(&node->key, name);
    at_log_event(&((const attune_kernel *)node)->context->log,
                 (attune_event){.kind = ATTUNE_EVENT_EVICTED, .key = name});
}

static void fill_from_image(attune_kernel *kernel, const at_image_header *image) {
    char *code = kernel->code.base;
    kernel->plan = (at_plan_fn *)(void *)(code + image->plan_entry);
    kernel->num_phases = image->num_phases;
    kernel->num_shared = image->num_shared;
    kernel->code_bytes = image->code_bytes;
    for (uint32_t p = 0; p < image->num_phases; p++) {
        const at_image_phase *phase = &at_image_phases(image)[p];
        kernel->phases[p] = (at_kernel_phase){(at_phase_fn *)(void *)(code + phase->entry), phase->scratch_bytes};
        if (phase->scratch_bytes > kernel->max_scratch) kernel->max_scratch = phase->scratch_bytes;
    }
}

attune_status at_kernel_new(attune_context *context, const void *bytes, size_t num_bytes, const char *name,
                            attune_kernel **out, at_error *err) {
    const at_image_header *image = bytes;
    const char *why = image ? at_image_check(image, num_bytes) : NULL;
    if (why) return at_fail(err, ATTUNE_CODEGEN_FAILED, "the code generator gave a bad image: %s", why);
    if (image && (image->required & ~at_cpu_features()))
        return at_fail(err, ATTUNE_UNSUPPORTED, "the code for %s needs features that this CPU lacks (0x%x)",
                       context->target->name, image->required & ~at_cpu_features());
    if (image && !at_cpu_request(image->required))
        return at_fail(err, ATTUNE_UNSUPPORTED, "the system refuses this process the registers of %s",
                       context->target->name);
    const size_t total = sizeof(attune_kernel) + (image ? image->num_phases : 0) * sizeof(at_kernel_phase);
    attune_kernel *kernel = at_alloc_aligned(&context->allocator, total, 64);
    if (!kernel) return at_fail_memory(err, total);
    memset(kernel, 0, total);
    atomic_init(&kernel->node.refs, 1);
    kernel->context = context;
    kernel->target = context->target;
    kernel->tuning_class = context->machine_class.name;
    kernel->engine = image ? ATTUNE_ENGINE_JIT : ATTUNE_ENGINE_INTERPRETER;
    if (image) {
        const attune_status status = at_code_load(context->io, image, &kernel->code, err);
        if (status) {
            at_free(&context->allocator, kernel);
            return status;
        }
        fill_from_image(kernel, image);
        kernel->symbol = at_symbols_add(&context->symbols, name, kernel->code.base, image);
    }
    kernel->node.bytes = sizeof *kernel + kernel->code.bytes;
    *out = kernel;
    return ATTUNE_OK;
}

attune_status at_kernel_keep_ir(attune_kernel *kernel, at_arena *arena, ir_kernel *lowered, at_error *err) {
    at_kernel_ir *ir = at_alloc(&kernel->context->allocator, sizeof *ir);
    if (!ir) return at_fail_memory(err, sizeof *ir);
    ir->arena = *arena;
    ir->kernel = lowered;
    lowered->arena = &ir->arena;
    at_arena_init(arena, &kernel->context->allocator);
    kernel->ir = ir;
    return ATTUNE_OK;
}

/* ---- Building ---- */

attune_status at_build_problem(attune_context *context, at_arena *arena, const attune_problem *canonical,
                               const attune_schedule *wish, at_built *built, at_error *err) {
    *built = (at_built){.schedule = ATTUNE_SCHEDULE_INIT};
    if (wish) {
        const attune_status status = mha_schedule_check(canonical, wish, context->target, err);
        if (status) return status;
        built->schedule = *wish;
    } else if (!at_tuning_find(context, canonical, &built->schedule)) {
        mha_choose(canonical, context->target, &built->schedule);
    }
    built->scheduled = mha_build(arena, canonical, &built->schedule, context->target, err);
    if (built->scheduled) built->lowered = ir_lower(built->scheduled, context->target, NULL, NULL, err);
    if (built->lowered) return ATTUNE_OK;
    return at_fail(err, err->status ? err->status : ATTUNE_INTERNAL, "the loop IR of this problem could not be built");
}

static bool schedule_on_disk(attune_context *context, const at_key *key, attune_schedule *schedule) {
    uint8_t *data = NULL;
    at_entry entry;
    if (!at_disk_cache_read(&context->disk, key, &data, &entry)) return false;
    *schedule = (attune_schedule)ATTUNE_SCHEDULE_INIT;
    const bool good = !mha_schedule_parse(entry.schedule, schedule, NULL);
    at_free(&context->allocator, data);
    return good;
}

static bool cached_schedule(attune_context *context, const attune_problem *canonical, attune_schedule *schedule) {
    at_key key;
    at_key_make(&key, canonical, NULL, &context->machine);
    at_cache_node *node = at_memory_cache_peek(&context->memory, &key);
    if (!node) return schedule_on_disk(context, &key, schedule);
    *schedule = ((const attune_kernel *)node)->schedule;
    at_cache_node_release(&context->memory, node);
    return true;
}

attune_status at_build_as_cached(attune_context *context, at_arena *arena, const attune_problem *canonical,
                                 const attune_schedule *wish, at_built *built, at_error *err) {
    attune_schedule cached;
    if (!wish && cached_schedule(context, canonical, &cached)) wish = &cached;
    return at_build_problem(context, arena, canonical, wish, built, err);
}

static attune_status emit_text(const attune_context *context, const ir_kernel *kernel, void **data, size_t *bytes,
                               at_error *err) {
    at_string text;
    at_string_init(&text, &context->allocator);
    ir_print(kernel, &text);
    if (text.failed || !text.data) {
        at_string_free(&text);
        return at_fail_memory(err, text.capacity);
    }
    *data = text.data;
    *bytes = text.length;
    return ATTUNE_OK;
}

attune_status at_emit_stage(attune_context *context, const ir_kernel *scheduled, const ir_kernel *lowered,
                            attune_stage stage, void **data, size_t *bytes, at_error *err) {
    if ((unsigned)stage > ATTUNE_STAGE_IMAGE)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "stage is %d, which is no attune_stage", (int)stage);
    if (stage == ATTUNE_STAGE_IR) return emit_text(context, scheduled, data, bytes, err);
    attune_status status = emit_text(context, lowered, data, bytes, err);
    if (status || stage == ATTUNE_STAGE_LOWERED) return status;
    char *text = *data;
    const at_codegen_request request = {
        .ir = text, .ir_bytes = *bytes, .target = context->target->name, .stage = (int)stage};
    status = at_codegen_compile(&context->codegen, &request, data, bytes, err);
    at_free(&context->allocator, text);
    return status;
}

/* ---- Compiling a problem ---- */

typedef struct make_request {
    attune_context *context;
    const attune_problem *problem;   /* canonical */
    const attune_schedule *schedule; /* explicit, or NULL */
    at_signature *signature;         /* filled in by make_kernel */
} make_request;

static double milliseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

/* Whether an image takes the buffers and scalars that calls of the problem are going to give it. */
static bool image_fits(const void *bytes, const at_signature *signature) {
    const at_image_header *image = bytes;
    return image->num_buffers == signature->count && image->num_scalars == signature->num_scalars;
}

/* What symbols are named after, where somebody asks for them: printing a problem takes as long as finding its kernel on
 * disk. */
static void name_of(const attune_context *context, const attune_problem *problem, char *name, size_t capacity) {
    name[0] = '\0';
    if (context->symbols.enabled) mha_problem_print(problem, name, capacity);
    for (char *c = name; *c; c++)
        if (*c == ' ') *c = '_';
}

/* Tells what happens to the kernel of a request; `event` says what, and how it went. */
static void tell(const make_request *request, const at_key *key, attune_event event) {
    char name[AT_NAME_CHARS + 1], problem[2048];
    const at_log *log = &request->context->log;
    if (!log->event) return;
    at_key_name(key, name);
    mha_problem_print(request->problem, problem, sizeof problem);
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

/* A line for each compile, and nothing else that is not a warning. */
static void log_compile(const make_request *request, const at_key *key, double ms) {
    char name[AT_NAME_CHARS + 1], problem[2048];
    const attune_context *context = request->context;
    if (!context->log.fn) return;
    at_key_name(key, name);
    mha_problem_print(request->problem, problem, sizeof problem);
    at_log_printf(&context->log, ATTUNE_LOG_INFO, "compiled kernel %s for %s in %.1f ms %s: %s", name,
                  context->target->name, ms, context->codegen.uses_worker ? "by the worker" : "in this process",
                  problem);
}

static attune_dtype arithmetic_of(const attune_problem *p, const at_target *target) {
    if (mha_projects_by_pairs(p, target) || mha_attends_by_pairs(p, target)) return ATTUNE_BF16;
    return p->softmax_precision == ATTUNE_F64 ? ATTUNE_F64 : ATTUNE_F32;
}

static void complete(attune_kernel *kernel, const make_request *request, const at_key *key,
                     const attune_schedule *schedule, attune_origin origin, double started) {
    kernel->node.key = *key;
    kernel->is_mha = true;
    kernel->arithmetic = arithmetic_of(request->problem, kernel->target);
    kernel->signature = *request->signature;
    kernel->schedule = *schedule;
    kernel->origin = origin;
    if (origin == ATTUNE_FROM_COMPILER) kernel->compile_ms = milliseconds() - started;
}

/* From a verified entry: ATTUNE_OK with a kernel or without one; the only failure is that it cannot be loaded. */
static attune_status make_from_entry(const make_request *request, const at_key *key, const at_entry *entry,
                                     attune_kernel **kernel, at_error *err) {
    attune_context *context = request->context;
    attune_schedule schedule = ATTUNE_SCHEDULE_INIT;
    if (mha_schedule_parse(entry->schedule, &schedule, NULL)) {
        at_disk_cache_reject(&context->disk, entry, "its schedule cannot be read");
        return ATTUNE_OK;
    }
    if (!image_fits(entry->image, request->signature)) {
        at_disk_cache_reject(&context->disk, entry, "its code takes other arguments");
        return ATTUNE_OK;
    }
    char name[128];
    name_of(context, request->problem, name, sizeof name);
    const attune_status status = at_kernel_new(context, entry->image, entry->image_bytes, name, kernel, err);
    if (status == ATTUNE_OK) {
        atomic_fetch_add(&context->disk_hits, 1);
        complete(*kernel, request, key, &schedule, ATTUNE_FROM_DISK, 0);
    }
    return status;
}

static attune_status make_from_disk(const make_request *request, const at_key *key, attune_kernel **kernel,
                                    at_error *err) {
    const double started = request->context->log.event ? milliseconds() : 0;
    uint8_t *data = NULL;
    at_entry entry;
    *kernel = NULL;
    if (!at_disk_cache_read(&request->context->disk, key, &data, &entry)) return ATTUNE_OK;
    const attune_status status = make_from_entry(request, key, &entry, kernel, err);
    if (*kernel) tell_disk_hit(request, key, "", started);
    at_free(&request->context->allocator, data);
    return status;
}

/* Where nothing can be compiled: the kernel of the nearest other tuning class that there is, instead of none. */
static bool make_from_stand_in(const make_request *request, const at_key *key, const char *why,
                               attune_kernel **kernel) {
    attune_context *context = request->context;
    const double started = context->log.event ? milliseconds() : 0;
    uint8_t *data = NULL;
    at_entry entry;
    const char *found;
    char name[AT_NAME_CHARS + 1], text[ATTUNE_MESSAGE_BYTES + 128];
    *kernel = NULL;
    if (!at_disk_cache_read_near(&context->disk, key, &data, &entry, &found)) return false;
    if (!make_from_entry(request, key, &entry, kernel, NULL) && *kernel) {
        (*kernel)->tuning_class = found;
        atomic_fetch_add(&context->stand_ins, 1);
        at_key_name(key, name);
        snprintf(text, sizeof text, "the one for %s stands in, as there is none for %s and none can be compiled: %s",
                 found, context->machine_class.name, why);
        at_log_printf(&context->log, ATTUNE_LOG_WARNING, "kernel %s: %s", name, text);
        tell_disk_hit(request, key, text, started);
    }
    at_free(&context->allocator, data);
    return *kernel != NULL;
}

typedef void save_fn(at_disk_cache *cache, const at_key *key, const at_entry *entry);

static void save(attune_context *context, const at_key *key, const attune_problem *problem,
                 const attune_schedule *schedule, const void *image, size_t image_bytes, save_fn *to_disk) {
    char problem_text[2048], schedule_text[512];
    if (mha_problem_print(problem, problem_text, sizeof problem_text) >= sizeof problem_text) return;
    if (mha_schedule_print(schedule, schedule_text, sizeof schedule_text) >= sizeof schedule_text) return;
    const at_entry entry = {.required = ((const at_image_header *)image)->required,
                            .key = key->bytes,
                            .key_bytes = key->size,
                            .problem = problem_text,
                            .schedule = schedule_text,
                            .isa = context->target->name,
                            .image = image,
                            .image_bytes = image_bytes};
    to_disk(&context->disk, key, &entry);
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
    name_of(context, request->problem, name, sizeof name);
    const char *why = at_image_check(image, bytes);
    if (!why && !image_fits(image, request->signature)) why = "it takes other arguments than the problem gives";
    if (why)
        status = at_fail(err, ATTUNE_CODEGEN_FAILED, "the code generator gave a bad image: %s", why);
    else
        status = at_kernel_new(context, image, bytes, name, kernel, err);
    /* Good code that this process may not execute is still good for the next one. */
    if (status == ATTUNE_OK || status == ATTUNE_NO_EXEC_MEMORY)
        save(context, key, request->problem, &built->schedule, image, bytes, at_disk_cache_write);
    at_free(&context->allocator, image);
    return status;
}

static bool may_interpret(const attune_context *context, attune_status status) {
    return context->allow_interpreter && (status == ATTUNE_CODEGEN_MISSING || status == ATTUNE_NO_EXEC_MEMORY);
}

static attune_status make_interpreted(const make_request *request, at_arena *arena, const at_built *built,
                                      attune_kernel **kernel, at_error *err) {
    attune_status status = at_kernel_new(request->context, NULL, 0, "", kernel, err);
    if (status) return status;
    status = at_kernel_keep_ir(*kernel, arena, built->lowered, err);
    if (status) at_kernel_destroy(&(*kernel)->node);
    return status;
}

static attune_status compile(const make_request *request, const at_key *key, attune_status disk_status,
                             attune_kernel **kernel, at_error *err) {
    attune_context *context = request->context;
    const double started = milliseconds();
    at_arena arena;
    at_built built;
    at_arena_init(&arena, &context->allocator);
    attune_status status = at_build_problem(context, &arena, request->problem, request->schedule, &built, err);
    if (status == ATTUNE_OK) {
        at_error why = {0};
        status = disk_status ? disk_status : make_by_compiling(request, key, &built, kernel, &why);
        if (status == ATTUNE_CODEGEN_MISSING && make_from_stand_in(request, key, why.message, kernel)) {
            at_arena_free(&arena);
            return ATTUNE_OK;
        }
        if (may_interpret(context, status)) {
            at_log_printf(&context->log, ATTUNE_LOG_WARNING, "the interpreter runs this kernel: %s",
                          disk_status ? "no executable memory" : why.message);
            status = make_interpreted(request, &arena, &built, kernel, err);
        } else if (status) {
            at_fail(err, status, "%s", why.message);
        }
    }
    at_arena_free(&arena);
    atomic_fetch_add(status ? &context->compile_failures : &context->compiles, 1);
    if (status) return status;
    complete(*kernel, request, key, &built.schedule, ATTUNE_FROM_COMPILER, started);
    if ((*kernel)->engine == ATTUNE_ENGINE_JIT) log_compile(request, key, (*kernel)->compile_ms);
    return ATTUNE_OK;
}

static attune_status make_anew(const make_request *request, const at_key *key, attune_status disk_status,
                               attune_kernel **kernel, at_error *err) {
    attune_context *context = request->context;
    at_record_miss(&context->record, key, request->problem, request->schedule);
    tell(request, key, (attune_event){.kind = ATTUNE_EVENT_MISS});
    at_error forbidden = {0};
    if (at_record_allow(&context->record, key, request->problem, request->schedule, &forbidden))
        return make_from_stand_in(request, key, "ATTUNE_STRICT is set", kernel)
                   ? ATTUNE_OK
                   : at_fail(err, forbidden.status, "%s", forbidden.message);
    tell(request, key, (attune_event){.kind = ATTUNE_EVENT_COMPILE_BEGIN});
    const double started = milliseconds();
    attune_status status = compile(request, key, disk_status, kernel, err);
    const bool stands_in = !status && (*kernel)->origin == ATTUNE_FROM_DISK;
    tell(request, key,
         (attune_event){.kind = ATTUNE_EVENT_COMPILE_END,
                        .status = stands_in ? ATTUNE_CODEGEN_MISSING : status,
                        .message = status      ? err->message
                                   : stands_in ? "the kernel of another tuning class stands in"
                                               : "",
                        .milliseconds = milliseconds() - started});
    return status;
}

/* What a miss does; an at_cache_make_fn. */
static attune_status make_kernel(void *user, const at_key *key, at_cache_node **node, at_error *err) {
    const make_request *request = user;
    attune_kernel *kernel = NULL;
    at_signature_init(request->signature, request->problem);
    at_error why = {0};
    attune_status status = make_from_disk(request, key, &kernel, &why);
    if (status == ATTUNE_OK && !kernel)
        status = make_anew(request, key, ATTUNE_OK, &kernel, err);
    else if (may_interpret(request->context, status))
        status = make_anew(request, key, status, &kernel, err);
    else if (status)
        at_fail(err, status, "%s", why.message);
    if (status == ATTUNE_OK) *node = &kernel->node;
    return status;
}

/* ---- For tuning ---- */

attune_status at_kernel_make_uncached(attune_context *context, const attune_problem *canonical,
                                      const attune_schedule *schedule, attune_kernel **kernel, at_error *err) {
    at_arena arena;
    at_built built;
    void *image = NULL;
    size_t bytes = 0;
    *kernel = NULL;
    at_arena_init(&arena, &context->allocator);
    attune_status status = at_build_problem(context, &arena, canonical, schedule, &built, err);
    if (!status)
        status = at_emit_stage(context, built.scheduled, built.lowered, ATTUNE_STAGE_IMAGE, &image, &bytes, err);
    if (!status) status = at_kernel_new(context, image, bytes, "candidate", kernel, err);
    at_free(&context->allocator, image);
    if (!status) status = at_kernel_keep_ir(*kernel, &arena, built.lowered, err);
    if (!status) (*kernel)->schedule = *schedule;
    at_arena_free(&arena);
    if (status && *kernel) {
        at_kernel_destroy(&(*kernel)->node);
        *kernel = NULL;
    }
    return status;
}

/* Into the disk cache only. */
static attune_status replace_on_disk(attune_context *context, const at_key *key, const attune_problem *canonical,
                                     const attune_schedule *schedule, at_error *err) {
    at_arena arena;
    at_built built;
    void *image = NULL;
    size_t bytes = 0;
    at_arena_init(&arena, &context->allocator);
    attune_status status = at_build_problem(context, &arena, canonical, schedule, &built, err);
    if (!status)
        status = at_emit_stage(context, built.scheduled, built.lowered, ATTUNE_STAGE_IMAGE, &image, &bytes, err);
    if (!status) save(context, key, canonical, schedule, image, bytes, at_disk_cache_replace);
    at_free(&context->allocator, image);
    at_arena_free(&arena);
    return status;
}

attune_status at_kernel_replace(attune_context *context, const attune_problem *canonical,
                                const attune_schedule *schedule, at_error *err) {
    at_key key;
    attune_schedule cached;
    at_key_make(&key, canonical, NULL, &context->machine);
    attune_status status = ATTUNE_OK;
    if (!schedule_on_disk(context, &key, &cached) || memcmp(&cached, schedule, AT_SCHEDULE_BYTES))
        status = replace_on_disk(context, &key, canonical, schedule, err);
    if (!status) at_memory_cache_remove(&context->memory, &key);
    return status;
}

bool at_kernel_on_disk(attune_context *context, const attune_problem *canonical, attune_schedule *schedule) {
    at_key key;
    at_key_make(&key, canonical, NULL, &context->machine);
    return schedule_on_disk(context, &key, schedule);
}

/* ---- Public ---- */

static attune_status compile_slowly(attune_context *context, const attune_problem *problem,
                                    const attune_schedule *schedule, const at_raw_key *raw, uint64_t hash,
                                    attune_kernel **kernel) {
    at_error err = {0};
    attune_problem canonical;
    attune_schedule whole;
    at_key key;
    at_cache_node *node = NULL;
    attune_status status = mha_canonicalize(problem, &canonical, &err);
    if (!status) status = mha_schedule_in(&schedule, &whole, &err);
    if (!status && schedule) status = mha_schedule_check(&canonical, schedule, context->target, &err);
    if (status) return at_report(&err);
    at_key_make(&key, &canonical, schedule, &context->machine);
    at_signature signature;
    make_request request = {context, &canonical, schedule, &signature};
    if (at_memory_cache_get(&context->memory, &key, make_kernel, &request, &node, &err)) return at_report(&err);
    if (raw) at_memory_cache_alias(&context->memory, node, raw, hash);
    *kernel = (attune_kernel *)node;
    return ATTUNE_OK;
}

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

attune_status attune_kernel_get_info(const attune_kernel *kernel, attune_kernel_info *info) {
    at_error err = {0};
    if (!kernel || !info) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_kernel_get_info was given NULL");
        return at_report(&err);
    }
    attune_kernel_info full = {
        .engine = kernel->engine,
        .origin = kernel->origin,
        .schedule = kernel->schedule,
        .isa = kernel->target->name,
        .num_phases = kernel->num_phases,
        .code_bytes = kernel->code_bytes,
        .scratch_bytes = kernel->max_scratch,
        .compile_ms = kernel->compile_ms,
        .arithmetic = kernel->is_mha ? kernel->arithmetic : ATTUNE_F32,
        .machine = kernel->tuning_class,
    };
    if (kernel->is_mha) at_key_name(&kernel->node.key, full.key);
    at_copy_out(info, &full, sizeof full, "attune_kernel_info", &err);
    return at_report(&err);
}

attune_status attune_emit(attune_context *context, const attune_problem *problem, const attune_schedule *schedule,
                          attune_stage stage, void **data, size_t *bytes) {
    at_error err = {0};
    attune_problem canonical;
    attune_schedule whole;
    if (!context || !problem || !data || !bytes) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_emit was given NULL");
        return at_report(&err);
    }
    *data = NULL;
    *bytes = 0;
    if (mha_canonicalize(problem, &canonical, &err) || mha_schedule_in(&schedule, &whole, &err)) return at_report(&err);
    at_arena arena;
    at_built built;
    at_arena_init(&arena, &context->allocator);
    if (at_build_as_cached(context, &arena, &canonical, schedule, &built, &err) == ATTUNE_OK)
        at_emit_stage(context, built.scheduled, built.lowered, stage, data, bytes, &err);
    at_arena_free(&arena);
    return at_report(&err);
}

void attune_free(attune_context *context, void *data) {
    if (context) at_free(&context->allocator, data);
}
