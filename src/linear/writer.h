/* What the parts of the kernel of linear attention are written with. */
#ifndef ATTUNE_LINEAR_WRITER_H
#define ATTUNE_LINEAR_WRITER_H

#include <attune.h>

#include <stdbool.h>
#include <string.h>

typedef struct writer {
    attune_ir_writer *w;
    long long heads, kv, k_heads, dim, dim_v, out_heads;
    char dtype[8], decay_dtype[8], beta_dtype[8], state[8];
    int rule, decay, beta, is_long, gate;
    double norm, out_norm;
    int lanes, vectors, has_fma;
    long long group; /* heads of q for each state, at least 1 */
    int at_once;     /* of them, in the pass that updates the state */
    int has_delta, names;
    int first, now; /* heads of q at hand, of the group */
} writer;

#define PUT(...) attune_ir_print(x->w, __VA_ARGS__)

static inline bool lin_is_f32(const char *dtype) { return !strcmp(dtype, "f32"); }
static inline const char *lin_cast(const char *dtype) { return lin_is_f32(dtype) ? "" : "cast.f32"; }

static inline bool lin_has_finish(const writer *x) { return x->out_norm > 0 || x->gate; }

/* let to = the sum of the lanes of the vector `from`. */
void lin_put_lane_sum(const writer *x, const char *from, const char *to);

/* The phase that norms rows of out, and multiplies them by their gates. */
void lin_put_finish(const writer *x);

#endif
