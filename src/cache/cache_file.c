/* Writes and reads the bytes of a cache file: header, key, texts, image, and a checksum of all of it. */
#define XXH_INLINE_ALL
#include "cache/cache_file.h"

#include "base/memory.h"
#include "target/kernel_abi.h"

#include <string.h>
#include <xxhash.h>

static const char magic[8] = {'a', 't', 't', 'e', 'n', 't', 'r', 'y'};
enum { IMAGE_ALIGN = 64 };

static void put_u32(uint8_t *at, uint32_t value) {
    for (int i = 0; i < 4; i++) at[i] = (uint8_t)(value >> 8 * i);
}

static void put_u64(uint8_t *at, uint64_t value) {
    put_u32(at, (uint32_t)value);
    put_u32(at + 4, (uint32_t)(value >> 32));
}

static uint32_t get_u32(const uint8_t *at) {
    return at[0] | (uint32_t)at[1] << 8 | (uint32_t)at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint64_t get_u64(const uint8_t *at) { return get_u32(at) | (uint64_t)get_u32(at + 4) << 32; }

static size_t image_offset(size_t key_bytes, size_t text_bytes) {
    return (AT_CACHE_FILE_HEADER_BYTES + key_bytes + text_bytes + IMAGE_ALIGN - 1) & ~(size_t)(IMAGE_ALIGN - 1);
}

attune_status at_cache_file_encode(const at_cache_file *cached, const attune_allocator *allocator, uint8_t **data,
                                   size_t *bytes, at_error *err) {
    const size_t problem = strlen(cached->problem) + 1, schedule = strlen(cached->schedule) + 1;
    const size_t isa = strlen(cached->isa) + 1, ir = cached->ir ? strlen(cached->ir) + 1 : 0;
    const size_t text = problem + schedule + isa + ir;
    if (text > AT_CACHE_FILE_MAX_TEXT)
        return at_fail(err, ATTUNE_UNSUPPORTED, "a text of %zu bytes is too long for the disk cache", text);
    if (cached->key_bytes > AT_KEY_BYTES || cached->image_bytes > AT_CACHE_FILE_MAX_IMAGE)
        return at_fail(err, ATTUNE_UNSUPPORTED, "an image of %zu bytes is too big for the disk cache",
                       cached->image_bytes);
    const size_t offset = image_offset(cached->key_bytes, text);
    const size_t body = offset + cached->image_bytes, total = body + AT_CACHE_FILE_CHECKSUM_BYTES;
    uint8_t *out = at_alloc(allocator, total);
    if (!out) return at_fail_memory(err, total);
    memcpy(out, magic, sizeof magic);
    put_u32(out + 8, cached->ir ? AT_CACHE_FILE_IR_VERSION : AT_CACHE_FILE_VERSION);
    put_u32(out + 12, cached->required);
    put_u32(out + 16, (uint32_t)cached->key_bytes);
    put_u32(out + 20, (uint32_t)text);
    put_u64(out + 24, cached->image_bytes);
    uint8_t *at = out + AT_CACHE_FILE_HEADER_BYTES;
    memcpy(at, cached->key, cached->key_bytes);
    at += cached->key_bytes;
    memcpy(at, cached->problem, problem);
    memcpy(at + problem, cached->schedule, schedule);
    memcpy(at + problem + schedule, cached->isa, isa);
    if (ir) memcpy(at + problem + schedule + isa, cached->ir, ir);
    memcpy(out + offset, cached->image, cached->image_bytes);
    const XXH128_hash_t hash = XXH3_128bits(out, body);
    put_u64(out + body, hash.low64);
    put_u64(out + body + 8, hash.high64);
    *data = out;
    *bytes = total;
    return ATTUNE_OK;
}

/* Splits the text into its three or four strings; the last byte must end the last. */
static bool split_text(const char *text, size_t bytes, at_cache_file *cached) {
    const char **const strings[] = {&cached->problem, &cached->schedule, &cached->isa, &cached->ir};
    for (int i = 0; i < 3 || (bytes && i < 4); i++) {
        const char *end = memchr(text, '\0', bytes);
        if (!end) return false;
        *strings[i] = text;
        bytes -= (size_t)(end + 1 - text);
        text = end + 1;
    }
    return bytes == 0;
}

const char *at_cache_file_decode(const uint8_t *data, size_t bytes, at_cache_file *cached) {
    memset(cached, 0, sizeof *cached);
    if (bytes < AT_CACHE_FILE_HEADER_BYTES + AT_CACHE_FILE_CHECKSUM_BYTES)
        return "the file is too short for a cache file";
    if (bytes > AT_CACHE_FILE_MAX_BYTES) return "the file is too long for a cache file";
    if (memcmp(data, magic, sizeof magic)) return "the file does not start as a cache file does";
    const uint32_t version = get_u32(data + 8);
    if (version != AT_CACHE_FILE_VERSION && version != AT_CACHE_FILE_IR_VERSION)
        return "the cache file is of another format version";
    const size_t key_bytes = get_u32(data + 16), text_bytes = get_u32(data + 20);
    const uint64_t image_bytes = get_u64(data + 24);
    if (key_bytes > AT_KEY_BYTES || text_bytes > AT_CACHE_FILE_MAX_TEXT || image_bytes > AT_CACHE_FILE_MAX_IMAGE)
        return "a size in the cache file's header is out of range";
    const size_t offset = image_offset(key_bytes, text_bytes), body = offset + (size_t)image_bytes;
    if (body + AT_CACHE_FILE_CHECKSUM_BYTES != bytes) return "the file is not as long as its header says";
    const XXH128_hash_t hash = XXH3_128bits(data, body);
    if (get_u64(data + body) != hash.low64 || get_u64(data + body + 8) != hash.high64)
        return "the cache file's checksum does not match its content";
    cached->required = get_u32(data + 12);
    cached->key = data + AT_CACHE_FILE_HEADER_BYTES;
    cached->key_bytes = key_bytes;
    cached->image = data + offset;
    cached->image_bytes = (size_t)image_bytes;
    if (!split_text((const char *)data + AT_CACHE_FILE_HEADER_BYTES + key_bytes, text_bytes, cached))
        return "the cache file's text is not three or four strings";
    if (!cached->ir != (version == AT_CACHE_FILE_VERSION))
        return "the cache file's format version does not fit its text";
    for (const uint8_t *pad = cached->key + key_bytes + text_bytes; pad < cached->image; pad++)
        if (*pad) return "the padding before the cache file's image is not 0";
    const char *why = at_image_check(cached->image, cached->image_bytes);
    if (why) return why;
    at_image_header header;
    memcpy(&header, cached->image, sizeof header);
    /* Otherwise the cache file would be found and its kernel refused at every start. */
    if (header.required == cached->required) return NULL;
    return "the cache file and its image need different features of the CPU";
}
