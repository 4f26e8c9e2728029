/* The memory of one attention problem, and its text: what run, check and bench have in common. */
#ifndef ATTUNE_TOOLS_TENSORS_H
#define ATTUNE_TOOLS_TENSORS_H

#include "tool.h"

/* Reads and checks a problem given on the command line. An error message is printed on failure. */
bool problem_from_text(const char *text, attune_problem *problem);

/* Canonical text of a problem or a schedule; free it. NULL when out of memory. */
char *problem_text(const attune_problem *problem);
char *schedule_text(const attune_schedule *schedule);

/* The same problem with num_kv_heads, seq_kv, head_dim_v and all strides filled in. */
bool problem_resolve(const attune_problem *problem, attune_problem *resolved);

/* Bytes and storage of every tensor of a problem. Gaps that strides leave are part of the storage, so that a write
 * into one is seen. */
typedef struct tensors {
    attune_problem problem;                                 /* resolved */
    size_t q_count, k_count, v_count, out_count, lse_count; /* elements of storage */
    float *q, *k, *v, *out, *lse;                           /* lse is NULL when the problem has none */
} tensors;

/* Zeroed storage; an error message is printed on failure. */
bool tensors_create(tensors *t, const attune_problem *problem);
void tensors_free(tensors *t);

/* Arguments that point at the tensors. */
void tensors_arguments(const tensors *t, attune_arguments *arguments);

/* Runs the kernel, or the interpreter, over them. `schedule` is for the interpreter only; NULL: the chosen one. */
attune_status tensors_run(const tensors *t, attune_context *context, const attune_kernel *kernel,
                          const attune_schedule *schedule, attune_engine engine);

/* Overwrites out and lse with a pattern that no kernel computes. */
void tensors_clear_outputs(tensors *t);

/* Copies between a dense array [d0, d1, d2, d3] and strided storage. */
void tensors_scatter(float *storage, const int64_t strides[4], const int64_t dims[4], const float *dense);
void tensors_gather(float *dense, const int64_t strides[4], const int64_t dims[4], const float *storage);

/* What check and bench compute on. */
typedef enum input_kind {
    INPUT_ORDINARY = 0, /* normal distribution: what layers see */
    INPUT_LARGE,        /* scores of some tens: few keys take nearly all the weight */
    INPUT_OVERFLOW,     /* scores beyond what f32 can hold, or hold exactly */
    INPUT_DENORMAL,     /* denormals among ordinary numbers */
    INPUT_CONSTANT,     /* ties and zeros */
    INPUT_NONFINITE,    /* some NaN and infinities */
    INPUT_KIND_COUNT
} input_kind;
const char *input_kind_name(input_kind kind);
void tensors_fill(tensors *t, input_kind kind, uint64_t seed);

/* Equal bits; two NaN are equal. On a difference *where is the first element that differs. */
bool tensors_same_bits(const float *a, const float *b, size_t count, size_t *where);

#endif
