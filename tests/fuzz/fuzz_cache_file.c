/* A cache entry: as found, and with its checksum made right so that the checks behind the checksum are reached. What
 * decodes encodes to the same bytes. Its key, and any bytes, are taken apart as a key. */
#define XXH_INLINE_ALL
#include "fuzz.h"

#include "base/memory.h"
#include "cache/cache_file.h"
#include "cache/key.h"
#include "target/kernel_abi.h"

#include <xxhash.h>

static void split(const uint8_t *key, size_t size) {
    at_key_parts parts;
    FUZZ_REQUIRE(!at_key_split(key, size, &parts) || parts.shared_bytes < size);
    FUZZ_REQUIRE(memchr(parts.tuning_class, '\0', sizeof parts.tuning_class));
}

static void decode(const uint8_t *data, size_t size) {
    at_cache_file entry;
    if (at_cache_file_decode(data, size, &entry)) return;
    FUZZ_REQUIRE(entry.key_bytes <= size && entry.image_bytes <= size);
    split(entry.key, entry.key_bytes);
    FUZZ_REQUIRE(strlen(entry.problem) + strlen(entry.schedule) + strlen(entry.isa) < size);
    at_image_check(entry.image, entry.image_bytes); /* must survive any bytes; its verdict is the loader's business */

    uint8_t *again;
    size_t again_size;
    at_error err = {0};
    FUZZ_REQUIRE(at_cache_file_encode(&entry, at_default_allocator(), &again, &again_size, &err) == ATTUNE_OK);
    FUZZ_REQUIRE(again_size == size && memcmp(again, data, size) == 0);
    at_free(at_default_allocator(), again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint8_t *copy = malloc(size ? size : 1); /* exactly as long, and aligned */
    if (!copy) abort();
    memcpy(copy, data, size);
    split(copy, size);
    decode(copy, size);
    if (size > AT_CACHE_FILE_CHECKSUM_BYTES) {
        const size_t covered = size - AT_CACHE_FILE_CHECKSUM_BYTES;
        const XXH128_hash_t hash = XXH3_128bits(copy, covered);
        memcpy(copy + covered, &hash.low64, 8);
        memcpy(copy + covered + 8, &hash.high64, 8);
        decode(copy, size);
    }
    free(copy);
    return 0;
}
