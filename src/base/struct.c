/* A caller's struct of any size becomes a whole one, and a whole result is cut to the caller's size; sizes that no
 * header has had are refused. */
#include "base/struct.h"

#include <stdbool.h>
#include <string.h>

/* Far more than any struct has. A larger size was never set, and the struct must not be read to its end. */
enum { MOST_BYTES = 16384 };

static size_t smaller(size_t a, size_t b) { return a < b ? a : b; }

static size_t size_of(const void *object) {
    size_t bytes;
    memcpy(&bytes, object, sizeof bytes);
    return bytes;
}

static bool is_possible(size_t bytes, size_t known) {
    return bytes == known || (bytes > sizeof bytes && bytes % sizeof bytes == 0 && bytes <= MOST_BYTES);
}

static attune_status check_size(const at_struct *kind, size_t bytes, at_error *err) {
    const bool possible = is_possible(bytes, kind->bytes);
    if (possible && bytes >= kind->least) return ATTUNE_OK;
    if (possible)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "%s.struct_size is %zu, but the oldest supported header has %zu: compile the program again with "
                       "the installed header",
                       kind->name, bytes, kind->least);
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s.struct_size is %zu, expected %zu: %s", kind->name, bytes,
                   kind->bytes, kind->advice);
}

static bool is_zero(const char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (bytes[i]) return false;
    return true;
}

static attune_status check_rest(const at_struct *kind, const void *object, size_t bytes, at_error *err) {
    if (bytes <= kind->bytes || is_zero((const char *)object + kind->bytes, bytes - kind->bytes)) return ATTUNE_OK;
    return at_fail(
        err, ATTUNE_UNSUPPORTED,
        "%s.struct_size is %zu, and a member is set beyond the %zu bytes that attune %s knows: install a newer library",
        kind->name, bytes, kind->bytes, ATTUNE_VERSION_STRING);
}

/* Bytes of a whole struct from `begin` on. */
static void put_defaults(const at_struct *kind, void *whole, size_t begin) {
    if (begin >= kind->bytes) return;
    if (kind->defaults)
        memcpy((char *)whole + begin, (const char *)kind->defaults + begin, kind->bytes - begin);
    else
        memset((char *)whole + begin, 0, kind->bytes - begin);
}

attune_status at_copy_in(const at_struct *kind, const void *object, void *whole, at_error *err) {
    const size_t bytes = size_of(object);
    attune_status status = check_size(kind, bytes, err);
    if (!status) status = check_rest(kind, object, bytes, err);
    if (status) return status;
    memcpy(whole, object, smaller(bytes, kind->bytes));
    put_defaults(kind, whole, bytes);
    memcpy(whole, &kind->bytes, sizeof kind->bytes);
    return ATTUNE_OK;
}

static bool is_default(const at_struct *kind, const void *whole, size_t begin) {
    const char *rest = (const char *)whole + begin;
    const size_t count = kind->bytes - begin;
    return kind->defaults ? !memcmp(rest, (const char *)kind->defaults + begin, count) : is_zero(rest, count);
}

attune_status at_copy_back(const at_struct *kind, const void *whole, void *object, at_error *err) {
    const size_t bytes = size_of(object);
    if (check_size(kind, bytes, err)) return ATTUNE_INVALID_ARGUMENT;
    if (bytes < kind->bytes && !is_default(kind, whole, bytes))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "%s.struct_size is %zu, but the result needs %zu bytes: compile the program again with the "
                       "installed header",
                       kind->name, bytes, kind->bytes);
    memcpy((char *)object + sizeof bytes, (const char *)whole + sizeof bytes,
           smaller(bytes, kind->bytes) - sizeof bytes);
    return ATTUNE_OK;
}

attune_status at_struct_init(const at_struct *kind, void *object, size_t struct_size, at_error *err) {
    if (!object) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the pointer to the %s is NULL", kind->name);
    if (check_size(kind, struct_size, err)) return ATTUNE_INVALID_ARGUMENT;
    memset(object, 0, struct_size);
    if (kind->defaults) memcpy(object, kind->defaults, smaller(struct_size, kind->bytes));
    memcpy(object, &struct_size, sizeof struct_size);
    return ATTUNE_OK;
}

attune_status at_check_out(const void *object, size_t full_bytes, const char *name, at_error *err) {
    const size_t bytes = size_of(object);
    if (is_possible(bytes, full_bytes)) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s.struct_size is %zu; set it to sizeof(%s)", name, bytes, name);
}

attune_status at_copy_out(void *object, const void *full, size_t full_bytes, const char *name, at_error *err) {
    const size_t bytes = size_of(object);
    if (at_check_out(object, full_bytes, name, err)) return ATTUNE_INVALID_ARGUMENT;
    memcpy((char *)object + sizeof bytes, (const char *)full + sizeof bytes, smaller(bytes, full_bytes) - sizeof bytes);
    if (bytes > full_bytes) memset((char *)object + full_bytes, 0, bytes - full_bytes);
    return ATTUNE_OK;
}
