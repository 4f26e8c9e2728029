#include "npy.h"

#include "tool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    size_t bytes;
} types[NPY_TYPE_COUNT] = {
    [NPY_F4] = {"<f4", 4}, [NPY_F8] = {"<f8", 8}, [NPY_I4] = {"<i4", 4}, [NPY_I8] = {"<i8", 8}, [NPY_F2] = {"<f2", 2},
    [NPY_U2] = {"<u2", 2}, [NPY_I1] = {"|i1", 1}, [NPY_U1] = {"|u1", 1}, [NPY_B1] = {"|b1", 1}, [NPY_I2] = {"<i2", 2},
    [NPY_U4] = {"<u4", 4}, [NPY_U8] = {"<u8", 8}, [NPY_V2] = {"<V2", 2},
};

const char *npy_type_name(npy_type type) { return types[type].name; }
size_t npy_type_bytes(npy_type type) { return types[type].bytes; }

static double half_to_double(uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double magnitude = exponent == 31 ? (fraction ? NAN : INFINITY)
                             : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                            : ldexp(fraction, -24);
    return bits & 0x8000 ? -magnitude : magnitude;
}

static double bfloat_to_double(uint16_t bits) {
    const uint32_t upper = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &upper, sizeof value);
    return (double)value;
}

double npy_element(const npy_array *array, size_t index) {
    const void *const data = array->data;
    switch (array->header.type) {
    case NPY_F4: return (double)((const float *)data)[index];
    case NPY_F8: return ((const double *)data)[index];
    case NPY_F2: return half_to_double(((const uint16_t *)data)[index]);
    case NPY_V2: return bfloat_to_double(((const uint16_t *)data)[index]);
    case NPY_I1: return ((const int8_t *)data)[index];
    case NPY_I2: return ((const int16_t *)data)[index];
    case NPY_I4: return ((const int32_t *)data)[index];
    case NPY_I8: return (double)((const int64_t *)data)[index];
    case NPY_U1: return ((const uint8_t *)data)[index];
    case NPY_U2: return ((const uint16_t *)data)[index];
    case NPY_U4: return ((const uint32_t *)data)[index];
    case NPY_U8: return (double)((const uint64_t *)data)[index];
    case NPY_B1: return ((const uint8_t *)data)[index] != 0;
    case NPY_TYPE_COUNT: break;
    }
    return NAN;
}

/* ---- Reading ---- */

/* A cursor over the header's dictionary, which is a Python literal of a known form. */
typedef struct cursor {
    const char *at, *end;
    char *message;
} cursor;

static bool fail(cursor *c, const char *what) {
    snprintf(c->message, ATTUNE_MESSAGE_BYTES, "the .npy header %s", what);
    return false;
}

static void skip_space(cursor *c) {
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t')) c->at++;
}

static bool accept(cursor *c, char wanted) {
    skip_space(c);
    if (c->at == c->end || *c->at != wanted) return false;
    c->at++;
    return true;
}

static bool accept_word(cursor *c, const char *word) {
    const size_t length = strlen(word);
    skip_space(c);
    if ((size_t)(c->end - c->at) < length || memcmp(c->at, word, length) != 0) return false;
    c->at += length;
    return true;
}

/* A quoted text without escapes. */
static bool read_quoted(cursor *c, char *text, size_t capacity) {
    skip_space(c);
    if (c->at == c->end || (*c->at != '\'' && *c->at != '"')) return fail(c, "lacks a quoted name");
    const char quote = *c->at++;
    const char *const close = memchr(c->at, quote, (size_t)(c->end - c->at));
    if (!close || (size_t)(close - c->at) >= capacity) return fail(c, "has an unreadable quoted name");
    memcpy(text, c->at, (size_t)(close - c->at));
    text[close - c->at] = 0;
    c->at = close + 1;
    return true;
}

static bool read_dimension(cursor *c, int64_t *value) {
    int64_t total = 0;
    const char *const start = c->at;
    for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; c->at++)
        if (__builtin_mul_overflow(total, (int64_t)10, &total) ||
            __builtin_add_overflow(total, (int64_t)(*c->at - '0'), &total))
            return fail(c, "has a dimension that overflows 64 bits");
    if (c->at == start) return fail(c, "has a shape that is not a tuple of whole numbers");
    accept(c, 'L'); /* as Python 2 wrote long integers */
    *value = total;
    return true;
}

static bool read_shape(cursor *c, npy_header *header) {
    if (!accept(c, '(')) return fail(c, "has a shape that is not a tuple");
    header->rank = 0;
    while (!accept(c, ')')) {
        if (header->rank == NPY_MAX_RANK) return fail(c, "has more than 8 dimensions");
        skip_space(c);
        if (!read_dimension(c, &header->shape[header->rank++])) return false;
        if (accept(c, ',')) continue;
        if (!accept(c, ')')) return fail(c, "has a shape that is not a tuple");
        break;
    }
    return true;
}

static bool read_type(cursor *c, npy_header *header) {
    char name[16] = ""; /* an empty name has no second character to look at */
    if (!read_quoted(c, name, sizeof name)) return false;
    for (int type = 0; type < NPY_TYPE_COUNT; type++) {
        if (strcmp(name + 1, types[type].name + 1) != 0) continue;
        if (name[0] == '>' && types[type].bytes > 1) {
            snprintf(c->message, ATTUNE_MESSAGE_BYTES, "dtype '%s' is big-endian; only little-endian is read", name);
            return false;
        }
        header->type = (npy_type)type;
        return true;
    }
    snprintf(c->message, ATTUNE_MESSAGE_BYTES, "dtype '%s' is not supported", name);
    return false;
}

static bool read_order(cursor *c) {
    if (accept_word(c, "False")) return true;
    if (!accept_word(c, "True")) return fail(c, "has a fortran_order that is neither True nor False");
    snprintf(c->message, ATTUNE_MESSAGE_BYTES, "the array is in Fortran order; only C order is read");
    return false;
}

static bool read_dictionary(cursor *c, npy_header *header) {
    unsigned seen = 0;
    if (!accept(c, '{')) return fail(c, "is not a dictionary");
    while (!accept(c, '}')) {
        char key[32];
        if (!read_quoted(c, key, sizeof key)) return false;
        if (!accept(c, ':')) return fail(c, "lacks a ':' after a key");
        unsigned bit = 0;
        bool good = false;
        if (strcmp(key, "descr") == 0)
            bit = 1, good = read_type(c, header);
        else if (strcmp(key, "fortran_order") == 0)
            bit = 2, good = read_order(c);
        else if (strcmp(key, "shape") == 0)
            bit = 4, good = read_shape(c, header);
        else
            return fail(c, "has a key other than descr, fortran_order and shape");
        if (!good) return false;
        if (seen & bit) return fail(c, "names a key twice");
        seen |= bit;
        if (accept(c, ',')) continue;
        if (!accept(c, '}')) return fail(c, "is a dictionary that does not end");
        break;
    }
    skip_space(c);
    if (c->at != c->end) return fail(c, "has text after its dictionary");
    return seen == 7 || fail(c, "lacks one of descr, fortran_order and shape");
}

static bool count_elements(npy_header *header, size_t *bytes) {
    size_t count = 1;
    for (size_t i = 0; i < header->rank; i++)
        if (__builtin_mul_overflow(count, (size_t)header->shape[i], &count)) return false;
    header->count = count;
    return !__builtin_mul_overflow(count, types[header->type].bytes, bytes) && *bytes <= PTRDIFF_MAX;
}

bool npy_parse_header(const void *file, size_t size, npy_header *header, char message[ATTUNE_MESSAGE_BYTES]) {
    const unsigned char *const b = file;
    if (size < 10 || memcmp(b, "\x93NUMPY", 6) != 0) {
        snprintf(message, ATTUNE_MESSAGE_BYTES, "this is not a .npy file (%zu bytes, no \\x93NUMPY at the start)",
                 size);
        return false;
    }
    if (b[6] < 1 || b[6] > 3) {
        snprintf(message, ATTUNE_MESSAGE_BYTES, ".npy version %d.%d is not supported; 1 to 3 are", b[6], b[7]);
        return false;
    }
    const size_t prefix = b[6] == 1 ? 10 : 12;
    size_t length = 0;
    if (size >= prefix) {
        length = (size_t)b[8] | (size_t)b[9] << 8;
        if (prefix == 12) length |= (size_t)b[10] << 16 | (size_t)b[11] << 24;
    }
    if (size < prefix || length > size - prefix) {
        snprintf(message, ATTUNE_MESSAGE_BYTES, "the file is truncated: its header ends at byte %zu of %zu",
                 prefix + length, size);
        return false;
    }
    cursor c = {(const char *)b + prefix, (const char *)b + prefix + length, message};
    *header = (npy_header){.offset = prefix + length};
    size_t bytes = 0;
    if (!read_dictionary(&c, header)) return false;
    char shape[NPY_SHAPE_TEXT];
    npy_print_shape(header->rank, header->shape, shape);
    if (!count_elements(header, &bytes)) {
        snprintf(message, ATTUNE_MESSAGE_BYTES, "shape %s overflows the size of memory", shape);
        return false;
    }
    const size_t follows = size - header->offset;
    if (follows == bytes) return true;
    snprintf(message, ATTUNE_MESSAGE_BYTES, "%s: shape %s of %s needs %zu bytes of data, %zu follow",
             follows < bytes ? "the file is truncated" : "data follows the array", shape, types[header->type].name,
             bytes, follows);
    return false;
}

bool npy_read(const char *path, npy_array *array, char message[ATTUNE_MESSAGE_BYTES]) {
    size_t size = 0;
    char detail[ATTUNE_MESSAGE_BYTES];
    *array = (npy_array){0};
    char *const file = tool_read_file(path, &size, message);
    if (!file) return false;
    if (!npy_parse_header(file, size, &array->header, detail)) {
        snprintf(message, ATTUNE_MESSAGE_BYTES, "%.120s: %.380s", path, detail);
        free(file);
        return false;
    }
    /* The block is aligned, its head is not wanted any more: the data takes its place. */
    memmove(file, file + array->header.offset, array->header.count * types[array->header.type].bytes);
    array->data = file;
    return true;
}

bool npy_create(npy_type type, size_t rank, const int64_t *shape, npy_array *array,
                char message[ATTUNE_MESSAGE_BYTES]) {
    size_t bytes = 0;
    *array = (npy_array){.header = {.type = type, .rank = rank}};
    memcpy(array->header.shape, shape, rank * sizeof *shape);
    /* At least one block, so that an array without elements has an address, too. */
    if (count_elements(&array->header, &bytes) && bytes <= PTRDIFF_MAX - 64)
        array->data = aligned_alloc(64, bytes / 64 * 64 + 64);
    if (array->data) {
        memset(array->data, 0, bytes);
        return true;
    }
    char text[NPY_SHAPE_TEXT];
    snprintf(message, ATTUNE_MESSAGE_BYTES, "out of memory: an array of shape %s is needed",
             npy_print_shape(rank, shape, text));
    return false;
}

void npy_free(npy_array *array) {
    free(array->data);
    array->data = NULL;
}

/* ---- Writing ---- */

const char *npy_print_shape(size_t rank, const int64_t *shape, char text[NPY_SHAPE_TEXT]) {
    size_t length = 0;
    text[length++] = '(';
    for (size_t i = 0; i < rank; i++)
        length +=
            (size_t)snprintf(text + length, NPY_SHAPE_TEXT - length, "%s%lld", i ? ", " : "", (long long)shape[i]);
    snprintf(text + length, NPY_SHAPE_TEXT - length, rank == 1 ? ",)" : ")");
    return text;
}

bool npy_write(const char *path, npy_type type, size_t rank, const int64_t *shape, const void *data,
               char message[ATTUNE_MESSAGE_BYTES]) {
    char shape_text[NPY_SHAPE_TEXT], head[448];
    size_t count = 1;
    for (size_t i = 0; i < rank; i++) count *= (size_t)shape[i];
    const int dictionary =
        snprintf(head + 10, sizeof head - 10, "{'descr': '%s', 'fortran_order': False, 'shape': %s, }",
                 types[type].name, npy_print_shape(rank, shape, shape_text));
    /* As NumPy does: spaces and a line end until the data starts at a multiple of 64. */
    const size_t total = (10 + (size_t)dictionary + 1 + 63) & ~(size_t)63;
    memset(head + 10 + dictionary, ' ', total - 10 - (size_t)dictionary);
    head[total - 1] = '\n';
    memcpy(head, "\x93NUMPY\x01\x00", 8);
    head[8] = (char)((total - 10) & 0xff);
    head[9] = (char)((total - 10) >> 8);
    return tool_write_file(path, head, total, data, count * types[type].bytes, message);
}
