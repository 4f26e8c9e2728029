/* The q-lanes builder through the interpreter, for every target (also those this CPU cannot run): against the
 * reference, with its accesses checked, and with the bits independent of how the problem is cut. */
#include "ir/interp.h"
#include "ir/passes.h"
#include "ir/text.h"
#include "mha/mha.h"
#include "ref_attention.h"
#include "support/random_ir.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

typedef struct sample {
    attune_problem problem; /* canonical */
    float *q, *k, *v;
    size_t num_q, num_k, num_v, num_out, num_lse;
} sample;

static random_ir random_source;

static uint64_t random_bits(void) { return random_ir_bits(&random_source); }

static int random_below(int n) { return (int)(random_bits() % (uint64_t)n); }
static float random_float(void) { return (float)(random_bits() >> 40) / 8388608.0f - 1.0f; }

static float *random_tensor(size_t count) {
    float *data = malloc(count * sizeof *data + 1);
    for (size_t i = 0; i < count; i++) data[i] = random_float();
    return data;
}

static sample make_sample(const char *text) {
    attune_problem p = ATTUNE_PROBLEM_INIT;
    sample s;
    at_error err = {0};
    if (mha_problem_parse(text, &p, &err) || mha_canonicalize(&p, &s.problem, &err))
        fail_msg("%s: %s", text, err.message);
    const attune_problem *c = &s.problem;
    s.num_q = (size_t)(c->batch * c->num_heads * c->seq_q * c->head_dim);
    s.num_k = (size_t)(c->batch * c->num_kv_heads * c->seq_kv * c->head_dim);
    s.num_v = (size_t)(c->batch * c->num_kv_heads * c->seq_kv * c->head_dim_v);
    s.num_out = (size_t)(c->batch * c->num_heads * c->seq_q * c->head_dim_v);
    s.num_lse = (size_t)(c->batch * c->num_heads * c->seq_q);
    s.q = random_tensor(s.num_q);
    s.k = random_tensor(s.num_k);
    s.v = random_tensor(s.num_v);
    return s;
}

static void free_sample(sample *s) {
    free(s->q);
    free(s->k);
    free(s->v);
}

/* The kernel of a sample, interpreted as lowered for the target. lse may be NULL if the problem has none. */
static void interpret(const sample *s, const attune_schedule *schedule, const at_target *target, float *out,
                      float *lse) {
    at_arena arena;
    at_arena_init(&arena, NULL);
    at_error err = {0};
    const ir_kernel *kernel = mha_build(&arena, &s->problem, schedule, target, &err);
    if (kernel) kernel = ir_lower(kernel, target, NULL, NULL, &err);
    attune_arguments a = {
        .batch = s->problem.batch, .num_heads = s->problem.num_heads, .num_kv_heads = s->problem.num_kv_heads};
    memcpy(a.q_strides, s->problem.q_strides, sizeof a.q_strides);
    memcpy(a.k_strides, s->problem.k_strides, sizeof a.k_strides);
    memcpy(a.v_strides, s->problem.v_strides, sizeof a.v_strides);
    memcpy(a.out_strides, s->problem.out_strides, sizeof a.out_strides);
    memcpy(a.lse_strides, s->problem.lse_strides, sizeof a.lse_strides);
    int64_t scalars[MHA_MAX_SCALARS];
    mha_scalars(&a, scalars);
    void *buffers[] = {s->q, s->k, s->v, out, lse};
    const ir_interp_options options = {.shuffle_seed = 7};
    if (!kernel || ir_interpret(kernel, buffers, scalars, &options, &err)) {
        char problem[512], text[256];
        mha_problem_print(&s->problem, problem, sizeof problem);
        mha_schedule_print(schedule, text, sizeof text);
        fail_msg("%s %s on %s: %s", problem, text, target->name, err.message);
    }
    at_arena_free(&arena);
}

static void compare(const char *what, const float *got, const double *want, size_t count, double tolerance) {
    for (size_t i = 0; i < count; i++) {
        if (isnan(want[i]) && isnan(got[i])) continue;
        if (isinf(want[i]) && (double)got[i] == want[i]) continue;
        if (!(fabs((double)got[i] - want[i]) <= tolerance))
            fail_msg("%s[%zu] is %.9g, not %.9g", what, i, (double)got[i], want[i]);
    }
}

static void check_sample(const sample *s, const attune_schedule *schedule, const at_target *target) {
    float *out = malloc(s->num_out * sizeof *out), *lse = malloc(s->num_lse * sizeof *lse);
    double *want = malloc(s->num_out * sizeof *want), *want_lse = malloc(s->num_lse * sizeof *want_lse);
    assert_true(ref_attention(&s->problem, s->q, s->k, s->v, want, want_lse));
    interpret(s, schedule, target, out, lse);
    compare("out", out, want, s->num_out, 2e-6);
    if (s->problem.has_lse) compare("lse", lse, want_lse, s->num_lse, 4e-6);
    free(out);
    free(lse);
    free(want);
    free(want_lse);
}

static const char *const shapes[] = {
    "num_heads=2,seq_q=16,seq_kv=24,head_dim=8",
    "seq_q=1,seq_kv=1,head_dim=1",
    "seq_q=1,seq_kv=1,head_dim=1,is_causal=1,causal_offset=-1,lse=1",
    "num_heads=2,seq_q=37,seq_kv=41,head_dim=7,head_dim_v=19,lse=1",
    "batch=2,num_heads=6,num_kv_heads=2,seq_q=13,seq_kv=29,head_dim=17,lse=1",
    "num_heads=4,num_kv_heads=1,seq_q=3,seq_kv=70,head_dim=12,head_dim_v=5",
    "num_heads=1,seq_q=50,head_dim=16,is_causal=1,lse=1",
    "num_heads=2,seq_q=33,seq_kv=61,head_dim=9,is_causal=1,causal_align=bottom_right,lse=1",
    "num_heads=2,seq_q=40,seq_kv=21,head_dim=9,is_causal=1,causal_align=bottom_right,lse=1",
    "num_heads=4,num_kv_heads=2,seq_q=30,seq_kv=35,head_dim=10,is_causal=1,causal_offset=-9,lse=1",
    "num_heads=2,seq_q=20,seq_kv=30,head_dim=11,is_causal=1,causal_offset=5",
    "num_heads=2,seq_q=20,seq_kv=300,head_dim=4,softmax_scale=-3.5,lse=1",
    "num_heads=2,seq_q=20,seq_kv=5,head_dim=4,softmax_scale=0",
};
enum { NUM_SHAPES = sizeof shapes / sizeof *shapes };

static void test_chosen_schedules(void **state) {
    (void)state;
    for (int i = 0; i < NUM_SHAPES; i++) {
        random_source.state = (uint64_t)i;
        sample s = make_sample(shapes[i]);
        for (const at_target *target = at_targets(); target->name; target++) {
            attune_schedule schedule;
            mha_choose(&s.problem, target, &schedule);
            check_sample(&s, &schedule, target);
        }
        free_sample(&s);
    }
}

static attune_schedule random_schedule(const attune_problem *p, const at_target *target) {
    for (;;) {
        attune_schedule s = ATTUNE_SCHEDULE_INIT;
        s.lanes = 1 << random_below(5);
        s.score_rows = 1 + random_below(8);
        s.score_vectors = 1 + random_below(4);
        s.value_rows = 1 + random_below(8);
        s.value_vectors = 1 + random_below(4);
        s.score_unroll = 1 + random_below(4);
        s.value_unroll = 1 + random_below(3);
        s.q_vectors = s.score_vectors * (1 + random_below(4));
        s.kv_tile = s.score_rows * (1 + random_below(12));
        if (!mha_schedule_check(p, &s, target, NULL)) return s;
    }
}

static void test_random_schedules(void **state) {
    (void)state;
    for (int i = 0; i < 10 * NUM_SHAPES; i++) {
        random_source.state = (uint64_t)i + 1000;
        sample s = make_sample(shapes[i % NUM_SHAPES]);
        for (const at_target *target = at_targets(); target->name; target++) {
            const attune_schedule schedule = random_schedule(&s.problem, target);
            check_sample(&s, &schedule, target);
        }
        free_sample(&s);
    }
}

/* A row's bits depend only on the row and its keys: cutting rows into other tasks must not change them. */
static void test_bits_do_not_depend_on_tasks(void **state) {
    (void)state;
    const at_target *target = at_target_find("avx2");
    for (int i = 0; i < NUM_SHAPES; i++) {
        random_source.state = (uint64_t)i;
        sample s = make_sample(shapes[i]);
        attune_schedule one, other;
        mha_choose(&s.problem, target, &one);
        one.score_vectors = one.value_vectors = one.q_vectors = 1;
        other = one;
        other.q_vectors = 3;
        float *a = malloc(s.num_out * sizeof *a), *b = malloc(s.num_out * sizeof *b);
        float *lse = malloc(s.num_lse * sizeof *lse);
        interpret(&s, &one, target, a, lse);
        interpret(&s, &other, target, b, lse);
        assert_memory_equal(a, b, s.num_out * sizeof *a);
        free(a);
        free(b);
        free(lse);
        free_sample(&s);
    }
}

/* NaN and infinity in keys that causality hides must not reach the output; NaN in Q must. */
static void test_hidden_keys_do_not_leak(void **state) {
    (void)state;
    for (const at_target *target = at_targets(); target->name; target++) {
        sample s = make_sample("seq_q=30,seq_kv=30,head_dim=9,is_causal=1");
        attune_schedule schedule;
        mha_choose(&s.problem, target, &schedule);
        float *clean = malloc(s.num_out * sizeof *clean), *out = malloc(s.num_out * sizeof *out);
        interpret(&s, &schedule, target, clean, NULL);
        for (int d = 0; d < 9; d++) {
            s.k[20 * 9 + d] = d % 2 ? NAN : INFINITY;
            s.v[20 * 9 + d] = d % 2 ? -INFINITY : NAN;
        }
        s.q[5 * 9 + 3] = NAN;
        interpret(&s, &schedule, target, out, NULL);
        for (int i = 0; i < 30; i++)
            for (int d = 0; d < 9; d++) {
                const float x = out[i * 9 + d];
                if (i == 5 || i >= 20)
                    assert_true(isnan(x));
                else
                    assert_memory_equal(&x, &clean[i * 9 + d], sizeof x);
            }
        free(clean);
        free(out);
        free_sample(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chosen_schedules),
        cmocka_unit_test(test_random_schedules),
        cmocka_unit_test(test_bits_do_not_depend_on_tasks),
        cmocka_unit_test(test_hidden_keys_do_not_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
