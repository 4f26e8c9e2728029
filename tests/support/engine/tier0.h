/* Contexts whose kernels are those of tier 0, and which of these they take. */
#ifndef ATTUNE_TESTS_TIER0_H
#define ATTUNE_TESTS_TIER0_H

#include "support/calls.h"

#if defined(__aarch64__)
enum { TIER0_NUM_ISAS = 1 };
#else
enum { TIER0_NUM_ISAS = 4 };
#endif
extern const char *const tier0_isas[TIER0_NUM_ISAS];

/* Set-up of a group of tests: the file of the build directory, as a test program has another directory than the
 * library. */
int tier0_setup(void **state);

bool tier0_runs_here(const char *isa);

/* Nothing is cached, and nothing can be compiled. Forgets the events of the context before. */
attune_context *tier0_context(const char *isa);

/* An event function: how many kernels of tier 0 were taken, how often the virtual machine in their place, and what the
 * last of these events says. */
void tier0_note(void *user, const attune_event *event);
extern int tier0_hits, vm_hits;
extern char last_hit[512];
void tier0_forget(void);

/* The test fails unless a kernel of tier 0 gives the same bits when the caller's threads run its phases. */
void tier0_assert_phases_agree(const sample *from);

/* The test fails if tier 0 computes the problem. */
void tier0_assert_none(const char *problem);

#endif
