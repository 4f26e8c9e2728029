/* Finds or makes a kernel, level by level: memory, registered bundles, the disk cache with its base and its pack, then
 * a compile, if the caller may wait for it. Otherwise the fallbacks follow: a cache file for another tuning class, tier
 * 0's machine code, the virtual machine. kernel_make.c has the order, kernel_found.c all levels that compile nothing.
 */
#ifndef ATTUNE_ENGINE_KERNEL_MAKE_H
#define ATTUNE_ENGINE_KERNEL_MAKE_H

#include "engine/kernel.h"
#include "operator/own.h"

typedef struct at_request {
    attune_context *context;
    at_operation operation;
    const mha_schedule *schedule; /* explicit, or NULL */
    at_signature *signature;      /* of attention, filled in by the maker; else NULL */
    bool no_vm;                   /* no virtual machine, whose program takes 2 ms to make */
    bool no_general;              /* none that takes other arguments than those of the problem */
} at_request;

/* Milliseconds of CLOCK_MONOTONIC. */
double at_make_clock(void);

/* The request's problem as text. */
size_t at_make_print(const at_request *request, char *text, size_t capacity);

bool at_make_fits(const void *image, const at_request *request, const ir_kernel *kernel);
void at_make_name(const at_request *request, char *name, size_t capacity);
void at_make_tell(const at_request *request, const at_key *key, attune_event event);
void at_make_complete(attune_kernel *kernel, const at_request *request, const at_key *key, const mha_schedule *schedule,
                      attune_origin origin, double started);
attune_status at_make_keep_ir(const at_request *request, at_arena *arena, ir_kernel *lowered, attune_kernel **kernel,
                              at_error *err);

/* ---- The levels: ATTUNE_OK without a kernel: there is none, or it cannot run here ---- */

attune_status at_make_from_bundle(const at_request *request, const at_key *key, attune_kernel **kernel, at_error *err);
attune_status at_make_from_disk(const at_request *request, const at_key *key, attune_kernel **kernel, at_error *err);

/* From the nearest other tuning class that has a usable one. why: the reason that nothing is compiled. */
bool at_make_from_stand_in(const at_request *request, const at_key *key, const char *why, attune_kernel **kernel);

/* Counts a kernel of tier 0, and reports that it computes and why. */
void at_make_tell_tier0(const at_request *request, const at_key *key, const char *what, const char *why);

/* From the machine code of tier 0. The virtual machine comes after it (kernel_make.c). */
bool at_make_from_tier0(const at_request *request, const at_key *key, const char *why, attune_kernel **kernel);

#endif
