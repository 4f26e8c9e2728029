/* Computes a node by attune. */
#ifndef ATTUNE_GGML_ATTEND_H
#define ATTUNE_GGML_ATTEND_H

#include "node.h"
#include "pages.h"
#include "runner.h"

/* Threads and buffers of one backend, used by one call at a time. All zeros is the initial state. */
typedef struct attend_state {
    runner threads;
    struct attend_buffer {
        void *data;
        size_t bytes;
    } rows, table, list_bias, slopes, k_rows, v_rows, lens; /* as large as the largest node needed them */
    int64_t slopes_heads;
    float slopes_bias;
    uint16_t *distances_end; /* of mask_distances */
    int64_t num_distances;
    pages *pages;
} attend_state;

/* Computes the node. false: attune cannot; *reason says why, and a part of the result may have been written. */
bool attend(attend_state *state, const ggml_node *node, const char **reason);

void attend_free(attend_state *state);

#endif
