/* How attention is cut into tiles and tasks: rows of one KV head by its keys. */
#ifndef ATTUNE_TOOLS_EXPLAIN_TILES_H
#define ATTUNE_TOOLS_EXPLAIN_TILES_H

#include "schedule_fields.h"

#include <attune.h>
#include <jansson.h>
#include <stdbool.h>

typedef struct tile_cut {
    int64_t rows, keys;   /* rows: queries of all heads that share the KV head, those of one query beside each other */
    int64_t stripe, tile; /* rows and keys of one of them; the last ones may have less */
    int64_t stripes, tiles, stripes_in_task, tiles_in_task;
    bool has_more; /* a task of a large call has more stripes (MHA_LONG_KEYS) */
} tile_cut;

/* Fills in *cut. The problem is canonical. is_open: its kernel leaves both lengths open, and each
 * sequence may have its own. false if they are open here, or 0. */
bool tile_cut_of(const attune_problem *p, const mha_schedule *s, bool is_open, tile_cut *cut);

/* Prints a line for stripes that attend to the same tiles, with a letter for each tile. */
void tile_print(const attune_problem *p, const tile_cut *cut, bool lanes_along_rows);

/* A new reference; NULL when out of memory. */
json_t *tile_json(const attune_problem *p, const tile_cut *cut);

#endif
