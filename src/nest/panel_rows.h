/* Caches in panels: a panel has ATTUNE_PANEL_TOKENS tokens of a KV head, in the order in which products load them
 * (docs/panels.md). A unit is four bytes: two columns of K, or two tokens of V, of bf16; four of int8. A byte of int4
 * values has two columns, and is laid out as a byte of int8.
 *
 *     K   [head_dim / unit][token of the panel][unit]
 *     V   [token of the panel / unit][head_dim_v][unit]
 *
 * For a token in a panel, mha_row has the panel as its last index, and the token's place in the panel as `first`. */
#ifndef ATTUNE_NEST_PANEL_ROWS_H
#define ATTUNE_NEST_PANEL_ROWS_H

#include "nest/rows.h"

/* Whether the buffer is the caller's K or V, in panels. */
bool mha_is_paneled(const mha_context *c, const ir_buffer *buffer);
int64_t mha_unit_of(const ir_buffer *buffer);
/* Elements of a token: columns, or bytes of int4. */
int64_t mha_panel_columns(const mha_context *c, const ir_buffer *buffer);

/* The row of token `token` of a buffer of panels, whose other indices are outer[2]. */
mha_row mha_panel_row(const mha_context *c, const ir_buffer *buffer, const ir_expr *const outer[2],
                      const ir_expr *token);

/* `lanes` elements of a token from `column` on, which must be contiguous: for K at most a unit; for V more than one
 * only if a unit is one token. */
const ir_access *mha_panel_access(const mha_context *c, const mha_row *row, const ir_expr *column, int lanes);

/* Unit `unit` of the columns of K, for the `tokens` tokens from the row's on. */
const ir_access *mha_panel_keys(const mha_context *c, const mha_row *row, const ir_expr *unit, int tokens);

/* A unit of tokens of V: its panel, and the unit's first element in it. */
typedef struct mha_panel_unit {
    mha_row row;
    const ir_expr *at;
} mha_panel_unit;
/* The unit with the row's token; and the unit `units` after it in the same panel. */
mha_panel_unit mha_panel_unit_of(const mha_context *c, const mha_row *row);
mha_panel_unit mha_panel_unit_after(const mha_context *c, const mha_panel_unit *first, int64_t units);
/* `columns` columns of a unit from `column` on. The first `count` exist; the others are 0. */
const ir_expr *mha_load_panel_values(const mha_context *c, const mha_panel_unit *unit, const ir_expr *column,
                                     int columns, int64_t count);

/* int8 values: byte `byte` of each unit, as c->elem. */
const ir_expr *mha_byte_of_units(const mha_context *c, const ir_expr *units, int byte);
/* int4 values: one half of that byte, as c->elem. */
const ir_expr *mha_nibble_of_units(const mha_context *c, const ir_expr *units, int byte, int half);

/* `lanes` bytes of a token's packed row, each in the low byte of an i32 whose other bytes may be anything. */
const ir_expr *mha_load_panel_bytes(const mha_context *c, const mha_row *row, const ir_expr *byte, int lanes);

/* Columns of a token that is not packed, as c->elem. For V, the first `count` are loaded; the others are 0. */
const ir_expr *mha_load_panel_row(const mha_context *c, const mha_row *row, const ir_expr *column, int lanes,
                                  int64_t count);

/* For prefetching: an element chosen so that all tokens and columns together visit all lines of a panel. The token may
 * be beyond the last one. */
const ir_access *mha_panel_line(const mha_context *c, const ir_buffer *buffer, const ir_expr *const index[3],
                                const ir_expr *column);

/* For prefetching: an element of the panel `panels` after the row's, which may be beyond the last one. */
const ir_access *mha_panel_ahead(const mha_context *c, const mha_row *row, int64_t panels, const ir_expr *element);

/* Stores a contiguous row of the same elements as a token. */
void mha_store_panel_row(const mha_context *c, const mha_row *source, const mha_row *target, int64_t columns);

#endif
