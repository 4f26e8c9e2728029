/* NaN and infinities in keys and values that no row sees: none of them may reach a result. */
#include "common/fill.h"

#include "ref_codes.h"

#include <math.h>
#include <stdlib.h>

static unsigned char *zeros(const tensor *one, bool *good) {
    unsigned char *const bytes = one ? calloc(one->count + 1, 1) : NULL;
    *good = *good && (bytes || !one);
    return bytes;
}

static void plant(tensor *one, const unsigned char *seen, tool_random *random) {
    if (!one) return;
    for (size_t i = 0; i < one->count; i++)
        if (!seen[i] && tool_random_chance(random, 60))
            ref_store(one->info.dtype, one->data, (int64_t)i, fill_odd(random));
    /* One that some rows see: theirs is the only result that it may spoil. */
    if (one->count && tool_random_chance(random, 30))
        ref_store(one->info.dtype, one->data, tool_random_range(random, 0, (int64_t)one->count - 1), (long double)NAN);
}

/* Bytes of a packed cache: codes of any value, and scales inline that may be no numbers. */
static void plant_bytes(tensor *one, const unsigned char *seen, tool_random *random) {
    for (size_t i = 0; i < one->count; i++)
        if (!seen[i] && tool_random_chance(random, 60))
            ((unsigned char *)one->data)[i] = (unsigned char)(tool_random_chance(random, 50) ? 255 : 124);
}

static void plant_cache(const tensors *t, const char *name, const unsigned char *seen, tool_random *random) {
    tensor *const one = tensors_find(t, name);
    if (one && ref_format_of(&t->problem, name[0] == 'k').is_packed)
        plant_bytes(one, seen, random);
    else
        plant(one, seen, random);
}

/* Scales of tokens that no row sees. */
static void plant_scales(tensors *t, const ref_seen *seen, tool_random *random) {
    tensor *const k_scale = tensors_find(t, "k_scale"), *const v_scale = tensors_find(t, "v_scale");
    if (k_scale && k_scale->info.rank > 2) plant(k_scale, seen->k_scale, random);
    if (v_scale && v_scale->info.rank > 2) plant(v_scale, seen->v_scale, random);
}

static void plant_all(tensors *t, const ref_seen *seen, tool_random *random) {
    plant_cache(t, "k", seen->k, random);
    plant_cache(t, "v", seen->v, random);
    plant(tensors_find(t, "k_new"), seen->k_new, random);
    plant(tensors_find(t, "v_new"), seen->v_new, random);
    plant_scales(t, seen, random);
}

/* The marks of a call, to be set; *good false: out of memory. */
static ref_seen open_marks(const tensors *t, bool *good) {
    return (ref_seen){.k = zeros(tensors_find(t, "k"), good),
                      .v = zeros(tensors_find(t, "v"), good),
                      .k_scale = zeros(tensors_find(t, "k_scale"), good),
                      .v_scale = zeros(tensors_find(t, "v_scale"), good)};
}

static void close_marks(ref_seen *seen) {
    free(seen->k);
    free(seen->v);
    free(seen->k_new);
    free(seen->v_new);
    free(seen->k_scale);
    free(seen->v_scale);
}

/* ---- Of a block ---- */

/* Tokens of this input, in the order of its dims, in which all elements or one of them become odd. */
static void plant_tokens(tensor *one, const unsigned char *seen, int percent, tool_random *random) {
    const int64_t *const dims = one->info.dims, *const strides = one->info.strides;
    for (int64_t token = 0; token < dims[0] * dims[1]; token++) {
        if (seen[token] || !tool_random_chance(random, percent)) continue;
        const int64_t at = token / dims[1] * strides[0] + token % dims[1] * strides[1];
        const bool is_whole = tool_random_chance(random, 50);
        const int64_t first = is_whole ? 0 : tool_random_range(random, 0, dims[2] - 1);
        for (int64_t i = first; i < (is_whole ? dims[2] : first + 1); i++)
            ref_store(one->info.dtype, one->data, at + i * strides[2], fill_odd(random));
    }
}

/* Whether different tokens are different places: planting into one must not reach another. */
static bool is_plantable(const tensor *one) {
    return one && (one->info.strides[0] || one->info.dims[0] == 1) && (one->info.strides[1] || one->info.dims[1] == 1);
}

static void plant_inputs(tensors *t, const unsigned char *seen, tool_random *random) {
    tensor *const x_kv = tensors_find(t, "x_kv"), *const x_v = tensors_find(t, "x_v"), *const x = tensors_find(t, "x");
    if (is_plantable(x_kv)) plant_tokens(x_kv, seen, 60, random);
    if (is_plantable(x_v)) plant_tokens(x_v, seen, 60, random);
    /* A token that no query sees may itself be a query, and then its result is spoilt. */
    if (!x_kv && is_plantable(x)) plant_tokens(x, seen, 30, random);
}

/* The same for a block, which appends projections of tokens. */
static bool plant_block(tensors *t, tool_random *random) {
    tensor *const x_kv = tensors_find(t, "x_kv");
    const attune_tensor *const from = x_kv ? &x_kv->info : &tensors_find(t, "x")->info;
    bool good = true;
    ref_seen seen = open_marks(t, &good);
    seen.k_new = calloc((size_t)(from->dims[0] * from->dims[1] + 1), 1);
    attune_tensor list[REF_MAX_TENSORS];
    const ref_call call = tensors_call(t, list);
    good = good && seen.k_new && ref_block_mark_seen(&call, &seen);
    if (good) {
        plant_cache(t, "k", seen.k, random);
        plant_cache(t, "v", seen.v, random);
        plant_scales(t, &seen, random);
        if (!t->problem.kv_projected) plant_inputs(t, seen.k_new, random);
    }
    close_marks(&seen);
    return good;
}

bool fill_hidden(tensors *t, tool_random *random) {
    bool good = true;
    if (ref_is_block(&t->problem)) return plant_block(t, random);
    ref_seen seen = open_marks(t, &good);
    seen.k_new = zeros(tensors_find(t, "k_new"), &good);
    seen.v_new = zeros(tensors_find(t, "v_new"), &good);
    if (good && seen.k) {
        attune_tensor list[REF_MAX_TENSORS];
        const ref_call call = tensors_call(t, list);
        ref_mark_seen(&call, &seen);
        plant_all(t, &seen, random);
    }
    close_marks(&seen);
    return good;
}
