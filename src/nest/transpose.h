/* Rearranges lanes of several vectors: transposes, concatenations and sums over lanes. Sums have a fixed order, so
 * their bits are always the same. */
#ifndef ATTUNE_NEST_TRANSPOSE_H
#define ATTUNE_NEST_TRANSPOSE_H

#include "ir/build.h"

/* Columns that one step transposes, a quarter: the 4 lanes within which unpack instructions work. A step of `lanes`
 * columns would be no faster where it matters, and takes LLVM twice as long to compile. */
static inline int mha_quarter(int lanes) { return lanes < 4 ? lanes : 4; }

/* Interleaves groups of `width` lanes of x and y within each quarter, as unpcklps (1) and unpcklpd (2) do: *x becomes
 * the lower halves of both alternately, *y the upper halves. */
void mha_unpack(ir_builder *b, int lanes, int width, const ir_expr **x, const ir_expr **y);

/* Transposes each square of quarter x quarter lanes in rows[quarter]. */
void mha_transpose_quarters(ir_builder *b, int lanes, const ir_expr **rows);

/* Concatenates parts[0], parts[1], …: `num` (a power of two) vectors of part_lanes lanes, in a balanced tree. */
const ir_expr *mha_concat(ir_builder *b, const ir_expr *const *parts, int num, int part_lanes);

/* `count` lanes of x from `first` on. */
const ir_expr *mha_lanes_of(ir_builder *b, const ir_expr *x, int first, int count);

/* A vector of `count` lanes, at most `lanes`, whose lane i is the sum of all lanes of x[i], of `lanes` lanes each; both
 * are powers of two. x[] is overwritten. */
const ir_expr *mha_sum_lanes(ir_builder *b, int lanes, int count, const ir_expr **x);

/* The same for vectors of parts of `part` lanes, each of which has a sum of its own: lane p * part + i of the result is
 * the sum of part p of x[i]; count is at most `part`. */
const ir_expr *mha_sum_parts(ir_builder *b, int lanes, int part, int count, const ir_expr **x);

#endif
