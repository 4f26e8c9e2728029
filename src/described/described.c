/* The life of a described operator: created from a description, its kernels made when they are first needed, run by
 * steps, destroyed with its kernels. */
#include "described/described.h"

#include "attention/attention.h"
#include "base/fpenv.h"

#include <stdlib.h>

attune_status at_described_init(const at_struct *type, void *object, size_t struct_size) {
    at_error err = {0};
    at_struct_init(type, object, struct_size, &err);
    return at_report(&err);
}

/* ---- Texts ---- */

const at_described_op *at_described_op_of(const char *text) {
    static const at_described_op *const all[] = {&lin_described, &conv_described, &idx_described, &blk_described,
                                                 &mla_described};
    const at_desc_table *const of = at_desc_table_of(text);
    for (size_t i = 0; of && i < sizeof all / sizeof *all; i++)
        if (all[i]->table == of) return all[i];
    return NULL;
}

bool at_described_read(const at_described_op *of, const char *text, void *desc, uint32_t *which) {
    at_error err = {0};
    int32_t number;
    if (at_desc_read(of->table, text, desc, &number, &err)) return false;
    *which = number == AT_ALL_KERNELS ? 0 : (uint32_t)number;
    return true;
}

/* ---- Life ---- */

static void *desc_of(at_described *object) { return (char *)object + object->of->desc_at; }

/* An at_general_fn. */
static bool find_general(const char *problem, char general[AT_DESCRIBED_TEXT]) {
    const at_described_op *const of = at_described_op_of(problem);
    at_any_desc desc;
    uint32_t which;
    const at_desc_table *const table = of->table;
    if (!table->generalise || !at_described_read(of, problem, &desc, &which) || !table->generalise(&desc, &which))
        return false;
    at_described_print(table, &desc, which, general);
    return true;
}

attune_status at_described_operator(const at_described_op *of, attune_context *context, attune_operator **op,
                                    at_error *err) {
    attune_operator_options options = of->options;
    options.user = context;
    return at_operator_of(context, &options, find_general, op, err);
}

attune_status at_described_open(at_described *object, const at_described_op *of, attune_context *context,
                                at_error *err) {
    object->of = of;
    if (!context) {
        const attune_status status = attune_shared_context(&context);
        if (status) return at_fail(err, status, "%s", attune_last_message());
    }
    object->context = context;
    return at_described_operator(of, context, &object->op, err);
}

attune_status at_described_create(const at_described_op *of, attune_context *context, const void *desc, void *place,
                                  at_described **object) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    *object = NULL;
    if (!desc || !place) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_%s_create was given no %s%s", of->table->op,
                desc ? "pointer to the " : "description", desc ? of->table->what : "");
        return at_report(&err);
    }
    at_described *const made = calloc(1, of->bytes);
    if (!made) {
        at_fail_memory(&err, of->bytes);
        return at_report(&err);
    }
    void *const settled = (char *)made + of->desc_at;
    if (at_copy_in(&of->table->desc, desc, settled, &err) || of->table->settle(settled, &err) ||
        at_described_open(made, of, context, &err))
        free(made);
    else
        *object = made;
    return at_report(&err);
}

void at_described_release(at_described *object) {
    for (int i = 0; i < AT_MOST_KERNELS; i++) at_operator_release(&object->kernels[i]);
}

void at_described_destroy(at_described *object) {
    if (!object) return;
    at_described_release(object);
    free(object);
}

/* ---- Kernels ---- */

attune_status at_described_kernel(at_described *object, uint32_t which, attune_kernel **kernel, at_error *err) {
    char text[AT_DESCRIBED_TEXT];
    *kernel = atomic_load(&object->kernels[which].now);
    if (*kernel && !atomic_load(&object->kernels[which].made_again_at)) return ATTUNE_OK;
    at_described_print(object->of->table, desc_of(object), which, text);
    return at_operator_kernel(object->op, text, &object->kernels[which], kernel, err);
}

attune_status at_described_prepare(const at_described_op *of, at_described *object) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_kernel *kernel;
    if (!object) at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_%s_prepare was given NULL", of->table->op);
    for (uint32_t which = 0; which < of->table->num_kernels && !err.status; which++)
        if (!of->table->has_kernel || of->table->has_kernel(desc_of(object), which))
            at_described_kernel(object, which, &kernel, &err);
    return at_report(&err);
}

/* ---- Steps ---- */

attune_status at_described_execute_by(at_described *object, const attune_kernel *kernel, const at_described_call *call,
                                      const at_described_step *step, at_error *err) {
    at_team team;
    if (at_operator_team(object->context, step->runner, step->max_threads, &team, err)) return err->status;
    const at_run run = {.buffers = call->buffers,
                        .num_buffers = call->num_buffers,
                        .scalars = call->scalars,
                        .work = at_work_of(call->flops, kernel->target),
                        .team = &team,
                        .cancel = step->cancel};
    return at_operator_run(kernel, &run, step->is_interpreted, err);
}

attune_status at_described_execute(at_described *object, uint32_t which, const at_described_call *call,
                                   const at_described_step *step, at_error *err) {
    attune_kernel *kernel;
    const attune_status status = at_described_kernel(object, which, &kernel, err);
    return status ? status : at_described_execute_by(object, kernel, call, step, err);
}

attune_status at_described_run(const at_described_op *of, at_described *object, const void *step, bool is_interpreted) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    if (!object || !step)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_%s_run was given no %s", of->table->op,
                object ? "step" : of->table->what);
    else
        of->run(object, step, is_interpreted, &err);
    return at_report(&err);
}
