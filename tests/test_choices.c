/* Choices of a schedule that only move data: each gives the same bits, machine code and interpreter alike. Those that
 * change the order of sums (value_streams, gemm_by) are compared with the interpreter by `attune check`. */
#include "schedule/schedule_fields.h"
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
    {"num_heads=2,seq_q=9,seq_kv=21,head_dim=8,kv_dtype=f16,lse=1", "", "Q"},
    {"num_heads=4,num_kv_heads=2,seq_q=7,seq_kv=24,head_dim=8,kv_dtype=i8,kv_scales=token", "", "Q"},
    {"num_heads=2,seq_q=7,seq_kv=24,head_dim=8,page_size=4,kv_lens=1,v_dtype=f16", "num_pages=16,max_pages=6", "Q"},
    {"num_heads=2,seq_q=9,seq_kv=21,head_dim=8,reproducible=1,k_dtype=bf16", "", "QR"},
    {"num_heads=4,num_kv_heads=2,seq_q=19,seq_kv=41,head_dim=16,dtype=bf16,lse=1", "", "Q"},
    {"batch=3,num_heads=4,num_kv_heads=2,seq_q=9,seq_kv=dynamic,head_dim=16,head_dim_v=24,dtype=bf16,kv_lens=1,"
     "is_causal=1,window_left=12",
     "seq_kv=37", "Q"},
    {"num_heads=2,seq_q=dynamic,seq_kv=33,head_dim=16,dtype=bf16,attn_mask=qk,v_in_k=1", "seq_q=21", "Q"},
    {"embed_dim=32,num_heads=2,seq_q=25,dtype=bf16,rotary_dim=8", "rotary_positions=25", "QB"},
    {"num_heads=2,seq_q=1,seq_kv=150,head_dim=16,head_dim_v=9", "", "D"},
    {"num_heads=4,num_kv_heads=1,seq_q=2,seq_kv=150,head_dim=16,is_causal=1,causal_align=bottom_right", "", "D"},
    {"num_heads=2,seq_q=1,seq_kv=150,head_dim=16,page_size=8,kv_lens=1", "num_pages=40,max_pages=19", "D"},
    {"num_heads=10,num_kv_heads=2,seq_q=1,seq_kv=77,head_dim=16,head_dim_v=40,dtype=bf16,lse=1", "", "D"},
    {"num_heads=6,num_kv_heads=2,seq_q=1,seq_kv=150,head_dim=16,dtype=bf16,page_size=16", "num_pages=40,max_pages=10",
     "D"},
    {"embed_dim=24,num_heads=2,seq_q=13", "", "QB"},
    {"embed_dim=40,num_heads=20,head_dim=16,seq_q=5,batch=3", "", "QB"},
};

/* Numbers that are legal for all of them. */
static void set_numbers(attune_schedule *s, const char *parts) {
    *s = (attune_schedule){.struct_size = sizeof *s, .lanes = 4, .score_keys = 4, .value_keys = 4, .kv_tile = 16};
    if (strchr(parts, 'R')) s->kv_tile = 192;
    if (*parts == 'Q') {
        s->score_row_vectors = s->value_row_vectors = 2;
        s->task_row_vectors = 4;
        s->score_columns = 2;
        s->value_columns = 3;
    } else {
        s->strategy = ATTUNE_D_LANES;
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

/* How many values of a field are legal for the case; each run is compared with `expected`. */
static int compare(attune_context *context, size_t i, const mha_schedule_field *field, const tensors *expected) {
    int legal = 0;
    for (const int32_t *value = field->values; *value; value++) {
        attune_schedule s;
        tensors t;
        char difference[DIFFERENCE_TEXT];
        set_numbers(&s, cases[i].schedule);
        if (!mha_schedule_has(mha_schedule_parts(&s), field)) return 0;
        *mha_schedule_at(&s, field->word) = *value;
        tensors_open_call(&t, cases[i].problem, cases[i].sizes, INPUT_ORDINARY, 1);
        if (attune_schedule_check(context, &t.problem, &s) == ATTUNE_OK) {
            legal++;
            tensors_run_chosen(context, &t, &s);
            if (!tensors_same_outputs(&t, expected, difference))
                fail_msg("%s, %s=%d: %s", cases[i].problem, field->name, (int)*value, difference);
        }
        tensors_free(&t);
    }
    return legal;
}

static void bits_are_the_same(void **state) {
    (void)state;
    int legal[MHA_NUM_SCHEDULE_FIELDS] = {0};
    attune_context *context = tensors_context(NULL, 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attune_schedule s;
        tensors expected;
        set_numbers(&s, cases[i].schedule);
        tensors_open_call(&expected, cases[i].problem, cases[i].sizes, INPUT_ORDINARY, 1);
        tensors_run_chosen(context, &expected, &s);
        for (int f = 0; f < MHA_NUM_SCHEDULE_FIELDS; f++) {
            if (!keeps_bits(&mha_schedule_fields[f])) continue;
            const int count = compare(context, i, &mha_schedule_fields[f], &expected);
            if (count > legal[f]) legal[f] = count;
        }
        tensors_free(&expected);
    }
    attune_context_destroy(context);
    for (int f = 0; f < MHA_NUM_SCHEDULE_FIELDS; f++)
        if (keeps_bits(&mha_schedule_fields[f]) && legal[f] < 2)
            fail_msg("%s has one value only", mha_schedule_fields[f].name);
}

/* Values of d-lanes by so many streams: with one key of each at a time sums are in registers, with several they are in
 * memory. */
static void compare_held(attune_context *context, size_t i, int streams) {
    enum { MOST_VECTORS = 4 };
    tensors t[MOST_VECTORS + 1];
    for (int vectors = 0; vectors <= MOST_VECTORS; vectors++) {
        attune_schedule s;
        char difference[DIFFERENCE_TEXT];
        set_numbers(&s, cases[i].schedule);
        s.value_streams = streams;
        s.value_keys = vectors ? 1 : 4;
        s.value_column_vectors = vectors ? vectors : 1;
        tensors_open_call(&t[vectors], cases[i].problem, cases[i].sizes, INPUT_ORDINARY, 1);
        tensors_run_chosen(context, &t[vectors], &s);
        if (!tensors_same_outputs(&t[vectors], &t[0], difference))
            fail_msg("%s, %d streams, %d vectors: %s", cases[i].problem, streams, vectors, difference);
    }
    for (int vectors = 0; vectors <= MOST_VECTORS; vectors++) tensors_free(&t[vectors]);
}

static void sums_that_are_held_have_the_bits_of_others(void **state) {
    (void)state;
    attune_context *context = tensors_context(NULL, 2);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (*cases[i].schedule != 'D') continue;
        compare_held(context, i, 1);
        compare_held(context, i, 4);
    }
    attune_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(bits_are_the_same),
                                       cmocka_unit_test(sums_that_are_held_have_the_bits_of_others)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
