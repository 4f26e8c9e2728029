/* Traces the operands of attention. A value of a block is a tensor of sequences, rows, heads and columns in some order,
 * of which neighbours may share a dim. From a product with weights to attention, and on to the next product, there is a
 * chain of transposes and reshapes. This follows it; trace_proof.c proves that reshapes whose sizes depend on the call
 * do what they seem to do. */
#ifndef ATTUNE_ORT_TRACE_H
#define ATTUNE_ORT_TRACE_H

#include "ort/model/graph.h"

enum { ATOM_BATCH = 1, ATOM_ROW, ATOM_HEAD, ATOM_COLUMN };
enum { TRACE_MAX_NODES = 64, TRACE_MAX_VALUES = 64, TRACE_MAX_RESHAPES = 16 };

/* A dim: an atom, or two atoms that are adjacent in memory. */
typedef struct trace_axis {
    uint8_t count, atom[2];
} trace_axis;

typedef struct trace_view {
    int rank;
    trace_axis axes[4];
} trace_view;

/* From x through weights and bias to an operand of attention, or from attention through weights and bias. */
typedef struct trace_chain {
    const ort_value_info *weight, *bias;
    bool is_out_in;            /* weights are [out, in] */
    int64_t in, out;           /* columns before and after the product with weights; 0: unknown */
    int64_t heads, head_width; /* 0: unknown. For the output's chain: before the product */
    const ort_value_info *end; /* x, or the result */
    double scale;
} trace_chain;

/* A value on the chain: its view, and the width of all heads together. */
typedef struct trace_value {
    const ort_value_info *value;
    trace_view view;
    trace_chain *chain;
    bool is_in; /* it lies before the product */
} trace_value;

typedef struct trace_reshape {
    const ort_node *node;
    trace_value from, to;
} trace_reshape;

/* x and the result of an earlier block, which have the same batch and rows. */
typedef struct trace_pair {
    const ort_value_info *x, *result;
} trace_pair;

typedef struct trace {
    const ort_api *api;
    const trace_pair *pairs;
    size_t num_pairs;
    const ort_node *nodes[TRACE_MAX_NODES];
    trace_value values[TRACE_MAX_VALUES];
    trace_reshape reshapes[TRACE_MAX_RESHAPES];
    size_t num_nodes, num_values, num_reshapes;
    trace_chain q, k, v, result;
    const ort_value_info *x;
} trace;

trace_view trace_view_of(const char *text); /* "b r h c", "b r hc": one letter for an atom, a blank between dims */

bool trace_has(const trace *t, const ort_node *n);
bool trace_add(trace *t, const ort_node *n); /* false if there are too many */

/* Follows an operand back to x. False unless it comes from a product with constant weights. */
bool trace_back(trace *t, const ort_value_info *value, trace_view view, trace_chain *chain);

/* Follows the result of attention to the last value that belongs to the block: through the product with constant
 * weights and the bias if they are there, else to [batch, rows, heads and columns]. False if it is not even that. */
bool trace_on(trace *t, const ort_value_info *value, trace_view view, trace_chain *chain);

/* Whether a value is a product or quotient with a constant; *other is the other factor. */
bool trace_scaled(const ort_api *api, const ort_node *n, const ort_value_info **other, double *factor);

/* Finds the numbers of heads and columns of all chains; false if they contradict each other, or stay unknown. */
bool trace_settle(trace *t);

/* Whether all reshapes keep sequences, rows, heads and columns apart as their views say. */
bool trace_prove(trace *t);

#endif
