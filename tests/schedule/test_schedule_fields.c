/* The list of fields, schedule/schedule.def: it is complete, and each field does what it is there for. */
#include "cache/key.h"
#include "check/check_case.h"
#include "operator/operator.h"
#include "schedule/schedule.h"
#include "schedule/schedule_fields.h"
#include "support/ir/golden_ir.h"
#include "support/problems.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#define EACH_FIELD(field)                                                                                              \
    for (const mha_schedule_field *field = mha_schedule_fields; field < mha_schedule_fields + MHA_NUM_SCHEDULE_FIELDS; \
         field++)

static int num_words(const mha_schedule_field *field) {
    int count = 0;
    while (field->words && field->words[count]) count++;
    return count;
}

/* ---- The list ---- */

/* Each 32 bits of the struct are a field of each part at most, and of some part. */
static void test_every_member_has_a_line(void **state) {
    (void)state;
    unsigned owners[MHA_SCHEDULE_WORDS] = {0};
    assert_int_equal(MHA_SCHEDULE_ID(strategy), 0);
    owners[0] = MHA_PART_ANY;
    EACH_FIELD(field) {
        if (owners[field->word] & field->part) fail_msg("%s has two lines for one part", field->name);
        owners[field->word] |= field->part;
    }
    for (int word = 0; word < MHA_SCHEDULE_WORDS; word++)
        if (!owners[word]) fail_msg("word %d of mha_schedule has no line", word);
}

/* A name is one member, of one kind, and its first word is a part that there is. */
static void test_names(void **state) {
    (void)state;
    static const char *const parts[] = {"lanes", "score_", "value_", "task_", "kv_", "gemm_"};
    EACH_FIELD(field) {
        bool has_part = false;
        for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
            has_part = has_part || !strncmp(field->name, parts[i], strlen(parts[i]));
        if (!has_part) fail_msg("%s is of no part", field->name);
        EACH_FIELD(other) {
            assert_int_equal(!strcmp(field->name, other->name), field->word == other->word);
            if (field->word == other->word) assert_int_equal(field->kind, other->kind);
        }
    }
}

static void test_columns_agree(void **state) {
    (void)state;
    EACH_FIELD(field) {
        const bool is_choice = mha_schedule_is_choice(field);
        assert_int_equal(field->kind == MHA_SCHEDULE_NAMED, field->words != NULL);
        if (field->words) assert_string_equal(field->words[MHA_SCHEDULE_AUTO], "auto");
        if (!*field->values) assert_string_equal(field->name, "lanes");
        /* Ascending, and such as the kind may have. */
        for (const int32_t *value = field->values; *value; value++) {
            if (value > field->values) assert_true(value[0] > value[-1]);
            if (field->words) assert_true(*value < num_words(field));
            if (*value < 1) assert_true(field->kind == MHA_SCHEDULE_DISTANCE && *value == MHA_SCHEDULE_NONE);
        }
        /* Choices are drawn from their values, and the tuner combines none of them: attune makes them for the numbers.
         */
        if (is_choice) assert_true(!field->is_minor && !field->draw);
        if (!is_choice && *field->values) assert_true(field->draw != MHA_DRAW_NOTHING);
        assert_true(!field->draw_few || field->draw_few < field->draw_most);
    }
}

/* ---- Text and key ---- */

static mha_schedule sample_of(unsigned part) {
    mha_schedule s = {0};
    s.strategy = part == MHA_PART_D_LANES ? MHA_D_LANES : MHA_Q_LANES;
    EACH_FIELD(field) {
        if (!(field->part & (part | (s.strategy ? MHA_PART_D_LANES : MHA_PART_Q_LANES)))) continue;
        *mha_schedule_at(&s, field->word) = 3;
        if (mha_schedule_is_choice(field)) *mha_schedule_at(&s, field->word) = 1;
    }
    return s;
}

static void read_back(const char *text, const mha_schedule *expected) {
    mha_schedule read = {0};
    at_error err = {0};
    if (mha_schedule_parse(text, &read, &err)) fail_msg("%s", err.message);
    if (!mha_schedule_same(&read, expected)) fail_msg("%s is not read as it was printed", text);
}

static void assert_changes(const mha_schedule_field *field, const mha_schedule *before, int32_t value) {
    static at_machine machine;
    const attune_problem p = problem_canonical("seq_q=4,head_dim=8");
    mha_schedule after = *before;
    char texts[2][AT_SCHEDULE_TEXT], expected[64];
    at_key keys[2];
    at_machine_init(&machine, at_targets(), "none");
    *mha_schedule_at(&after, field->word) = value;
    mha_schedule_print(before, texts[0], sizeof texts[0]);
    mha_schedule_print(&after, texts[1], sizeof texts[1]);
    read_back(texts[1], &after);
    snprintf(expected, sizeof expected, "%s=", field->name);
    if (!strstr(texts[1], expected)) fail_msg("%s has no %s", texts[1], field->name);
    at_key_make(&keys[0], at_attention_of(&p), before, &machine);
    at_key_make(&keys[1], at_attention_of(&p), &after, &machine);
    const bool is_other = mha_schedule_value(before, field->word) != value;
    assert_int_equal(mha_schedule_same(before, &after), !is_other);
    assert_int_equal(!strcmp(texts[0], texts[1]), !is_other);
    assert_int_equal(at_key_equal(&keys[0], &keys[1]), !is_other);
}

/* Each value of each field is printed, read and part of the key; auto and none, too. */
static void test_each_field_changes_text_and_key(void **state) {
    (void)state;
    EACH_FIELD(field) {
        const mha_schedule s = sample_of(field->part == MHA_PART_ANY ? MHA_PART_Q_LANES : field->part);
        assert_changes(field, &s, 5 < num_words(field) || !field->words ? 5 : 0);
        for (const int32_t *value = field->values; *value; value++) assert_changes(field, &s, *value);
        for (int value = 0; value < num_words(field); value++) assert_changes(field, &s, value);
        if (mha_schedule_is_choice(field)) assert_changes(field, &s, MHA_SCHEDULE_AUTO);
        if (field->kind == MHA_SCHEDULE_DISTANCE) assert_changes(field, &s, MHA_SCHEDULE_NONE);
    }
}

/* ---- Random schedules ---- */

/* Each line gives several values, and each choice all that it has. */
static void test_all_fields_are_drawn(void **state) {
    (void)state;
    enum { MANY = 12 };
    static int32_t drawn[MHA_NUM_SCHEDULE_FIELDS][MANY];
    static int counts[MHA_NUM_SCHEDULE_FIELDS];
    check_machine machine;
    tool_random random = {7};
    assert_true(golden_open(&machine));
    for (int n = 0; n < 4000; n++) {
        check_case c = {.isa = (uint32_t)n % machine.num_isas, .threads = 1, .sizes = CALL_SIZES_NONE};
        assert_true(check_draw_problem(&random, 1e6, &c.problem, &c.sizes));
        assert_true(check_draw_schedule(&machine, &random, &c));
        const unsigned parts = mha_schedule_parts(&c.schedule);
        for (int i = 0; i < MHA_NUM_SCHEDULE_FIELDS; i++) {
            const int32_t value = mha_schedule_value(&c.schedule, mha_schedule_fields[i].word);
            int at = 0;
            if (!mha_schedule_has(parts, &mha_schedule_fields[i])) continue;
            while (at < counts[i] && drawn[i][at] != value) at++;
            if (at < MANY) drawn[i][at] = value;
            if (at == counts[i] && at < MANY) counts[i]++;
        }
    }
    check_close(&machine);
    for (int i = 0; i < MHA_NUM_SCHEDULE_FIELDS; i++) {
        const mha_schedule_field *field = &mha_schedule_fields[i];
        int values = 0;
        while (field->values[values]) values++;
        const bool is_rare = !strcmp(field->name, "gemm_by"); /* without tiles it is vectors or auto */
        const int least = is_rare ? 2 : mha_schedule_is_choice(field) ? values + 1 : 4;
        if (counts[i] < least && strcmp(field->name, "gemm_column_vectors") != 0)
            fail_msg("%s was drawn with %d values", field->name, counts[i]);
        assert_true(counts[i] >= 2);
    }
}

/* ---- Documentation ---- */

static void test_each_field_has_a_row(void **state) {
    (void)state;
    static char page[1 << 17];
    FILE *f = fopen("docs/tuning.md", "r");
    assert_non_null(f);
    page[fread(page, 1, sizeof page - 1, f)] = '\0';
    fclose(f);
    EACH_FIELD(field) {
        char row[64], word[64];
        snprintf(row, sizeof row, "\n| `%s` |", field->name);
        const char *at = strstr(page, row);
        if (!at) fail_msg("docs/tuning.md has no row for %s", field->name);
        const size_t length = strcspn(at + 1, "\n");
        for (int i = 0; i < num_words(field); i++) {
            snprintf(word, sizeof word, "`%s`", field->words[i]);
            const char *found = strstr(at, word);
            if (!found || found > at + length) fail_msg("the row of %s does not have %s", field->name, word);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_member_has_a_line), cmocka_unit_test(test_names),
        cmocka_unit_test(test_columns_agree),           cmocka_unit_test(test_each_field_changes_text_and_key),
        cmocka_unit_test(test_all_fields_are_drawn),    cmocka_unit_test(test_each_field_has_a_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
