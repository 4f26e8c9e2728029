/* Lanes of several vectors rearranged: transposes, concatenations and sums, in orders that are always the same. */
#ifndef ATTUNE_NEST_TRANSPOSE_H
#define ATTUNE_NEST_TRANSPOSE_H

#include "ir/build.h"

/* Columns that one step transposes: those of a quarter, the 4 lanes within which unpack instructions work. A step of
 * `lanes` columns is no faster where it counts and takes LLVM twice as long to compile. */
static inline int mha_quarter(int lanes) { return lanes < 4 ? lanes : 4; }

/* Rows x and y trade groups of `width` lanes within each quarter, as unpcklps (1) and unpcklpd (2) do: *x becomes the
 * lower halves of both alternately, *y the upper ones. */
void mha_unpack(ir_builder *b, int lanes, int width, const ir_expr **x, const ir_expr **y);

/* Transposes each square of quarter x quarter lanes in rows[quarter]. */
void mha_transpose_quarters(ir_builder *b, int lanes, const ir_expr **rows);

/* The vector of parts[0], parts[1], …, `num` (a power of two) of part_lanes lanes; a balanced tree of concatenations.
 */
const ir_expr *mha_join(ir_builder *b, const ir_expr *const *parts, int num, int part_lanes);

/* `count` lanes of x from `first` on. */
const ir_expr *mha_lanes_of(ir_builder *b, const ir_expr *x, int first, int count);

/* A vector of `count` lanes, at most `lanes`, whose lane i is the sum of all lanes of x[i], of `lanes` lanes each; both
 * are powers of two. x[] is overwritten. */
const ir_expr *mha_sum_lanes(ir_builder *b, int lanes, int count, const ir_expr **x);

/* The same where each vector is made of parts of `part` lanes, which are added up by themselves: lane p * part + i of
 * the result is the sum of part p of x[i]; count is at most `part`. */
const ir_expr *mha_sum_parts(ir_builder *b, int lanes, int part, int count, const ir_expr **x);

#endif
