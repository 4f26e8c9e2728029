/* The list of fields, problem/fields.def: it is complete, and its columns agree with each other. */
#define _GNU_SOURCE
#include "problem/key_words.h"
#include "problem/problem_fields.h"
#include "support/problems.h"

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
    memset(owners + offsetof(attune_problem, reserved), 1, sizeof(int));
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
        if (field->part_of) assert_non_null(mha_field_at_offset(field->part_of));
        /* What is drawn is legal. */
        if (field->draw.step != 0) assert_true(field->draw.from >= field->least && field->draw.to <= field->most);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_member_has_a_line),
        cmocka_unit_test(test_key_is_dense),
        cmocka_unit_test(test_names_are_unique),
        cmocka_unit_test(test_columns_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
