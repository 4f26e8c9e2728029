/* The state with which the parts of the index kernel are written. */
#ifndef ATTUNE_INDEX_WRITER_H
#define ATTUNE_INDEX_WRITER_H

#include "described/ir_text.h"

#include <attune.h>

#include <stdbool.h>
#include <string.h>

enum { TILE = 48 }; /* keys: a multiple of each choice of `keys`, and of the lanes */

typedef struct writer {
    attune_ir_writer *w;
    /* Of IDX_ANY heads and ids are the most that there may be; page is not 0. */
    long long heads, dim, ids, page;
    const char *num_heads, *num_ids, *page_size; /* expressions of type idx: numbers, or arguments of IDX_ANY */
    char numbers[3][24];
    const char *dtype, *w_dtype;
    int is_any, causal, scores, rows;
    int lanes, has_fma, has_dot2;
    int pack;                /* elements of a row in a unit: 2 of bf16 (to which f8 is converted), 4 of i8 */
    long long units, padded; /* units of a row, and of a row in scratch */
    int vectors, keys;       /* of a register tile */
    long long all_heads;     /* padded to whole register tiles */
    long long capacity;      /* of a list */
    int names;
    const char *phase; /* suffix of a phase's names */
} writer;

#define PUT(...) attune_ir_print(x->w, __VA_ARGS__)

static inline bool idx_is_i8(const writer *x) { return !strcmp(x->dtype, "i8"); }

static inline bool idx_is_f8(const writer *x) { return !strcmp(x->dtype, "f8"); }

static inline bool idx_has_scales(const writer *x) { return idx_is_i8(x) || idx_is_f8(x); }

static inline bool idx_is_f32(const char *dtype) { return !strcmp(dtype, "f32"); }

static inline const char *idx_cast(const char *dtype) { return idx_is_f32(dtype) ? "" : "cast.f32"; }

/* Whether some lanes have no head. */
static inline bool idx_pads_heads(const writer *x) { return x->is_any || x->all_heads != x->heads; }

static inline const char *idx_unit_type(const writer *x) { return x->pack > 1 ? "i32" : "f32"; }

/* Whether keys are read in place, as products need no other form: a copy of a tile of f32 would not fit into L1
 * together with q. */
static inline bool idx_is_direct(const writer *x) {
    return idx_is_f32(x->dtype) || (x->pack == 2 && !idx_is_f8(x) && x->dim % 2 == 0);
}

/* For query r: its token, its row of the output, and its number of visible keys. */
void idx_put_row(const writer *x, const char *suffix);

/* The number of ids as i32, in the current phase. */
void idx_put_ids(const writer *x);

/* Whether a query needs scores, as it has more visible keys than its list takes. */
void idx_put_is_long(const writer *x, const char *suffix);

/* ---- Products: kernel_products.c ---- */

/* Empties the lists, and packs the queries. */
void idx_put_begin(const writer *x);

/* Copies the tile's keys to scratch. Beyond the end, the last key is repeated. */
void idx_put_stage(const writer *x);

/* Scores of query r as partial sums in lanes. */
void idx_put_products(const writer *x);

/* ---- Lists: kernel_list.c ---- */

/* Appends a key to list r if its rank is above the threshold. */
void idx_put_append(writer *x, const char *r, const char *rank, const char *key);

/* Appends the keys of the tile that may be among the best. */
void idx_put_selection(writer *x);

/* Cuts list r to its best keys, and sets the threshold. */
void idx_put_compact(writer *x, const char *r);

/* Writes row `row` of the ids (and scores) from list r, padded with -1. */
void idx_put_list(writer *x, const char *r, const char *row);

/* Writes a task's results: the output, or a chunk's lists for the second phase. */
void idx_put_end(writer *x);

#endif
