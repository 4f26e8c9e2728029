/* What the parts of the kernel of the index are written with. */
#ifndef ATTUNE_INDEX_WRITER_H
#define ATTUNE_INDEX_WRITER_H

#include <attune.h>

#include <stdbool.h>
#include <string.h>

enum { TILE = 48 }; /* keys: a multiple of each choice of `keys`, and of the lanes */

typedef struct writer {
    attune_ir_writer *w;
    long long heads, dim, ids, page;
    char dtype[8], w_dtype[8];
    int causal, scores, rows;
    int lanes, has_fma, has_dot2;
    int pack;                /* numbers of a row that are one unit: a pair of bf16 (of f8 as such), four of i8 */
    long long units, padded; /* of a row, and what scratch has of them */
    int vectors, keys;       /* of a register tile */
    long long all_heads;     /* with those that fill the last tile */
    long long capacity;      /* of a list */
    int names;
    const char *phase; /* what the names of a phase end with */
} writer;

#define PUT(...) attune_ir_print(x->w, __VA_ARGS__)

static inline bool idx_is_i8(const writer *x) { return !strcmp(x->dtype, "i8"); }

static inline bool idx_is_f8(const writer *x) { return !strcmp(x->dtype, "f8"); }

static inline bool idx_has_scales(const writer *x) { return idx_is_i8(x) || idx_is_f8(x); }

static inline bool idx_is_f32(const char *dtype) { return !strcmp(dtype, "f32"); }

static inline const char *idx_cast(const char *dtype) { return idx_is_f32(dtype) ? "" : "cast.f32"; }

static inline const char *idx_unit_type(const writer *x) { return x->pack > 1 ? "i32" : "f32"; }

/* Keys that products take as they are are multiplied where they lie: a copy of a tile of f32, beside q, would not fit
 * into the first cache. */
static inline bool idx_is_direct(const writer *x) {
    return idx_is_f32(x->dtype) || (x->pack == 2 && !idx_is_f8(x) && x->dim % 2 == 0);
}

/* Of query r: its token, its row of the output, and the keys that it sees. */
void idx_put_row(const writer *x, const char *suffix);

/* Whether the choice of a query needs its scores. */
void idx_put_is_long(const writer *x, const char *suffix);

/* ---- Products: kernel_products.c ---- */

/* The lists are empty, and the queries packed. */
void idx_put_begin(const writer *x);

/* The tile's keys, in scratch. Past the end the last key is repeated. */
void idx_put_stage(const writer *x);

/* Scores of query r, in lanes that are still to be added up. */
void idx_put_products(const writer *x);

/* ---- Lists: kernel_list.c ---- */

/* Appends a key to list r if its rank is above the least. */
void idx_put_append(writer *x, const char *r, const char *rank, const char *key);

/* Appends those keys of the tile that may be among the best. */
void idx_put_selection(writer *x);

/* Leaves the best of list r, which is longer, and sets the least rank that is of interest from now on. */
void idx_put_compact(writer *x, const char *r);

/* Row `row` of the ids (and scores), from list r; -1 fills it up. */
void idx_put_list(writer *x, const char *r, const char *row);

/* What a task leaves behind: the output, or a chunk's lists for the second phase. */
void idx_put_end(writer *x);

#endif
