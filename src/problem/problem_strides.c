/* Fills in strides that are left open, if the sizes are known, and checks all strides. */
#include "problem/problem.h"
#include "problem/signature.h"

#include <stdio.h>
#include <string.h>

static const int64_t MAX_EXTENT = INT64_C(1) << 56; /* elements; leaves room for the element size */

static bool all_zero(const int64_t *strides, int rank) {
    for (int i = 0; i < rank; i++)
        if (strides[i]) return false;
    return true;
}

/* Row-major, with two exceptions that are [tokens, heads, dim]: a ragged batch, so that the tokens of a sequence lie
 * together, and the heads that a block gives side by side. Tensors without columns (lse) stay [heads, tokens]. */
static void contiguous(const attune_problem *p, const mha_tensor *t, const int64_t dims[4], int64_t strides[4]) {
    int order[4] = {0, 1, 2, 3};
    const bool is_ragged = p->is_ragged && t->rank == 4 && mha_is_of_tokens(t);
    if (is_ragged || (mha_is_block(p) && t->rank == 4 && t->id == MHA_OUT)) {
        order[1] = 2;
        order[2] = 1;
    }
    int64_t stride = 1;
    for (int i = t->rank - 1; i >= 0; i--) {
        const int dim = order[i];
        const bool broadcast = mha_is_broadcast(p, t, dim);
        strides[dim] = broadcast ? 0 : stride;
        if (dims[dim] && !broadcast) stride *= dims[dim];
    }
}

static void drop_broadcast(const attune_problem *p, const mha_tensor *t, int64_t strides[4]) {
    for (int i = 0; i < t->rank; i++)
        if (mha_is_broadcast(p, t, i)) strides[i] = 0;
}

/* No two elements of an output may coincide. Sufficient, and true of every layout in use: taken from the smallest
 * stride up, each dimension steps over all that the smaller ones span. */
static bool elements_distinct(const int64_t *dims, const int64_t *strides, int rank) {
    bool used[4] = {false};
    int64_t span = 1;
    for (int i = 0; i < rank; i++)
        if (!dims[i]) return true;
    for (int n = 0; n < rank; n++) {
        int next = -1;
        for (int i = 0; i < rank; i++)
            if (!used[i] && (next < 0 || strides[i] < strides[next])) next = i;
        used[next] = true;
        if (dims[next] <= 1) continue;
        if (strides[next] < span) return false;
        span = (dims[next] - 1) * strides[next] + span;
    }
    return true;
}

static attune_status check_count(const mha_tensor *t, const int64_t dims[4], at_error *err) {
    int64_t count = 1;
    for (int i = 0; i < t->rank; i++)
        if (__builtin_mul_overflow(count, dims[i] ? dims[i] : 1, &count) || count > MAX_EXTENT)
            return at_fail(err, ATTUNE_INVALID_PROBLEM,
                           "%s has too many elements: the product of its sizes overflows at %lld", t->name,
                           (long long)dims[i]);
    return ATTUNE_OK;
}

/* The field that the caller set: scales with columns of their own have other strides than scales of tokens. */
static const char *strides_name(const mha_tensor *t, char text[64]) {
    if (t->id == MHA_K_SCALES) return "k_group_strides";
    if (t->id == MHA_V_SCALES) return "v_group_strides";
    snprintf(text, 64, "%s_strides", t->name);
    return text;
}

static attune_status check_range(const mha_tensor *t, const int64_t strides[4], at_error *err) {
    char text[64];
    for (int i = 0; i < t->rank; i++)
        if (strides[i] < 0 || strides[i] > MHA_MAX_STRIDE)
            return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s[%d] is %lld; it must be from 0 to %lld",
                           strides_name(t, text), i, (long long)strides[i], (long long)MHA_MAX_STRIDE);
    return ATTUNE_OK;
}

/* Strides are not negative, so the last element is the highest. */
attune_status mha_extent(const mha_tensor *t, const int64_t dims[4], const int64_t strides[4], int64_t *elements,
                         at_error *err) {
    *elements = 0;
    for (int i = 0; i < t->rank; i++)
        if (dims[i] == 0) return ATTUNE_OK;
    *elements = 1;
    for (int i = 0; i < t->rank; i++) {
        int64_t span;
        if (__builtin_mul_overflow(dims[i] - 1, strides[i], &span) ||
            __builtin_add_overflow(*elements, span, elements) || *elements > MAX_EXTENT)
            return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s is too large: (%lld - 1) * stride %lld overflows", t->name,
                           (long long)dims[i], (long long)strides[i]);
    }
    return ATTUNE_OK;
}

/* "4x16 with strides 16:1" */
static attune_status refuse_coinciding(const mha_tensor *t, const int64_t dims[4], const int64_t strides[4],
                                       at_error *err) {
    char text[192], name[64];
    size_t n = 0;
    for (int i = 0; i < t->rank; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%lld", i ? "x" : "", (long long)dims[i]);
    for (int i = 0; i < t->rank; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%lld", i ? ":" : " with strides ", (long long)strides[i]);
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s make two elements of the output coincide: %s",
                   strides_name(t, name), text);
}

static bool is_row(mha_size columns) {
    return columns == MHA_HEAD_DIM || columns == MHA_HEAD_DIM_V || columns == MHA_EMBED_DIM ||
           columns == MHA_KV_EMBED_DIM || columns == MHA_V_EMBED_DIM;
}

/* Rows whose elements are one are no rows: the caller has set some strides and left the last one 0. */
static attune_status check_last(const mha_tensor *t, const int64_t dims[4], const int64_t strides[4], at_error *err) {
    const int last = t->rank - 1;
    char text[64];
    if (!is_row(t->dims[last]) || strides[last] || dims[last] <= 1) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_PROBLEM,
                   "%s[%d] is 0, but others are set; elements of a row that lie side by side have 1",
                   strides_name(t, text), last);
}

/* Strides that the caller gave. */
static attune_status check_given(const mha_tensor *t, const int64_t dims[4], const int64_t strides[4], at_error *err) {
    int64_t elements;
    attune_status status = check_range(t, strides, err);
    if (!status) status = check_last(t, dims, strides, err);
    if (!status) status = mha_extent(t, dims, strides, &elements, err);
    if (!status && t->access & IR_OUT && !elements_distinct(dims, strides, t->rank))
        status = refuse_coinciding(t, dims, strides, err);
    return status;
}

attune_status mha_settle_strides(const attune_problem *p, const mha_tensor *tensor, const int64_t dims[4],
                                 int64_t strides[4], at_error *err) {
    const attune_status status = check_count(tensor, dims, err);
    if (status) return status;
    drop_broadcast(p, tensor, strides);
    if (!all_zero(strides, tensor->rank)) return check_given(tensor, dims, strides, err);
    contiguous(p, tensor, dims, strides); /* cannot overflow: the elements have been counted */
    return check_range(tensor, strides, err);
}

/* ---- those of the problem ---- */

/* The sizes of the problem as it stands: the compiled ones, and the number of sequences and heads. */
static void problem_sizes(const attune_problem *p, mha_sizes *sizes) {
    mha_compiled_sizes(p, sizes);
    sizes->of[MHA_BATCH] = p->batch;
    sizes->of[MHA_KV_HEADS] = p->num_kv_heads;
    mha_derive_sizes(p, sizes);
}

/* If a size is not known, given strides are kept, and only their ranges are checked. */
static attune_status settle_tensor(attune_problem *p, const mha_tensor *t, const mha_sizes *sizes, int64_t *strides,
                                   at_error *err) {
    int64_t dims[4] = {0};
    bool known = true;
    for (int i = 0; i < t->rank; i++) {
        dims[i] = sizes->of[t->dims[i]];
        known = known && dims[i] >= 0;
    }
    int64_t settled[4] = {0};
    memcpy(settled, strides, (size_t)t->rank * sizeof *settled);
    drop_broadcast(p, t, settled);
    attune_status status = known ? mha_settle_strides(p, t, dims, settled, err) : check_range(t, settled, err);
    if (!status && !known && !all_zero(settled, t->rank)) status = check_last(t, dims, settled, err);
    if (!status) memcpy(strides, settled, (size_t)t->rank * sizeof *settled);
    return status;
}

static void forget_strides(attune_problem *p) {
    for (int i = 0; i < MHA_NUM_FIELDS; i++)
        if (mha_fields[i].kind == MHA_FIELD_STRIDES) mha_field_reset(p, &mha_fields[i]);
}

/* Those of no tensor become zeros. */
attune_status mha_settle_problem_strides(attune_problem *p, at_error *err) {
    attune_problem settled = *p;
    forget_strides(&settled);
    mha_tensor tensors[MHA_NUM_TENSORS];
    mha_sizes sizes;
    const size_t count = mha_tensors(p, tensors);
    problem_sizes(p, &sizes);
    for (size_t i = 0; i < count; i++) {
        const mha_tensor *t = &tensors[i];
        if (!t->problem_strides) continue;
        int64_t *strides = (int64_t *)(void *)((char *)&settled + t->problem_strides);
        memcpy(strides, (const char *)p + t->problem_strides, (size_t)t->rank * sizeof *strides);
        const attune_status status = settle_tensor(&settled, t, &sizes, strides, err);
        if (status) return status;
    }
    *p = settled;
    return ATTUNE_OK;
}
