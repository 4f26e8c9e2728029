/* Problems and schedules: text, ranges, canonical form, key, floating-point operations. */
#include "mha/mha.h"
#include "support/temp_dir.h"
#include "target/target.h"

#include <locale.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static attune_problem parse(const char *text) {
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    at_error err = {0};
    if (mha_problem_parse(text, &problem, &err)) fail_msg("%s: %s", text, err.message);
    return problem;
}

static attune_problem canonical(const char *text) {
    const attune_problem problem = parse(text);
    attune_problem out;
    at_error err = {0};
    if (mha_canonicalize(&problem, &out, &err)) fail_msg("%s: %s", text, err.message);
    return out;
}

static void test_text_round_trip(void **state) {
    (void)state;
    static const char *const texts[] = {
        "num_heads=12,seq_q=512,seq_kv=512,head_dim=64",
        "batch=3,num_heads=8,num_kv_heads=2,seq_q=5,seq_kv=7,head_dim=3,head_dim_v=11,lse=1",
        "num_heads=1,seq_q=5,seq_kv=9,head_dim=3,softmax_scale=0.25,is_causal=1,causal_offset=-2",
        "num_heads=2,seq_q=4,seq_kv=4,head_dim=8,q_strides=64:8:16:1",
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const attune_problem problem = parse(texts[i]);
        char text[512];
        assert_int_equal(mha_problem_print(&problem, text, sizeof text), strlen(texts[i]));
        assert_string_equal(text, texts[i]);
    }
}

/* A program that has set its user's locale must neither read nor write "0,25". */
static void test_text_in_another_locale(void **state) {
    (void)state;
    char dir[TEMP_DIR_CHARS], command[TEMP_DIR_CHARS + 128], text[512];
    static const char expected[] = "num_heads=1,seq_q=5,seq_kv=9,head_dim=3,softmax_scale=0.25";
    temp_dir_make(dir);
    snprintf(command, sizeof command, "localedef -i de_DE -f UTF-8 '%s/de_DE.UTF-8' >/dev/null 2>&1", dir);
    const int made = system(command); /* warnings count as failures, so only the result is asked */
    setenv("LOCPATH", dir, 1);
    const bool comma = made >= 0 && setlocale(LC_ALL, "de_DE.UTF-8") && localeconv()->decimal_point[0] == ',';
    unsetenv("LOCPATH");
    snprintf(command, sizeof command, "rm -r '%s'", dir);
    assert_int_equal(system(command), 0);
    if (!comma) skip();
    const attune_problem problem = parse("seq_q=5,seq_kv=9,head_dim=3,softmax_scale=0.25");
    mha_problem_print(&problem, text, sizeof text);
    setlocale(LC_ALL, "C");
    assert_true(problem.softmax_scale == 0.25);
    assert_string_equal(text, expected);
}

static void test_print_truncates(void **state) {
    (void)state;
    const attune_problem problem = parse("num_heads=12,seq_q=512,head_dim=64");
    char text[8] = "xxxxxxx";
    const size_t needed = mha_problem_print(&problem, NULL, 0);
    assert_int_equal(mha_problem_print(&problem, text, sizeof text), needed);
    assert_string_equal(text, "num_hea");
}

static void test_text_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"heads=12", "'heads' is not a field of a problem"},
        {"seq_q", "'seq_q' is not of the form key=value"},
        {"=3", "'=3' is not of the form key=value"},
        {"seq_q=3,,seq_kv=4", "'' is not of the form key=value"},
        {"seq_q=3,", "'' is not of the form key=value"},
        {"seq_q=12x", "seq_q is '12x', which is not an integer"},
        {"seq_q=", "seq_q is '', which is not an integer"},
        {"seq_q= 3", "seq_q is ' 3', which is not an integer"},
        {"seq_q=99999999999999999999", "seq_q is '99999999999999999999', which is not an integer of 64 bits"},
        {"seq_q=3,seq_q=4", "'seq_q' is given twice"},
        {"softmax_scale=abc", "softmax_scale is 'abc', which is not a number"},
        {"softmax_scale=nan", "softmax_scale is 'nan'; it must be a number or 'default'"},
        {"is_causal=2", "is_causal is '2'; it must be 0 or 1"},
        {"causal_align=left", "causal_align is 'left'; it must be top_left or bottom_right"},
        {"dtype=f8", "dtype is 'f8'; it must be f32"},
        {"layout=sbhd", "layout is 'sbhd'; it must be bhsd or bshd"},
        {"q_strides=1:2:3", "q_strides is '1:2:3'; it must be 4 strides separated by ':'"},
        {"q_strides=1:2:3:4:5", "it must be 4 strides"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        attune_problem problem = ATTUNE_PROBLEM_INIT, before = problem;
        at_error err = {0};
        assert_int_equal(mha_problem_parse(cases[i].text, &problem, &err), ATTUNE_INVALID_PROBLEM);
        if (!strstr(err.message, cases[i].says)) fail_msg("%s: %s", cases[i].text, err.message);
        assert_memory_equal(&problem, &before, sizeof problem);
    }
}

static void test_ranges(void **state) {
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"seq_q=0,head_dim=4", "seq_q is 0; it must be from 1"},
        {"seq_q=4", "head_dim is 0; it must be from 1"},
        {"seq_q=4,head_dim=8193", "head_dim is 8193; it must be from 1 to 8192"},
        {"seq_q=4,head_dim=4,seq_kv=-1", "seq_kv is -1"},
        {"seq_q=4,head_dim=4,batch=0", "batch is 0"},
        {"seq_q=4,head_dim=4,num_heads=3000000000", "num_heads is 3000000000"},
        {"seq_q=4,head_dim=4,num_heads=6,num_kv_heads=4", "num_kv_heads is 4, which does not divide num_heads = 6"},
        {"seq_q=4,head_dim=4,softmax_scale=inf", "softmax_scale is inf; it must be from -1e+38 to 1e+38"},
        {"seq_q=4,head_dim=4,is_causal=1,causal_offset=99999999999", "causal_offset is 99999999999"},
        {"batch=2147483647,num_heads=2147483647,seq_q=2147483647,head_dim=8", "q has too many elements"},
        {"seq_q=4,head_dim=4,q_strides=0:0:-4:1", "q_strides[2] is -4"},
        {"batch=1025,num_heads=8388608,seq_q=1,head_dim=1,q_strides=1099511627776:1099511627776:1:1", "q is too large"},
        {"seq_q=4,head_dim=4,out_strides=16:16:3:1", "out_strides make two elements of the output coincide"},
        {"seq_q=4,head_dim=4,num_heads=2,lse=1,lse_strides=8:2:1", "lse_strides make two elements"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const attune_problem problem = parse(cases[i].text);
        attune_problem out;
        at_error err = {0};
        assert_int_equal(mha_canonicalize(&problem, &out, &err), ATTUNE_INVALID_PROBLEM);
        if (!strstr(err.message, cases[i].says)) fail_msg("%s: %s", cases[i].text, err.message);
    }
    attune_problem problem = parse("seq_q=4,head_dim=4"), out;
    problem.struct_size = 8;
    assert_int_equal(mha_canonicalize(&problem, &out, NULL), ATTUNE_INVALID_ARGUMENT);
}

static void test_causal_is_normalized(void **state) {
    (void)state;
    const attune_problem bottom = canonical("seq_q=5,seq_kv=9,head_dim=4,is_causal=1,causal_align=bottom_right");
    assert_int_equal(bottom.causal_offset, 4);
    assert_int_equal(bottom.causal_align, ATTUNE_TOP_LEFT);
    assert_int_equal(canonical("seq_q=5,seq_kv=9,head_dim=4,is_causal=1,causal_offset=8").is_causal, 0);
    assert_int_equal(canonical("seq_q=5,seq_kv=9,head_dim=4,is_causal=1,causal_offset=7").is_causal, 1);
    assert_int_equal(canonical("seq_q=5,seq_kv=9,head_dim=4,is_causal=1,causal_offset=-70").causal_offset, -5);
    assert_int_equal(canonical("seq_q=5,head_dim=4,causal_offset=3").causal_offset, 0);
}

static bool same_key(const char *a, const char *b) {
    uint8_t x[MHA_KEY_BYTES], y[MHA_KEY_BYTES];
    const attune_problem p = canonical(a), q = canonical(b);
    const size_t n = mha_key(&p, x), m = mha_key(&q, y);
    assert_true(n <= MHA_KEY_BYTES);
    return n == m && !memcmp(x, y, n);
}

static void test_key(void **state) {
    (void)state;
    const char *base = "num_heads=4,seq_q=8,head_dim=16";
    assert_true(
        same_key(base, "num_heads=4,num_kv_heads=4,seq_q=8,seq_kv=8,head_dim=16,head_dim_v=16,softmax_scale=0.25"));
    assert_true(same_key(base, "batch=7,num_heads=2,seq_q=8,head_dim=16"));
    assert_true(same_key(base, "num_heads=4,seq_q=8,head_dim=16,layout=bshd"));
    static const char *const others[] = {
        "num_heads=4,num_kv_heads=2,seq_q=8,head_dim=16", "num_heads=4,seq_q=9,seq_kv=8,head_dim=16",
        "num_heads=4,seq_q=8,seq_kv=9,head_dim=16",       "num_heads=4,seq_q=8,head_dim=17",
        "num_heads=4,seq_q=8,head_dim=16,head_dim_v=17",  "num_heads=4,seq_q=8,head_dim=16,softmax_scale=0.5",
        "num_heads=4,seq_q=8,head_dim=16,is_causal=1",    "num_heads=4,seq_q=8,head_dim=16,is_causal=1,causal_offset=1",
        "num_heads=4,seq_q=8,head_dim=16,lse=1",          "num_heads=4,seq_q=8,head_dim=16,q_strides=1024:256:32:2",
    };
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        if (same_key(base, others[i])) fail_msg("%s has the key of %s", others[i], base);
        for (size_t j = 0; j < i; j++) assert_false(same_key(others[i], others[j]));
    }
}

/* Against a count pair by pair. */
static void test_flops(void **state) {
    (void)state;
    for (int offset = -8; offset <= 8; offset++) {
        char text[128];
        snprintf(text, sizeof text,
                 "batch=2,num_heads=3,seq_q=5,seq_kv=4,head_dim=3,head_dim_v=2,is_causal=1,causal_offset=%d", offset);
        const attune_problem p = canonical(text);
        int pairs = 0;
        for (int i = 0; i < 5; i++)
            for (int j = 0; j < 4; j++) pairs += j <= i + offset;
        assert_true(mha_problem_flops(&p) == 2.0 * (3 + 2) * 2 * 3 * pairs);
    }
}

static void test_schedules(void **state) {
    (void)state;
    const attune_problem p = canonical("num_heads=4,seq_q=100,head_dim=40");
    for (const at_target *target = at_targets(); target->name; target++) {
        attune_schedule chosen, again = ATTUNE_SCHEDULE_INIT;
        at_error err = {0};
        mha_choose(&p, target, &chosen);
        assert_int_equal(mha_schedule_check(&p, &chosen, target, &err), ATTUNE_OK);
        char text[256];
        mha_schedule_print(&chosen, text, sizeof text);
        assert_int_equal(mha_schedule_parse(text, &again, &err), ATTUNE_OK);
        assert_memory_equal(&chosen, &again, sizeof chosen);
        static const char *const wrong[] = {"lanes=3",         "lanes=32",        "score_rows=5,kv_tile=12",
                                            "kv_tile=8192",    "value_rows=41",   "q_vectors=65",
                                            "score_vectors=7", "score_rows=101",  "value_vectors=3",
                                            "score_unroll=3",  "value_unroll=17", "strategy=no",
                                            "tiles=4",         "lanes=0"};
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
            attune_schedule s = chosen;
            at_error why = {0};
            attune_status status = mha_schedule_parse(wrong[i], &s, &why);
            if (!status) status = mha_schedule_check(&p, &s, target, &why);
            if (status != ATTUNE_INVALID_SCHEDULE || !*why.message) fail_msg("%s was accepted", wrong[i]);
        }
    }
}

/* A struct of another version is neither read nor written beyond its size. */
static void test_struct_size_is_checked(void **state) {
    (void)state;
    attune_problem problem = parse("seq_q=4,head_dim=4");
    attune_schedule schedule = ATTUNE_SCHEDULE_INIT;
    char text[16];
    const size_t sizes[] = {0, 8, sizeof problem + 8};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        at_error err = {0};
        problem.struct_size = schedule.struct_size = sizes[i];
        assert_int_equal(mha_problem_parse("seq_q=5", &problem, &err), ATTUNE_INVALID_ARGUMENT);
        assert_non_null(strstr(err.message, "ATTUNE_PROBLEM_INIT"));
        assert_int_equal(problem.seq_q, 4);
        err = (at_error){0};
        assert_int_equal(mha_schedule_parse("lanes=4", &schedule, &err), ATTUNE_INVALID_ARGUMENT);
        assert_non_null(strstr(err.message, "ATTUNE_SCHEDULE_INIT"));
        assert_int_equal(schedule.lanes, 0);
        strcpy(text, "before");
        assert_int_equal(mha_problem_print(&problem, text, sizeof text), 0);
        assert_string_equal(text, "");
        strcpy(text, "before");
        assert_int_equal(mha_schedule_print(&schedule, text, sizeof text), 0);
        assert_string_equal(text, "");
    }
}

/* The choice is legal for every shape, odd and tiny ones too. */
static void test_choice_is_legal(void **state) {
    (void)state;
    static const int sizes[] = {1, 2, 3, 5, 7, 8, 13, 16, 31, 64, 100, 197, 1000};
    enum { N = sizeof sizes / sizeof *sizes };
    for (const at_target *target = at_targets(); target->name; target++)
        for (int q = 0; q < N; q++)
            for (int k = 0; k < N; k++)
                for (int d = 0; d < N; d++) {
                    attune_problem p = ATTUNE_PROBLEM_INIT, c;
                    p.seq_q = sizes[q], p.seq_kv = sizes[k], p.head_dim = 8, p.head_dim_v = sizes[d];
                    attune_schedule s;
                    at_error err = {0};
                    assert_int_equal(mha_canonicalize(&p, &c, &err), ATTUNE_OK);
                    mha_choose(&c, target, &s);
                    if (mha_schedule_check(&c, &s, target, &err)) fail_msg("%s", err.message);
                }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_text_round_trip),
        cmocka_unit_test(test_text_in_another_locale),
        cmocka_unit_test(test_print_truncates),
        cmocka_unit_test(test_text_refused),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_causal_is_normalized),
        cmocka_unit_test(test_key),
        cmocka_unit_test(test_flops),
        cmocka_unit_test(test_schedules),
        cmocka_unit_test(test_struct_size_is_checked),
        cmocka_unit_test(test_choice_is_legal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
