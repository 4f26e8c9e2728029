/* Choices of a schedule that only move data: each gives the same bits, machine code and interpreter alike. Those that
 * change the order of sums (value_streams, gemm_by) are compared with the interpreter by `attune-lab check`. */
#include "problem/mha.h"
#include "schedule/schedule_fields.h"
#include "schedule/variant.h"
#include "support/ir/jit_run.h"
#include "support/tensor_calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static const struct {
    const char *problem, *sizes, *schedule;
} cases[] = {
    {"num_heads=2,seq_q=9,seq_kv=21,head_dim=8,head_dim_v=12", "", "Q"},
    {"num_heads=2,seq_q=9,seq_kv=21,head_dim=8,head_dim_v=12,is_causal=1", "", "Q"},
    {"num_heads=2,seq_q=9,seq_kv=21,head_dim=8,kv_dtype=f16,has_lse=1", "", "Q"},
    {"num_heads=4,num_kv_heads=2,seq_q=7,seq_kv=24,head_dim=8,kv_dtype=i8,kv_scales=token", "", "Q"},
    {"num_heads=2,seq_q=7,seq_kv=24,head_dim=8,page_size=4,has_kv_lens=1,v_dtype=f16", "num_pages=16,max_pages=6", "Q"},
    {"num_heads=2,seq_q=9,seq_kv=21,head_dim=8,reproducible=1,k_dtype=bf16", "", "QR"},
    {"num_heads=4,num_kv_heads=2,seq_q=19,seq_kv=41,head_dim=16,dtype=bf16,has_lse=1", "", "Q"},
    {"batch=3,num_heads=4,num_kv_heads=2,seq_q=9,seq_kv=dynamic,head_dim=16,head_dim_v=24,dtype=bf16,has_kv_lens=1,"
     "is_causal=1,window_left=12",
     "seq_kv=37", "Q"},
    {"num_heads=2,seq_q=dynamic,seq_kv=33,head_dim=16,dtype=bf16,attn_mask_dims=qk,v_in_k=1", "seq_q=21", "Q"},
    {"embed_dim=32,num_heads=2,seq_q=25,dtype=bf16,rotary_dim=8", "rotary_positions=25", "QB"},
    {"num_heads=2,seq_q=1,seq_kv=150,head_dim=16,head_dim_v=9", "", "D"},
    {"num_heads=4,num_kv_heads=1,seq_q=2,seq_kv=150,head_dim=16,is_causal=1,causal_align=bottom_right", "", "D"},
    {"num_heads=2,seq_q=1,seq_kv=150,head_dim=16,page_size=8,has_kv_lens=1", "num_pages=40,max_pages=19", "D"},
    {"num_heads=10,num_kv_heads=2,seq_q=1,seq_kv=77,head_dim=16,head_dim_v=40,dtype=bf16,has_lse=1", "", "D"},
    {"num_heads=6,num_kv_heads=2,seq_q=1,seq_kv=150,head_dim=16,dtype=bf16,page_size=16", "num_pages=40,max_pages=10",
     "D"},
    {"embed_dim=24,num_heads=2,seq_q=13", "", "QB"},
    {"embed_dim=40,num_heads=20,head_dim=16,seq_q=5,batch=3", "", "QB"},
};

/* Numbers that are legal for all of them. */
static void set_numbers(mha_schedule *s, const char *parts) {
    *s = (mha_schedule){.lanes = 4, .score_keys = 4, .value_keys = 4, .kv_tile = 16};
    if (strchr(parts, 'R')) s->kv_tile = 192;
    if (*parts == 'Q') {
        s->score_row_vectors = s->value_row_vectors = 2;
        s->task_row_vectors = 4;
        s->score_columns = 2;
        s->value_columns = 3;
    } else {
        s->strategy = MHA_D_LANES;
        s->score_rows = s->value_rows = 2;
        s->score_column_vectors = s->value_column_vectors = 1;
        s->kv_chunk = 64;
    }
    if (!strchr(parts, 'B')) return;
    s->gemm_rows = 4;
    s->gemm_column_vectors = 2;
    s->gemm_task_rows = 8;
}

static bool keeps_bits(const mha_schedule_field *field) {
    return mha_schedule_is_choice(field) && field->word != MHA_SCHEDULE_ID(value_streams) &&
           field->word != MHA_SCHEDULE_ID(gemm_by);
}

/* Of one target. Its machine code runs where the CPU can run it; everything else is checked on any machine. */
typedef struct engines {
    const at_target *target;
    attune_context *interpreter, *machine_code; /* or NULL */
} engines;

static engines open_engines(const at_target *target) {
    const bool runs = target_can_run(target);
    return (engines){target, tensors_context_for(target), runs ? tensors_context(target->name, 2) : NULL};
}

static void close_engines(engines *e) {
    attune_context_destroy(e->interpreter);
    attune_context_destroy(e->machine_code);
}

static void assert_same(const engines *e, size_t i, const mha_schedule *s, const tensors *a, const tensors *b) {
    char difference[DIFFERENCE_TEXT], text[512];
    mha_schedule_print(s, text, sizeof text);
    if (!tensors_same_outputs(a, b, difference))
        fail_msg("%s, %s, %s: %s", e->target->name, cases[i].problem, text, difference);
}

/* Runs the case by the schedule; false if that is not legal for the target. The caller frees *t. */
static bool run(const engines *e, size_t i, const mha_schedule *s, tensors *t) {
    tensors compiled;
    tensors_open_call(t, cases[i].problem, cases[i].sizes, INPUT_ORDINARY, 1);
    if (attune_schedule_choose(e->interpreter, &t->problem, mha_schedule_text(s).text, NULL, 0)) return false;
    tensors_interpret(e->interpreter, t, s);
    if (!e->machine_code) return true;
    tensors_open_call(&compiled, cases[i].problem, cases[i].sizes, INPUT_ORDINARY, 1);
    tensors_run_chosen(e->machine_code, &compiled, s);
    assert_same(e, i, s, &compiled, t);
    tensors_free(&compiled);
    return true;
}

/* How many values of a field are legal for the case; each run is compared with `expected`. */
static int compare(const engines *e, size_t i, const mha_schedule_field *field, const tensors *expected) {
    int legal = 0;
    for (const int32_t *value = field->values; *value; value++) {
        mha_schedule s;
        tensors t;
        set_numbers(&s, cases[i].schedule);
        if (!mha_schedule_has(mha_schedule_parts(&s), field)) return 0;
        *mha_schedule_at(&s, field->word) = *value;
        if (run(e, i, &s, &t)) {
            legal++;
            assert_same(e, i, &s, &t, expected);
        }
        tensors_free(&t);
    }
    return legal;
}

static void bits_are_the_same_on(const at_target *target, int legal[MHA_NUM_SCHEDULE_FIELDS]) {
    engines e = open_engines(target);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        mha_schedule s;
        tensors expected;
        set_numbers(&s, cases[i].schedule);
        assert_true(run(&e, i, &s, &expected));
        for (int f = 0; f < MHA_NUM_SCHEDULE_FIELDS; f++) {
            if (!keeps_bits(&mha_schedule_fields[f])) continue;
            const int count = compare(&e, i, &mha_schedule_fields[f], &expected);
            if (count > legal[f]) legal[f] = count;
        }
        tensors_free(&expected);
    }
    close_engines(&e);
}

static void bits_are_the_same(void **state) {
    (void)state;
    int legal[MHA_NUM_SCHEDULE_FIELDS] = {0};
    for (const at_target *target = at_targets(); target->name; target++)
        if (target_is_tested(target)) bits_are_the_same_on(target, legal);
    for (int f = 0; f < MHA_NUM_SCHEDULE_FIELDS; f++)
        if (keeps_bits(&mha_schedule_fields[f]) && legal[f] < 2)
            fail_msg("%s has one value only", mha_schedule_fields[f].name);
}

/* Values of d-lanes by so many streams: with one key of each at a time sums are in registers, with several they are in
 * memory. Only products of pairs cannot have several streams of one key each. */
static void compare_held(const engines *e, size_t i, int streams) {
    enum { MOST_VECTORS = 4 };
    tensors t[MOST_VECTORS + 1];
    attune_problem canonical;
    mha_schedule s;
    for (int vectors = 0; vectors <= MOST_VECTORS; vectors++) {
        set_numbers(&s, cases[i].schedule);
        s.value_streams = streams;
        s.value_keys = vectors ? 1 : 4;
        s.value_column_vectors = vectors ? vectors : 1;
        const bool is_legal = run(e, i, &s, &t[vectors]);
        assert_int_equal(mha_canonicalize(&t[vectors].problem, &canonical, NULL), ATTUNE_OK);
        assert_int_equal(is_legal, !vectors || streams == 1 || !mha_attends_by_pairs(&canonical, e->target));
        if (is_legal) assert_same(e, i, &s, &t[vectors], &t[0]);
    }
    for (int vectors = 0; vectors <= MOST_VECTORS; vectors++) tensors_free(&t[vectors]);
}

static void sums_that_are_held_have_the_bits_of_others(void **state) {
    (void)state;
    for (const at_target *target = at_targets(); target->name; target++) {
        if (!target_is_tested(target)) continue;
        engines e = open_engines(target);
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            if (*cases[i].schedule != 'D') continue;
            compare_held(&e, i, 1);
            compare_held(&e, i, 4);
        }
        close_engines(&e);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bits_are_the_same),
                                       cmocka_unit_test(sums_that_are_held_have_the_bits_of_others)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
