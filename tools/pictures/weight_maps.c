#include "pictures/weight_maps.h"

#include "pictures/labels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void maps_free(weight_maps *m) {
    free(m->head_numbers);
    free(m->values);
    free(m->hidden);
    free(m->row_ids);
    *m = (weight_maps){.heads = 0};
}

/* ---- The shape ---- */

/* Notes the shape [batch, heads, rows, columns] and the heads that were asked for, and makes room for them. */
static bool allocate(const maps_request *r, const int64_t dims[4], weight_maps *m) {
    if (r->batch >= dims[0]) {
        tool_error("--batch is %lld, but the last entry is %lld", (long long)r->batch, (long long)dims[0] - 1);
        return false;
    }
    if (dims[1] < 1 || dims[2] < 1 || dims[3] < 1) {
        tool_error("there is nothing to draw: heads x queries x keys is %lld x %lld x %lld", (long long)dims[1],
                   (long long)dims[2], (long long)dims[3]);
        return false;
    }
    char all[64];
    snprintf(all, sizeof all, "0-%lld", (long long)dims[1] - 1);
    if (!labels_parse_heads(r->heads ? r->heads : all, (size_t)dims[1], &m->head_numbers, &m->heads)) return false;
    m->rows = m->num_queries = (size_t)dims[2];
    m->columns = (size_t)dims[3];
    m->values = calloc(m->heads * m->rows, m->columns * sizeof *m->values);
    m->hidden = calloc(m->heads * m->rows, m->columns);
    if (m->values && m->hidden) return true;
    tool_error("out of memory for the weights of %zu heads, %zu queries and %zu keys", m->heads, m->rows, m->columns);
    return false;
}

/* The mean over the heads. A key is hidden if all of them hide it. */
static void average(weight_maps *m) {
    const size_t count = m->rows * m->columns;
    for (size_t i = 0; i < count; i++) {
        double sum = 0;
        bool is_hidden = true;
        for (size_t head = 0; head < m->heads; head++) {
            sum += (double)m->values[head * count + i];
            is_hidden &= m->hidden[head * count + i];
        }
        m->values[i] = (float)(sum / (double)m->heads);
        m->hidden[i] = is_hidden;
    }
    m->num_averaged = m->heads;
    m->heads = 1;
}

static void set_kind(weight_maps *m, bool is_weight) {
    m->is_weight = is_weight;
    m->what = is_weight ? "attention weight" : "attention score";
}

/* ---- From a problem ---- */

/* Tensors with numbers of a model: if one comes from a file, no other input is random. */
static bool is_data(const char *name) {
    static const char *const names[] = {"q", "k", "x", "packed_weights"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], name) == 0) return true;
    return false;
}

/* Values have no part in the weights. */
static bool is_value(const char *name) { return strcmp(name, "v") == 0 || strcmp(name, "v_new") == 0; }

/* The problem as it is computed: with weights, of each head. */
static bool prepare_problem(maps_request *r, attune_problem *p) {
    if (p->op == ATTUNE_ROTARY || p->op == ATTUNE_MERGE) {
        tool_error("op=%s has no attention weights", p->op == ATTUNE_ROTARY ? "rotary" : "merge");
        return false;
    }
    if (p->weights_mode == ATTUNE_WEIGHTS_NONE) p->weights_mode = ATTUNE_WEIGHTS_SOFTMAX;
    if (p->weights_average) r->averages = true;
    p->weights_average = 0;
    /* The same weights without the logarithms of an earlier call. */
    const run_file *const q = files_find(r->files.inputs, r->files.num_inputs, "q");
    if (p->op == ATTUNE_WEIGHTS && q && !p->has_row_ids && !files_find(r->files.inputs, r->files.num_inputs, "lse")) {
        p->op = ATTUNE_ATTENTION;
        problem_fill_defaults(p);
    }
    if (attune_problem_check(p) == ATTUNE_OK) return true;
    tool_library_error(NULL);
    return false;
}

static void report_missing(const char *name) {
    if (strcmp(name, "packed_weights") == 0)
        tool_error("with numbers from files a block's weights are not random: draw, with --weights-file=F.npy, what "
                   "attune mha writes with --write weights=F.npy");
    else
        tool_error("the problem needs --tensor %s=F.npy too: with some numbers from files the others are not random",
                   name);
}

/* Inputs from files; random numbers for the others, unless a file has numbers of a model. */
static bool load_inputs(const maps_request *r, tensors *t) {
    const run_files *const files = &r->files;
    tensors given = *t;
    bool has_data = false;
    given.count = 0;
    for (size_t i = 0; i < files->num_inputs; i++) has_data |= is_data(files->inputs[i].name);
    for (size_t i = 0; i < t->count; i++) {
        const attune_tensor *const info = &t->list[i].info;
        if (files_find(files->inputs, files->num_inputs, info->name))
            given.list[given.count++] = t->list[i];
        else if (has_data && info->is_input && !is_value(info->name)) {
            report_missing(info->name);
            return false;
        }
    }
    return (has_data || tensors_fill(t, INPUT_ORDINARY, r->seed)) && files_load(files, &given);
}

static bool run_mode(attune_context *context, tensors *t, attune_weights_mode mode) {
    attune_kernel *kernel = NULL;
    t->problem.weights_mode = mode;
    const bool ran = attune_compile(context, &t->problem, NULL, &kernel) == ATTUNE_OK &&
                     attune_run(context, kernel, &t->arguments) == ATTUNE_OK;
    if (!ran) tool_library_error(NULL);
    attune_kernel_release(kernel);
    return ran;
}

/* A weight of the batch entry and head by place in `maps`. */
static float weight_at(const maps_request *r, const weight_maps *m, const tensor *weights, size_t i) {
    const int64_t *const strides = weights->info.strides;
    const size_t row = i / m->columns;
    return (float)ref_load(weights->info.dtype, weights->data,
                           r->batch * strides[0] + (int64_t)m->head_numbers[row / m->rows] * strides[1] +
                               (int64_t)(row % m->rows) * strides[2] + (int64_t)(i % m->columns) * strides[3]);
}

static bool take_row_ids(const tensors *t, weight_maps *m) {
    const tensor *const ids = tensors_find(t, "row_ids"), *const q = tensors_find(t, "q");
    if (!ids) return true;
    m->row_ids = malloc(m->rows * sizeof *m->row_ids);
    if (!m->row_ids) {
        tool_error("out of memory for %zu row_ids", m->rows);
        return false;
    }
    memcpy(m->row_ids, ids->data, m->rows * sizeof *m->row_ids);
    m->num_queries = (size_t)q->info.dims[2];
    return true;
}

/* A weight of 0 does not say whether its key is hidden; a score of -infinity does. */
static bool compute(const maps_request *r, tensors *t, attune_context *context, weight_maps *m) {
    const attune_weights_mode mode = t->problem.weights_mode;
    const tensor *const weights = tensors_find(t, "weights");
    if (!run_mode(context, t, mode) || !allocate(r, weights->info.dims, m) || !take_row_ids(t, m)) return false;
    const size_t count = m->heads * m->rows * m->columns;
    for (size_t i = 0; i < count; i++) m->values[i] = weight_at(r, m, weights, i);
    if (mode == ATTUNE_WEIGHTS_SOFTMAX && !run_mode(context, t, ATTUNE_WEIGHTS_MASKED)) return false;
    if (mode == ATTUNE_WEIGHTS_SOFTMAX || mode == ATTUNE_WEIGHTS_MASKED)
        for (size_t i = 0; i < count; i++) m->hidden[i] = weight_at(r, m, weights, i) == -INFINITY;
    set_kind(m, mode == ATTUNE_WEIGHTS_SOFTMAX);
    return true;
}

static bool maps_of_problem(maps_request *r, weight_maps *m) {
    call_sizes sizes = CALL_SIZES_NONE;
    attune_problem problem;
    tensors t = {.count = 0};
    attune_context *context = NULL;
    bool good = false;
    r->files.is_bshd = problem_text_has(r->problem, "layout=bshd");
    if ((!r->sizes || sizes_parse(r->sizes, &sizes)) && files_read(&r->files) &&
        files_complete(&r->files, r->problem, &problem, &sizes) && prepare_problem(r, &problem) &&
        tensors_create_sized(&t, &problem, &sizes) && load_inputs(r, &t) &&
        (context = tool_open_context(&r->common, r->threads, NULL)))
        good = compute(r, &t, context, m);
    attune_context_destroy(context);
    tensors_free(&t);
    files_free(&r->files);
    return good;
}

/* ---- From a file ---- */

static bool take_file(const maps_request *r, const npy_array *array, weight_maps *m) {
    const npy_header *const h = &array->header;
    char text[NPY_SHAPE_TEXT];
    int64_t dims[4] = {1, 1, 1, 1};
    if (h->rank < 2 || h->rank > 4) {
        tool_error("%s: shape %s is not [[batch,] heads,] queries, keys", r->file,
                   npy_print_shape(h->rank, h->shape, text));
        return false;
    }
    memcpy(dims + 4 - h->rank, h->shape, h->rank * sizeof *dims);
    if (!allocate(r, dims, m)) return false;
    const size_t size = m->rows * m->columns;
    bool has_negative = false;
    for (size_t head = 0; head < m->heads; head++)
        for (size_t i = 0; i < size; i++) {
            const size_t from = ((size_t)(r->batch * dims[1]) + m->head_numbers[head]) * size + i;
            const float value = (float)npy_element(array, from);
            m->values[head * size + i] = value;
            has_negative |= value < 0;
        }
    /* Scores say -infinity where a key is hidden. Weights say 0, and softmax almost never gives that otherwise. */
    for (size_t i = 0; i < m->heads * size; i++)
        m->hidden[i] = has_negative ? m->values[i] == -INFINITY : m->values[i] == 0;
    m->is_file = true;
    set_kind(m, !has_negative);
    return true;
}

static bool maps_of_file(const maps_request *r, weight_maps *m) {
    char message[ATTUNE_MESSAGE_BYTES];
    npy_array array;
    if (!npy_read(r->file, &array, message)) {
        tool_error("%s", message);
        return false;
    }
    const bool good = take_file(r, &array, m);
    npy_free(&array);
    return good;
}

bool maps_make(maps_request *r, weight_maps *m) {
    *m = (weight_maps){.heads = 0};
    const bool good = r->file ? maps_of_file(r, m) : maps_of_problem(r, m);
    if (good && r->averages) average(m);
    if (!good) maps_free(m);
    return good;
}
