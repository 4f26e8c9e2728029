/* Numbers of tasks of phases, and bytes of shared buffers: expressions of the scalars, as code for a stack machine. */
#include "vm/translate.h"

#include <string.h>

static void push(vm_translator *t, vm_size_list *list, vm_size_op op) {
    vm_size_op *ops = vm_grow(t, list->ops, list->count, &list->room, sizeof *ops);
    if (!ops) return;
    list->ops = ops;
    list->ops[list->count++] = op;
}

static int64_t number_of(const ir_kernel *kernel, const ir_var *var) {
    int64_t n = 0;
    for (uint32_t p = 0; p < kernel->num_params; p++) {
        if (kernel->params[p].var == var) return n;
        n += kernel->params[p].var != NULL;
    }
    return n;
}

static void add(vm_translator *t, vm_size_list *list, const ir_expr *x) {
    const ir_op_info *info = ir_op_get((ir_op)x->op);
    vm_size_op op = {.kind = VM_SIZE_APPLY, .arity = info->arity};
    for (int i = 0; i < info->arity; i++) add(t, list, x->args[i]);
    if (x->op == IR_CONST) {
        const float single = (float)x->value.f;
        op = (vm_size_op){.kind = VM_SIZE_CONST, .imm = x->value.i};
        if (x->type.elem == IR_F32) memcpy(&op.imm, &single, sizeof single);
    } else if (x->op == IR_VAR) {
        op = (vm_size_op){.kind = VM_SIZE_SCALAR, .imm = number_of(t->kernel, x->value.var)};
    } else if (x->op == IR_CAST) {
        op.eval = ir_eval_cast((ir_elem)x->args[0]->type.elem, (ir_elem)x->type.elem);
    } else {
        op.eval = ir_eval_get((ir_op)x->op, (ir_elem)x->args[x->op == IR_SELECT ? 1 : 0]->type.elem);
    }
    if (op.kind == VM_SIZE_APPLY && !op.eval)
        at_fail(t->err, ATTUNE_INVALID_IR, "%s cannot be part of a size of @%s", info->text, t->kernel->name);
    push(t, list, op);
}

vm_size vm_size_of(vm_translator *t, vm_size_list *list, const ir_expr *x) {
    const uint32_t first = list->count;
    add(t, list, x);
    return (vm_size){first, list->count - first};
}
