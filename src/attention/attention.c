/* Making and ending attentions: the description's members become those of a problem, and `extra` is read after them. */
#include "attention/attention.h"

#include "base/fpenv.h"
#include "base/struct.h"
#include "engine/context.h"
#include "problem/problem.h"

#include <stdlib.h>

static const attune_attention_desc initial = ATTUNE_ATTENTION_DESC_INIT;
static const at_struct desc_struct = {"attune_attention_desc", "start from ATTUNE_ATTENTION_DESC_INIT",
                                      sizeof(attune_attention_desc), &initial, sizeof(attune_attention_desc)};

attune_status attune_attention_desc_init(attune_attention_desc *desc, size_t struct_size) {
    at_error err = {0};
    at_struct_init(&desc_struct, desc, struct_size, &err);
    return at_report(&err);
}

/* ---- The problem ---- */

static attune_status check_desc(const attune_attention_desc *d, at_error *err) {
    static const int64_t MOST_DEADLINE = 60000000;
    if ((unsigned)d->layout > ATTUNE_BHSD)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "layout is %d; it must be ATTUNE_THD, ATTUNE_BSHD or ATTUNE_BHSD",
                       (int)d->layout);
    if ((unsigned)d->kv > ATTUNE_KV_PAGED)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                       "kv is %d; it must be ATTUNE_KV_TENSORS, ATTUNE_KV_CACHE or ATTUNE_KV_PAGED", (int)d->kv);
    if (d->layout == ATTUNE_THD && d->kv == ATTUNE_KV_CACHE)
        return at_fail(err, ATTUNE_UNSUPPORTED,
                       "kv is ATTUNE_KV_CACHE, which needs layout ATTUNE_BSHD or ATTUNE_BHSD; with ATTUNE_THD use "
                       "ATTUNE_KV_PAGED, one page for each sequence");
    if ((unsigned)d->appends > 1)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "appends is %d; it must be 0 or 1", d->appends);
    if (d->kv == ATTUNE_KV_TENSORS && d->appends)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "appends is 1, but there is no cache: kv is ATTUNE_KV_TENSORS");
    if (d->kv == ATTUNE_KV_PAGED ? d->page_size < 1 : d->page_size != 0)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "page_size is %lld; it must be %s", (long long)d->page_size,
                       d->kv == ATTUNE_KV_PAGED ? "at least 1" : "0 unless kv is ATTUNE_KV_PAGED");
    if (d->deadline_us < -1 || d->deadline_us > MOST_DEADLINE)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "deadline_us is %lld; it must be from -1 to %lld",
                       (long long)d->deadline_us, (long long)MOST_DEADLINE);
    return ATTUNE_OK;
}

static void problem_of(const attune_attention_desc *d, attune_problem *p) {
    *p = (attune_problem)ATTUNE_PROBLEM_INIT;
    p->dtype = d->dtype;
    p->num_heads = d->num_heads, p->num_kv_heads = d->num_kv_heads;
    p->head_dim = d->head_dim, p->head_dim_v = d->head_dim_v;
    p->seq_q = p->seq_kv = ATTUNE_DYNAMIC;
    p->is_causal = d->is_causal;
    p->window_left = d->window_left, p->window_right = d->window_right;
    p->softmax_scale = d->softmax_scale;
    p->has_lse = d->has_lse;
    p->reproducible = d->reproducible;
    p->is_ragged = d->layout == ATTUNE_THD;
    p->k_dtype = p->v_dtype = d->kv_dtype;
    p->k_scales = p->v_scales = d->kv_scales;
    p->has_kv_lens = d->kv != ATTUNE_KV_TENSORS;
    p->page_size = d->page_size;
    p->seq_new = d->appends ? ATTUNE_DYNAMIC : 0;
}

/* What the text names counts, whatever the members say, except where a step depends on it. */
static attune_status read_extra(const char *extra, attune_problem *p, at_error *err) {
    const attune_problem before = *p;
    if (attune_problem_parse(p, extra)) return at_fail(err, ATTUNE_INVALID_PROBLEM, "extra: %s", attune_last_message());
    const struct {
        const char *name;
        bool is_set;
    } fixed[] = {
        {"op", p->op != before.op},
        {"embed_dim", p->embed_dim != 0},
        {"batch", p->batch != before.batch},
        {"seq_q", p->seq_q != before.seq_q},
        {"seq_kv", p->seq_kv != before.seq_kv},
        {"seq_new", p->seq_new != before.seq_new},
        {"is_ragged", p->is_ragged != before.is_ragged},
        {"has_kv_lens", p->has_kv_lens != before.has_kv_lens},
        {"page_size", p->page_size != before.page_size},
        {"softmax_scale=dynamic", p->has_softmax_scale != 0},
    };
    for (size_t i = 0; i < sizeof fixed / sizeof *fixed; i++)
        if (fixed[i].is_set)
            return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                           "extra has %s, which is not allowed there (attune_attention_desc)", fixed[i].name);
    return ATTUNE_OK;
}

static attune_status make_problem(const attune_attention_desc *d, attune_problem *p, at_error *err) {
    if (check_desc(d, err)) return err->status;
    attune_problem said;
    problem_of(d, &said);
    if (d->extra && read_extra(d->extra, &said, err)) return err->status;
    return mha_canonicalize(&said, p, err);
}

/* ---- Life ---- */

static attune_status make_plan(attune_attention *a, const attune_attention_desc *d) {
    attune_plan_options options = ATTUNE_PLAN_OPTIONS_INIT;
    options.deadline_us = d->deadline_us;
    const attune_status status = attune_plan_create(a->context, &a->problem, &options, &a->plan);
    return status ? status : attune_plan_arguments_init(a->plan, &a->arguments);
}

attune_status attune_attention_create(attune_context *context, const attune_attention_desc *desc,
                                      attune_attention **attention) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_attention_desc d;
    if (attention) *attention = NULL;
    if (!desc || !attention) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_attention_create was given no %s",
                desc ? "pointer to the attention" : "description");
        return at_report(&err);
    }
    if (at_copy_in(&desc_struct, desc, &d, &err)) return at_report(&err);
    attune_attention *const a = calloc(1, sizeof *a);
    if (!a) {
        at_fail_memory(&err, sizeof *a);
        return at_report(&err);
    }
    if (make_problem(&d, &a->problem, &err)) {
        free(a);
        return at_report(&err);
    }
    a->layout = d.layout;
    a->kv = d.kv;
    a->appends = d.appends;
    a->context = context;
    attune_status status = context ? ATTUNE_OK : attune_shared_context(&a->context);
    if (status) {
        free(a);
        return status;
    }
    status = make_plan(a, &d);
    if (status) {
        attune_attention_destroy(a);
        return status;
    }
    an_settle_places(a);
    *attention = a;
    return ATTUNE_OK;
}

void attune_attention_destroy(attune_attention *attention) {
    if (!attention) return;
    attune_plan_destroy(attention->plan);
    free(attention);
}

attune_status attune_attention_prepare(attune_attention *attention) {
    at_error err = {0};
    if (attention) return attune_plan_prepare(attention->plan);
    at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_attention_prepare was given NULL");
    return at_report(&err);
}

attune_status attune_attention_get_info(const attune_attention *attention, attune_attention_info *info) {
    at_error err = {0};
    if (!attention || !info) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_attention_get_info was given no %s",
                attention ? "pointer to the info" : "attention");
        return at_report(&err);
    }
    attune_plan_info plan = ATTUNE_PLAN_INFO_INIT;
    const attune_status status = attune_plan_get_info(attention->plan, &plan);
    if (status) return status;
    const attune_attention_info full = {
        .compiled_calls = plan.compiled_calls,
        .tier0_calls = plan.tier0_calls,
        .vm_calls = plan.vm_calls,
        .is_ready = plan.is_ready,
    };
    at_copy_out(info, &full, sizeof full, "attune_attention_info", &err);
    return at_report(&err);
}

size_t attune_attention_problem(const attune_attention *attention, char *text, size_t capacity) {
    if (!text) capacity = 0;
    if (attention) return attune_problem_print(&attention->problem, text, capacity);
    if (capacity) *text = '\0';
    return 0;
}
