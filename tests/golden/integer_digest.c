/* The digest of random problems with integer=all, which is the same on every machine: `make integer-digest`. */
#include "support/integer_bits.h"

#include "common/tool.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t number(int argc, char **argv, int i, uint64_t otherwise) {
    return argc > i ? strtoull(argv[i], NULL, 10) : otherwise;
}

/* integer_digest [PROBLEMS [SEED [EVERY]]]: machine code computes one problem of so many. */
int main(int argc, char **argv) {
    enum { PROBLEMS = 1000, EVERY = 20 };
    const uint64_t problems = number(argc, argv, 1, PROBLEMS), every = number(argc, argv, 3, EVERY);
    tool_random random = {number(argc, argv, 2, 1)};
    uint64_t digest = 0, done = 0;
    integer_bits bits;
    if (!integer_bits_open(&bits)) return TOOL_FAILED;
    for (; done < problems; done++)
        if (!integer_bits_check(&bits, &random, every && done % every == 0, &digest)) break;
    for (uint32_t i = 0; i < bits.machine.num_isas; i++) printf("%s ", bits.machine.isas[i]);
    printf("\n%" PRIu64 " problems: digest %016" PRIx64 "\n", done, digest);
    integer_bits_close(&bits);
    return tool_finish(done == problems ? TOOL_OK : TOOL_FAILED);
}
