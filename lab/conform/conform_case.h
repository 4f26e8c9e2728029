/* A conformance case: one node of an ONNX operator, or a problem, with its inputs and the outputs it must have. A
 * folder holds it as case.json  {"op": "Attention", "attributes": {"is_causal": 1}, "inputs": {"Q": "Q.npy", …},
 *                 "outputs": {"Y": "Y.npy", …}, "rtol": 1e-3, "atol": 1e-7}
 *     *.npy      the arrays it names
 * or, with the names of the problem's tensors,
 *     case.json  {"op": "Problem", "problem": "num_heads=2,…", "attributes": {}, "inputs": {"q": "q.npy", …}, …}
 * Names are those of the operator's specification. What is not understood is refused, never passed over: a case that
 * passes has been computed in full. */
#ifndef ATTUNE_TOOLS_CONFORM_CASE_H
#define ATTUNE_TOOLS_CONFORM_CASE_H

#include "common/npy.h"

typedef enum conform_op {
    CONFORM_ATTENTION,
    CONFORM_ROTARY_EMBEDDING,
    CONFORM_LINEAR_ATTENTION,
    CONFORM_PROBLEM,
    CONFORM_OP_COUNT
} conform_op;

/* Places of each operator's inputs, outputs and attributes in the arrays of a conform_case. */
enum { ATTENTION_Q, ATTENTION_K, ATTENTION_V, ATTENTION_MASK, ATTENTION_PAST_KEY, ATTENTION_PAST_VALUE };
enum { ATTENTION_NONPAD_KV_SEQLEN = 6 };
enum { PROBLEM_OUT, PROBLEM_LSE, PROBLEM_WEIGHTS };
enum { CONFORM_MAX_INPUTS = 16 };
enum { ATTENTION_Y, ATTENTION_PRESENT_KEY, ATTENTION_PRESENT_VALUE, ATTENTION_QK_MATMUL, CONFORM_MAX_OUTPUTS };
enum {
    ATTENTION_IS_CAUSAL,
    ATTENTION_KV_NUM_HEADS,
    ATTENTION_Q_NUM_HEADS,
    ATTENTION_QK_MATMUL_MODE,
    ATTENTION_SCALE,
    ATTENTION_SOFTCAP,
    ATTENTION_SOFTMAX_PRECISION,
    ATTENTION_LEFT_WINDOW,
    ATTENTION_RIGHT_WINDOW,
    CONFORM_MAX_ATTRIBUTES
};
enum { ROTARY_X, ROTARY_COS, ROTARY_SIN, ROTARY_POSITION_IDS };
enum { ROTARY_Y };
enum { ROTARY_INTERLEAVED, ROTARY_NUM_HEADS, ROTARY_DIM };
enum { LINEAR_QUERY, LINEAR_KEY, LINEAR_VALUE, LINEAR_PAST_STATE, LINEAR_DECAY, LINEAR_BETA };
enum { LINEAR_OUTPUT, LINEAR_PRESENT_STATE };
enum { LINEAR_Q_NUM_HEADS, LINEAR_KV_NUM_HEADS, LINEAR_SCALE, LINEAR_UPDATE_RULE, LINEAR_CHUNK_SIZE };

/* The value of an attribute, which is the operator's default if the case does not give it. */
typedef struct conform_attribute {
    bool is_given;
    int64_t integer; /* of the kind that the attribute has; of a word its number */
    double real;
} conform_attribute;

typedef struct conform_case {
    conform_op op;
    char *problem; /* of CONFORM_PROBLEM: its text, and the names of its inputs */
    char *input_names[CONFORM_MAX_INPUTS];
    conform_attribute attributes[CONFORM_MAX_ATTRIBUTES];
    npy_array inputs[CONFORM_MAX_INPUTS]; /* data NULL: absent */
    npy_array expected[CONFORM_MAX_OUTPUTS];
    double rtol, atol;
} conform_case;

const char *conform_input_name(const conform_case *c, int input);
const char *conform_output_name(conform_op op, int output);

/* Reads a case.json and the arrays beside it; `message` is one sentence about what is wrong. Free it in either case. */
bool conform_case_read(const char *json_path, conform_case *c, char message[ATTUNE_MESSAGE_BYTES]);
void conform_case_free(conform_case *c);

/* Whether every expected output was computed: shapes and types equal, elements as numpy.allclose has it with
 * equal_nan, what is computed in bfloat16 with an rtol of 2^-6 at least. The message tells of the first output that
 * differs, and there of the element that is off the most. */
bool conform_compare(const conform_case *c, const npy_array computed[CONFORM_MAX_OUTPUTS],
                     char message[ATTUNE_MESSAGE_BYTES]);

#endif
