/* The parts of a bundle while it is made. */
#ifndef ATTUNE_BUNDLE_BUNDLE_H
#define ATTUNE_BUNDLE_BUNDLE_H

#include "bundle/object_write.h"
#include "call/call.h"
#include "described/described.h"
#include "target/bundle_abi.h"
#include "target/target.h"
#include "target/tuning_class.h"

enum { AT_BUNDLE_MOST_CODES = 32, AT_BUNDLE_NAME_BYTES = 64, AT_BUNDLE_MOST_KERNELS = 4096 };

/* A target and a tuning class. */
typedef struct at_bundle_aim {
    const at_target *target;
    char machine[AT_CLASS_BYTES];
    char name[80];   /* "avx512:zen5"; of the generic class "avx512" */
    char suffix[80]; /* ".avx512.zen5": within names of symbols and files */
} at_bundle_aim;

/* A kernel for one aim. */
typedef struct at_bundle_image {
    void *image; /* at_image_header and so on; of the default allocator of the context */
    size_t bytes;
    char schedule[ATTUNE_SCHEDULE_BYTES];
} at_bundle_image;

typedef struct at_bundle_part {
    const char *name;
    const attune_problem *given;
    const char *schedule;                         /* NULL: attune chooses */
    at_signature signature;                       /* of attention */
    const at_described_op *described;             /* NULL: attention */
    char text[AT_DESCRIBED_TEXT];                 /* of a described kernel: its problem */
    char made_name[2 * AT_BUNDLE_NAME_BYTES];     /* `name`, where a description has several kernels */
    at_bundle_image images[AT_BUNDLE_MOST_CODES]; /* by aim */
} at_bundle_part;

typedef struct at_bundle_plan {
    const attune_allocator *allocator;
    const char *name;
    bool kernels_only;                        /* no functions, nothing that only they need, no header */
    at_bundle_aim aims[AT_BUNDLE_MOST_CODES]; /* in the order of the table of targets */
    size_t num_aims;
    at_bundle_part *parts;
    size_t num_parts;
    uint16_t machine; /* EM_* */
} at_bundle_plan;

/* ---- names.c: what may be called how ---- */

/* Whether all names are C identifiers, differ, and give functions that differ. */
attune_status at_bundle_check_names(const at_bundle_plan *plan, at_error *err);

/* "avx512,avx2:zen4" to aims, which must be of one architecture. */
attune_status at_bundle_parse_targets(at_bundle_plan *plan, const char *text, at_error *err);

/* ---- members.c: the arguments of a kernel, which the header and the table of fields describe ---- */

enum { AT_BUNDLE_MOST_MEMBERS = 128 };

/* One member of the arguments. */
typedef struct at_bundle_member {
    char declaration[96]; /* "const float *q", "int64_t q_strides[4]" */
    char initial[96];     /* "0", "{ 0, 0, 0, 0 }" */
    const char *comment;  /* NULL: none */
    const char *renamed;  /* the tensor of the problem that cannot have its own name here; NULL: none */
    char shape[96];       /* of a tensor: "[batch, num_heads, seq_q, 64]" */
    at_bundle_field field;
} at_bundle_member;

/* Whether a member of a struct cannot be called so: a keyword of C or C++, or a macro. */
bool at_bundle_is_reserved(const char *name);

size_t at_bundle_members(const at_bundle_part *part, at_bundle_member members[AT_BUNDLE_MOST_MEMBERS]);

/* The signature that calls of a bundle are checked with: as the library's, but strides that the problem did not give
 * are those of the call's sizes. */
void at_bundle_signature(at_bundle_part *part, const attune_problem *canonical);

/* ---- The objects ---- */

/* target_object.c: the code of all kernels for one aim. */
attune_status at_bundle_code_object(const at_bundle_plan *plan, size_t aim, at_string *out, at_error *err);

/* data.c: the functions of the header, and the data that they and the run time need. */
attune_status at_bundle_data_object(const at_bundle_plan *plan, at_string *out, at_error *err);

/* run_objects.c: the run time, with names of this bundle. */
attune_status at_bundle_run_object(const at_bundle_plan *plan, at_string *out, at_error *err);

/* header.c */
attune_status at_bundle_header(const at_bundle_plan *plan, at_string *out, at_error *err);

/* ---- unwind.c: .eh_frame, by which debuggers and profilers leave a function ---- */

uint32_t at_unwind_section_add(at_object *object);

/* Appends the table of an image, whose code lies at `code` in the section `text`. */
attune_status at_unwind_add(at_object *object, uint32_t unwind, uint32_t text, uint64_t code,
                            const at_image_header *image, at_error *err);

/* Appends an entry for functions that leave the stack as it is. */
void at_unwind_add_plain(at_object *object, uint32_t unwind, uint32_t text, uint64_t offset, uint64_t bytes);

/* ---- thunk.c: a few instructions ---- */

enum { AT_THUNK_BYTES = 16 };

/* Appends a function that jumps to `offset` in the same section. */
uint64_t at_thunk_jump(at_object *object, uint32_t text, uint64_t offset);

/* Appends a function that puts the address of a symbol into the register of parameter `number` (from 0; -1: none)
 * and jumps to another function. */
uint64_t at_thunk_call(at_object *object, uint32_t text, int number, uint32_t value, uint32_t function);

#endif
