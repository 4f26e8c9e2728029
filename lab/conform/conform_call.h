/* A conformance case as a call of the library: which problem it is, and where its tensors lie. */
#ifndef ATTUNE_TOOLS_CONFORM_CALL_H
#define ATTUNE_TOOLS_CONFORM_CALL_H

#include "conform/conform_case.h"

enum { CONFORM_MAX_OWNED = 2 };

typedef struct conform_call {
    const conform_case *c;
    attune_problem problem;
    attune_arguments arguments; /* point into the case, `outputs` and `owned` */
    attune_linear_desc linear;  /* of LinearAttention, in place of problem and arguments */
    attune_linear_step step;
    npy_array outputs[CONFORM_MAX_OUTPUTS]; /* the library writes them; data NULL: not wanted */
    npy_array owned[CONFORM_MAX_OWNED];     /* inputs in a form that the library takes */
    int num_owned;
    char *message;
} conform_call;

/* Checks the case against its operator's specification and makes it a call. `message` (which the call keeps) is one
 * sentence about what is wrong. Free it in either case. */
bool conform_call_create(const conform_case *c, conform_call *call, char message[ATTUNE_MESSAGE_BYTES]);
void conform_call_free(conform_call *call);

/* Computes the outputs afresh; false after a message. */
bool conform_call_run(conform_call *call, attune_context *context, attune_engine engine);

/* ---- What the operators' own files share ---- */

bool conform_attention(conform_call *call);         /* conform_attention.c */
void conform_attention_prepare(conform_call *call); /* before each run */
bool conform_rotary(conform_call *call);            /* conform_rotary.c */
bool conform_problem(conform_call *call);           /* conform_problem.c */
bool conform_linear(conform_call *call);            /* conform_linear.c */
attune_status conform_linear_run(conform_call *call, attune_context *context, attune_engine engine);

/* An array [batch, heads, tokens, columns], or [batch, tokens, heads * columns] in strides of that order. */
typedef struct conform_view {
    int64_t dims[4], strides[4];
} conform_view;

bool conform_fail(conform_call *call, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The attune_dtype of an array of f16, bf16, f32 or f64; false if it is of another type. */
bool conform_dtype_of(npy_type type, attune_dtype *dtype);

/* The same of an input, which fails if it is of another type. */
bool conform_float_type(conform_call *call, int input, attune_dtype *dtype);

/* Views an input; `heads` counts if it has three dimensions. Every dimension but tokens must be at least 1. */
bool conform_view_input(conform_call *call, int input, int64_t heads, conform_view *view);

/* Fails unless the input has exactly this shape. */
bool conform_expect_shape(conform_call *call, int input, size_t rank, const int64_t *dims);
bool conform_expect_type(conform_call *call, int input, npy_type type);

/* Creates an output for this view; packed: as [batch, tokens, heads * columns], and the strides become those. */
bool conform_create_output(conform_call *call, int output, npy_type type, bool packed, conform_view *view);

/* An array that lives as long as the call; NULL after a message. */
npy_array *conform_own(conform_call *call, npy_type type, size_t rank, const int64_t *dims);

/* An input of whole numbers from 0 to `high` as i32; NULL after a message. */
const int32_t *conform_indices(conform_call *call, int input, int64_t high);

#endif
