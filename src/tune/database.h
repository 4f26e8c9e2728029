/* What tuning has measured, kept in one SQLite file beside the cached kernels: every timing, and the schedules that
 * won.
 *
 * SQLite brings what this needs: writers in several processes, a file that a crash leaves whole. The library is loaded
 * when the first database is opened; a process that only hits the cache does without. */
#ifndef ATTUNE_TUNE_DATABASE_H
#define ATTUNE_TUNE_DATABASE_H

#include "base/error.h"
#include "mha/mha.h"

typedef struct tune_database tune_database;

enum { TUNE_CREATE = 1 };

/* Opens the file, with TUNE_CREATE makes it. *database is NULL and the status ATTUNE_OK where there is none and it may
 * not be made. ATTUNE_BAD_FILE: it is damaged or of another version; ATTUNE_UNSUPPORTED: there is no SQLite;
 * ATTUNE_IO_ERROR: locked for seconds, no space, no permission, not a regular file of this user. The path must stay as
 * long as the handle, which belongs to one thread at a time, and to the process that opened it. */
attune_status tune_database_open(const char *path, int flags, const attune_allocator *allocator,
                                 tune_database **database, at_error *err);
void tune_database_close(tune_database *database);

/* For what a result counts. */
typedef struct tune_place {
    const char *problem; /* canonical text, without batch and strides: for people, and to find neighbours by */
    uint64_t key[2];     /* hash of the canonical key: the problem itself */
    const char *isa, *cpu;
    uint32_t threads;
} tune_place;

typedef struct tune_timing {
    const char *schedule; /* text */
    double seconds;       /* of a sample: comparable within one search only */
    double ratio;         /* to the schedule that the search began with */
    uint32_t pairs;
} tune_timing;

/* Keeps the timings of one search, and which of them won (-1: none did). All of it or nothing. */
attune_status tune_database_add(tune_database *database, const tune_place *place, const char *version,
                                const tune_timing *timings, size_t count, ptrdiff_t winner, at_error *err);

/* The schedule that won for this very problem, machine and number of threads, the latest one: its text into
 * schedule[capacity]; "" if there is none. */
attune_status tune_database_best(tune_database *database, const tune_place *place, char *schedule, size_t capacity,
                                 at_error *err);

/* Calls visit for the winners of this machine (any problem), the latest first; non-zero ends it. */
typedef struct tune_winner {
    const char *problem, *isa, *cpu, *schedule, *version;
    uint32_t threads;
    double ratio;
    int64_t when; /* seconds since the epoch */
} tune_winner;
typedef int tune_visit_fn(void *user, const tune_winner *winner);
attune_status tune_database_visit(tune_database *database, const char *isa, const char *cpu, tune_visit_fn *visit,
                                  void *user, at_error *err);

/* Writes a copy of the whole to a new file; ATTUNE_IO_ERROR if there is one already. A failure leaves none. */
attune_status tune_database_export(tune_database *database, const char *path, at_error *err);

/* Takes in the searches of another file that are not here yet, those of other machines too. *taken: how many; *of_here:
 * how many of them are of this machine. */
attune_status tune_database_import(tune_database *database, const char *path, const char *isa, const char *cpu,
                                   uint64_t *taken, uint64_t *of_here, at_error *err);

#endif
