/* The context of kernels: its memory, threads, log, events, caches and compiler. */
#ifndef ATTUNE_CONTEXT_H
#define ATTUNE_CONTEXT_H

#include "status.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Context ---- */

/* Memory callbacks. `align` is a power of two; alloc returns NULL when it refuses. Must be thread-safe. */
typedef struct attune_allocator {
    void *(*alloc)(void *user, size_t bytes, size_t align);
    void (*free)(void *user, void *pointer);
    void *user;
} attune_allocator;

typedef enum attune_log_level { ATTUNE_LOG_ERROR = 0, ATTUNE_LOG_WARNING = 1, ATTUNE_LOG_INFO = 2 } attune_log_level;
typedef void attune_log_fn(void *user, attune_log_level level, const char *message);

/* The work of a call: executes the tasks from `begin` to before `end` as worker number `worker`. */
typedef void attune_range_fn(void *argument, int64_t begin, int64_t end, uint32_t worker);

/* A task that attune gives to a host's pool, to run once, on any thread. */
typedef void attune_task_fn(void *argument);

/* The host's threads. Set exactly one of parallel_for and submit. Several threads may call these functions at once, and
 * they must not fork. The bits of a result are the same with every runner, and with none. */
typedef struct attune_runner {
    size_t struct_size;

    /* Runs fn(argument, begin, end, worker) over disjoint ranges that cover [0, n), in any order and on any threads,
     * and returns when all have returned. Equals the serial loop fn(argument, 0, n, 0). Ranges that run at the same
     * time must have different `worker` numbers, all below max_workers.
     *
     * attune detects a worker number out of range, a range that reaches beyond [0, n), and ranges that do not add up to
     * n: the call fails with ATTUNE_INVALID_ARGUMENT. It cannot detect two ranges with one worker number at the same
     * time, or a range that runs twice in place of another of the same size: the result is then wrong. */
    void (*parallel_for)(void *user, attune_range_fn *fn, void *argument, int64_t n);

    /* Queues task(argument), to run once, on any thread, at any time. Returns 0; any other value means that it will
     * never run. The caller of attune_run works itself. It waits only for tasks that have already begun.
     *
     * A task that begins after the call has returned finds nothing to do. It frees a few hundred bytes by the context's
     * allocator, which must still work; the context itself may be gone. A task that never runs leaks those bytes. A
     * task that runs twice is an error that attune cannot detect. */
    int (*submit)(void *user, attune_task_fn *task, void *argument);

    void *user;
    uint32_t max_workers; /* 1 to 65536. With submit: the most threads that work for one call, its caller included */
} attune_runner;

#ifdef __cplusplus
#define ATTUNE_RUNNER_INIT attune_initial(attune_runner_init)
#else
#define ATTUNE_RUNNER_INIT { .struct_size = sizeof(attune_runner) }
#endif

ATTUNE_API attune_status attune_runner_init(attune_runner *runner, size_t struct_size);

/* Kinds of events. */
typedef enum attune_event_kind {
    ATTUNE_EVENT_MISS = 0,      /* no cache has the kernel: it is compiled next; in strict mode the call fails */
    ATTUNE_EVENT_DISK_HIT,      /* the kernel came from the disk cache. `message` says if it came from the base or the
                                 * pack, or if it is for another tuning class, which is a fallback after a MISS */
    ATTUNE_EVENT_COMPILE_BEGIN,
    ATTUNE_EVENT_COMPILE_END,   /* `status` is the outcome */
    ATTUNE_EVENT_EVICTED,       /* a kernel left the memory cache to make room; its users keep it */
    ATTUNE_EVENT_DAMAGED,       /* a cache file is damaged: `message` says how */
    ATTUNE_EVENT_SWAPPED,       /* a plan has a better kernel, and uses it from the next such call on */
    ATTUNE_EVENT_BUNDLE_HIT,    /* the kernel came from a registered bundle */
    ATTUNE_EVENT_TIER0_HIT,     /* tier 0 computes the problem: `message` says by what, and why nothing else does */
    ATTUNE_EVENT_COUNT
} attune_event_kind;

typedef struct attune_event {
    size_t struct_size;
    attune_event_kind kind;
    attune_status status; /* COMPILE_END: the outcome; otherwise ATTUNE_OK */
    const char *key;      /* the name of the cache file: 32 hex digits */
    const char *problem;  /* canonical text; "" with EVICTED and DAMAGED */
    const char *message;  /* "" if there is no message */
    double milliseconds;  /* COMPILE_END: of the compile; DISK_HIT: of reading and loading; otherwise 0 */
} attune_event;

/* Called on the thread where the event happens, perhaps on several threads at once. attune holds no lock. `event` and
 * its strings are valid during the call only. The function may call attune, except attune_context_destroy, and may
 * fork. It must not compile the kernel that is being made (ATTUNE_INVALID_ARGUMENT), or one that another thread is
 * making, if that thread's callback waits for this one. Candidates of attune_tune cause no events. */
typedef void attune_event_fn(void *user, const attune_event *event);

typedef enum attune_compile_mode {
    ATTUNE_COMPILE_DEFAULT = 0, /* as ATTUNE_COMPILE says, otherwise in process */
    ATTUNE_COMPILE_IN_PROCESS,  /* LLVM is loaded into this process on the first miss */
    ATTUNE_COMPILE_WORKER,      /* a worker process compiles; a crash of LLVM cannot reach this process */
    ATTUNE_COMPILE_NEVER        /* nothing is compiled: tier 0 or the virtual machine runs what no cache has */
} attune_compile_mode;

/* Which lines attune writes to stderr. Each level includes those before it. */
typedef enum attune_stderr {
    ATTUNE_STDERR_DEFAULT = 0, /* as ATTUNE_LOG says, otherwise none */
    ATTUNE_STDERR_NONE,
    ATTUNE_STDERR_ERROR,       /* compiles that failed */
    ATTUNE_STDERR_WARNING,     /* trouble with the cache, worker processes that died, kernels replaced by a fallback */
    ATTUNE_STDERR_INFO,        /* misses, compiles and how long they took, better kernels that a plan uses */
    ATTUNE_STDERR_DEBUG,       /* hits of the disk cache and of bundles, kernels that leave the memory cache */
    ATTUNE_STDERR_COUNT
} attune_stderr;

typedef struct attune_context_options {
    size_t struct_size;
    const attune_allocator *allocator;    /* NULL: malloc; copied */
    attune_log_fn *log;                   /* NULL: no log, except for stderr_level */
    void *log_user;
    const attune_runner *runner;          /* NULL: attune's own thread pool; copied */
    uint32_t max_workers;                 /* threads of that pool, the caller of a call included; 0: as many as the
                                           * process may use CPUs. Ignored with a runner, which has its own */
    const char *isa;                      /* NULL: ATTUNE_ISA, else the best of this CPU */
    const char *cache_dir;                /* NULL: ATTUNE_CACHE_DIR, XDG_CACHE_HOME, ~/.cache; "": no disk cache */
    uint64_t memory_cache_bytes;          /* most bytes of code kept in memory, and of the loop IR of operators
                                           * other than attention, some 0.3 MB each; 0: 256 MiB */
    uint64_t disk_cache_bytes;            /* 0: 1 GiB */
    attune_compile_mode compile_mode;
    int allow_interpreter;                /* 1: where there is no machine code, the interpreter runs kernels in place
                                           * of the virtual machine, a hundred times slower */
    const char *target;                   /* NULL, or an ISA that this CPU may lack, e.g. "aarch64": for emitting code
                                           * and interpreting; attune_compile then returns ATTUNE_UNSUPPORTED */
    const char *cache_base;               /* a second, read-only directory of the disk cache; NULL: ATTUNE_CACHE_BASE,
                                           * else none; "": none */
    attune_event_fn *event;               /* NULL: no events */
    void *event_user;
    const char *machine;                  /* the tuning class of kernels, "zen4"; or numbers that describe a machine,
                                           * "fma=2,width=64,l2=2M", after a class or alone. NULL: ATTUNE_MACHINE, else
                                           * by the CPU's family and model. See attune_machine_info */
    uint32_t compile_timeout_ms;          /* with ATTUNE_COMPILE_WORKER: a worker that needs more milliseconds for a
                                           * kernel is killed, and the call returns ATTUNE_CODEGEN_FAILED. 0:
                                           * ATTUNE_COMPILE_TIMEOUT_MS, else 30,000. Waiting for a free worker does
                                           * not count. A worker that does not start in this time is
                                           * ATTUNE_CODEGEN_MISSING */
    uint32_t compile_processes;           /* the most worker processes at a time, up to 64; other compiles wait for
                                           * their turn. 0: as many as the process may use CPUs, at most 4 */
    const char *cache_pack;               /* a signed file of many kernels, which is read after the base; NULL:
                                           * ATTUNE_CACHE_PACK, else none; "": none. See attune_cache_pack */
    const char *cache_keys;               /* the directory of public keys (*.pub of minisign) that may have signed a
                                           * pack; it and they must belong to root or this user. NULL:
                                           * ATTUNE_CACHE_KEYS, else /etc/attune/keys */
    int machine_code_only;                /* for hosts that have kernels of their own. 1: attune_compile returns
                                           * ATTUNE_CODEGEN_MISSING or ATTUNE_NO_EXEC_MEMORY in place of a kernel for
                                           * the virtual machine. Plans with a deadline still use the virtual machine
                                           * until their own kernel is there. 2: these do not either, so a call waits
                                           * for a compile while its plan is not ready (attune_plan_info) */
    uint32_t background_niceness;         /* of the thread that compiles for plans with `background` or a deadline: 0
                                           * (that of the thread whose call starts it) to 19. On a busy machine
                                           * niceness 19 gets a 70th of a CPU. Ignored with ATTUNE_COMPILE_WORKER */
    int check;                            /* 1: the debug mode, see below; 0: only if ATTUNE_CHECK=1 */
    attune_stderr stderr_level;           /* lines on stderr, see below; default: as ATTUNE_LOG says, else none */
    int strict;                           /* 1: nothing is compiled. A kernel that no cache has is ATTUNE_NOT_CACHED,
                                           * and the message says why. 0: only if ATTUNE_STRICT=1; -1: never */
    const char *record;                   /* a file that gets a line for each kernel that had to be compiled, for
                                           * `attune warm`. NULL: ATTUNE_RECORD, else none; "": none */
} attune_context_options;

/* The debug mode (check = 1, or ATTUNE_CHECK=1)
 * ---------------------------------------------
 * Before a call with attune_arguments writes anything, attune looks for
 *     a page to which one sequence appends keys, if the page is in use elsewhere in block_table;
 *     NaN and infinity in floating-point inputs, scales and weights.
 * The call then fails with ATTUNE_INVALID_ARGUMENT, and the sentence names tensor, index and value. Lengths,
 * block_table, position_ids, row_ids and kv_ids that are out of range are refused by every call, with check or without.
 *
 * An element counts if it can reach an output. So these may hold anything: rows beyond lengths, pages that are not in
 * use, queries that attend to no key, and keys that no query attends to because of causality, window, attn_mask,
 * attn_bias or mask_mod. score_mod is not evaluated: a key that it alone hides counts. The tensors that functions read
 * are not checked. Three infinities are allowed: a bias of -infinity, infinite sinks, and infinite logarithms (lse,
 * parts_lse).
 *
 * Cost: all inputs are read once, on the caller's thread, which slows decoding down most. attune_ir_run, and kernels of
 * bundles that run without the library, are not checked.
 *
 * Lines on stderr (stderr_level, or ATTUNE_LOG=error, warning, info or debug)
 * --------------------------------------------------------------------------
 * For programs to which nobody can add a log function. Each line is one write(2), from the thread where it happens:
 *     attune[PID] SECONDS LEVEL: TEXT
 * SECONDS count from the creation of the context. The lines go to the file that descriptor 2 is when the context is
 * created. If descriptor 2 becomes another file later, or has the close-on-exec flag, nothing is written. A line that
 * cannot be written is lost. Log function and event function are called as usual. */

#ifdef __cplusplus
#define ATTUNE_CONTEXT_OPTIONS_INIT attune_initial(attune_context_options_init)
#else
#define ATTUNE_CONTEXT_OPTIONS_INIT { .struct_size = sizeof(attune_context_options) }
#endif

ATTUNE_API attune_status attune_context_options_init(attune_context_options *options, size_t struct_size);

typedef struct attune_context attune_context;

/* Creates a context; options may be NULL. Any number of threads may use a context at once.
 *
 * Threads: attune's own pool starts threads when a call can use them. They block the host's signals, sleep when there
 * is nothing to do (after spinning for at most 50 microseconds), and end with the context. They may use the CPUs of the
 * thread that created the context, except that of the call that last woke them. Calls that are too short to gain from
 * more threads stay on the caller's thread. So do all calls for a while after other processes have preempted a thread
 * of the pool in the middle of its work.
 *
 * fork(): a child may use the context and its kernels. Calls that other threads had begun do not exist there, and the
 * pool is made anew. Other threads may be anywhere in attune when one of them forks. fork() waits for a compile in this
 * process to end (usually some milliseconds) and for tuning.db to be free. With ATTUNE_COMPILE_WORKER it does not wait
 * for compiles.
 *
 * exit(): compiling fails from then on. A compile that is under way is abandoned, except in a build with a shared LLVM
 * (LLVM_LINK=shared), whose destructors it must not meet: there exit() waits for it. */
ATTUNE_CHECKED attune_status attune_context_create(const attune_context_options *options, attune_context **context);

/* Destroys a context. Its kernels must have been released, and no call may be under way. NULL is fine. A thread that
 * still finishes an abandoned compile (attune_plan_destroy) uses neither the context nor the host's allocator. */
ATTUNE_API void attune_context_destroy(attune_context *context);

/* Gives the context that all objects share which were created with context NULL, for attune_get_statistics and its like
 * (attune/expert/info.h). It is created when first needed, with no options, and lives until the process ends: it must
 * not be destroyed. A failure sets *context to NULL. */
ATTUNE_CHECKED attune_status attune_shared_context(attune_context **context);

#ifdef __cplusplus
}
#endif

#endif
