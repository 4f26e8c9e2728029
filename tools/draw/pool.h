/* Where there are more tokens than pixels, several share a cell of the picture. */
#ifndef ATTUNE_TOOLS_POOL_H
#define ATTUNE_TOOLS_POOL_H

#include "draw.h"
#include "layout.h"

/* One head as it is drawn: [rows, columns] of the layout's cells. */
typedef struct pooled_head {
    size_t rows, columns;
    float *values;
    unsigned char *hidden;
} pooled_head;

/* Room for one head; false if memory runs out. */
bool pool_create(pooled_head *pooled, const layout *l);

/* A cell shows the largest weight that is not hidden. NaN and infinities win; a cell is hidden if all of it is. */
void pool_fill(pooled_head *pooled, const draw_picture *picture, const layout *l, size_t head);
void pool_free(pooled_head *pooled);

#endif
