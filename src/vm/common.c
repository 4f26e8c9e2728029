/* The operations that need no instruction set: control flow, scalars of idx and i64, and everything else one lane at a
 * time, by the interpreter's evaluators (ir/eval.h). */
#include "vm/program.h"

#include <string.h>

#define OP(name) const vm_op *name(const vm_op *op, char *frame)

typedef uint16_t __attribute__((may_alias)) bits2;
typedef uint32_t __attribute__((may_alias)) bits4;
typedef uint64_t __attribute__((may_alias)) bits8;
typedef int64_t __attribute__((may_alias)) number;

#define INT(place) VM_AT(number, place)

/* ---- Control ---- */

OP(vm_exit) {
    (void)op, (void)frame;
    return NULL;
}

/* out = a; skips e operations unless out < b */
OP(vm_loop_begin) {
    const int64_t first = INT(op->a);
    INT(op->out) = first;
    const vm_op *next = op + (first < INT(op->b) ? 1 : op->e);
    VM_GO(next);
}

/* out += imm; jumps e operations back while out < b */
OP(vm_loop_next) {
    int64_t next;
    const bool ends = __builtin_add_overflow(INT(op->out), op->u.imm, &next);
    INT(op->out) = next;
    const vm_op *to = op + (!ends && next < INT(op->b) ? -op->e : 1);
    VM_GO(to);
}

/* skips e operations unless a */
OP(vm_branch) {
    const vm_op *next = op + (VM_AT(uint8_t, op->a) ? 1 : op->e);
    VM_GO(next);
}

OP(vm_jump) {
    (void)frame; /* builds without tail calls do not pass the frame on */
    const vm_op *next = op + op->e;
    VM_GO(next);
}

/* e bytes of a to out */
OP(vm_move) {
    if (op->e == VM_SLOT_BYTES)
        memcpy(frame + op->out, frame + op->a, VM_SLOT_BYTES);
    else
        memcpy(frame + op->out, frame + op->a, (size_t)op->e);
    VM_NEXT;
}

/* ---- Scalars of idx and i64 ---- */

OP(vm_int_move) {
    INT(op->out) = INT(op->a);
    VM_NEXT;
}

OP(vm_int_add) {
    INT(op->out) = (int64_t)((uint64_t)INT(op->a) + (uint64_t)INT(op->b));
    VM_NEXT;
}

OP(vm_int_sub) {
    INT(op->out) = (int64_t)((uint64_t)INT(op->a) - (uint64_t)INT(op->b));
    VM_NEXT;
}

OP(vm_int_mul) {
    INT(op->out) = (int64_t)((uint64_t)INT(op->a) * (uint64_t)INT(op->b));
    VM_NEXT;
}

/* out = a + b * imm */
OP(vm_int_multiply_add) {
    INT(op->out) = (int64_t)((uint64_t)INT(op->a) + (uint64_t)INT(op->b) * (uint64_t)op->u.imm);
    VM_NEXT;
}

OP(vm_int_select) {
    INT(op->out) = VM_AT(uint8_t, op->a) ? INT(op->b) : INT(op->c);
    VM_NEXT;
}

OP(vm_int_eval) {
    op->u.eval(frame + op->out, frame + op->a, frame + op->b, frame + op->c, 1);
    VM_NEXT;
}

OP(vm_int_load) {
    memcpy(frame + op->out, vm_address(op, frame), 8);
    VM_NEXT;
}

/* ---- Any type, by the evaluators: e lanes ---- */

OP(vm_eval) {
    op->u.eval(frame + op->out, frame + op->a, frame + op->b, frame + op->c, op->e);
    VM_NEXT;
}

static void fill(char *out, size_t bytes, int32_t lanes) {
    for (int32_t l = 1; l < lanes; l++) memcpy(out + (size_t)l * bytes, out, bytes);
}

/* A scalar, which is then broadcast to its whole place. */
#define EVAL_SPLAT(bytes)                                                                                              \
    OP(vm_eval_splat##bytes) {                                                                                         \
        char *const out = frame + op->out;                                                                             \
        op->u.eval(out, frame + op->a, frame + op->b, frame + op->c, 1);                                               \
        fill(out, bytes, VM_SLOT_BYTES / bytes);                                                                       \
        VM_NEXT;                                                                                                       \
    }

EVAL_SPLAT(1)
EVAL_SPLAT(4)
EVAL_SPLAT(8)

/* d bytes at a to e lanes of out */
OP(vm_splat) {
    memmove(frame + op->out, frame + op->a, (size_t)op->d);
    fill(frame + op->out, (size_t)op->d, op->e);
    VM_NEXT;
}

/* a + l * b of d bytes */
OP(vm_ramp) {
    if (op->d == 4) {
        bits4 *out = &VM_AT(bits4, op->out);
        const uint32_t base = VM_AT(bits4, op->a), step = VM_AT(bits4, op->b);
        for (uint32_t l = 0; l < (uint32_t)op->e; l++) out[l] = base + l * step;
    } else {
        bits8 *out = &VM_AT(bits8, op->out);
        const uint64_t base = VM_AT(bits8, op->a), step = VM_AT(bits8, op->b);
        for (uint64_t l = 0; l < (uint64_t)op->e; l++) out[l] = base + l * step;
    }
    VM_NEXT;
}

#define SHUFFLE(T)                                                                                                     \
    for (int l = 0; l < op->e; l++)                                                                                    \
    (&VM_AT(T, op->out))[l] = pick[l] < half ? (&VM_AT(T, op->a))[pick[l]] : (&VM_AT(T, op->b))[pick[l] - half]

/* Lane numbers at c, elements of d bytes, imm lanes in a. */
OP(vm_shuffle) {
    const uint8_t *pick = (const uint8_t *)frame + op->c;
    const int half = (int)op->u.imm;
    switch (op->d) {
    case 1: SHUFFLE(uint8_t); break;
    case 2: SHUFFLE(bits2); break;
    case 4: SHUFFLE(bits4); break;
    default: SHUFFLE(bits8); break;
    }
    VM_NEXT;
}

/* ---- Memory ---- */

static inline void copy(char *to, const char *from, int32_t bytes) {
    switch (bytes) {
    case 1: memcpy(to, from, 1); break;
    case 2: memcpy(to, from, 2); break;
    case 4: memcpy(to, from, 4); break;
    case 8: memcpy(to, from, 8); break;
    case 16: memcpy(to, from, 16); break;
    case 32: memcpy(to, from, 32); break;
    default: memcpy(to, from, (size_t)bytes); break;
    }
}

/* e bytes */
OP(vm_load) {
    copy(frame + op->out, vm_address(op, frame), op->e);
    VM_NEXT;
}

OP(vm_store) {
    copy(vm_address(op, frame), frame + op->out, op->e);
    VM_NEXT;
}

/* An access lane by lane takes two operations. The second one has c: the place of the mask; d: bytes of a lane; e:
 * lanes; imm: the place of the stride between lanes in elements, or of the lanes' offsets in bytes. */
static void copy_lane(char *to, const char *from, int32_t bytes) {
    switch (bytes) {
    case 1: *to = *from; break;
    case 2: *(bits2 *)to = *(const bits2 *)from; break;
    case 4: *(bits4 *)to = *(const bits4 *)from; break;
    default: *(bits8 *)to = *(const bits8 *)from; break;
    }
}

static inline int64_t lane_distance(const vm_op *more, const char *frame) {
    return *(const number *)(frame + more->u.imm) * more->d;
}

OP(vm_load_lanes) {
    const vm_op *more = op + 1;
    const char *mask = frame + more->c;
    char *out = frame + op->out;
    const int64_t distance = lane_distance(more, frame);
    const char *address = vm_address(op, frame);
    for (int32_t l = 0; l < more->e; l++) {
        if (mask[l])
            copy_lane(out + l * more->d, address + l * distance, more->d);
        else
            memset(out + l * more->d, 0, (size_t)more->d);
    }
    VM_GO(op + 2);
}

OP(vm_store_lanes) {
    const vm_op *more = op + 1;
    const char *mask = frame + more->c, *from = frame + op->out;
    const int64_t distance = lane_distance(more, frame);
    char *address = vm_address(op, frame);
    for (int32_t l = 0; l < more->e; l++)
        if (mask[l]) copy_lane(address + l * distance, from + l * more->d, more->d);
    VM_GO(op + 2);
}

/* out[l] = a[l] + b[l] * c * imm, for e lanes */
OP(vm_gather_offset) {
    const number *a = &INT(op->a), *b = &INT(op->b);
    number *out = &INT(op->out);
    const uint64_t scale = (uint64_t)INT(op->c) * (uint64_t)op->u.imm;
    for (int32_t l = 0; l < op->e; l++) out[l] = (int64_t)((uint64_t)a[l] + (uint64_t)b[l] * scale);
    VM_NEXT;
}

OP(vm_gather) {
    const vm_op *more = op + 1;
    const char *mask = frame + more->c, *address = vm_address(op, frame);
    const number *offset = &VM_AT(number, more->u.imm);
    char *out = frame + op->out;
    for (int32_t l = 0; l < more->e; l++) {
        if (mask[l])
            copy_lane(out + l * more->d, address + offset[l], more->d);
        else
            memset(out + l * more->d, 0, (size_t)more->d);
    }
    VM_GO(op + 2);
}

/* ---- Hardware tiles; c is the place of the distance between rows in memory, in bytes ---- */

enum { TILE_BYTES = IR_TILE_ROWS * IR_TILE_ROW_BYTES };

OP(vm_tile_zero) {
    memset(frame + op->out, 0, TILE_BYTES);
    VM_NEXT;
}

OP(vm_tile_load) {
    const char *from = vm_address(op, frame);
    for (int r = 0; r < IR_TILE_ROWS; r++)
        memcpy(frame + op->out + r * IR_TILE_ROW_BYTES, from + r * INT(op->c), IR_TILE_ROW_BYTES);
    VM_NEXT;
}

OP(vm_tile_store) {
    char *to = vm_address(op, frame);
    for (int r = 0; r < IR_TILE_ROWS; r++)
        memcpy(to + r * INT(op->c), frame + op->out + r * IR_TILE_ROW_BYTES, IR_TILE_ROW_BYTES);
    VM_NEXT;
}

OP(vm_tile_dot2) {
    ir_eval_tile_dot2((void *)(frame + op->out), (const void *)(frame + op->a), (const void *)(frame + op->b));
    VM_NEXT;
}
