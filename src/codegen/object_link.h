/* A small linker: one relocatable ELF64 object in, of x86-64 or AArch64; one flat position-independent image out.
 *
 * It handles what code generation produces (.text* and .rodata*, PC-relative relocations between them), and rejects
 * everything else by name. The object is not trusted: every offset, size and index is checked before use. It does not
 * use LLVM. */
#ifndef ATTUNE_CODEGEN_OBJECT_LINK_H
#define ATTUNE_CODEGEN_OBJECT_LINK_H

#include "base/error.h"
#include "base/memory.h"
#include "target/kernel_abi.h"

/* Links `object`. It reads these fields of `header`: required (which says the machine), num_phases (at most
 * AT_MAX_PHASES), num_buffers, num_shared and num_scalars. The entries are the symbols "phase0" … and "plan".
 * scratch_bytes: one for each phase, rounded up to 64. *image comes from the allocator (NULL: the default) and passes
 * at_image_check. Failures are ATTUNE_CODEGEN_FAILED. */
attune_status cg_link_object(const void *object, size_t bytes, const at_image_header *header,
                             const uint64_t *scratch_bytes, const attune_allocator *allocator, void **image,
                             size_t *image_bytes, at_error *err);

typedef struct cg_object {
    const void *data;
    size_t bytes;
} cg_object;

enum { CG_MAX_OBJECTS = 8 };

/* The same for several objects, which may call each other's functions; the code has their order. */
attune_status cg_link_objects(const cg_object *objects, size_t count, const at_image_header *header,
                              const uint64_t *scratch_bytes, const attune_allocator *allocator, void **image,
                              size_t *image_bytes, at_error *err);

#endif
