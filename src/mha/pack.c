/* Copying weights into the order in which kernels read them, and knowing a blob again. */
#include "mha/pack_internal.h"

#include <string.h>
#include <xxhash.h>

enum { CACHE_LINE = 64 };

/* ---- Tiles: a panel's columns, and as many inputs as share a cache line ---- */

/* Columns lie `stride` bytes apart in `from` and become neighbours in `to`. In the middle both lie in the first-level
 * cache, so that memory is read and written in whole lines. Constant sizes (`size`, and `columns` and `rows` of full
 * tiles) make this plain loads and stores. */
static inline __attribute__((always_inline)) void turn_tile(unsigned char *to, const unsigned char *from, size_t stride,
                                                            int64_t columns, int64_t rows, size_t size) {
    unsigned char lines[MHA_PANEL][CACHE_LINE];
    for (int64_t c = 0; c < columns; c++) memcpy(lines[c], from + (size_t)c * stride, (size_t)rows * size);
    for (int64_t k = 0; k < rows; k++)
        for (int64_t c = 0; c < columns; c++)
            memcpy(to + (size_t)(k * MHA_PANEL + c) * size, &lines[c][(size_t)k * size], size);
}

static inline __attribute__((always_inline)) void turn_sized(unsigned char *to, const unsigned char *from,
                                                             size_t stride, int64_t columns, int64_t rows,
                                                             size_t size) {
    if (columns == MHA_PANEL && rows == CACHE_LINE / (int64_t)size)
        turn_tile(to, from, stride, MHA_PANEL, CACHE_LINE / (int64_t)size, size);
    else
        turn_tile(to, from, stride, columns, rows, size);
}

static void turn(unsigned char *to, const unsigned char *from, size_t stride, int64_t columns, int64_t rows,
                 size_t size) {
    if (size == 2)
        turn_sized(to, from, stride, columns, rows, 2);
    else if (size == 4)
        turn_sized(to, from, stride, columns, rows, 4);
    else
        turn_sized(to, from, stride, columns, rows, 8);
}

/* Columns are neighbours on both sides. */
static void copy_tile(unsigned char *to, const unsigned char *from, size_t stride, int64_t columns, int64_t rows,
                      size_t size) {
    for (int64_t k = 0; k < rows; k++)
        memcpy(to + (size_t)(k * MHA_PANEL) * size, from + (size_t)k * stride, (size_t)columns * size);
}

/* ---- Projections ---- */

typedef struct packing {
    const mha_pack_section *section;
    const mha_pack_source *source;
    bool out_first;
    size_t size;
    unsigned char *to; /* of the section */
} packing;

static unsigned char *panel_at(const packing *pk, int64_t group, int64_t panel) {
    const mha_pack_section *s = pk->section;
    return pk->to + (size_t)((group * s->panels + panel) * (s->depth + 1) * MHA_PANEL) * pk->size;
}

/* The columns of a panel that count. */
static int64_t columns_of(const mha_pack_section *s, int64_t group, int64_t panel) {
    const int64_t rest = s->columns - group * s->group_columns;
    const int64_t n = (rest < s->group_columns ? rest : s->group_columns) - panel * MHA_PANEL;
    return n < 0 ? 0 : n > MHA_PANEL ? MHA_PANEL : n;
}

/* The bias, and zeros where a panel ends with padding. */
static void begin_panel(const packing *pk, int64_t group, int64_t panel) {
    const mha_pack_section *s = pk->section;
    const int64_t columns = columns_of(s, group, panel);
    const size_t row_bytes = MHA_PANEL * pk->size;
    unsigned char *to = panel_at(pk, group, panel);
    memset(to, 0, columns < MHA_PANEL ? (size_t)(s->depth + 1) * row_bytes : row_bytes);
    if (!pk->source->bias || !columns) return;
    memcpy(to, pk->source->bias + (size_t)(group * s->group_columns + panel * MHA_PANEL) * pk->size,
           (size_t)columns * pk->size);
}

/* Inputs from `row` on, at most a cache line of them. */
static void pack_tile(const packing *pk, int64_t group, int64_t panel, int64_t row) {
    const mha_pack_section *s = pk->section;
    const int64_t columns = columns_of(s, group, panel), line = CACHE_LINE / (int64_t)pk->size;
    const int64_t rows = s->depth - row < line ? s->depth - row : line;
    const size_t first = (size_t)(group * s->group_columns + panel * MHA_PANEL), stride = pk->source->stride;
    unsigned char *to = panel_at(pk, group, panel) + (size_t)(row + 1) * MHA_PANEL * pk->size;
    if (!columns) return;
    if (pk->out_first)
        turn(to, pk->source->weight + first * stride + (size_t)row * pk->size, stride, columns, rows, pk->size);
    else
        copy_tile(to, pk->source->weight + (size_t)row * stride + first * pk->size, stride, columns, rows, pk->size);
}

/* In the order of the side that is read: the few places where it is written stay in the cache. */
static void pack_group(const packing *pk, int64_t group) {
    const mha_pack_section *s = pk->section;
    const int64_t line = CACHE_LINE / (int64_t)pk->size;
    for (int64_t panel = 0; panel < s->panels; panel++) begin_panel(pk, group, panel);
    if (pk->out_first) {
        for (int64_t panel = 0; panel < s->panels; panel++)
            for (int64_t row = 0; row < s->depth; row += line) pack_tile(pk, group, panel, row);
    } else {
        for (int64_t row = 0; row < s->depth; row += line)
            for (int64_t panel = 0; panel < s->panels; panel++) pack_tile(pk, group, panel, row);
    }
}

/* ---- The blob ---- */

/* Of the header up to its checksum and of everything behind it. */
static uint64_t checksum_of(const mha_pack_header *header, const unsigned char *packed) {
    const uint64_t seed = XXH3_64bits(header, offsetof(mha_pack_header, checksum));
    return XXH3_64bits_withSeed(packed + MHA_PACK_HEADER, (size_t)header->bytes - MHA_PACK_HEADER, seed);
}

static attune_status check_aligned(const void *packed, at_error *err) {
    if ((uintptr_t)packed % CACHE_LINE == 0) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "packed is at %p; it must be aligned to 64 bytes", packed);
}

attune_status mha_pack(const attune_problem *p, const attune_mha_weights *weights, void *packed, size_t bytes,
                       at_error *err) {
    mha_pack_layout layout;
    mha_pack_source sources[MHA_NUM_PROJECTIONS];
    mha_pack_layout_of(p, &layout);
    const size_t size = mha_weight_bytes(p->w_dtype), needed = (size_t)layout.elements * size;
    attune_status status = check_aligned(packed, err);
    if (!status && bytes < needed)
        status = at_fail(err, ATTUNE_INVALID_ARGUMENT, "packed has %zu bytes; the weights of this problem take %zu",
                         bytes, needed);
    if (!status) status = mha_pack_sources(p, &layout, weights, sources, err);
    if (status) return status;
    for (int i = 0; i < MHA_NUM_PROJECTIONS; i++) {
        const mha_pack_section *s = &layout.section[i];
        if (!s->exists) continue;
        const packing pk = {s, &sources[i], weights->layout == ATTUNE_OUT_IN, size,
                            (unsigned char *)packed + (size_t)s->offset * size};
        for (int64_t group = 0; group < s->num_groups; group++) pack_group(&pk, group);
    }
    mha_pack_header header = {.magic = MHA_PACK_MAGIC,
                              .format = MHA_PACK_FORMAT,
                              .id = mha_pack_id_of(p, &layout),
                              .bytes = needed,
                              .id_without_kv = mha_pack_id_without_kv(p, &layout)};
    header.checksum = checksum_of(&header, packed);
    memcpy(packed, &header, sizeof header);
    return ATTUNE_OK;
}

static attune_status bad(at_error *err, const char *sentence) { return at_fail(err, ATTUNE_BAD_FILE, "%s", sentence); }

attune_status mha_pack_check_header(const attune_problem *p, const void *packed, at_error *err) {
    mha_pack_layout layout;
    mha_pack_header header;
    attune_status status = check_aligned(packed, err);
    if (status) return status;
    memcpy(&header, packed, sizeof header);
    if (header.magic == __builtin_bswap64(MHA_PACK_MAGIC))
        return bad(err, "these weights were packed on a machine of the other byte order: pack them again");
    if (header.magic != MHA_PACK_MAGIC) return bad(err, "these are no packed weights: they do not begin with attune-w");
    if (header.format != MHA_PACK_FORMAT)
        return at_fail(err, ATTUNE_BAD_FILE, "the packed weights are of format %llu; this library reads format %llu",
                       (unsigned long long)header.format, (unsigned long long)MHA_PACK_FORMAT);
    mha_pack_layout_of(p, &layout);
    if (mha_pack_header_matches(packed, mha_pack_id_of(p, &layout))) return ATTUNE_OK;
    return bad(err, "the packed weights are those of another problem: sizes, heads, w_dtype or projections differ");
}

attune_status mha_pack_check(const attune_problem *p, const void *packed, size_t bytes, at_error *err) {
    mha_pack_layout layout;
    mha_pack_header header;
    if (bytes < sizeof header)
        return at_fail(err, ATTUNE_BAD_FILE, "packed weights of %zu bytes are cut off: their header alone takes %zu",
                       bytes, sizeof header);
    const attune_status status = mha_pack_check_header(p, packed, err);
    if (status) return status;
    mha_pack_layout_of(p, &layout);
    const size_t needed = (size_t)layout.elements * mha_weight_bytes(p->w_dtype);
    memcpy(&header, packed, sizeof header);
    if (header.bytes >= needed && bytes < header.bytes)
        return at_fail(err, ATTUNE_BAD_FILE, "packed weights of %zu bytes are cut off: their header tells of %llu",
                       bytes, (unsigned long long)header.bytes);
    if (header.bytes >= needed && header.checksum == checksum_of(&header, packed)) return ATTUNE_OK;
    return bad(err, "the packed weights are damaged: their checksum is wrong");
}
