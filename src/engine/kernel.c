/* A kernel as an object (from an image, a bundle or the virtual machine), and the ways from a problem to loop IR and
 * image. A tuned schedule that a builder refuses is passed over for the chosen one. Which level a kernel comes from
 * is decided in kernel_make.c. */
#include "engine/kernel.h"

#include "base/fpenv.h"
#include "ir/passes.h"
#include "ir/text.h"
#include "operator/build.h"
#include "problem/problem_sight.h"
#include "schedule/schedule.h"
#include "schedule/variant.h"
#include "target/tuning_class.h"

#include <string.h>

/* ---- Kernels ---- */

void at_kernel_destroy(at_cache_node *node) {
    attune_kernel *kernel = (attune_kernel *)node;
    attune_context *context = kernel->context;
    at_symbols_remove(&context->symbols, kernel->symbol);
    at_code_unload(&kernel->code);
    at_free(&context->allocator, kernel->vm);
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
        kernel->phases[p] = (at_kernel_phase){.run = (at_phase_fn *)(void *)(code + phase->entry),
                                              .scratch_bytes = phase->scratch_bytes};
        if (phase->scratch_bytes > kernel->max_scratch) kernel->max_scratch = phase->scratch_bytes;
    }
}

attune_status at_kernel_blank(attune_context *context, uint32_t num_phases, attune_kernel **out, at_error *err) {
    const size_t total = sizeof(attune_kernel) + num_phases * sizeof(at_kernel_phase);
    attune_kernel *kernel = at_alloc_aligned(&context->allocator, total, 64);
    if (!kernel) return at_fail_memory(err, total);
    memset(kernel, 0, total);
    atomic_init(&kernel->node.refs, 1);
    kernel->context = context;
    kernel->target = context->target;
    const char *const in_table = at_class_find(context->machine_class.name);
    kernel->tuning_class = in_table ? in_table : context->machine_class.name;
    *out = kernel;
    return ATTUNE_OK;
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
    attune_status status = at_kernel_blank(context, image ? image->num_phases : 0, out, err);
    if (status) return status;
    attune_kernel *const kernel = *out;
    kernel->engine = image ? ATTUNE_ENGINE_JIT : ATTUNE_ENGINE_INTERPRETER;
    if (image) status = at_code_load(context->io, image, &kernel->code, err);
    if (status) {
        at_free(&context->allocator, kernel);
        *out = NULL;
        return status;
    }
    if (image) {
        fill_from_image(kernel, image);
        kernel->symbol = at_symbols_add(&context->symbols, name, kernel->code.base, image);
    }
    kernel->node.bytes = sizeof *kernel + kernel->code.bytes;
    return ATTUNE_OK;
}

attune_status at_kernel_from_bundle(attune_context *context, const at_bundle_code *code, attune_kernel **out,
                                    at_error *err) {
    if (!at_cpu_request(code->required))
        return at_fail(err, ATTUNE_UNSUPPORTED, "the code for %s needs features that this CPU lacks",
                       at_bundle_code_name(code));
    const attune_status status = at_kernel_blank(context, code->num_phases, out, err);
    if (status) return status;
    attune_kernel *const kernel = *out;
    kernel->engine = ATTUNE_ENGINE_JIT;
    kernel->tuning_class = at_bundle_code_machine(code);
    kernel->plan = at_bundle_code_plan(code);
    kernel->num_phases = code->num_phases;
    kernel->num_shared = code->num_shared;
    kernel->code_bytes = code->code_bytes;
    kernel->max_scratch = code->max_scratch;
    for (uint32_t p = 0; p < code->num_phases; p++) {
        const at_bundle_phase *const phase = at_bundle_code_phase(code, p);
        kernel->phases[p] = (at_kernel_phase){.run = at_bundle_phase_run(phase), .scratch_bytes = phase->scratch_bytes};
    }
    kernel->node.bytes = sizeof *kernel;
    return ATTUNE_OK;
}

static attune_ir_parameter describe(const ir_param *param) {
    const ir_buffer *const buffer = param->buffer;
    const ir_elem elem = (ir_elem)(buffer ? buffer->type.elem : param->var->type.elem);
    return (attune_ir_parameter){.name = buffer ? buffer->name : param->var->name,
                                 .elem = ir_elem_get(elem)->name,
                                 .is_buffer = buffer != NULL,
                                 .is_input = buffer && (buffer->access & IR_IN),
                                 .is_output = buffer && (buffer->access & IR_OUT)};
}

attune_status at_kernel_keep_ir(attune_kernel *kernel, at_arena *arena, ir_kernel *lowered, at_error *err) {
    const attune_allocator *const allocator = &kernel->context->allocator;
    const size_t count = lowered->num_params, bytes = (count + 1) * sizeof(attune_ir_parameter);
    at_kernel_ir *ir = at_alloc(allocator, sizeof *ir);
    if (!ir) return at_fail_memory(err, sizeof *ir);
    ir->parameters = at_alloc(allocator, bytes);
    if (!ir->parameters) {
        at_free(allocator, ir);
        return at_fail_memory(err, bytes);
    }
    ir->num_parameters = count;
    for (size_t i = 0; i < count; i++) {
        ir->parameters[i] = describe(&lowered->params[i]);
        ir->num_buffers += ir->parameters[i].is_buffer;
        ir->num_scalars += !ir->parameters[i].is_buffer;
    }
    ir->arena = *arena;
    ir->kernel = lowered;
    lowered->arena = &ir->arena;
    at_arena_init(arena, allocator);
    kernel->ir = ir;
    kernel->node.bytes += sizeof *ir + bytes + at_arena_bytes(&ir->arena);
    return ATTUNE_OK;
}

bool at_kernel_is_own(const attune_kernel *kernel) {
    return kernel->origin != ATTUNE_FROM_TIER0 && kernel->origin != ATTUNE_FROM_VM && !kernel->stands_in;
}

bool at_kernel_merges(const attune_kernel *kernel) {
    return kernel->tier0 ? kernel->merges : mha_merges_chunks(&kernel->signature.problem, &kernel->schedule);
}

bool at_kernel_falls(const attune_kernel *kernel) {
    return kernel->tier0 ? kernel->falls : mha_sees_more_later(&kernel->signature.problem);
}

size_t at_signature_added(const at_signature *s) {
    size_t count = 0;
    for (int which = 0; which < AT_NUM_ADDED; which++) count += s->adds[which];
    return count;
}

void at_kernel_plan_added(const attune_kernel *kernel, const int64_t *scalars, int64_t plan[AT_PLAN_WORDS]) {
    const at_signature *const s = &kernel->signature;
    int64_t *shared = plan + kernel->num_phases;
    const size_t added = at_signature_added(s);
    memmove(shared + added, shared, (kernel->num_shared - added) * sizeof *shared);
    for (int which = 0; which < AT_NUM_ADDED; which++)
        if (s->adds[which]) *shared++ = at_call_added_bytes(s, (at_added)which, scalars);
}

size_t at_kernel_buffers(const attune_kernel *kernel, const at_given *given, const int64_t *plan, void *workspace,
                         void **all) {
    const at_signature *const s = &kernel->signature;
    if (!s->is_of_other) {
        if (all != given->buffers) memcpy(all, given->buffers, given->count * sizeof *all);
        return at_place_shared(kernel, plan, workspace, all + given->count);
    }
    void *shared[AT_MAX_SHARED + AT_NUM_ADDED], *added[AT_NUM_ADDED] = {NULL};
    const size_t bytes = at_place_shared(kernel, plan, workspace, shared), count = at_signature_added(s);
    for (int which = 0, n = 0; which < AT_NUM_ADDED; which++)
        if (s->adds[which]) added[which] = shared[n++];
    const size_t num = at_call_taken_buffers(s, given->buffers, given->scalars, added, all);
    memcpy(all + num, shared + count, (kernel->num_shared - count) * sizeof *shared);
    return bytes;
}

/* ---- Building ---- */

attune_status at_build(attune_context *context, at_arena *arena, at_operation operation, const mha_schedule *wish,
                       at_built *built, at_error *err) {
    const at_operator *const op = operation.op;
    *built = (at_built){.schedule = {0}};
    if (wish) {
        const attune_status status = op->schedule_check(operation, wish, context->target, err);
        if (status) return status;
        built->schedule = *wish;
        built->scheduled = op->build(arena, operation, wish, context->target, err);
    } else {
        at_error refusal = {0}; /* of a tuned schedule, which is then passed over */
        if (context->find_tuned && context->find_tuned(context, operation, &built->schedule))
            built->scheduled = op->build(arena, operation, &built->schedule, context->target, &refusal);
        if (!built->scheduled) {
            op->schedule_choose(operation, context->target, &context->machine_class.description, &built->schedule);
            built->scheduled = op->build(arena, operation, &built->schedule, context->target, err);
        }
    }
    if (built->scheduled) built->lowered = ir_lower(built->scheduled, context->target, NULL, NULL, err);
    if (built->lowered) return ATTUNE_OK;
    return at_fail(err, err->status ? err->status : ATTUNE_INTERNAL, "the loop IR of this problem could not be built");
}

static bool schedule_on_disk(attune_context *context, at_operation operation, const at_key *key,
                             mha_schedule *schedule) {
    uint8_t *data = NULL;
    at_cache_file cached_file;
    if (!at_disk_cache_read(&context->disk, key, &data, &cached_file)) return false;
    *schedule = (mha_schedule){0};
    const bool good = !operation.op->schedule_parse(operation, cached_file.schedule, schedule, NULL);
    at_free(&context->allocator, data);
    return good;
}

static bool cached_schedule(attune_context *context, at_operation operation, mha_schedule *schedule) {
    at_key key;
    at_key_make(&key, operation, NULL, &context->machine);
    at_cache_node *node = at_memory_cache_peek(&context->memory, &key);
    if (!node) return schedule_on_disk(context, operation, &key, schedule);
    const attune_kernel *const kernel = (const attune_kernel *)node;
    const bool is_of_problem = !kernel->tier0 && !kernel->is_general;
    if (is_of_problem) *schedule = kernel->schedule;
    at_cache_node_release(&context->memory, node);
    return is_of_problem;
}

attune_status at_build_as_cached(attune_context *context, at_arena *arena, at_operation operation,
                                 const mha_schedule *wish, at_built *built, at_error *err) {
    mha_schedule cached;
    if (!wish && cached_schedule(context, operation, &cached)) wish = &cached;
    return at_build(context, arena, operation, wish, built, err);
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

attune_status at_build_image(attune_context *context, at_arena *arena, at_operation operation, const mha_schedule *wish,
                             at_built *built, void **image, size_t *bytes, at_error *err) {
    const attune_status status = at_build(context, arena, operation, wish, built, err);
    if (status) return status;
    return at_emit_stage(context, built->scheduled, built->lowered, ATTUNE_STAGE_IMAGE, image, bytes, err);
}

/* ---- For tuning ---- */

attune_status at_kernel_make_uncached(attune_context *context, at_operation operation, const mha_schedule *schedule,
                                      attune_kernel **kernel, at_error *err) {
    at_arena arena;
    at_built built;
    void *image = NULL;
    size_t bytes = 0;
    *kernel = NULL;
    at_arena_init(&arena, &context->allocator);
    attune_status status = at_build_image(context, &arena, operation, schedule, &built, &image, &bytes, err);
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

bool at_kernel_on_disk(attune_context *context, at_operation operation, mha_schedule *schedule) {
    at_key key;
    at_key_make(&key, operation, NULL, &context->machine);
    return schedule_on_disk(context, operation, &key, schedule);
}
