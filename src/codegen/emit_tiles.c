/* Tiles: AMX has eight matrix registers, which are all configured as 16 rows of 64 bytes. Each element of an IR_TILES
 * buffer is one register; its number is part of the instructions. No other code uses them. */
#include "codegen/emit_build.h"

enum { NUM_TILES = 8, CONFIG_BYTES = 64 };

bool cg_has_tiles(const ir_block *block) {
    for (const ir_stmt *stmt = block->first; stmt; stmt = stmt->next) {
        if (stmt->kind == IR_TILE) return true;
        if (stmt->kind == IR_FOR && cg_has_tiles(&stmt->u.loop.body)) return true;
        if (stmt->kind == IR_IF && (cg_has_tiles(&stmt->u.branch.then) || cg_has_tiles(&stmt->u.branch.otherwise)))
            return true;
    }
    return false;
}

/* The configuration: palette 1; for each tile, the bytes in a row (16 bits, from byte 16 on) and its rows (8 bits, from
 * byte 48 on). */
void cg_tiles_begin(cg_emit *e) {
    uint8_t config[CONFIG_BYTES] = {[0] = 1};
    LLVMValueRef bytes[CONFIG_BYTES];
    for (int t = 0; t < NUM_TILES; t++) {
        config[16 + 2 * t] = IR_TILE_ROW_BYTES;
        config[48 + t] = IR_TILE_ROWS;
    }
    for (int i = 0; i < CONFIG_BYTES; i++) bytes[i] = LLVMConstInt(e->i8, config[i], 0);
    LLVMValueRef value = LLVMConstVector(bytes, CONFIG_BYTES), slot = cg_stack_slot(e, LLVMTypeOf(value));
    LLVMBuildStore(e->b, value, slot);
    cg_call(e, "llvm.x86.ldtilecfg", NULL, 1, &slot);
}

void cg_tiles_end(cg_emit *e) { cg_call(e, "llvm.x86.tilerelease", NULL, 0, NULL); }

void cg_tiles_alloc(cg_emit *e, const ir_buffer *buffer, uint64_t count) {
    e->storage[buffer->id].first_tile = e->tiles_used;
    if (count > NUM_TILES - e->tiles_used) {
        at_fail(e->err, ATTUNE_INVALID_IR, "kernel @%s: with %s there are more than %d tiles at a time",
                e->kernel->name, buffer->name, NUM_TILES);
        return;
    }
    e->tiles_used += (uint32_t)count;
}

static LLVMValueRef tile(cg_emit *e, const ir_access *access) {
    const uint64_t number = e->storage[access->buffer->id].first_tile + cg_element_number(e, access);
    return LLVMConstInt(e->i8, number, 0);
}

/* Bytes from one row to the next. */
static LLVMValueRef row_distance(cg_emit *e, const ir_access *row) {
    const int num = row->buffer->num_dims;
    if (num == 1) return cg_i64(e, IR_TILE_ROW_BYTES);
    const int64_t bytes = ir_elem_get((ir_elem)row->buffer->type.elem)->bytes;
    return cg_index_op(e, IR_MUL, cg_storage_of(e, row->buffer)->strides[num - 2], cg_index_const(e, bytes)).value;
}

void cg_emit_tile(cg_emit *e, const ir_stmt *stmt) {
    static const char *const names[IR_TILE_OP_COUNT] = {
        [IR_TILE_ZERO] = "llvm.x86.tilezero",
        [IR_TILE_LOAD] = "llvm.x86.tileloadd64",
        [IR_TILE_STORE] = "llvm.x86.tilestored64",
        [IR_TILE_DOT2] = "llvm.x86.tdpbf16ps",
    };
    const ir_tile_op op = stmt->u.tile.op;
    const ir_tile_info *info = ir_tile_get(op);
    const ir_access *const *access = stmt->u.tile.args;
    LLVMValueRef args[3];
    if (!(e->target->flags & AT_TARGET_TILES)) {
        cg_unsupported(e, e->i8, info->text);
        return;
    }
    if (info->memory < 0) {
        for (int i = 0; i < info->num_args; i++) args[i] = tile(e, access[i]);
        cg_call(e, names[op], NULL, info->num_args, args);
        return;
    }
    args[0] = tile(e, access[!info->memory]);
    args[1] = cg_address(e, access[info->memory]);
    args[2] = row_distance(e, access[info->memory]);
    cg_call(e, names[op], NULL, 3, args);
}
