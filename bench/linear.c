/* Linear attention as a share of what the CPU can do, one thread.
 *
 *     linear [TOKENS...]              default: 1 64 512 2048
 *       --heads=N  --dim=N            default 16 and 128: a state of 1 MiB in f32
 *       --states=N                    that calls of one token go through in turn; default 1
 *       --reproducible  --key-decay  --bf16
 *       --tier0                       beside the kernel of tier 0
 *       --seconds=N                   for each row; default 2
 *
 * Of one token a line has the time of a call, that of a loop that reads and writes the same states, and the second as a
 * share of the first. Of more tokens it has operations: 6 for each number of a state and token, as the recurrence has
 * them, and those of chunks too (docs/linear-attention.md), each as a share of the peak of multiply-adds.
 * With --tier0 a line has the times of the compiled kernel and of tier 0's, and the first as a share of the second.
 * Calls and probes take turns; all are medians, in processor time. */
#define _GNU_SOURCE
#include <argp.h>
#include <attune.h>
#include <attune/linear.h>

#include "measure/peak.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CHUNK = 8, MOST_ROWS = 16, MOST_SAMPLES = 100000 };

typedef struct options {
    int heads, dim, states, num_rows;
    int64_t rows[MOST_ROWS];
    bool is_reproducible, by_key, is_bf16, is_tier0;
    double seconds;
} options;

static void *checked(void *memory) {
    if (memory) return memory;
    fprintf(stderr, "linear: no memory\n");
    exit(1);
}

static void check(attune_status status) {
    if (!status) return;
    fprintf(stderr, "linear: %s\n", attune_last_message());
    exit(1);
}

static double seconds_of(clockid_t clock) {
    struct timespec t;
    clock_gettime(clock, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *samples, int count) {
    qsort(samples, (size_t)count, sizeof *samples, by_value);
    return samples[count / 2];
}

/* ---- A row ---- */

typedef struct tensors {
    void *q, *k, *v, *out;
    float *decay, *beta, *state;
    size_t state_bytes; /* of one */
} tensors;

static uint32_t random_state = 1;

static float drawn(void) {
    random_state = random_state * 1664525u + 1013904223u;
    return (float)(random_state >> 8) / (1 << 24);
}

/* Numbers around 0, as f32 or bf16. */
static void *rows_of(const options *o, int64_t count) {
    uint16_t *const narrow = checked(malloc((size_t)count * 4));
    float *const wide = (float *)(void *)narrow;
    for (int64_t i = 0; i < count; i++) {
        const float x = (drawn() - 0.5f) / 4;
        uint32_t bits;
        memcpy(&bits, &x, 4);
        if (o->is_bf16)
            narrow[i] = (uint16_t)(bits >> 16);
        else
            wide[i] = x;
    }
    return narrow;
}

static tensors make_tensors(const options *o, int64_t tokens) {
    const int64_t numbers = tokens * o->heads * o->dim, decays = o->by_key ? numbers : tokens * o->heads;
    tensors t = {.q = rows_of(o, numbers), .k = rows_of(o, numbers), .v = rows_of(o, numbers)};
    t.state_bytes = (size_t)o->heads * (size_t)o->dim * (size_t)o->dim * 4;
    t.out = checked(malloc((size_t)numbers * 4));
    t.decay = checked(malloc((size_t)decays * 4)), t.beta = checked(malloc((size_t)(tokens * o->heads) * 4));
    for (int64_t i = 0; i < decays; i++) t.decay[i] = -drawn();
    for (int64_t i = 0; i < tokens * o->heads; i++) t.beta[i] = drawn();
    t.state = checked(aligned_alloc(4096, (size_t)o->states * t.state_bytes));
    memset(t.state, 0, (size_t)o->states * t.state_bytes);
    return t;
}

static void free_tensors(tensors *t) {
    void *const all[] = {t->q, t->k, t->v, t->out, t->decay, t->beta, t->state};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) free(all[i]);
}

/* The loop that one token is measured by: each number is read, changed and written. */
__attribute__((noinline, optimize("O3"), target_clones("default", "avx2", "avx512f"))) static void read_and_write(
    float *numbers, size_t count) {
    for (size_t i = 0; i < count; i++) numbers[i] *= 0.999f;
}

typedef struct samples {
    double *calls, *probes;
    int count;
} samples;

static double time_call(attune_linear *linear, const attune_linear_step *step) {
    const double start = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    check(attune_linear_run(linear, step));
    return seconds_of(CLOCK_THREAD_CPUTIME_ID) - start;
}

static double time_loop(float *state, size_t bytes) {
    const double start = seconds_of(CLOCK_THREAD_CPUTIME_ID);
    read_and_write(state, bytes / sizeof *state);
    return seconds_of(CLOCK_THREAD_CPUTIME_ID) - start;
}

/* Calls and probes in turns. The states of one token are gone through by each on its own, so that both find them where
 * as many others have left them. */
static samples sample(const options *o, int64_t tokens, attune_linear *linear, attune_linear_step *step, tensors *t,
                      peak_probe *peak) {
    enum { IN_A_ROW = 16 };
    samples s = {checked(malloc(MOST_SAMPLES * sizeof(double))), checked(malloc(MOST_SAMPLES * sizeof(double))), 0};
    const double end = seconds_of(CLOCK_MONOTONIC) + o->seconds;
    float *const probed = checked(aligned_alloc(4096, (size_t)o->states * t->state_bytes));
    memset(probed, 0, (size_t)o->states * t->state_bytes);
    for (int round = 0; seconds_of(CLOCK_MONOTONIC) < end || round < 3; round++) {
        for (int i = 0; i < (tokens == 1 ? IN_A_ROW : 1) && s.count < MOST_SAMPLES; i++, s.count++) {
            step->state.data = t->state + (size_t)((round * IN_A_ROW + i) % o->states) * t->state_bytes / 4;
            s.calls[s.count] = time_call(linear, step);
            if (tokens > 1) s.probes[s.count] = peak_measure(peak, ATTUNE_F32);
        }
        for (int i = 0; tokens == 1 && i < IN_A_ROW; i++)
            s.probes[s.count - 1 - i] =
                time_loop(probed + (size_t)((round * IN_A_ROW + i) % o->states) * t->state_bytes / 4, t->state_bytes);
    }
    free(probed);
    return s;
}

static void print_row(const options *o, int64_t tokens, samples *s, size_t state_bytes) {
    const double call = median(s->calls, s->count), probe = median(s->probes, s->count);
    if (tokens == 1) {
        printf("%7lld %10.1f us   states read and written in %.1f us, %.1f GB/s: %.0f %%\n", (long long)tokens,
               call * 1e6, probe * 1e6, 2 * (double)state_bytes / probe * 1e-9, probe / call * 100);
        return;
    }
    const double dim = o->dim, heads = (double)(tokens * o->heads);
    const double recurrence = 6 * heads * dim * dim, pairs = heads * (CHUNK * 2 * dim * 2);
    printf("%7lld %10.1f us   recurrence %6.1f GFLOP/s, %.0f %%   chunks %6.1f GFLOP/s, %.0f %%   peak %.1f\n",
           (long long)tokens, call * 1e6, recurrence / call * 1e-9, recurrence / call * 1e-7 / probe,
           (recurrence + pairs) / call * 1e-9, (recurrence + pairs) / call * 1e-7 / probe, probe);
}

/* Both kernels in turns. They go through different states, so that neither finds those of the other in a cache. */
static void compare(const options *o, int64_t tokens, attune_linear *compiled, attune_linear *tier0,
                    attune_linear_step *step, const tensors *t) {
    samples s = {checked(malloc(MOST_SAMPLES * sizeof(double))), checked(malloc(MOST_SAMPLES * sizeof(double))), 0};
    const double end = seconds_of(CLOCK_MONOTONIC) + o->seconds;
    check(attune_linear_run(tier0, step));
    for (; (seconds_of(CLOCK_MONOTONIC) < end || s.count < 3) && s.count < MOST_SAMPLES; s.count++) {
        const int state = s.count % o->states, other = (s.count + o->states / 2) % o->states;
        step->state.data = t->state + (size_t)state * t->state_bytes / 4;
        s.calls[s.count] = time_call(compiled, step);
        step->state.data = t->state + (size_t)other * t->state_bytes / 4;
        s.probes[s.count] = time_call(tier0, step);
    }
    const double own = median(s.calls, s.count), general = median(s.probes, s.count);
    printf("%7lld %10.1f us   tier 0 %10.1f us: %.0f %%\n", (long long)tokens, own * 1e6, general * 1e6,
           own / general * 100);
    free(s.calls);
    free(s.probes);
}

static void run_row(const options *o, int64_t tokens, attune_linear *linear, attune_linear *tier0, peak_probe *peak) {
    tensors t = make_tensors(o, tokens);
    attune_linear_step step = ATTUNE_LINEAR_STEP_INIT;
    step.batch = 1, step.seq = tokens, step.max_threads = 1;
    step.q.data = t.q, step.k.data = t.k, step.v.data = t.v, step.decay.data = t.decay, step.beta.data = t.beta;
    step.out.data = t.out, step.state.data = t.state;
    check(attune_linear_run(linear, &step));
    if (tier0) {
        compare(o, tokens, linear, tier0, &step, &t);
    } else {
        samples s = sample(o, tokens, linear, &step, &t, peak);
        print_row(o, tokens, &s, t.state_bytes);
        free(s.calls);
        free(s.probes);
    }
    free_tensors(&t);
}

/* ---- Options ---- */

enum { HEADS = 256, DIM, STATES, REPRODUCIBLE, KEY_DECAY, BF16, TIER0, SECONDS };

static error_t parse(int key, char *text, struct argp_state *state) {
    options *const o = state->input;
    const double number = text ? atof(text) : 0;
    if (key == HEADS) o->heads = (int)number;
    if (key == DIM) o->dim = (int)number;
    if (key == STATES) o->states = (int)number;
    if (key == REPRODUCIBLE) o->is_reproducible = true;
    if (key == KEY_DECAY) o->by_key = true;
    if (key == BF16) o->is_bf16 = true;
    if (key == TIER0) o->is_tier0 = true;
    if (key == SECONDS) o->seconds = number;
    if (key == ARGP_KEY_ARG && o->num_rows < MOST_ROWS) o->rows[o->num_rows++] = (int64_t)number;
    if (text && number <= 0) argp_error(state, "%s must be a number above 0", text);
    return key == ARGP_KEY_ARG || key >= HEADS ? 0 : ARGP_ERR_UNKNOWN;
}

/* Nothing is compiled or cached, and the virtual machine runs nothing. */
static attune_context *open_tier0(void) {
    const attune_context_options never = {
        .struct_size = sizeof never, .cache_dir = "", .compile_mode = ATTUNE_COMPILE_NEVER, .machine_code_only = 1};
    attune_context *context;
    check(attune_context_create(&never, &context));
    return context;
}

int main(int argc, char **argv) {
    static const struct argp_option known[] = {{"heads", HEADS, "N", 0, "heads of 1 state each", 0},
                                               {"dim", DIM, "N", 0, "rows and columns of a state", 0},
                                               {"states", STATES, "N", 0, "sets of states, in turn", 0},
                                               {"reproducible", REPRODUCIBLE, 0, 0, "token after token", 0},
                                               {"key-decay", KEY_DECAY, 0, 0, "a decay for each row of a state", 0},
                                               {"bf16", BF16, 0, 0, "q, k, v and out in bf16", 0},
                                               {"tier0", TIER0, 0, 0, "beside the kernel of tier 0", 0},
                                               {"seconds", SECONDS, "N", 0, "for each row", 0},
                                               {0}};
    options o = {.heads = 16, .dim = 128, .states = 1, .seconds = 2};
    argp_parse(&(struct argp){known, parse, "[TOKENS...]", 0, 0, 0, 0}, argc, argv, 0, NULL, &o);
    if (!o.num_rows) o.num_rows = 4, memcpy(o.rows, (int64_t[]){1, 64, 512, 2048}, 4 * sizeof *o.rows);
    attune_context *context;
    check(attune_context_create(NULL, &context));
    attune_machine_info machine = ATTUNE_MACHINE_INFO_INIT;
    check(attune_get_machine_info(context, &machine));
    peak_probe *const peak = peak_create(machine.isa, 1);
    if (!peak) return 1;
    attune_linear_desc d = ATTUNE_LINEAR_DESC_INIT;
    d.num_heads = o.heads, d.head_dim = o.dim, d.rule = ATTUNE_GATED_DELTA, d.has_beta = 1;
    d.decay = o.by_key ? ATTUNE_DECAY_KEY : ATTUNE_DECAY_HEAD, d.dtype = o.is_bf16 ? ATTUNE_BF16 : ATTUNE_F32;
    d.reproducible = o.is_reproducible;
    attune_linear *linear, *tier0 = NULL;
    check(attune_linear_create(context, &d, &linear));
    attune_context *const without = o.is_tier0 ? open_tier0() : NULL;
    if (without) check(attune_linear_create(without, &d, &tier0));
    for (int i = 0; i < o.num_rows; i++) run_row(&o, o.rows[i], linear, tier0, peak);
    attune_linear_destroy(tier0);
    attune_context_destroy(without);
    attune_linear_destroy(linear);
    attune_context_destroy(context);
    peak_destroy(peak);
}
