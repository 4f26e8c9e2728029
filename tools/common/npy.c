/* The header is a Python dictionary of three known keys, read by a cursor that accepts nothing else; elements are read
 * as double whatever their type is. */
#include "common/npy.h"

#include "common/input.h"
#include "common/tool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* NumPy's own headers have some hundred bytes. */
enum { MAX_HEADER = 65536 + 12 };

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
    const size_t length = close ? (size_t)(close - c->at) : 0;
    if (!close || length >= capacity) return fail(c, "has an unreadable quoted name");
    if (memchr(c->at, 0, length)) return fail(c, "has a NUL in a quoted name");
    memcpy(text, c->at, length);
    text[length] = 0;
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
    skip_space(c);
    if (c->at < c->end && *c->at == '[') return fail(c, "has a structured dtype; these are not supported");
    char name[16] = ""; /* an empty name has no second character to look at */
    if (!read_quoted(c, name, sizeof name)) return false;
    for (int type = 0; type < NPY_TYPE_COUNT; type++) {
        if (!strchr("<>=|", name[0]) || strcmp(name + 1, types[type].name + 1) != 0) continue;
        if (name[0] == '>' && types[type].bytes > 1) {
            snprintf(c->message, ATTUNE_MESSAGE_BYTES, "dtype '%s' is big-endian; only little-endian is read", name);
            return false;
        }
        header->type = (npy_type)type;
        return true;
    }
    snprintf(c->message, ATTUNE_MESSAGE_BYTES,
             "dtype '%s' is not supported; floats (f2, f4, f8, and V2 for bf16), "
             "integers (i1 to i8, u1 to u8) and b1 are",
             name);
    return false;
}

static bool read_order(cursor *c, npy_header *header) {
    header->is_fortran = accept_word(c, "True");
    return header->is_fortran || accept_word(c, "False") ||
           fail(c, "has a fortran_order that is neither True nor False");
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
            bit = 2, good = read_order(c, header);
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

/* Where the header ends. A file of fewer bytes has no array. */
static bool header_end(const unsigned char *b, size_t size, size_t *prefix, size_t *end, char *message) {
    if (size >= 4 && memcmp(b, "PK\3\4", 4) == 0) {
        snprintf(message, ATTUNE_MESSAGE_BYTES, "this looks like a .npz: save arrays one by one with np.save");
        return false;
    }
    if (size < 10 || memcmp(b, "\x93NUMPY", 6) != 0) {
        snprintf(message, ATTUNE_MESSAGE_BYTES, "this is not a .npy file (%s)",
                 size < 10 ? "it is too short" : "no \\x93NUMPY at the start");
        return false;
    }
    if (b[6] < 1 || b[6] > 3) {
        snprintf(message, ATTUNE_MESSAGE_BYTES, ".npy version %d.%d is not supported; 1 to 3 are", b[6], b[7]);
        return false;
    }
    *prefix = b[6] == 1 ? 10 : 12;
    if (size < *prefix) {
        snprintf(message, ATTUNE_MESSAGE_BYTES, "the file is truncated: it has %zu bytes", size);
        return false;
    }
    *end = *prefix + ((size_t)b[8] | (size_t)b[9] << 8);
    if (*prefix == 12) *end += (size_t)b[10] << 16 | (size_t)b[11] << 24;
    if (*end <= MAX_HEADER) return true;
    snprintf(message, ATTUNE_MESSAGE_BYTES, "the .npy header has %zu bytes; at most %d are read", *end, MAX_HEADER);
    return false;
}

/* The header of a file that begins with `size` bytes at b, and how many bytes its data has. */
static bool parse_header(const unsigned char *b, size_t size, npy_header *header, size_t *bytes, char *message) {
    char shape[NPY_SHAPE_TEXT];
    size_t prefix, end;
    if (!header_end(b, size, &prefix, &end, message)) return false;
    if (end > size) {
        snprintf(message, ATTUNE_MESSAGE_BYTES, "the file is truncated: its header ends at byte %zu of %zu", end, size);
        return false;
    }
    cursor c = {(const char *)b + prefix, (const char *)b + end, message};
    *header = (npy_header){.offset = end};
    if (!read_dictionary(&c, header)) return false;
    if (count_elements(header, bytes)) return true;
    snprintf(message, ATTUNE_MESSAGE_BYTES, "shape %s overflows the size of memory",
             npy_print_shape(header->rank, header->shape, shape));
    return false;
}

/* Whether the data has as many bytes as the shape says. `or_more`: those that follow were not all counted. */
static bool check_length(const npy_header *header, size_t bytes, size_t follows, bool or_more, char *message) {
    char shape[NPY_SHAPE_TEXT];
    if (follows == bytes) return true;
    snprintf(message, ATTUNE_MESSAGE_BYTES, "%s: shape %s of %s needs %zu bytes of data, %zu%s follow",
             follows < bytes ? "the file is truncated" : "data follows the array",
             npy_print_shape(header->rank, header->shape, shape), types[header->type].name, bytes, follows,
             or_more ? " or more" : "");
    return false;
}

bool npy_parse_header(const void *file, size_t size, npy_header *header, char message[ATTUNE_MESSAGE_BYTES]) {
    size_t bytes = 0;
    return parse_header(file, size, header, &bytes, message) &&
           check_length(header, bytes, size - header->offset, false, message);
}

/* ---- Reading a file ---- */

/* A message of the input names the file already. */
typedef struct reader {
    input_file in;
    char *message, detail[ATTUNE_MESSAGE_BYTES];
} reader;

static bool read_header(reader *r, npy_header *header, size_t *bytes) {
    unsigned char head[MAX_HEADER];
    size_t got, rest = 0, prefix, end;
    if (!input_read(&r->in, head, 12, &got, r->message)) return false;
    if (!header_end(head, got, &prefix, &end, r->detail)) return false;
    if (end > got && !input_read(&r->in, head + got, end - got, &rest, r->message)) return false;
    return parse_header(head, got + rest, header, bytes, r->detail);
}

/* A shape that no memory can hold is refused before its data is read, which need not end. */
static bool fits_memory(reader *r, const npy_header *header, size_t bytes) {
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    char shape[NPY_SHAPE_TEXT];
    if (pages <= 0 || page <= 0 || bytes / (size_t)page < (size_t)pages) return true;
    snprintf(r->detail, ATTUNE_MESSAGE_BYTES, "shape %s of %s needs %zu bytes, more than this machine's memory",
             npy_print_shape(header->rank, header->shape, shape), types[header->type].name, bytes);
    return false;
}

static bool read_data(reader *r, npy_array *array, size_t bytes) {
    const npy_header *const h = &array->header;
    size_t got;
    if (r->in.has_size && r->in.size >= h->offset && !check_length(h, bytes, r->in.size - h->offset, false, r->detail))
        return false;
    if (!fits_memory(r, h, bytes)) return false;
    array->data = input_take(&r->in, bytes + 1, false, &got, r->message);
    return array->data && check_length(h, bytes, got, true, r->detail);
}

/* Copies `count` elements that lie `stride` elements apart. */
static void copy_strided(char *to, const char *from, size_t count, size_t stride, size_t bytes) {
    for (size_t i = 0; i < count; i++) memcpy(to + i * bytes, from + i * stride * bytes, bytes);
}

/* Puts an array in Fortran order into C order: row by row, in the order of the result. */
static bool to_c_order(reader *r, npy_array *array) {
    const npy_header *const h = &array->header;
    const size_t bytes = types[h->type].bytes;
    if (!h->is_fortran || h->rank < 2 || !h->count) return true;
    size_t strides[NPY_MAX_RANK], index[NPY_MAX_RANK] = {0}, from = 0;
    strides[0] = 1;
    for (size_t d = 1; d < h->rank; d++) strides[d] = strides[d - 1] * (size_t)h->shape[d - 1];
    char *const ordered = aligned_alloc(64, h->count * bytes / 64 * 64 + 64);
    if (!ordered) {
        snprintf(r->detail, ATTUNE_MESSAGE_BYTES, "out of memory for %zu bytes in C order", h->count * bytes);
        return false;
    }
    const size_t last = h->rank - 1, columns = (size_t)h->shape[last];
    for (size_t at = 0; at < h->count; at += columns) {
        copy_strided(ordered + at * bytes, (const char *)array->data + from * bytes, columns, strides[last], bytes);
        for (size_t d = last; d-- > 0;) {
            from += strides[d];
            if (++index[d] < (size_t)h->shape[d]) break;
            from -= strides[d] * (size_t)h->shape[d];
            index[d] = 0;
        }
    }
    free(array->data);
    array->data = ordered;
    return true;
}

bool npy_read(const char *path, npy_array *array, char message[ATTUNE_MESSAGE_BYTES]) {
    reader r = {.message = message, .detail = ""};
    size_t bytes = 0;
    *array = (npy_array){0};
    if (!input_open(&r.in, path, message)) return false;
    const bool good = read_header(&r, &array->header, &bytes) && read_data(&r, array, bytes) && to_c_order(&r, array);
    input_close(&r.in);
    if (good) return true;
    if (*r.detail) snprintf(message, ATTUNE_MESSAGE_BYTES, "%.120s: %.380s", input_name(path), r.detail);
    npy_free(array);
    return false;
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
