/* The safetensors reader: the contents of real files, and every way a file can lie about itself. */
#include "weights/safetensors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* A file in memory: the length of the header, the header, then `data_bytes` bytes 0, 1, 2, … In a block of its own, so
 * that AddressSanitizer sees a read beyond it. */
static unsigned char *make_file(const char *header, size_t data_bytes, size_t *size) {
    const size_t length = strlen(header);
    *size = 8 + length + data_bytes;
    unsigned char *const file = malloc(*size);
    assert_non_null(file);
    for (int i = 0; i < 8; i++) file[i] = (unsigned char)(length >> (8 * i));
    memcpy(file + 8, header, length);
    for (size_t i = 0; i < data_bytes; i++) file[8 + length + i] = (unsigned char)i;
    return file;
}

static void assert_refused_file(const void *file, size_t size, const char *title, const char *expected) {
    char message[ATTUNE_MESSAGE_BYTES] = "";
    safetensors t;
    const bool accepted = safetensors_parse(file, size, &t, message);
    if (accepted || !strstr(message, expected)) fail_msg("%s: got '%s', expected '%s'", title, message, expected);
    assert_null(t.list);
    assert_null(t.json);
}

static void assert_refused(const char *header, size_t data_bytes, const char *expected) {
    size_t size;
    unsigned char *const file = make_file(header, data_bytes, &size);
    assert_refused_file(file, size, header, expected);
    free(file);
}

#define TENSOR(name, type, shape, offsets)                                                                             \
    "\"" name "\":{\"dtype\":\"" type "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static void test_what_files_hold(void **state) {
    (void)state;
    /* Out of order, with metadata, spaces, an empty tensor, a scalar, an unaligned one and a dtype for others. */
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\",\"dtype\":\"F99\"}," TENSOR(
        "later", "F32", "[2, 3]", "[9,33]") "," TENSOR("first", "BF16", "[4]",
                                                       "[0,8]") "," TENSOR("empty", "F64", "[5,0,9223372036854775807]",
                                                                           "[33,33]") "," TENSOR("scalar", "U8", "[]",
                                                                                                 "[8,9]") "}    ";
    char message[ATTUNE_MESSAGE_BYTES] = "";
    size_t size;
    safetensors t;
    unsigned char *const file = make_file(header, 33, &size);
    if (!safetensors_parse(file, size, &t, message)) fail_msg("%s", message);
    assert_int_equal(t.count, 4);
    assert_null(safetensors_find(&t, "__metadata__"));
    assert_null(safetensors_find(&t, "fir"));
    const safetensor *const first = safetensors_find(&t, "first"), *const later = safetensors_find(&t, "later");
    const safetensor *const empty = safetensors_find(&t, "empty"), *const scalar = safetensors_find(&t, "scalar");
    assert_true(first && later && empty && scalar);
    assert_ptr_equal(first, t.list);
    assert_int_equal(first->dtype, ATTUNE_BF16);
    assert_string_equal(first->type, "BF16");
    assert_int_equal(first->offset, size - 33);
    assert_int_equal(later->rank, 2);
    assert_int_equal(later->shape[0], 2);
    assert_int_equal(later->shape[1], 3);
    assert_int_equal(later->bytes, 24);
    assert_int_equal(file[later->offset], 9);
    assert_int_equal(empty->rank, 3);
    assert_int_equal(empty->shape[2], INT64_MAX);
    assert_int_equal(empty->bytes, 0);
    assert_int_equal(scalar->rank, 0);
    assert_int_equal(scalar->dtype, ATTUNE_DTYPE_DEFAULT);
    safetensors_close(&t);
    free(file);
}

/* Each dtype of the format with the bytes of 8 elements. */
static void test_dtypes(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int bytes;
        attune_dtype dtype;
    } cases[] = {
        {"F32", 32, ATTUNE_F32},
        {"F16", 16, ATTUNE_F16},
        {"BF16", 16, ATTUNE_BF16},
        {"F64", 64, ATTUNE_F64},
        {"BOOL", 8, ATTUNE_BOOL},
        {"I32", 32, ATTUNE_I32},
        {"I8", 8, ATTUNE_DTYPE_DEFAULT},
        {"U8", 8, ATTUNE_DTYPE_DEFAULT},
        {"I16", 16, ATTUNE_DTYPE_DEFAULT},
        {"U16", 16, ATTUNE_DTYPE_DEFAULT},
        {"U32", 32, ATTUNE_DTYPE_DEFAULT},
        {"I64", 64, ATTUNE_DTYPE_DEFAULT},
        {"U64", 64, ATTUNE_DTYPE_DEFAULT},
        {"C64", 64, ATTUNE_DTYPE_DEFAULT},
        {"F4", 4, ATTUNE_DTYPE_DEFAULT},
        {"F6_E2M3", 6, ATTUNE_DTYPE_DEFAULT},
        {"F6_E3M2", 6, ATTUNE_DTYPE_DEFAULT},
        {"F8_E4M3", 8, ATTUNE_DTYPE_DEFAULT},
        {"F8_E4M3FNUZ", 8, ATTUNE_DTYPE_DEFAULT},
        {"F8_E5M2", 8, ATTUNE_DTYPE_DEFAULT},
        {"F8_E5M2FNUZ", 8, ATTUNE_DTYPE_DEFAULT},
        {"F8_E8M0", 8, ATTUNE_DTYPE_DEFAULT},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char header[200], message[ATTUNE_MESSAGE_BYTES] = "";
        safetensors t;
        size_t size;
        snprintf(header, sizeof header, "{\"a\":{\"dtype\":\"%s\",\"shape\":[2,4],\"data_offsets\":[0,%d]}}",
                 cases[i].name, cases[i].bytes);
        unsigned char *const file = make_file(header, (size_t)cases[i].bytes, &size);
        if (!safetensors_parse(file, size, &t, message)) fail_msg("%s: %s", cases[i].name, message);
        assert_string_equal(t.list[0].type, cases[i].name);
        assert_int_equal(t.list[0].dtype, cases[i].dtype);
        safetensors_close(&t);
        free(file);
    }
}

static void test_lengths_that_lie(void **state) {
    (void)state;
    unsigned char file[64] = {0};
    memcpy(file + 8, "{}", 2);
    assert_refused_file(NULL, 0, "empty", "it has 0 bytes");
    assert_refused_file(file, 7, "seven bytes", "it has 7 bytes");
    assert_refused_file(file, 8, "no header", "does not begin with '{'");
    assert_refused_file(file, 10, "header of length 0", "does not begin with '{'");
    file[0] = 3;
    assert_refused_file(file, 10, "one byte beyond", "its header of 3 bytes ends beyond its 10");
    memset(file, 0xff, 8);
    assert_refused_file(file, 10, "2^64 - 1", "its header of 18446744073709551615 bytes ends beyond its 10");
    memset(file, 0, 8);
    file[7] = 0x80;
    assert_refused_file(file, 64, "2^63", "its header of 9223372036854775808 bytes");
}

static void test_a_header_beyond_the_limit(void **state) {
    (void)state;
    const size_t length = 100000001, size = 8 + length;
    unsigned char *const file = calloc(size, 1);
    if (!file) skip();
    for (int i = 0; i < 8; i++) file[i] = (unsigned char)(length >> (8 * i));
    assert_refused_file(file, size, "too long a header", "100000001 bytes, more than the 100000000");
    free(file);
}

static void test_headers_that_are_no_list(void **state) {
    (void)state;
    assert_refused("[]", 0, "does not begin with '{'");
    assert_refused(" {}", 0, "does not begin with '{'");
    assert_refused("{", 0, "is not JSON: ");
    assert_refused("{}x", 0, "is not JSON: ");
    assert_refused("{\"a\":{\"dtype\":\"\xff\"}}", 0, "is not JSON: ");
    assert_refused("{" TENSOR("a", "F32", "[1]", "[0,4]") "," TENSOR("a", "F32", "[1]", "[4,8]") "}", 8,
                   "names a key twice: ");
    assert_refused("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}", 4,
                   "names a key twice: ");
    assert_refused("{\"a\":1}", 0, "tensor 'a' is described by something not an object");
    assert_refused("{\"a\":null}", 0, "not an object");
    assert_refused("{}", 1, "the last 1 bytes of the data belong to no tensor");
}

static void test_entries_that_lie(void **state) {
    (void)state;
    assert_refused("{\"a\":{}}", 0, "tensor 'a' has no dtype");
    assert_refused("{\"a\":{\"dtype\":32}}", 0, "tensor 'a' has no dtype");
    assert_refused("{" TENSOR("a", "f32", "[1]", "[0,4]") "}", 4, "tensor 'a' has the unknown dtype 'f32'");
    assert_refused("{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, "has a shape that is not a list");
    assert_refused("{" TENSOR("a", "F32", "4", "[0,16]") "}", 16, "has a shape that is not a list");
    assert_refused("{" TENSOR("a", "F32", "[1.0]", "[0,4]") "}", 4, "has a shape that is not a list");
    assert_refused("{" TENSOR("a", "F32", "[-1]", "[0,4]") "}", 4, "has a shape that is not a list");
    assert_refused("{" TENSOR("a", "F32", "[\"1\"]", "[0,4]") "}", 4, "has a shape that is not a list");
    assert_refused("{" TENSOR("a", "F32", "[99999999999999999999]", "[0,4]") "}", 4, "is not JSON: too big integer");
    assert_refused("{" TENSOR("a", "F32", "[4294967296,4294967296]", "[0,4]") "}", 4, "overflows 64 bits");
    assert_refused("{" TENSOR("a", "F64", "[2305843009213693952]", "[0,4]") "}", 4, "overflows 64 bits");
    /* 2^61 + 1 elements of 64 bits: 64 in arithmetic that wraps. */
    assert_refused("{" TENSOR("a", "F64", "[2305843009213693953]", "[0,8]") "}", 8, "overflows 64 bits");
    assert_refused("{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "data_offsets that are not two whole numbers");
    assert_refused("{" TENSOR("a", "F32", "[1]", "[0]") "}", 4, "not two whole numbers");
    assert_refused("{" TENSOR("a", "F32", "[1]", "[0,4,4]") "}", 4, "not two whole numbers");
    assert_refused("{" TENSOR("a", "F32", "[1]", "[-4,0]") "}", 4, "not two whole numbers");
    assert_refused("{" TENSOR("a", "F32", "[1]", "[0,4.5]") "}", 4, "not two whole numbers");
    assert_refused("{" TENSOR("a", "F32", "[1]", "[4,0]") "}", 4, "ends at byte 0, before it begins at byte 4");
    assert_refused("{" TENSOR("a", "F32", "[2]", "[0,8]") "}", 7,
                   "truncated: tensor 'a' ends at byte 8 of the data, "
                   "which has 7");
    assert_refused("{" TENSOR("a", "F32", "[1]", "[9223372036854775803,9223372036854775807]") "}", 4, "truncated");
    assert_refused("{" TENSOR("a", "F32", "[2]", "[0,4]") "}", 4, "has 2 elements of F32, which do not take the 4");
    assert_refused("{" TENSOR("a", "F32", "[1]", "[0,8]") "}", 8, "has 1 elements of F32, which do not take the 8");
    assert_refused("{" TENSOR("a", "F32", "[0]", "[0,4]") "}", 4, "has 0 elements of F32, which do not take the 4");
    assert_refused("{" TENSOR("a", "F4", "[3]", "[0,1]") "}", 1, "has 3 elements of F4, which do not take the 1");
}

static void test_places_that_do_not_cover(void **state) {
    (void)state;
    assert_refused("{" TENSOR("a", "F32", "[2]", "[0,8]") "," TENSOR("b", "F32", "[2]", "[4,12]") "}", 12,
                   "tensors 'a' and 'b' overlap at byte 4");
    assert_refused("{" TENSOR("a", "F32", "[1]", "[0,4]") "," TENSOR("b", "F32", "[1]", "[0,4]") "}", 4, "overlap");
    assert_refused("{" TENSOR("a", "F32", "[2]", "[0,8]") "," TENSOR("b", "F32", "[0]", "[4,4]") "}", 8, "overlap");
    assert_refused("{" TENSOR("a", "F32", "[1]", "[4,8]") "}", 8, "bytes 0 to 4 of the data, before tensor 'a'");
    assert_refused("{" TENSOR("b", "F32", "[1]", "[8,12]") "," TENSOR("a", "F32", "[1]", "[0,4]") "}", 12,
                   "bytes 4 to 8 of the data, before tensor 'b'");
    assert_refused("{" TENSOR("a", "F32", "[1]", "[0,4]") "}", 7, "the last 3 bytes of the data");
}

/* No prefix of a good file is one, and none is read beyond its end. */
static void test_every_truncation(void **state) {
    (void)state;
    size_t size;
    unsigned char *const file = make_file("{" TENSOR("a", "F32", "[2]", "[0,8]") "}", 8, &size);
    for (size_t length = 0; length < size; length++) {
        unsigned char *const part = malloc(length + !length);
        assert_non_null(part);
        memcpy(part, file, length);
        assert_refused_file(part, length, "a prefix", "");
        free(part);
    }
    free(file);
}

static void test_files_on_disk(void **state) {
    (void)state;
    char path[64] = "/tmp/attune-test-st-XXXXXX", message[ATTUNE_MESSAGE_BYTES] = "";
    safetensors t;
    size_t size;
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    assert_false(safetensors_open(path, &t, message)); /* an empty file cannot be mapped */
    assert_non_null(strstr(message, path));
    assert_non_null(strstr(message, "it has 0 bytes"));
    unsigned char *const file = make_file("{" TENSOR("a", "F32", "[2]", "[0,8]") "}", 8, &size);
    assert_int_equal(write(fd, file, size), size);
    if (!safetensors_open(path, &t, message)) fail_msg("%s", message);
    assert_int_equal(t.count, 1);
    assert_memory_equal(t.file + t.list[0].offset, file + size - 8, 8);
    safetensors_close(&t);
    assert_null(t.file);
    assert_int_equal(ftruncate(fd, (off_t)size - 1), 0);
    assert_false(safetensors_open(path, &t, message));
    assert_non_null(strstr(message, path));
    assert_non_null(strstr(message, "truncated"));
    free(file);
    close(fd);
    assert_int_equal(unlink(path), 0);
    assert_false(safetensors_open(path, &t, message));
    assert_non_null(strstr(message, "No such file"));
    assert_false(safetensors_open("/tmp", &t, message));
    assert_non_null(strstr(message, "/tmp: not a regular file"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_files_hold),
        cmocka_unit_test(test_dtypes),
        cmocka_unit_test(test_lengths_that_lie),
        cmocka_unit_test(test_a_header_beyond_the_limit),
        cmocka_unit_test(test_headers_that_are_no_list),
        cmocka_unit_test(test_entries_that_lie),
        cmocka_unit_test(test_places_that_do_not_cover),
        cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_files_on_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
