/* What the parts of the kernel of linear attention are written with. */
#ifndef ATTUNE_LINEAR_WRITER_H
#define ATTUNE_LINEAR_WRITER_H

#include "described/ir_text.h"

#include <attune.h>

#include <stdbool.h>
#include <string.h>

typedef struct writer {
    attune_ir_writer *w;
    long long least_heads, dim, dim_v; /* of V; numbers of heads are arguments */
    const char *dtype, *decay_dtype, *beta_dtype, *state;
    int rule, decay, beta, which, gate;
    bool is_any; /* head dims are arguments; dim is the most */
    double out_norm;
    int lanes, vectors, blocks, place, has_fma, has_many_registers;
    long long group; /* heads of q for each state, at least 1 */
    int at_once;     /* of them, in the pass that updates the state */
    int has_delta, names;
    const char *begin; /* the token at which they are computed one after the other */
    int first, now;    /* heads of q at hand, of the group */
} writer;

#define PUT(...) attune_ir_print(x->w, __VA_ARGS__)

static inline bool lin_is_f32(const char *dtype) { return !strcmp(dtype, "f32"); }
static inline const char *lin_cast(const char *dtype) { return lin_is_f32(dtype) ? "" : "cast.f32"; }

static inline bool lin_has_finish(const writer *x) { return x->out_norm > 0 || x->gate; }

static inline bool lin_has_whole_vectors(const writer *x) {
    return x->is_any || x->dim_v % (x->blocks * x->vectors * x->lanes) == 0;
}

/* Defines the columns of the task, vector by vector. Of chunks a task has several blocks of columns, and this begins a
 * loop over them. */
void lin_open_columns(writer *x);
void lin_close_columns(const writer *x);

/* Names the first column of vector v of those that were opened last, and has a mask for it (" ? (...)") unless all
 * vectors are whole; valid until the next call. */
const char *lin_column(const writer *x, int v);
const char *lin_live(const writer *x, int v);

/* Of row `row`, an access without its last index: `to` gets it times `factor`, a scalar (NULL: 1), and times exp of the
 * decays of a key's columns at `decay` (NULL: not). Zeros fill the last vector. `ahead`: what is to be read soon. */
void lin_put_row(writer *x, const char *row, const char *to, const char *factor, const char *decay, const char *ahead);

/* The decays of a key's columns. */
void lin_put_decays(writer *x, const char *decay, const char *to);

/* Chunks of tokens from `first` on, as many as end before `end`, and the memory that they need. */
void lin_put_chunk_memory(const writer *x);
void lin_put_chunks(writer *x);

/* let to = the sum of the lanes of the vector `from`. */
void lin_put_lane_sum(const writer *x, const char *from, const char *to);

/* The phase that norms rows of out, and multiplies them by their gates. */
void lin_put_finish(const writer *x);

#endif
