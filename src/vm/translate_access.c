/* Buffers, loads and stores. Contiguous lanes of a whole register or a part of it are one operation; everything else is
 * an access lane by lane, which takes two (common.c). */
#include "vm/translate.h"

#include <string.h>

/* ---- Buffers ---- */

/* The number of a buffer among a phase's pointers. */
static uint32_t number_of(const ir_kernel *kernel, const ir_buffer *buffer) {
    uint32_t n = 0;
    for (uint32_t p = 0; p < kernel->num_params; p++) {
        if (!kernel->params[p].buffer) continue;
        if (kernel->params[p].buffer == buffer) return n;
        n++;
    }
    for (uint32_t s = 0; kernel->shared[s] != buffer; s++) n++;
    return n;
}

static int32_t pointer_to(vm_translator *t, const ir_buffer *buffer) {
    if (buffer->space == IR_SCRATCH) return t->scratch_at;
    const int32_t at = vm_new_int(t);
    t->pointers[t->num_pointers++] = (vm_pointer){at, number_of(t->kernel, buffer)};
    return at;
}

const vm_storage *vm_storage_of(vm_translator *t, const ir_buffer *buffer) {
    vm_storage *storage = &t->storage[buffer->id];
    if (storage->is_known) return storage;
    storage->is_known = true;
    const uint32_t level = t->level;
    t->level = 0; /* they depend on scalar parameters only, so they are computed once in a phase */
    if (buffer->space != IR_REG && buffer->space != IR_TILES) storage->base = pointer_to(t, buffer);
    vm_int packed = vm_int_const(t, 1);
    for (int d = buffer->num_dims - 1; d >= 0; d--) {
        storage->strides[d] = buffer->strides[0] ? vm_int_of(t, buffer->strides[d]) : packed;
        if (d > 0 && !buffer->strides[0]) packed = vm_int_op2(t, IR_MUL, packed, vm_int_of(t, buffer->dims[d]));
    }
    t->level = level;
    return storage;
}

static int64_t element_bytes(const ir_buffer *buffer) { return ir_elem_get((ir_elem)buffer->type.elem)->bytes; }

int32_t vm_register_of(vm_translator *t, const ir_access *access) {
    const ir_buffer *buffer = access->buffer;
    const vm_storage *storage = vm_storage_of(t, buffer);
    const size_t bytes = buffer->space == IR_TILES ? IR_TILE_ROWS * IR_TILE_ROW_BYTES : vm_bytes(buffer->type);
    const size_t size = (bytes + VM_SLOT_BYTES - 1) / VM_SLOT_BYTES * VM_SLOT_BYTES;
    int64_t number = 0;
    for (int d = 0; d < buffer->num_dims; d++) {
        const vm_int index = vm_int_of(t, access->indices[d]);
        if (!index.is_const)
            at_fail(t->err, ATTUNE_INVALID_IR, "@%s: an index of %s is no constant", t->kernel->name, buffer->name);
        number += index.value * storage->strides[d].value;
    }
    return storage->base + (int32_t)(number * (int64_t)size);
}

/* ---- Addresses ---- */

static bool is_gather(const ir_access *access) {
    for (int d = 0; d < access->buffer->num_dims; d++)
        if (access->indices[d]->type.lanes > 1) return true;
    return false;
}

void vm_address_of(vm_translator *t, const ir_access *access, vm_op *op) {
    const ir_buffer *buffer = access->buffer;
    const vm_storage *storage = vm_storage_of(t, buffer);
    vm_sum sum = {.constant = storage->offset};
    for (int d = 0; d < buffer->num_dims; d++)
        if (access->indices[d]->type.lanes == 1)
            vm_sum_add(t, &sum, access->indices[d], storage->strides[d], element_bytes(buffer));
    vm_sum_address(t, storage->base, &sum, op);
}

/* ---- Loads ---- */

bool vm_is_plain(vm_translator *t, const ir_access *access) {
    const ir_buffer *buffer = access->buffer;
    if (access->mask || buffer->space == IR_REG || buffer->space == IR_TILES) return false;
    for (int d = 0; d < buffer->num_dims; d++)
        if (access->indices[d]->type.lanes > 1) return false;
    if (access->lanes == 1) return true;
    const vm_int stride = vm_storage_of(t, buffer)->strides[access->axis];
    return stride.is_const && stride.value == 1;
}

static const int64_t all_true = INT64_C(0x0101010101010101);

static vm_place mask_of(vm_translator *t, const ir_access *access, vm_var **lender) {
    if (access->mask) return vm_hold(t, access->mask, lender);
    *lender = NULL;
    return (vm_place){.at = vm_constant_of(t, &all_true, sizeof all_true)};
}

static bool is_strided(vm_translator *t, const ir_access *access) {
    if (access->lanes == 1) return false;
    const vm_int stride = vm_storage_of(t, access->buffer)->strides[access->axis];
    return !stride.is_const || stride.value != 1;
}

/* The second operation of an access lane by lane. */
static vm_op lanes_of(const ir_access *access, int32_t mask, int32_t distance) {
    vm_op more = {.fn = vm_exit, .c = mask, .d = (int32_t)element_bytes(access->buffer), .e = access->lanes};
    more.u.imm = distance;
    return more;
}

static int32_t lane_distance(vm_translator *t, const ir_access *access) {
    return access->lanes == 1 ? vm_int_const(t, 1).at : vm_storage_of(t, access->buffer)->strides[access->axis].at;
}

/* The offsets of the lanes of a gather, in bytes. */
static vm_place offsets_of(vm_translator *t, const ir_access *access) {
    const ir_buffer *buffer = access->buffer;
    const vm_storage *storage = vm_storage_of(t, buffer);
    const vm_place sum = {.at = vm_new_place(t, 8u * access->lanes), .is_own = true};
    const char none[VM_SLOT_BYTES] = {0};
    bool is_first = true;
    for (int d = 0; d < buffer->num_dims; d++) {
        if (access->indices[d]->type.lanes == 1) continue;
        const vm_place index = vm_value_of(t, access->indices[d], VM_NOWHERE);
        vm_op op = {.fn = vm_gather_offset, .out = sum.at, .a = sum.at, .b = index.at, .e = access->lanes};
        op.c = storage->strides[d].at;
        op.u.imm = element_bytes(buffer);
        if (is_first) { /* eight lanes of zeros at a time */
            for (uint32_t at = 0; at < 8u * access->lanes; at += VM_SLOT_BYTES)
                vm_copy(t, vm_constant(t, none), sum.at + (int32_t)at, VM_SLOT_BYTES);
            is_first = false;
        }
        vm_emit(t, op);
        vm_free(t, index);
    }
    return sum;
}

static void gather(vm_translator *t, const ir_access *access, int32_t to) {
    vm_op op = {.fn = vm_gather, .out = to};
    vm_var *lender;
    vm_place mask = mask_of(t, access, &lender);
    const vm_place offsets = offsets_of(t, access);
    vm_address_of(t, access, &op);
    vm_hold_no_more(t, &mask, lender);
    vm_emit(t, op);
    vm_emit(t, lanes_of(access, mask.at, offsets.at));
    vm_free(t, mask);
    vm_free(t, offsets);
}

static vm_fn *plain_load(const vm_translator *t, ir_type type) {
    const vm_isa *const isa = t->isa;
    const uint32_t bytes = vm_bytes(type);
    if (type.lanes == 1 && bytes == 4) return isa->load_splat4;
    if (type.lanes == 1 && type.elem == IR_F64) return isa->load_splat8;
    if (type.lanes == 1 && bytes == 8) return vm_int_load;
    if (bytes == isa->vector_bytes) return isa->load;
    if (bytes == isa->vector_bytes / 2) return isa->load_half;
    if (bytes == isa->vector_bytes / 4 && isa->load_quarter) return isa->load_quarter;
    return vm_load;
}

static void load_lanes(vm_translator *t, const ir_access *access, ir_type type, int32_t to) {
    vm_var *lender;
    vm_place mask = mask_of(t, access, &lender);
    vm_op op = {.out = to};
    vm_address_of(t, access, &op);
    vm_hold_no_more(t, &mask, lender);
    if (!is_strided(t, access) && element_bytes(access->buffer) == 4 && vm_bytes(type) <= t->isa->vector_bytes) {
        op.fn = t->isa->load_masked4;
        op.c = mask.at;
        op.e = access->lanes;
        vm_emit(t, op);
    } else {
        op.fn = vm_load_lanes;
        vm_emit(t, op);
        vm_emit(t, lanes_of(access, mask.at, lane_distance(t, access)));
    }
    vm_free(t, mask);
    if (access->lanes == 1) vm_spread(t, to, (ir_elem)type.elem);
}

vm_place vm_load_of(vm_translator *t, const ir_expr *load, int32_t want) {
    const ir_access *access = load->value.access;
    if (access->buffer->space == IR_REG) return (vm_place){.at = vm_register_of(t, access)};
    vm_place to = {.at = want};
    if (vm_is_int(load->type))
        to = (vm_place){.at = vm_new_int(t), .is_own = true};
    else if (want == VM_NOWHERE)
        to = (vm_place){.at = vm_new_place(t, vm_bytes(load->type)), .is_own = true};
    if (is_gather(access)) {
        gather(t, access, to.at);
    } else if (access->mask || is_strided(t, access)) {
        load_lanes(t, access, load->type, to.at);
    } else {
        vm_op op = {.fn = plain_load(t, load->type), .out = to.at, .e = (int32_t)vm_bytes(load->type)};
        vm_address_of(t, access, &op);
        vm_emit(t, op);
        if (load->type.elem == IR_BOOL && load->type.lanes == 1) vm_spread(t, to.at, IR_BOOL);
    }
    return to;
}

/* ---- Stores ---- */

void vm_store_to(vm_translator *t, const ir_access *access, const ir_expr *value) {
    if (access->buffer->space == IR_REG) {
        vm_value_to(t, value, vm_register_of(t, access));
        return;
    }
    vm_var *lenders[2];
    vm_place from = vm_hold(t, value, &lenders[0]), mask = mask_of(t, access, &lenders[1]);
    vm_op op = {.out = from.at, .e = (int32_t)vm_bytes(value->type)};
    vm_address_of(t, access, &op);
    vm_hold_no_more(t, &from, lenders[0]);
    vm_hold_no_more(t, &mask, lenders[1]);
    const bool strided = is_strided(t, access), fits = vm_bytes(value->type) <= t->isa->vector_bytes;
    if (!access->mask && !strided) {
        op.fn = vm_bytes(value->type) == t->isa->vector_bytes ? t->isa->store : vm_store;
        vm_emit(t, op);
    } else if (!strided && element_bytes(access->buffer) == 4 && fits) {
        op.fn = t->isa->store_masked4;
        op.c = mask.at;
        op.e = access->lanes;
        vm_emit(t, op);
    } else {
        op.fn = vm_store_lanes;
        vm_emit(t, op);
        vm_emit(t, lanes_of(access, mask.at, lane_distance(t, access)));
    }
    vm_free(t, mask);
    vm_free(t, from);
}
