/* A kernel of the index: the problem that it is specialised for, and its loop IR. */
#ifndef ATTUNE_INDEX_KERNEL_H
#define ATTUNE_INDEX_KERNEL_H

#include <attune.h>

/* The tensors of a kernel in the order of its parameters, without those that it does not have. The list of work is
 * between the block table and the ids. */
typedef enum idx_tensor {
    IDX_Q,
    IDX_K,
    IDX_W,
    IDX_Q_SCALE,
    IDX_K_SCALE,
    IDX_TABLE,
    IDX_WORK,
    IDX_IDS,
    IDX_SCORES,
    IDX_NUM_TENSORS
} idx_tensor;

static inline int idx_has(const attune_index_desc *d, idx_tensor t) {
    return t == IDX_Q_SCALE || t == IDX_K_SCALE ? d->dtype == ATTUNE_I8 || d->dtype == ATTUNE_F8
           : t == IDX_TABLE                     ? d->page_size > 0
           : t == IDX_SCORES                    ? d->has_scores
                                                : 1;
}

/* What a task computes: a row of the list of work. */
enum {
    IDX_BATCH,     /* of q */
    IDX_TOKEN,     /* the first of its queries */
    IDX_ROWS,      /* queries */
    IDX_SEQUENCE,  /* index of the sequence in k, or its row of the block table */
    IDX_FIRST_KEY, /* of the sequence, in k */
    IDX_SEEN, /* keys visible to the first query. If causal, it may be negative, and each further query attends to one
                 more key */
    IDX_WORK_COLUMNS
};

/* The kernels of a description. IDX_ANY takes numbers of heads and ids, the size of a page and causality as arguments,
 * and K without pages as one page for each sequence: tier 0 has it. */
typedef enum idx_which { IDX_OWN, IDX_ANY, IDX_NUM_KERNELS } idx_which;
enum { IDX_ANY_HEADS = 64, IDX_ANY_DIM = 128, IDX_ANY_IDS = 2048, IDX_ANY_TASK = 4 };

/* The most queries of a task. */
int idx_rows(const attune_index_desc *d);

/* An attune_build_fn, and its choices of schedule. */
int idx_build(void *user, const attune_build_request *request, attune_ir_writer *w);
extern const attune_choice idx_choices[];
enum { IDX_NUM_CHOICES = 1 };

#endif
