/* Keys and signatures as minisign makes them, without minisign. */
#ifndef ATTUNE_TESTS_SIGN_H
#define ATTUNE_TESTS_SIGN_H

#include "sign/minisign.h"

typedef struct sign_key {
    uint8_t seed[32];
    at_public_key public;
} sign_key;

/* The same key for the same number. */
void sign_key_make(sign_key *key, uint8_t number);

/* ed25519 as RFC 8032 has it. */
void sign_bytes(const sign_key *key, const void *data, size_t bytes, uint8_t signature[AT_SIGNATURE_BYTES]);

enum { SIGN_TEXT = 2048 };
/* The text of a public key, and of a signature. */
void sign_print_key(const sign_key *key, char text[SIGN_TEXT]);
void sign_print(const sign_key *key, const void *data, size_t bytes, const char *comment, char text[SIGN_TEXT]);

#endif
