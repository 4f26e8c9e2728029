#include "support/block_model.h"

#include "support/problems.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

size_t count_of(const attune_weight *w) {
    size_t count = w->rank > 0;
    for (int d = 0; d < w->rank; d++) count *= (size_t)w->dims[d];
    return count;
}

static void *make_values(size_t bytes, unsigned seed, model_values values) {
    unsigned char *data = malloc(bytes);
    assert_non_null(data);
    for (size_t i = 0; i < bytes; i++) {
        seed = seed * 1664525u + 1013904223u;
        data[i] = (unsigned char)(seed >> 24);
    }
    for (size_t i = 0; values == SMALL_NUMBERS && i < bytes; i += sizeof(float)) {
        const float number = (float)(data[i] + 256 * data[i + 1]) / 65536.0f - 0.5f;
        memcpy(data + i, &number, sizeof number);
    }
    return data;
}

model plan_model(const char *text) {
    model m = {.problem = problem_parsed(text)};
    at_error err = {0};
    if (mha_canonicalize(&m.problem, &m.canonical, &err)) fail_msg("%s: %s", text, err.message);
    mha_packed_layout_of(&m.canonical, &m.layout);
    m.size = mha_weight_bytes(m.canonical.w_dtype);
    assert_ok(attune_packed_weights_size(&m.problem, &m.blob_bytes));
    assert_int_equal(m.blob_bytes, (size_t)m.layout.elements * m.size);
    return m;
}

model open_model(const char *text, attune_weight_layout layout, model_values values) {
    model m = plan_model(text);
    assert_ok(attune_mha_weights_init(&m.weights, &m.problem, layout));
    for (int id = 0; id < ATTUNE_QKV_WEIGHT; id++) {
        attune_weight *w = &m.weights.tensor[id];
        assert_null(w->data);
        if (w->rank) w->data = make_values(count_of(w) * m.size, 7 + (unsigned)id, values);
    }
    m.blob = aligned_alloc(64, m.blob_bytes + 64);
    assert_non_null(m.blob);
    memset(m.blob, 0xa5, m.blob_bytes + 64);
    return m;
}

void close_model(model *m) {
    for (int id = 0; id < ATTUNE_NUM_WEIGHTS; id++) free((void *)m->weights.tensor[id].data);
    free(m->blob);
}

void pack_model(model *m) {
    assert_ok(attune_pack_weights(&m->problem, &m->weights, m->blob, m->blob_bytes));
    for (int i = 0; i < 64; i++) assert_int_equal(m->blob[m->blob_bytes + (size_t)i], 0xa5);
    assert_ok(attune_packed_weights_check(&m->problem, m->blob, m->blob_bytes));
}
