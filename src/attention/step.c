/* A step: its views become pointers and strides of a call, in the order [batch or page, head, token, element]. */
#include "attention/attention.h"

#include "base/struct.h"
#include "engine/context.h"

#include <stdio.h>
#include <string.h>

static const attune_step initial = ATTUNE_STEP_INIT;
static const at_struct step_struct = {"attune_step", "start from ATTUNE_STEP_INIT", sizeof(attune_step), &initial,
                                      sizeof(attune_step)};

attune_status attune_step_init(attune_step *step, size_t struct_size) {
    at_error err = {0};
    at_struct_init(&step_struct, step, struct_size, &err);
    return at_report(&err);
}

/* ---- Places ---- */

/* The view of a tensor; its name is NULL if it is none: a binding, or a list. */
static an_place view_of(mha_tensor_id id, attune_kv kv) {
#define VIEW(member, kind)                                                                                             \
    (an_place) { .name = #member, .view = offsetof(attune_step, member), .tokens = (kind) }
    const an_tokens cached = kv == ATTUNE_KV_PAGED ? AN_PAGE : AN_KEYS;
    switch (id) {
    case MHA_Q: return VIEW(q, AN_QUERIES);
    case MHA_OUT: return VIEW(out, AN_QUERIES);
    case MHA_LSE: return VIEW(lse, AN_QUERIES);
    case MHA_K: return kv == ATTUNE_KV_TENSORS ? VIEW(k, AN_KEYS) : VIEW(k_cache, cached);
    case MHA_V: return kv == ATTUNE_KV_TENSORS ? VIEW(v, AN_KEYS) : VIEW(v_cache, cached);
    case MHA_K_NEW: return VIEW(k, AN_QUERIES);
    case MHA_V_NEW: return VIEW(v, AN_QUERIES);
    case MHA_K_SCALE:
    case MHA_K_SCALES: return VIEW(k_scale, cached);
    case MHA_V_SCALE:
    case MHA_V_SCALES: return VIEW(v_scale, cached);
    default: return (an_place){0};
    }
#undef VIEW
}

void an_settle_places(attune_attention *attention) {
    mha_tensor tensors[MHA_NUM_TENSORS];
    mha_sizes sizes;
    const attune_problem *const p = &attention->problem;
    const size_t count = mha_tensors(p, tensors);
    mha_compiled_sizes(p, &sizes);
    for (size_t i = 0; i < count; i++) {
        const mha_tensor *const t = &tensors[i];
        if (!view_of(t->id, attention->kv).name) continue;
        an_place *const place = &attention->places[attention->num_places++];
        *place = view_of(t->id, attention->kv);
        place->tensor = t->name;
        place->pointer = t->pointer;
        place->has_strides = t->has_strides;
        place->rank = t->rank;
        place->heads = t->id == MHA_Q || t->id == MHA_OUT || t->id == MHA_LSE ? p->num_heads : p->num_kv_heads;
        place->row = t->rank % 2 ? 1 : sizes.of[t->dims[t->rank - 1]];
        place->panel = t->dims[2] == MHA_PANELS || t->dims[2] == MHA_PAGE_PANELS ? ATTUNE_PANEL_TOKENS : 1;
        place->bytes = (int64_t)ir_elem_get(t->elem)->bytes;
    }
}

/* ---- Arguments ---- */

/* lse and scales are [batch or page, heads, tokens] in every layout. */
static void contiguous(const attune_attention *a, const an_place *place, int64_t tokens, int64_t strides[4]) {
    const bool heads_first = a->layout == ATTUNE_BHSD || place->rank == 3;
    const int64_t count = (tokens + place->panel - 1) / place->panel;
    strides[0] = place->heads * count * place->row;
    strides[1] = heads_first ? count * place->row : place->row;
    strides[2] = heads_first ? place->row : place->heads * place->row;
    strides[3] = 1;
}

static attune_status put(const attune_attention *a, const an_place *place, const attune_step *step, int64_t tokens,
                         attune_arguments *arguments, bool is_run, at_error *err) {
    attune_view view;
    memcpy(&view, (const char *)step + place->view, sizeof view);
    if (is_run && !view.data && arguments->batch > 0 && tokens > 0)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the step's %s.data is NULL", place->name);
    memcpy((char *)arguments + place->pointer, &view.data, sizeof view.data);
    if (!place->has_strides) return ATTUNE_OK;
    if (view.column < 0 || view.column > 1)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the step's %s.column is %lld; it must be 0 or 1", place->name,
                       (long long)view.column);
    view.column = 1;
    if (!view.batch && !view.head && !view.token) contiguous(a, place, tokens, view.strides);
    memcpy((char *)arguments + place->pointer + offsetof(attune_view, strides), view.strides,
           (size_t)place->rank * sizeof *view.strides);
    return ATTUNE_OK;
}

static attune_status last_of(const char *name, const int32_t *starts, int64_t batch, int64_t *last, at_error *err) {
    if (!starts && batch > 0) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the step's %s is NULL", name);
    *last = batch > 0 ? starts[batch] : 0;
    if (*last < 0)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the step's %s ends with %lld; it must be at least 0", name,
                       (long long)*last);
    return ATTUNE_OK;
}

attune_status an_put_sizes(const attune_attention *a, const attune_step *step, attune_arguments *arguments,
                           int64_t tokens[AN_NUM_TOKENS], at_error *err) {
    const struct {
        const char *name;
        int64_t value;
    } sizes[] = {{"batch", step->batch},
                 {"seq_q", step->seq_q},
                 {"seq_kv", step->seq_kv},
                 {"max_pages", step->max_pages},
                 {"num_pages", step->num_pages}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].value < 0 || sizes[i].value > INT32_MAX)
            return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the step's %s is %lld; it must be from 0 to %d",
                           sizes[i].name, (long long)sizes[i].value, INT32_MAX);
    tokens[AN_QUERIES] = step->seq_q, tokens[AN_KEYS] = step->seq_kv, tokens[AN_PAGE] = a->problem.page_size;
    arguments->batch = step->batch;
    if (a->layout == ATTUNE_THD) {
        if (last_of("cu_seqlens_q", step->cu_seqlens_q, step->batch, &tokens[AN_QUERIES], err)) return err->status;
        arguments->cu_seqlens_q = step->cu_seqlens_q;
        arguments->total_q = tokens[AN_QUERIES];
    } else {
        arguments->seq_q = step->seq_q;
        if (a->appends) arguments->seq_new = step->seq_q;
    }
    if (a->kv == ATTUNE_KV_PAGED) {
        arguments->block_table = step->block_table;
        arguments->block_table_stride = step->block_table_stride;
        arguments->max_pages = step->max_pages;
        arguments->num_pages = step->num_pages;
    } else if (a->layout == ATTUNE_THD) {
        arguments->cu_seqlens_kv = step->cu_seqlens_kv ? step->cu_seqlens_kv : step->cu_seqlens_q;
        if (last_of("cu_seqlens_kv", arguments->cu_seqlens_kv, step->batch, &tokens[AN_KEYS], err)) return err->status;
        arguments->total_kv = tokens[AN_KEYS];
    } else {
        arguments->seq_kv = step->seq_kv;
    }
    arguments->kv_lens = step->kv_lens;
    return ATTUNE_OK;
}

/* Whether a tensor of a problem comes from the step itself, so that no binding may replace it. */
static bool is_member(const attune_attention *a, const char *name) {
    static const char *const lists[] = {"cu_seqlens_q", "cu_seqlens_kv", "kv_lens", "block_table"};
    for (size_t i = 0; name && i < sizeof lists / sizeof *lists; i++)
        if (!strcmp(name, lists[i])) return true;
    for (size_t i = 0; name && i < a->num_places; i++)
        if (!strcmp(name, a->places[i].tensor)) return true;
    return false;
}

attune_status an_put_tensors(const attune_attention *a, const attune_step *step, const int64_t tokens[AN_NUM_TOKENS],
                             bool is_run, attune_arguments *arguments, at_error *err) {
    for (size_t i = 0; i < a->num_places; i++)
        if (put(a, &a->places[i], step, tokens[a->places[i].tokens], arguments, is_run, err)) return err->status;
    arguments->workspace = step->workspace;
    arguments->workspace_bytes = step->workspace_bytes;
    if (step->num_bindings && !step->bindings)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the step's num_bindings is %zu, but bindings is NULL",
                       step->num_bindings);
    for (size_t i = 0; i < step->num_bindings; i++) {
        if (is_member(a, step->bindings[i].name))
            return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                           "the step's bindings[%zu] is %s, which has a member of its own", i, step->bindings[i].name);
        if (attune_plan_bind(a->plan, arguments, step->bindings[i].name, step->bindings[i].tensor))
            return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the step's bindings[%zu]: %s", i, attune_last_message());
    }
    return ATTUNE_OK;
}

/* ---- Messages ---- */

/* Writes what a step calls the word at `*at`, such as "k.token" for "k_new_strides[2]", and moves `*at` behind it. */
static size_t print_word(const attune_attention *a, const char **at, char *text, size_t capacity) {
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    static const char *const members[] = {"batch", "head", "token", "column"};
    static const char strides[] = "_strides";
    const char *const word = *at;
    const size_t length = strspn(word, letters);
    *at += length;
    for (size_t i = 0; i < a->num_places; i++) {
        const an_place *const place = &a->places[i];
        const size_t own = strlen(place->tensor);
        if (own > length || memcmp(word, place->tensor, own)) continue;
        if (own == length) return (size_t)snprintf(text, capacity, "%s", place->name);
        if (length - own != sizeof strides - 1 || memcmp(word + own, strides, length - own)) continue;
        const unsigned dim = word[length] == '[' ? (unsigned)(word[length + 1] - '0') : 4;
        if (dim > 3) return (size_t)snprintf(text, capacity, "%s.strides", place->name);
        *at += strlen("[0]");
        return (size_t)snprintf(text, capacity, "%s.%s", place->name, members[dim]);
    }
    return (size_t)snprintf(text, capacity, "%.*s", (int)length, word);
}

attune_status an_report_call(const attune_attention *a, attune_status status) {
    char text[ATTUNE_MESSAGE_BYTES];
    at_error err = {0};
    size_t n = 0;
    if (status != ATTUNE_INVALID_ARGUMENT) return status;
    for (const char *at = attune_last_message(); *at && n + 1 < sizeof text;) {
        const char *const word = at;
        n += print_word(a, &at, text + n, sizeof text - n);
        if (at == word) text[n++] = *at++, text[n] = '\0';
    }
    at_fail(&err, status, "%s", text);
    return at_report(&err);
}

/* ---- Calls ---- */

attune_status an_take_step(const char *function, const char *object, const void *given_object, const attune_step *given,
                           attune_step *step, at_error *err) {
    if (!given_object || !given)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "%s was given no %s", function, given_object ? "step" : object);
    return at_copy_in(&step_struct, given, step, err);
}

attune_run_options an_options_of(const attune_step *step) {
    attune_run_options options = ATTUNE_RUN_OPTIONS_INIT;
    options.runner = step->runner;
    options.max_threads = step->max_threads;
    options.cancel = step->cancel;
    return options;
}

/* Both calls begin so. */
static attune_status take(const char *function, const attune_attention *attention, const attune_step *given,
                          bool is_run, attune_arguments *arguments, attune_run_options *options, at_error *err) {
    attune_step step;
    int64_t tokens[AN_NUM_TOKENS];
    if (an_take_step(function, "attention", attention, given, &step, err)) return err->status;
    *arguments = attention->arguments;
    if (an_put_sizes(attention, &step, arguments, tokens, err) ||
        an_put_tensors(attention, &step, tokens, is_run, arguments, err))
        return err->status;
    *options = an_options_of(&step);
    return ATTUNE_OK;
}

attune_status attune_attention_run(attune_attention *attention, const attune_step *step) {
    at_error err = {0};
    attune_arguments arguments;
    attune_run_options options;
    if (take(__func__, attention, step, true, &arguments, &options, &err)) return at_report(&err);
    if (!arguments.batch) return ATTUNE_OK;
    return an_report_call(attention, attune_plan_run(attention->plan, &arguments, &options));
}

attune_status attune_attention_workspace_size(attune_attention *attention, const attune_step *step, size_t *bytes) {
    at_error err = {0};
    attune_arguments arguments;
    attune_run_options options;
    if (!bytes) at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_attention_workspace_size was given no pointer to bytes");
    if (bytes) *bytes = 0;
    if (err.status || take(__func__, attention, step, false, &arguments, &options, &err)) return at_report(&err);
    if (!arguments.batch) return ATTUNE_OK;
    return an_report_call(attention, attune_plan_workspace_size(attention->plan, &arguments, &options, bytes));
}

/* ---- The caches' size ---- */

/* Bytes of one of the cache's tensors: scales of heads and channels have neither pages nor tokens. */
static attune_status bytes_of(const an_place *place, int64_t pages, int64_t tokens, size_t *bytes, at_error *err) {
    const int64_t row = place->heads * place->row * place->bytes;
    int64_t total = row;
    if (place->rank >= 3 && (pages < 0 || tokens < 0 || tokens > INT64_MAX - place->panel ||
                             __builtin_mul_overflow(pages, (tokens + place->panel - 1) / place->panel, &total) ||
                             __builtin_mul_overflow(total, row, &total)))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "a cache of %lld times %lld keys is not possible",
                       (long long)pages, (long long)tokens);
    *bytes = (size_t)total;
    return ATTUNE_OK;
}

attune_status attune_attention_cache_size(const attune_attention *attention, int64_t pages, int64_t seq_kv,
                                          attune_cache_size *size) {
    at_error err = {0};
    attune_cache_size full = ATTUNE_CACHE_SIZE_INIT;
    if (!attention || !size) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_attention_cache_size was given no %s",
                attention ? "size" : "attention");
        return at_report(&err);
    }
    if (attention->kv == ATTUNE_KV_TENSORS)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "the attention has no cache: kv is ATTUNE_KV_TENSORS");
    const struct {
        size_t view;
        size_t *bytes;
        int64_t *row;
    } parts[] = {{offsetof(attune_step, k_cache), &full.k_bytes, &full.k_row},
                 {offsetof(attune_step, v_cache), &full.v_bytes, &full.v_row},
                 {offsetof(attune_step, k_scale), &full.k_scale_bytes, NULL},
                 {offsetof(attune_step, v_scale), &full.v_scale_bytes, NULL}};
    const int64_t tokens = attention->kv == ATTUNE_KV_PAGED ? attention->problem.page_size : seq_kv;
    for (size_t i = 0; i < attention->num_places; i++)
        for (size_t j = 0; j < sizeof parts / sizeof *parts; j++) {
            const an_place *const place = &attention->places[i];
            if (err.status || place->view != parts[j].view) continue;
            bytes_of(place, pages, tokens, parts[j].bytes, &err);
            if (parts[j].row) *parts[j].row = place->row;
        }
    if (!err.status) at_copy_out(size, &full, sizeof full, "attune_cache_size", &err);
    return at_report(&err);
}
