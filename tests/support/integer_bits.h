/* Random problems with integer=all, each computed by every instruction set and engine: all must give the same bits. */
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

/* Draws a problem whose bits are promised, and runs it by the virtual machine for each instruction set, by schedules of
 * its own and by random ones, by an interpreter and, if `compiles`, by machine code. *digest becomes a hash of itself
 * and of the results. false after a message: something failed, or two results differ. */
bool integer_bits_check(integer_bits *bits, tool_random *random, bool compiles, uint64_t *digest);

#endif
