/* The list of fields, problem/fields.def: it is complete, and its columns agree with each other. */
#define _GNU_SOURCE
#include "check/check_case.h"
#include "problem/key_words.h"
#include "problem/problem_fields.h"
#include "support/problems.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

/* Each byte of the struct is one field's. Padding would be nobody's. */
static void test_every_member_has_a_line(void **state) {
    (void)state;
    enum { BYTES = sizeof(attune_problem) };
    char owners[BYTES] = {0};
    memset(owners, 1, sizeof(size_t)); /* struct_size */
    for (int i = 0; i < MHA_NUM_FIELDS; i++) {
        const mha_field *field = &mha_fields[i];
        for (size_t b = 0; b < mha_field_bytes(field); b++) owners[field->offset + b]++;
        for (size_t b = 0; field->open && b < sizeof(int); b++) owners[field->open + b]++;
    }
    for (size_t b = 0; b < BYTES; b++)
        if (owners[b] != 1) fail_msg("byte %zu of attune_problem is that of %d fields", b, owners[b]);
}

/* Words of the key are as many as there are places, and no place is taken twice or left out. */
static void test_key_is_dense(void **state) {
    (void)state;
    mha_key_word words[MHA_KEY_WORDS];
    memset(words, 0, sizeof words);
    const attune_problem p = problem_canonical("num_heads=4,seq_q=8,head_dim=16");
    const size_t count = mha_key_words(&p, words);
    for (size_t i = 0; i < count; i++)
        if (!words[i].name) fail_msg("no word of the key has the number %zu", i);
    for (int i = 0; i < MHA_NUM_FIELDS; i++) {
        const mha_field *field = &mha_fields[i];
        if (field->key != MHA_NO_KEY && strcmp(words[field->key].name, field->name) != 0)
            fail_msg("%s and %s have the number %d in the key", field->name, words[field->key].name, field->key);
    }
}

static int times_in(const char *list, const char *name) {
    int times = 0;
    for (const char *at = list; at && *at; at += strspn(at, " ")) {
        const size_t length = strcspn(at, " ");
        times += strlen(name) == length && !strncmp(at, name, length);
        at += length;
    }
    return times;
}

/* A name of another library that is one of attune's, too, would never be read. */
static void test_names_are_unique(void **state) {
    (void)state;
    for (int i = 0; i < MHA_NUM_FIELDS; i++) {
        char list[256], *rest = list;
        assert_ptr_equal(mha_field_named(mha_fields[i].name), &mha_fields[i]);
        snprintf(list, sizeof list, "%s", mha_fields[i].also ? mha_fields[i].also : "");
        for (char *name; (name = strsep(&rest, " "));) {
            int times = 0;
            for (int j = 0; j < MHA_NUM_FIELDS; j++) times += times_in(mha_fields[j].also, name);
            if (*name && (times != 1 || mha_field_named(name))) fail_msg("%s stands for two fields", name);
        }
    }
}

static void test_columns_agree(void **state) {
    (void)state;
    const attune_problem initial = ATTUNE_PROBLEM_INIT;
    for (int i = 0; i < MHA_NUM_FIELDS; i++) {
        const mha_field *field = &mha_fields[i];
        assert_true(field->operators != 0);
        assert_true(mha_field_is_initial(&initial, field));
        assert_int_equal(field->kind == MHA_FIELD_WORD, field->words != NULL);
        assert_true(field->least <= field->most);
        if (field->part_of) assert_int_equal(mha_fields[field->part_of].operators & field->operators, field->operators);
        /* What is drawn is legal. */
        if (field->draw.step != 0) assert_true(field->draw.from >= field->least && field->draw.to <= field->most);
    }
}

/* ---- What the list does ---- */

/* A problem of each operator, by attune_op. */
static const char *const of_op[ATTUNE_OP_COUNT] = {
    [ATTUNE_ATTENTION] = "num_heads=2,seq_q=4,head_dim=8,rotary_dim=4",
    [ATTUNE_WEIGHTS] = "op=weights,num_heads=2,seq_q=4,head_dim=8,has_row_ids=1,num_rows=2,attn_bias_dims=k",
    [ATTUNE_ROTARY] = "op=rotary,num_heads=2,seq_q=4,head_dim=8,rotary_dim=4",
    [ATTUNE_MERGE] = "op=merge,num_heads=2,seq_q=4,head_dim=8,num_parts=3",
    [ATTUNE_MHA] = "embed_dim=8,num_heads=2,seq_q=4,head_dim=4,low_rank=3,weights_mode=softmax"};

static attune_problem problem_of_op(int op) {
    attune_problem p = problem_parsed(of_op[op]);
    p.op = (attune_op)op;
    return p;
}

static void set(attune_problem *p, const mha_field *field, double value) {
    const int small = (int)value;
    const int64_t wide[4] = {(int64_t)value, (int64_t)value, (int64_t)value, (int64_t)value};
    const void *from = mha_field_bytes(field) == sizeof small ? (const void *)&small : (const void *)wide;
    size_t bytes = mha_field_bytes(field);
    if (field->kind == MHA_FIELD_NUMBER) from = &value;
    if (field->kind == MHA_FIELD_TEXT || field->kind == MHA_FIELD_TENSORS) from = "x", bytes = 2;
    assert_true(bytes <= sizeof wide);
    memcpy(mha_field_at(p, field), from, bytes);
}

static void assert_refused(const attune_problem *p, const mha_field *field, double value) {
    attune_problem changed = *p, canonical;
    at_error err = {0};
    set(&changed, field, value);
    assert_int_equal(mha_canonicalize(&changed, &canonical, &err), ATTUNE_INVALID_PROBLEM);
    /* Merging has one width. */
    const char *const name =
        changed.op == ATTUNE_MERGE && field == &mha_fields[MHA_ID_head_dim_v] ? "head_dim" : field->name;
    if (strncmp(err.message, name, strlen(name)) != 0) fail_msg("%s = %g: %s", field->name, value, err.message);
}

/* Values that no field of the kind can have are refused by name, for each operator for which the field counts. */
static void test_wrong_values_are_refused(void **state) {
    (void)state;
    int refused = 0;
    for (int op = 0; op < ATTUNE_OP_COUNT; op++) {
        const attune_problem p = problem_of_op(op);
        for (int i = 0; i < MHA_NUM_FIELDS; i++) {
            const mha_field *field = &mha_fields[i];
            if (!mha_field_counts(&p, field)) continue;
            refused++;
            switch (field->kind) {
            case MHA_FIELD_FLAG: assert_refused(&p, field, 2); break;
            case MHA_FIELD_WORD: assert_refused(&p, field, field->words->count); break;
            case MHA_FIELD_NUMBER:
                assert_refused(&p, field, 1e39);
                assert_refused(&p, field, -INFINITY);
                if (mha_field_number(&p, field) == 0) assert_refused(&p, field, NAN);
                break;
            case MHA_FIELD_INT:
            case MHA_FIELD_SIZE:
                assert_refused(&p, field, field->least < 0 ? field->least - 1 : -7);
                assert_refused(&p, field, field->most + 1);
                break;
            default: break;
            }
        }
    }
    assert_true(refused > MHA_NUM_FIELDS);
}

/* A field that means nothing for an operator is refused by name, and so is one of a block without embed_dim. The other
 * ops take the problem of the attention to which they belong: there such fields change nothing. Two change what the
 * problem is. */
static void test_fields_of_other_operators(void **state) {
    (void)state;
    for (int op = 0; op < ATTUNE_OP_COUNT; op++) {
        const attune_problem p = problem_of_op(op);
        attune_problem plain, canonical;
        assert_int_equal(mha_canonicalize(&p, &plain, NULL), ATTUNE_OK);
        for (int i = 0; i < MHA_NUM_FIELDS; i++) {
            const mha_field *field = &mha_fields[i];
            attune_problem changed = p;
            if (field->operators >> op & 1) continue;
            set(&changed, field, i == MHA_ID_causal_align ? ATTUNE_TOP_LEFT : 1);
            at_error err = {0};
            const attune_status status = mha_canonicalize(&changed, &canonical, &err);
            const bool decides = i == MHA_ID_embed_dim || i == MHA_ID_is_ragged;
            const bool is_of_block = field->operators == 1u << ATTUNE_MHA && op != ATTUNE_MHA;
            const bool is_refused = field->kind != MHA_FIELD_STRIDES && (is_of_block || mha_attends(&p));
            if (!decides && is_refused) {
                assert_int_equal(status, ATTUNE_INVALID_PROBLEM);
                if (strncmp(err.message, field->name, strlen(field->name)) != 0)
                    fail_msg("%s: %s", field->name, err.message);
                continue;
            }
            if (!decides && (status || memcmp(&canonical, &plain, sizeof plain) != 0))
                fail_msg("op %d is another problem with %s", op, field->name);
            if (decides && op != ATTUNE_ATTENTION) assert_int_equal(status, ATTUNE_INVALID_PROBLEM);
        }
    }
}

/* `attune-lab check` meets every field: those that the list draws, and those that depend on others. */
/* A part of a feature that the problem does not have is refused by name. */
static void test_parts_without_their_feature(void **state) {
    (void)state;
    int parts = 0;
    for (int i = 0; i < MHA_NUM_FIELDS; i++) {
        const mha_field *field = &mha_fields[i];
        if (!field->part_of) continue;
        parts++;
        attune_problem changed =
            problem_parsed(field->operators == 1u << ATTUNE_MHA ? "embed_dim=8,num_heads=2,seq_q=4,head_dim=4"
                                                                : "num_heads=2,seq_q=4,head_dim=8");
        attune_problem canonical;
        at_error err = {0};
        set(&changed, field, field->kind == MHA_FIELD_WORD ? 2 : 1);
        assert_int_equal(mha_canonicalize(&changed, &canonical, &err), ATTUNE_INVALID_PROBLEM);
        if (strncmp(err.message, field->name, strlen(field->name)) != 0) fail_msg("%s: %s", field->name, err.message);
    }
    assert_true(parts >= 7);
}

static void test_all_fields_are_drawn(void **state) {
    (void)state;
    int times[MHA_NUM_FIELDS] = {0};
    tool_random random = {1};
    for (int n = 0; n < 3000; n++) {
        attune_problem p;
        call_sizes sizes;
        assert_true(check_draw_problem(&random, 1e6, &p, &sizes));
        for (int i = 0; i < MHA_NUM_FIELDS; i++) times[i] += !mha_field_is_initial(&p, &mha_fields[i]);
    }
    for (int i = 0; i < MHA_NUM_FIELDS; i++)
        if (!times[i]) fail_msg("%s is never drawn", mha_fields[i].name);
}

static void test_functions_are_drawn(void **state) {
    (void)state;
    int masks = 0, scores = 0, probabilities = 0, with_tensors = 0;
    tool_random random = {1};
    for (int n = 0; n < 500; n++) {
        attune_problem p;
        call_sizes sizes;
        assert_true(check_draw_functions(&random, 1e5, &p, &sizes));
        masks += p.mask_mod[0] != 0, scores += p.score_mod[0] != 0, probabilities += p.prob_mod[0] != 0;
        with_tensors += p.tensors[0].rank != 0;
        if (!p.mask_mod[0] && !p.score_mod[0] && !p.prob_mod[0]) fail_msg("problem %d has no function", n);
    }
    assert_true(masks > 200 && scores > 200 && probabilities > 50 && with_tensors > 200);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_member_has_a_line),
        cmocka_unit_test(test_key_is_dense),
        cmocka_unit_test(test_names_are_unique),
        cmocka_unit_test(test_columns_agree),
        cmocka_unit_test(test_wrong_values_are_refused),
        cmocka_unit_test(test_fields_of_other_operators),
        cmocka_unit_test(test_parts_without_their_feature),
        cmocka_unit_test(test_all_fields_are_drawn),
        cmocka_unit_test(test_functions_are_drawn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
