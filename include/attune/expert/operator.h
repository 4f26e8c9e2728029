/* Expert tier: most programs need attune/attention.h alone.
 *
 * Operators of your own: functions that write the loop IR of a kernel, which is cached and tuned like attention.
 *
 * An operator is a function that writes the loop IR of a kernel for a problem and a schedule. The problem is a line of
 * text, such as "rows=64,columns=48", that the operator alone understands. The schedule is a few numbers, each one of
 * several values: sizes of tiles, for example. Kernels are cached like those of attune_compile, in memory and on disk;
 * the key is the operator's name, version and choices, the problem, the schedule if one is given, and the machine.
 * All programs that use one cache share the names in it: two programs whose operators have the same name, version and
 * choices get each other's kernels. So give an operator a name that nobody else has, with your project's for example.
 * attune_ir_parameters, attune_ir_shape and attune_ir_run take these kernels. docs/operators.md has the rules, and
 * examples/matmul.c and examples/layer_norm.c are two such operators. */
#ifndef ATTUNE_OPERATOR_H
#define ATTUNE_OPERATOR_H

#include "ir.h"
#include "tuning.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Operators of your own ---- */

/* One number of a schedule. */
typedef struct attune_choice {
    const char *name;      /* letters, digits and '_', no digit first */
    const int32_t *values; /* that it may have, each once; 256 at most */
    size_t num_values;
    int32_t usual;         /* one of them: the number where nothing was tuned */
    int32_t reserved;      /* 0 */
} attune_choice;

/* The kernel that is wanted. Valid during the call of an attune_build_fn. */
typedef struct attune_build_request {
    size_t struct_size;
    const char *problem;
    const int32_t *schedule; /* a number for each choice, in their order */
    const char *isa;         /* of the target; static storage */
    int32_t vector_bytes;    /* of its widest vectors */
    int32_t has_fma;         /* 1: the IR may use fma */
} attune_build_request;

typedef struct attune_ir_writer attune_ir_writer;

/* Appends text, as printf does. Only within an attune_build_fn, with its writer. */
ATTUNE_API void attune_ir_print(attune_ir_writer *writer, const char *format, ...)
#if defined(__GNUC__)
    __attribute__((format(printf, 2, 3)))
#endif
    ;

/* Writes one kernel in loop IR (docs/ir.md) and returns 0. It refuses a problem or a schedule by any other result; the
 * text that it has written is then the reason, for people. The same request must always give the same text: otherwise
 * give the operator another version. Different schedules must give the same bits. Called on the thread that compiles;
 * while a problem is tuned, by several threads at once. It must not compile with this context, and it must return: no
 * longjmp and no exception may leave it. */
typedef int attune_build_fn(void *user, const attune_build_request *request, attune_ir_writer *writer);

typedef struct attune_operator_options {
    size_t struct_size;
    const char *name;             /* letters, digits and '_', no digit first; 47 at most. Not one of attune's own:
                                   * attention, ir, linear, linear_attention, conv, causal_conv, index, blocks, mla */
    attune_build_fn *build;
    void *user;                   /* is passed to build */
    const attune_choice *choices; /* 12 at most */
    size_t num_choices;
    uint32_t version;             /* of build, from 1 on: raise it when build writes other text for the same request.
                                   * Otherwise kernels that other programs, or this one before, have cached stay in
                                   * use, and they may take other buffers */
    uint32_t reserved;            /* 0 */
} attune_operator_options;

#ifdef __cplusplus
#define ATTUNE_OPERATOR_OPTIONS_INIT attune_initial(attune_operator_options_init)
#else
#define ATTUNE_OPERATOR_OPTIONS_INIT { .struct_size = sizeof(attune_operator_options) }
#endif

ATTUNE_API attune_status attune_operator_options_init(attune_operator_options *options, size_t struct_size);

typedef struct attune_operator attune_operator;

/* Makes an operator known to a context, which copies the options and keeps the operator until it is destroyed. Any
 * number of threads may add operators and use them. ATTUNE_INVALID_ARGUMENT: the name is in use by another operator of
 * this context, or an option has a wrong value. */
ATTUNE_CHECKED attune_status attune_operator_add(attune_context *context, const attune_operator_options *options,
                                                 attune_operator **op);

/* Gives a kernel for the problem: from memory, else from disk, else newly compiled. `problem` is UTF-8 of
 * 511 bytes at most, without control characters. schedule: a number for each choice, or NULL for the kernel that the
 * cache holds, else the tuned numbers, else the usual ones, which must be legal for the problem. Release the kernel
 * with attune_kernel_release. ATTUNE_INVALID_PROBLEM: build refuses the request. ATTUNE_INVALID_IR: its text is no
 * kernel. The message says which request and why. */
ATTUNE_CHECKED attune_status attune_operator_compile(attune_operator *op, const char *problem, const int32_t *schedule,
                                                     attune_kernel **kernel);

/* The numbers of a kernel of attune_operator_compile; they live as long as the kernel. */
ATTUNE_CHECKED attune_status attune_operator_numbers(const attune_kernel *kernel, const int32_t **numbers,
                                                     size_t *count);

/* As attune_cache_why: whether attune_operator_compile would find the kernel in the disk cache. */
ATTUNE_CHECKED attune_status attune_operator_cache_why(attune_operator *op, const char *problem,
                                                       const int32_t *schedule, attune_cache_answer_fn *answer,
                                                       void *user);

/* Searches for faster numbers by measuring, as attune_tune does, with the call that attune_ir_run would make of these
 * buffers and scalars. Outputs are overwritten; buffers that a kernel reads and writes change with each of many calls,
 * and are not restored. Kernels must have the interpreter's bits, the same parameters as with the usual numbers, and
 * outputs of the same bits: others are dropped, counted in result->wrong, and the first is named there. From then on
 * attune_operator_compile without a schedule gives the winner's kernel. *numbers (NULL, or room for a number for each
 * choice) receives the winner, or the numbers that the search began with. result->schedule stays empty. The usual
 * numbers must be legal for the problem. ATTUNE_CHECK_FAILED: with these the kernel gives other bits than the
 * interpreter. */
ATTUNE_CHECKED attune_status attune_operator_tune(attune_operator *op, const char *problem, void *const *buffers,
                                                  const int64_t *scalars, const attune_tune_options *options,
                                                  int32_t *numbers, attune_tune_result *result);

#ifdef __cplusplus
}
#endif

#endif
