/* Reads all of a mask once. If each row hides just the keys from some length on, or is causal as well, attune needs no
 * mask at all, only lengths; otherwise it gets a byte for each key. */
#include "encoder_mask.h"

#include <stdlib.h>
#include <string.h>

/* Which elements of a row hide a key. A float hides unless it is 0 or -0; NaN hides, too. */
#define DEFINE_HIDES(name, type, is_hidden)                                                                            \
    static inline bool hides_##name(const char *row, int64_t j) {                                                      \
        const type x = ((const type *)row)[j];                                                                         \
        return is_hidden;                                                                                              \
    }                                                                                                                  \
    /* The number of keys before the first hidden one; -1 if there are visible keys after it. */                       \
    static int64_t prefix_##name(const char *row, int64_t n) {                                                         \
        int64_t first = 0;                                                                                             \
        while (first < n && !hides_##name(row, first)) first++;                                                        \
        bool all = true;                                                                                               \
        for (int64_t j = first; j < n; j++) all &= hides_##name(row, j);                                               \
        return all ? first : -1;                                                                                       \
    }                                                                                                                  \
    /* Writes 1 for each visible key. Returns whether there is one. */                                                 \
    static bool keep_##name(const char *row, int64_t n, uint8_t *keep) {                                               \
        bool any = false;                                                                                              \
        for (int64_t j = 0; j < n; j++) any |= keep[j] = !hides_##name(row, j);                                        \
        return any;                                                                                                    \
    }
DEFINE_HIDES(byte, uint8_t, x != 0)
DEFINE_HIDES(half, uint16_t, (uint16_t)(x << 1) != 0)
DEFINE_HIDES(single, uint32_t, x << 1 != 0)
DEFINE_HIDES(wide, uint64_t, x << 1 != 0)
#undef DEFINE_HIDES

typedef struct element {
    int64_t size;
    int64_t (*prefix)(const char *row, int64_t n);
    bool (*keep)(const char *row, int64_t n, uint8_t *keep);
} element;

static bool find_element(int32_t dtype, element *found) {
    static const element byte = {1, prefix_byte, keep_byte}, half = {2, prefix_half, keep_half};
    static const element single = {4, prefix_single, keep_single}, wide = {8, prefix_wide, keep_wide};
    if (dtype == torch.boolean)
        *found = byte;
    else if (dtype == torch.f16 || dtype == torch.bf16)
        *found = half;
    else if (dtype == torch.f32)
        *found = single;
    else if (dtype == torch.f64)
        *found = wide;
    else
        return false;
    return true;
}

/* A mask as [batch, heads, queries, keys]. A stride of 0 broadcasts. */
typedef struct shape {
    const char *data;
    element element;
    int64_t sizes[4], strides[4];
} shape;

static bool find_shape(const torch_view *view, int64_t type, const int64_t sizes[4], shape *s) {
    static const int dims_of_type[3][2] = {{2, 3}, {0, 3}, {0, 0}};
    if (type < 0 || type > 2 || view->rank != (type == 2 ? 4 : 2) || !find_element(view->dtype, &s->element))
        return false;
    s->data = view->data;
    memcpy(s->sizes, sizes, sizeof s->sizes);
    memset(s->strides, 0, sizeof s->strides);
    for (int i = 0; i < view->rank; i++) {
        const int dim = type == 2 ? i : dims_of_type[type][i];
        if (view->sizes[i] != sizes[dim]) return false;
        s->strides[dim] = sizes[dim] == 1 ? 0 : view->strides[i] * s->element.size;
    }
    return s->strides[3] == s->element.size || sizes[3] == 1;
}

static const char *row_of(const shape *s, int64_t b, int64_t h, int64_t i) {
    return s->data + b * s->strides[0] + h * s->strides[1] + i * s->strides[2];
}

/* The pattern of a mask: which of these all its rows fit. */
typedef struct pattern {
    bool is_prefix; /* queries of sequence b attend to the keys before lengths[b] */
    bool is_causal; /* and only up to the query's own position */
    bool has_empty_row;
} pattern;

/* Compares the rows of one matrix with the length of its last row. */
static int64_t read_matrix(const shape *s, int64_t b, int64_t h, pattern *p) {
    const int64_t rows = s->strides[2] ? s->sizes[2] : 1, n = s->sizes[3];
    const int64_t length = s->element.prefix(row_of(s, b, h, rows - 1), n);
    if (rows == 1 && s->sizes[2] > 1) p->is_causal = false;
    for (int64_t i = 0; i < rows && (p->is_prefix || p->is_causal); i++) {
        const int64_t seen = i == rows - 1 ? length : s->element.prefix(row_of(s, b, h, i), n);
        p->is_prefix &= seen >= 0 && seen == length;
        p->is_causal &= seen >= 0 && seen == (i + 1 < length ? i + 1 : length);
        p->has_empty_row |= seen == 0;
    }
    return length;
}

/* False if the mask is neither a prefix nor causal, in the same way for all sequences and heads. */
static bool read_pattern(const shape *s, int32_t *lengths, pattern *p) {
    *p = (pattern){.is_prefix = true, .is_causal = true};
    const int64_t heads = s->strides[1] ? s->sizes[1] : 1;
    for (int64_t b = 0; b < s->sizes[0]; b++) {
        for (int64_t h = 0; h < heads; h++) {
            if (b && !s->strides[0]) {
                lengths[b] = lengths[0];
                break;
            }
            const int64_t length = read_matrix(s, b, h, p);
            if ((!p->is_prefix && !p->is_causal) || (h && length != lengths[b])) return false;
            lengths[b] = (int32_t)length;
        }
    }
    return true;
}

/* Whether all heads have the same rows, as is the case if PyTorch has added padding to one matrix. */
static bool heads_agree(const shape *s) {
    if (!s->strides[1]) return true;
    const size_t bytes = (size_t)(s->sizes[3] * s->element.size);
    for (int64_t b = 0; b < (s->strides[0] ? s->sizes[0] : 1); b++)
        for (int64_t h = 1; h < s->sizes[1]; h++)
            for (int64_t i = 0; i < (s->strides[2] ? s->sizes[2] : 1); i++)
                if (memcmp(row_of(s, b, 0, i), row_of(s, b, h, i), bytes)) return false;
    return true;
}

static encoder_mask_kind copy_keep(const shape *s, encoder_mask *mask) {
    mask->per_batch = s->strides[0] != 0;
    mask->per_head = !heads_agree(s);
    mask->per_row = s->strides[2] != 0;
    const int64_t batch = mask->per_batch ? s->sizes[0] : 1, heads = mask->per_head ? s->sizes[1] : 1;
    const int64_t rows = mask->per_row ? s->sizes[2] : 1, n = s->sizes[3];
    uint8_t *next = mask->keep = malloc((size_t)(batch * heads * rows * n));
    if (!next) return ENCODER_MASK_NO_MEMORY;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < rows; i++, next += n)
                if (!s->element.keep(row_of(s, b, h, i), n, next)) return ENCODER_MASK_EMPTY;
    return ENCODER_MASK_KEEP;
}

static encoder_mask_kind settle(const shape *s, const pattern *p, encoder_mask *mask) {
    if (p->has_empty_row) return ENCODER_MASK_EMPTY;
    mask->is_causal = !p->is_prefix;
    for (int64_t b = 0; b < s->sizes[0]; b++)
        if (mask->lengths[b] < s->sizes[3]) return ENCODER_MASK_LENGTHS;
    return ENCODER_MASK_NONE;
}

void encoder_mask_read(const torch_view *view, int64_t type, int64_t batch, int64_t heads, int64_t length,
                       encoder_mask *mask) {
    const int64_t sizes[4] = {batch, heads, length, length};
    shape s;
    pattern p;
    memset(mask, 0, sizeof *mask);
    if (!find_shape(view, type, sizes, &s)) {
        mask->kind = ENCODER_MASK_FOREIGN;
        return;
    }
    const bool is_few = (size_t)batch <= sizeof mask->few_lengths / sizeof *mask->few_lengths;
    mask->lengths = is_few ? mask->few_lengths : malloc((size_t)batch * sizeof *mask->lengths);
    if (!mask->lengths)
        mask->kind = ENCODER_MASK_NO_MEMORY;
    else if (read_pattern(&s, mask->lengths, &p))
        mask->kind = settle(&s, &p, mask);
    else
        mask->kind = copy_keep(&s, mask);
}

void encoder_mask_free(encoder_mask *mask) {
    if (mask->lengths != mask->few_lengths) free(mask->lengths);
    free(mask->keep);
}
