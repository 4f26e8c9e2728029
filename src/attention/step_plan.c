/* A step planned once: lengths and tables are checked and copied, so that the layers' runs only bring tensors. */
#include "attention/attention.h"
#include "base/fpenv.h"
#include "engine/context.h"
#include "plan/work.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* The list of work, which the first run makes: it has the strides that others will repeat. A run may find another
 * thread's. */
typedef struct kept {
    _Atomic(pl_step *) step;
} kept;

struct attune_step_plan {
    kept *kept;
    attune_attention *attention;
    attune_arguments arguments; /* sizes, and the lists below */
    int64_t tokens[AN_NUM_TOKENS];
    int32_t *lists; /* the step's own copies, one after the other; NULL: it has none */
};

/* ---- Lists ---- */

/* The columns of the block table that some sequence uses; at least one. */
static int64_t used_pages(const attune_attention *attention, const attune_arguments *a) {
    int64_t most = 1;
    for (int64_t b = 0; b < a->batch; b++) {
        const int64_t pages = (a->kv_lens[b] + attention->problem.page_size - 1) / attention->problem.page_size;
        if (pages > most) most = pages;
    }
    return most < a->max_pages ? most : a->max_pages;
}

static const int32_t *copy(int32_t **end, const int32_t *list, int64_t count) {
    int32_t *const begin = *end;
    if (!list) return NULL;
    memcpy(begin, list, (size_t)count * sizeof *list);
    *end += count;
    return begin;
}

static const int32_t *copy_table(int32_t **end, attune_arguments *a, int64_t columns) {
    const int64_t row = a->block_table_stride ? a->block_table_stride : a->max_pages;
    const int32_t *const begin = *end;
    for (int64_t b = 0; b < a->batch; b++) copy(end, a->block_table + b * row, columns);
    a->max_pages = columns;
    a->block_table_stride = 0;
    return begin;
}

static attune_status copy_lists(attune_step_plan *plan, at_error *err) {
    attune_arguments *const a = &plan->arguments;
    const int64_t columns = a->block_table ? used_pages(plan->attention, a) : 0;
    const size_t words = (size_t)(3 * a->batch + 2 + a->batch * columns);
    int32_t *end = plan->lists = malloc(words * sizeof *plan->lists);
    if (!end) return at_fail_memory(err, words * sizeof *plan->lists);
    a->cu_seqlens_q = copy(&end, a->cu_seqlens_q, a->batch + 1);
    a->cu_seqlens_kv = copy(&end, a->cu_seqlens_kv, a->batch + 1);
    a->kv_lens = copy(&end, a->kv_lens, a->batch);
    if (a->block_table) a->block_table = copy_table(&end, a, columns);
    return ATTUNE_OK;
}

/* ---- The plan ---- */

static attune_status make(attune_step_plan *plan, const attune_step *step, at_error *err) {
    plan->arguments = plan->attention->arguments;
    if (an_put_sizes(plan->attention, step, &plan->arguments, plan->tokens, err)) return err->status;
    if (!plan->arguments.batch) return ATTUNE_OK;
    if (pl_check_lengths(plan->attention->plan, &plan->arguments, err)) return err->status;
    return copy_lists(plan, err);
}

attune_status attune_step_plan_create(attune_attention *attention, const attune_step *step, attune_step_plan **plan) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_step whole;
    if (plan) *plan = NULL;
    if (!plan) at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_step_plan_create was given no pointer to the plan");
    if (err.status || an_take_step(__func__, "attention", attention, step, &whole, &err)) return at_report(&err);
    attune_step_plan *const made = calloc(1, sizeof *made + sizeof *made->kept);
    if (!made) {
        at_fail_memory(&err, sizeof *made);
        return at_report(&err);
    }
    made->kept = (kept *)(made + 1);
    made->attention = attention;
    if (make(made, &whole, &err)) {
        attune_step_plan_destroy(made);
        return at_report(&err);
    }
    *plan = made;
    return ATTUNE_OK;
}

void attune_step_plan_destroy(attune_step_plan *plan) {
    if (!plan) return;
    pl_step_destroy(atomic_load(&plan->kept->step));
    free(plan->lists);
    free(plan);
}

/* ---- Runs ---- */

static attune_status take(const char *function, const attune_step_plan *plan, const attune_step *given, bool is_run,
                          attune_arguments *arguments, attune_run_options *options, at_error *err) {
    attune_step step;
    if (an_take_step(function, "plan", plan, given, &step, err)) return err->status;
    *arguments = plan->arguments;
    if (an_put_tensors(plan->attention, &step, plan->tokens, is_run, arguments, err)) return err->status;
    *options = an_options_of(&step);
    return ATTUNE_OK;
}

/* NULL: there is none, and each run is a call of its own. */
static attune_status list_of(const attune_step_plan *plan, const attune_arguments *arguments, pl_step **step,
                             at_error *err) {
    *step = atomic_load_explicit(&plan->kept->step, memory_order_acquire);
    if (*step || pl_step_create(plan->attention->plan, arguments, step, err) || !*step) return err->status;
    pl_step *first = NULL;
    if (atomic_compare_exchange_strong(&plan->kept->step, &first, *step)) return ATTUNE_OK;
    pl_step_destroy(*step);
    *step = first;
    return ATTUNE_OK;
}

static attune_status run_list(const attune_step_plan *plan, const attune_arguments *arguments,
                              const attune_run_options *options, bool *was_run, at_error *err) {
    pl_step *step;
    *was_run = false;
    if (list_of(plan, arguments, &step, err) || !step) return err->status;
    return pl_step_run(step, arguments, options, was_run, err);
}

attune_status attune_step_plan_run(const attune_step_plan *plan, const attune_step *step) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_arguments arguments;
    attune_run_options options;
    bool was_run;
    if (take(__func__, plan, step, true, &arguments, &options, &err)) return at_report(&err);
    if (!arguments.batch) return ATTUNE_OK;
    if (run_list(plan, &arguments, &options, &was_run, &err) || was_run)
        return an_report_call(plan->attention, at_report(&err));
    if (atomic_load(&plan->kept->step)) arguments.workspace = NULL; /* other strides: it was measured for the list */
    return an_report_call(plan->attention, attune_plan_run(plan->attention->plan, &arguments, &options));
}

attune_status attune_step_plan_workspace_size(const attune_step_plan *plan, const attune_step *step, size_t *bytes) {
    at_error err = {0};
    attune_arguments arguments;
    attune_run_options options;
    pl_step *list;
    if (!bytes) at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_step_plan_workspace_size was given no pointer to bytes");
    if (bytes) *bytes = 0;
    if (err.status || take(__func__, plan, step, false, &arguments, &options, &err)) return at_report(&err);
    if (!arguments.batch) return ATTUNE_OK;
    if (list_of(plan, &arguments, &list, &err)) return at_report(&err);
    if (list) {
        pl_step_workspace(list, &options, bytes, &err);
        return at_report(&err);
    }
    return an_report_call(plan->attention,
                          attune_plan_workspace_size(plan->attention->plan, &arguments, &options, bytes));
}
