/* Header, tensors, cover: each step checks what the next one relies on, and the last one that tensors fill the data
 * without gaps. */
#include "weights/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* All dtypes of the format, up to those of its version 0.7; elements of fewer than eight bits lie without gaps. */
static const struct {
    const char *name;
    unsigned bits;
    attune_dtype dtype;
} types[] = {
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

enum {
    PREFIX = 8,
    MAX_HEADER = 100000000 /* as the format's own reader: JSON takes many times its length in memory */
};

static bool fail(char message[ATTUNE_MESSAGE_BYTES], const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool fail(char message[ATTUNE_MESSAGE_BYTES], const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(message, ATTUNE_MESSAGE_BYTES, format, list);
    va_end(list);
    return false;
}

/* ---- The header as JSON ---- */

static bool load_json(safetensors *t, size_t *data, char message[ATTUNE_MESSAGE_BYTES]) {
    uint64_t length = 0;
    if (t->size < PREFIX)
        return fail(message, "this is not a safetensors file: it has %zu bytes, and the length of the header takes 8",
                    t->size);
    for (int i = PREFIX - 1; i >= 0; i--) length = length << 8 | t->file[i];
    if (length > t->size - PREFIX)
        return fail(message,
                    "the file is truncated or no safetensors file: its header of %llu bytes ends beyond its %zu",
                    (unsigned long long)length, t->size);
    if (length > MAX_HEADER)
        return fail(message, "the header has %llu bytes, more than the %d that the format allows",
                    (unsigned long long)length, MAX_HEADER);
    const char *const text = (const char *)t->file + PREFIX;
    if (!length || text[0] != '{') return fail(message, "the header does not begin with '{'");
    json_error_t error;
    t->json = json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, &error);
    if (!t->json) {
        const bool is_twice = json_error_code(&error) == json_error_duplicate_key;
        return fail(message, "the header %s: %.150s", is_twice ? "names a key twice" : "is not JSON", error.text);
    }
    *data = PREFIX + (size_t)length;
    return true;
}

/* ---- One tensor ---- */

static bool read_type(const char *name, const json_t *entry, safetensor *one, unsigned *bits,
                      char message[ATTUNE_MESSAGE_BYTES]) {
    const char *const type = json_string_value(json_object_get(entry, "dtype"));
    if (!type) return fail(message, "tensor '%.120s' has no dtype", name);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (strcmp(types[i].name, type) != 0) continue;
        one->type = types[i].name;
        one->dtype = types[i].dtype;
        *bits = types[i].bits;
        return true;
    }
    return fail(message, "tensor '%.120s' has the unknown dtype '%.40s'", name, type);
}

/* Whole numbers from 0 on: jansson has refused those beyond 64 bits. */
static bool read_number(const json_t *value, int64_t *number) {
    *number = json_integer_value(value);
    return json_is_integer(value) && *number >= 0;
}

static bool read_shape(const char *name, const json_t *entry, int64_t **dims, safetensor *one, size_t *elements,
                       char message[ATTUNE_MESSAGE_BYTES]) {
    const json_t *const shape = json_object_get(entry, "shape");
    bool is_whole = json_is_array(shape);
    *elements = 1;
    one->rank = json_array_size(shape);
    one->shape = *dims;
    for (size_t d = 0; d < one->rank && is_whole; d++) is_whole = read_number(json_array_get(shape, d), (*dims)++);
    if (!is_whole) return fail(message, "tensor '%.120s' has a shape that is not a list of whole numbers", name);
    for (size_t d = 0; d < one->rank; d++)
        if (one->shape[d] == 0) *elements = 0;
    for (size_t d = 0; d < one->rank && *elements; d++)
        if (__builtin_mul_overflow(*elements, (size_t)one->shape[d], elements))
            return fail(message, "tensor '%.120s' has a shape that overflows 64 bits", name);
    return true;
}

static bool read_place(const char *name, const json_t *entry, size_t room, safetensor *one,
                       char message[ATTUNE_MESSAGE_BYTES]) {
    const json_t *const place = json_object_get(entry, "data_offsets");
    int64_t begin, end;
    if (json_array_size(place) != 2 || !read_number(json_array_get(place, 0), &begin) ||
        !read_number(json_array_get(place, 1), &end))
        return fail(message, "tensor '%.120s' has data_offsets that are not two whole numbers", name);
    if (begin > end)
        return fail(message, "tensor '%.120s' ends at byte %lld, before it begins at byte %lld", name, (long long)end,
                    (long long)begin);
    if ((uint64_t)end > room)
        return fail(message, "the file is truncated: tensor '%.120s' ends at byte %lld of the data, which has %zu",
                    name, (long long)end, room);
    one->offset = (size_t)begin;
    one->bytes = (size_t)(end - begin);
    return true;
}

/* `dims` is moved on by the tensor's rank; offset is relative to the data. */
static bool read_tensor(const char *name, const json_t *entry, size_t room, int64_t **dims, safetensor *one,
                        char message[ATTUNE_MESSAGE_BYTES]) {
    unsigned bits = 0;
    size_t elements = 0, total = 0;
    if (!json_is_object(entry)) return fail(message, "tensor '%.120s' is described by something not an object", name);
    one->name = name;
    if (!read_type(name, entry, one, &bits, message) || !read_shape(name, entry, dims, one, &elements, message) ||
        !read_place(name, entry, room, one, message))
        return false;
    if (__builtin_mul_overflow(elements, (size_t)bits, &total))
        return fail(message, "tensor '%.120s' has a shape that overflows 64 bits", name);
    if (total % 8 == 0 && total / 8 == one->bytes) return true;
    return fail(message, "tensor '%.120s' has %zu elements of %s, which do not take the %zu bytes of its data_offsets",
                name, elements, one->type, one->bytes);
}

/* ---- All of them ---- */

static const char metadata_name[] = "__metadata__";

/* Room for all tensors and dims of the JSON. Its counts are those of values that were parsed, so they are no claims. */
static bool allocate(safetensors *t, char message[ATTUNE_MESSAGE_BYTES]) {
    const char *name;
    json_t *entry;
    size_t num_dims = 0;
    json_object_foreach(t->json, name, entry) num_dims += json_array_size(json_object_get(entry, "shape"));
    t->list = calloc(json_object_size(t->json) + 1, sizeof *t->list);
    t->dims = calloc(num_dims + 1, sizeof *t->dims);
    return (t->list && t->dims) || fail(message, "out of memory for a list of %zu tensors", json_object_size(t->json));
}

static int compare_places(const void *left, const void *right) {
    const safetensor *const a = left, *const b = right;
    if (a->offset != b->offset) return a->offset < b->offset ? -1 : 1;
    return (a->bytes > b->bytes) - (a->bytes < b->bytes); /* empty ones come first */
}

/* Whether the tensors, one after the other, are all of the data. */
static bool check_cover(const safetensors *t, size_t room, char message[ATTUNE_MESSAGE_BYTES]) {
    size_t end = 0;
    for (size_t i = 0; i < t->count; i++) {
        const safetensor *const one = &t->list[i];
        if (one->offset < end)
            return fail(message, "tensors '%.120s' and '%.120s' overlap at byte %zu of the data", t->list[i - 1].name,
                        one->name, one->offset);
        if (one->offset > end)
            return fail(message, "bytes %zu to %zu of the data, before tensor '%.120s', belong to no tensor", end,
                        one->offset, one->name);
        end += one->bytes;
    }
    return end == room || fail(message, "the last %zu bytes of the data belong to no tensor", room - end);
}

static bool read_all(safetensors *t, char message[ATTUNE_MESSAGE_BYTES]) {
    const char *name;
    json_t *entry;
    size_t data = 0;
    if (!load_json(t, &data, message) || !allocate(t, message)) return false;
    const size_t room = t->size - data;
    int64_t *dims = t->dims;
    json_object_foreach(t->json, name, entry) {
        if (strcmp(name, metadata_name) == 0) continue;
        if (!read_tensor(name, entry, room, &dims, &t->list[t->count], message)) return false;
        t->count++;
    }
    qsort(t->list, t->count, sizeof *t->list, compare_places);
    if (!check_cover(t, room, message)) return false;
    for (size_t i = 0; i < t->count; i++) t->list[i].offset += data;
    return true;
}

bool safetensors_parse(const void *file, size_t size, safetensors *tensors, char message[ATTUNE_MESSAGE_BYTES]) {
    *tensors = (safetensors){.file = file, .size = size};
    if (read_all(tensors, message)) return true;
    safetensors_close(tensors);
    return false;
}

/* The whole file, mapped; an empty one cannot be. */
static bool map_file(const char *path, void **file, size_t *size, char message[ATTUNE_MESSAGE_BYTES]) {
    struct stat status;
    *file = NULL;
    *size = 0;
    /* O_NONBLOCK: without it open() would wait at a pipe without a writer, which is to be refused. */
    const int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    bool good = fd >= 0 && fstat(fd, &status) == 0;
    if (good && !S_ISREG(status.st_mode)) {
        close(fd);
        return fail(message, "%.300s: not a regular file", path);
    }
    if (good && status.st_size > 0) {
        *size = (size_t)status.st_size;
        *file = mmap(NULL, *size, PROT_READ, MAP_PRIVATE, fd, 0);
        good = *file != MAP_FAILED;
    }
    const int error = errno;
    if (fd >= 0) close(fd);
    return good || fail(message, "%.300s: cannot read: %s", *path ? path : "''", strerror(error));
}

/* Other files that hold arrays, by their first bytes. NULL: it is none of them. */
static const char *other_kind(const unsigned char *file, size_t size) {
    if (size >= 6 && memcmp(file, "\x93NUMPY", 6) == 0)
        return "this is a .npy file; a safetensors file is wanted, or a folder with a .npy file for each weight";
    if (size >= 4 && memcmp(file, "PK\3\4", 4) == 0)
        return "this looks like a .npz or a .pt: save arrays one by one with np.save to a folder, or all as "
               "safetensors";
    /* The text of a safetensors header begins at byte 8. */
    if (size > 8 && file[0] == 0x80 && file[1] >= 2 && file[1] <= 5 && file[8] != '{')
        return "this looks like a pickle: save arrays one by one with np.save to a folder, or all as safetensors";
    return NULL;
}

bool safetensors_open(const char *path, safetensors *tensors, char message[ATTUNE_MESSAGE_BYTES]) {
    char detail[ATTUNE_MESSAGE_BYTES];
    void *file;
    size_t size;
    *tensors = (safetensors){.file = NULL};
    if (!map_file(path, &file, &size, message)) return false;
    if (!safetensors_parse(file, size, tensors, detail)) {
        const char *const kind = other_kind(file, size);
        fail(message, "%.120s: %.380s", path, kind ? kind : detail);
        if (file) munmap(file, size);
        return false;
    }
    tensors->is_mapped = true;
    return true;
}

void safetensors_close(safetensors *tensors) {
    if (tensors->is_mapped) munmap((void *)tensors->file, tensors->size);
    free(tensors->list);
    free(tensors->dims);
    json_decref(tensors->json);
    *tensors = (safetensors){.file = NULL};
}

const safetensor *safetensors_find(const safetensors *tensors, const char *name) {
    for (size_t i = 0; i < tensors->count; i++)
        if (strcmp(tensors->list[i].name, name) == 0) return &tensors->list[i];
    return NULL;
}
