/* The contract between code generation and the loader: calls of compiled kernels, and the format of an image. */
#ifndef ATTUNE_TARGET_KERNEL_ABI_H
#define ATTUNE_TARGET_KERNEL_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Generated code has no landing pads (endbr64), so where calls are compiled for IBT these say that theirs need none. On
 * AArch64 the pages that hold it are not guarded. */
#if defined(__CET__) && (__CET__ & 1)
#define AT_GENERATED __attribute__((nocf_check))
#else
#define AT_GENERATED
#endif

/* Runs tasks [task_begin, task_end) of one phase.
 * buffers: the buffer params in order, then the shared buffers in order. scalars: as in ir/interp.h.
 * scratch: this worker's, 64-byte aligned, at_image_phase.scratch_bytes long. */
typedef void at_phase_fn(void *const *buffers, const int64_t *scalars, int64_t task_begin, int64_t task_end,
                         void *scratch) AT_GENERATED;

/* Run-time sizes: out[p] = tasks of phase p (0 if any loop is empty), then out[num_phases + s] = bytes of shared
 * buffer s. */
typedef void at_plan_fn(const int64_t *scalars, int64_t *out) AT_GENERATED;

enum { AT_MAX_PHASES = 64, AT_MAX_SHARED = 64, AT_IMAGE_VERSION = 2, AT_IMAGE_ALIGN = 4096 };
enum { AT_MAX_PARAMS = 65536 };            /* buffers or scalars of one kernel */
#define AT_MAX_SCRATCH (UINT64_C(1) << 40) /* bytes of one phase */
#define AT_IMAGE_MAGIC "attimg\0"          /* with the string's own NUL: 8 bytes */

typedef struct at_image_phase {
    uint32_t entry;         /* offset of an at_phase_fn from the start of the code */
    uint32_t reserved;      /* 0 */
    uint64_t scratch_bytes; /* a multiple of 64 */
} at_image_phase;

/* An image: this header, num_phases × at_image_phase, zeros up to code_offset, then code_bytes of code and constants,
 * position-independent, to be mapped read+execute at a page boundary. Little-endian. code_offset is a multiple of 64.
 */
typedef struct at_image_header {
    char magic[8];                                             /* "attimg\0\0" */
    uint32_t version;                                          /* AT_IMAGE_VERSION */
    uint32_t required;                                         /* AT_CPU_* that the code needs */
    uint32_t num_phases, num_buffers, num_shared, num_scalars; /* num_buffers: params only */
    uint32_t plan_entry;                                       /* offset of the at_plan_fn from the start of the code */
    uint32_t code_offset;                                      /* from the start of the image */
    uint64_t code_bytes;
    uint32_t unwind_offset,
        unwind_bytes; /* .eh_frame, from the start of the code; its pointers are relative. 0: none */
} at_image_header;

/* NULL if the image is well formed (sizes, offsets, entries inside the code), otherwise the defect. Reads nothing
 * beyond `bytes`. Lives in target/image.c, used by code generation (as its own check) and by the loader. */
const char *at_image_check(const void *image, size_t bytes);

static inline const at_image_phase *at_image_phases(const at_image_header *image) {
    return (const at_image_phase *)(image + 1);
}

#endif
