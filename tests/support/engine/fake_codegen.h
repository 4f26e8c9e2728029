/* A compiler that needs no LLVM: its kernels write one number, which tells one kernel from another, into the first
 * element of the output. Plugs into at_context_hooks. */
#ifndef ATTUNE_TESTS_FAKE_CODEGEN_H
#define ATTUNE_TESTS_FAKE_CODEGEN_H

#include "compiler/codegen_client.h"

#include <stdatomic.h>

typedef struct fake_codegen {
    atomic_int compiles;
    int sleep_us;          /* how slow it is */
    attune_status failure; /* what it answers instead, if not ATTUNE_OK */
} fake_codegen;

/* An at_compile_fn; user is the fake_codegen. */
attune_status fake_compile(void *user, const at_codegen_request *request, const attune_allocator *allocator,
                           void **data, size_t *bytes, at_error *err);

/* The number that the kernel for this IR text writes. */
uint32_t fake_marker(const char *ir, size_t bytes);

/* An image whose one phase has one task and writes `marker`; size in *bytes. Static storage of the caller. */
enum { FAKE_IMAGE_BYTES = 256 };
size_t fake_image(uint8_t image[FAKE_IMAGE_BYTES], uint32_t num_buffers, uint32_t num_scalars, uint32_t marker);

#endif
