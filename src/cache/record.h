/* Records or forbids cache misses, so that a program's kernels can be known before it runs.
 *
 * ATTUNE_RECORD=FILE, or `record` of the context: each kernel that had to be compiled becomes a line of the file,
 * `problem`, or `problem | schedule` if one was given: a manifest for `attune warm`. That cannot make kernels of other
 * operators than attention's, so these become comments. ATTUNE_STRICT=1, or `strict`: nothing is compiled; a miss fails
 * and names the kernel. Both: records the kernels that a manifest lacks. */
#ifndef ATTUNE_CACHE_RECORD_H
#define ATTUNE_CACHE_RECORD_H

#include "cache/key.h"
#include "host/io.h"
#include "host/log.h"

#include <limits.h>
#include <stdatomic.h>

enum { AT_RECORD_SLOTS = 1024, AT_RECORD_PROBES = 16 };

typedef struct at_record {
    const at_io *io;
    const at_log *log;
    char path[PATH_MAX]; /* "": nothing is recorded */
    bool is_strict;
    atomic_ullong recorded[AT_RECORD_SLOTS]; /* the low halves of keys that were; 0: none */
} at_record;

/* Reads the environment; a program with raised privileges records nothing. */
void at_record_init(at_record *record, const attune_context_options *options, const at_io *io, const at_log *log);

/* Adds a line, in one write, so that lines of several processes do not mix. A kernel that is missed again and again,
 * because it may not be compiled or nothing is cached, is one line of this context; with a thousand of them it may be
 * several. A failure is logged. `schedule` is the explicit one, or NULL. */
void at_record_miss(at_record *record, const at_key *key, at_operation operation, const mha_schedule *schedule);

/* ATTUNE_OK, or ATTUNE_NOT_CACHED with the name of the missing kernel. */
attune_status at_record_allow(const at_record *record, const at_key *key, at_operation operation,
                              const mha_schedule *schedule, at_error *err);

#endif
