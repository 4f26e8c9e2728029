/* What a kernel of the index is made for, and the loop IR of it. */
#ifndef ATTUNE_INDEX_KERNEL_H
#define ATTUNE_INDEX_KERNEL_H

#include <attune.h>

/* The tensors of a kernel in the order of its parameters; those that a kernel lacks are left out. The work comes
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

/* What a task computes: a row of the work. */
enum {
    IDX_BATCH,     /* of q */
    IDX_TOKEN,     /* the first of its queries */
    IDX_ROWS,      /* queries */
    IDX_SEQUENCE,  /* of k, or the row of the block table */
    IDX_FIRST_KEY, /* of the sequence, in k */
    IDX_SEEN,      /* keys that the first query sees; causal: may be negative, and each further query sees one more */
    IDX_WORK_COLUMNS
};

/* The most queries of a task. */
int idx_rows(const attune_index_desc *d);

enum { IDX_PROBLEM_BYTES = 160 };

/* The problem of an operator: one line of text that says all of it. */
void idx_print(const attune_index_desc *d, char text[IDX_PROBLEM_BYTES]);

/* An attune_build_fn, and the numbers of its schedules. */
int idx_build(void *user, const attune_build_request *request, attune_ir_writer *w);
extern const attune_choice idx_choices[];
enum { IDX_NUM_CHOICES = 1 };

#endif
