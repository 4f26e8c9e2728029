/* Writes an archive (ar's format, as GNU ld and lld read it): members, and the index of their global symbols. */
#ifndef ATTUNE_BUNDLE_ARCHIVE_H
#define ATTUNE_BUNDLE_ARCHIVE_H

#include "base/error.h"
#include "base/memory.h"

typedef struct at_archive_member {
    char name[80];
    at_string object; /* relocatable ELF64 */
} at_archive_member;

/* Times, owners and modes are 0: equal members make equal archives. */
attune_status at_archive_write(const at_archive_member *members, size_t count, at_string *out, at_error *err);

#endif
