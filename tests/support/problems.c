#include "support/problems.h"

#include "schedule/choose.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

attune_problem problem_parsed(const char *text) {
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    at_error err = {0};
    if (mha_problem_parse(text, &problem, &err)) fail_msg("%s: %s", text, err.message);
    return problem;
}

attune_problem problem_canonical(const char *text) {
    const attune_problem problem = problem_parsed(text);
    attune_problem out;
    at_error err = {0};
    if (mha_canonicalize(&problem, &out, &err)) fail_msg("%s: %s", text, err.message);
    return out;
}

bool problems_share_key(const char *a, const char *b) {
    uint8_t x[MHA_KEY_BYTES], y[MHA_KEY_BYTES];
    const attune_problem p = problem_canonical(a), q = problem_canonical(b);
    const size_t n = mha_key(&p, x), m = mha_key(&q, y);
    assert_true(n <= MHA_KEY_BYTES);
    return n == m && !memcmp(x, y, n);
}

mha_schedule schedule_reproducible(const attune_problem *p, const at_target *target) {
    mha_schedule s = {0};
    s.strategy = MHA_Q_LANES;
    s.lanes = target->vector_bytes / (p->softmax_precision == ATTUNE_F64 ? 8 : 4);
    s.score_row_vectors = s.score_keys = s.score_columns = s.task_row_vectors = 1;
    s.value_row_vectors = s.value_columns = s.value_keys = 1;
    s.kv_tile = mha_reproducible_kv_tile(p);
    return s;
}

mha_schedule schedule_chosen(const char *problem, const char *target) {
    const attune_problem p = problem_canonical(problem);
    const at_target *found = at_target_find(target);
    mha_schedule s;
    mha_choose(mha_read(&p), found, usual_machine(found), &s);
    return s;
}

mha_schedule schedule_read(const char *text) {
    mha_schedule s = {0};
    at_error err = {0};
    if (mha_schedule_parse(text, &s, &err)) fail_msg("%s: %s", text, err.message);
    return s;
}

mha_schedule schedule_chosen_by(const attune_context *context, const attune_problem *problem) {
    char text[ATTUNE_SCHEDULE_BYTES];
    if (attune_schedule_choose(context, problem, NULL, text, sizeof text)) fail_msg("%s", attune_last_message());
    return schedule_read(text);
}

static void assert_refused(const refusal *r, attune_status status, const at_error *err) {
    if (status != ATTUNE_INVALID_PROBLEM) fail_msg("%s: status %d, not refused", r->text, (int)status);
    if (!strstr(err->message, r->says)) fail_msg("%s: %s", r->text, err->message);
}

void assert_texts_refused(const refusal *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        attune_problem problem = ATTUNE_PROBLEM_INIT, before = problem;
        at_error err = {0};
        assert_refused(&cases[i], mha_problem_parse(cases[i].text, &problem, &err), &err);
        assert_memory_equal(&problem, &before, sizeof problem);
    }
}

void assert_problems_refused(const refusal *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        const attune_problem problem = problem_parsed(cases[i].text);
        attune_problem out;
        at_error err = {0};
        assert_refused(&cases[i], mha_canonicalize(&problem, &out, &err), &err);
    }
}

void assert_values_refused(const char *problem, const wrong_value *cases, size_t count) {
    for (size_t i = 0; i < count; i++) {
        attune_problem changed = problem_parsed(problem), out;
        at_error err = {0};
        memcpy((char *)&changed + cases[i].offset, &cases[i].value, sizeof cases[i].value);
        assert_int_equal(mha_canonicalize(&changed, &out, &err), ATTUNE_INVALID_PROBLEM);
        if (!strstr(err.message, cases[i].says)) fail_msg("%s: %s", cases[i].says, err.message);
    }
}
