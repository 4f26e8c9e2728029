/* Writes and reads the bytes of a pack. Records are sorted by name, so one is found by bisection. */
#include "cache/pack_format.h"

#include "cache/cache_file.h"

#include <string.h>

static const char magic[8] = {'a', 't', 't', 'n', 'p', 'a', 'c', 'k'};
enum { COUNT_AT = 12, FILE_BYTES_AT = 16, ZEROS_AT = 24 };
enum { OFFSET_AT = AT_FILE_CHARS, BYTES_AT = OFFSET_AT + 8, HASH_AT = BYTES_AT + 8, END_AT = HASH_AT + AT_HASH_BYTES };
_Static_assert((int)END_AT <= (int)AT_PACK_RECORD_BYTES, "a record holds its parts");

static void put(uint8_t *at, uint64_t value, int bytes) {
    for (int i = 0; i < bytes; i++) at[i] = (uint8_t)(value >> 8 * i);
}

static uint64_t get(const uint8_t *at, int bytes) {
    uint64_t value = 0;
    for (int i = bytes; i-- > 0;) value = value << 8 | at[i];
    return value;
}

static bool is_zero(const uint8_t *bytes, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (bytes[i]) return false;
    return true;
}

static const uint8_t *record_at(const uint8_t *signed_part, uint32_t number) {
    return signed_part + AT_PACK_HEADER_BYTES + (size_t)number * AT_PACK_RECORD_BYTES;
}

const char *at_pack_header_check(const uint8_t header[AT_PACK_HEADER_BYTES], uint64_t file_bytes,
                                 at_pack_sizes *sizes) {
    if (memcmp(header, magic, sizeof magic)) return "it does not start as a pack does";
    if (get(header + 8, 4) != AT_PACK_VERSION) return "it is a pack of another format version";
    sizes->count = (uint32_t)get(header + COUNT_AT, 4);
    sizes->file_bytes = get(header + FILE_BYTES_AT, 8);
    if (sizes->count > AT_PACK_MAX_FILES) return "its number of kernels is out of range";
    sizes->signed_bytes = AT_PACK_HEADER_BYTES + (size_t)sizes->count * AT_PACK_RECORD_BYTES;
    if (sizes->file_bytes != file_bytes) return "it is not as long as its header says";
    if (file_bytes < sizes->signed_bytes + AT_SIGNATURE_TEXT) return "it is too short for its index";
    return is_zero(header + ZEROS_AT, AT_PACK_HEADER_BYTES - ZEROS_AT) ? NULL : "a reserved field is not 0";
}

const char *at_pack_index_check(const uint8_t *signed_part, const at_pack_sizes *sizes) {
    uint64_t next = sizes->signed_bytes + AT_SIGNATURE_TEXT;
    const char *before = "";
    for (uint32_t i = 0; i < sizes->count; i++) {
        const uint8_t *const at = record_at(signed_part, i);
        const char *const name = (const char *)at;
        const size_t length = strnlen(name, AT_FILE_CHARS);
        const uint64_t bytes = get(at + BYTES_AT, 8);
        if (length == AT_FILE_CHARS || !is_zero(at + length, AT_FILE_CHARS - length) || !at_file_is_kernel(name))
            return "a name in its index is not a cache file's";
        if (strcmp(before, name) >= 0) return "the names in its index are not in order";
        if (get(at + OFFSET_AT, 8) != next) return "a kernel is not where the one before it ends";
        if (bytes < AT_CACHE_FILE_HEADER_BYTES || bytes > AT_CACHE_FILE_MAX_BYTES || bytes > sizes->file_bytes - next)
            return "the size of a kernel is out of range";
        if (!is_zero(at + END_AT, AT_PACK_RECORD_BYTES - END_AT)) return "a reserved field is not 0";
        next += bytes;
        before = name;
    }
    return next == sizes->file_bytes ? NULL : "it goes on after its last kernel";
}

void at_pack_record_get(const uint8_t *signed_part, uint32_t number, at_pack_record *record) {
    const uint8_t *const at = record_at(signed_part, number);
    memcpy(record->name, at, sizeof record->name);
    record->offset = get(at + OFFSET_AT, 8);
    record->bytes = get(at + BYTES_AT, 8);
    memcpy(record->hash, at + HASH_AT, sizeof record->hash);
}

uint32_t at_pack_find(const uint8_t *signed_part, uint32_t count, const char *name) {
    uint32_t low = 0, high = count;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const int order = strcmp((const char *)record_at(signed_part, middle), name);
        if (!order) return middle;
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return AT_PACK_NONE;
}

void at_pack_header_put(uint8_t header[AT_PACK_HEADER_BYTES], const at_pack_sizes *sizes) {
    memset(header, 0, AT_PACK_HEADER_BYTES);
    memcpy(header, magic, sizeof magic);
    put(header + 8, AT_PACK_VERSION, 4);
    put(header + COUNT_AT, sizes->count, 4);
    put(header + FILE_BYTES_AT, sizes->file_bytes, 8);
}

void at_pack_record_put(uint8_t *signed_part, uint32_t number, const at_pack_record *record) {
    uint8_t *const at = signed_part + AT_PACK_HEADER_BYTES + (size_t)number * AT_PACK_RECORD_BYTES;
    memset(at, 0, AT_PACK_RECORD_BYTES);
    memcpy(at, record->name, strnlen(record->name, AT_FILE_CHARS - 1));
    put(at + OFFSET_AT, record->offset, 8);
    put(at + BYTES_AT, record->bytes, 8);
    memcpy(at + HASH_AT, record->hash, sizeof record->hash);
}
