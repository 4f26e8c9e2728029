#include "tune/runner.h"

#include "ir/interp.h"

#include <string.h>
#include <time.h>

/* A sample is long enough for the clock, and so short that most are not interrupted. */
static const double SHORTEST = 40e-6, LONGEST = 0.25e-3;
/* Calls that take longer are not run as a whole, if they can be run in parts. */
static const double LONG_CALL = 0.05;

enum { ALIGN = 64 };

attune_status tune_runner_init(tune_runner *r, attune_context *context, const attune_problem *canonical,
                               const attune_arguments *arguments, at_error *err) {
    *r = (tune_runner){.context = context, .repeats = 1, .seed = 1};
    at_signature_init(&r->signature, canonical);
    const attune_status status = at_call_make(&r->signature, arguments, &r->call, err);
    if (status) return status;
    if (r->call.settled->is_empty)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the call to tune with has no work: no output has elements");
    return ATTUNE_OK;
}

void tune_runner_free(tune_runner *r) { at_free(&r->context->allocator, r->workspace); }

/* What the first samples need not pay for: memory never touched. */
static attune_status grow_workspace(tune_runner *r, size_t bytes, at_error *err) {
    if (bytes <= r->workspace_bytes) return ATTUNE_OK;
    at_free(&r->context->allocator, r->workspace);
    r->workspace_bytes = 0;
    r->workspace = at_alloc_aligned(&r->context->allocator, bytes, ALIGN);
    if (!r->workspace) return at_fail_memory(err, bytes);
    r->workspace_bytes = bytes;
    memset(r->workspace, 0, bytes);
    return ATTUNE_OK;
}

static attune_status run(tune_runner *r, const attune_kernel *kernel, at_run_part part, at_error *err) {
    int64_t plan[AT_PLAN_WORDS];
    size_t bytes;
    attune_status status = at_plan_workspace(r->context, kernel, r->call.settled->scalars, plan, &bytes, err);
    if (!status) status = grow_workspace(r, bytes, err);
    if (status) return status;
    const at_run call = {.buffers = r->call.buffers,
                         .num_buffers = r->signature.count,
                         .scalars = r->call.settled->scalars,
                         .workspace = r->workspace,
                         .workspace_bytes = r->workspace_bytes,
                         .small = r->call.settled->flops < AT_SMALL_FLOPS,
                         .part = part};
    return at_run_machine_code(r->context, kernel, &call, err);
}

/* ---- Timing ---- */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Tasks of a kernel's largest phase, those of a part of it or all. */
static int64_t most_tasks(const tune_runner *r, const attune_kernel *kernel, at_run_part part) {
    int64_t plan[AT_PLAN_WORDS], most = 1;
    kernel->plan(r->call.settled->scalars, plan);
    for (uint32_t p = 0; p < kernel->num_phases; p++)
        if (plan[p] > most) most = plan[p];
    return at_part_tasks(part, most);
}

at_run_part tune_centred_part(at_run_part sample, int64_t tasks) {
    if (sample.step <= 1) return sample;
    if (sample.step > tasks) sample.step = tasks;
    sample.first = (tasks - 1 - (tasks / sample.step - 1) * sample.step) / 2;
    return sample;
}

/* The sample of this kernel, and how much of the whole it is: schedules cut the same heads into more tasks or fewer. */
static at_run_part part_of(const tune_runner *r, const attune_kernel *kernel, double *share) {
    at_run_part all = r->sample;
    *share = 1;
    if (all.step <= 1) return all;
    all.step = 1;
    const int64_t tasks = most_tasks(r, kernel, all);
    const at_run_part part = tune_centred_part(r->sample, tasks);
    *share = (double)(tasks / part.step) / (double)tasks;
    return part;
}

attune_status tune_runner_time(tune_runner *r, const attune_kernel *kernel, double *seconds, at_error *err) {
    double share;
    const at_run_part part = part_of(r, kernel, &share);
    const double start = now();
    for (int64_t i = 0; i < r->repeats; i++) {
        const attune_status status = run(r, kernel, part, err);
        if (status) return status;
    }
    *seconds = (now() - start) / share;
    return ATTUNE_OK;
}

/* Heads of all batch entries, if all are alike and tasks come head by head: they do in attention. */
static int64_t equal_heads(const tune_runner *r) {
    const attune_problem *p = &r->signature.problem;
    const int64_t *of = r->call.settled->sizes.of;
    const bool are_alike = p->op == ATTUNE_ATTENTION && !p->is_ragged && !p->has_kv_lens && !p->has_causal_offsets;
    return are_alike ? of[MHA_BATCH] * of[MHA_KV_HEADS] : 1;
}

/* Of a sample, twice: the first one touches all memory. */
static attune_status time_warm(tune_runner *r, const attune_kernel *kernel, double *seconds, at_error *err) {
    const attune_status status = tune_runner_time(r, kernel, seconds, err);
    return status ? status : tune_runner_time(r, kernel, seconds, err);
}

/* Seconds of the whole call; of a long one judged by a task in its middle. */
static attune_status time_call(tune_runner *r, const attune_kernel *kernel, double *seconds, at_error *err) {
    r->repeats = 1;
    if (kernel->num_phases == 1) {
        r->sample = (at_run_part){.step = INT64_MAX};
        const attune_status status = time_warm(r, kernel, seconds, err);
        *seconds /= r->context->max_workers;
        if (status || *seconds > LONG_CALL) return status;
    }
    r->sample = (at_run_part){0};
    return time_warm(r, kernel, seconds, err);
}

attune_status tune_runner_calibrate(tune_runner *r, const attune_kernel *kernel, at_error *err) {
    enum { FEWEST_TASKS = 8, MOST_REPEATS = 1 << 12 };
    double seconds;
    const attune_status status = time_call(r, kernel, &seconds, err);
    if (status) return status;
    const int64_t heads = equal_heads(r), threads = r->context->max_workers;
    int64_t some = (int64_t)(LONGEST * (double)heads / seconds);
    if (some < threads) some = threads; /* each has one */
    if (some > heads) some = heads;
    r->sample = (at_run_part){.step = 1, .slice = some, .slices = heads};
    seconds *= (double)some / (double)heads;
    const int64_t step = (int64_t)(seconds / LONGEST) + 1, most = most_tasks(r, kernel, r->sample) / FEWEST_TASKS;
    if (kernel->num_phases == 1 && most > 1) r->sample.step = step < most ? step : most;
    while (seconds * (double)r->repeats < SHORTEST && r->repeats < MOST_REPEATS) r->repeats *= 2;
    r->is_long = seconds / (double)r->sample.step > 8 * LONGEST;
    return ATTUNE_OK;
}

/* ---- Checking ---- */

static bool is_nan(attune_dtype dtype, const unsigned char *at) {
    uint16_t half;
    float single;
    double wide;
    memcpy(&half, at, sizeof half);
    switch (dtype) {
    case ATTUNE_F16: return (half & 0x7fff) > 0x7c00;
    case ATTUNE_BF16: return (half & 0x7fff) > 0x7f80;
    case ATTUNE_F32: memcpy(&single, at, sizeof single); return single != single;
    case ATTUNE_F64: memcpy(&wide, at, sizeof wide); return wide != wide;
    default: return false;
    }
}

static bool same_values(const mha_tensor *t, const unsigned char *a, const unsigned char *b, size_t bytes) {
    if (!memcmp(a, b, bytes)) return true;
    const size_t width = at_element_bytes(t);
    for (size_t i = 0; i < bytes; i += width)
        if (memcmp(a + i, b + i, width) && !(is_nan(t->dtype, a + i) && is_nan(t->dtype, b + i))) return false;
    return true;
}

/* Room for an output, by place in the table; what the kernel does not only write has none. Caches that keys are
 * appended to stay the caller's: both engines write the same keys into the same places. */
static size_t room(const tune_runner *r, size_t i) {
    if (r->signature.tensors[i].access != IR_OUT) return 0;
    return (size_t)(r->call.settled->bytes[i] + ALIGN - 1) / ALIGN * ALIGN;
}

static size_t all_room(const tune_runner *r) {
    size_t bytes = 0;
    for (size_t i = 0; i < r->signature.count; i++) bytes += room(r, i);
    return bytes;
}

/* Outputs go to zeroed memory of our own: what lies between the caller's elements may be anybody's. */
static void redirect(tune_runner *r, unsigned char *memory) {
    memset(memory, 0, all_room(r));
    for (size_t i = 0; i < r->signature.count; i++) {
        if (room(r, i)) r->call.buffers[i] = memory;
        memory += room(r, i);
    }
}

static bool same_outputs(const tune_runner *r, const unsigned char *a, const unsigned char *b) {
    bool same = true;
    for (size_t i = 0, at = 0; i < r->signature.count; at += room(r, i++))
        if (room(r, i)) same = same_values(&r->signature.tensors[i], a + at, b + at, r->call.settled->bytes[i]) && same;
    return same;
}

static uint64_t next_random(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

static attune_status interpret(tune_runner *r, const attune_schedule *schedule, at_run_part part, at_error *err) {
    at_arena arena;
    at_built built;
    at_arena_init(&arena, &r->context->allocator);
    attune_status status = at_build_problem(r->context, &arena, &r->signature.problem, schedule, &built, err);
    const ir_interp_options options = {
        .shuffle_seed = 1, .first_task = part.first, .task_step = part.step, .allocator = &r->context->allocator};
    if (!status) status = ir_interpret(built.lowered, r->call.buffers, r->call.settled->scalars, &options, err);
    at_arena_free(&arena);
    return status;
}

attune_status tune_runner_check(tune_runner *r, const attune_kernel *kernel, const attune_schedule *schedule,
                                bool *same, at_error *err) {
    const size_t bytes = all_room(r);
    void *theirs[MHA_NUM_TENSORS];
    unsigned char *ours = at_alloc_aligned(&r->context->allocator, 2 * bytes + ALIGN, ALIGN);
    at_run_part part = {.step = 1};
    *same = false;
    if (!ours) return at_fail_memory(err, 2 * bytes);
    memcpy(theirs, r->call.buffers, sizeof theirs);
    if (kernel->num_phases == 1)
        part = (at_run_part){.first = (int64_t)(next_random(&r->seed) % (uint64_t)most_tasks(r, kernel, part)),
                             .step = INT64_MAX};
    redirect(r, ours);
    attune_status status = run(r, kernel, part, err);
    redirect(r, ours + bytes);
    if (!status) status = interpret(r, schedule, part, err);
    memcpy(r->call.buffers, theirs, sizeof theirs);
    if (!status) *same = same_outputs(r, ours, ours + bytes);
    at_free(&r->context->allocator, ours);
    return status;
}
