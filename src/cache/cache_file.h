/* The file format of the disk cache: one self-contained file for each kernel. Pure functions on bytes.
 *
 * All numbers little-endian:
 *   offset  0   8 bytes  magic "attentry"
 *           8   u32      format version: 1, or 2 with loop IR
 *          12   u32      AT_CPU_* features that the code needs; the image says the same
 *          16   u32      key bytes
 *          20   u32      text bytes
 *          24   u64      image bytes
 *          32   key, then text (problem, schedule, ISA, and loop IR if that is all there is to compile from: each with
 *               a final NUL), zeros up to a multiple of 64, then the image, then XXH3-128 over everything before (low
 *               half first) */
#ifndef ATTUNE_CACHE_CACHE_FILE_H
#define ATTUNE_CACHE_CACHE_FILE_H

#include "cache/key.h"

/* Loop IR came with version 2. Cache files without it stay readable by earlier attunes. */
enum { AT_CACHE_FILE_VERSION = 1, AT_CACHE_FILE_IR_VERSION = 2 };
enum { AT_CACHE_FILE_HEADER_BYTES = 32, AT_CACHE_FILE_CHECKSUM_BYTES = 16 };
enum { AT_CACHE_FILE_MAX_TEXT = 8 << 20 };
#define AT_CACHE_FILE_MAX_IMAGE ((size_t)32 << 20)
#define AT_CACHE_FILE_MAX_BYTES (AT_CACHE_FILE_MAX_IMAGE + AT_CACHE_FILE_MAX_TEXT + (64 << 10))

/* The cache's own directory, and what is only read. */
typedef enum at_place { AT_IN_DIR, AT_IN_BASE, AT_IN_PACK, AT_NUM_PLACES } at_place;

/* Points into the bytes that were decoded, or are to be encoded. */
typedef struct at_cache_file {
    uint32_t required;
    const uint8_t *key;
    size_t key_bytes;
    const char *problem, *schedule, *isa;
    const char *ir; /* NULL: none */
    const uint8_t *image;
    size_t image_bytes;
    at_place place; /* where it was read; not a part of the bytes */
} at_cache_file;

/* Encodes into a block of the allocator. ATTUNE_OUT_OF_MEMORY, or ATTUNE_UNSUPPORTED if the cache file is too big. */
attune_status at_cache_file_encode(const at_cache_file *cached, const attune_allocator *allocator, uint8_t **data,
                                   size_t *bytes, at_error *err);

/* NULL and *cached filled, or a sentence about the error. Reads nothing beyond `bytes`. `data` is 8-byte aligned. */
const char *at_cache_file_decode(const uint8_t *data, size_t bytes, at_cache_file *cached);

#endif
