/* Reading a conformance case, and comparing results with it. */
#define _GNU_SOURCE
#include "conform/conform_case.h"

#include "common/input.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- What the operators have ---- */

typedef struct attribute_rule {
    const char *name;
    bool is_real;
    int64_t low, high, standard; /* of whole numbers */
    const char *const *words;    /* high + 1 of them, if it is a text; else NULL */
} attribute_rule;

typedef struct op_rule {
    const char *name;
    int required_inputs; /* the first ones */
    const char *inputs[CONFORM_MAX_INPUTS], *outputs[CONFORM_MAX_OUTPUTS];
    attribute_rule attributes[CONFORM_MAX_ATTRIBUTES];
} op_rule;

/* In the order of attune_linear_rule. */
static const char *const update_rules[] = {"linear", "gated", "delta", "gated_delta"};

static const op_rule rules[CONFORM_OP_COUNT] = {
    [CONFORM_ATTENTION] = {"Attention",
                           3,
                           {"Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"},
                           {"Y", "present_key", "present_value", "qk_matmul_output"},
                           {[ATTENTION_IS_CAUSAL] = {"is_causal", false, 0, 1, 0, NULL},
                            [ATTENTION_KV_NUM_HEADS] = {"kv_num_heads", false, 1, INT32_MAX, 0, NULL},
                            [ATTENTION_Q_NUM_HEADS] = {"q_num_heads", false, 1, INT32_MAX, 0, NULL},
                            [ATTENTION_QK_MATMUL_MODE] = {"qk_matmul_output_mode", false, 0, 3, 0, NULL},
                            [ATTENTION_SCALE] = {"scale", true, 0, 0, 0, NULL},
                            [ATTENTION_SOFTCAP] = {"softcap", true, 0, 0, 0, NULL},
                            [ATTENTION_SOFTMAX_PRECISION] = {"softmax_precision", false, 1, 16, 0, NULL},
                            [ATTENTION_LEFT_WINDOW] = {"left_window_size", false, -1, INT64_MAX, -1, NULL},
                            [ATTENTION_RIGHT_WINDOW] = {"right_window_size", false, -1, INT64_MAX, -1, NULL}}},
    [CONFORM_ROTARY_EMBEDDING] = {"RotaryEmbedding",
                                  3,
                                  {"X", "cos_cache", "sin_cache", "position_ids"},
                                  {"Y"},
                                  {[ROTARY_INTERLEAVED] = {"interleaved", false, 0, 1, 0, NULL},
                                   [ROTARY_NUM_HEADS] = {"num_heads", false, 1, INT32_MAX, 0, NULL},
                                   [ROTARY_DIM] = {"rotary_embedding_dim", false, 0, INT32_MAX, 0, NULL}}},
    [CONFORM_LINEAR_ATTENTION] = {"LinearAttention",
                                  3,
                                  {"query", "key", "value", "past_state", "decay", "beta"},
                                  {"output", "present_state"},
                                  {[LINEAR_Q_NUM_HEADS] = {"q_num_heads", false, 1, INT32_MAX, 0, NULL},
                                   [LINEAR_KV_NUM_HEADS] = {"kv_num_heads", false, 1, INT32_MAX, 0, NULL},
                                   [LINEAR_SCALE] = {"scale", true, 0, 0, 0, NULL},
                                   [LINEAR_UPDATE_RULE] = {"update_rule", false, 0, ATTUNE_GATED_DELTA,
                                                           ATTUNE_GATED_DELTA, update_rules},
                                   [LINEAR_CHUNK_SIZE] = {"chunk_size", false, 1, INT32_MAX, 64, NULL}}}, /* a hint */
    [CONFORM_PROBLEM] = {"Problem", 0, {NULL}, {"out", "lse", "weights"}, {{NULL, false, 0, 0, 0, NULL}}},
};

const char *conform_input_name(const conform_case *c, int input) {
    return c->op == CONFORM_PROBLEM ? c->input_names[input] : rules[c->op].inputs[input];
}
const char *conform_output_name(conform_op op, int output) { return rules[op].outputs[output]; }

/* ---- Reading ---- */

typedef struct reader {
    conform_case *c;
    const char *folder; /* ends in a slash, or is empty */
    char *message;
} reader;

__attribute__((format(printf, 2, 3))) static bool fail(const reader *r, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(r->message, ATTUNE_MESSAGE_BYTES, format, list);
    va_end(list);
    return false;
}

static bool read_op(const reader *r, const json_t *root) {
    const json_t *const op = json_object_get(root, "op");
    if (!json_is_string(op)) return fail(r, "case.json has no \"op\" that is a text");
    for (int i = 0; i < CONFORM_OP_COUNT; i++)
        if (strcmp(json_string_value(op), rules[i].name) == 0) {
            r->c->op = (conform_op)i;
            return true;
        }
    return fail(r, "the operator '%.100s' is not known; Attention, RotaryEmbedding, LinearAttention and Problem are",
                json_string_value(op));
}

static bool read_word(const reader *r, const attribute_rule *rule, const json_t *value, int64_t *number) {
    if (!json_is_string(value)) return fail(r, "attribute %s is no text", rule->name);
    for (*number = rule->low; *number <= rule->high; ++*number)
        if (strcmp(json_string_value(value), rule->words[*number]) == 0) return true;
    return fail(r, "attribute %s is '%.100s', which it cannot be", rule->name, json_string_value(value));
}

static bool read_attribute(const reader *r, const char *name, const json_t *value) {
    const op_rule *const op = &rules[r->c->op];
    int i = 0;
    while (i < CONFORM_MAX_ATTRIBUTES && (!op->attributes[i].name || strcmp(name, op->attributes[i].name) != 0)) i++;
    if (i == CONFORM_MAX_ATTRIBUTES) return fail(r, "%s has no attribute '%.100s'", op->name, name);
    const attribute_rule *const rule = &op->attributes[i];
    conform_attribute *const attribute = &r->c->attributes[i];
    attribute->is_given = true;
    if (rule->words) return read_word(r, rule, value, &attribute->integer);
    if (rule->is_real) {
        if (!json_is_number(value)) return fail(r, "attribute %s is no number", name);
        attribute->real = json_number_value(value);
        return true;
    }
    if (!json_is_integer(value)) return fail(r, "attribute %s is no whole number", name);
    attribute->integer = json_integer_value(value);
    if (attribute->integer >= rule->low && attribute->integer <= rule->high) return true;
    return fail(r, "attribute %s is %lld; it must be from %lld to %lld", name, (long long)attribute->integer,
                (long long)rule->low, (long long)rule->high);
}

static bool read_attributes(const reader *r, json_t *root) {
    const op_rule *const op = &rules[r->c->op];
    for (int i = 0; i < CONFORM_MAX_ATTRIBUTES; i++) r->c->attributes[i].integer = op->attributes[i].standard;
    json_t *const attributes = json_object_get(root, "attributes");
    if (!json_is_object(attributes)) return fail(r, "case.json has no \"attributes\" that is an object");
    const char *name;
    json_t *value;
    json_object_foreach(attributes, name, value) if (!read_attribute(r, name, value)) return false;
    return true;
}

/* The folder is the case's name, which stands before the message already. */
static void cut_folder(const reader *r) {
    const size_t length = strlen(r->folder);
    if (strncmp(r->message, r->folder, length) == 0)
        memmove(r->message, r->message + length, strlen(r->message + length) + 1);
}

static bool read_array(const reader *r, const char *what, const char *name, const json_t *file, npy_array *array) {
    if (!json_is_string(file)) return fail(r, "%s %s names no file", what, name);
    char *path = NULL;
    if (asprintf(&path, "%s%s", r->folder, json_string_value(file)) < 0) return fail(r, "out of memory");
    const bool is_read = npy_read(path, array, r->message);
    free(path);
    if (!is_read) cut_folder(r);
    return is_read;
}

/* The arrays that an object of the case names, each to its place among `names`. */
static bool read_arrays(const reader *r, json_t *root, const char *key, const char *const *names, int count,
                        npy_array *arrays) {
    const char *const op = rules[r->c->op].name;
    json_t *const files = json_object_get(root, key);
    if (!json_is_object(files)) return fail(r, "case.json has no \"%s\" that is an object", key);
    const char *name;
    json_t *file;
    json_object_foreach(files, name, file) {
        int i = 0;
        while (i < count && (!names[i] || strcmp(name, names[i]) != 0)) i++;
        if (i == count) return fail(r, "%s has no '%.100s' among its %s", op, name, key);
        if (!read_array(r, key, name, file, &arrays[i])) return false;
    }
    return true;
}

/* Inputs of a problem have the names of its tensors, whatever those are: in the order of the file. */
static bool read_problem(const reader *r, json_t *root) {
    const json_t *const text = json_object_get(root, "problem");
    json_t *const files = json_object_get(root, "inputs");
    if (!json_is_string(text)) return fail(r, "case.json has no \"problem\" that is a text");
    if (!json_is_object(files)) return fail(r, "case.json has no \"inputs\" that is an object");
    r->c->problem = strdup(json_string_value(text));
    if (!r->c->problem) return fail(r, "out of memory");
    const char *name;
    json_t *file;
    int i = 0;
    json_object_foreach(files, name, file) {
        if (i == CONFORM_MAX_INPUTS) return fail(r, "the case has more than %d inputs", CONFORM_MAX_INPUTS);
        r->c->input_names[i] = strdup(name);
        if (!r->c->input_names[i]) return fail(r, "out of memory");
        if (!read_array(r, "inputs", name, file, &r->c->inputs[i++])) return false;
    }
    return true;
}

static bool read_inputs(const reader *r, json_t *root) {
    const op_rule *const op = &rules[r->c->op];
    if (r->c->op == CONFORM_PROBLEM) return read_problem(r, root);
    return read_arrays(r, root, "inputs", op->inputs, CONFORM_MAX_INPUTS, r->c->inputs);
}

static bool read_tolerance(const reader *r, const json_t *root, const char *name, double *value) {
    const json_t *const number = json_object_get(root, name);
    if (!json_is_number(number) || !(json_number_value(number) >= 0))
        return fail(r, "case.json has no \"%s\" that is a number from 0 on", name);
    *value = json_number_value(number);
    return true;
}

static bool read_case(const reader *r, json_t *root) {
    conform_case *const c = r->c;
    if (!json_is_object(root)) return fail(r, "case.json is no JSON object");
    if (!read_op(r, root) || !read_attributes(r, root)) return false;
    const op_rule *const op = &rules[c->op];
    if (!read_tolerance(r, root, "rtol", &c->rtol) || !read_tolerance(r, root, "atol", &c->atol) ||
        !read_inputs(r, root) || !read_arrays(r, root, "outputs", op->outputs, CONFORM_MAX_OUTPUTS, c->expected))
        return false;
    for (int i = 0; i < op->required_inputs; i++)
        if (!c->inputs[i].data) return fail(r, "%s lacks its input %s", op->name, op->inputs[i]);
    for (int i = 0; i < CONFORM_MAX_OUTPUTS; i++)
        if (c->expected[i].data) return true;
    return fail(r, "the case expects no output, so it tests nothing");
}

bool conform_case_read(const char *json_path, conform_case *c, char message[ATTUNE_MESSAGE_BYTES]) {
    enum { MOST_BYTES = 1 << 20 };
    const char *const slash = strrchr(json_path, '/');
    char *const folder = strndup(json_path, slash ? (size_t)(slash - json_path) + 1 : 0);
    const reader r = {c, folder, message};
    *c = (conform_case){0};
    if (!folder) return fail(&r, "out of memory");
    json_error_t error;
    size_t bytes = 0;
    char *const text = tool_read_text(json_path, "cases", MOST_BYTES, &bytes, message);
    json_t *const root = text ? json_loadb(text, bytes, JSON_REJECT_DUPLICATES, &error) : NULL;
    const bool is_read = root ? read_case(&r, root) : text && fail(&r, "case.json line %d: %s", error.line, error.text);
    if (!text) cut_folder(&r);
    json_decref(root);
    free(text);
    free(folder);
    return is_read;
}

void conform_case_free(conform_case *c) {
    for (int i = 0; i < CONFORM_MAX_INPUTS; i++) {
        npy_free(&c->inputs[i]);
        free(c->input_names[i]);
    }
    free(c->problem);
    for (int i = 0; i < CONFORM_MAX_OUTPUTS; i++) npy_free(&c->expected[i]);
}

/* ---- Comparing ---- */

/* An element's error as a multiple of the tolerance; 0 within it. */
static double excess(double found, double wanted, double rtol, double atol) {
    if (found == wanted || (isnan(found) && isnan(wanted))) return 0;
    if (!isfinite(found) || !isfinite(wanted)) return INFINITY;
    const double error = fabs(found - wanted), tolerated = atol + rtol * fabs(wanted);
    return error <= tolerated ? 0 : tolerated > 0 ? error / tolerated : INFINITY;
}

/* "[1, 0, 3]" of the element at `index`; nothing for a scalar. */
static void print_index(const npy_header *h, size_t index, char text[NPY_SHAPE_TEXT]) {
    int64_t at[NPY_MAX_RANK];
    for (size_t i = h->rank; i-- > 0; index /= (size_t)h->shape[i]) at[i] = (int64_t)(index % (size_t)h->shape[i]);
    size_t length = 0;
    text[0] = 0;
    for (size_t i = 0; i < h->rank; i++)
        length += (size_t)snprintf(text + length, NPY_SHAPE_TEXT - length, "%s%lld%s", i ? ", " : "[", (long long)at[i],
                                   i + 1 == h->rank ? "]" : "");
}

typedef struct tolerance {
    double relative, absolute;
} tolerance;

static double largest_finite(const npy_array *a) {
    double largest = 0;
    for (size_t i = 0; i < a->header.count; i++) {
        const double magnitude = fabs(npy_element(a, i));
        if (isfinite(magnitude) && magnitude > largest) largest = magnitude;
    }
    return largest;
}

/* A result in bfloat16 is right within two steps of that type: ONNX's reference rounds to it after every operation,
 * down to each addition of the softmax, so that its outputs are off by as much themselves. Sums that come out near zero
 * are off by a step of their terms: a mean of values as large as the largest output, say. Keys and values of a cache
 * are copied. */
static tolerance tolerance_of(const conform_case *c, int output) {
    const npy_array *const wanted = &c->expected[output];
    const bool is_copy =
        c->op == CONFORM_ATTENTION && (output == ATTENTION_PRESENT_KEY || output == ATTENTION_PRESENT_VALUE);
    if (wanted->header.type != NPY_V2 || is_copy) return (tolerance){c->rtol, c->atol};
    return (tolerance){fmax(c->rtol, 0x1p-6), fmax(c->atol, 0x1p-9 * largest_finite(wanted))};
}

static bool compare_output(const conform_case *c, int output, const npy_array *found,
                           char message[ATTUNE_MESSAGE_BYTES]) {
    const npy_array *const wanted = &c->expected[output];
    const npy_header *const w = &wanted->header, *const f = &found->header;
    const char *const name = conform_output_name(c->op, output);
    const tolerance t = tolerance_of(c, output);
    char text[NPY_SHAPE_TEXT], other[NPY_SHAPE_TEXT];
    if (w->type != f->type || w->rank != f->rank || memcmp(w->shape, f->shape, w->rank * sizeof *w->shape) != 0) {
        snprintf(message, ATTUNE_MESSAGE_BYTES, "%s: wanted %s of shape %s, found %s of shape %s", name,
                 npy_type_name(w->type), npy_print_shape(w->rank, w->shape, text), npy_type_name(f->type),
                 npy_print_shape(f->rank, f->shape, other));
        return false;
    }
    size_t wrong = 0, worst = 0;
    double most = 0;
    for (size_t i = 0; i < w->count; i++) {
        const double off = excess(npy_element(found, i), npy_element(wanted, i), t.relative, t.absolute);
        if (off > 0) wrong++;
        if (off > most) most = off, worst = i;
    }
    if (!wrong) return true;
    print_index(w, worst, text);
    snprintf(message, ATTUNE_MESSAGE_BYTES,
             "%s%s: wanted %.9g, found %.9g, and %zu of %zu elements are beyond rtol %g and atol %g", name, text,
             npy_element(wanted, worst), npy_element(found, worst), wrong, w->count, t.relative, t.absolute);
    return false;
}

bool conform_compare(const conform_case *c, const npy_array computed[CONFORM_MAX_OUTPUTS],
                     char message[ATTUNE_MESSAGE_BYTES]) {
    for (int i = 0; i < CONFORM_MAX_OUTPUTS; i++)
        if (c->expected[i].data && !compare_output(c, i, &computed[i], message)) return false;
    return true;
}
