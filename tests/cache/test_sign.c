/* Hashes and signatures: known values, what minisign itself made, and every way in which they can be wrong. */
#include "sign/minisign.h"
#include "sign/sha512.h"
#include "support/engine/sign.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

static uint64_t first_word(const uint8_t *hash) {
    uint64_t word = 0;
    for (int i = 0; i < 8; i++) word = word << 8 | hash[i];
    return word;
}

/* Lengths around the end of a block, in one piece and in pieces. */
static void sha512_has_the_values_of_others(void **state) {
    static const struct {
        size_t bytes;
        uint64_t word;
    } known[] = {{0, 0xcf83e1357eefb8bd},   {111, 0xa1a111449b198d9b}, {112, 0xc5fbd731d19d2ae1},
                 {127, 0xeab89674feaa34e2}, {128, 0x1dffd5e3adb71d45}, {300, 0xf1dca2eb677b3032}};
    uint8_t data[300], hash[AT_SHA512_BYTES];
    (void)state;
    for (size_t i = 0; i < sizeof data; i++) data[i] = (uint8_t)i;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        for (size_t piece = 1; piece <= 300; piece += 37) {
            at_sha512 sum;
            at_sha512_init(&sum);
            for (size_t at = 0; at < known[i].bytes; at += piece)
                at_sha512_add(&sum, data + at, known[i].bytes - at < piece ? known[i].bytes - at : piece);
            at_sha512_end(&sum, hash);
            if (first_word(hash) != known[i].word) fail_msg("%zu bytes by %zu", known[i].bytes, piece);
        }
}

static void blake2b_has_the_value_of_others(void **state) {
    uint8_t hash[AT_HASH_BYTES];
    (void)state;
    at_hash("abc", 3, hash);
    assert_true(first_word(hash) == 0xbddd813c63423972);
}

/* Made by minisign 0.11. */
static const char data[] = "header and index";
static const char key_text[] = "untrusted comment: minisign public key E514CDFAC0F16FE5\n"
                               "RWTlb/HA+s0U5b9vwSU4cLH5RYAmzBkFiDuY0sdekIZxUW1qfSD3SXUp\n";
static const char signature_text[] =
    "untrusted comment: signature from minisign secret key\n"
    "RUTlb/HA+s0U5fARkJURdzSbV+C5GnbWmMnui32uA6qG3mIED/ngicX4aBIyy60sdFubPf9RJKMaOKWSa/mfsJTwvjb0rrA3Ig0=\n"
    "trusted comment: a pack\n"
    "cCg1nugQtqxxk69/bWakpzopPGamgVNlCwLh41ec79roHKoU7Uqkj/OSXnt89sXu9/6f0nlDH2ikO9f88Fy6Dw==\n";

static bool is_good(const char *key_text_in, const char *text, size_t text_bytes, const void *bytes, size_t count) {
    at_public_key key;
    at_signature_of signature;
    return !at_public_key_parse(key_text_in, strlen(key_text_in), &key) &&
           !at_signature_parse(text, text_bytes, &signature) && at_signature_verify(&signature, &key, bytes, count);
}

static void minisign_is_understood(void **state) {
    at_public_key key;
    char number[AT_KEY_NUMBER_CHARS + 1];
    (void)state;
    assert_true(is_good(key_text, signature_text, strlen(signature_text), data, strlen(data)));
    assert_false(is_good(key_text, signature_text, strlen(signature_text), data, strlen(data) - 1));
    assert_null(at_public_key_parse(key_text, strlen(key_text), &key));
    at_key_number_print(key.number, number);
    assert_string_equal(number, "E514CDFAC0F16FE5");
}

/* Every byte after the untrusted comment counts, and every length. */
static void a_changed_signature_is_none(void **state) {
    char changed[sizeof signature_text];
    const size_t bytes = strlen(signature_text);
    (void)state;
    for (size_t i = 0; i < bytes; i++) {
        const bool is_comment = i >= strlen("untrusted comment:") && signature_text + i < strchr(signature_text, '\n');
        for (int bit = 0; bit < 8; bit++) {
            memcpy(changed, signature_text, sizeof changed);
            changed[i] ^= (char)(1 << bit);
            const bool good = is_good(key_text, changed, bytes, data, strlen(data));
            if (good && !is_comment) fail_msg("byte %zu, bit %d", i, bit);
        }
        assert_false(is_good(key_text, signature_text, i, data, strlen(data)));
    }
}

static void own_keys_sign_as_minisign_does(void **state) {
    sign_key one, other;
    char keys[2][SIGN_TEXT], text[SIGN_TEXT];
    (void)state;
    sign_key_make(&one, 1);
    sign_key_make(&other, 2);
    sign_print_key(&one, keys[0]);
    sign_print_key(&other, keys[1]);
    sign_print(&one, data, strlen(data), "comment", text);
    assert_true(is_good(keys[0], text, strlen(text), data, strlen(data)));
    assert_false(is_good(keys[1], text, strlen(text), data, strlen(data)));
}

static void sentences_say_what_is_wrong(void **state) {
    at_signature_of signature;
    at_public_key key;
    char text[sizeof signature_text + 16];
    (void)state;
    strcpy(text, signature_text);

    memcpy(strchr(text, '\n') + 1, "RWT", 3);
    assert_string_equal(at_signature_parse(text, strlen(text), &signature),
                        "it was made by minisign -l, of the bytes themselves and not of their hash");
    assert_string_equal(at_signature_parse("x\n", 2, &signature), "it does not begin as minisign's do");
    assert_string_equal(at_public_key_parse("x\n", 2, &key), "it does not begin as a key of minisign does");
    assert_string_equal(at_public_key_parse(signature_text, strlen(signature_text), &key),
                        "its second line is no public key");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sha512_has_the_values_of_others), cmocka_unit_test(blake2b_has_the_value_of_others),
        cmocka_unit_test(minisign_is_understood),          cmocka_unit_test(a_changed_signature_is_none),
        cmocka_unit_test(own_keys_sign_as_minisign_does),  cmocka_unit_test(sentences_say_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
