/* From lowered IR to bytes: LLVM text, assembly, an object or an image. */
#ifndef ATTUNE_CODEGEN_COMPILE_H
#define ATTUNE_CODEGEN_COMPILE_H

#include "ir/ir.h"
#include "target/target.h"

/* The kernel at `stage` (ATTUNE_STAGE_LLVM … _IMAGE). It must have passed ir_verify(IR_LOWERED, target): LLVM may abort
 * on kernels that the verifier rejects. *data is allocated by the default allocator; a NUL, which *bytes does not
 * count, follows its last byte. Thread-safe: each call has its own LLVM context. */
attune_status cg_compile(const ir_kernel *kernel, const at_target *target, attune_stage stage, void **data,
                         size_t *bytes, at_error *err);

#endif
