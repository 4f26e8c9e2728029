/* Each format is described by a few numbers (the run of a scale, what lies inline, panels), by which the place of an
 * element and its value follow. */
#include "ref_codes.h"

#include <math.h>
#include <string.h>

enum { BLOCK = 32, HALF = 16, INLINE_BYTES = 2, NIBBLE_BITS = 4, NIBBLE = 15, ZERO_CODE = 8, DEFAULT_GROUP = 32 };

static bool has_groups(const ref_format *f) {
    return f->scales == ATTUNE_SCALES_GROUP || f->scales == ATTUNE_SCALES_GROUP_MIN;
}

ref_format ref_format_of(const attune_problem *p, bool is_k) {
    const int64_t group = is_k ? p->k_group : p->v_group, dim_v = p->head_dim_v ? p->head_dim_v : p->head_dim;
    const bool in_panels = (is_k ? p->k_layout : p->v_layout) == ATTUNE_LAYOUT_PANELS;
    ref_format f = {.is_k = is_k,
                    .dtype = is_k ? p->k_dtype : p->v_dtype,
                    .scales = is_k ? p->k_scales : p->v_scales,
                    .group = group ? group : DEFAULT_GROUP,
                    .columns = is_k ? p->head_dim : dim_v};
    const attune_dtype dtype = f.dtype ? f.dtype : p->dtype;
    if (in_panels) f.unit = dtype == ATTUNE_I8 || dtype == ATTUNE_I4 ? 4 : dtype == ATTUNE_BF16 ? 2 : 1;
    if (f.scales == ATTUNE_SCALES_DEFAULT && f.dtype == ATTUNE_I4) f.scales = ATTUNE_SCALES_GROUP;
    if (!ref_is_quantised(f.dtype)) f.scales = ATTUNE_SCALES_NONE;
    f.has_least = f.scales == ATTUNE_SCALES_INLINE_MIN || f.scales == ATTUNE_SCALES_TOKEN_MIN ||
                  f.scales == ATTUNE_SCALES_GROUP_MIN || f.scales == ATTUNE_SCALES_CHANNEL_MIN;
    f.is_inline = f.scales == ATTUNE_SCALES_INLINE || f.scales == ATTUNE_SCALES_INLINE_MIN;
    f.is_packed = f.dtype == ATTUNE_I4 || f.is_inline;
    f.by_channel = f.scales == ATTUNE_SCALES_CHANNEL || f.scales == ATTUNE_SCALES_CHANNEL_MIN;
    f.by_group = has_groups(&f) || f.scales == ATTUNE_SCALES_TOKEN_MIN || f.is_inline;
    return f;
}

int64_t ref_run(const ref_format *f) { return has_groups(f) ? f->group : f->is_inline ? BLOCK : f->columns; }

int64_t ref_row_scales(const ref_format *f) { return f->by_channel ? f->columns : f->columns / ref_run(f); }

static int64_t bytes_before(const ref_format *f) { return f->is_inline ? INLINE_BYTES * (1 + f->has_least) : 0; }

static int64_t block_bytes(const ref_format *f) { return bytes_before(f) + (f->dtype == ATTUNE_I4 ? HALF : BLOCK); }

int64_t ref_row_elements(const ref_format *f) {
    return f->is_packed ? f->columns / BLOCK * block_bytes(f) : f->columns;
}

/* The byte of a packed row that has the code. */
static int64_t byte_of(const ref_format *f, int64_t column) {
    const int64_t within = column % (f->dtype == ATTUNE_I4 ? HALF : BLOCK);
    return column / BLOCK * block_bytes(f) + bytes_before(f) + within;
}

enum { TOKENS = 16 }; /* of a panel */

int64_t ref_token_place(const ref_format *f, int64_t token, int64_t step) {
    const int64_t within = token % TOKENS;
    if (!f->unit) return token * step;
    if (f->is_k) return token / TOKENS * step + within * f->unit;
    return token / TOKENS * step + within / f->unit * f->unit * ref_row_elements(f) + within % f->unit;
}

int64_t ref_column_place(const ref_format *f, int64_t column, int64_t step) {
    if (!f->unit) return column * step;
    return f->is_k ? column / f->unit * f->unit * TOKENS + column % f->unit : column * f->unit;
}

int64_t ref_tokens(const ref_format *f, int64_t rows) { return f->unit ? rows * TOKENS : rows; }

/* Bytes lie in panels as elements do. */
static int64_t place_of_byte(const ref_format *f, int64_t column) { return ref_column_place(f, byte_of(f, column), 1); }

static int shift_of(int64_t column) { return column % BLOCK < HALF ? 0 : NIBBLE_BITS; }

static int zero_code(const ref_format *f) { return f->has_least ? 0 : ZERO_CODE; }

long double ref_code(const ref_format *f, const void *storage, int64_t row, int64_t step, int64_t column) {
    if (!f->is_packed) return ref_load(f->dtype, storage, row + ref_column_place(f, column, step));
    const unsigned char byte = ((const unsigned char *)storage)[row + place_of_byte(f, column)];
    if (f->dtype != ATTUNE_I4) return (int8_t)byte;
    return (byte >> shift_of(column) & NIBBLE) - zero_code(f);
}

void ref_put_code(const ref_format *f, long double *row, int64_t column, long double code) {
    if (f->dtype != ATTUNE_I4) {
        row[f->is_packed ? byte_of(f, column) : ref_column_place(f, column, 1)] = code;
        return;
    }
    long double *const byte = &row[place_of_byte(f, column)];
    const unsigned old = (unsigned)(int)*byte & 255, shift = (unsigned)shift_of(column);
    *byte = (int8_t)((old & ~((unsigned)NIBBLE << shift)) | (unsigned)(code + zero_code(f)) << shift);
}

static long double half_of(const ref_format *f, const void *storage, int64_t row, int64_t column, int from) {
    _Float16 half;
    memcpy(&half, (const unsigned char *)storage + row + column / BLOCK * block_bytes(f) + from, sizeof half);
    return (long double)half;
}

static void put_half(const ref_format *f, long double *row, int64_t column, int from, long double x) {
    const _Float16 half = (_Float16)x;
    int8_t bytes[INLINE_BYTES];
    memcpy(bytes, &half, sizeof bytes);
    for (int i = 0; i < INLINE_BYTES; i++) row[column / BLOCK * block_bytes(f) + from + i] = bytes[i];
}

long double ref_inline_scale(const ref_format *f, const void *storage, int64_t row, int64_t column) {
    return half_of(f, storage, row, column, 0);
}

void ref_put_inline_scale(const ref_format *f, long double *row, int64_t column, long double scale) {
    put_half(f, row, column, 0, scale);
}

long double ref_inline_least(const ref_format *f, const void *storage, int64_t row, int64_t column) {
    return f->has_least ? half_of(f, storage, row, column, INLINE_BYTES) : 0;
}

void ref_put_inline_least(const ref_format *f, long double *row, int64_t column, long double least) {
    put_half(f, row, column, INLINE_BYTES, least);
}

long double ref_cached(const ref_format *f, const attune_tensor *cache, const void *data, const attune_tensor *scale,
                       const void *scales, const int64_t index[3], int64_t column) {
    int64_t row = 0, at = 0;
    for (int d = 0; d < 2; d++) row += index[d] * cache->strides[d];
    row += ref_token_place(f, index[2], cache->strides[2]);
    const long double code = ref_code(f, data, row, cache->strides[3], column);
    if (f->is_inline) return code * ref_inline_scale(f, data, row, column) + ref_inline_least(f, data, row, column);
    if (!scale) return code;
    const int last = scale->rank - 1;
    if (scale->rank <= 2) at = index[1] * scale->strides[0] + (scale->rank == 2 ? column * scale->strides[1] : 0);
    for (int d = 0; d < 3 && scale->rank > 2; d++) at += index[d] * scale->strides[d];
    if (scale->rank == 4) at += column / ref_run(f) * scale->strides[3];
    const long double least =
        f->has_least ? ref_load(scale->dtype, scales, at + ref_row_scales(f) * scale->strides[last]) : 0;
    return code * ref_load(scale->dtype, scales, at) + least;
}
