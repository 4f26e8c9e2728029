/* The file format of a pack: many cache files in one, with one signature. Pure functions on bytes.
 *
 * All numbers little-endian. The header and the index are the signed part:
 *   offset  0   8 bytes  magic "attnpack"
 *           8   u32      format version: 1
 *          12   u32      number of cache files, n
 *          16   u64      bytes of the file
 *          24   40       zeros
 *          64   n × 128  the index, in the order of its names: the name of the file in a cache directory (72
 *                        bytes, zeros after it), u64 offset in the file, u64 bytes, BLAKE2b-256 of those bytes,
 *                        8 zeros
 *               1024     the signature as minisign writes it, except that its first line, which nobody can verify, is
 *                        AT_PACK_COMMENT; zeros after it; all 0: not signed
 *                        the cache files, as they are in a directory (cache/cache_file.h), without gaps and in the
 *                        order of the index */
#ifndef ATTUNE_CACHE_PACK_FORMAT_H
#define ATTUNE_CACHE_PACK_FORMAT_H

#include "cache/disk_files.h"
#include "sign/minisign.h"

enum { AT_PACK_VERSION = 1, AT_PACK_HEADER_BYTES = 64, AT_PACK_RECORD_BYTES = 128 };
enum { AT_PACK_MAX_FILES = 1 << 20 };
#define AT_PACK_COMMENT "untrusted comment: of a pack of attune\n"

typedef struct at_pack_record {
    char name[AT_FILE_CHARS];
    uint64_t offset, bytes;
    uint8_t hash[AT_HASH_BYTES];
} at_pack_record;

/* What the header says about the rest. */
typedef struct at_pack_sizes {
    uint32_t count;
    size_t signed_bytes; /* of header and index; the signature follows */
    uint64_t file_bytes;
} at_pack_sizes;

/* Both return NULL, or a sentence about the error. `file_bytes` is the size that the file has. */
const char *at_pack_header_check(const uint8_t header[AT_PACK_HEADER_BYTES], uint64_t file_bytes, at_pack_sizes *sizes);
const char *at_pack_index_check(const uint8_t *signed_part, const at_pack_sizes *sizes);

/* A record of an index that was checked. */
void at_pack_record_get(const uint8_t *signed_part, uint32_t number, at_pack_record *record);

/* The number of the record with this name, or AT_PACK_NONE. */
#define AT_PACK_NONE UINT32_MAX
uint32_t at_pack_find(const uint8_t *signed_part, uint32_t count, const char *name);

/* Write the header, and one record. */
void at_pack_header_put(uint8_t header[AT_PACK_HEADER_BYTES], const at_pack_sizes *sizes);
void at_pack_record_put(uint8_t *signed_part, uint32_t number, const at_pack_record *record);

#endif
