/* The problems that tests of attention go through: a new one is added here, and each test of its strategy takes it.
 * What one test alone asks about stands there. */
#ifndef ATTUNE_TESTS_ATTEND_SAMPLES_H
#define ATTUNE_TESTS_ATTEND_SAMPLES_H

#include "support/sample.h"

enum { NUM_PREFILL = 90, NUM_BY_ROWS = 14, NUM_DECODING = 85 };

extern const sample attend_prefill[NUM_PREFILL];   /* by q-lanes: every feature, sizes around those of tiles */
extern const sample attend_by_rows[NUM_BY_ROWS];   /* values by rows at once; no number of rows is a multiple of 4 */
extern const sample attend_decoding[NUM_DECODING]; /* by d-lanes: every feature, caches of all kinds */

#endif
