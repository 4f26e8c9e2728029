/* Runs a kernel: binds the arguments, then for each phase resolves its statements and runs its tasks in some order.
 *
 *     ir_kernel + arguments -> interp_compile*.c: names become addresses, operators function pointers
 *                           -> interp_exec.c, interp_value.c, interp_access.c: performed, every access checked
 *
 * Nothing is reordered or simplified: the result defines what the kernel means. */
#include "ir/interp/interp_internal.h"

void *interp_new(interp *run, size_t bytes) {
    void *pointer = at_arena_alloc(&run->arena, bytes ? bytes : 1);
    if (pointer) return pointer;
    at_fail_memory(run->err, bytes);
    longjmp(run->escape, 1);
}

/* ---- Arguments ---- */

static void bind_params(interp *run, void *const *buffers, const ir_interp_task *only) {
    const int64_t *scalar = run->scalars;
    for (uint32_t p = 0; p < run->kernel->num_params; p++) {
        const ir_var *var = run->kernel->params[p].var;
        if (!var) continue;
        void *place = interp_new(run, sizeof *scalar);
        memcpy(place, scalar++, sizeof *scalar); /* little-endian: the low half is the i32 or f32 */
        run->vars[var->id] = place;
        run->var_constant[var->id] = true;
    }
    for (uint32_t p = 0; p < run->kernel->num_params; p++)
        if (run->kernel->params[p].buffer) interp_bind_param(run, run->kernel->params[p].buffer, *buffers++);
    for (uint32_t s = 0; s < run->kernel->num_shared; s++) {
        if (only)
            interp_bind_param(run, run->kernel->shared[s], only->shared[s]);
        else
            interp_allocate(run, run->kernel->shared[s]);
    }
}

static void check_assumes(interp *run) {
    for (uint32_t a = 0; a < run->kernel->num_assumes; a++) {
        run->assumption = run->kernel->assumes[a];
        const uint8_t *holds = interp_eval(interp_compile_value(run, run->assumption));
        if (!*holds) interp_check_failed(run, "the assumption does not hold");
    }
}

/* ---- Phases ---- */

static void compile_phase(interp *run, const ir_phase *source, interp_phase *phase) {
    phase->num_tasks = 1;
    for (int l = 0; l < source->num_loops; l++) {
        const int64_t hi = interp_size(run, source->loops[l].hi);
        phase->counts[l] = hi > 0 ? hi : 0;
        phase->vars[l] = run->vars[source->loops[l].var->id] = interp_new(run, sizeof(int64_t));
        if (__builtin_mul_overflow(phase->num_tasks, phase->counts[l], &phase->num_tasks))
            interp_fail(run, ATTUNE_INVALID_ARGUMENT, "the number of tasks of a phase of @%s overflows",
                        run->kernel->name);
    }
    phase->body = interp_compile_block(run, &source->body);
    for (int l = 0; l < source->num_loops; l++) run->vars[source->loops[l].var->id] = NULL;
}

static void compile_phases(interp *run) {
    run->phases = interp_new(run, run->kernel->num_phases * sizeof *run->phases);
    interp_phase *phase = run->phases;
    for (const ir_phase *source = run->kernel->phases; source; source = source->next)
        compile_phase(run, source, phase++);
}

static uint64_t next_random(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 */
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static void shuffle_tasks(interp *run, int64_t num_tasks, uint64_t *state) {
    size_t bytes;
    run->order = at_mul_size((size_t)num_tasks, sizeof *run->order, &bytes) ? at_alloc(run->allocator, bytes) : NULL;
    if (!run->order) {
        at_fail_memory(run->err, (size_t)num_tasks);
        longjmp(run->escape, 1);
    }
    for (int64_t t = 0; t < num_tasks; t++) {
        const int64_t other = (int64_t)(next_random(state) % (uint64_t)(t + 1));
        run->order[t] = run->order[other];
        run->order[other] = t;
    }
}

static void run_task(interp *run, const interp_phase *phase, int num_loops, int64_t task) {
    for (int l = num_loops - 1; l >= 0; l--) {
        *phase->vars[l] = task % phase->counts[l];
        task /= phase->counts[l];
    }
    interp_run_block(run, phase->body);
}

static void run_only(interp *run, const ir_interp_task *only) {
    const ir_phase *source = run->kernel->phases;
    for (uint32_t p = 0; source && p < only->phase; p++) source = source->next;
    if (!source || only->task < 0 || only->task >= run->phases[only->phase].num_tasks)
        interp_fail(run, ATTUNE_INVALID_ARGUMENT, "@%s has no task %lld in a phase %u", run->kernel->name,
                    (long long)only->task, only->phase);
    run->phase = only->phase;
    run_task(run, &run->phases[only->phase], source->num_loops, only->task);
}

static void run_phases(interp *run, uint64_t seed) {
    const ir_phase *source = run->kernel->phases;
    for (run->phase = 0; run->phase < run->kernel->num_phases; run->phase++, source = source->next) {
        const interp_phase *phase = &run->phases[run->phase];
        if (seed) shuffle_tasks(run, phase->num_tasks, &seed);
        for (int64_t t = 0; t < phase->num_tasks; t++) {
            const int64_t task = run->order ? run->order[t] : t;
            run_task(run, phase, source->num_loops, task);
        }
        at_free(run->allocator, run->order);
        run->order = NULL;
    }
}

/* ---- The entry ---- */

/* The setjmp has a function of its own, so that no local variable lives across the jump. */
static void run_guarded(interp *run, void *const *buffers, const ir_interp_options *options) {
    if (setjmp(run->escape)) return;
    const ir_kernel *kernel = run->kernel;
    run->vars = interp_new(run, kernel->num_vars * sizeof *run->vars);
    run->var_constant = interp_new(run, kernel->num_vars * sizeof *run->var_constant);
    run->memories = interp_new(run, kernel->num_buffers * sizeof *run->memories);
    bind_params(run, buffers, options->only);
    check_assumes(run);
    compile_phases(run);
    if (options->only)
        run_only(run, options->only);
    else
        run_phases(run, options->shuffle_seed);
}

attune_status ir_interpret(const ir_kernel *kernel, void *const *buffers, const int64_t *scalars,
                           const ir_interp_options *options, at_error *err) {
    static const ir_interp_options usual = {0};
    at_error own = {0};
    if (!options) options = &usual;
    interp run = {.kernel = kernel, .scalars = scalars, .err = &own};
    run.allocator = options->allocator ? options->allocator : at_default_allocator();
    at_arena_init(&run.arena, run.allocator);
    run_guarded(&run, buffers, options);
    at_free(run.allocator, run.order);
    interp_free_memories(&run);
    at_arena_free(&run.arena);
    return own.status == ATTUNE_OK ? ATTUNE_OK : at_fail(err, own.status, "%s", own.message);
}
