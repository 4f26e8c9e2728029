/* What a kernel of the estimate is made for, and the loop IR of it. */
#ifndef ATTUNE_BLOCKS_KERNEL_H
#define ATTUNE_BLOCKS_KERNEL_H

#include <attune.h>

/* Everything that a kernel is specialised for. */
typedef struct blk_kernel {
    attune_blocks_desc desc; /* settled */
    int64_t most_columns;    /* key blocks that there is scratch for */
} blk_kernel;

enum { BLK_PROBLEM_BYTES = 160 };

/* The problem of an operator: one line of text that says all of it. */
void blk_print(const blk_kernel *k, char text[BLK_PROBLEM_BYTES]);

/* An attune_build_fn, and the numbers of its schedules. */
int blk_build(void *user, const attune_build_request *request, attune_ir_writer *w);
extern const attune_choice blk_choices[];
enum { BLK_NUM_CHOICES = 1 };

#endif
