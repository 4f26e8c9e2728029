/* Problems with integer=all, each computed by every instruction set and engine: all must give the same bits. */
#ifndef ATTUNE_TESTS_INTEGER_BITS_H
#define ATTUNE_TESTS_INTEGER_BITS_H

#include "check/check_case.h"

typedef struct integer_bits {
    check_machine machine;                   /* machine code, for each instruction set of this CPU */
    attune_context *virtual[CHECK_MAX_ISAS]; /* the virtual machine, for the same */
} integer_bits;

/* false after a message. */
bool integer_bits_open(integer_bits *bits);
void integer_bits_close(integer_bits *bits);

/* A problem runs by the interpreter, by the virtual machine for each instruction set, and for one of them by a random
 * schedule as well; if `compiles`, by random schedules and machine code for all. false after a message: something
 * failed, or two results differ.
 *
 * Drawn as those of `attune-lab check`, among problems whose bits are promised. */
bool integer_bits_check(integer_bits *bits, tool_random *random, bool compiles);

/* Problem `number` of integer_problems.h. *digest becomes a hash of its text and of the numbers of its outputs:
 *     h = XXH3(text)   and then, for each element of out, lse, k, v, k_scale and v_scale that the call writes,
 *     h = XXH3 of the element, seeded by h
 * as an f64 in little-endian order, each NaN as the same. */
bool integer_bits_digest(integer_bits *bits, uint64_t number, bool compiles, uint64_t *digest);

/* XXH3 of a number in little-endian order, seeded by a digest: that of a chunk is made of digests in this way, from 0
 * on, and that of all chunks of theirs. */
uint64_t integer_bits_join(uint64_t digest, uint64_t next);

#endif
