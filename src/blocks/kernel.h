/* A kernel of the estimate: the problem that it is specialised for, and its loop IR. */
#ifndef ATTUNE_BLOCKS_KERNEL_H
#define ATTUNE_BLOCKS_KERNEL_H

#include <attune.h>

/* Everything that a kernel is specialised for. */
typedef struct blk_kernel {
    attune_blocks_desc desc; /* settled */
    int64_t most_columns;    /* key blocks for which there is scratch */
} blk_kernel;

enum { BLK_PROBLEM_BYTES = 160 };

/* The complete problem as one line of text, for the operator. */
void blk_print(const blk_kernel *k, char text[BLK_PROBLEM_BYTES]);

/* An attune_build_fn, and its choices of schedule. */
int blk_build(void *user, const attune_build_request *request, attune_ir_writer *w);
extern const attune_choice blk_choices[];
enum { BLK_NUM_CHOICES = 1 };

#endif
