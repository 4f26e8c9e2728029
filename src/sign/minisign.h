/* Public keys and signatures as minisign writes them: https://jedisct1.github.io/minisign. Only signatures of the form
 * that is the default since minisign 0.10 count, of the BLAKE2b hash of a file ("ED"). */
#ifndef ATTUNE_SIGN_MINISIGN_H
#define ATTUNE_SIGN_MINISIGN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { AT_KEY_NUMBER_BYTES = 8, AT_PUBLIC_KEY_BYTES = 32, AT_SIGNATURE_BYTES = 64, AT_HASH_BYTES = 32 };
enum { AT_SIGNATURE_TEXT = 1024 }; /* the most bytes of a signature's text */

typedef struct at_public_key {
    uint8_t number[AT_KEY_NUMBER_BYTES]; /* which minisign makes at random, to find keys by */
    uint8_t key[AT_PUBLIC_KEY_BYTES];
} at_public_key;

typedef struct at_signature_of {
    uint8_t number[AT_KEY_NUMBER_BYTES]; /* of the key */
    uint8_t of_data[AT_SIGNATURE_BYTES];
    uint8_t of_comment[AT_SIGNATURE_BYTES]; /* of the signature and the trusted comment */
    const char *comment;                    /* the trusted one, within the text */
    size_t comment_bytes;
} at_signature_of;

/* NULL, or a sentence about the error. The text need not end with a NUL. */
const char *at_public_key_parse(const char *text, size_t bytes, at_public_key *key);
const char *at_signature_parse(const char *text, size_t bytes, at_signature_of *signature);

/* Whether both parts of a signature are this key's for these bytes. */
bool at_signature_verify(const at_signature_of *signature, const at_public_key *key, const void *data, size_t bytes);

/* A key's number as minisign prints it. */
enum { AT_KEY_NUMBER_CHARS = 16 };
void at_key_number_print(const uint8_t number[AT_KEY_NUMBER_BYTES], char text[AT_KEY_NUMBER_CHARS + 1]);

/* BLAKE2b of 32 bytes. */
void at_hash(const void *data, size_t bytes, uint8_t hash[AT_HASH_BYTES]);

#endif
