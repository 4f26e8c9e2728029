#include "pool.h"

#include <math.h>
#include <stdlib.h>

bool pool_create(pooled_head *pooled, const layout *l) {
    const size_t rows = (size_t)l->rows, columns = (size_t)l->columns;
    *pooled = (pooled_head){rows, columns, calloc(rows * columns, sizeof(float)), calloc(rows, columns)};
    return pooled->values && pooled->hidden;
}

void pool_free(pooled_head *pooled) {
    free(pooled->values);
    free(pooled->hidden);
    *pooled = (pooled_head){.rows = 0};
}

static bool is_bad(float value, bool is_hidden) { return isnan(value) || (isinf(value) && !is_hidden); }

/* Whether a cell with this value shows it rather than what it has. */
static bool wins(float value, bool is_hidden, float other, bool other_is_hidden) {
    if (is_bad(other, other_is_hidden)) return false;
    if (is_bad(value, is_hidden)) return true;
    return !is_hidden && (other_is_hidden || value > other);
}

void pool_fill(pooled_head *pooled, const draw_picture *p, const layout *l, size_t head) {
    for (size_t i = 0; i < pooled->rows * pooled->columns; i++) {
        pooled->values[i] = 0;
        pooled->hidden[i] = 1;
    }
    for (size_t row = 0; row < p->rows; row++)
        for (size_t column = 0; column < p->columns; column++) {
            const size_t from = (head * p->rows + row) * p->columns + column;
            const size_t to = row / (size_t)l->row_share * pooled->columns + column / (size_t)l->column_share;
            if (!wins(p->values[from], p->hidden[from], pooled->values[to], pooled->hidden[to])) continue;
            pooled->values[to] = p->values[from];
            pooled->hidden[to] = p->hidden[from];
        }
}
