/* The problems of the published digest (tests/data/integer_digests.txt): version 1, which is frozen.
 *
 * Problem n has the same fields, and its tensors hold the same bytes, on every machine and in every later version of
 * attune. So nothing here comes from elsewhere: not the random problems and inputs of `attune-lab check`, which grow
 * with every feature, and no function of libm, whose last bits differ. Numbers come from SplitMix64 (Steele, Lea and
 * Flood, 2014), seeded by n; a tensor has a stream of its own, seeded by n and its name. Inputs have no more bits than
 * their type holds, so that storing them rounds nothing.
 *
 * Whatever changes a problem or a byte is another version: a file of its own, with a digest of its own. */
#ifndef ATTUNE_TESTS_INTEGER_PROBLEMS_H
#define ATTUNE_TESTS_INTEGER_PROBLEMS_H

#include "common/tensors.h"

enum { INTEGER_PROBLEMS_VERSION = 1, INTEGER_TEXT = 1024, INTEGER_MOST_BATCH = 3 };

/* What the inputs hold. */
typedef enum integer_inputs { INTEGER_USUAL, INTEGER_LARGE, INTEGER_TIES, INTEGER_ODD } integer_inputs;

typedef struct integer_problem {
    uint64_t number;
    char text[INTEGER_TEXT];
    attune_problem problem;
    call_sizes sizes;
    integer_inputs inputs;
    int64_t rows[INTEGER_MOST_BATCH], keys[INTEGER_MOST_BATCH]; /* of each sequence of the batch */
    int64_t first_offset, num_offsets;                          /* causal_offsets are drawn from so many */
} integer_problem;

/* Problem n. false after a message: attune refuses it. */
bool integer_problem_make(uint64_t number, integer_problem *p);

/* Its tensors, filled. false after a message. */
bool integer_problem_tensors(const integer_problem *p, tensors *t);

#endif
