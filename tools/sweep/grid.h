/* Grids of problems: problem text in which a value may be a list or a range.
 *
 *     seq_q=128:4096:*2,head_dim=64,128,is_causal=0,1,num_heads=8
 *
 * An item without '=' continues the list before it. LOW:HIGH:*F multiplies by F up to HIGH, LOW:HIGH:+S adds S,
 * LOW:HIGH adds 1; a range may be one item of a list. Strides and shapes of masks, which have colons of their own, have
 * no ranges. The grid holds every combination; the last key varies fastest. */
#ifndef ATTUNE_TOOLS_GRID_H
#define ATTUNE_TOOLS_GRID_H

#include <stdbool.h>
#include <stddef.h>

enum { GRID_MAX_AXES = 48, GRID_MAX_VALUES = 10000000, GRID_MESSAGE = 256 };

typedef struct grid_axis {
    char *key;
    char **values;
    size_t count;
    size_t stored; /* the same; but if there are more than GRID_MAX_VALUES, they are only counted */
} grid_axis;

typedef struct grid {
    grid_axis axes[GRID_MAX_AXES];
    size_t num_axes;
} grid;

/* false and a sentence if the text is no grid. Free it in any case. */
bool grid_parse(const char *text, grid *g, char message[GRID_MESSAGE]);
void grid_free(grid *g);

/* How many problems it holds; SIZE_MAX if more than that. */
size_t grid_count(const grid *g);

/* Text of problem `number` < grid_count, of which there must be GRID_MAX_VALUES at most; NULL when out of memory. Free
 * it. */
char *grid_problem(const grid *g, size_t number);

#endif
