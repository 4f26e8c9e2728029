/* What mask_mod hides, as the table that a kernel's first phase makes (attend/shared/mask_table.h), kept by the caller
 * from call to call. A call with it begins with the second phase, and reads the caller's table in place of its own. */
#ifndef ATTUNE_API_BLOCK_MASK_H
#define ATTUNE_API_BLOCK_MASK_H

#include "engine/kernel.h"

/* Sets *tiles to the table of a call's block mask; NULL: there is none, or this kernel needs none. Fails if the mask is
 * of another call. plan: the kernel's, for the sizes of the call. */
attune_status at_block_mask_take(const attune_kernel *kernel, const at_call *call, const int64_t *plan, void **tiles,
                                 at_error *err);

#endif
