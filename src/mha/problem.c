/* A problem made canonical: defaults filled in, what cannot matter normalised, everything checked; and its key. */
#include "mha/mha.h"

#include <math.h>
#include <string.h>

enum { MAX_HEAD_DIM = 8192 };
static const int64_t MAX_SIZE = INT32_MAX;
static const int64_t MAX_STRIDE = INT64_C(1) << 40;
static const double MAX_SCALE = 1e38;               /* times log2(e) it is still an f32 */
static const int64_t MAX_EXTENT = INT64_C(1) << 56; /* elements; leaves room for the element size */

static attune_status check_size(const char *name, int64_t value, int64_t max, at_error *err) {
    if (value >= 1 && value <= max) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s is %lld; it must be from 1 to %lld", name, (long long)value,
                   (long long)max);
}

static attune_status check_sizes(const attune_problem *p, at_error *err) {
    const struct {
        const char *name;
        int64_t value, max;
    } sizes[] = {
        {"batch", p->batch, MAX_SIZE},
        {"num_heads", p->num_heads, MAX_SIZE},
        {"num_kv_heads", p->num_kv_heads, MAX_SIZE},
        {"seq_q", p->seq_q, MAX_SIZE},
        {"seq_kv", p->seq_kv, MAX_SIZE},
        {"head_dim", p->head_dim, MAX_HEAD_DIM},
        {"head_dim_v", p->head_dim_v, MAX_HEAD_DIM},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        attune_status status = check_size(sizes[i].name, sizes[i].value, sizes[i].max, err);
        if (status) return status;
    }
    if (p->num_heads % p->num_kv_heads)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "num_kv_heads is %lld, which does not divide num_heads = %lld",
                       (long long)p->num_kv_heads, (long long)p->num_heads);
    return ATTUNE_OK;
}

static attune_status check_choices(const attune_problem *p, at_error *err) {
    if ((unsigned)p->dtype >= ATTUNE_DTYPE_COUNT)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "dtype is %d, which is no attune_dtype", (int)p->dtype);
    if (p->is_causal != 0 && p->is_causal != 1)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "is_causal is %d; it must be 0 or 1", p->is_causal);
    if (p->has_lse != 0 && p->has_lse != 1)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "has_lse is %d; it must be 0 or 1", p->has_lse);
    if (p->causal_align != ATTUNE_TOP_LEFT && p->causal_align != ATTUNE_BOTTOM_RIGHT)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "causal_align is %d, which is no attune_causal_align",
                       (int)p->causal_align);
    if (p->causal_offset > MAX_SIZE || p->causal_offset < -MAX_SIZE)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "causal_offset is %lld; it must be from -%lld to %lld",
                       (long long)p->causal_offset, (long long)MAX_SIZE, (long long)MAX_SIZE);
    if (!isnan(p->softmax_scale) && !(fabs(p->softmax_scale) <= MAX_SCALE))
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "softmax_scale is %g; it must be from -%g to %g", p->softmax_scale,
                       MAX_SCALE, MAX_SCALE);
    return ATTUNE_OK;
}

/* ---- strides ---- */

static bool all_zero(const int64_t *strides, int rank) {
    for (int i = 0; i < rank; i++)
        if (strides[i]) return false;
    return true;
}

static void contiguous(const int64_t *dims, int rank, int64_t *strides) {
    int64_t stride = 1;
    for (int i = rank - 1; i >= 0; i--) {
        strides[i] = stride;
        stride *= dims[i];
    }
}

/* No two elements of an output may coincide. Sufficient, and true of every layout in use: taken from the smallest
 * stride up, each dimension steps over all that the smaller ones span. */
static bool elements_distinct(const int64_t *dims, const int64_t *strides, int rank) {
    bool used[4] = {false};
    int64_t span = 1;
    for (int n = 0; n < rank; n++) {
        int next = -1;
        for (int i = 0; i < rank; i++)
            if (!used[i] && (next < 0 || strides[i] < strides[next])) next = i;
        used[next] = true;
        if (dims[next] == 1) continue;
        if (strides[next] < span) return false;
        span = (dims[next] - 1) * strides[next] + span;
    }
    return true;
}

static attune_status settle_strides(const char *name, const int64_t *dims, int rank, bool output, int64_t *strides,
                                    at_error *err) {
    int64_t count = 1;
    for (int i = 0; i < rank; i++)
        if (__builtin_mul_overflow(count, dims[i], &count) || count > MAX_EXTENT)
            return at_fail(err, ATTUNE_INVALID_PROBLEM,
                           "%s has too many elements: the product of its sizes overflows at %lld", name,
                           (long long)dims[i]);
    if (all_zero(strides, rank)) contiguous(dims, rank, strides);
    int64_t extent = 0;
    for (int i = 0; i < rank; i++) {
        if (strides[i] < 0 || strides[i] > MAX_STRIDE)
            return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s_strides[%d] is %lld; it must be from 0 to %lld", name, i,
                           (long long)strides[i], (long long)MAX_STRIDE);
        int64_t span;
        if (__builtin_mul_overflow(dims[i] - 1, strides[i], &span) || __builtin_add_overflow(extent, span, &extent) ||
            extent > MAX_EXTENT)
            return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s is too large: (%lld - 1) * stride %lld overflows", name,
                           (long long)dims[i], (long long)strides[i]);
    }
    if (output && !elements_distinct(dims, strides, rank))
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "%s_strides make two elements of the output coincide", name);
    return ATTUNE_OK;
}

static attune_status settle_all_strides(attune_problem *p, at_error *err) {
    const int64_t q[] = {p->batch, p->num_heads, p->seq_q, p->head_dim};
    const int64_t k[] = {p->batch, p->num_kv_heads, p->seq_kv, p->head_dim};
    const int64_t v[] = {p->batch, p->num_kv_heads, p->seq_kv, p->head_dim_v};
    const int64_t out[] = {p->batch, p->num_heads, p->seq_q, p->head_dim_v};
    attune_status status = settle_strides("q", q, 4, false, p->q_strides, err);
    if (!status) status = settle_strides("k", k, 4, false, p->k_strides, err);
    if (!status) status = settle_strides("v", v, 4, false, p->v_strides, err);
    if (!status) status = settle_strides("out", out, 4, true, p->out_strides, err);
    if (!status && p->has_lse) status = settle_strides("lse", out, 3, true, p->lse_strides, err);
    return status;
}

/* ---- canonical form ---- */

/* The bottom-right diagonal becomes an offset; a diagonal beyond all keys is none; one before the first key is
 * moved to just before it. */
static void normalize_causal(attune_problem *p) {
    if (!p->is_causal) {
        p->causal_align = ATTUNE_TOP_LEFT;
        p->causal_offset = 0;
        return;
    }
    if (p->causal_align == ATTUNE_BOTTOM_RIGHT) p->causal_offset += p->seq_kv - p->seq_q;
    p->causal_align = ATTUNE_TOP_LEFT;
    if (p->causal_offset >= p->seq_kv - 1) {
        p->is_causal = 0;
        p->causal_offset = 0;
    } else if (p->causal_offset < -p->seq_q) {
        p->causal_offset = -p->seq_q;
    }
}

attune_status mha_canonicalize(const attune_problem *problem, attune_problem *out, at_error *err) {
    if (problem->struct_size != sizeof(attune_problem))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "attune_problem.struct_size is %zu, expected %zu: start from ATTUNE_PROBLEM_INIT",
                       problem->struct_size, sizeof(attune_problem));
    memcpy(out, problem, sizeof *out);
    if (!out->num_kv_heads) out->num_kv_heads = out->num_heads;
    if (!out->seq_kv) out->seq_kv = out->seq_q;
    if (!out->head_dim_v) out->head_dim_v = out->head_dim;
    attune_status status = check_sizes(out, err);
    if (!status) status = check_choices(out, err);
    if (status) return status;
    if (isnan(out->softmax_scale)) out->softmax_scale = 1.0 / sqrt((double)out->head_dim);
    if (!out->has_lse) memset(out->lse_strides, 0, sizeof out->lse_strides);
    normalize_causal(out);
    return settle_all_strides(out, err);
}

/* Pairs of query and key that are allowed, for one head of one batch entry. */
static double allowed_pairs(const attune_problem *p) {
    if (!p->is_causal) return (double)p->seq_q * (double)p->seq_kv;
    /* Row i sees min(max(i + offset + 1, 0), seq_kv) keys: an arithmetic series between two flat ends. */
    int64_t first = -p->causal_offset > 0 ? -p->causal_offset : 0;
    int64_t full = p->seq_kv - p->causal_offset - 1;
    if (full > p->seq_q) full = p->seq_q;
    if (full < first) full = first;
    if (first >= p->seq_q) return 0;
    double low = (double)(first + p->causal_offset + 1), high = (double)(full + p->causal_offset);
    return (double)(full - first) * (low + high) / 2 + (double)(p->seq_q - full) * (double)p->seq_kv;
}

double mha_problem_flops(const attune_problem *p) {
    return 2.0 * (double)(p->head_dim + p->head_dim_v) * (double)p->batch * (double)p->num_heads * allowed_pairs(p);
}

/* ---- key ---- */

typedef struct key_writer {
    uint8_t *bytes;
    size_t length;
} key_writer;

static void put_i64(key_writer *w, int64_t value) {
    for (int i = 0; i < 8; i++) w->bytes[w->length++] = (uint8_t)((uint64_t)value >> (8 * i));
}

static void put_f32(key_writer *w, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    put_i64(w, bits);
}

/* Changing the order or the meaning of these fields changes KEY_FORMAT. */
size_t mha_key(const attune_problem *p, uint8_t key[MHA_KEY_BYTES]) {
    enum { KEY_FORMAT = 1 };
    key_writer w = {key, 0};
    put_i64(&w, KEY_FORMAT);
    put_i64(&w, p->dtype);
    put_i64(&w, p->num_heads / p->num_kv_heads);
    put_i64(&w, p->seq_q);
    put_i64(&w, p->seq_kv);
    put_i64(&w, p->head_dim);
    put_i64(&w, p->head_dim_v);
    put_f32(&w, (float)p->softmax_scale);
    put_i64(&w, p->is_causal);
    put_i64(&w, p->causal_offset);
    put_i64(&w, p->has_lse);
    put_i64(&w, p->q_strides[3]);
    put_i64(&w, p->k_strides[3]);
    put_i64(&w, p->v_strides[3]);
    put_i64(&w, p->out_strides[3]);
    put_i64(&w, p->lse_strides[2]);
    return w.length;
}

size_t mha_scalars(const attune_arguments *a, int64_t scalars[MHA_MAX_SCALARS]) {
    size_t n = 0;
    scalars[n++] = a->batch;
    scalars[n++] = a->num_kv_heads;
    for (int i = 0; i < 3; i++) scalars[n++] = a->q_strides[i];
    for (int i = 0; i < 3; i++) scalars[n++] = a->k_strides[i];
    for (int i = 0; i < 3; i++) scalars[n++] = a->v_strides[i];
    for (int i = 0; i < 3; i++) scalars[n++] = a->out_strides[i];
    for (int i = 0; i < 2; i++) scalars[n++] = a->lse_strides[i];
    return n;
}
