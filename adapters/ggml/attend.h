/* One node, computed by attune. */
#ifndef ATTUNE_GGML_ATTEND_H
#define ATTUNE_GGML_ATTEND_H

#include "node.h"

/* What the calls of one backend share. All zeros is an empty one. */
typedef struct attend_state {
    int n_threads;
    struct attend_buffer {
        void *data;
        size_t bytes;
    } rows, table, slopes, k_rows, v_rows, lens; /* they only grow */
    int64_t slopes_heads;
    float slopes_bias;
    uint16_t *distances_end; /* of ALiBi, see mask.h */
    int64_t num_distances;
    struct attend_threads {
        uint32_t pool_calls; /* left before the host's OpenMP is tried again */
        uint32_t late_calls; /* of the host's OpenMP, one after the other, that waited for a thread */
    } threads;
} attend_state;

/* Computes the node. false: it did not, and may have written a part; *reason says why. */
bool attend(attend_state *state, const ggml_node *node, const char **reason);

void attend_free(attend_state *state);

#endif
