/* What append.c and append_quantised.c share. */
#ifndef ATTUNE_ATTEND_AROUND_APPEND_H
#define ATTUNE_ATTEND_AROUND_APPEND_H

#include "attend/around/around.h"

/* A row, and where its quantised values and scale lie in a cache. */
typedef struct mha_quantising {
    const mha_row *source, *target; /* `target`: of the caller's k or v */
    mha_format format;              /* of the cache */
    const ir_access *scale;         /* of a head or token; else NULL */
} mha_quantising;

void mha_append_quantised(const mha_context *c, const mha_quantising *row);

#endif
