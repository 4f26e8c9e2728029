/* Expert tier: most programs need attune/attention.h alone.
 *
 * The disk cache: its files, why a kernel is missing, and moving kernels to other machines; packs. A cache file
 * has one kernel, and lies alone in a directory or among others in a pack. */
#ifndef ATTUNE_CACHE_H
#define ATTUNE_CACHE_H

#include "kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Disk cache ---- */

typedef struct attune_cache_file {
    size_t struct_size;
    const char *file;     /* name inside the cache directory */
    uint64_t bytes;
    attune_status status; /* ATTUNE_OK, or the kind of damage */
    const char *message;
    const char *problem;  /* canonical text; "@NAME" of a kernel in loop IR; "" if unreadable */
    const char *schedule;
    const char *isa;
    int64_t used_at;      /* seconds since the epoch */
    const char *directory;
    int is_base;          /* from the read-only base */
    int is_usable;        /* made by this build, for an instruction set that this CPU has (any of them). A file for
                           * another tuning class is used only where nothing can be compiled */
    const char *machine, *llvm, *generator; /* the tuning class it was made for, and its makers; "" if unreadable */
    const void *image;    /* as attune_emit gives it at ATTUNE_STAGE_IMAGE; NULL if unreadable */
    size_t image_bytes;
    const void *key;      /* the full key; its hash without the tuning class is the name; NULL if unreadable */
    size_t key_bytes;
    const char *ir;       /* of a kernel that was written in loop IR: its canonical text. "" for all others */
    const char *pack;     /* the pack that it is in, which is `directory`, too; NULL: it is a file by itself */
} attune_cache_file;

/* Calls visit for each file of the cache directory, then of the base and of the pack. *file is valid during the call
 * only. A non-zero return stops the walk. */
typedef int attune_cache_visit_fn(void *user, const attune_cache_file *file);
ATTUNE_CHECKED attune_status attune_cache_visit(attune_context *context, attune_cache_visit_fn *visit, void *user);

/* Removes every cache file, except those of base and pack; `removed` may be NULL. */
ATTUNE_CHECKED attune_status attune_cache_clear(attune_context *context, uint64_t *removed);

/* One part of the key in which a cache file differs from the request: a field of the problem by its name in text, or
 * operator (attention, ir, or the name of one of the user's; nothing else is compared then), problem, ir, schedule,
 * isa, machine (the tuning class), llvm, image_version, generator (built from another version of attune's sources),
 * cpu_features (its code needs features that this CPU lacks). */
typedef struct attune_cache_difference {
    const char *field;
    const char *there, *here; /* as text: of the file, and of the request */
} attune_cache_difference;

typedef struct attune_cache_answer {
    size_t struct_size;
    int is_cached;        /* in the disk cache, its base or the pack */
    const char *key;      /* 32 hex digits */
    uint64_t compared;    /* number of files that were compared */
    const attune_cache_file *nearest; /* the file itself if cached; its damaged file; otherwise the one that differs
                                        * least. NULL if there are none */
    const attune_cache_difference *differences; /* of the nearest */
    size_t num_differences;
    const char *stand_in; /* the tuning class whose kernel is the fallback where nothing can be compiled; NULL: none, or
                           * the kernel is cached */
} attune_cache_answer;

/* Tells whether attune_compile would find the kernel in the disk cache, and if not, why it is a miss. Calls `answer`
 * once; its argument is valid during the call only. Compiles nothing. schedule as for attune_compile. */
typedef void attune_cache_answer_fn(void *user, const attune_cache_answer *answer);
ATTUNE_CHECKED attune_status attune_cache_why(attune_context *context, const attune_problem *problem,
                                              const char *schedule, attune_cache_answer_fn *answer, void *user);

typedef struct attune_cache_collected {
    size_t struct_size;
    uint64_t removed, removed_bytes; /* files, the least recently used first */
    uint64_t orphans, orphan_bytes;  /* files of writers that crashed more than an hour ago */
    uint64_t left, left_bytes;
} attune_cache_collected;

#define ATTUNE_CACHE_COLLECTED_INIT ATTUNE_RESULT_INIT(attune_cache_collected)

/* Removes at once what writers remove in the course of time: orphans, and the least recently used files while all
 * together have more than max_bytes. UINT64_MAX: disk_cache_bytes of the context. `collected` may be NULL. */
ATTUNE_CHECKED attune_status attune_cache_gc(attune_context *context, uint64_t max_bytes,
                                             attune_cache_collected *collected);

typedef struct attune_cache_copied {
    size_t struct_size;
    uint64_t added, added_bytes;
    uint64_t known;   /* were there already, undamaged */
    uint64_t damaged; /* damaged, and not copied */
    uint64_t foreign; /* of another version of attune, or for a CPU with other features; exported, but not imported */
    uint64_t other_class; /* of those added and known: for a tuning class other than the context's */
} attune_cache_copied;

#define ATTUNE_CACHE_COPIED_INIT ATTUNE_RESULT_INIT(attune_cache_copied)

/* Export copies all valid files, those of the base too, into another directory, which is made if necessary. Import
 * copies from such a directory the files that can be used here. Every file is verified, and is copied whole or not
 * at all. A directory to import from must belong to root or this user, and others must not be able to write to it:
 * they are code. After a failure *copied says what was copied before it; `copied` may be NULL. */
ATTUNE_CHECKED attune_status attune_cache_export(attune_context *context, const char *directory,
                                                 attune_cache_copied *copied);
ATTUNE_CHECKED attune_status attune_cache_import(attune_context *context, const char *directory,
                                                 attune_cache_copied *copied);

/* Packs: many cache files in one, for a fleet of machines. A pack has a hash for each of them, and one signature over
 * its header and index, which minisign makes. Contexts read it in place (`cache_pack`), if a key of theirs has signed
 * it. A kernel's hash is compared with a copy of it, and that copy runs. docs/packs.md has the format.
 *
 * Pack writes all valid files of the cache directory and the base into a new file, whole or not at all, without a
 * signature; if `keys` is not NULL only those with one of these num_keys names (32 hex digits, as in
 * attune_kernel_info), for every tuning class. A name without a file fails the whole. Seal puts the signature that
 * minisign has made of the signed part into a pack, if one of the context's keys made it. Add copies the kernels of a
 * signed pack that can be used here into the cache directory, as attune_cache_import does. `copied` may be NULL.
 *
 * ATTUNE_BAD_FILE: the file is no pack, is not signed, or is signed by none of the keys; the message says which. */
ATTUNE_CHECKED attune_status attune_cache_pack(attune_context *context, const char *path, const char *const *keys,
                                               size_t num_keys, attune_cache_copied *copied);
ATTUNE_CHECKED attune_status attune_cache_seal(attune_context *context, const char *path, const char *signature_path);
ATTUNE_CHECKED attune_status attune_cache_add(attune_context *context, const char *path, attune_cache_copied *copied);

/* Gives the parts of a pack, signed by anyone or not: its header and index, which minisign signs, and the signature's
 * text, "" if there is none. Both end with a NUL that does not count; free them with attune_free. */
ATTUNE_CHECKED attune_status attune_cache_pack_parts(attune_context *context, const char *path, void **signed_part,
                                                     size_t *bytes, char **signature);

#ifdef __cplusplus
}
#endif

#endif
