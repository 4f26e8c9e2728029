/* The functions of an image, as profilers and debuggers need them. An image has the names of its entry points only. The
 * other functions in its unwind table are helpers that these call. */
#ifndef ATTUNE_ENGINE_IMAGE_FUNCTIONS_H
#define ATTUNE_ENGINE_IMAGE_FUNCTIONS_H

#include "base/memory.h"
#include "target/kernel_abi.h"

#include <stdbool.h>
#include <stdint.h>

typedef struct at_image_function {
    uint32_t begin, bytes; /* from the start of the code */
    char name[24];         /* "plan", "phase0"; "helper0": one that is called by others */
} at_image_function;

typedef struct at_image_functions {
    at_image_function *items; /* by their place; none overlaps another */
    uint32_t count;
} at_image_functions;

/* false: memory is short. The image must be well formed; of a damaged unwind table only the sound part counts. */
bool at_image_functions_list(at_image_functions *functions, const at_image_header *image,
                             const attune_allocator *allocator);
void at_image_functions_free(at_image_functions *functions, const attune_allocator *allocator);

/* ---- Records of an unwind table (.eh_frame) ---- */

enum { AT_UNWIND_WORD = 4 };

typedef struct at_unwind_record {
    uint32_t bytes;     /* with the word that holds the size */
    bool is_function;   /* or what records of functions refer to */
    uint32_t field;     /* where the pointer to the function is, from the start of the table */
    int64_t begin;      /* of the function, from the start of the code */
    uint32_t num_bytes; /* of the function */
} at_unwind_record;

static inline const unsigned char *at_unwind_table(const at_image_header *image) {
    return (const unsigned char *)image + image->code_offset + image->unwind_offset;
}

/* Reads the record at `at`. false: it is damaged. */
bool at_unwind_read(const at_image_header *image, uint32_t at, at_unwind_record *record);

#endif
