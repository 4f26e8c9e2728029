/* Packed weights of a block: where each element of each projection lies in the blob that kernels read.
 *
 * A blob is a header of MHA_PACKED_HEADER bytes, then the sections of the projections that the problem has: out, q, k,
 * v, all in elements of w_dtype. So the blob of a problem begins with the blob of the same problem with kv_projected.
 *
 * The columns (outputs) of a projection are cut into column groups, each of whole heads where the columns are heads,
 * and each padded with zeros to whole tiles of 64 columns. A group is a row of panels of 16 columns; a panel is the
 * bias of its columns (0 where there is none), then a row for each input, or for each two inputs where weights are
 * bf16:
 *
 *     blob[offset + ((group * panels + panel) * rows + row) * 16 + column]                row 0: bias, row k + 1: input
 * k blob[offset + ((group * panels + panel) * rows + row) * 32 + 2 * column + half]     bf16, row k / 2 + 1: input k
 *
 * with half = k % 2. The other half of a last input that has no partner is 0. The bias is the half 1 of row 0 and half
 * 0 is 0: row 0 holds the biases as f32.
 *
 * Codes (w_dtype = i8 or i4) come in words of 32 bits, which are the blob's elements: a row of a panel has a word of
 * each column. Row 0 holds the biases as f32, then come scales, then quantised values; a last group of inputs that is
 * not full is filled with quantised zeros:
 *
 *     row 1 + g / 2                      scales of groups g of inputs, f16, in the half g % 2 of the word
 *     row 1 + scale_rows + k / 4         i8: the code of input k, in the byte k % 4
 *     row 1 + scale_rows + k / 8         i4: the code of input k, in the byte k % 4, its half k / 4 % 2
 *
 * So a kernel reads each panel from front to back, whatever its vectors. 16 elements of f32 are a cache line, and so
 * are 16 pairs of bf16. Instructions for dot products take such pairs as they are; other kernels take them apart by a
 * shift and a mask. Nothing here depends on the instruction set. */
#ifndef ATTUNE_PROBLEM_WEIGHTS_LAYOUT_H
#define ATTUNE_PROBLEM_WEIGHTS_LAYOUT_H

#include "problem/mha.h"

enum { MHA_PACKED_HEADER = 64, MHA_PANEL = 16, MHA_PANEL_TILE = 64 };

typedef enum mha_projection {
    MHA_PROJECT_Q,
    MHA_PROJECT_K,
    MHA_PROJECT_V,
    MHA_PROJECT_OUT,
    MHA_NUM_PROJECTIONS
} mha_projection;

typedef struct mha_packed_section {
    bool exists;
    int64_t depth;         /* inputs */
    int64_t columns;       /* outputs that count */
    int64_t heads;         /* of a full group; 0: columns are no heads (the output projection) */
    int64_t group_columns; /* columns that count of a full group; the last one may have fewer */
    int64_t num_groups;
    int64_t panels; /* of each group, the last one too; a multiple of 4 */
    int64_t inputs; /* that share a row of a panel: 1; bf16: 2; i8: 4; i4: 8 */
    int64_t unit;   /* elements of a column in a row: the inputs, or a word of quantised values */
    int64_t group;  /* inputs that share a scale; 0: there are no scales */
    int64_t scale_rows;
    int64_t rows;   /* of a panel, those of the bias and of scales included */
    int64_t offset; /* of the section, in elements from the start of the blob, header included */
} mha_packed_section;

/* Elements of a row of a panel, and of a panel. */
static inline int64_t mha_packed_row(const mha_packed_section *s) { return s->unit * MHA_PANEL; }
static inline int64_t mha_packed_panel(const mha_packed_section *s) { return s->rows * mha_packed_row(s); }

typedef struct mha_packed_layout {
    mha_packed_section section[MHA_NUM_PROJECTIONS];
    int64_t elements; /* of the whole blob, header included: its bytes / size of w_dtype; a multiple of 64 bytes */
} mha_packed_layout;

/* Layout for a canonical problem with embed_dim. q, k and v have as many heads in a group as num_kv_heads and head_dim
 * (v: head_dim_v) suggest: the same number, unless one of them would be padded much. */
void mha_packed_layout_of(const attune_problem *canonical, mha_packed_layout *layout);

/* A section of one matrix that is no part of a blob of attention, at element *end, which moves behind it. Columns of a
 * unit (a head) are not parted among groups: `units` of `width` columns. */
void mha_packed_place(mha_packed_section *s, attune_dtype w_dtype, int64_t depth, int64_t units, int64_t width,
                      int64_t *end);

/* The header holds this identity of layout and dtype (XXH3-128 of the sections' numbers); blobs of problems that can
 * share one have the same. Beside it stands that of the layout without k and v. */
typedef struct mha_packed_id {
    uint64_t low, high;
} mha_packed_id;
mha_packed_id mha_packed_id_of(const attune_problem *canonical, const mha_packed_layout *layout);
/* The identity that the same problem's layout has with kv_projected. */
mha_packed_id mha_packed_id_without_kv(const attune_problem *canonical, const mha_packed_layout *layout);

size_t mha_weight_bytes(attune_dtype dtype); /* of an element of the blob: one weight, or a word of quantised values */

#endif
