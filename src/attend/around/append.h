/* What append.c and append_quantised.c share. */
#ifndef ATTUNE_ATTEND_AROUND_APPEND_H
#define ATTUNE_ATTEND_AROUND_APPEND_H

#include "attend/around/around.h"

/* A row that becomes codes of a cache. */
typedef struct mha_coding {
    const mha_row *source, *target; /* `target`: of the caller's k or v */
    mha_format format;              /* of the cache */
    const ir_access *scale;         /* of a head or token; else NULL */
} mha_coding;

void mha_append_codes(const mha_context *c, const mha_coding *row);

#endif
