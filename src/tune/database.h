/* The results of tuning, in one SQLite file beside the cached kernels: every timing, and the schedules that won.
 *
 * SQLite allows writers in several processes, and a crash leaves the file whole. The library is loaded when the first
 * database is opened; a process that only hits the cache does not load it. */
#ifndef ATTUNE_TUNE_DATABASE_H
#define ATTUNE_TUNE_DATABASE_H

#include "base/error.h"
#include "problem/mha.h"

typedef struct tune_database tune_database;

/* TUNE_CREATE: the file is going to be written to, and made if need be. TUNE_BASE: the file was handed on. It belongs
 * to root or this user, others cannot write to it, and nothing changes it. The two exclude each other. */
enum { TUNE_CREATE = 1, TUNE_BASE = 2 };

/* Opens the file. *database is NULL and the status ATTUNE_OK if there is none and it may not be made.
 * ATTUNE_BAD_FILE: it is damaged or of another version, or has other tables, views or triggers than attune's;
 * ATTUNE_UNSUPPORTED: there is no SQLite; ATTUNE_IO_ERROR: locked for seconds, no space, no permission, not a regular
 * file of this user. If this user cannot write to the directory, the file is expected not to change. The path must
 * stay as long as the handle, which belongs to one thread at a time, and to the process that opened it. */
attune_status tune_database_open(const char *path, int flags, const attune_allocator *allocator,
                                 tune_database **database, at_error *err);
void tune_database_close(tune_database *database);

/* The problem and machine that a result is for. */
typedef struct tune_place {
    const char *problem;       /* canonical text, without batch and strides */
    uint64_t key[2];           /* hash of the canonical key: the problem itself */
    const char *isa, *machine; /* target and tuning class */
    const char *cpu;           /* as people tell CPUs apart; nothing is looked up by it */
    uint32_t threads;
    uint64_t kind[2];          /* hash of the key without lengths and numbers of heads */
    int64_t queries, keys;     /* lengths; of a dynamic one its bound, or 1 without a bound */
    int64_t heads_per_kv_head; /* these three say how near problems of one kind are */
} tune_place;

typedef struct tune_timing {
    const char *schedule; /* text */
    double seconds;       /* of a sample: comparable within one search only */
    double ratio;         /* to the schedule that the search began with; of the winner, to the rules' choice */
    uint32_t pairs;
} tune_timing;

/* Whether tune_database_add could write now. */
attune_status tune_database_can_write(tune_database *database, at_error *err);

/* Keeps the timings of one search, and which of them won (-1: none), or nothing at all. */
attune_status tune_database_add(tune_database *database, const tune_place *place, const char *version,
                                const tune_timing *timings, size_t count, ptrdiff_t winner, at_error *err);

/* A search's winner, for a visitor, who ends the visit by returning something other than 0. */
typedef struct tune_winner {
    const char *problem, *schedule;
    uint32_t threads;
    double ratio; /* of its time to that of the rules' choice */
    int64_t when; /* seconds since the epoch */
} tune_winner;
typedef int tune_visit_fn(void *user, const tune_winner *winner);

/* The winners for this very problem and machine: the nearest number of threads first, then the latest. */
attune_status tune_database_same(tune_database *database, const tune_place *place, tune_visit_fn *visit, void *user,
                                 at_error *err);

/* The winners for problems of the same kind on this machine whose lengths and heads differ by no more than a factor of
 * `farthest` in all: the nearest number of threads first, then the nearest problem, then the latest. Only the first
 * sixteen, because each is much work for the visitor. */
attune_status tune_database_near(tune_database *database, const tune_place *place, double farthest,
                                 tune_visit_fn *visit, void *user, at_error *err);

/* Writes a copy to a new file. ATTUNE_IO_ERROR if the file exists; it stays. A failure leaves no file. */
attune_status tune_database_export(tune_database *database, const char *path, at_error *err);

/* Takes in the searches of another file that are not here yet, those of other machines too. *taken: how many; *of_here:
 * how many of them are of this target and class. */
attune_status tune_database_import(tune_database *database, const char *path, const char *isa, const char *machine,
                                   uint64_t *taken, uint64_t *of_here, at_error *err);

#endif
