/* Expert tier: most programs need attune/attention.h alone.
 *
 * What a kernel is, what a context has done so far, and what machine it is for. */
#ifndef ATTUNE_INFO_H
#define ATTUNE_INFO_H

#include "schedule.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- What happened ---- */

typedef enum attune_origin {
    ATTUNE_FROM_MEMORY = 0,
    ATTUNE_FROM_DISK = 1,
    ATTUNE_FROM_COMPILER = 2,
    ATTUNE_FROM_PACK = 3,
    ATTUNE_FROM_BUNDLE = 4,
    ATTUNE_FROM_VM = 5,   /* there is no machine code: the virtual machine runs it, with the same bits, more slowly */
    ATTUNE_FROM_TIER0 = 6 /* machine code that was compiled when attune was built, for sizes of any call */
} attune_origin;

typedef enum attune_engine {
    ATTUNE_ENGINE_JIT = 0,
    ATTUNE_ENGINE_INTERPRETER = 1,
    ATTUNE_ENGINE_VM = 2
} attune_engine;

typedef struct attune_kernel_info {
    size_t struct_size;
    attune_engine engine;
    attune_origin origin;         /* of the first acquisition in this process */
    char schedule[ATTUNE_SCHEDULE_BYTES]; /* "" for kernels of attune_ir_compile and of operators;
                                   * of tier 0: for the problem that it was compiled for */
    const char *isa;              /* static storage */
    uint32_t num_phases;
    uint64_t code_bytes;
    uint64_t scratch_bytes;       /* of workspace, for each worker */
    double compile_ms;            /* 0 unless compiled by this process */
    attune_dtype arithmetic;      /* of most multiplications: f32, f64, or bf16 for dot products of bf16. f32 for
                                   * kernels of attune_ir_compile */
    char key[33];                 /* the cache file's name: 32 hex digits */
    const char *machine;          /* the tuning class that it is for: the context's, unless a kernel for another class
                                   * is used because nothing can be compiled. Static; the context's if "custom-…" */
} attune_kernel_info;

#define ATTUNE_KERNEL_INFO_INIT ATTUNE_RESULT_INIT(attune_kernel_info)

ATTUNE_CHECKED attune_status attune_kernel_get_info(const attune_kernel *kernel, attune_kernel_info *info);

typedef struct attune_statistics {
    size_t struct_size;
    uint64_t memory_hits, disk_hits, compiles, compile_failures;
    uint64_t memory_evictions, disk_evictions, damaged_files, disk_write_failures, worker_restarts;
    uint64_t memory_kernels, memory_code_bytes; /* bytes of machine code, and of loop IR that is kept with it */
    uint64_t stand_ins; /* disk hits with a kernel for another tuning class */
    uint64_t pack_hits; /* disk hits with a kernel of the pack */
    uint64_t bundle_hits; /* kernels that were taken from registered bundles */
    uint64_t tier0_hits;  /* problems that tier 0 has computed, because nothing could be compiled or waited for */
} attune_statistics;

#define ATTUNE_STATISTICS_INIT ATTUNE_RESULT_INIT(attune_statistics)

ATTUNE_CHECKED attune_status attune_get_statistics(const attune_context *context, attune_statistics *statistics);

/* Drops kernels from memory (kernels in use live until they are released). */
ATTUNE_API void attune_drop_memory_cache(attune_context *context);

/* The machine and the build. Strings live as long as the context.
 *
 * A tuning class groups CPUs for which the same schedules are best: "zen4", "sapphire-rapids", "neoverse-n1", and
 * "generic" for CPUs that attune does not know. It is part of the key of kernels and of tuning results. It is found by
 * CPUID's family and model (MIDR on Arm), never by measuring. Each class has a description: numbers about a core and
 * its caches, by which schedules are chosen. Numbers that were given by hand make a class of their own, "custom-" and a
 * hash of all numbers, whose kernels and tuning results are used for no other class. Where nothing can be compiled
 * (ATTUNE_STRICT=1, no code generator), a cache file for another class of the same instruction set, but no
 * custom one, is used rather than failing. */
typedef struct attune_machine_info {
    size_t struct_size;
    const char *cpu;              /* as the CPU names itself */
    const char *isa;              /* in use, e.g. "avx2" */
    const char *isas;             /* all that this CPU can run, separated by spaces, best first */
    const char *llvm;             /* the LLVM version of this build's code generator */
    const char *cache_dir;        /* "" when off */
    const char *codegen_path, *worker_path;
    const char *generator_id;
    uint32_t max_workers;
    const char *cache_base;       /* "" when there is none */
    const char *cpu_description;  /* distinguishes CPUs of one name: "AMD EPYC (family 25, model 17, stepping 1)" */
    uint32_t cpu_family, cpu_model, cpu_stepping; /* of CPUID; of MIDR: implementer, part, variant */
    const char *machine;          /* the tuning class in use */
    const char *machine_source;   /* how it was found: "option", "ATTUNE_MACHINE", "cpu", "probe" */
    const char *cache_refusal, *cache_base_refusal; /* why cache_dir or cache_base is "" although a directory was named
                                   * (by an option or the environment): a sentence, as in the log; otherwise "". As
                                   * found when the context was made */
    const char *machine_description; /* of the class: "width=32,fma=2,load=2,...", all numbers, in the form that
                                   * ATTUNE_MACHINE takes. `attune info --machine` says what they mean */
    const char *cache_pack, *cache_pack_refusal; /* as cache_base and cache_base_refusal */
} attune_machine_info;

#define ATTUNE_MACHINE_INFO_INIT ATTUNE_RESULT_INIT(attune_machine_info)

ATTUNE_CHECKED attune_status attune_get_machine_info(const attune_context *context, attune_machine_info *info);

/* Measurements of a core, as ratios, so that the clock does not matter. */
typedef struct attune_machine_probe {
    size_t struct_size;
    double fma;      /* time of a 256-bit multiply-add that waits for the one before, divided by that of one that does
                      * not wait */
    double fma_wide; /* the same for 512 bits; 0: the CPU has none */
    double add;      /* time of an addition that waits for the one before, divided by that of such a multiply-add */
    const char *machine; /* the resulting class. As the next string, valid until this thread probes again */
    int is_kept;     /* 1: stored with the cache, for later contexts */
    const char *description; /* of the class: as machine_description above */
} attune_machine_probe;

#define ATTUNE_MACHINE_PROBE_INIT ATTUNE_RESULT_INIT(attune_machine_probe)

/* Measures this CPU, for at most 50 ms. The result is the newest tuning class of the same maker whose known values are
 * all within a tenth of the measured ones, three times in succession; if there is none, a description of what was
 * measured, rounded, which is a class of its own. It is stored with the cache.
 * Contexts that are created later on such a CPU use it if family and model are not known. No other function measures
 * for a class. ATTUNE_UNSUPPORTED: the CPU is not an x86-64 CPU with fused multiply-add. ATTUNE_IO_ERROR: the result
 * could not be stored; *probe is filled in all the same. */
ATTUNE_CHECKED attune_status attune_probe_machine(attune_context *context, attune_machine_probe *probe);

#ifdef __cplusplus
}
#endif

#endif
