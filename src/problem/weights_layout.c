/* Where the weights of a block lie in their blob. */
#define XXH_INLINE_ALL
#include "base/integers.h"
#include "problem/weights_layout.h"

#include <string.h>
#include <xxhash.h>

enum {
    USUAL_COLUMNS = 256, /* of a group: with 768 inputs it fills most of a second-level cache */
    MOST_COLUMNS = 512,
    ROW_COST = 8, /* of fetching a row of the left factor for a group, in columns of arithmetic */
};

static int64_t whole_tiles(int64_t columns) { return ceil_div(columns, MHA_PANEL_TILE) * MHA_PANEL_TILE; }

/* The cost of a row whose columns come in groups, in columns of arithmetic. Padding is computed, too; every group
 * fetches the row of the left factor; and a group that is too wide leaves the cache before it is used again. */
static int64_t group_cost(int64_t columns) {
    const int64_t padded = whole_tiles(columns), wide = padded - USUAL_COLUMNS;
    return padded + ROW_COST + (wide > 0 ? wide / 8 : 0);
}

static int64_t matrix_cost(int64_t units, int64_t units_of_group, int64_t width) {
    return ceil_div(units, units_of_group) * group_cost(units_of_group * width);
}

/* How many units of `width` columns make a group, where one matrix has `few` units and the other `many`; never more
 * than either has. */
static int64_t units_of_group(int64_t few, int64_t many, int64_t width) {
    int64_t best = 1, best_cost = INT64_MAX;
    for (int64_t units = 1; units <= few; units++) {
        if (units > 1 && units * width > MOST_COLUMNS) break;
        const int64_t cost = matrix_cost(few, units, width) + matrix_cost(many, units, width);
        if (cost > best_cost) continue;
        best = units;
        best_cost = cost;
    }
    return best;
}

/* If groups of q have as many heads as those of k and v, the three are one product. That is worth a little, unless it
 * costs this matrix more padding. */
static int64_t heads_of_group(const attune_problem *p, int64_t heads, int64_t dim) {
    const int64_t common = units_of_group(p->num_kv_heads, p->num_heads, dim), own = units_of_group(heads, heads, dim);
    return 10 * matrix_cost(heads, common, dim) > 11 * matrix_cost(heads, own, dim) ? own : common;
}

static int64_t inputs_of_row(attune_dtype dtype) {
    return dtype == ATTUNE_BF16 ? 2 : dtype == ATTUNE_I8 ? 4 : dtype == ATTUNE_I4 ? 8 : 1;
}

static void place(mha_packed_section *s, attune_dtype w_dtype, int64_t w_group, int64_t *end) {
    s->exists = true;
    s->num_groups = ceil_div(s->columns, s->group_columns);
    s->panels = whole_tiles(s->group_columns) / MHA_PANEL;
    s->inputs = inputs_of_row(w_dtype);
    s->unit = w_group ? 1 : s->inputs; /* quantised values have groups */
    s->group = w_group;
    s->scale_rows = s->group ? ceil_div(ceil_div(s->depth, s->group), 2) : 0;
    const int64_t depth = s->group ? ceil_div(s->depth, s->group) * s->group : s->depth;
    s->rows = 1 + s->scale_rows + ceil_div(depth, s->inputs);
    s->offset = *end;
    *end += s->num_groups * s->panels * mha_packed_panel(s);
}

static void place_heads(mha_packed_section *s, const attune_problem *p, int64_t depth, int64_t heads, int64_t dim,
                        int64_t *end) {
    s->depth = depth;
    s->columns = heads * dim;
    s->heads = heads_of_group(p, heads, dim);
    s->group_columns = s->heads * dim;
    place(s, p->w_dtype, p->w_group, end);
}

static void place_output(mha_packed_section *s, const attune_problem *p, int64_t *end) {
    const int64_t tiles = ceil_div(p->out_dim, MHA_PANEL_TILE);
    s->depth = p->num_heads * p->head_dim_v;
    s->columns = p->out_dim;
    s->group_columns = units_of_group(tiles, tiles, MHA_PANEL_TILE) * MHA_PANEL_TILE;
    if (s->group_columns > s->columns) s->group_columns = s->columns;
    place(s, p->w_dtype, p->w_group, end);
}

void mha_packed_place(mha_packed_section *s, attune_dtype w_dtype, int64_t depth, int64_t units, int64_t width,
                      int64_t *end) {
    *s = (mha_packed_section){.depth = depth, .columns = units * width};
    s->heads = units_of_group(units, units, width);
    s->group_columns = s->heads * width;
    place(s, w_dtype, 0, end);
}

size_t mha_weight_bytes(attune_dtype dtype) {
    return dtype == ATTUNE_F64 ? 8 : dtype == ATTUNE_F16 || dtype == ATTUNE_BF16 ? 2 : 4;
}

void mha_packed_layout_of(const attune_problem *p, mha_packed_layout *layout) {
    memset(layout, 0, sizeof *layout);
    mha_packed_section *s = layout->section;
    int64_t end = MHA_PACKED_HEADER / (int64_t)mha_weight_bytes(p->w_dtype);
    if (!p->no_out_projection) place_output(&s[MHA_PROJECT_OUT], p, &end);
    place_heads(&s[MHA_PROJECT_Q], p, p->embed_dim, p->num_heads, p->head_dim, &end);
    if (!p->kv_projected) {
        const int64_t v_depth = p->v_embed_dim ? p->v_embed_dim : p->kv_embed_dim;
        place_heads(&s[MHA_PROJECT_K], p, p->kv_embed_dim, p->num_kv_heads, p->head_dim, &end);
        if (!p->v_in_k) place_heads(&s[MHA_PROJECT_V], p, v_depth, p->num_kv_heads, p->head_dim_v, &end);
    }
    layout->elements = end;
}

mha_packed_id mha_packed_id_of(const attune_problem *p, const mha_packed_layout *layout) {
    enum { NUMBERS = 8 };
    int64_t numbers[1 + MHA_NUM_PROJECTIONS * NUMBERS] = {p->w_dtype | p->w_group << 8};
    for (int i = 0; i < MHA_NUM_PROJECTIONS; i++) {
        const mha_packed_section *s = &layout->section[i];
        const int64_t section[NUMBERS] = {s->exists,        s->depth,      s->columns, s->heads,
                                          s->group_columns, s->num_groups, s->panels,  s->offset};
        memcpy(&numbers[1 + i * NUMBERS], section, sizeof section);
    }
    const XXH128_hash_t hash = XXH3_128bits(numbers, sizeof numbers);
    return (mha_packed_id){hash.low64, hash.high64};
}

mha_packed_id mha_packed_id_without_kv(const attune_problem *p, const mha_packed_layout *layout) {
    mha_packed_layout part = *layout;
    memset(&part.section[MHA_PROJECT_K], 0, sizeof *part.section);
    memset(&part.section[MHA_PROJECT_V], 0, sizeof *part.section);
    return mha_packed_id_of(p, &part);
}
