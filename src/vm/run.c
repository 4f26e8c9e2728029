/* Runs a program: sizes by the stack machine, and the tasks of a phase:
 *
 *     constants, scalars and pointers  ->  frame;  for each task: its loop variables  ->  frame, then its operations */
#include "vm/program.h"

#include <string.h>

uint32_t at_vm_num_phases(const at_vm_program *program) { return program->num_phases; }
uint32_t at_vm_num_shared(const at_vm_program *program) { return program->num_shared; }
size_t at_vm_bytes(const at_vm_program *program) { return program->bytes; }
const at_vm_phase *at_vm_phase_of(const at_vm_program *program, uint32_t phase) { return &program->phases[phase]; }
uint64_t at_vm_scratch_bytes(const at_vm_phase *phase) { return phase->scratch_bytes; }

/* ---- Sizes ---- */

static int64_t size_of(const at_vm_program *program, const vm_size *size, const int64_t *scalars) {
    int64_t stack[VM_MAX_STACK]; /* not cleared, as each place is written before it is read */
    uint32_t top = 0;
    stack[0] = 0;
    for (uint32_t i = 0; i < size->count; i++) {
        const vm_size_op *op = &program->size_ops[size->first + i];
        if (op->kind == VM_SIZE_APPLY) {
            int64_t result = 0;
            top -= op->arity;
            op->eval(&result, &stack[top], &stack[top + 1], &stack[top + 2], 1);
            stack[top++] = result;
        } else {
            stack[top++] = op->kind == VM_SIZE_CONST ? op->imm : scalars[op->imm];
        }
    }
    return stack[0];
}

void at_vm_plan(const at_vm_program *program, const int64_t *scalars, int64_t *out) {
    const vm_size *size = program->sizes;
    for (uint32_t i = 0; i < program->num_phases + program->num_shared; i++) {
        uint64_t product = program->units[i];
        for (uint32_t f = 0; f < program->num_factors[i]; f++) {
            const int64_t factor = size_of(program, size++, scalars);
            product *= factor > 0 ? (uint64_t)factor : 0;
        }
        out[i] = (int64_t)product;
    }
}

/* ---- Phases ---- */

static void perform(const vm_op *op, char *frame) {
    while (op) op = op->fn(op, frame);
}

/* A scalar narrower than 8 bytes is the low part of its word; it is broadcast to its place. */
static void put_scalar(char *place, int64_t word, ir_elem elem) {
    const size_t bytes = ir_elem_get(elem)->bytes;
    if (elem == IR_IDX || elem == IR_I64) {
        memcpy(place, &word, sizeof word);
        return;
    }
    for (size_t at = 0; at < VM_SLOT_BYTES; at += bytes) memcpy(place + at, &word, bytes);
}

static void put_task(const at_vm_phase *phase, char *frame, int64_t task) {
    uint64_t rest = (uint64_t)task;
    for (uint32_t l = phase->num_loops; l-- > 0;) {
        const uint64_t hi = (uint64_t)VM_AT(int64_t, phase->loops[l].hi);
        const uint64_t digit = l && hi ? rest % hi : rest;
        VM_AT(int64_t, phase->loops[l].var) = (int64_t)digit;
        if (l && hi) rest /= hi;
    }
}

void at_vm_run(const at_vm_phase *phase, void *const *buffers, const int64_t *scalars, int64_t task_begin,
               int64_t task_end, void *scratch) {
    char *const frame = (char *)scratch + phase->frame_at;
    memcpy(frame - phase->constant_bytes, phase->constants, phase->constant_bytes);
    VM_AT(void *, phase->scratch) = scratch;
    for (uint32_t i = 0; i < phase->num_pointers; i++)
        VM_AT(void *, phase->pointers[i].at) = buffers[phase->pointers[i].number];
    for (uint32_t i = 0; i < phase->num_scalars; i++) {
        const vm_scalar *scalar = &phase->scalars[i];
        put_scalar(frame + scalar->at, scalars[scalar->number], (ir_elem)scalar->elem);
    }
    perform(phase->entry, frame);
    for (int64_t task = task_begin; task < task_end; task++) {
        put_task(phase, frame, task);
        perform(phase->task, frame);
    }
    phase->isa->leave(NULL, frame);
}
