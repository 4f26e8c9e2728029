/* Users' functions on scores, masks and probabilities: text that is parsed, checked and made canonical once.
 * docs/functions.md is the manual.
 *
 * A program has the nodes of all functions of a problem. Operands come before their users, and equal nodes exist once.
 * Conversions are explicit nodes, so the operands of a node have the types with which it computes. */
#ifndef ATTUNE_EXPR_EXPR_H
#define ATTUNE_EXPR_EXPR_H

#include "base/error.h"

#include <attune.h>
#include <stdbool.h>

enum { EX_MAX_NODES = 240, EX_MAX_DEPTH = 100, EX_MAX_RANK = 4, EX_CALL = 9 };

typedef enum ex_op {
#define EX(name, text, arity, level) EX_##name,
#include "expr/expr.def"
    EX_OP_COUNT
} ex_op;

typedef struct ex_op_info {
    const char *text;
    int arity, level;
} ex_op_info;

const ex_op_info *ex_op_get(ex_op op);

/* BOOL: a condition. INT: 64 bits. FLOAT: the precision of the softmax. */
typedef enum ex_type { EX_T_BOOL, EX_T_INT, EX_T_FLOAT } ex_type;

/* The variables. EX_V_B to EX_V_KV also name dims of tensors. */
typedef enum ex_var {
    EX_V_SCORE,
    EX_V_B,
    EX_V_H,
    EX_V_KV_H,
    EX_V_Q,
    EX_V_KV,
    EX_V_SEQ_Q, /* of the sequence */
    EX_V_SEQ_KV,
    EX_V_PROB,
    EX_NUM_VARS
} ex_var;

const char *ex_var_name(ex_var var);

/* What a function may refer to. A size that is known at run time only has least < most. */
typedef struct ex_scope {
    const attune_user_tensor *tensors; /* up to the first one without a name */
    struct {
        int64_t least, most;
    } size[EX_NUM_VARS]; /* for b, h, kv_h, q and kv: how many there are */
} ex_scope;

typedef struct ex_node {
    uint8_t op, type; /* ex_op, ex_type */
    uint8_t which;    /* VAR: ex_var; LOAD: the tensor's number */
    uint8_t clamped;  /* LOAD: bits of the indices written as clamp(…) */
    uint8_t depth, num_args;
    uint16_t needs; /* bits by ex_var: the variables on which the value depends */
    bool is_in_i32; /* INT: the value and all intermediate values fit into 32 bits */
    int16_t args[EX_MAX_RANK];
    int16_t end_var; /* INT: the value is less than the size of this variable plus `beyond`; EX_V_SCORE: not known */
    union {
        int64_t i;
        double f;
    } value;
    int64_t least, most, beyond; /* INT */
} ex_node;

typedef struct ex_program {
    ex_scope scope;
    int count, num_tensors;
    int score, mask, prob; /* the roots; -1: there is none */
    ex_node nodes[EX_MAX_NODES];
} ex_program;

/* An empty program. */
void ex_program_init(ex_program *program, const ex_scope *scope);

/* Add a function to the program. `name` is its name in messages. Empty text means no function. */
attune_status ex_parse_score(ex_program *program, const char *text, at_error *err);
attune_status ex_parse_mask(ex_program *program, const char *text, at_error *err);
attune_status ex_parse_prob(ex_program *program, const char *text, at_error *err);

/* Whether the function does nothing: it returns the score or probability unchanged, or hides no key. */
bool ex_is_identity(const ex_program *program, int root);

/* The visible keys by distance: least <= kv - q <= most. INT64_MIN, INT64_MAX: no limit. */
typedef struct ex_band {
    int64_t least, most;
} ex_band;

/* Whether the mask has conditions, joined by &, that a band expresses. `band` is all of them together; `rest` is the
 * root of the other conditions (-1: none), which may be a new node. */
bool ex_take_band(ex_program *program, ex_band *band, int *rest);

/* Whether the mask is known to show each query one interval of keys, or none. Values that are loaded by the key are
 * unknown. */
bool ex_shows_intervals(const ex_program *program);

/* The largest n such that the root is constant over n neighbouring values of a variable, from each multiple of n on: 64
 * for kv in `blocks[q // 64, kv // 64]`. 1: any two values may differ; 0: the root does not depend on the variable. */
int64_t ex_run_length(const ex_program *program, int root, ex_var var);

/* Writes the canonical text of a node, as snprintf does. Parsing it gives the same node. */
size_t ex_print(const ex_program *program, int root, char *text, size_t capacity);

/* The first tensor that no function uses; -1: all are used. */
int ex_unused_tensor(const ex_program *program);

static inline bool ex_needs(const ex_node *node, ex_var var) { return node->needs >> var & 1; }

/* ---- Declarations of tensors: "slope:f32[h], doc:i32[b, q]" ---- */

attune_status ex_parse_tensors(const char *text, size_t length, attune_user_tensor tensors[ATTUNE_MAX_USER_TENSORS],
                               at_error *err);
size_t ex_print_tensors(const attune_user_tensor tensors[ATTUNE_MAX_USER_TENSORS], char *text, size_t capacity);
/* Checks names, types and dims, and that unused elements are zero. */
attune_status ex_check_tensors(const attune_user_tensor tensors[ATTUNE_MAX_USER_TENSORS], at_error *err);
int ex_count_tensors(const attune_user_tensor tensors[ATTUNE_MAX_USER_TENSORS]);

/* The variable whose size a dim is; EX_V_SCORE: the dim is a constant. */
static inline ex_var ex_dim_var(int64_t dim) { return dim < 0 ? (ex_var)(-1 - dim) : EX_V_SCORE; }

/* The name of a tensor's type; NULL: tensors cannot have this type. */
const char *ex_dtype_name(attune_dtype dtype);

#endif
