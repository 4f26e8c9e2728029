/* Executable memory, never writable and executable at once. The code of an image is copied into private pages, which
 * then become executable. Where the system refuses that, the code goes into a memfd, which is mapped a second time for
 * execution. Each image has its own pages. So they survive fork() unchanged, whichever process frees them first, and a
 * process that runs one kernel from the cache needs no arena. */
#ifndef ATTUNE_ENGINE_LOADER_H
#define ATTUNE_ENGINE_LOADER_H

#include "base/error.h"
#include "host/io.h"
#include "target/kernel_abi.h"

typedef struct at_code {
    void *base;
    size_t bytes; /* mapped */
} at_code;

/* Maps the code of a well-formed image (at_image_check). ATTUNE_NO_EXEC_MEMORY with the system's reason. */
attune_status at_code_load(const at_io *io, const at_image_header *image, at_code *code, at_error *err);

/* All zero is fine. */
void at_code_unload(at_code *code);

#endif
