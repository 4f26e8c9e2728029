/* Expert tier: most programs need attune/attention.h alone.
 *
 * Bundles: kernels as a static library with a C header, made by attune and used without it. */
#ifndef ATTUNE_BUNDLE_H
#define ATTUNE_BUNDLE_H

#include "kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Bundles: kernels compiled ahead of time, for programs without attune ---- */

/* One kernel of a bundle. The layout does not change within a major version: it comes in arrays. */
typedef struct attune_bundle_kernel {
    const char *name;              /* a C identifier of at most 63 letters: "attn" */
    const attune_problem *problem;
    const char *schedule;          /* text that changes the chosen schedule; NULL: attune chooses for each target */
} attune_bundle_kernel;

/* The kernels of one of attune's other operators, by a text such as "op=linear,num_heads=16,..."; see
 * attune/expert/description.h. If it has several kernels, they are called NAME_KERNEL: "gdn_few". Fixed layout. */
typedef struct attune_bundle_description {
    const char *name; /* a C identifier of at most 63 letters: "gdn" */
    const char *text;
} attune_bundle_description;

typedef struct attune_bundle_options {
    size_t struct_size;
    const char *name;    /* begins the names of all functions: a C identifier of at most 63 letters: "model" */
    const char *targets; /* instruction sets of one architecture, each perhaps with a tuning class: "avx512,avx2:zen4".
                          * Without a class it is "generic" */
    int kernels_only;    /* 1: for attune_context_add_bundle alone, so without functions and header: smaller */
    uint32_t reserved;
    const attune_bundle_description *descriptions; /* more kernels; they need kernels_only */
    size_t num_descriptions;
} attune_bundle_options;

#define ATTUNE_BUNDLE_OPTIONS_INIT ATTUNE_RESULT_INIT(attune_bundle_options)

ATTUNE_API attune_status attune_bundle_options_init(attune_bundle_options *options, size_t struct_size);

/* What becomes the files libmodel.a and model.h. Free both with attune_free. Fixed layout. */
typedef struct attune_bundle_files {
    void *library;
    size_t library_bytes;
    void *header;
    size_t header_bytes;
} attune_bundle_files;

/* Compiles kernels for all targets, and makes of them a static library and its C header. A program that is linked to it
 * needs neither attune nor a compiler, and of the C library memcpy alone; see docs/bundles.md. The library has for each
 * kernel a function NAME_KERNEL, whose arguments are what the problem leaves open. Its bits are those of attune_run
 * with the same target and schedule. Equal input gives equal bytes. The code is that of the context's code generator,
 * in memory: no cache is read or written, except that results of tuning count. With kernels_only there is no header:
 * files->header is NULL, and NAME_bundle is declared as `extern const struct at_bundle NAME_bundle`. `kernels` may be
 * NULL, with num_kernels 0, if there are descriptions. */
ATTUNE_CHECKED attune_status attune_bundle_make(attune_context *context, const attune_bundle_options *options,
                                                const attune_bundle_kernel *kernels, size_t num_kernels,
                                                attune_bundle_files *files);

/* Lets a context take kernels from a bundle that is part of the program, NAME_bundle of its header: after its own
 * memory, and before the cache on disk. Their code is used in place. The kernel must be of the context's
 * instruction set; without an explicit schedule it may be of another tuning class, and the nearest is taken. Bundles
 * that are added later are searched first, and none can be removed. ATTUNE_UNSUPPORTED: another version of attune made
 * it. */
struct at_bundle;
ATTUNE_CHECKED attune_status attune_context_add_bundle(attune_context *context, const struct at_bundle *bundle);

#ifdef __cplusplus
}
#endif

#endif
