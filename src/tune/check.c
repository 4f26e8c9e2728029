/* Compares machine code with the interpreter, on one task of each phase. */
#include "tune/candidates.h"

#include "ir/interp.h"

#include <string.h>

enum { ALIGN = 64 };

/* All that a kernel writes, as one engine sees it: the workspace, which begins with the shared buffers, and after it
 * copies of the tensors that it writes to. */
typedef struct side {
    unsigned char *memory;
    void *buffers[TUNE_MAX_OPERANDS], *shared[AT_MAX_SHARED];
} side;

typedef struct check {
    tune_runner *runner;
    const attune_kernel *kernel;
    const ir_kernel *meaning;
    int64_t plan[AT_PLAN_WORDS];
    size_t workspace_bytes, shared_bytes, tensor_bytes;
    side machine, interpreter;
} check;

/* ---- The data that are compared ---- */

static bool is_nan(ir_elem elem, const unsigned char *at) {
    uint16_t half;
    float single;
    double wide;
    switch (elem) {
    case IR_F16: memcpy(&half, at, sizeof half); return (half & 0x7fff) > 0x7c00;
    case IR_BF16: memcpy(&half, at, sizeof half); return (half & 0x7fff) > 0x7f80;
    case IR_F32: memcpy(&single, at, sizeof single); return single != single;
    case IR_F64: memcpy(&wide, at, sizeof wide); return wide != wide;
    default: return false;
    }
}

static bool same_values(ir_elem elem, const unsigned char *a, const unsigned char *b, size_t bytes) {
    if (!memcmp(a, b, bytes)) return true;
    const size_t width = ir_elem_get(elem)->bytes;
    for (size_t i = 0; i < bytes; i += width)
        if (memcmp(a + i, b + i, width) && !(is_nan(elem, a + i) && is_nan(elem, b + i))) return false;
    return true;
}

/* Room for a tensor, by place in the table; inputs need none. */
static size_t room(const tune_runner *r, size_t i) {
    if (!r->operands[i].is_output) return 0;
    return (size_t)(r->operands[i].bytes + ALIGN - 1) / ALIGN * ALIGN;
}

static bool same_outputs(const tune_runner *r, const side *a, const side *b) {
    for (size_t i = 0; i < r->num_operands; i++)
        if (room(r, i) && !same_values(r->operands[i].elem, a->buffers[i], b->buffers[i], r->operands[i].bytes))
            return false;
    return true;
}

static bool same_sides(const check *c) {
    for (uint32_t s = 0; s < c->kernel->num_shared; s++)
        if (!same_values((ir_elem)c->meaning->shared[s]->type.elem, c->machine.shared[s], c->interpreter.shared[s],
                         (size_t)c->plan[c->kernel->num_phases + s]))
            return false;
    return same_outputs(c->runner, &c->machine, &c->interpreter);
}

/* ---- Two sides ---- */

/* Outputs begin as zeros, what is also read as it was before the first run. The bytes between the caller's elements may
 * belong to others. */
static attune_status open_side(const check *c, side *s, at_error *err) {
    const tune_runner *r = c->runner;
    const size_t bytes = c->workspace_bytes + c->tensor_bytes;
    s->memory = at_alloc_aligned(&r->context->allocator, bytes + ALIGN, ALIGN);
    if (!s->memory) return at_fail_memory(err, bytes);
    memset(s->memory, 0, bytes);
    memcpy(s->buffers, r->buffers, r->num_operands * sizeof *s->buffers);
    unsigned char *at = s->memory + c->workspace_bytes;
    const unsigned char *kept = r->contents;
    for (size_t i = 0; i < r->num_operands; at += room(r, i++)) {
        const size_t kept_bytes = tune_runner_kept_bytes(r, i);
        if (!room(r, i)) continue;
        if (r->operands[i].is_input) memcpy(at, kept_bytes ? kept : s->buffers[i], r->operands[i].bytes);
        if (kept_bytes) kept += kept_bytes;
        s->buffers[i] = at;
    }
    return ATTUNE_OK;
}

static attune_status open_check(check *c, at_error *err) {
    const tune_runner *r = c->runner;
    attune_status status =
        at_plan_workspace(c->kernel, r->context->team.max_workers, r->scalars, c->plan, &c->workspace_bytes, err);
    if (status) return status;
    for (size_t i = 0; i < r->num_operands; i++) c->tensor_bytes += room(r, i);
    status = open_side(c, &c->machine, err);
    if (!status) status = open_side(c, &c->interpreter, err);
    if (status) return status;
    c->shared_bytes = at_place_shared(c->kernel, c->plan, c->machine.memory, c->machine.shared);
    at_place_shared(c->kernel, c->plan, c->interpreter.memory, c->interpreter.shared);
    return ATTUNE_OK;
}

static void close_check(const check *c) {
    at_free(&c->runner->context->allocator, c->machine.memory);
    at_free(&c->runner->context->allocator, c->interpreter.memory);
}

/* Both engines go on from the results of machine code so far. */
static void share_state(const check *c) {
    memcpy(c->interpreter.memory, c->machine.memory, c->shared_bytes);
    memcpy(c->interpreter.memory + c->workspace_bytes, c->machine.memory + c->workspace_bytes, c->tensor_bytes);
}

/* ---- Tasks ---- */

static attune_status run_tasks(check *c, uint32_t phase, int64_t first, int64_t count, at_error *err) {
    const at_run_part part = {
        .begin = phase, .end = phase + 1, .first = first, .step = 1, .run = count, .count = count};
    const at_run run = {.buffers = c->machine.buffers,
                        .num_buffers = c->runner->num_operands,
                        .scalars = c->runner->scalars,
                        .workspace = c->machine.memory,
                        .workspace_bytes = c->workspace_bytes,
                        .work = AT_LONG_WORK,
                        .team = &c->runner->context->team,
                        .part = &part};
    return count ? at_run_machine_code(c->runner->context, c->kernel, &run, err) : ATTUNE_OK;
}

static attune_status interpret(check *c, uint32_t phase, int64_t task, at_error *err) {
    const ir_interp_task only = {.phase = phase, .task = task, .shared = c->interpreter.shared};
    const ir_interp_options options = {.allocator = &c->runner->context->allocator, .only = &only};
    return ir_interpret(c->meaning, c->interpreter.buffers, c->runner->scalars, &options, err);
}

static uint64_t next_random(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

/* A task by both; then the rest of the phase, which the next ones need. Each task runs once. */
static attune_status check_phase(check *c, uint32_t phase, bool *same, at_error *err) {
    const int64_t tasks = c->plan[phase];
    if (tasks <= 0) return ATTUNE_OK;
    const int64_t task = (int64_t)(next_random(&c->runner->seed) % (uint64_t)tasks);
    share_state(c);
    attune_status status = run_tasks(c, phase, task, 1, err);
    if (!status) status = interpret(c, phase, task, err);
    if (!status) *same = same_sides(c);
    if (status || !*same || phase + 1 == c->kernel->num_phases) return status;
    status = run_tasks(c, phase, 0, task, err);
    return status ? status : run_tasks(c, phase, task + 1, tasks - task - 1, err);
}

attune_status tune_runner_check(tune_runner *r, const attune_kernel *kernel, const ir_kernel *meaning, bool *same,
                                at_error *err) {
    check c = {.runner = r, .kernel = kernel, .meaning = meaning};
    attune_status status = open_check(&c, err);
    *same = !status;
    for (uint32_t p = 0; !status && *same && p < kernel->num_phases; p++) status = check_phase(&c, p, same, err);
    close_check(&c);
    if (status) *same = false;
    return status;
}

/* ---- Whole calls ---- */

static attune_status run_whole(check *c, const attune_kernel *kernel, const side *s, at_error *err) {
    const tune_runner *const r = c->runner;
    const at_run run = {.buffers = s->buffers,
                        .num_buffers = r->num_operands,
                        .scalars = r->scalars,
                        .work = r->work,
                        .team = &r->context->team};
    return at_run_machine_code(r->context, kernel, &run, err);
}

attune_status tune_runner_compare(tune_runner *r, const attune_kernel *kernel, const attune_kernel *other, bool *same,
                                  at_error *err) {
    check c = {.runner = r};
    for (size_t i = 0; i < r->num_operands; i++) c.tensor_bytes += room(r, i);
    attune_status status = open_side(&c, &c.machine, err);
    if (!status) status = open_side(&c, &c.interpreter, err);
    if (!status) status = run_whole(&c, kernel, &c.machine, err);
    if (!status) status = run_whole(&c, other, &c.interpreter, err);
    *same = !status && same_outputs(r, &c.machine, &c.interpreter);
    close_check(&c);
    return status;
}
