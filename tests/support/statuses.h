/* Expected results of attune's functions, and what it says of kernels and contexts. */
#ifndef ATTUNE_TESTS_STATUSES_H
#define ATTUNE_TESTS_STATUSES_H

#include <attune.h>

/* The call succeeded (a failure names `what`, too); it failed in this way, and its sentence holds `part`. */
void assert_ok(attune_status status);
void assert_ok_for(attune_status status, const char *what);
void assert_fails(attune_status status, attune_status expected, const char *part);

/* The test fails if attune does not say. */
attune_kernel_info kernel_info_of(const attune_kernel *kernel);
attune_statistics statistics_of(const attune_context *context);

/* The kernel of the problem, with the chosen schedule; the test fails if there is none. */
attune_kernel *kernel_of(attune_context *context, const attune_problem *problem);

#endif
