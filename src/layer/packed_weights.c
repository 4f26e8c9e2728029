/* Copies weights into the order in which kernels read them (problem/weights_layout.h), and validates a blob. */
#define XXH_INLINE_ALL
#include "layer/packed_weights.h"
#include "layer/weight_source.h"

#include <string.h>
#include <xxhash.h>

enum { CACHE_LINE = 64 };

/* ---- Tiles: the columns of a panel by the inputs of a cache line ---- */

/* Transposes a tile: columns are `stride` bytes apart in `from`, and adjacent in `to`. A tile fits into L1, so memory
 * is read and written in whole lines. With constant sizes (`size`, and `columns` and `rows` of full tiles), the
 * compiler makes this plain loads and stores. */
static inline __attribute__((always_inline)) void transpose_tile(unsigned char *to, const unsigned char *from,
                                                                 size_t stride, int64_t columns, int64_t rows,
                                                                 size_t size) {
    unsigned char lines[MHA_PANEL][CACHE_LINE];
    for (int64_t c = 0; c < columns; c++) memcpy(lines[c], from + (size_t)c * stride, (size_t)rows * size);
    for (int64_t k = 0; k < rows; k++)
        for (int64_t c = 0; c < columns; c++)
            memcpy(to + (size_t)(k * MHA_PANEL + c) * size, &lines[c][(size_t)k * size], size);
}

static inline __attribute__((always_inline)) void transpose_sized(unsigned char *to, const unsigned char *from,
                                                                  size_t stride, int64_t columns, int64_t rows,
                                                                  size_t size) {
    if (columns == MHA_PANEL && rows == CACHE_LINE / (int64_t)size)
        transpose_tile(to, from, stride, MHA_PANEL, CACHE_LINE / (int64_t)size, size);
    else
        transpose_tile(to, from, stride, columns, rows, size);
}

static void transpose(unsigned char *to, const unsigned char *from, size_t stride, int64_t columns, int64_t rows,
                      size_t size) {
    if (size == 2)
        transpose_sized(to, from, stride, columns, rows, 2);
    else if (size == 4)
        transpose_sized(to, from, stride, columns, rows, 4);
    else
        transpose_sized(to, from, stride, columns, rows, 8);
}

/* Columns are adjacent on both sides. */
static void copy_tile(unsigned char *to, const unsigned char *from, size_t stride, int64_t columns, int64_t rows,
                      size_t size) {
    for (int64_t k = 0; k < rows; k++)
        memcpy(to + (size_t)(k * MHA_PANEL) * size, from + (size_t)k * stride, (size_t)columns * size);
}

/* One row of pairs: columns from `from` on, and their partners from `partners` on; NULL: zeros. */
static void pair_row(unsigned char *to, const unsigned char *from, const unsigned char *partners, size_t stride,
                     int64_t columns) {
    enum { HALF = 2 }; /* bytes of a bf16 */
    for (int64_t c = 0; c < columns; c++, to += 2 * HALF, from += stride) {
        memcpy(to, from, HALF);
        memset(to + HALF, 0, HALF);
        if (!partners) continue;
        memcpy(to + HALF, partners, HALF);
        partners += stride;
    }
}

/* ---- Projections ---- */

typedef struct packing {
    const mha_packed_section *section;
    const mha_packed_source *source;
    bool out_first;
    size_t size;       /* of a weight */
    size_t unit;       /* of a column in a row of a panel: one weight or two */
    unsigned char *to; /* of the section */
} packing;

static unsigned char *panel_at(const packing *pk, int64_t group, int64_t panel) {
    const mha_packed_section *s = pk->section;
    return pk->to + (size_t)((group * s->panels + panel) * mha_packed_panel(s)) * pk->size;
}

/* The columns of a panel that are not padding. */
static int64_t columns_of(const mha_packed_section *s, int64_t group, int64_t panel) {
    const int64_t rest = s->columns - group * s->group_columns;
    const int64_t n = (rest < s->group_columns ? rest : s->group_columns) - panel * MHA_PANEL;
    return n < 0 ? 0 : n > MHA_PANEL ? MHA_PANEL : n;
}

/* The bias, and zeros in the padding of a panel. */
static void begin_panel(const packing *pk, int64_t group, int64_t panel) {
    const mha_packed_section *s = pk->section;
    const int64_t columns = columns_of(s, group, panel);
    const size_t row_bytes = MHA_PANEL * pk->unit, first = (size_t)(group * s->group_columns + panel * MHA_PANEL);
    unsigned char *to = panel_at(pk, group, panel);
    memset(to, 0, columns < MHA_PANEL ? (size_t)s->rows * row_bytes : row_bytes);
    for (int64_t c = 0; pk->source->bias && c < columns; c++)
        memcpy(to + (size_t)(c + 1) * pk->unit - pk->size, pk->source->bias + (first + (size_t)c) * pk->size, pk->size);
}

/* Rows of pairs: `columns` columns of each, whose weights begin at `from`. */
static void pack_pairs(const packing *pk, unsigned char *to, const unsigned char *from, int64_t columns, int64_t rows) {
    const size_t stride = pk->source->stride;
    for (int64_t k = 0; k < rows; k++, to += MHA_PANEL * pk->unit, from += 2 * stride)
        pair_row(to, from, from + stride, pk->size, columns);
}

/* Rows from `row` on, at most a cache line of inputs; a last input without a partner is not counted. */
static void pack_tile(const packing *pk, int64_t group, int64_t panel, int64_t row) {
    const mha_packed_section *s = pk->section;
    const int64_t columns = columns_of(s, group, panel), line = CACHE_LINE / (int64_t)pk->unit;
    const int64_t all = s->depth / s->inputs, rows = all - row < line ? all - row : line;
    const size_t first = (size_t)(group * s->group_columns + panel * MHA_PANEL), stride = pk->source->stride;
    unsigned char *to = panel_at(pk, group, panel) + (size_t)(row + 1) * MHA_PANEL * pk->unit;
    const unsigned char *from = pk->source->weight;
    if (!columns) return;
    from +=
        pk->out_first ? first * stride + (size_t)row * pk->unit : (size_t)(row * s->inputs) * stride + first * pk->size;
    if (pk->out_first)
        transpose(to, from, stride, columns, rows, pk->unit);
    else if (s->inputs == 2)
        pack_pairs(pk, to, from, columns, rows);
    else
        copy_tile(to, from, stride, columns, rows, pk->size);
}

/* A last input without a partner. */
static void pack_last(const packing *pk, int64_t group, int64_t panel) {
    const mha_packed_section *s = pk->section;
    const size_t first = (size_t)(group * s->group_columns + panel * MHA_PANEL), stride = pk->source->stride;
    const size_t between = pk->out_first ? stride : pk->size, input = (size_t)s->depth - 1;
    const int64_t columns = columns_of(s, group, panel);
    unsigned char *to = panel_at(pk, group, panel) + (size_t)(s->rows - 1) * MHA_PANEL * pk->unit;
    if (!columns) return;
    const unsigned char *from = pk->source->weight + first * between + input * (pk->out_first ? pk->size : stride);
    pair_row(to, from, NULL, between, columns);
}

/* In the order in which the source is read, as the few lines that are written at a time stay in the cache. */
static void pack_group(const packing *pk, int64_t group) {
    const mha_packed_section *s = pk->section;
    const int64_t line = CACHE_LINE / (int64_t)pk->unit, rows = s->depth / s->inputs;
    for (int64_t panel = 0; panel < s->panels; panel++) begin_panel(pk, group, panel);
    if (pk->out_first) {
        for (int64_t panel = 0; panel < s->panels; panel++)
            for (int64_t row = 0; row < rows; row += line) pack_tile(pk, group, panel, row);
    } else {
        for (int64_t row = 0; row < rows; row += line)
            for (int64_t panel = 0; panel < s->panels; panel++) pack_tile(pk, group, panel, row);
    }
    for (int64_t panel = 0; s->depth % s->inputs && panel < s->panels; panel++) pack_last(pk, group, panel);
}

void mha_pack_matrix(const mha_packed_section *s, const mha_packed_source *source, bool out_first, size_t size,
                     void *to) {
    const packing pk = {.section = s,
                        .source = source,
                        .out_first = out_first,
                        .size = size,
                        .unit = size * (size_t)s->inputs,
                        .to = to};
    for (int64_t group = 0; group < s->num_groups; group++) pack_group(&pk, group);
}

/* ---- The blob ---- */

/* The checksum of the header up to the checksum, and of everything after the header. */
static uint64_t checksum_of(const mha_packed_header *header, const unsigned char *packed) {
    const uint64_t seed = XXH3_64bits(header, offsetof(mha_packed_header, checksum));
    return XXH3_64bits_withSeed(packed + MHA_PACKED_HEADER, (size_t)header->bytes - MHA_PACKED_HEADER, seed);
}

static attune_status check_aligned(const void *packed, at_error *err) {
    if ((uintptr_t)packed % CACHE_LINE == 0) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "packed is at %p; it must be aligned to 64 bytes", packed);
}

attune_status mha_pack_weights(const attune_problem *p, const attune_mha_weights *weights, void *packed, size_t bytes,
                               at_error *err) {
    mha_packed_layout layout;
    mha_packed_source sources[MHA_NUM_PROJECTIONS];
    mha_packed_layout_of(p, &layout);
    const size_t size = mha_weight_bytes(p->w_dtype), needed = (size_t)layout.elements * size;
    attune_status status = check_aligned(packed, err);
    if (!status && bytes < needed)
        status = at_fail(err, ATTUNE_INVALID_ARGUMENT, "packed has %zu bytes; the weights of this problem take %zu",
                         bytes, needed);
    if (!status) status = mha_packed_sources(p, &layout, weights, sources, err);
    for (int i = 0; !status && mha_has_quantised_weights(p) && i < MHA_NUM_PROJECTIONS; i++)
        if (layout.section[i].exists) status = mha_check_codable(&layout.section[i], &sources[i], err);
    if (status) return status;
    for (int i = 0; i < MHA_NUM_PROJECTIONS; i++) {
        const mha_packed_section *s = &layout.section[i];
        if (!s->exists) continue;
        unsigned char *const to = (unsigned char *)packed + (size_t)s->offset * size;
        if (s->group)
            mha_pack_quantised(s, &sources[i], to);
        else
            mha_pack_matrix(s, &sources[i], weights->layout == ATTUNE_OUT_IN, size, to);
    }
    mha_packed_header header = {.magic = MHA_PACKED_MAGIC,
                                .format = MHA_PACKED_FORMAT,
                                .id = mha_packed_id_of(p, &layout),
                                .bytes = needed,
                                .id_without_kv = mha_packed_id_without_kv(p, &layout)};
    header.checksum = checksum_of(&header, packed);
    memcpy(packed, &header, sizeof header);
    return ATTUNE_OK;
}

static bool equal(mha_packed_id a, mha_packed_id b) { return a.low == b.low && a.high == b.high; }

bool mha_packed_header_matches(const void *packed, mha_packed_id id) {
    mha_packed_header header;
    memcpy(&header, packed, sizeof header);
    return header.magic == MHA_PACKED_MAGIC && header.format == MHA_PACKED_FORMAT &&
           (equal(header.id, id) || equal(header.id_without_kv, id));
}

size_t mha_packed_bytes(const void *packed) {
    mha_packed_header header;
    memcpy(&header, packed, sizeof header);
    return (size_t)header.bytes;
}

static attune_status bad(at_error *err, const char *sentence) { return at_fail(err, ATTUNE_BAD_FILE, "%s", sentence); }

attune_status mha_packed_check_header(const attune_problem *p, const void *packed, at_error *err) {
    mha_packed_layout layout;
    mha_packed_header header;
    attune_status status = check_aligned(packed, err);
    if (status) return status;
    memcpy(&header, packed, sizeof header);
    if (header.magic == __builtin_bswap64(MHA_PACKED_MAGIC))
        return bad(err, "these weights were packed on a machine of the other byte order: pack them again");
    if (header.magic != MHA_PACKED_MAGIC)
        return bad(err, "these are no packed weights: they do not begin with attune-w");
    if (header.format != MHA_PACKED_FORMAT)
        return at_fail(err, ATTUNE_BAD_FILE,
                       "the packed weights are of format %llu; this library reads format %llu: pack them again",
                       (unsigned long long)header.format, (unsigned long long)MHA_PACKED_FORMAT);
    mha_packed_layout_of(p, &layout);
    if (mha_packed_header_matches(packed, mha_packed_id_of(p, &layout))) return ATTUNE_OK;
    return bad(err, "the packed weights are those of another problem: sizes, heads, w_dtype or projections differ");
}

attune_status mha_packed_check(const attune_problem *p, const void *packed, size_t bytes, at_error *err) {
    mha_packed_layout layout;
    mha_packed_header header;
    if (bytes < sizeof header)
        return at_fail(err, ATTUNE_BAD_FILE, "packed weights of %zu bytes are cut off: their header alone takes %zu",
                       bytes, sizeof header);
    const attune_status status = mha_packed_check_header(p, packed, err);
    if (status) return status;
    mha_packed_layout_of(p, &layout);
    const size_t needed = (size_t)layout.elements * mha_weight_bytes(p->w_dtype);
    memcpy(&header, packed, sizeof header);
    if (header.bytes >= needed && bytes < header.bytes)
        return at_fail(err, ATTUNE_BAD_FILE, "packed weights of %zu bytes are cut off: their header tells of %llu",
                       bytes, (unsigned long long)header.bytes);
    if (header.bytes >= needed && header.checksum == checksum_of(&header, packed)) return ATTUNE_OK;
    return bad(err, "the packed weights are damaged: their checksum is wrong");
}
