/* The contents of a block's weights. */
#include "common/fill.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- Weights ---- */

static int64_t elements(const attune_weight *w) {
    int64_t count = 1;
    for (int d = 0; d < w->rank; d++) count *= w->dims[d];
    return count;
}

static bool is_bias(int id) { return (id >= ATTUNE_Q_BIAS && id <= ATTUNE_OUT_BIAS) || id == ATTUNE_QKV_BIAS; }

/* Projections should be about as large as their inputs; else one key takes all the weight. */
static long double draw(input_kind kind, attune_dtype dtype, double scale, tool_random *random) {
    const long double normal = (long double)tool_random_normal(random), usual = normal * (long double)scale;
    switch (kind) {
    case INPUT_OVERFLOW: return ldexpl(usual, (int)tool_random_range(random, -4, dtype == ATTUNE_F16 ? 12 : 60));
    case INPUT_DENORMAL: return tool_random_chance(random, 10) ? ldexpl(normal, fill_denormal_exponent(dtype)) : usual;
    case INPUT_CONSTANT: return ldexpl(roundl(normal), ilogb(scale));
    default: return usual;
    }
}

/* Codes stand for ordinary numbers only. */
static input_kind kind_of(const attune_problem *p, int id, input_kind kind) {
    const bool becomes_codes = !is_bias(id) && (p->w_dtype == ATTUNE_I8 || p->w_dtype == ATTUNE_I4);
    return becomes_codes && (kind == INPUT_OVERFLOW || kind == INPUT_NONFINITE) ? INPUT_ORDINARY : kind;
}

static void fill_weight(const attune_weight *w, input_kind kind, double scale, tool_random *random) {
    const int64_t count = elements(w);
    for (int64_t i = 0; i < count; i++) ref_store(w->dtype, (void *)w->data, i, draw(kind, w->dtype, scale, random));
    if (kind == INPUT_NONFINITE && tool_random_chance(random, 10))
        ref_store(w->dtype, (void *)w->data, tool_random_range(random, 0, count - 1), fill_odd(random));
}

static double scale_of(const tensors *t, int id) {
    const attune_weight *const w = &t->weights.tensor[id];
    if (is_bias(id)) return 0.5;
    return 1 / sqrt((double)w->dims[t->weights.layout == ATTUNE_OUT_IN ? w->rank - 1 : 0]);
}

/* A model has its biases or not, its projections in one tensor or in three, as rows or as columns: each in turn. */
bool fill_weights(tensors *t, input_kind kind, uint64_t seed) {
    tool_random choice = {seed ^ 0x9fb21c651e98df25u};
    const bool by_output = tool_random_chance(&choice, 50), wants_packed = tool_random_chance(&choice, 40);
    const bool has_biases = tool_random_chance(&choice, 80), has_all = tool_random_chance(&choice, 60);
    if (!tensors_find(t, "packed_weights")) return true;
    const attune_weight_layout layout = by_output ? ATTUNE_OUT_IN : ATTUNE_IN_OUT;
    if (attune_mha_weights_init(&t->weights, &t->problem, layout) != ATTUNE_OK) {
        tool_library_error(NULL);
        return false;
    }
    const bool is_packed = wants_packed && t->weights.tensor[ATTUNE_QKV_WEIGHT].rank;
    for (int id = 0; id < ATTUNE_NUM_WEIGHTS; id++) {
        const bool is_of_qkv = id != ATTUNE_OUT_WEIGHT && id != ATTUNE_OUT_BIAS;
        const bool is_qkv = id == ATTUNE_QKV_WEIGHT || id == ATTUNE_QKV_BIAS;
        tool_random random = {seed * 0x9e3779b97f4a7c15u + (uint64_t)id * 0xd1b54a32d192ed03u};
        if (!t->weights.tensor[id].rank || (is_of_qkv && is_qkv != is_packed)) continue;
        if (is_bias(id) && (!has_biases || (!has_all && tool_random_chance(&random, 50)))) continue;
        if (!tensors_allocate_weight(t, (attune_weight_id)id)) return false;
        fill_weight(&t->weights.tensor[id], kind_of(&t->problem, id, kind), scale_of(t, id), &random);
    }
    return tensors_pack(t);
}
