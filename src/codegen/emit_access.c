/* Addresses, loads and stores.
 *
 *     lanes          unmasked                           masked
 *     contiguous     one vector access                  LLVM's masked load or store
 *     separate       a scalar access for each lane      LLVM's gather or scatter, which access the active lanes only
 *
 * Vector accesses are only aligned as an element is. In memory a bool is a byte. */
#include "codegen/emit_build.h"

static const cg_storage *storage_of(cg_emit *e, const ir_access *access) { return cg_storage_of(e, access->buffer); }

static int64_t elem_bytes(const ir_access *access) { return ir_elem_get(access->buffer->type.elem)->bytes; }

static bool is_gather(const ir_access *access) {
    for (int d = 0; d < access->buffer->num_dims; d++)
        if (access->indices[d]->type.lanes > 1) return true;
    return false;
}

/* The bytes from the buffer's base to lane 0, without vector indices. */
static cg_linear scalar_offset(cg_emit *e, const ir_access *access) {
    cg_linear sum = {.constant = storage_of(e, access)->offset, .step = elem_bytes(access)};
    for (int d = 0; d < access->buffer->num_dims; d++)
        if (access->indices[d]->type.lanes == 1)
            cg_linear_add(e, &sum, access->indices[d], storage_of(e, access)->strides[d], elem_bytes(access));
    return sum;
}

static LLVMValueRef first_address(cg_emit *e, const ir_access *access) {
    const cg_linear sum = scalar_offset(e, access);
    return cg_pointer(e, storage_of(e, access)->base, &sum);
}

LLVMValueRef cg_address(cg_emit *e, const ir_access *access) { return first_address(e, access); }

static bool is_contiguous(cg_emit *e, const ir_access *access) {
    if (access->lanes == 1) return true;
    LLVMValueRef stride = storage_of(e, access)->strides[access->axis].value;
    return LLVMIsAConstantInt(stride) && LLVMConstIntGetSExtValue(stride) == 1;
}

/* The offset in bytes of each lane of a gather from the address of its scalar indices. */
static LLVMValueRef gather_offsets(cg_emit *e, const ir_access *access) {
    LLVMValueRef sum = NULL;
    for (int d = 0; d < access->buffer->num_dims; d++) {
        if (access->indices[d]->type.lanes == 1) continue;
        cg_index stride = storage_of(e, access)->strides[d];
        stride = cg_index_op(e, IR_MUL, stride, cg_index_const(e, elem_bytes(access)));
        LLVMValueRef index = cg_emit_expr(e, access->indices[d]);
        LLVMValueRef term = LLVMBuildMul(e->b, index, cg_splat(e, stride.value, access->lanes), "");
        sum = sum ? LLVMBuildAdd(e->b, sum, term, "") : term;
    }
    return sum;
}

/* The address of every lane of an access that is not contiguous. */
static void lane_addresses(cg_emit *e, const ir_access *access, LLVMValueRef *address) {
    if (is_gather(access)) {
        LLVMValueRef base = first_address(e, access), offsets = gather_offsets(e, access);
        for (unsigned l = 0; l < access->lanes; l++) {
            LLVMValueRef offset = cg_lane(e, offsets, l);
            address[l] = LLVMBuildGEP2(e->b, e->i8, base, &offset, 1, "");
        }
        return;
    }
    const cg_linear first = scalar_offset(e, access);
    for (unsigned l = 0; l < access->lanes; l++) {
        cg_linear sum = first;
        cg_linear_term(e, &sum, storage_of(e, access)->strides[access->axis], l * elem_bytes(access));
        address[l] = cg_pointer(e, storage_of(e, access)->base, &sum);
    }
}

static LLVMValueRef address_vector(cg_emit *e, const ir_access *access) {
    LLVMValueRef address[IR_MAX_LANES], result = LLVMGetPoison(LLVMVectorType(e->pointer, access->lanes));
    lane_addresses(e, access, address);
    for (unsigned l = 0; l < access->lanes; l++) result = cg_set_lane(e, result, address[l], l);
    return result;
}

/* ---- Memory's form of a value ---- */

static LLVMTypeRef memory_elem(cg_emit *e, const ir_access *access) {
    const ir_elem elem = (ir_elem)access->buffer->type.elem;
    return elem == IR_BOOL ? e->i8 : cg_elem_type(e, elem);
}

static LLVMValueRef from_memory(cg_emit *e, const ir_access *access, LLVMValueRef x) {
    if (access->buffer->type.elem != IR_BOOL) return x;
    return LLVMBuildICmp(e->b, LLVMIntNE, x, cg_int_like(x, 0), "");
}

static LLVMValueRef to_memory(cg_emit *e, const ir_access *access, LLVMValueRef x) {
    if (access->buffer->type.elem != IR_BOOL) return x;
    return LLVMBuildZExt(e->b, x, cg_vector_of(e->i8, cg_lanes(x)), "");
}

/* ---- Plain accesses ---- */

static LLVMValueRef load_from(cg_emit *e, const ir_access *access, LLVMTypeRef type, LLVMValueRef address) {
    LLVMValueRef load = LLVMBuildLoad2(e->b, type, address, "");
    LLVMSetAlignment(load, (unsigned)elem_bytes(access));
    return load;
}

static void store_to(cg_emit *e, const ir_access *access, LLVMValueRef value, LLVMValueRef address) {
    LLVMSetAlignment(LLVMBuildStore(e->b, value, address), (unsigned)elem_bytes(access));
}

static LLVMValueRef load_lanes(cg_emit *e, const ir_access *access) {
    LLVMTypeRef elem = memory_elem(e, access), type = cg_vector_of(elem, access->lanes);
    if (!is_gather(access) && is_contiguous(e, access)) return load_from(e, access, type, first_address(e, access));
    LLVMValueRef address[IR_MAX_LANES], result = LLVMGetPoison(type);
    lane_addresses(e, access, address);
    for (unsigned l = 0; l < access->lanes; l++)
        result = cg_set_lane(e, result, load_from(e, access, elem, address[l]), l);
    return result;
}

static void store_lanes(cg_emit *e, const ir_access *access, LLVMValueRef value) {
    if (is_contiguous(e, access)) {
        store_to(e, access, value, first_address(e, access));
        return;
    }
    LLVMValueRef address[IR_MAX_LANES];
    lane_addresses(e, access, address);
    for (unsigned l = 0; l < access->lanes; l++) store_to(e, access, cg_lane(e, value, l), address[l]);
}

/* ---- Masked accesses ---- */

static LLVMValueRef load_masked(cg_emit *e, const ir_access *access) {
    LLVMTypeRef type = LLVMVectorType(memory_elem(e, access), access->lanes);
    const bool side_by_side = !is_gather(access) && is_contiguous(e, access);
    LLVMValueRef mask = cg_as_vector(e, cg_emit_expr(e, access->mask));
    LLVMValueRef from = side_by_side ? first_address(e, access) : address_vector(e, access);
    LLVMValueRef args[] = {from, cg_i32(e, (int32_t)elem_bytes(access)), mask, LLVMConstNull(type)};
    LLVMTypeRef types[] = {type, LLVMTypeOf(from)};
    LLVMValueRef x = cg_call_types(e, side_by_side ? "llvm.masked.load" : "llvm.masked.gather", 2, types, 4, args);
    return access->lanes == 1 ? LLVMBuildExtractElement(e->b, x, cg_i32(e, 0), "") : x;
}

static void store_masked(cg_emit *e, const ir_access *access, LLVMValueRef value) {
    const bool side_by_side = is_contiguous(e, access);
    LLVMValueRef mask = cg_as_vector(e, cg_emit_expr(e, access->mask));
    LLVMValueRef to = side_by_side ? first_address(e, access) : address_vector(e, access);
    LLVMValueRef args[] = {cg_as_vector(e, value), to, cg_i32(e, (int32_t)elem_bytes(access)), mask};
    LLVMTypeRef types[] = {LLVMTypeOf(args[0]), LLVMTypeOf(to)};
    cg_call_types(e, side_by_side ? "llvm.masked.store" : "llvm.masked.scatter", 2, types, 4, args);
}

/* ---- Registers ---- */

uint64_t cg_element_number(cg_emit *e, const ir_access *access) {
    const ir_buffer *buffer = access->buffer;
    uint64_t element = 0;
    for (int d = 0; d < buffer->num_dims; d++) {
        if (access->indices[d]->op != IR_CONST) {
            at_fail(e->err, ATTUNE_INVALID_IR, "kernel @%s: an index of %s, which is in registers, is not a constant",
                    e->kernel->name, buffer->name);
            return 0;
        }
        element = element * (uint64_t)buffer->dims[d]->value.i + (uint64_t)access->indices[d]->value.i;
    }
    return element;
}

static LLVMValueRef reg_slot(cg_emit *e, const ir_access *access) {
    return storage_of(e, access)->elements[cg_element_number(e, access)];
}

/* ---- The three kinds of access ---- */

LLVMValueRef cg_emit_load(cg_emit *e, const ir_access *access) {
    if (access->buffer->space == IR_REG)
        return LLVMBuildLoad2(e->b, cg_type(e, access->buffer->type), reg_slot(e, access), "");
    return from_memory(e, access, access->mask ? load_masked(e, access) : load_lanes(e, access));
}

void cg_emit_store(cg_emit *e, const ir_access *access, const ir_expr *value) {
    LLVMValueRef x = cg_emit_expr(e, value);
    if (access->buffer->space == IR_REG)
        LLVMBuildStore(e->b, x, reg_slot(e, access));
    else if (access->mask)
        store_masked(e, access, to_memory(e, access, x));
    else
        store_lanes(e, access, to_memory(e, access, x));
}

void cg_emit_prefetch(cg_emit *e, const ir_access *access, bool is_far) {
    enum { FOR_READ = 0, KEEP_CLOSE = 3, DATA = 1 };
    const int32_t keep_far = e->target->required & AT_CPU_AARCH64 ? 2 : 1; /* there, 1 would be the L3 cache */
    if (access->buffer->space == IR_REG) return;
    LLVMValueRef locality = cg_i32(e, is_far ? keep_far : KEEP_CLOSE);
    LLVMValueRef args[] = {first_address(e, access), cg_i32(e, FOR_READ), locality, cg_i32(e, DATA)};
    cg_call(e, "llvm.prefetch", e->pointer, 4, args);
}
