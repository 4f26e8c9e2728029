/* The .npy reader and writer: round trips, NumPy's files, and every way a file can be wrong. */
#include "common/npy.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

/* A file in memory: the magic, the version, the length of the header, the header, then `data_bytes` zeros. */
static size_t make_file(unsigned char *file, int version, const char *header, size_t data_bytes) {
    const size_t length = strlen(header), prefix = version == 1 ? 10 : 12;
    memcpy(file, "\x93NUMPY", 6);
    file[6] = (unsigned char)version;
    file[7] = 0;
    for (size_t i = 8; i < prefix; i++) file[i] = (unsigned char)(length >> (8 * (i - 8)));
    memcpy(file + prefix, header, length);
    memset(file + prefix + length, 0, data_bytes);
    return prefix + length + data_bytes;
}

static void assert_file_refused(const char *name, const void *file, size_t size, const char *expected) {
    char message[ATTUNE_MESSAGE_BYTES] = "";
    npy_header h;
    const bool accepted = npy_parse_header(file, size, &h, message);
    if (accepted || !strstr(message, expected)) fail_msg("%s: got '%s', expected '%s'", name, message, expected);
}

static void assert_refused(int version, const char *header, size_t data_bytes, const char *expected) {
    unsigned char file[1024];
    assert_file_refused(header, file, make_file(file, version, header, data_bytes), expected);
}

/* A header of a fixed length, with NULs in it. */
static void assert_header_refused(const char *header, size_t length, size_t data_bytes, const char *expected) {
    unsigned char file[1024] = "\x93NUMPY\x01";
    file[8] = (unsigned char)length;
    memcpy(file + 10, header, length);
    assert_file_refused(header, file, 10 + length + data_bytes, expected);
}
#define assert_bytes_refused(header, data_bytes, expected)                                                             \
    assert_header_refused(header, sizeof(header) - 1, data_bytes, expected)

static void test_headers_that_numpy_writes(void **state) {
    (void)state;
    static const char *const headers[] = {
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }          \n",
        "{\"shape\": (2L, 3L), \"descr\": \"<f4\", \"fortran_order\": False}\n",
        "{'fortran_order':False,'shape':(2,3,),'descr':'<f4'}",
    };
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++)
        for (int version = 1; version <= 3; version++) {
            unsigned char file[512];
            char message[ATTUNE_MESSAGE_BYTES] = "";
            npy_header h;
            const size_t size = make_file(file, version, headers[i], 24);
            if (!npy_parse_header(file, size, &h, message)) fail_msg("%s: %s", headers[i], message);
            assert_int_equal(h.type, NPY_F4);
            assert_int_equal(h.rank, 2);
            assert_int_equal(h.shape[0], 2);
            assert_int_equal(h.shape[1], 3);
            assert_int_equal(h.count, 6);
            assert_int_equal(h.offset, size - 24);
        }
}

static void test_shapes_of_any_rank(void **state) {
    (void)state;
    static const struct {
        const char *shape;
        size_t rank, count;
    } cases[] = {{"()", 0, 1}, {"(5,)", 1, 5}, {"(0, 7)", 2, 0}, {"(1, 2, 1, 2, 1, 1, 1, 1)", 8, 4}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unsigned char file[512];
        char header[256], message[ATTUNE_MESSAGE_BYTES] = "";
        npy_header h;
        snprintf(header, sizeof header, "{'descr': '<i8', 'fortran_order': False, 'shape': %s}", cases[i].shape);
        const size_t size = make_file(file, 1, header, cases[i].count * 8);
        if (!npy_parse_header(file, size, &h, message)) fail_msg("%s: %s", header, message);
        assert_int_equal(h.rank, cases[i].rank);
        assert_int_equal(h.count, cases[i].count);
    }
}

static void test_refusals(void **state) {
    (void)state;
#define HEADER(descr, order, shape) "{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape "}"
    assert_refused(1, HEADER("'>f4'", "False", "(2,)"), 8, "'>f4' is big-endian");
    assert_refused(1, HEADER("'<f16'", "False", "(2,)"), 32, "'<f16' is not supported");
    assert_refused(1, HEADER("'|V4'", "False", "(2,)"), 8, "'|V4' is not supported");
    assert_refused(1, HEADER("'>V2'", "False", "(2,)"), 4, "'>V2' is big-endian");
    assert_refused(1, HEADER("''", "False", "(2,)"), 4, "'' is not supported");
    assert_refused(1, HEADER("'|O'", "False", "(2,)"), 16, "'|O' is not supported");
    assert_refused(1, HEADER("[('x', '<f4')]", "False", "(2,)"), 8, "has a structured dtype");
    assert_refused(1, HEADER("'<f4'", "True", "(2, 3)"), 20, "truncated: shape (2, 3) of <f4 needs 24 bytes");
    assert_refused(1, HEADER("'x<f4'", "False", "(2,)"), 8, "'x<f4' is not supported");
    assert_refused(1, HEADER("'xf4'", "False", "(2,)"), 8, "'xf4' is not supported");
    assert_refused(1, HEADER("'<f4'", "None", "(2, 3)"), 24, "neither True nor False");
    assert_refused(1, HEADER("'<f4'", "False", "(2, 3)"), 23,
                   "truncated: shape (2, 3) of <f4 needs 24 bytes of data, 23");
    assert_refused(1, HEADER("'<f4'", "False", "(2, 3)"), 25, "data follows the array");
    assert_refused(1, HEADER("'<f4'", "False", "(2, 3)"), 0, "truncated");
    assert_refused(1, HEADER("'<f4'", "False", "(-2, 3)"), 24, "not a tuple of whole numbers");
    assert_refused(1, HEADER("'<f4'", "False", "(2.5,)"), 8, "not a tuple");
    assert_refused(1, HEADER("'<f4'", "False", "2"), 8, "not a tuple");
    assert_refused(1, HEADER("'<f4'", "False", "(1,1,1,1,1,1,1,1,1)"), 4, "more than 8 dimensions");
    assert_refused(1, HEADER("'<f4'", "False", "(99999999999999999999,)"), 0, "overflows 64 bits");
    assert_refused(1, HEADER("'<f4'", "False", "(4294967296, 4294967296)"), 0, "overflows the size of memory");
    assert_refused(1, HEADER("'<f8'", "False", "(2305843009213693952,)"), 0, "overflows the size of memory");
    assert_refused(1, "{'descr': '<f4', 'shape': (2,)}", 8, "lacks one of");
    assert_refused(1, "{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (2,)}", 8, "twice");
    assert_refused(1, HEADER("'<f4'", "False", "(2,)") "x", 8, "after its dictionary");
    assert_refused(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2,), 'extra': 1}", 8, "other than");
    assert_refused(1, "{'descr': '<f4', 'fortran_order': False, 'shape': (2,)", 8, "does not end");
    assert_refused(1, "", 0, "not a dictionary");
    /* The strings of C end at a NUL; those of a file do not. */
    assert_bytes_refused("{'descr': '<f4\0', 'fortran_order': False, 'shape': (2,)}", 8, "has a NUL in a quoted name");
    assert_bytes_refused("{'descr\0': '<f4', 'fortran_order': False, 'shape': (2,)}", 8, "has a NUL in a quoted name");
    assert_refused(4, HEADER("'<f4'", "False", "(2,)"), 8, "version 4.0");
#undef HEADER
}

/* A file that test_files wants; the name ends in XXXXXX. */
static void write_file(char *path, const void *bytes, size_t count) {
    const int fd = mkstemp(path);
    assert_true(fd >= 0 && write(fd, bytes, count) == (ssize_t)count && close(fd) == 0);
}

static void test_fortran_order(void **state) {
    (void)state;
    static const struct {
        const char *descr, *shape;
        npy_type type;
        size_t rank;
        int64_t dims[4];
    } cases[] = {
        {"<i4", "(3, 4)", NPY_I4, 2, {3, 4}},
        {"|u1", "(2, 3, 4)", NPY_U1, 3, {2, 3, 4}},
        {"<f8", "(2, 1, 3, 2)", NPY_F8, 4, {2, 1, 3, 2}},
        {"<i2", "(5,)", NPY_I2, 1, {5}},
        {"<i8", "(2, 0, 3)", NPY_I8, 3, {2, 0, 3}},
    };
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        char path[] = "/tmp/attune-npy-XXXXXX", header[128], message[ATTUNE_MESSAGE_BYTES] = "";
        const size_t width = npy_type_bytes(cases[c].type);
        size_t count = 1;
        for (size_t d = 0; d < cases[c].rank; d++) count *= (size_t)cases[c].dims[d];
        unsigned char file[1024];
        snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': True, 'shape': %s}", cases[c].descr,
                 cases[c].shape);
        const size_t size = make_file(file, 1, header, count * width);
        for (size_t i = 0; i < count; i++) {
            const double number = (double)i;
            if (cases[c].type == NPY_F8)
                memcpy(file + size - (count - i) * width, &number, width);
            else
                file[size - (count - i) * width] = (unsigned char)i;
        }
        write_file(path, file, size);
        npy_array array;
        if (!npy_read(path, &array, message)) fail_msg("%s: %s", header, message);
        unlink(path);
        /* Element i of the array has the index that the dims give; in the file the first one is the fastest. */
        for (size_t i = 0; i < count; i++) {
            size_t rest = i, index[4], place = 0;
            for (size_t d = cases[c].rank; d-- > 0; rest /= (size_t)cases[c].dims[d])
                index[d] = rest % (size_t)cases[c].dims[d];
            for (size_t d = cases[c].rank; d-- > 0;) place = place * (size_t)cases[c].dims[d] + index[d];
            if (npy_element(&array, i) != (double)place)
                fail_msg("%s: element %zu is %g instead of %zu", header, i, npy_element(&array, i), place);
        }
        npy_free(&array);
    }
}

/* A stream tells neither its length nor whether it ends. */
static void test_streams(void **state) {
    (void)state;
    static const char header[] = "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 3)}";
    unsigned char file[1024];
    const size_t size = make_file(file, 1, header, 24);
    static const struct {
        int more; /* bytes after the array */
        const char *message;
    } cases[] = {
        {0, NULL}, {-1, "truncated"}, {-24, "truncated"}, {1, "25 or more follow"}, {100, "25 or more follow"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[64], message[ATTUNE_MESSAGE_BYTES] = "";
        int ends[2];
        npy_array array;
        assert_int_equal(pipe(ends), 0);
        const size_t bytes = (size_t)((int)size + cases[i].more);
        assert_int_equal(write(ends[1], file, bytes), bytes);
        close(ends[1]);
        snprintf(path, sizeof path, "/dev/fd/%d", ends[0]);
        const bool is_read = npy_read(path, &array, message);
        if (is_read != !cases[i].message || (cases[i].message && !strstr(message, cases[i].message)))
            fail_msg("case %zu: '%s'", i, message);
        if (is_read) npy_free(&array);
        close(ends[0]);
    }
    npy_array array;
    char message[ATTUNE_MESSAGE_BYTES] = "";
    assert_false(npy_read("/dev/zero", &array, message));
    assert_non_null(strstr(message, "/dev/zero: this is not a .npy file"));
    assert_null(array.data);
}

static void test_header_without_end(void **state) {
    (void)state;
    char path[] = "/tmp/attune-npy-XXXXXX", message[ATTUNE_MESSAGE_BYTES] = "";
    npy_array array;
    write_file(path, "\x93NUMPY\x02\0\xff\xff\xff\xff{'descr'", 20);
    assert_false(npy_read(path, &array, message));
    assert_non_null(strstr(message, "the .npy header has 4294967307 bytes; at most"));
    unlink(path);
}

static void test_more_than_memory(void **state) {
    (void)state;
    char path[] = "/tmp/attune-npy-XXXXXX", message[ATTUNE_MESSAGE_BYTES] = "";
    unsigned char file[1024];
    npy_array array;
    /* A file with a hole: nothing of it is on the disk. */
    const size_t size =
        make_file(file, 1, "{'descr': '|u1', 'fortran_order': False, 'shape': (8192, 1048576, 1024)}", 0);
    write_file(path, file, size);
    if (truncate(path, (off_t)size + (INT64_C(1) << 43)) == 0) {
        assert_false(npy_read(path, &array, message));
        assert_non_null(strstr(message, "more than this machine's memory"));
    }
    unlink(path);
}

static void test_elements_of_every_type(void **state) {
    (void)state;
    static const struct {
        npy_type type;
        unsigned char bytes[8]; /* little-endian */
        double value;
    } cases[] = {
        {NPY_F4, {0, 0, 0xc0, 0xbf}, -1.5},
        {NPY_F8, {0, 0, 0, 0, 0, 0, 0xf8, 0x3f}, 1.5},
        {NPY_F2, {0x00, 0x3c}, 1},
        {NPY_F2, {0xff, 0xfb}, -65504},
        {NPY_F2, {0x01, 0x00}, 0x1p-24},
        {NPY_F2, {0xff, 0x83}, -1023 * 0x1p-24},
        {NPY_F2, {0x00, 0x04}, 0x1p-14},
        {NPY_F2, {0x00, 0xfc}, -INFINITY},
        {NPY_V2, {0xc0, 0xbf}, -1.5},
        {NPY_V2, {0x01, 0x00}, 0x1p-133},
        {NPY_V2, {0x80, 0x7f}, INFINITY},
        {NPY_I1, {0x80}, -128},
        {NPY_I2, {0xfe, 0xff}, -2},
        {NPY_I4, {0, 0, 0, 0x80}, -2147483648.0},
        {NPY_I8, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff}, -1},
        {NPY_U1, {0xff}, 255},
        {NPY_U2, {0xff, 0xff}, 65535},
        {NPY_U4, {0, 0, 0, 0x80}, 2147483648.0},
        {NPY_U8, {0, 0, 0, 0, 0, 0, 0, 0x80}, 0x1p63},
        {NPY_B1, {2}, 1},
        {NPY_B1, {0}, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char message[ATTUNE_MESSAGE_BYTES];
        const int64_t shape[1] = {2};
        npy_array array;
        assert_true(npy_create(cases[i].type, 1, shape, &array, message));
        const size_t bytes = npy_type_bytes(cases[i].type);
        memcpy((char *)array.data + bytes, cases[i].bytes, bytes);
        if (npy_element(&array, 0) != 0 || npy_element(&array, 1) != cases[i].value)
            fail_msg("case %zu, %s: got %g, expected %g", i, npy_type_name(cases[i].type), npy_element(&array, 1),
                     cases[i].value);
        npy_free(&array);
    }
    uint16_t nan = 0x7e00;
    assert_true(isnan(npy_element(&(npy_array){{.type = NPY_F2}, &nan}, 0)));
    nan = 0x7f81;
    assert_true(isnan(npy_element(&(npy_array){{.type = NPY_V2}, &nan}, 0)));
}

static void test_creating(void **state) {
    (void)state;
    char message[ATTUNE_MESSAGE_BYTES] = "";
    static const int64_t none[2] = {0, 7}, huge[2] = {INT64_C(1) << 40, INT64_C(1) << 40};
    npy_array array;
    assert_true(npy_create(NPY_F8, 2, none, &array, message));
    assert_int_equal(array.header.count, 0);
    assert_non_null(array.data);
    npy_free(&array);
    assert_false(npy_create(NPY_F8, 2, huge, &array, message));
    assert_non_null(strstr(message, "out of memory: an array of shape (1099511627776, 1099511627776)"));
}

/* No prefix of a good file is accepted, and none is read beyond its end (each is a block of its own for ASan). */
static void test_every_truncation(void **state) {
    (void)state;
    unsigned char file[512];
    const size_t size = make_file(file, 2, "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n", 24);
    for (size_t length = 0; length < size; length++) {
        char message[ATTUNE_MESSAGE_BYTES] = "";
        npy_header h;
        unsigned char *const part = malloc(length + !length);
        assert_non_null(part);
        memcpy(part, file, length);
        assert_false(npy_parse_header(part, length, &h, message));
        assert_true(message[0] != 0);
        free(part);
    }
}

static void test_round_trip(void **state) {
    (void)state;
    char path[64] = "/tmp/attune-test-npy-XXXXXX", message[ATTUNE_MESSAGE_BYTES] = "";
    const int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    const int64_t shape[3] = {2, 3, 4};
    double data[24];
    for (int i = 0; i < 24; i++) data[i] = i * 1.25 - 7;
    for (size_t rank = 0; rank <= 3; rank++) {
        npy_array array;
        assert_true(npy_write(path, NPY_F8, rank, shape, data, message));
        if (!npy_read(path, &array, message)) fail_msg("%s", message);
        assert_int_equal(array.header.rank, rank);
        assert_int_equal(array.header.offset % 64, 0);
        assert_memory_equal(array.header.shape, shape, rank * sizeof *shape);
        assert_int_equal((uintptr_t)array.data % 64, 0);
        assert_memory_equal(array.data, data, array.header.count * sizeof *data);
        npy_free(&array);
    }
    assert_int_equal(unlink(path), 0);
    npy_array array;
    assert_false(npy_read(path, &array, message));
    assert_non_null(strstr(message, path));
    assert_non_null(strstr(message, "No such file"));
}

/* A write that fails leaves the old file, and no temporary file. */
static void test_failed_write_keeps_the_old_file(void **state) {
    (void)state;
    char directory[64] = "/tmp/attune-test-npy-XXXXXX", path[128], message[ATTUNE_MESSAGE_BYTES] = "";
    assert_non_null(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/missing/a.npy", directory);
    const int64_t shape[1] = {2};
    const float data[2] = {1, 2};
    assert_false(npy_write(path, NPY_F4, 1, shape, data, message));
    assert_non_null(strstr(message, path));
    assert_false(npy_write("/dev/full", NPY_F4, 1, shape, data, message));
    assert_non_null(strstr(message, "/dev/full: cannot write: No space left on device"));
    assert_int_equal(rmdir(directory), 0); /* so it is empty */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_headers_that_numpy_writes),
        cmocka_unit_test(test_shapes_of_any_rank),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_fortran_order),
        cmocka_unit_test(test_streams),
        cmocka_unit_test(test_header_without_end),
        cmocka_unit_test(test_more_than_memory),
        cmocka_unit_test(test_elements_of_every_type),
        cmocka_unit_test(test_creating),
        cmocka_unit_test(test_every_truncation),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_failed_write_keeps_the_old_file),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
