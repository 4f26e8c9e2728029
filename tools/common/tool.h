/* Shared by the subcommands of `attune`: exit codes, messages, common options, files and clocks. */
#ifndef ATTUNE_TOOLS_TOOL_H
#define ATTUNE_TOOLS_TOOL_H

#include <argp.h>
#include <attune.h>
#include <stdbool.h>
#include <stdio.h>

/* Exit codes of every subcommand. */
enum { TOOL_OK = 0, TOOL_FAILED = 1, TOOL_USAGE = 2 };

/* The subcommands. argv[0] is "attune NAME". They return an exit code; argp ends the process on a usage error. */
int cmd_run(int argc, char **argv);
int cmd_mha(int argc, char **argv);
int cmd_compile(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_explain(int argc, char **argv);
int cmd_tune(int argc, char **argv);
int cmd_warm(int argc, char **argv);
int cmd_sweep(int argc, char **argv);
int cmd_cache(int argc, char **argv);
int cmd_info(int argc, char **argv);
int cmd_ir(int argc, char **argv);
int cmd_bundle(int argc, char **argv);

/* argp_parse for a subcommand: of an option that takes a value, a second one is a usage error, unless its flags have
 * TOOL_REPEATS. */
void tool_parse(const struct argp *argp, int argc, char **argv, void *input);
enum { TOOL_REPEATS = 1 << 16 }; /* argp has no such flag */

/* Options that every subcommand takes. A subcommand lists tool_common_children as its argp children and points the
 * first child's input at a tool_common in ARGP_KEY_INIT. */
typedef struct tool_common {
    const char *isa;        /* NULL: the library decides */
    const char *cache_dir;  /* NULL: the library decides; "": none */
    const char *cache_base; /* the same */
    const char *cache_pack; /* the same */
    const char *target;     /* of a subcommand that has --target; NULL: not given */
} tool_common;
extern const struct argp_child tool_common_children[];

/* Keys of long options without a letter, unique over all subcommands. */
enum {
    TOOL_KEY_ISA = 256,
    TOOL_KEY_CACHE_DIR,
    TOOL_KEY_CACHE_BASE,
    TOOL_KEY_TARGET,
    TOOL_KEY_JSON,
    TOOL_KEY_Q,
    TOOL_KEY_K,
    TOOL_KEY_V,
    TOOL_KEY_LSE,
    TOOL_KEY_ENGINE,
    TOOL_KEY_CHECK,
    TOOL_KEY_EXPECT,
    TOOL_KEY_THREADS,
    TOOL_KEY_EMIT,
    TOOL_KEY_SCHEDULE,
    TOOL_KEY_DUMP_PASSES,
    TOOL_KEY_RANDOM,
    TOOL_KEY_SEED,
    TOOL_KEY_FIRST,
    TOOL_KEY_MAX_FLOPS,
    TOOL_KEY_INPUTS,
    TOOL_KEY_SIZES,
    TOOL_KEY_TENSOR,
    TOOL_KEY_WRITE,
    TOOL_KEY_FTZ,
    TOOL_KEY_FUNCTIONS,
    TOOL_KEY_ACCURACY,
    TOOL_KEY_SAMPLES,
    TOOL_KEY_ARG,
    TOOL_KEY_OUT,
    TOOL_KEY_LAYOUT,
    TOOL_KEY_X,
    TOOL_KEY_PROBE_MACHINE,
    TOOL_KEY_MACHINE,
    TOOL_KEY_X_KV,
    TOOL_KEY_X_V,
    TOOL_KEY_WEIGHTS,
    TOOL_KEY_PREFIX,
    TOOL_KEY_NAME,
    TOOL_KEY_IGNORE,
    TOOL_KEY_PACKED,
    TOOL_KEY_SAVE_PACKED,
    TOOL_KEY_BUDGET,
    TOOL_KEY_JOBS,
    TOOL_KEY_LIMIT,
    TOOL_KEY_DRY_RUN,
    TOOL_KEY_WARM,
    TOOL_KEY_COLD,
    TOOL_KEY_COLD_DATA,
    TOOL_KEY_EXPORT,
    TOOL_KEY_IMPORT,
    TOOL_KEY_MAX_BYTES,
    TOOL_KEY_SAMPLE,
    TOOL_KEY_CSV,
    TOOL_KEY_MAX_SPREAD,
    TOOL_KEY_SET,
    TOOL_KEY_IR,
    TOOL_KEY_SHARD,
    TOOL_KEY_TARGETS,
    TOOL_KEY_HEADER,
    TOOL_KEY_SHARED,
    TOOL_KEY_KERNELS_ONLY,
    TOOL_KEY_PACK,
    TOOL_KEY_REPORT
};

/* One line on stderr: "attune: " and the message, with a ? for each control character. */
void tool_error(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Shows progress in a line of its own on stderr, if that is a terminal. The next progress line or message replaces it;
 * tool_end_progress removes it. */
void tool_progress(const char *format, ...) __attribute__((format(printf, 1, 2)));
void tool_end_progress(void);

/* Reports the library's last failure, after the words of `doing` ("compiling …"; may be NULL). TOOL_FAILED. */
int tool_library_error(const char *doing);

/* --target, which needs other options, because nothing is run then: `runs_nothing` tells whether they are given, and
 * `needs` names them. Call tool_check_target at the end of the arguments. */
#define TOOL_TARGET_OPTION                                                                                             \
    {"target", TOOL_KEY_TARGET, "NAME", 0, "Emit code for this instruction set, which this CPU need not have", 0}
void tool_check_target(struct argp_state *state, const tool_common *common, bool runs_nothing, const char *needs);

/* The one argument of a command, such as its problem; another one is a usage error. `what` names it. */
void tool_take_one(struct argp_state *state, const char *what, char *argument, const char **taken);

/* --emit, -o and --dump-passes: a stage of a kernel instead of `instead`. */
typedef struct tool_emission {
    bool emits, dumps;
    attune_stage stage;
    const char *out;
} tool_emission;
#define TOOL_EMIT_OPTIONS(instead)                                                                                     \
    {"emit", TOOL_KEY_EMIT, "STAGE", 0, "Write ir, lowered, llvm, asm, obj or image instead of " instead, 0},          \
        TOOL_TARGET_OPTION, {"output", 'o', "FILE", 0, "Where --emit writes; - is standard output (default)", 0},      \
        {"dump-passes", TOOL_KEY_DUMP_PASSES, NULL, 0, "Print the IR after each pass to standard error", 0}
/* Takes one of these options, TOOL_TARGET_OPTION too; false: it is another one. */
bool tool_parse_emission(struct argp_state *state, int key, char *argument, tool_common *common,
                         tool_emission *emission);
/* At the end of the arguments. `else_out`: what else -o could have been meant for, or "". */
void tool_check_emission(struct argp_state *state, const tool_common *common, const tool_emission *emission, bool json,
                         const char *else_out);

/* A context with the common options; the library's messages go to stderr. max_workers 0: all. `cache_dir` overrides
 * the common option when not NULL, and leaves out the base. NULL after an error message. */
attune_context *tool_open_context(const tool_common *common, uint32_t max_workers, const char *cache_dir);

/* Text of option `name` as a whole number in [low, high], or a usage error through `state`. */
int64_t tool_parse_integer(struct argp_state *state, const char *name, const char *text, int64_t low, int64_t high);

/* Text of option `name` as seconds in [low, high], with or without an s after it, or a usage error. */
double tool_parse_seconds(struct argp_state *state, const char *name, const char *text, double low, double high);

/* Whether the process may use as many CPUs; false after a message. Threads that spin for each other on one CPU lose
 * whole ticks of the scheduler. */
bool tool_threads_fit(uint32_t threads);

/* Removes white space from both ends of a text, in place. */
char *tool_trimmed(char *text);

/* "jit", "vm" or "interp", or a usage error. */
attune_engine tool_parse_engine(struct argp_state *state, const char *text);

/* "out_in" or "in_out", or a usage error. */
attune_weight_layout tool_parse_layout(struct argp_state *state, const char *text);

const char *tool_engine_option(attune_engine engine); /* as in --engine= */
const char *tool_engine_name(attune_engine engine);
const char *tool_vm_option(void); /* " --engine=vm" if that was asked for, else "" */
const char *tool_dtype_name(attune_dtype dtype);
const char *tool_origin_name(attune_origin origin);  /* "compiler" */
const char *tool_origin_place(attune_origin origin); /* "the compiler" */

/* Writes through a temporary file and a rename, so that no half file is ever seen; "-" is stdout. Parts may be empty.
 * Something that exists and is no regular file (/dev/null, a pipe) is written in place. */
bool tool_write_file(const char *path, const void *head, size_t head_bytes, const void *data, size_t bytes,
                     char message[ATTUNE_MESSAGE_BYTES]);

/* Whether tool_write_file may create a file of this name, as far as can be known before; false after a message. For
 * commands that work for a long time before they write. */
bool tool_can_write(const char *path);

/* The IR after each pass to stderr, for --dump-passes. An exit code. */
int tool_dump_passes(attune_context *context, const char *ir_text);

/* Writes the output of --emit to a file, or to stdout when path is NULL or "-". An exit code. */
int tool_write_stage(attune_stage stage, const char *path, const void *data, size_t bytes);

/* Flushes stdout, so that a message on stderr comes after it. */
void tool_flush(void);

/* Flushes stdout and turns a failed write into an error message and TOOL_FAILED, else returns `code`. */
int tool_finish(int code);

/* Microseconds of a monotonic clock. */
double tool_now_us(void);

/* Sorts values and returns the middle one; count >= 1. */
double tool_median(double *values, size_t count);

/* Writes a jansson value to stdout, indented, numbers with six digits; takes the reference. */
struct json_t;
int tool_print_json(struct json_t *value);

/* A text, such as the name of a directory. If it is not UTF-8, each byte that is not ASCII becomes a ?. A new
 * reference; NULL when out of memory. */
struct json_t *tool_json_text(const char *text);

/* splitmix64: the same data for the same seed everywhere. */
typedef struct tool_random {
    uint64_t state;
} tool_random;
uint64_t tool_random_next(tool_random *random);
int64_t tool_random_range(tool_random *random, int64_t low, int64_t high); /* both ends included */
bool tool_random_chance(tool_random *random, int percent);
float tool_random_normal(tool_random *random); /* about N(0, 1), within ±4.25 */

/* Whether one of several arguments, which was refused, is a lone key=value: blanks may stand where commas belong. */
bool tool_looks_cut(const char *text, size_t arguments);

#endif
