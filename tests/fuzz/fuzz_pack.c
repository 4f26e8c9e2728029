/* Packed weights: any bytes as the blob of a problem that the last byte chooses, as found, and with the numbers of the
 * header made right one after the other so that the checks after them are reached. */
#define XXH_INLINE_ALL
#include "fuzz.h"

#include "base/memory.h"
#include "layer/packed_weights.h"
#include "layer/weight_source.h"

#include <xxhash.h>

static const char *const problems[] = {
    "embed_dim=8,num_heads=2,seq_q=3,head_dim=4",
    "embed_dim=8,num_heads=2,seq_q=3,head_dim=4,dtype=bf16",
    "embed_dim=8,num_heads=2,seq_q=3,head_dim=4,no_out_projection=1",
};
enum { NUM_PROBLEMS = sizeof problems / sizeof *problems };

/* A blob that is accepted is as long as the problem needs, and its header alone is accepted, too. */
static bool check(const attune_problem *p, const void *blob, size_t size) {
    at_error err = {0};
    mha_packed_layout layout;
    if (mha_packed_check(p, blob, size, &err)) {
        FUZZ_REQUIRE(err.message[0] != '\0');
        return false;
    }
    mha_packed_layout_of(p, &layout);
    FUZZ_REQUIRE((size_t)layout.elements * mha_weight_bytes(p->w_dtype) <= mha_packed_bytes(blob));
    FUZZ_REQUIRE(mha_packed_bytes(blob) <= size && mha_packed_check_header(p, blob, &err) == ATTUNE_OK);
    return true;
}

static void mend_and_check(const attune_problem *p, unsigned char *blob, size_t size) {
    mha_packed_header header;
    mha_packed_layout layout;
    mha_packed_layout_of(p, &layout);
    memcpy(&header, blob, sizeof header);
    header.magic = MHA_PACKED_MAGIC;
    header.format = MHA_PACKED_FORMAT;
    memcpy(blob, &header, sizeof header);
    check(p, blob, size);
    header.id = mha_packed_id_of(p, &layout);
    memcpy(blob, &header, sizeof header);
    check(p, blob, size);
    if (header.bytes < sizeof header || header.bytes > size) return;
    const uint64_t seed = XXH3_64bits(&header, offsetof(mha_packed_header, checksum));
    header.checksum = XXH3_64bits_withSeed(blob + MHA_PACKED_HEADER, (size_t)header.bytes - MHA_PACKED_HEADER, seed);
    memcpy(blob, &header, sizeof header);
    const bool is_long_enough = header.bytes >= (uint64_t)layout.elements * mha_weight_bytes(p->w_dtype);
    FUZZ_REQUIRE(check(p, blob, size) == is_long_enough);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    attune_problem problem = ATTUNE_PROBLEM_INIT, canonical;
    at_error err = {0};
    const char *const text = problems[size ? data[size - 1] % NUM_PROBLEMS : 0];
    FUZZ_REQUIRE(mha_problem_parse(text, &problem, &err) == ATTUNE_OK);
    FUZZ_REQUIRE(mha_canonicalize(&problem, &canonical, &err) == ATTUNE_OK);
    unsigned char *const blob = at_alloc_aligned(at_default_allocator(), size ? size : 1, 64);
    FUZZ_REQUIRE(blob);
    memcpy(blob, data, size);
    check(&canonical, blob, size);
    if (size >= sizeof(mha_packed_header)) mend_and_check(&canonical, blob, size);
    at_free(at_default_allocator(), blob);
    return 0;
}
