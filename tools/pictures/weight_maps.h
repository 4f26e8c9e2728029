/* Attention weights to be drawn: computed for a problem, or from a file. */
#ifndef ATTUNE_TOOLS_WEIGHT_MAPS_H
#define ATTUNE_TOOLS_WEIGHT_MAPS_H

#include "run/run_files.h"

/* The weights to draw, and where they come from. */
typedef struct maps_request {
    tool_common common;
    run_files files;
    const char *problem, *sizes; /* NULL: none */
    const char *file;            /* weights as they are, instead of a problem */
    const char *heads;           /* NULL: all */
    int64_t batch;
    uint64_t seed;
    uint32_t threads;
    bool averages;
} maps_request;

typedef struct weight_maps {
    size_t heads, rows, columns;
    size_t *head_numbers;  /* [heads] */
    size_t num_averaged;   /* 0, or how many heads the one there is is the mean of */
    float *values;         /* [heads, rows, columns] */
    unsigned char *hidden; /* the same shape: 1 where a query does not see a key */
    int32_t *row_ids;      /* [rows], which queries they are; NULL: all, in order */
    size_t num_queries;    /* row_ids are from 0 to this; without them it is `rows` */
    bool is_file;          /* then weights of exactly 0 count as hidden */
    bool is_weight;        /* or a score before softmax */
    const char *what;      /* the one or the other in words */
} weight_maps;

/* false after a message. */
bool maps_make(maps_request *request, weight_maps *maps);
void maps_free(weight_maps *maps);

#endif
