/* Misses written down, and misses forbidden: how a program's kernels are known before it runs.
 *
 * ATTUNE_RECORD=FILE: each kernel that had to be compiled becomes a line of the file, `problem` or `problem | schedule`
 * if one was given: a manifest for `attune warm`. ATTUNE_STRICT=1: nothing is compiled; a miss fails and says of what.
 */
#ifndef ATTUNE_RUNTIME_RECORD_H
#define ATTUNE_RUNTIME_RECORD_H

#include "runtime/io.h"
#include "runtime/key.h"
#include "runtime/log.h"

#include <limits.h>

typedef struct at_record {
    const at_io *io;
    const at_log *log;
    char path[PATH_MAX]; /* "": nothing is recorded */
    bool is_strict;
} at_record;

/* Reads the environment; a program with raised privileges records nothing. */
void at_record_init(at_record *record, const at_io *io, const at_log *log);

/* Adds a line, in one write, so that lines of several processes do not mix. A failure is logged. `schedule` is the
 * explicit one, or NULL. */
void at_record_miss(const at_record *record, const attune_problem *canonical, const attune_schedule *schedule);

/* ATTUNE_OK, or ATTUNE_NOT_CACHED and which kernel is missing. */
attune_status at_record_allow(const at_record *record, const at_key *key, const attune_problem *canonical,
                              const attune_schedule *schedule, at_error *err);

#endif
