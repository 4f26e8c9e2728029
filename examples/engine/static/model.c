/* The model of the static engine: an image that the engine has saved, with its weights packed. */
#include "engine.h"

#include <stdlib.h>

void model_open(model *m, const char *image, int64_t num_pages) { model_load(m, image, num_pages); }

/* The kernels of the bundle were compiled for the block: there is nothing to describe. */
void model_block(const model *m, attune_problem *problem) {
    (void)m;
    *problem = (attune_problem)ATTUNE_PROBLEM_INIT;
}

void model_close(model *m) {
    for (int i = 0; i < m->num_layers; i++) {
        layer *l = &m->layers[i];
        linear_close(&l->gate_up), linear_close(&l->down);
        free((void *)(uintptr_t)l->attention_norm), free((void *)(uintptr_t)l->mlp_norm);
        free((void *)(uintptr_t)l->q_norm), free((void *)(uintptr_t)l->k_norm);
        free(l->attention), free(l->k), free(l->v);
    }
    linear_close(&m->head);
    free((void *)(uintptr_t)m->embedding), free((void *)(uintptr_t)m->last_norm);
    free(m->layers), free(m->cos), free(m->sin);
}
