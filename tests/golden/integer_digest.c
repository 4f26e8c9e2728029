/* The digest of problems with integer=all, which is the same on every machine: `make integer-digest`. */
#include "support/attend/integer_bits.h"

#include "common/tool.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t number(int argc, char **argv, int i, uint64_t otherwise) {
    return argc > i ? strtoull(argv[i], NULL, 10) : otherwise;
}

/* The digest of the digests that lines "FIRST COUNT DIGEST" on stdin end with. */
static int join_lines(void) {
    uint64_t digest = 0, one, lines = 0;
    for (; scanf("%*u %*u %" SCNx64, &one) == 1; lines++) digest = integer_bits_join(digest, one);
    printf("%" PRIu64 " chunks %016" PRIx64 "\n", lines, digest);
    return tool_finish(lines ? TOOL_OK : TOOL_FAILED);
}

/* integer_digest FIRST COUNT [EVERY]: prints "FIRST COUNT DIGEST" of these problems of integer_problems.h, after a
 * comment that names the instruction sets. Machine code computes one problem of EVERY (20); 0: none.
 * integer_digest join: see above. */
int main(int argc, char **argv) {
    const uint64_t first = number(argc, argv, 1, 0), count = number(argc, argv, 2, 1000);
    const uint64_t every = number(argc, argv, 3, 20);
    uint64_t digest = 0, done = 0, one = 0;
    integer_bits bits;
    if (argc == 2 && strcmp(argv[1], "join") == 0) return join_lines();
    if (!integer_bits_open(&bits)) return TOOL_FAILED;
    printf("#");
    for (uint32_t i = 0; i < bits.machine.num_isas; i++) printf(" %s", bits.machine.isas[i]);
    printf("\n");
    for (; done < count; done++) {
        const uint64_t n = first + done;
        if (!integer_bits_digest(&bits, n, every && n % every == 0, &one)) break;
        digest = integer_bits_join(digest, one);
    }
    if (done == count)
        printf("%" PRIu64 " %" PRIu64 " %016" PRIx64 "\n", first, count, digest);
    else
        tool_error("problem %" PRIu64 " failed", first + done);
    integer_bits_close(&bits);
    return tool_finish(done == count ? TOOL_OK : TOOL_FAILED);
}
