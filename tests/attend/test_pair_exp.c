/* Exponentials of pairs of keys (prefill/exp_pairs.c), by the interpreter: every one has the bits that the best
 * table gives, a key that is far away has the weight 0, and a score that is no number is not lost. */
#include "problem/mha.h"
#include "schedule/schedule.h"
#include "support/problems.h"
#include "support/tensor_calls.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* One column of q and k is not 0, so scores are products. V has a 1 in column j of key j. */
enum { ROWS = 32, KEYS = 65, DIM = 64, COLUMNS = 72, STEPS = 512, TABLE = 128 };
static const char PROBLEM[] = "num_heads=1,seq_q=32,seq_kv=65,head_dim=64,head_dim_v=72,dtype=bf16";

static float number_of(uint16_t bf16) {
    const uint32_t bits = (uint32_t)bf16 << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint16_t rounded(float x) {
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* ---- What it is to be ---- */

/* A number of 9 bits after the point, plus 2, less a correction: 7 bits are left. */
static uint16_t without(int number, int correction) { return (uint16_t)((number + 2 - correction) >> 2); }

/* The squares of the relative errors of the numbers that round to `number`. */
static double errors(int number, int correction) {
    enum { POINTS = 32 };
    const double p = number_of(without(number, correction));
    double sum = 0;
    for (int i = 0; i < POINTS; i++) {
        const double exact = exp2((number - 0.5 + (i + 0.5) / POINTS) / STEPS - 127);
        sum += (p / exact - 1) * (p / exact - 1);
    }
    return sum;
}

/* The correction with the least errors, for the numbers that share it. */
static int best_correction(int place) {
    enum { MOST = 64 };
    int best = 0;
    double least = INFINITY;
    for (int correction = 0; correction < MOST; correction++) {
        double sum = 0;
        for (int i = 0; i < 4; i++) sum += errors(127 * STEPS + 4 * place - 2 + i, correction);
        if (sum < least) {
            least = sum;
            best = correction;
        }
    }
    return best;
}

static float wanted(float score, float most) {
    static int corrections[TABLE] = {-1};
    if (corrections[0] < 0)
        for (int i = 0; i < TABLE; i++) corrections[i] = best_correction(i);
    const float scale = (float)(M_LOG2E / 8) * STEPS;
    const double x = (double)(score - most) * scale + 127 * STEPS;
    const int number = (int)fmax(0, rint(x));
    const float p = number_of(without(number, corrections[(number + 2) / 4 % TABLE]));
    return p < 0x1p-126F ? 0 : p;
}

/* ---- Calls ---- */

static void fill_call(tensors *t, const char *problem, float least, float unit) {
    tensors_open_call(t, problem, "", INPUT_ORDINARY, 1);
    uint16_t *const q = tensors_find(t, "q")->data, *const k = tensors_find(t, "k")->data,
                    *const v = tensors_find(t, "v")->data;
    memset(q, 0, sizeof *q * ROWS * DIM);
    memset(k, 0, sizeof *k * KEYS * DIM);
    memset(v, 0, sizeof *v * KEYS * COLUMNS);
    for (int row = 0; row < ROWS; row++) q[row * DIM] = rounded(unit * least * powf(1.4F, (float)row));
    for (int key = 0; key < KEYS; key++) k[key * DIM] = rounded(unit * (0.37F - 0.11F * (float)(key * 29 % KEYS)));
    for (int key = 0; key < KEYS; key++) v[key * COLUMNS + key] = rounded(1);
}

static void open_call(tensors *t) { fill_call(t, PROBLEM, 0.03F, 1); }

static void run(const tensors *t) {
    mha_schedule s = {0};
    s.strategy = MHA_Q_LANES;
    s.lanes = 16;
    s.score_row_vectors = s.task_row_vectors = 2;
    s.score_keys = s.score_columns = s.value_row_vectors = s.value_columns = s.value_keys = 1;
    s.kv_tile = 80;
    tensors_interpret_for(t, at_target_find("avx512_bf16"), &s);
}

static uint16_t output(const tensors *t, int row, int column) {
    return ((const uint16_t *)tensors_find(t, "out")->data)[row * COLUMNS + column];
}

static void check_row(const tensors *t, int row) {
    const uint16_t *const q = tensors_find(t, "q")->data, *const k = tensors_find(t, "k")->data;
    float p[KEYS + 1] = {0}, most = -INFINITY, sum = 0;
    for (int key = 0; key < KEYS; key++) most = fmaxf(most, number_of(q[row * DIM]) * number_of(k[key * DIM]));
    for (int key = 0; key < KEYS; key++) p[key] = wanted(number_of(q[row * DIM]) * number_of(k[key * DIM]), most);
    for (int key = 0; key <= KEYS; key++) sum += p[key ^ 1]; /* the second of a pair first */
    for (int key = 0; key < KEYS; key++) {
        const float exact = p[key] * (1 / sum), weight = exact < 0x1p-126F ? 0 : exact;
        if (output(t, row, key) != rounded(weight))
            fail_msg("row %d, key %d: %a instead of %a, the probability being %a", row, key,
                     number_of(output(t, row, key)), number_of(rounded(weight)), p[key]);
    }
}

/* So many scores that each number of the table is one of them. */
static void test_bits(void **state) {
    (void)state;
    for (int i = 0; i < 24; i++) {
        tensors t;
        fill_call(&t, PROBLEM, 0.03F * (1 + 0.017F * (float)i), 1);
        run(&t);
        for (int row = 0; row < ROWS; row++) check_row(&t, row);
        tensors_free(&t);
    }
}

/* Q and K are 2^-61 of those above, and the scale is 2^122 times as large. Rows whose products keep all their bits have
 * the same probabilities. */
static void test_huge_scale(void **state) {
    (void)state;
    enum { FIRST_ROW = 14 };
    tensors usual, t;
    char problem[sizeof PROBLEM + 64];
    open_call(&usual);
    run(&usual);
    snprintf(problem, sizeof problem, "%s,softmax_scale=%.0f", PROBLEM, 0x1p119);
    fill_call(&t, problem, 0.03F, 0x1p-61F);
    run(&t);
    for (int row = FIRST_ROW; row < ROWS; row++)
        for (int key = 0; key < KEYS; key++) assert_int_equal(output(&t, row, key), output(&usual, row, key));
    tensors_free(&t);
    tensors_free(&usual);
}

/* Not rounded to the least number, but 0. */
static void test_infinitely_far(void **state) {
    (void)state;
    tensors t;
    open_call(&t);
    ((uint16_t *)tensors_find(&t, "k")->data)[9 * DIM] = rounded(-INFINITY);
    run(&t);
    for (int row = 0; row < ROWS; row++) {
        assert_int_equal(output(&t, row, 9), 0);
        check_row(&t, row);
    }
    tensors_free(&t);
}

/* The NaN is the first or the second of a pair, the last key of the tile, or one that another follows. */
static void test_no_number(void **state) {
    (void)state;
    static const int keys[] = {0, 1, 32, KEYS - 1};
    for (int i = 0; i < 4; i++) {
        tensors t;
        open_call(&t);
        ((uint16_t *)tensors_find(&t, "k")->data)[keys[i] * DIM] = rounded(NAN);
        run(&t);
        for (int row = 0; row < ROWS; row++) assert_true(isnan(number_of(output(&t, row, 3))));
        tensors_free(&t);
    }
}

/* Larger than any other, so the difference from itself is NaN. */
static void test_infinite_score(void **state) {
    (void)state;
    tensors t;
    open_call(&t);
    ((uint16_t *)tensors_find(&t, "k")->data)[5 * DIM] = rounded(INFINITY);
    run(&t);
    for (int row = 0; row < ROWS; row++) assert_true(isnan(number_of(output(&t, row, 3))));
    tensors_free(&t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bits),      cmocka_unit_test(test_huge_scale),     cmocka_unit_test(test_infinitely_far),
        cmocka_unit_test(test_no_number), cmocka_unit_test(test_infinite_score),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
