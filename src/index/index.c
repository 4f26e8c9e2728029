/* The index as a described operator. */
#include "index/index.h"

const at_described_op idx_described = {AT_DESCRIBED_OP(index, INDEX, &idx_table, sizeof(attune_index_step)),
                                       .options = {.struct_size = sizeof(attune_operator_options),
                                                   .name = "index",
                                                   .build = idx_build,
                                                   .choices = idx_choices,
                                                   .num_choices = IDX_NUM_CHOICES,
                                                   .version = 1},
                                       .run = idx_run};

AT_DESCRIBED_FUNCTIONS(index, idx_described)
AT_DESCRIBED_PREPARE(index, idx_described)
