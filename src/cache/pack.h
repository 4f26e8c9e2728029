/* A pack as a level of the cache: one signed file that is only read, where it lies (docs/packs.md).
 *
 * Its header and index are copied and verified when it is opened. A cache file is copied out of the file, and the copy
 * must have the hash of the index before anything looks into it. So it does not matter who owns the file, or writes to
 * it meanwhile. It is read and not mapped: a file that becomes shorter would end a process that has it mapped. */
#ifndef ATTUNE_CACHE_PACK_H
#define ATTUNE_CACHE_PACK_H

#include "base/error.h"
#include "cache/cache_file.h"
#include "cache/pack_format.h"

typedef struct at_pack {
    const attune_allocator *allocator;
    const at_io *io;
    int fd; /* -1: none. It need not be this pack's: the host may have closed all descriptors */
    struct stat opened;
    uint8_t *signed_part;
    at_pack_sizes sizes;
    char signature[AT_SIGNATURE_TEXT + 1];
} at_pack;

/* Opens a pack whose form is right, signed or not. at_pack_close is for any result. */
attune_status at_pack_open(at_pack *pack, const char *path, const at_io *io, const attune_allocator *allocator,
                           at_error *err);

/* The same, and one of the keys in directory `keys` must have signed it. */
attune_status at_pack_open_signed(at_pack *pack, const char *path, const char *keys, const at_io *io,
                                  const attune_allocator *allocator, at_error *err);

/* Whether one of the keys in directory `keys` made this signature of a pack's signed part. */
attune_status at_pack_verify(const at_pack *pack, const char *path, const char *signature, size_t bytes,
                             const char *keys, at_error *err);

void at_pack_close(at_pack *pack);

static inline bool at_pack_is_open(const at_pack *pack) { return pack->signed_part != NULL; }

/* Copies the cache file of a record into a block of the allocator, which *data owns. AT_FOUND: the copy is what the
 * index says, and *cached points into it. AT_DAMAGED, AT_UNREADABLE, AT_NOT_NOW: *why is a sentence. */
at_found at_pack_read(const at_pack *pack, const at_pack_record *record, uint8_t **data, at_cache_file *cached,
                      const char **why);

/* Where the keys are: `keys` if not NULL, else ATTUNE_CACHE_KEYS, else AT_KEYS_DIR. */
#define AT_KEYS_DIR "/etc/attune/keys"
const char *at_keys_dir(const char *keys);

#endif
