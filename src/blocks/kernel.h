/* The kernels of the estimate, as loop IR. */
#ifndef ATTUNE_BLOCKS_KERNEL_H
#define ATTUNE_BLOCKS_KERNEL_H

#include <attune.h>

/* The key blocks for which kernels have scratch, as each has scratch for all of them. */
enum { BLK_NUM_KERNELS = 4 };
extern const int64_t blk_columns[BLK_NUM_KERNELS];

/* An attune_build_fn, and its choices of schedule. */
int blk_build(void *user, const attune_build_request *request, attune_ir_writer *w);
extern const attune_choice blk_choices[];
enum { BLK_NUM_CHOICES = 1 };

#endif
