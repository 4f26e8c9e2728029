/* The sizes of a step: from the text, from --sizes and from the shapes of files, which must agree. */
#include "run/step.h"

#include "problem/fields_text.h"
#include "problem/suggest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME = 32 };

/* ---- By name ---- */

static int count_of(const char *const *names) {
    int count = 0;
    while (names && names[count]) count++;
    return count;
}

static const char *step_size_name(const step_operator *of, int i) {
    const int own = count_of(of->sizes);
    return i < own ? of->sizes[i] : of->follow[i - own];
}

int64_t *step_size(step_call *c, const char *name) {
    const at_desc_table *const t = c->of->table;
    const int count = count_of(c->of->sizes) + count_of(c->of->follow);
    for (int i = 0; i < count; i++)
        if (!strcmp(step_size_name(c->of, i), name)) return &c->sizes[i];
    for (size_t i = 0; i < t->num_fields; i++)
        if (t->fields[i].kind == AT_FIELD_SIZE && !strcmp(t->fields[i].name, name))
            return (int64_t *)(void *)((char *)&c->desc + t->fields[i].offset);
    return NULL;
}

int64_t step_size_of(const step_call *c, const char *name) { return *step_size((step_call *)(uintptr_t)c, name); }

void step_set_default(step_call *c, const char *name, int64_t value) {
    int64_t *const size = step_size(c, name);
    if (*size < 0) *size = value;
}

void step_size_pages(step_call *c, int64_t page) {
    const int64_t keys = step_size_of(c, "seq_kv");
    if (!page || keys < 0) return;
    step_set_default(c, "max_pages", (keys + page - 1) / page);
    step_set_default(c, "num_pages", step_size_of(c, "batch") * step_size_of(c, "max_pages"));
}

static bool follows(const step_call *c, const char *name) {
    for (int i = 0; i < count_of(c->of->follow); i++)
        if (!strcmp(c->of->follow[i], name)) return true;
    return false;
}

/* Sizes of a description are not known while they are 0. */
static bool is_known(const step_call *c, const char *name) {
    const int64_t *const size = step_size((step_call *)(uintptr_t)c, name);
    const bool is_of_step = size >= c->sizes && size < c->sizes + STEP_MOST_SIZES;
    return is_of_step ? *size >= 0 : *size > 0;
}

static attune_dtype *dtype_of(step_call *c, const char *member) {
    const at_desc_table *const t = c->of->table;
    for (size_t i = 0; i < t->num_fields; i++)
        if (!strcmp(t->fields[i].name, member)) return (attune_dtype *)(void *)((char *)&c->desc + t->fields[i].offset);
    return NULL;
}

const npy_array *step_file(const step_call *c, const char *name) {
    const run_file *const file = files_find(c->o->files.inputs, c->o->files.num_inputs, name);
    return file ? &file->array : NULL;
}

/* ---- Shapes ---- */

/* The next name of a list of dims, and how much more it is; NULL: the list ends. */
static const char *next_dim(const char *dims, char name[NAME], int64_t *more) {
    dims += strspn(dims, " ");
    const size_t length = strcspn(dims, " +");
    if (!length) return NULL;
    snprintf(name, NAME, "%.*s", (int)length, dims);
    *more = dims[length] == '+' ? dims[length + 1] - '0' : 0;
    return dims + length + (*more ? 2 : 0);
}

static const char *dims_of(const step_call *c, const step_tensor *t, bool *is_ragged) {
    static const char both[] = "batch seq";
    *is_ragged = step_file(c, "cu_seqlens") && !strncmp(t->dims, both, sizeof both - 1);
    return *is_ragged ? t->dims + sizeof both - 1 : t->dims;
}

/* The dims by their names, and their values so far. */
static size_t list_dims(const step_call *c, const step_tensor *t, char names[NPY_MAX_RANK][NAME],
                        int64_t more[NPY_MAX_RANK]) {
    bool is_ragged;
    size_t rank = 0;
    const char *at = dims_of(c, t, &is_ragged);
    if (is_ragged) snprintf(names[0], NAME, "tokens"), more[0] = 0, rank = 1;
    while ((at = next_dim(at, names[rank], &more[rank]))) rank++;
    return rank;
}

static bool refuse_shape(const step_call *c, const step_tensor *t, const npy_header *h) {
    char shape[NPY_SHAPE_TEXT], wanted[256] = "", names[NPY_MAX_RANK][NAME];
    int64_t more[NPY_MAX_RANK];
    const size_t rank = list_dims(c, t, names, more);
    mha_writer w = {.text = wanted, .capacity = sizeof wanted};
    for (size_t i = 0; i < rank; i++) {
        mha_write(&w, i ? ", %s" : "%s", names[i]);
        if (more[i]) mha_write(&w, " + %d", (int)more[i]);
        if (is_known(c, names[i])) mha_write(&w, "=%lld", (long long)(step_size_of(c, names[i]) + more[i]));
    }
    tool_error("%s has the shape %s; it must be (%s)", t->name, npy_print_shape(h->rank, h->shape, shape), wanted);
    return false;
}

/* Sizes that the file tells become known; others must be the same. */
static bool take_shape(step_call *c, const step_tensor *t, const npy_header *h) {
    char names[NPY_MAX_RANK][NAME];
    int64_t more[NPY_MAX_RANK];
    const size_t rank = list_dims(c, t, names, more);
    if (h->rank != rank) return refuse_shape(c, t, h);
    for (size_t i = 0; i < rank; i++) {
        const bool known = is_known(c, names[i]);
        if (known ? h->shape[i] != step_size_of(c, names[i]) + more[i] : h->shape[i] < more[i])
            return refuse_shape(c, t, h);
        if (!known && !follows(c, names[i])) *step_size(c, names[i]) = h->shape[i] - more[i];
    }
    return true;
}

static bool take_type(step_call *c, const step_tensor *t, const npy_header *h) {
    attune_dtype *const type = t->dtype ? dtype_of(c, t->dtype) : NULL, wanted = type ? *type : t->fixed;
    const attune_dtype has = run_types_dtype(h->type);
    if (has == ATTUNE_DTYPE_DEFAULT) {
        tool_error("%s is %s, which attune does not compute with", t->name, npy_type_name(h->type));
        return false;
    }
    if (type && !wanted) *type = has;
    if (!wanted || has == wanted) return true;
    tool_error("%s is %s; it must be %s%s%s", t->name, tool_dtype_name(has), tool_dtype_name(wanted),
               t->dtype ? ", as " : "", t->dtype ? t->dtype : "");
    return false;
}

static bool has_tensor(const step_call *c, const step_tensor *t) {
    if (t->has && !t->has(c)) return false;
    return t->role != STEP_LIST || step_file(c, t->name);
}

static bool take_shapes(step_call *c) {
    for (size_t i = 0; i < c->of->num_tensors; i++) {
        const step_tensor *const t = &c->of->tensors[i];
        const npy_array *const file = has_tensor(c, t) ? step_file(c, t->name) : NULL;
        if (file && (!take_shape(c, t, &file->header) || !take_type(c, t, &file->header))) return false;
    }
    return true;
}

/* ---- Names ---- */

static const step_tensor *tensor_named(const step_operator *of, const char *name, bool is_output) {
    for (size_t i = 0; i < of->num_tensors; i++) {
        const step_tensor *const t = &of->tensors[i];
        const bool fits = t->role == STEP_STATE || (t->role == STEP_OUTPUT) == is_output;
        if (fits && !strcmp(t->name, name)) return t;
    }
    return NULL;
}

static bool refuse_name(const step_operator *of, const char *name, bool is_output) {
    char list[512] = "";
    mha_writer w = {.text = list, .capacity = sizeof list};
    for (size_t i = 0; i < of->num_tensors; i++) {
        const step_tensor *const t = &of->tensors[i];
        if (tensor_named(of, t->name, is_output) == t) mha_write(&w, w.length ? ", %s" : "%s", t->name);
    }
    tool_error("op=%s has no %s %s; it has %s", of->table->op, is_output ? "output" : "input", name, list);
    return false;
}

static bool check_names(const step_call *c) {
    const run_files *const f = &c->o->files;
    for (size_t i = 0; i < f->num_inputs; i++)
        if (!tensor_named(c->of, f->inputs[i].name, false)) return refuse_name(c->of, f->inputs[i].name, false);
    for (size_t i = 0; i < f->num_outputs; i++)
        if (!tensor_named(c->of, f->outputs[i].name, true)) return refuse_name(c->of, f->outputs[i].name, true);
    return true;
}

/* A file that the description has nothing for, and a tensor that has no file while another has one. */
static bool check_files(const step_call *c) {
    const run_files *const f = &c->o->files;
    for (size_t i = 0; i < f->num_inputs + f->num_outputs; i++) {
        const bool is_output = i >= f->num_inputs;
        const char *const name = is_output ? f->outputs[i - f->num_inputs].name : f->inputs[i].name;
        bool has = false;
        for (size_t t = 0; t < c->of->num_tensors; t++)
            has |= !strcmp(c->of->tensors[t].name, name) && has_tensor(c, &c->of->tensors[t]);
        if (!has) {
            tool_error("%s is %s, but %s has none", name, is_output ? "wanted" : "given", c->o->problem);
            return false;
        }
    }
    for (size_t i = 0; c->has_files && i < c->of->num_tensors; i++) {
        const step_tensor *const t = &c->of->tensors[i];
        if (t->role != STEP_INPUT || !has_tensor(c, t) || step_file(c, t->name)) continue;
        const bool is_short = strlen(t->name) == 1 && strchr("qkv", *t->name);
        tool_error(is_short ? "op=%s needs --%s" : "op=%s needs --tensor %s=F.npy", c->of->table->op, t->name);
        return false;
    }
    return true;
}

/* ---- Text ---- */

static attune_status take_size(void *user, const mha_pair *pair, at_error *err) {
    step_call *const c = user;
    const char *names[STEP_MOST_SIZES];
    const int count = count_of(c->of->sizes);
    int64_t value;
    for (int i = 0; i < count; i++) {
        names[i] = c->of->sizes[i];
        if (!mha_key_is(pair, names[i])) continue;
        if (mha_value_int(pair, ATTUNE_INVALID_ARGUMENT, &value, err)) return err->status;
        c->sizes[i] = value;
        return at_check_size(names[i], value, 0, INT32_MAX, err);
    }
    char list[160] = "";
    mha_writer w = {.text = list, .capacity = sizeof list};
    for (int i = 0; i < count; i++) mha_write(&w, i ? ", %s" : "%s", names[i]);
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "op=%s has no size '%.*s'; --sizes may have %s", c->of->table->op,
                   pair->key_length > 80 ? 80 : pair->key_length, pair->key, list);
}

static bool read_texts(step_call *c) {
    at_error err = {0};
    int32_t kernel;
    for (int i = 0; i < STEP_MOST_SIZES; i++) c->sizes[i] = -1;
    if (at_desc_read(c->of->table, c->o->problem, &c->desc, &kernel, &err) ||
        (c->o->sizes && mha_for_each_pair(c->o->sizes, ATTUNE_INVALID_ARGUMENT, take_size, c, &err)))
        tool_error("%s", err.message);
    else if (kernel != AT_ALL_KERNELS)
        tool_error("the problem names a kernel, but a step chooses its own by its tensors: leave out kernel=");
    else
        return true;
    return false;
}

static bool settle(step_call *c) {
    at_error err = {0};
    if (c->of->table->settle(&c->desc, &err)) {
        tool_error("%s", err.message);
        return false;
    }
    at_desc_print(c->of->table, &c->desc, c->text);
    return c->of->derive(c);
}

bool step_describe(step_call *c) {
    c->has_files = c->o->files.num_inputs > 0;
    if (!read_texts(c) || !check_names(c) || !files_read(&c->o->files) ||
        (c->of->take_files && !c->of->take_files(c)) || !check_files(c) || !take_shapes(c) || !settle(c) ||
        !take_shapes(c))
        return false;
    for (size_t i = 0; i < c->of->num_tensors; i++) {
        const step_tensor *const t = &c->of->tensors[i];
        char names[NPY_MAX_RANK][NAME];
        int64_t more[NPY_MAX_RANK], shape[NPY_MAX_RANK];
        c->has[i] = has_tensor(c, t);
        const size_t rank = c->has[i] ? list_dims(c, t, names, more) : 0;
        for (size_t d = 0; d < rank; d++) {
            shape[d] = step_size_of(c, names[d]) + more[d];
            if (shape[d] >= more[d]) continue;
            tool_error("%s is not known; say --sizes %s=N, or give files", names[d], names[d]);
            return false;
        }
        c->arrays[i].header.rank = rank;
        memcpy(c->arrays[i].header.shape, shape, rank * sizeof *shape);
        c->arrays[i].header.type = files_type(t->dtype ? *dtype_of(c, t->dtype) : t->fixed);
    }
    return true;
}
