/* 8-bit rows are the same for ONNX Runtime and attune. With 4 bits, a byte has two columns, as value + 8, but the order
 * of columns differs:
 *
 *     ONNX Runtime    byte i of a row:              column 2 i      │ column 2 i + 1
 *     attune          byte i of each 16 of a row:   column i of 32  │ column i + 16 of 32
 *
 * The order of columns does not matter for a score. So the cache stays in ONNX Runtime's order, the columns of Q are
 * permuted into the order in which attune reads them (place_of), and the columns of the output are permuted back. */
#include "quantised_cache.h"

#include "fpenv.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 32, MOST_COLUMNS = 4096 };

static int64_t place_of(const quantised_cache *cache, int64_t column) {
    const int64_t in_block = column % BLOCK;
    return cache->bits == 8 ? column : column - in_block + in_block / 2 + in_block % 2 * (BLOCK / 2);
}

/* ---- Rows ---- */

typedef struct rows_job {
    const quantised_cache *cache;
    const float *cos, *sin;       /* NULL: nothing is rotated */
    const float *q_norm, *k_norm; /* NULL: nothing is normalised */
    float *queries;
} rows_job;

/* A row of queries, keys or values, and its position in its sequence. */
typedef struct place {
    int64_t batch, head, token;
} place;

static place place_at(const heads *x, int64_t i) {
    return (place){i / x->dims[2] / x->dims[1], i / x->dims[2] % x->dims[1], i % x->dims[2]};
}

static int64_t offset_of(const heads *x, place at) {
    return at.batch * x->strides[0] + at.head * x->strides[1] + at.token * x->strides[2];
}

static void read_row(const heads *x, place at, float *row) {
    const char *const from = (const char *)x->data + offset_of(x, at) * (int64_t)adapter_type_bytes(x->dtype);
    call_widen(x->dtype, from, x->dims[3], row);
}

/* The first appended key. */
static int64_t first_new(const quantised_cache *cache, int64_t batch) {
    return (cache->lengths ? cache->lengths[batch] : cache->c->keys) - cache->c->q.dims[2];
}

static void normalise(float *row, int64_t columns, const float *weight, float eps) {
    float squares = 0;
    for (int64_t i = 0; i < columns; i++) squares += row[i] * row[i];
    const float root = sqrtf(squares / (float)columns + eps);
    for (int64_t i = 0; i < columns; i++) row[i] = row[i] / root * weight[i];
}

static void rotate(const rows_job *job, place at, float *row) {
    const call *const c = job->cache->c;
    const int64_t half = c->kind.rotary_dim / 2, token = at.batch * c->q.dims[2] + at.token;
    const int64_t position = c->position_ids ? c->position_ids[token] : first_new(job->cache, at.batch) + at.token;
    const float *const cos = job->cos + position * half, *const sin = job->sin + position * half;
    const bool is_interleaved = c->kind.rotary_interleaved;
    for (int64_t i = 0; i < half; i++) {
        float *const x = row + (is_interleaved ? 2 * i : i), *const y = x + (is_interleaved ? 1 : half);
        const float rotated = *x * cos[i] - *y * sin[i];
        *y = *x * sin[i] + *y * cos[i];
        *x = rotated;
    }
}

/* ---- Keys and values ---- */

static const float *scales_of(const tensor *t, int64_t head, int64_t columns, int64_t *step) {
    *step = tensor_count(t) > 1;
    return (const float *)t->data + (*step ? head * columns : 0);
}

/* Rounded to nearest even; a scale of 0, and NaN, give 0. */
static int quantised(float x, float scale, float largest) {
    const float number = scale == 0 ? 0 : rintf(x / scale);
    if (isnan(number)) return 0;
    return (int)(number < -largest - 1 ? -largest - 1 : number > largest ? largest : number);
}

static void quantise_row(const quantised_cache *cache, const heads *to, const tensor *scale, place at,
                         const float *row) {
    int64_t step;
    const float *const scales = scales_of(scale, at.head, cache->c->q.dims[3], &step);
    const place key = {at.batch, at.head, first_new(cache, at.batch) + at.token};
    uint8_t *const bytes = (uint8_t *)to->data + offset_of(to, key);
    for (int64_t i = 0; i < to->dims[3]; i++)
        if (cache->bits == 8)
            bytes[i] = (uint8_t)quantised(row[i], scales[i * step], 127);
        else
            bytes[i] = (uint8_t)((quantised(row[2 * i], scales[2 * i * step], 7) + 8) |
                                 (quantised(row[2 * i + 1], scales[(2 * i + 1) * step], 7) + 8) << 4);
}

static void append_rows(void *argument, int64_t begin, int64_t end, uint32_t worker) {
    AT_DEFAULT_FPENV;
    const rows_job *const job = argument;
    const quantised_cache *const cache = job->cache;
    const call *const c = cache->c;
    float row[MOST_COLUMNS];
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const place at = place_at(&c->k, i);
        read_row(&c->k, at, row);
        if (job->k_norm) normalise(row, c->k.dims[3], job->k_norm, cache->k_norm_eps);
        if (job->cos) rotate(job, at, row);
        quantise_row(cache, &c->k_cache, &cache->k_scale, at, row);
        read_row(&c->v, at, row);
        quantise_row(cache, &c->v_cache, &cache->v_scale, at, row);
    }
}

/* ---- Queries and outputs ---- */

static void make_queries(void *argument, int64_t begin, int64_t end, uint32_t worker) {
    AT_DEFAULT_FPENV;
    const rows_job *const job = argument;
    const call *const c = job->cache->c;
    const int64_t columns = c->q.dims[3];
    float row[MOST_COLUMNS];
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const place at = place_at(&c->q, i);
        read_row(&c->q, at, row);
        if (job->q_norm) normalise(row, columns, job->q_norm, job->cache->q_norm_eps);
        if (job->cos) rotate(job, at, row);
        for (int64_t d = 0; d < columns; d++) job->queries[i * columns + place_of(job->cache, d)] = row[d];
    }
}

static void give_rows(void *argument, int64_t begin, int64_t end, uint32_t worker) {
    AT_DEFAULT_FPENV;
    const quantised_cache *const cache = argument;
    const heads *const out = &cache->out;
    const int64_t columns = out->dims[3];
    float row[MOST_COLUMNS];
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const float *const made = (const float *)cache->c->out.data + i * columns;
        char *const to = (char *)out->data + offset_of(out, place_at(out, i)) * (int64_t)adapter_type_bytes(out->dtype);
        for (int64_t d = 0; d < columns; d++) row[d] = made[place_of(cache, d)];
        call_narrow(out->dtype, row, columns, to);
    }
}

/* ---- All of it ---- */

/* A single scale is repeated for each head, and scales of columns are permuted with the columns. */
static const float *scales_for(const quantised_cache *cache, const tensor *t) {
    call *const c = cache->c;
    const int64_t columns = c->q.dims[3], count = tensor_count(t), kv_heads = c->k.dims[1];
    if (count > 1 && cache->bits == 8) return t->data;
    float *const scales = call_scratch(c, (size_t)(kv_heads * (count > 1 ? columns : 1)) * sizeof *scales);
    for (int64_t h = 0; scales && h < kv_heads; h++)
        if (count == 1)
            scales[h] = *(const float *)t->data;
        else
            for (int64_t d = 0; d < columns; d++)
                scales[h * columns + place_of(cache, d)] = ((const float *)t->data)[h * columns + d];
    return scales;
}

static bool check(const quantised_cache *cache) {
    call *const c = cache->c;
    const tensor *const given[] = {&cache->k_scale, &cache->v_scale};
    const int64_t columns = c->q.dims[3], all = c->k.dims[1] * columns;
    if (columns > MOST_COLUMNS || (cache->bits == 4 && columns % BLOCK))
        return call_fail(c, "caches of %d bits have %lld columns; attune computes %s up to %d", cache->bits,
                         (long long)columns, cache->bits == 4 ? "multiples of 32" : "any number", MOST_COLUMNS);
    for (int i = 0; i < 2; i++) {
        const int64_t count = given[i]->is_given ? tensor_count(given[i]) : 0;
        if (given[i]->type != ORT_FLOAT || (count != 1 && count != all))
            return call_fail(c, "%s has %lld elements; it must be float and have 1 or %lld, one for each column",
                             i ? "v_scale" : "k_scale", (long long)count, (long long)all);
    }
    return tensor_count(given[0]) == tensor_count(given[1]) ||
           call_fail(c, "k_scale has %lld elements and v_scale %lld; they must have as many",
                     (long long)tensor_count(given[0]), (long long)tensor_count(given[1]));
}

/* cos, sin and norms as f32. */
static bool prepare(const quantised_cache *cache, rows_job *job) {
    call *const c = cache->c;
    const attune_dtype dtype = c->q.dtype;
    const int64_t angles = c->rotary_positions * (c->kind.rotary_dim / 2), columns = c->q.dims[3];
    const tensor cos = {.dtype = dtype, .data = (void *)(uintptr_t)c->cos};
    const tensor sin = {.dtype = dtype, .data = (void *)(uintptr_t)c->sin};
    const tensor q_norm = {.dtype = dtype, .data = (void *)(uintptr_t)c->q_norm};
    const tensor k_norm = {.dtype = dtype, .data = (void *)(uintptr_t)c->k_norm};
    if (c->cos && !((job->cos = call_floats(c, &cos, angles)) && (job->sin = call_floats(c, &sin, angles))))
        return false;
    return !c->q_norm ||
           ((job->q_norm = call_floats(c, &q_norm, columns)) && (job->k_norm = call_floats(c, &k_norm, columns)));
}

/* Queries in attune's order of columns and type. */
static bool replace_queries(quantised_cache *cache, rows_job *job) {
    call *const c = cache->c;
    const int64_t *const d = c->q.dims, rows = d[0] * d[1] * d[2], bytes = rows * d[3] * (int64_t)sizeof(float);
    const bool is_plain = cache->bits == 8 && c->q.dtype == ATTUNE_F32;
    cache->out = c->out;
    if (!is_plain || job->cos || job->q_norm) {
        if (!(job->queries = call_scratch(c, (size_t)bytes))) return false;
        call_parallel(c, make_queries, job, rows, bytes);
        c->q = call_separate(job->queries, ATTUNE_F32, d[0], d[1], d[2], d[3]);
    }
    if (is_plain) return true;
    void *const out = call_scratch(c, (size_t)bytes);
    c->out = call_separate(out, ATTUNE_F32, d[0], d[1], d[2], d[3]);
    return out;
}

static void attend_to(heads *keys, heads *cache, attune_dtype dtype, int64_t columns) {
    *keys = *cache;
    keys->dtype = dtype;
    keys->dims[3] = columns;
    cache->data = NULL;
}

bool quantised_append(quantised_cache *cache) {
    call *const c = cache->c;
    rows_job job = {.cache = cache};
    const int64_t columns = c->q.dims[3], rows = c->k.dims[0] * c->k.dims[1] * c->k.dims[2];
    const attune_dtype dtype = cache->bits == 8 ? ATTUNE_I8 : ATTUNE_I4;
    if (!check(cache) || !prepare(cache, &job)) return false;
    if (!(c->k_scale = scales_for(cache, &cache->k_scale)) || !(c->v_scale = scales_for(cache, &cache->v_scale)))
        return false;
    call_parallel(c, append_rows, &job, rows, rows * columns * (int64_t)sizeof(float));
    if (!replace_queries(cache, &job)) return false;
    attend_to(&c->k, &c->k_cache, dtype, columns);
    attend_to(&c->v, &c->v_cache, dtype, columns);
    c->kind.kv_scales = tensor_count(&cache->k_scale) > 1 ? ATTUNE_SCALES_CHANNEL : ATTUNE_SCALES_HEAD;
    c->kind.rotary_dim = 0, c->kind.rotary_interleaved = 0, c->kind.qk_norm_eps = 0;
    c->cos = c->sin = c->q_norm = c->k_norm = NULL;
    c->position_ids = NULL;
    return true;
}

void quantised_finish(const quantised_cache *cache) {
    const int64_t *const d = cache->out.dims, rows = d[0] * d[1] * d[2];
    if (cache->c->out.data == cache->out.data) return;
    call_parallel(cache->c, give_rows, (void *)(uintptr_t)cache, rows, rows * d[3] * (int64_t)sizeof(float));
}
