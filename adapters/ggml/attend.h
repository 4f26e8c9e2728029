/* One node, computed by attune. */
#ifndef ATTUNE_GGML_ATTEND_H
#define ATTUNE_GGML_ATTEND_H

#include "node.h"
#include "runner.h"

/* What the calls of one backend share. All zeros is an empty one. */
typedef struct attend_state {
    runner threads;
    struct attend_buffer {
        void *data;
        size_t bytes;
    } rows, table, list_bias, slopes, k_rows, v_rows, lens; /* they only grow */
    int64_t slopes_heads;
    float slopes_bias;
    uint16_t *distances_end; /* of ALiBi, see mask.h */
    int64_t num_distances;
} attend_state;

/* Computes the node. false: it did not, and may have written a part; *reason says why. */
bool attend(attend_state *state, const ggml_node *node, const char **reason);

void attend_free(attend_state *state);

#endif
