/* Nothing that a hidden key holds reaches the result: NaN, infinity and other numbers in its K, its V and their scales
 * leave every bit of the rows that do not see it. By whatever rule it is hidden, in every type, by both strategies, in
 * whatever order values are summed. */
#include "ref_codes.h"
#include "schedule/choose.h"
#include "support/problems.h"
#include "support/tensor_calls.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

enum { KEYS = 150, MAX_PAGES = 40, NUM_PAGES = 80 };

/* ---- Which keys are hidden ---- */

typedef enum hiding {
    BY_TENSOR, /* attn_mask or attn_bias hides some keys; where it has rows, the last one sees them */
    BY_FUNCTION,
    BY_LENGTH,
    BY_WINDOW,
    BY_CAUSALITY, /* from all rows but the last */
    NUM_HIDINGS
} hiding;

static const char *const rules[NUM_HIDINGS][3] = {
    {"attn_mask_dims=k", "attn_bias_dims=k", "attn_mask_dims=qk"},
    {"mask_mod=\"kv % 5 != 2 & (kv < 64 | kv > 71)\"", "mask_mod=\"kv % 5 != 2 & (kv < 64 | kv > 71)\"",
     "mask_mod=\"kv % 5 != 2 & (kv < 64 | kv > 71)\""},
    {"has_kv_lens=1", "has_kv_lens=1", "has_kv_lens=1"},
    {"window_left=20", "window_left=20,global_tokens=3", "window_left=60"},
    {"is_causal=1", "is_causal=1", "is_causal=1,window_left=20"},
};

static bool hides(const attune_problem *p, hiding how, int64_t j) {
    switch (how) {
    case BY_LENGTH: return j >= KEYS * 3 / 4;
    case BY_WINDOW: return j >= p->global_tokens && j < KEYS - p->seq_q - p->window_left;
    case BY_CAUSALITY: return j == KEYS - 1;
    default: return j % 5 == 2 || (j >= 64 && j <= 71);
    }
}

/* Fills in what hides the keys, and gives each its own place in a paged cache. */
static void hide(const tensors *t, hiding how) {
    const tensor *const table = tensors_find(t, "block_table");
    for (int i = 0; table && i < MAX_PAGES; i++) ((int32_t *)table->data)[i] = (i * 7 + 3) % NUM_PAGES;
    const tensor *const lengths = tensors_find(t, "kv_lens");
    for (int64_t b = 0; lengths && b < t->problem.batch; b++) ((int32_t *)lengths->data)[b] = KEYS * 3 / 4;
    const char *const names[] = {"attn_mask", "attn_bias"};
    for (int n = 0; n < 2; n++) {
        const tensor *const one = tensors_find(t, names[n]);
        if (!one) continue;
        const int64_t queries = one->info.strides[2] ? one->info.dims[2] : 1;
        for (int64_t q = 0; q < queries; q++)
            for (int64_t j = 0; j < KEYS; j++) {
                const bool hidden = hides(&t->problem, how, j) && (queries == 1 || q < queries - 1);
                const long double keep = n ? 0 : 1, leave = n ? -(long double)INFINITY : 0;
                ref_store(one->info.dtype, one->data, q * KEYS + j, hidden ? leave : keep);
            }
    }
}

/* ---- What they hold ---- */

typedef enum poison { OTHER_NUMBERS, NO_NUMBERS, INFINITE, NUM_POISONS } poison;

static void spoil(const tensor *one, int64_t at, poison with) {
    const size_t bytes = ref_dtype_bytes(one->info.dtype);
    const bool is_float = one->info.dtype == ATTUNE_F32 || one->info.dtype == ATTUNE_F16 ||
                          one->info.dtype == ATTUNE_BF16 || one->info.dtype == ATTUNE_F64;
    if (with == INFINITE && is_float)
        ref_store(one->info.dtype, one->data, at, INFINITY);
    else /* NaN in all floats, also in scales inline */
        memset((char *)one->data + at * (int64_t)bytes, with == OTHER_NUMBERS ? 0x11 : 0xff, bytes);
}

static void spoil_row(const tensors *t, bool is_k, int64_t entry, int64_t head, int64_t j, poison with) {
    const tensor *const one = tensors_find(t, is_k ? "k" : "v"), *const table = tensors_find(t, "block_table"),
                        *const scale = tensors_find(t, is_k ? "k_scale" : "v_scale");
    const int64_t size = t->problem.page_size;
    const int64_t at = size ? ((int32_t *)table->data)[entry * table->info.dims[1] + j / size] : entry;
    const int64_t token = size ? j % size : j;
    if (one) {
        const ref_format f = ref_format_of(&t->problem, is_k);
        const int64_t *const strides = one->info.strides;
        const int64_t row = at * strides[0] + head * strides[1] + ref_token_place(&f, token, strides[2]);
        const int64_t elements = f.unit ? f.columns : ref_row_elements(&f);
        for (int64_t i = 0; i < elements; i++)
            spoil(one, row + (f.unit ? ref_column_place(&f, i, strides[3]) : i * strides[3]), with);
    }
    if (!scale || scale->info.rank < 3) return;
    const int64_t *const strides = scale->info.strides, numbers = scale->info.rank == 4 ? scale->info.dims[3] : 1;
    for (int64_t i = 0; i < numbers; i++)
        spoil(scale, at * strides[0] + head * strides[1] + token * strides[2] + i, with);
}

static void spoil_hidden(const tensors *t, hiding how, poison with) {
    for (int64_t b = 0; b < t->problem.batch; b++)
        for (int64_t h = 0; h < t->problem.num_kv_heads; h++)
            for (int64_t j = 0; j < KEYS; j++) {
                if (!hides(&t->problem, how, j)) continue;
                spoil_row(t, true, b, h, j, with);
                spoil_row(t, false, b, h, j, with);
            }
}

/* ---- Runs ---- */

static void assert_same_rows(const tensors *a, const tensors *b, bool last_differs, const char *what) {
    static const char *const names[] = {"out", "lse", "weights"};
    for (int n = 0; n < 3; n++) {
        const tensor *const x = tensors_find(a, names[n]), *const y = tensors_find(b, names[n]);
        if (!x) continue;
        const int64_t queries = x->info.dims[2], rows = x->info.dims[0] * x->info.dims[1] * queries;
        const size_t bytes = (x->info.rank == 4 ? (size_t)x->info.dims[3] : 1) * ref_dtype_bytes(x->info.dtype);
        for (int64_t row = 0; row < rows; row++) {
            if (last_differs && row % queries == queries - 1) continue;
            if (memcmp((char *)x->data + (size_t)row * bytes, (char *)y->data + (size_t)row * bytes, bytes) != 0)
                fail_msg("%s: %s has other bits in row %d", what, names[n], (int)row);
        }
    }
}

/* A problem, and its tensors with several contents of hidden keys. */
typedef struct trial {
    const char *problem;
    hiding how;
    bool last_differs;
    tensors clean, spoilt[NUM_POISONS];
} trial;

static void compare(const trial *c, const at_target *target, const mha_schedule *schedule, attune_context *context) {
    static const char *const held[NUM_POISONS] = {"other numbers", "NaN", "infinity"};
    char text[512], what[1200];
    mha_schedule_print(schedule, text, sizeof text);
    for (int i = -1; i < NUM_POISONS; i++) {
        const tensors *const t = i < 0 ? &c->clean : &c->spoilt[i];
        if (context)
            tensors_run_chosen(context, t, schedule);
        else
            tensors_interpret_for(t, target, schedule);
        if (i < 0) continue;
        snprintf(what, sizeof what, "%s with %s, by %s for %s", c->problem, held[i], text,
                 target ? target->name : "this CPU");
        assert_same_rows(&c->clean, t, c->last_differs, what);
    }
}

/* The chosen schedule, and others that sum values in other orders. */
static void compare_schedules(const trial *c, const at_target *target, const mha_schedule *chosen) {
    static const int orders[][2] = {{1, 1}, {4, 1}, {4, 4}, {4, 2}, {2, 2}, {1, 4}, {8, 8}}; /* value_keys, streams */
    const attune_problem p = problem_canonical(c->problem);
    compare(c, target, chosen, NULL);
    for (size_t i = 0; chosen->strategy == MHA_D_LANES && i < sizeof orders / sizeof *orders; i++) {
        mha_schedule s = *chosen;
        if ((i + (size_t)(target - at_targets())) % 3) continue;
        s.value_keys = orders[i][0];
        s.value_streams = orders[i][1];
        if (i % 2 && !p.reproducible && !p.integer) s.kv_tile = s.kv_chunk = 64;
        if (mha_schedule_check(&p, &s, target, NULL) == ATTUNE_OK) compare(c, target, &s, NULL);
    }
}

static void open_trial(trial *c) {
    for (int i = -1; i < NUM_POISONS; i++) {
        tensors *const t = i < 0 ? &c->clean : &c->spoilt[i];
        const char *const sizes = strstr(c->problem, "page_size") ? "max_pages=40,num_pages=80" : "";
        tensors_open_call(t, c->problem, sizes, INPUT_ORDINARY, 3);
        hide(t, c->how);
        if (i >= 0) spoil_hidden(t, c->how, (poison)i);
    }
}

static void close_trial(trial *c) {
    tensors_free(&c->clean);
    for (int i = 0; i < NUM_POISONS; i++) tensors_free(&c->spoilt[i]);
}

/* On this CPU: machine code, and the virtual machine. */
static void compare_engines(const trial *c, attune_context *const contexts[2]) {
    for (int i = 0; i < 2; i++) {
        const mha_schedule chosen = schedule_chosen_by(contexts[i], &c->clean.problem);
        compare(c, NULL, &chosen, contexts[i]);
    }
}

static void check(const char *fields, hiding how, int rule, int queries, attune_context *const contexts[2]) {
    char problem[512];
    snprintf(problem, sizeof problem, "num_heads=2,num_kv_heads=1,seq_q=%d,seq_kv=%d,head_dim=32,has_lse=1,%s%s",
             queries, KEYS, rules[how][rule], fields);
    trial c = {.problem = problem, .how = how};
    c.last_differs = how == BY_CAUSALITY || (how == BY_TENSOR && rule == 2 && queries > 1);
    if (c.last_differs && queries == 1) return;
    const attune_problem p = problem_canonical(problem);
    open_trial(&c);
    for (const at_target *target = at_targets(); target->name; target++) {
        mha_schedule schedule = {0};
        if (mha_may_go_by_d_lanes(&p) && queries < 9) {
            mha_choose_by(MHA_D_LANES, mha_read(&p), target, usual_machine(target), &schedule);
            compare_schedules(&c, target, &schedule);
        }
        mha_choose(mha_read(&p), target, usual_machine(target), &schedule);
        if (schedule.strategy == MHA_Q_LANES) compare_schedules(&c, target, &schedule);
    }
    if (contexts) compare_engines(&c, contexts);
    close_trial(&c);
}

/* Each with every rule, but not with each number of queries. */
static const char *const kinds[] = {
    "",
    ",dtype=f16",
    ",dtype=bf16",
    ",dtype=f64",
    ",dtype=bf16,softmax_precision=f64",
    ",reproducible=1",
    ",weights_mode=softmax",
    ",v_in_k=1,head_dim_v=16",
    ",page_size=16",
    ",page_size=4,dtype=bf16",
    ",kv_layout=panels",
    ",kv_layout=panels,dtype=bf16",
    ",kv_layout=panels,kv_dtype=i8,kv_scales=token",
    ",kv_dtype=f8",
    ",kv_dtype=f8,kv_scales=token",
    ",kv_dtype=i8",
    ",kv_dtype=i8,kv_scales=token,page_size=16",
    ",kv_dtype=i8,kv_scales=token,dtype=bf16",
    ",kv_dtype=i8,kv_scales=group",
    ",kv_dtype=i8,kv_scales=inline",
    ",kv_dtype=i4",
    ",kv_dtype=i4,kv_scales=token_min",
    ",kv_dtype=i4,kv_scales=group_min",
    ",kv_dtype=i4,kv_scales=inline_min",
    ",kv_dtype=i8,kv_scales=token,integer=scores",
    ",kv_dtype=i4,kv_scales=group,integer=scores",
    ",kv_dtype=i8,kv_scales=token,integer=all",
    ",kv_dtype=i4,kv_scales=token,integer=all,page_size=16",
    ",prob_mod=\"prob * 2.0\"",
    ",kv_dtype=i8,kv_scales=token,matmul_precision=bf16",
    ",kv_dtype=i4,kv_scales=group,matmul_precision=bf16,dtype=bf16",
    ",kv_dtype=i8,matmul_precision=bf16",
    ",kv_dtype=i8,kv_scales=inline,matmul_precision=bf16",
    ",kv_dtype=i4,kv_scales=token_min,matmul_precision=bf16",
    ",kv_dtype=i8,kv_scales=token,matmul_precision=bf16,page_size=16",
    ",kv_dtype=f8,kv_scales=token,dtype=bf16",
};
enum { NUM_KINDS = sizeof kinds / sizeof *kinds };

static void check_rule(hiding how) {
    static const int queries[] = {1, 3, 12};
    attune_context_options virtual = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *contexts[2] = {tensors_context(NULL, 1), NULL};
    virtual.cache_dir = "";
    virtual.compile_mode = ATTUNE_COMPILE_NEVER;
    assert_int_equal(attune_context_create(&virtual, &contexts[1]), ATTUNE_OK);
    for (int i = 0; i < NUM_KINDS; i++)
        for (int n = 0; n < 2; n++)
            check(kinds[i], how, (i + n) % 3, queries[(i + n + (i / 3)) % 3], n ? NULL : contexts);
    for (int i = 0; i < 2; i++) attune_context_destroy(contexts[i]);
}

static void test_masks_and_biases(void **state) {
    (void)state;
    check_rule(BY_TENSOR);
}

static void test_functions(void **state) {
    (void)state;
    check_rule(BY_FUNCTION);
}

static void test_lengths(void **state) {
    (void)state;
    check_rule(BY_LENGTH);
}

static void test_windows(void **state) {
    (void)state;
    check_rule(BY_WINDOW);
}

static void test_causality(void **state) {
    (void)state;
    check_rule(BY_CAUSALITY);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_masks_and_biases), cmocka_unit_test(test_functions),
                                       cmocka_unit_test(test_lengths), cmocka_unit_test(test_windows),
                                       cmocka_unit_test(test_causality)};
    return cmocka_run_group_tests_name("hidden values", tests, NULL, NULL);
}
