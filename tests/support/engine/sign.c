#include "support/engine/sign.h"

#include "sign/sha512.h"

#include <monocypher.h>
#include <stdio.h>
#include <string.h>

static void sha512(const void *a, size_t a_bytes, const void *b, size_t b_bytes, const void *c, size_t c_bytes,
                   uint8_t out[AT_SHA512_BYTES]) {
    at_sha512 hash;
    at_sha512_init(&hash);
    at_sha512_add(&hash, a, a_bytes);
    at_sha512_add(&hash, b, b_bytes);
    at_sha512_add(&hash, c, c_bytes);
    at_sha512_end(&hash, out);
}

static void expand(const sign_key *key, uint8_t scalar[32], uint8_t prefix[32]) {
    uint8_t hash[AT_SHA512_BYTES];
    sha512(key->seed, sizeof key->seed, "", 0, "", 0, hash);
    crypto_eddsa_trim_scalar(scalar, hash);
    memcpy(prefix, hash + 32, 32);
}

void sign_key_make(sign_key *key, uint8_t number) {
    uint8_t scalar[32], prefix[32];
    memset(key->seed, number, sizeof key->seed);
    memset(key->public.number, number, sizeof key->public.number);
    expand(key, scalar, prefix);
    crypto_eddsa_scalarbase(key->public.key, scalar);
}

void sign_bytes(const sign_key *key, const void *data, size_t bytes, uint8_t signature[AT_SIGNATURE_BYTES]) {
    uint8_t scalar[32], prefix[32], hash[AT_SHA512_BYTES], r[32], h[32];
    expand(key, scalar, prefix);
    sha512(prefix, sizeof prefix, data, bytes, "", 0, hash);
    crypto_eddsa_reduce(r, hash);
    crypto_eddsa_scalarbase(signature, r);
    sha512(signature, 32, key->public.key, 32, data, bytes, hash);
    crypto_eddsa_reduce(h, hash);
    crypto_eddsa_mul_add(signature + 32, h, scalar, r);
}

static char *print_base64(const uint8_t *bytes, size_t count, char *out) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < count; i += 3) {
        const size_t here = count - i < 3 ? count - i : 3;
        uint32_t bits = 0;
        for (size_t j = 0; j < 3; j++) bits = bits << 8 | (j < here ? bytes[i + j] : 0);
        for (size_t j = 0; j < 4; j++) *out++ = j <= here ? digits[bits >> (18 - 6 * j) & 63] : '=';
    }
    *out = '\0';
    return out;
}

void sign_print_key(const sign_key *key, char text[SIGN_TEXT]) {
    uint8_t raw[42] = "Ed";
    memcpy(raw + 2, key->public.number, 8);
    memcpy(raw + 10, key->public.key, 32);
    text += sprintf(text, "untrusted comment: minisign public key\n");
    strcpy(print_base64(raw, sizeof raw, text), "\n");
}

void sign_print(const sign_key *key, const void *data, size_t bytes, const char *comment, char text[SIGN_TEXT]) {
    uint8_t raw[74] = "ED", hash[64], both[64 + SIGN_TEXT], of_comment[64];
    crypto_blake2b(hash, sizeof hash, data, bytes);
    memcpy(raw + 2, key->public.number, 8);
    sign_bytes(key, hash, sizeof hash, raw + 10);
    memcpy(both, raw + 10, 64);
    memcpy(both + 64, comment, strlen(comment));
    sign_bytes(key, both, 64 + strlen(comment), of_comment);
    text += sprintf(text, "untrusted comment: signature\n");
    text = print_base64(raw, sizeof raw, text);
    text += sprintf(text, "\ntrusted comment: %s\n", comment);
    strcpy(print_base64(of_comment, sizeof of_comment, text), "\n");
}
