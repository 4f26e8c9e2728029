/* How many rows the products of a block have: the choice of their schedule needs a number even if lengths are known at
 * run time only. */
#include "base/integers.h"
#include "problem/mha.h"

enum { MOST_ROWS = 1 << 20 };

static int64_t tokens(int64_t size, int64_t bound, int64_t usual) {
    return min_of(size != ATTUNE_DYNAMIC ? size : bound ? bound : usual, MOST_ROWS);
}

int64_t mha_product_rows(const attune_problem *p, int64_t usual) {
    int64_t most = tokens(p->seq_q, p->max_seq_q, usual);
    if (p->is_cross && !p->kv_projected) {
        const int64_t other = p->seq_new ? tokens(p->seq_new, 0, usual) : tokens(p->seq_kv, p->max_seq_kv, usual);
        most = max_of(most, other);
    }
    return min_of(MOST_ROWS, most * min_of(p->batch, MOST_ROWS));
}

int64_t mha_few_rows(const attune_problem *p) {
    enum { FEW = 32 };
    const int64_t rows = p->embed_dim ? mha_product_rows(p, MOST_ROWS) : 0;
    return rows <= FEW ? rows : 0;
}
