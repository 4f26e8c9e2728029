/* The builder's struct and functions that its files, and the parser, share. */
#ifndef ATTUNE_IR_BUILD_INTERNAL_H
#define ATTUNE_IR_BUILD_INTERNAL_H

#include "ir/build.h"
#include "ir/symbols.h"

#include <setjmp.h>

typedef enum ir_scope_kind { IR_SCOPE_PHASE, IR_SCOPE_FOR, IR_SCOPE_THEN, IR_SCOPE_ELSE } ir_scope_kind;

typedef struct ir_scope {
    ir_scope_kind kind;
    ir_block *block;
    ir_stmt *stmt;      /* the for or if; NULL in a phase */
    ir_symbol *symbols; /* newest symbol before the scope opened */
} ir_scope;

/* A list that grows in the arena. */
typedef struct ir_list {
    void *items;
    uint32_t count, capacity;
} ir_list;

struct ir_builder {
    at_arena *arena;
    at_error error;
    ir_kernel *kernel;
    ir_list params, shared, assumes;
    ir_phase *phase; /* the open or last one */
    ir_symbols symbols;
    ir_scope scopes[IR_MAX_DEPTH];
    int num_scopes;
    bool strict;     /* a name that is taken is an error and gets no suffix; set by the parser */
    jmp_buf *escape; /* where a failure jumps to; NULL: it returns to the caller */
};

/* Zeroed memory in the kernel's arena; NULL also when the builder has failed before. */
bool ir_build_append(ir_builder *b, ir_list *list, const void *item, size_t bytes);

/* A new variable or buffer with a free name and the next id, defined in the innermost scope. */
const ir_var *ir_build_var(ir_builder *b, const char *name, ir_type type);
ir_buffer *ir_build_buffer(ir_builder *b, const char *name, ir_type type, ir_space space, int num_dims);

/* A scalar parameter is declared and added in two steps, because a buffer earlier in the list may use it in its dims.
 */
const ir_var *ir_build_scalar_declare(ir_builder *b, const char *name, ir_elem elem);
void ir_build_scalar_append(ir_builder *b, const ir_var *var);

/* As ir_let, but always makes a statement. */
const ir_expr *ir_build_let(ir_builder *b, const char *name, const ir_expr *value);
const ir_expr *ir_build_let_in(ir_builder *b, const char *name, const ir_expr *lo, const ir_expr *hi,
                               const ir_expr *value);

/* A node as it is, without checks or folding. */
const ir_expr *ir_build_node(ir_builder *b, ir_op op, ir_type type, const ir_expr *x, const ir_expr *y,
                             const ir_expr *z);
/* A constant; f32 must be exact already. NaNs become the canonical one. */
const ir_expr *ir_build_float(ir_builder *b, ir_elem elem, double value);

/* Folds `op` of operands that passed the checks: the result, or NULL where a node is needed. */
const ir_expr *ir_build_fold(ir_builder *b, ir_op op, const ir_expr *x, const ir_expr *y, const ir_expr *z);
const ir_expr *ir_build_fold_cast(ir_builder *b, ir_elem elem, const ir_expr *x);
/* Rejects buffers that only tile statements may access. */
bool ir_build_no_tile(ir_builder *b, const ir_access *access);
const ir_expr *ir_build_fold_bitcast(ir_builder *b, ir_elem elem, const ir_expr *x);

/* "f32x8", for messages. */
typedef struct ir_type_text {
    char text[12];
} ir_type_text;
ir_type_text ir_type_describe(ir_type type);

bool ir_check_idx(ir_builder *b, const ir_expr *expr, const char *what);
bool ir_check_condition(ir_builder *b, const ir_expr *expr, const char *what);

#endif
