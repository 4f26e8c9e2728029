#define _GNU_SOURCE
#include "check_case.h"

#include "ref_attention.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

attune_context *check_context(check_machine *machine, uint32_t isa, uint32_t threads) {
    attune_context **const slot = &machine->contexts[isa][threads - 1];
    const tool_common common = {.isa = machine->isas[isa]};
    if (!*slot) *slot = tool_open_context(&common, threads, "");
    return *slot;
}

void check_close(check_machine *machine) {
    for (uint32_t isa = 0; isa < machine->num_isas; isa++)
        for (uint32_t threads = 0; threads < CHECK_MAX_THREADS; threads++)
            attune_context_destroy(machine->contexts[isa][threads]);
}

/* ---- The caller's floating-point mode ---- */

#if defined(__x86_64__)
enum { FLUSH_MODE = 0x8040 }; /* FTZ and DAZ */
static unsigned get_mode(void) { return _mm_getcsr() & ~0x3fu; /* without the sticky flags */ }
static void set_mode(unsigned mode) { _mm_setcsr(mode); }
#else
enum { FLUSH_MODE = 0 };
static unsigned get_mode(void) { return 0; }
static void set_mode(unsigned mode) { (void)mode; }
#endif

/* ---- Running ---- */

/* Two runs of one case: `jit` owns everything, `interp` shares its inputs. */
typedef struct case_data {
    tensors jit, interp;
    double *wanted, *wanted_lse;
    float *plain, *plain_lse, *dense, *dense_lse;
    size_t count, rows;
} case_data;

static void free_data(case_data *d) {
    free(d->interp.out);
    free(d->interp.lse);
    free(d->wanted);
    free(d->wanted_lse);
    free(d->plain);
    free(d->plain_lse);
    free(d->dense);
    free(d->dense_lse);
    tensors_free(&d->jit);
}

static bool create_data(case_data *d, const check_case *c) {
    *d = (case_data){0};
    if (!tensors_create(&d->jit, &c->problem)) return false;
    const attune_problem *const p = &d->jit.problem;
    d->rows = (size_t)(p->batch * p->num_heads * p->seq_q);
    d->count = d->rows * (size_t)p->head_dim_v;
    d->interp = d->jit;
    d->interp.out = malloc(d->jit.out_count * sizeof(float));
    d->interp.lse = d->jit.lse ? malloc(d->jit.lse_count * sizeof(float)) : NULL;
    d->wanted = malloc(d->count * sizeof(double));
    d->wanted_lse = malloc(d->rows * sizeof(double));
    d->plain = malloc(d->count * sizeof(float));
    d->plain_lse = malloc(d->rows * sizeof(float));
    d->dense = malloc(d->count * sizeof(float));
    d->dense_lse = malloc(d->rows * sizeof(float));
    if (d->interp.out && (d->interp.lse || !d->jit.lse) && d->wanted && d->wanted_lse && d->plain && d->plain_lse &&
        d->dense && d->dense_lse)
        return true;
    tool_error("out of memory: a case needs several outputs of %zu elements", d->count);
    free_data(d);
    return false;
}

bool check_fits(const check_case *c) {
    case_data d;
    if (!create_data(&d, c)) return false;
    free_data(&d);
    return true;
}

static bool run_jit(check_machine *machine, const check_case *c, const case_data *d, char *reason) {
    attune_context *const context = check_context(machine, c->isa, c->threads);
    attune_kernel *kernel = NULL;
    if (!context || attune_compile(context, &c->problem, &c->schedule, &kernel) != ATTUNE_OK) {
        snprintf(reason, ATTUNE_MESSAGE_BYTES, "compiling failed: %.480s", attune_last_message());
        return false;
    }
    const unsigned before = get_mode(), mode = c->ftz ? before | FLUSH_MODE : before;
    set_mode(mode);
    const attune_status status = tensors_run(&d->jit, context, kernel, NULL, ATTUNE_ENGINE_JIT);
    const unsigned after = get_mode();
    set_mode(before);
    attune_kernel_release(kernel);
    if (status != ATTUNE_OK)
        snprintf(reason, ATTUNE_MESSAGE_BYTES, "running failed: %.480s", attune_last_message());
    else if (after != mode)
        snprintf(reason, ATTUNE_MESSAGE_BYTES, "the caller's floating-point mode was %#x and is %#x", mode, after);
    return status == ATTUNE_OK && after == mode;
}

static bool run_interpreter(check_machine *machine, const check_case *c, const case_data *d, char *reason) {
    attune_context *const context = check_context(machine, c->isa, c->threads);
    if (context && tensors_run(&d->interp, context, NULL, &c->schedule, ATTUNE_ENGINE_INTERPRETER) == ATTUNE_OK)
        return true;
    snprintf(reason, ATTUNE_MESSAGE_BYTES, "the interpreter failed: %.480s", attune_last_message());
    return false;
}

static bool same_bits(const float *jit, const float *interp, size_t count, const char *what, char *reason) {
    size_t at = 0;
    if (!jit || tensors_same_bits(jit, interp, count, &at)) return true;
    snprintf(reason, ATTUNE_MESSAGE_BYTES, "%s differs at element %zu of its storage: machine code %a, interpreter %a",
             what, at, (double)jit[at], (double)interp[at]);
    return false;
}

/* ---- Comparing with the reference ---- */

static float largest_magnitude(const float *data, size_t count) {
    float largest = 0;
    for (size_t i = 0; i < count; i++) largest = fabsf(data[i]) > largest ? fabsf(data[i]) : largest;
    return largest;
}

/* The Euclidean length of the longest row. */
static double largest_row(const float *data, const int64_t strides[4], int64_t batch, int64_t heads, int64_t rows,
                          int64_t columns) {
    double largest = 0;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < rows; i++) {
                const float *const row = data + b * strides[0] + h * strides[1] + i * strides[2];
                double squares = 0;
                for (int64_t c = 0; c < columns; c++)
                    squares += (double)row[c * strides[3]] * (double)row[c * strides[3]];
                largest = fmax(largest, squares);
            }
    return sqrt(largest);
}

/* No score of the problem is larger than this (Cauchy and Schwarz). */
static double largest_score(const tensors *t) {
    const attune_problem *const p = &t->problem;
    const double scale = isnan(p->softmax_scale) ? 1 / sqrt((double)p->head_dim) : fabs(p->softmax_scale);
    return scale * largest_row(t->q, p->q_strides, p->batch, p->num_heads, p->seq_q, p->head_dim) *
           largest_row(t->k, p->k_strides, p->batch, p->num_kv_heads, p->seq_kv, p->head_dim);
}

static double ulp_of(double value) {
    const float magnitude = fmaxf((float)fabs(value), FLT_MIN);
    return (double)nextafterf(magnitude, INFINITY) - (double)magnitude;
}

static void add_errors(const case_data *d, check_errors *e) {
    const size_t columns = d->count / d->rows;
    for (size_t row = 0; row < d->rows; row++) {
        double largest = 0;
        for (size_t i = row * columns; i < (row + 1) * columns; i++) largest = fmax(largest, fabs(d->wanted[i]));
        const double ulp = ulp_of(largest);
        for (size_t i = row * columns; i < (row + 1) * columns; i++) {
            const double error = fabs(d->dense[i] - d->wanted[i]), plain = fabs(d->plain[i] - d->wanted[i]);
            e->max = fmax(e->max, error);
            e->max_ulp = fmax(e->max_ulp, error / ulp);
            e->squares += error * error;
            e->plain_max = fmax(e->plain_max, plain);
            e->plain_max_ulp = fmax(e->plain_max_ulp, plain / ulp);
            e->plain_squares += plain * plain;
        }
    }
    e->count += d->count;
}

/* The first element off by more than its limit, or of another class (finite or not). */
static bool within(const float *got, const double *wanted, const double *skip_rows, size_t count, size_t columns,
                   double limit, double relative, bool by_class, const char *what, char *reason) {
    for (size_t i = 0; i < count; i++) {
        if (skip_rows && skip_rows[i / columns] == -INFINITY) continue;
        const bool good =
            by_class ? isfinite(got[i]) == isfinite(wanted[i])
                     : (double)got[i] == wanted[i] || fabs(got[i] - wanted[i]) <= limit + relative * fabs(wanted[i]);
        if (good) continue;
        snprintf(reason, ATTUNE_MESSAGE_BYTES, "%s is off at element %zu: %.9g instead of %.9g (limit %.3g)", what, i,
                 (double)got[i], wanted[i], limit);
        return false;
    }
    return true;
}

static bool compare_reference(const check_case *c, case_data *d, check_errors *errors, char *reason) {
    const tensors *const t = &d->jit;
    const attune_problem *const p = &t->problem;
    const bool by_class = c->inputs == INPUT_NONFINITE;
    const int64_t dims[4] = {p->batch, p->num_heads, p->seq_q, p->head_dim_v},
                  lse_dims[4] = {dims[0], dims[1], dims[2], 1};
    const int64_t lse_strides[4] = {p->lse_strides[0], p->lse_strides[1], p->lse_strides[2], 0};
    if (!ref_attention(p, t->q, t->k, t->v, d->wanted, d->wanted_lse) ||
        !ref_attention_plain(p, t->q, t->k, t->v, d->plain, d->plain_lse)) {
        snprintf(reason, ATTUNE_MESSAGE_BYTES, "out of memory for the reference");
        return false;
    }
    tensors_gather(d->dense, p->out_strides, dims, t->out);
    if (t->lse) tensors_gather(d->dense_lse, lse_strides, lse_dims, t->lse);
    /* How much rounding can do: every score is off by some epsilons of the largest that can occur, and a weight by
     * as much relatively. The plain implementation shows how much of that this data really suffers. */
    check_errors own = {0};
    double limit = 0, lse_limit = 0;
    if (!by_class) {
        add_errors(d, &own);
        lse_limit = 4 * (double)FLT_EPSILON * (4 + largest_score(t));
        limit = 4 * own.plain_max + lse_limit * (double)largest_magnitude(t->v, t->v_count);
    }
    /* With NaN and infinities about, an empty row may have lost its last key to an infinite score. */
    const double *const skip = by_class ? d->wanted_lse : NULL;
    if (!within(d->dense, d->wanted, skip, d->count, (size_t)p->head_dim_v, limit, 0, by_class, "the output", reason) ||
        (t->lse && !within(d->dense_lse, d->wanted_lse, skip, d->rows, 1, lse_limit, 4 * (double)FLT_EPSILON, by_class,
                           "the lse", reason)))
        return false;
    if (!errors || by_class) return true;
    errors->max = fmax(errors->max, own.max);
    errors->max_ulp = fmax(errors->max_ulp, own.max_ulp);
    errors->squares += own.squares;
    errors->plain_max = fmax(errors->plain_max, own.plain_max);
    errors->plain_max_ulp = fmax(errors->plain_max_ulp, own.plain_max_ulp);
    errors->plain_squares += own.plain_squares;
    errors->count += own.count;
    return true;
}

bool check_run(check_machine *machine, const check_case *c, check_errors *errors, char reason[ATTUNE_MESSAGE_BYTES]) {
    case_data d;
    if (!create_data(&d, c)) {
        snprintf(reason, ATTUNE_MESSAGE_BYTES, "out of memory for the tensors");
        return false;
    }
    tensors_fill(&d.jit, c->inputs, c->seed);
    tensors_clear_outputs(&d.jit);
    tensors_clear_outputs(&d.interp);
    /* Scores beyond f32 have no reference in f64: there only the bits count. */
    const bool passed = run_jit(machine, c, &d, reason) && run_interpreter(machine, c, &d, reason) &&
                        same_bits(d.jit.out, d.interp.out, d.jit.out_count, "the output", reason) &&
                        same_bits(d.jit.lse, d.interp.lse, d.jit.lse_count, "the lse", reason) &&
                        (c->inputs == INPUT_OVERFLOW || compare_reference(c, &d, errors, reason));
    free_data(&d);
    return passed;
}

/* ---- Shrinking ---- */

/* Step `move` of the ways to make a case simpler; false when there are no more, *changed says whether it did. */
static bool simplify(check_case *c, int move, bool *changed) {
    attune_problem *const p = &c->problem;
    int64_t *const sizes[] = {&p->batch, &p->seq_q, &p->seq_kv, &p->head_dim, &p->head_dim_v};
    const check_case before = *c;
    enum { NUM_SIZES = 5 };
    if (move < NUM_SIZES)
        *sizes[move] = (*sizes[move] + 1) / 2;
    else if (move < 2 * NUM_SIZES)
        *sizes[move - NUM_SIZES] -= *sizes[move - NUM_SIZES] > 1;
    else
        switch (move - 2 * NUM_SIZES) {
        case 0: p->num_heads /= p->num_kv_heads, p->num_kv_heads = 1; break;
        case 1: p->num_heads = p->num_kv_heads; break;
        case 2: p->has_lse = 0; break;
        case 3: p->is_causal = 0, p->causal_offset = 0; break;
        case 4: p->causal_offset = 0; break;
        case 5: p->softmax_scale = ATTUNE_DEFAULT_SCALE; break;
        case 6: c->threads = 1; break;
        case 7: c->ftz = false; break;
        case 8: c->inputs = INPUT_ORDINARY; break;
        case 9: memset(p->q_strides, 0, sizeof p->q_strides); break;
        case 10: memset(p->k_strides, 0, sizeof p->k_strides); break;
        case 11: memset(p->v_strides, 0, sizeof p->v_strides); break;
        case 12: memset(p->out_strides, 0, sizeof p->out_strides); break;
        case 13: memset(p->lse_strides, 0, sizeof p->lse_strides); break;
        default: return false;
        }
    *changed = memcmp(&before, c, sizeof before) != 0;
    return true;
}

/* A smaller problem may need a smaller schedule; a case is only worth running if it is legal. */
static bool make_legal(check_machine *machine, check_case *c) {
    attune_context *const context = check_context(machine, c->isa, c->threads);
    attune_schedule *const s = &c->schedule;
    const attune_problem *const p = &c->problem;
    if (!context || attune_problem_check(p) != ATTUNE_OK) return false;
    if (s->score_rows > p->seq_kv) {
        s->score_rows = (int32_t)p->seq_kv;
        s->kv_tile = s->kv_tile / s->score_rows * s->score_rows;
    }
    while (p->head_dim % s->score_unroll) s->score_unroll--;
    if (p->head_dim % s->score_unroll) s->score_unroll = 1;
    if (s->value_rows > p->head_dim_v) s->value_rows = (int32_t)p->head_dim_v;
    return attune_schedule_check(context, p, s) == ATTUNE_OK;
}

void check_shrink(check_machine *machine, check_case *c, char reason[ATTUNE_MESSAGE_BYTES]) {
    char other[ATTUNE_MESSAGE_BYTES];
    for (bool progress = true; progress;) {
        progress = false;
        check_case smaller = *c;
        bool changed = false;
        for (int move = 0; simplify(&smaller, move, &changed); move++, smaller = *c) {
            if (!changed || !make_legal(machine, &smaller)) continue;
            if (check_run(machine, &smaller, NULL, other)) continue;
            *c = smaller;
            memcpy(reason, other, sizeof other);
            progress = true;
        }
    }
}

char *check_command(const check_machine *machine, const check_case *c) {
    char *const problem = problem_text(&c->problem), *const schedule = schedule_text(&c->schedule);
    char *command = NULL;
    if (!problem || !schedule ||
        asprintf(&command, "attune check %s --schedule=%s --isa=%s --threads=%u --inputs=%s%s --seed=%llu", problem,
                 schedule, machine->isas[c->isa], c->threads, input_kind_name(c->inputs), c->ftz ? " --ftz" : "",
                 (unsigned long long)c->seed) < 0)
        command = NULL;
    free(problem);
    free(schedule);
    return command;
}
