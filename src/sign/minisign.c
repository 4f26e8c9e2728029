/* Reads keys and signatures, which are lines of base64, and verifies them with Monocypher's curve arithmetic. */
#include "sign/minisign.h"

#include "sign/sha512.h"

#include <monocypher.h>
#include <stdio.h>
#include <string.h>

/* ---- Text ---- */

typedef struct text_line {
    const char *text;
    size_t bytes;
} text_line;

/* The next line without its end. */
static text_line next_line(const char **at, const char *end) {
    const char *const newline = *at < end ? memchr(*at, '\n', (size_t)(end - *at)) : NULL;
    const text_line line = {*at, (size_t)((newline ? newline : end) - *at)};
    *at = newline ? newline + 1 : end;
    return line;
}

static int digit_of(char c) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *const found = c ? strchr(digits, c) : NULL;
    return found ? (int)(found - digits) : -1;
}

/* Base64 of exactly so many bytes. Bits that are left over must be 0, so that bytes have one text. */
static bool decode(text_line line, uint8_t *out, size_t bytes) {
    if (line.bytes != (bytes + 2) / 3 * 4) return false;
    uint32_t bits = 0;
    int held = 0;
    size_t at = 0;
    for (size_t i = 0; i < line.bytes; i++) {
        const int digit = digit_of(line.text[i]);
        if (digit < 0) break;
        bits = (bits << 6 | (uint32_t)digit) & 0xffff;
        held += 6;
        if (held < 8) continue;
        held -= 8;
        if (at == bytes) return false;
        out[at++] = (uint8_t)(bits >> held);
    }
    const size_t padding = (3 - bytes % 3) % 3;
    for (size_t i = 0; i < padding; i++)
        if (line.text[line.bytes - 1 - i] != '=') return false;
    return at == bytes && !(bits & ((1U << held) - 1));
}

static bool starts_with(text_line line, const char *word) {
    return line.bytes >= strlen(word) && !memcmp(line.text, word, strlen(word));
}

const char *at_public_key_parse(const char *text, size_t bytes, at_public_key *key) {
    uint8_t raw[2 + AT_KEY_NUMBER_BYTES + AT_PUBLIC_KEY_BYTES];
    const char *at = text, *const end = text + bytes;
    if (!starts_with(next_line(&at, end), "untrusted comment:")) return "it does not begin as a key of minisign does";
    if (!decode(next_line(&at, end), raw, sizeof raw)) return "its second line is no public key";
    if (memcmp(raw, "Ed", 2)) return "it is a key of another kind than ed25519";
    memcpy(key->number, raw + 2, AT_KEY_NUMBER_BYTES);
    memcpy(key->key, raw + 2 + AT_KEY_NUMBER_BYTES, AT_PUBLIC_KEY_BYTES);
    return NULL;
}

const char *at_signature_parse(const char *text, size_t bytes, at_signature_of *signature) {
    static const char trusted[] = "trusted comment: ";
    uint8_t raw[2 + AT_KEY_NUMBER_BYTES + AT_SIGNATURE_BYTES];
    const char *at = text, *const end = text + bytes;
    if (!starts_with(next_line(&at, end), "untrusted comment:")) return "it does not begin as minisign's do";
    if (!decode(next_line(&at, end), raw, sizeof raw)) return "its second line is no signature";
    if (memcmp(raw, "ED", 2)) return "it was made by minisign -l, of the bytes themselves and not of their hash";
    const text_line comment = next_line(&at, end);
    if (!starts_with(comment, trusted)) return "it has no trusted comment";
    if (!decode(next_line(&at, end), signature->of_comment, AT_SIGNATURE_BYTES))
        return "its fourth line is no signature";
    if (at != end || end[-1] != '\n') return "it does not end after four lines";
    memcpy(signature->number, raw + 2, AT_KEY_NUMBER_BYTES);
    memcpy(signature->of_data, raw + 2 + AT_KEY_NUMBER_BYTES, AT_SIGNATURE_BYTES);
    signature->comment = comment.text + strlen(trusted);
    signature->comment_bytes = comment.bytes - strlen(trusted);
    return NULL;
}

void at_key_number_print(const uint8_t number[AT_KEY_NUMBER_BYTES], char text[AT_KEY_NUMBER_CHARS + 1]) {
    for (int i = 0; i < AT_KEY_NUMBER_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02X", number[AT_KEY_NUMBER_BYTES - 1 - i]);
}

/* ---- Arithmetic ---- */

/* ed25519 as RFC 8032 has it; Monocypher's own signatures are with BLAKE2b instead of SHA-512. */
static bool is_signed(const uint8_t signature[AT_SIGNATURE_BYTES], const at_public_key *key, const void *first,
                      size_t first_bytes, const void *second, size_t second_bytes) {
    uint8_t hash[AT_SHA512_BYTES], reduced[32];
    at_sha512 sum;
    at_sha512_init(&sum);
    at_sha512_add(&sum, signature, 32);
    at_sha512_add(&sum, key->key, AT_PUBLIC_KEY_BYTES);
    at_sha512_add(&sum, first, first_bytes);
    at_sha512_add(&sum, second, second_bytes);
    at_sha512_end(&sum, hash);
    crypto_eddsa_reduce(reduced, hash);
    return crypto_eddsa_check_equation(signature, key->key, reduced) == 0;
}

bool at_signature_verify(const at_signature_of *signature, const at_public_key *key, const void *data, size_t bytes) {
    uint8_t hash[64];
    if (memcmp(signature->number, key->number, sizeof key->number)) return false;
    crypto_blake2b(hash, sizeof hash, data, bytes);
    return is_signed(signature->of_data, key, hash, sizeof hash, NULL, 0) &&
           is_signed(signature->of_comment, key, signature->of_data, AT_SIGNATURE_BYTES, signature->comment,
                     signature->comment_bytes);
}

void at_hash(const void *data, size_t bytes, uint8_t hash[AT_HASH_BYTES]) {
    crypto_blake2b(hash, AT_HASH_BYTES, data, bytes);
}
