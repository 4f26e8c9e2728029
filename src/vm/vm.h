/* Runs a kernel without a compiler: its lowered IR becomes a program of vector operations, which handlers written in C
 * execute. Results are those of machine code and of the interpreter, bit for bit. */
#ifndef ATTUNE_VM_VM_H
#define ATTUNE_VM_VM_H

#include "ir/ir.h"
#include "target/target.h"

typedef struct at_vm_program at_vm_program;
typedef struct at_vm_phase at_vm_phase;

/* Translates a kernel, which must have passed ir_verify(IR_LOWERED) for a `target` that this CPU can run. The program
 * is one block of the allocator (free it by at_free) without pointers to anything else; runs only read it.
 * ATTUNE_INVALID_IR if the kernel exceeds the limits of programs. */
attune_status at_vm_translate(const ir_kernel *kernel, const at_target *target, const attune_allocator *allocator,
                              at_vm_program **program, at_error *err);

uint32_t at_vm_num_phases(const at_vm_program *program);
uint32_t at_vm_num_shared(const at_vm_program *program);
size_t at_vm_bytes(const at_vm_program *program); /* of memory */
const at_vm_phase *at_vm_phase_of(const at_vm_program *program, uint32_t phase);
uint64_t at_vm_scratch_bytes(const at_vm_phase *phase); /* a multiple of 64 */

/* As at_plan_fn and at_phase_fn (target/kernel_abi.h). */
void at_vm_plan(const at_vm_program *program, const int64_t *scalars, int64_t *out);
void at_vm_run(const at_vm_phase *phase, void *const *buffers, const int64_t *scalars, int64_t task_begin,
               int64_t task_end, void *scratch);

#endif
