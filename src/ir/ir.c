/* The tables behind ir.h: the element types, and the operators as ops.def lists them. */
#include "ir/ir.h"

static const ir_elem_info elem_table[IR_ELEM_COUNT] = {
    [IR_F64] = {"f64", 8, IR_CLASS_FLOAT},   [IR_F32] = {"f32", 4, IR_CLASS_FLOAT},
    [IR_F16] = {"f16", 2, IR_CLASS_STORAGE}, [IR_BF16] = {"bf16", 2, IR_CLASS_STORAGE},
    [IR_F8] = {"f8", 1, IR_CLASS_STORAGE},   [IR_I8] = {"i8", 1, IR_CLASS_STORAGE},
    [IR_I32] = {"i32", 4, IR_CLASS_INT},     [IR_I64] = {"i64", 8, IR_CLASS_INT},
    [IR_IDX] = {"idx", 8, IR_CLASS_INT},     [IR_BOOL] = {"bool", 1, IR_CLASS_BOOL},
};

const ir_elem_info *ir_elem_get(ir_elem elem) { return &elem_table[elem]; }

const ir_tile_info *ir_tile_get(ir_tile_op op) {
    static const ir_tile_info table[IR_TILE_OP_COUNT] = {[IR_TILE_ZERO] = {"tile_zero", 1, -1},
                                                         [IR_TILE_LOAD] = {"tile_load", 2, 1},
                                                         [IR_TILE_STORE] = {"tile_store", 2, 0},
                                                         [IR_TILE_DOT2] = {"tile_dot2", 3, -1}};
    return &table[op];
}

/* Values for the column names of ops.def. */
enum {
    FLOAT = IR_CLASS_FLOAT,
    INT = IR_CLASS_INT,
    NUMBER = IR_CLASS_FLOAT | IR_CLASS_INT,
    BITS = IR_CLASS_INT | IR_CLASS_BOOL,
    ANY = IR_CLASS_FLOAT | IR_CLASS_INT | IR_CLASS_BOOL | IR_CLASS_STORAGE,
    SAME = IR_RESULT_SAME,
    CMP = IR_RESULT_CMP,
    SPECIAL = IR_RESULT_SPECIAL,
    INFIX = IR_TRAIT_INFIX,
    COMMUTES = IR_TRAIT_COMMUTES,
    HIGH = IR_TRAIT_HIGH,
    NEEDS_FMA = IR_TRAIT_NEEDS_FMA,
    NEEDS_ROUND = IR_TRAIT_NEEDS_ROUND,
    NEEDS_SCALEF = IR_TRAIT_NEEDS_SCALEF,
    NEEDS_DOT2 = IR_TRAIT_NEEDS_DOT2,
    NEEDS_LOOKUP = IR_TRAIT_NEEDS_LOOKUP
};

static const ir_op_info op_table[IR_OP_COUNT] = {
#define IR_OP(name, text, arity, accepts, result, traits) [IR_##name] = {text, arity, accepts, result, traits},
#include "ir/ops.def"
#undef IR_OP
};

const ir_op_info *ir_op_get(ir_op op) { return &op_table[op]; }
