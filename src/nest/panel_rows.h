/* Caches in panels: ATTUNE_PANEL_TOKENS tokens of a KV head lie together, in the order in which products load them.
 * docs/panels.md has the format. A unit is what lies in four bytes: of bf16 two columns of K, or two tokens of V; of i8
 * four. int4 values are bytes, two columns each, which lie as int8 values do.
 *
 *     K   [head_dim / unit][token of the panel][unit]
 *     V   [token of the panel / unit][head_dim_v][unit]
 *
 * The row of a token (mha_row) has the panel as its last index, and the token's place in it as `first`. */
#ifndef ATTUNE_NEST_PANEL_ROWS_H
#define ATTUNE_NEST_PANEL_ROWS_H

#include "nest/rows.h"

/* Whether the buffer is the caller's K or V, in panels. */
bool mha_is_paneled(const mha_context *c, const ir_buffer *buffer);
int64_t mha_unit_of(const ir_buffer *buffer);
/* Elements of a token: columns, or bytes of i4. */
int64_t mha_panel_columns(const mha_context *c, const ir_buffer *buffer);

/* The row of token `token` of a buffer of panels, whose other indices are outer[2]. */
mha_row mha_panel_row(const mha_context *c, const ir_buffer *buffer, const ir_expr *const outer[2],
                      const ir_expr *token);

/* `lanes` elements of a token from `column` on, which must lie side by side: of K a unit at most, of V more than one
 * column only if tokens are units. */
const ir_access *mha_panel_access(const mha_context *c, const mha_row *row, const ir_expr *column, int lanes);

/* Number `unit` of K's columns in units, of the `tokens` tokens from the row's on. */
const ir_access *mha_panel_keys(const mha_context *c, const mha_row *row, const ir_expr *unit, int tokens);

/* A unit of V's tokens: its panel, and the element with which it begins there. */
typedef struct mha_panel_unit {
    mha_row row;
    const ir_expr *at;
} mha_panel_unit;
/* That of the row's token, and the one that is `units` further on in the same panel. */
mha_panel_unit mha_panel_unit_of(const mha_context *c, const mha_row *row);
mha_panel_unit mha_panel_unit_after(const mha_context *c, const mha_panel_unit *first, int64_t units);
/* `columns` columns of it from `column` on, the first `count` of which exist; the others are 0. */
const ir_expr *mha_load_panel_values(const mha_context *c, const mha_panel_unit *unit, const ir_expr *column,
                                     int columns, int64_t count);

/* int8 values: number `byte` of each of these units, as c->elem. */
const ir_expr *mha_byte_of_units(const mha_context *c, const ir_expr *units, int byte);
/* int4 values: that in one half of the byte, as c->elem. */
const ir_expr *mha_nibble_of_units(const mha_context *c, const ir_expr *units, int byte, int half);

/* `lanes` bytes of a token's packed row, each at the lower end of an i32, with anything above it. */
const ir_expr *mha_load_panel_bytes(const mha_context *c, const mha_row *row, const ir_expr *byte, int lanes);

/* Columns of a token, which is not packed, as c->elem; of V the first `count` of them are loaded, the others are 0. */
const ir_expr *mha_load_panel_row(const mha_context *c, const mha_row *row, const ir_expr *column, int lanes,
                                  int64_t count);

/* An element such that tokens, and columns of each, visit all of a panel: for prefetching, also beyond the last. */
const ir_access *mha_panel_line(const mha_context *c, const ir_buffer *buffer, const ir_expr *const index[3],
                                const ir_expr *column);

/* For prefetching: an element of the panel that is `panels` after the row's, also beyond the last. */
const ir_access *mha_panel_ahead(const mha_context *c, const mha_row *row, int64_t panels, const ir_expr *element);

/* A row of the same elements becomes that of a token. */
void mha_store_panel_row(const mha_context *c, const mha_row *source, const mha_row *target, int64_t columns);

#endif
