/* What the files of the static engine share. */
#ifndef ENGINE_STATIC_H
#define ENGINE_STATIC_H

#include "engine.h"

/* A product that threads share, panel by panel. */
typedef struct product {
    const linear *linear;
    const float *x;
    float *y;
    int64_t rows;
} product;

/* Computes panels [begin, end) by the instructions of `target`, as functions of the bundle name it. */
void product_run(const product *p, const char *target, int64_t begin, int64_t end);

/* The call for a product: the same threads execute it as those of the bundle. */
attune_call *product_begin(const product *p);

#endif
