/* Expected results of attune's functions. */
#ifndef ATTUNE_TESTS_STATUSES_H
#define ATTUNE_TESTS_STATUSES_H

#include <attune.h>

/* The call succeeded (a failure names `what`, too); it failed in this way, and its sentence holds `part`. */
void assert_ok(attune_status status);
void assert_ok_for(attune_status status, const char *what);
void assert_fails(attune_status status, attune_status expected, const char *part);

#endif
