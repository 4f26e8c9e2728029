/* How a kernel is cut into functions, and these are divided among modules, which are compiled in parallel. It does not
 * use LLVM.
 *
 * A phase is a function, and a function is compiled by one thread. So if phases cannot be divided evenly, loop nests of
 * the largest phase become functions of their own, provided that each call does so much work that the call is
 * negligible. There are as few of them as possible, since LLVM takes at least half a millisecond for a function. The
 * cut depends on the kernel alone, and not on the machine: a kernel has one image. */
#ifndef ATTUNE_CODEGEN_CUT_H
#define ATTUNE_CODEGEN_CUT_H

#include "base/error.h"
#include "ir/ir.h"
#include "target/kernel_abi.h"

enum { CG_MAX_NESTS = 8, CG_MAX_CAPTURED = 16, CG_MAX_MODULES = 2, CG_NAME_BYTES = 24 };

/* A run of statements of one block that becomes a function: from `first` to before `end`. */
typedef struct cg_nest {
    const ir_stmt *first, *end;
    uint32_t phase;
    uint32_t weight, module;
    uint32_t begin, after;               /* positions of `first` and `end` in the program */
    const ir_var *vars[CG_MAX_CAPTURED]; /* values from outside: its parameters besides the scalars */
    uint32_t num_vars;
    char name[CG_NAME_BYTES];
} cg_nest;

typedef struct cg_cut {
    cg_nest nests[CG_MAX_NESTS];
    uint32_t num_nests, num_modules;
    uint32_t phase_module[AT_MAX_PHASES];
    uint64_t scratch_bytes[AT_MAX_PHASES]; /* the most that a phase uses */
    uint64_t *offsets;                     /* by ir_buffer.id: a buffer's offset in scratch */
} cg_cut;

/* The name of a phase's function, such as "phase7". */
void cg_phase_name(char name[CG_NAME_BYTES], uint32_t phase);

/* Lays out scratch and cuts `kernel`, which must have passed ir_verify(IR_LOWERED). The cut lives in the arena. */
attune_status cg_cut_kernel(const ir_kernel *kernel, at_arena *arena, cg_cut **cut, at_error *err);

/* The same functions, all in one module. */
void cg_cut_join(cg_cut *cut);

/* The nest that begins with `stmt`, else NULL. */
const cg_nest *cg_cut_at(const cg_cut *cut, const ir_stmt *stmt);

/* Elements of a buffer whose dims are constants; false after failing when scratch could not hold them. */
bool cg_count_elements(const ir_kernel *kernel, const ir_buffer *buffer, uint64_t *count, at_error *err);

#endif
