/* Expert tier: most programs need attune/attention.h alone.
 *
 * Looking inside: a kernel at each stage, its interpreter, and kernels that a program writes in loop IR. */
#ifndef ATTUNE_IR_H
#define ATTUNE_IR_H

#include "cache.h"
#include "call.h"
#include "info.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Advanced: looking inside, and kernels of your own ---- */

typedef enum attune_stage {
    ATTUNE_STAGE_IR = 0,  /* scheduled loop IR */
    ATTUNE_STAGE_LOWERED, /* the IR that the code generator receives */
    ATTUNE_STAGE_LLVM,
    ATTUNE_STAGE_ASM,
    ATTUNE_STAGE_OBJECT,
    ATTUNE_STAGE_IMAGE
} attune_stage;

/* Gives the kernel at one stage. *data is allocated by the context's allocator; free it with attune_free. Text has a
 * NUL after its last byte, which *bytes does not count. schedule NULL: that of the cached kernel, else as
 * attune_compile chooses. If the kernel in use is a fallback of another tuning class, pass its schedule, which
 * attune_kernel_info has. */
ATTUNE_CHECKED attune_status attune_emit(attune_context *context, const attune_problem *problem, const char *schedule,
                                         attune_stage stage, void **data, size_t *bytes);
ATTUNE_API void attune_free(attune_context *context, void *data);

/* Runs a problem by the interpreter of its own IR: slow, checks every access, gives the bits of the machine code.
 * schedule NULL: as for attune_emit. */
ATTUNE_CHECKED attune_status attune_run_interpreted(attune_context *context, const attune_problem *problem,
                                                    const char *schedule, const attune_arguments *arguments);

/* The loop IR (docs/ir.md) as an input language. `text` is scheduled IR. */
ATTUNE_CHECKED attune_status attune_ir_emit(attune_context *context, const char *text, attune_stage stage, void **data,
                                            size_t *bytes);

/* Calls observe with the kernel's text after each lowering pass ("parse" first). */
typedef void attune_pass_fn(void *user, const char *pass, const char *text);
ATTUNE_CHECKED attune_status attune_ir_dump_passes(attune_context *context, const char *text, attune_pass_fn *observe,
                                                   void *user);

typedef struct attune_ir_parameter {
    const char *name;
    const char *elem;      /* "f32", "idx", … */
    int is_buffer;
    int is_input, is_output; /* of buffers */
} attune_ir_parameter;

/* A compiled kernel written in loop IR: from memory, else from disk, else newly compiled, as with attune_compile. Its
 * key is the canonical text (comments, blanks and folded constants do not matter) and the machine. A text of more than
 * a MiB is cached in memory only. Release with attune_kernel_release. */
ATTUNE_CHECKED attune_status attune_ir_compile(attune_context *context, const char *text, attune_kernel **kernel);
/* Its parameters in order; strings live as long as the kernel. */
ATTUNE_CHECKED attune_status attune_ir_parameters(const attune_kernel *kernel, const attune_ir_parameter **parameters,
                                                  size_t *count);
/* The shape that parameter `index` must have with these scalar values (dims: room for 8). */
ATTUNE_CHECKED attune_status attune_ir_shape(const attune_kernel *kernel, size_t index, const int64_t *scalars,
                                             int64_t *dims, size_t *rank);
/* As attune_cache_why. A difference in the text is the field "ir", with the first line that differs. */
ATTUNE_CHECKED attune_status attune_ir_cache_why(attune_context *context, const char *text,
                                                 attune_cache_answer_fn *answer, void *user);
/* Runs it. buffers[] and scalars[] are in the order of the parameters of their sort. A scalar is the int64 itself, or
 * the bits of the float (low 32) or double. With engine INTERPRETER every access is checked. JIT runs
 * the kernel as it was made, by machine code or by the virtual machine; VM refuses a kernel with machine code. */
ATTUNE_CHECKED attune_status attune_ir_run(attune_context *context, const attune_kernel *kernel, attune_engine engine,
                                           void *const *buffers, const int64_t *scalars);
/* A call in parts: as attune_call_begin, with the buffers and scalars of attune_ir_run. Their arrays need not stay. */
ATTUNE_CHECKED attune_status attune_ir_call_begin(attune_context *context, const attune_kernel *kernel,
                                                  void *const *buffers, const int64_t *scalars, uint32_t max_workers,
                                                  attune_call **call);

#ifdef __cplusplus
}
#endif

#endif
