/* SHA-512 (FIPS 180-4), which ed25519 is made with. Monocypher leaves it to its callers. */
#ifndef ATTUNE_SIGN_SHA512_H
#define ATTUNE_SIGN_SHA512_H

#include <stddef.h>
#include <stdint.h>

enum { AT_SHA512_BYTES = 64, AT_SHA512_BLOCK = 128 };

typedef struct at_sha512 {
    uint64_t state[8];
    uint64_t bytes; /* so far */
    uint8_t block[AT_SHA512_BLOCK];
} at_sha512;

void at_sha512_init(at_sha512 *hash);
void at_sha512_add(at_sha512 *hash, const void *data, size_t bytes);
void at_sha512_end(at_sha512 *hash, uint8_t out[AT_SHA512_BYTES]);

#endif
