/* A kernel is timed by samples of its phases, each long enough for the clock and repeated when it was interrupted, or
 * by whole calls where those are short and the machine is not busy. */
#include "tune/candidates.h"

#include "call/ir_call.h"
#include "ir/interp.h"
#include "ir/passes.h"
#include "ir/text.h"
#include "problem/problem_sight.h"

#include <string.h>
#include <sys/resource.h>
#include <time.h>

/* A sample is long enough for the clock, and so short that most are not interrupted. */
static const double SHORTEST = 40e-6, LONGEST = 0.25e-3;
/* Calls that take longer are not run as a whole, if they can be run in parts. */
static const double LONG_CALL = 0.05;
/* All samples of one side of a pair. */
static const double SAMPLES_LONGEST = 4e-3;
/* Measurements that need the CPU for longer are not repeated when they were interrupted: most of them are. */
static const double LONGEST_TO_REPEAT = 4e-3;
/* How many times slower than machine code the interpreter is at its fastest. */
static const double SLOWNESS = 120;

enum { ALIGN = 64 };

/* ---- The call ---- */

/* Entries and heads of a batch differ in no more than their numbers. */
static bool has_alike_entries(const attune_problem *p) {
    return mha_attends(p) && !p->is_ragged && !p->has_kv_lens && !p->has_causal_offsets;
}

/* Rows of a sequence attend to equally many keys, except for those at its ends. */
static bool has_level_rows(const attune_problem *p, const mha_sizes *sizes) {
    if (p->window_left >= 0 && p->window_left < sizes->of[MHA_SEQ_KV] / 2) return true;
    return !mha_has_first_key(p) && !mha_has_last_key(p);
}

static attune_status take_attention(tune_runner *r, const tune_task *task, at_error *err) {
    const attune_problem *p = task->operation.problem;
    at_signature_init(&r->signature, p);
    const attune_status status = at_call_make(&r->signature, NULL, task->arguments, &r->call, err);
    if (status) return status;
    const at_settled *const settled = r->call.settled;
    r->operation = at_attention_of(&r->signature.problem);
    r->buffers = r->call.buffers;
    r->scalars = settled->scalars;
    r->num_operands = r->signature.count;
    for (size_t i = 0; i < r->num_operands; i++) {
        const mha_tensor *const t = &r->signature.tensors[i];
        r->operands[i] = (tune_operand){t->elem, t->access & IR_IN, t->access & IR_OUT, settled->bytes[i]};
    }
    r->work = settled->is_empty ? 0 : at_work_of(settled->flops, r->context->target);
    r->are_alike = has_alike_entries(p);
    r->are_level = has_level_rows(p, &settled->sizes);
    return settled->is_empty
               ? at_fail(err, ATTUNE_INVALID_ARGUMENT, "the call to tune with has no work: no output has elements")
               : ATTUNE_OK;
}

/* The operands of a call of a kernel in loop IR; the call was checked. */
static attune_status list_operands(const ir_kernel *kernel, const int64_t *scalars,
                                   tune_operand operands[TUNE_MAX_OPERANDS], size_t *count, at_error *err) {
    *count = 0;
    for (uint32_t i = 0; i < kernel->num_params; i++) {
        const ir_buffer *const b = kernel->params[i].buffer;
        int64_t bytes;
        if (!b) continue;
        if (*count == TUNE_MAX_OPERANDS)
            return at_fail(err, ATTUNE_UNSUPPORTED, "@%s has more than %d buffers, too many to tune it", kernel->name,
                           TUNE_MAX_OPERANDS);
        if (b->num_dims && b->strides[0])
            return at_fail(err, ATTUNE_UNSUPPORTED,
                           "%s of @%s has strides of its own; only contiguous buffers can be tuned with", b->name,
                           kernel->name);
        if (at_ir_buffer_bytes(kernel, b, scalars, &bytes, err)) return err->status;
        operands[(*count)++] =
            (tune_operand){(ir_elem)b->type.elem, b->access & IR_IN, b->access & IR_OUT, (uint64_t)bytes};
    }
    return ATTUNE_OK;
}

/* What the caller's buffers hold that are both read and written: runs change them, so each check begins anew. */
static attune_status keep_contents(tune_runner *r, at_error *err) {
    size_t bytes = 0, at = 0;
    for (size_t i = 0; i < r->num_operands; i++) bytes += tune_runner_kept_bytes(r, i);
    if (!bytes) return ATTUNE_OK;
    r->contents = at_alloc_aligned(&r->context->allocator, bytes, ALIGN);
    if (!r->contents) return at_fail_memory(err, bytes);
    for (size_t i = 0; i < r->num_operands; at += tune_runner_kept_bytes(r, i++))
        if (tune_runner_kept_bytes(r, i)) memcpy(r->contents + at, r->buffers[i], r->operands[i].bytes);
    return ATTUNE_OK;
}

/* The call as the kernel of the usual numbers takes it. */
static attune_status read_usual(tune_runner *r, ir_kernel *scheduled, at_error *err) {
    ir_kernel *const kernel = scheduled ? ir_lower(scheduled, r->context->target, NULL, NULL, err) : NULL;
    attune_status status = kernel ? at_ir_check_call(kernel, r->buffers, r->scalars, err) : err->status;
    if (!status) status = list_operands(kernel, r->scalars, r->operands, &r->num_operands, err);
    if (status) return status;
    ir_print_params(kernel, &r->params);
    return r->params.failed ? at_fail_memory(err, r->params.capacity) : keep_contents(r, err);
}

/* The parameters are those of the kernel that has the usual numbers. Nothing is known of the work, or of what tasks
 * have in common. */
static attune_status take_own(tune_runner *r, const tune_task *task, at_error *err) {
    at_arena arena;
    mha_schedule usual;
    const at_operation o = task->operation;
    r->operation = o;
    r->buffers = task->buffers;
    r->scalars = task->scalars;
    r->work = AT_LONG_WORK;
    at_arena_init(&arena, &r->context->allocator);
    o.op->schedule_choose(o, r->context->target, &r->context->machine_class.description, &usual);
    const attune_status status = read_usual(r, o.op->build(&arena, o, &usual, r->context->target, err), err);
    at_arena_free(&arena);
    bool has_work = false;
    for (size_t i = 0; i < r->num_operands; i++) has_work |= r->operands[i].is_output && r->operands[i].bytes;
    if (status || has_work) return status;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the call to tune with has no work: no output has elements");
}

/* The caller's arrays have room for the usual kernel's parameters, so these are compared before any is read. */
static bool has_same_params(const tune_runner *r, const ir_kernel *kernel) {
    at_string params;
    at_string_init(&params, &r->context->allocator);
    ir_print_params(kernel, &params);
    const bool same = !params.failed && params.length == r->params.length &&
                      !memcmp(params.data ? params.data : "", r->params.data ? r->params.data : "", params.length);
    at_string_free(&params);
    return same;
}

bool tune_runner_can_run(const tune_runner *r, const attune_kernel *kernel) {
    at_error err = {0};
    return has_same_params(r, kernel->ir->kernel) &&
           !at_ir_check_call(kernel->ir->kernel, r->buffers, r->scalars, &err);
}

attune_status tune_runner_init(tune_runner *r, attune_context *context, const tune_task *task, at_error *err) {
    *r = (tune_runner){.context = context, .share = 1, .repeats = 1, .samples = 1, .seed = 1};
    at_string_init(&r->params, &context->allocator);
    return task->operation.op == &at_attention ? take_attention(r, task, err) : take_own(r, task, err);
}

void tune_runner_free(tune_runner *r) {
    at_string_free(&r->params);
    at_free(&r->context->allocator, r->contents);
    at_free(&r->context->allocator, r->workspace);
}

/* Memory that no phase has written yet must hold ordinary numbers, since some others are slow: in all types these bytes
 * are between 1e-18 and 60. Phases hand on nothing but numbers, so no address depends on them. */
static attune_status grow_workspace(tune_runner *r, size_t bytes, at_error *err) {
    enum { ORDINARY = 0x3c };
    if (bytes <= r->workspace_bytes) return ATTUNE_OK;
    unsigned char *larger = at_alloc_aligned(&r->context->allocator, bytes, ALIGN);
    if (!larger) return at_fail_memory(err, bytes);
    if (r->workspace) memcpy(larger, r->workspace, r->workspace_bytes);
    memset(larger + r->workspace_bytes, ORDINARY, bytes - r->workspace_bytes);
    at_free(&r->context->allocator, r->workspace);
    r->workspace = larger;
    r->workspace_bytes = bytes;
    return ATTUNE_OK;
}

/* ---- Running ---- */

static bool is_small(const tune_runner *r) { return r->work < AT_SMALL_WORK; }

/* part: NULL for the whole call. */
static attune_status run(tune_runner *r, const attune_kernel *kernel, const at_run_part *part, at_error *err) {
    int64_t plan[AT_PLAN_WORDS];
    size_t bytes;
    attune_status status = at_plan_workspace(kernel, r->context->team.max_workers, r->scalars, plan, &bytes, err);
    if (!status) status = grow_workspace(r, bytes, err);
    if (status) return status;
    const at_run call = {.buffers = r->buffers,
                         .num_buffers = r->num_operands,
                         .scalars = r->scalars,
                         .workspace = r->workspace,
                         .workspace_bytes = r->workspace_bytes,
                         .work = r->work,
                         .team = &r->context->team,
                         .part = part};
    return at_run_machine_code(r->context, kernel, &call, err);
}

/* ---- Timing ---- */

static double read_clock(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static double now(void) { return read_clock(CLOCK_MONOTONIC); }

/* How often threads of this process lost their CPU to others. */
static long interruptions(void) {
    struct rusage usage;
    return getrusage(RUSAGE_SELF, &usage) ? 0 : usage.ru_nivcsw;
}

static attune_status time_part(tune_runner *r, const attune_kernel *kernel, const at_run_part *part, double *seconds,
                               at_error *err) {
    const double start = now();
    const attune_status status = run(r, kernel, part, err);
    *seconds = now() - start;
    return status;
}

/* Runs a part, or the call so often that it is long enough. */
static attune_status time_once(tune_runner *r, const attune_kernel *kernel, const at_run_part *part, double *sum,
                               at_error *err) {
    double seconds;
    *sum = 0;
    for (int64_t i = 0; i < (part ? 1 : r->repeats); i++, *sum += seconds) {
        const attune_status status = time_part(r, kernel, part, &seconds, err);
        if (status) return status;
    }
    return ATTUNE_OK;
}

/* The same without interruptions. After one, this process begins a new time slice: the next attempt seldom meets
 * another. */
static attune_status time_quietly(tune_runner *r, const attune_kernel *kernel, const at_run_part *part, double *least,
                                  at_error *err) {
    enum { ATTEMPTS = 4 };
    bool is_quiet = false;
    double used = 0;
    for (int i = 0; i < ATTEMPTS && !is_quiet && used < LONGEST_TO_REPEAT; i++) {
        double seconds;
        const long before = interruptions();
        const double start = read_clock(CLOCK_THREAD_CPUTIME_ID);
        const attune_status status = time_once(r, kernel, part, &seconds, err);
        if (status) return status;
        used = read_clock(CLOCK_THREAD_CPUTIME_ID) - start;
        is_quiet = interruptions() == before;
        r->timed++;
        r->interrupted += !is_quiet;
        if (!i || is_quiet || seconds < *least) *least = seconds;
    }
    return ATTUNE_OK;
}

static int64_t threads_of(const tune_runner *r) { return is_small(r) ? 1 : r->context->team.max_workers; }

/* A phase of the kernel; its tasks are 0 if there are none. */
static attune_status measure_phase(const tune_runner *r, const attune_kernel *kernel, const ir_phase *source,
                                   tune_phase *phase, at_error *err) {
    *phase = (tune_phase){.units = 1, .tasks = 1, .are_alike = r->are_alike, .are_level = r->are_level};
    for (int l = 0; l < source->num_loops; l++) {
        int64_t count;
        const attune_status status = ir_eval_scalar(kernel->ir->kernel, source->loops[l].hi, r->scalars, &count, err);
        if (status) return status;
        phase->units *= phase->tasks;
        phase->tasks = count > 0 ? count : 0;
    }
    if (!phase->units) phase->tasks = 0;
    return ATTUNE_OK;
}

/* The next part of the sample took so long. */
static void keep_shorter(tune_times *times, int *at, double seconds) {
    if (*at == times->count || seconds < times->parts[*at]) times->parts[*at] = seconds;
    if (++*at > times->count) times->count = *at;
}

static attune_status time_phase(tune_runner *r, const attune_kernel *kernel, uint32_t number, tune_sample *sample,
                                tune_times *times, int *at, at_error *err) {
    for (int i = 0; i < sample->count; i++) {
        double seconds;
        sample->parts[i].begin = number;
        sample->parts[i].end = number + 1;
        const attune_status status = time_quietly(r, kernel, &sample->parts[i], &seconds, err);
        if (status) return status;
        keep_shorter(times, at, seconds * sample->factors[i]);
    }
    return ATTUNE_OK;
}

static attune_status time_phases(tune_runner *r, const attune_kernel *kernel, tune_times *times, at_error *err) {
    const int64_t threads = threads_of(r), turn = r->turn++;
    const ir_phase *source = kernel->ir->kernel->phases;
    int at = 0;
    for (uint32_t p = 0; p < kernel->num_phases; p++, source = source->next) {
        tune_phase phase;
        attune_status status = measure_phase(r, kernel, source, &phase, err);
        if (status) return status;
        if (!phase.tasks) continue;
        tune_sample sample = tune_sample_of(&phase, r->share, turn, threads);
        status = time_phase(r, kernel, p, &sample, times, &at, err);
        if (status) return status;
    }
    return ATTUNE_OK;
}

static attune_status time_call(tune_runner *r, const attune_kernel *kernel, tune_times *times, at_error *err) {
    double seconds;
    int at = 0;
    const attune_status status = time_quietly(r, kernel, NULL, &seconds, err);
    if (!status) keep_shorter(times, &at, seconds);
    return status;
}

attune_status tune_runner_time(tune_runner *r, const attune_kernel *kernel, tune_times *times, at_error *err) {
    return r->share < 1 ? time_phases(r, kernel, times, err) : time_call(r, kernel, times, err);
}

double tune_times_sum(const tune_times *times) {
    double sum = 0;
    for (int i = 0; i < times->count; i++) sum += times->parts[i];
    return sum;
}

/* *tasks: seconds of machine code for one task of each phase, in the middle, by one thread. *call: for all tasks.
 * The first time touches all memory. */
static attune_status time_tasks(tune_runner *r, const attune_kernel *kernel, double *tasks, double *call,
                                at_error *err) {
    int64_t plan[AT_PLAN_WORDS];
    at_kernel_plan(kernel, r->scalars, plan);
    *tasks = *call = 0;
    for (uint32_t p = 0; p < kernel->num_phases; p++) {
        const at_run_part middle = {.begin = p, .end = p + 1, .first = plan[p] / 2, .step = 1, .run = 1, .count = 1};
        double seconds;
        if (plan[p] <= 0) continue;
        attune_status status = time_part(r, kernel, &middle, &seconds, err);
        if (!status) status = time_part(r, kernel, &middle, &seconds, err);
        if (status) return status;
        *tasks += seconds;
        *call += seconds * (double)plan[p];
    }
    return ATTUNE_OK;
}

/* Whether whole calls, which are longer than a sample could be, are interrupted too often. */
static attune_status find_out_if_busy(tune_runner *r, const attune_kernel *kernel, bool *is_busy, at_error *err) {
    enum { CALLS = 16, MANY = 10 /* one of so many */ };
    tune_times times = {0};
    attune_status status = ATTUNE_OK;
    const int64_t timed = r->timed, interrupted = r->interrupted;
    for (int i = 0; !status && i < CALLS; i++) status = tune_runner_time(r, kernel, &times, err);
    *is_busy = (r->interrupted - interrupted) * MANY > r->timed - timed;
    return status;
}

attune_status tune_runner_calibrate(tune_runner *r, const attune_kernel *kernel, at_error *err) {
    enum { MOST_REPEATS = 1 << 12, MOST_SAMPLES = 3 };
    double tasks, seconds;
    bool is_busy = false;
    attune_status status = time_tasks(r, kernel, &tasks, &seconds, err);
    seconds /= (double)threads_of(r);
    for (int i = 0; !status && seconds <= LONG_CALL && i < 2; i++) status = time_part(r, kernel, NULL, &seconds, err);
    if (status) return status;
    r->whole = seconds;
    if (seconds > LONGEST && seconds <= 4 * LONGEST) status = find_out_if_busy(r, kernel, &is_busy, err);
    if (status) return status;
    r->share = seconds > 4 * LONGEST || is_busy ? LONGEST / seconds : 1;
    while (seconds * (double)r->repeats < SHORTEST && r->repeats < MOST_REPEATS) r->repeats *= 2;
    tune_times times = {0};
    status = tune_runner_time(r, kernel, &times, err);
    const double start = now();
    if (!status) status = tune_runner_time(r, kernel, &times, err);
    const double most = SAMPLES_LONGEST / (now() - start);
    r->samples = most < 1 ? 1 : most < MOST_SAMPLES ? (int)most : MOST_SAMPLES;
    return status;
}

attune_status tune_runner_check_cost(tune_runner *r, const attune_kernel *kernel, double *seconds, at_error *err) {
    double tasks, call;
    const attune_status status = time_tasks(r, kernel, &tasks, &call, err);
    *seconds = tasks * SLOWNESS + call / (double)threads_of(r);
    return status;
}
