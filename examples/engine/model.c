/* The weights of a model, its caches, and what is computed for a batch of tokens. */
#include "engine.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- config.json ---- */

static double number(const json_t *config, const char *name, double otherwise) {
    const json_t *value = json_object_get(config, name);
    if (json_is_number(value)) return json_number_value(value);
    if (isnan(otherwise)) die("config.json has no number '%s'", name);
    return otherwise;
}

static int size(const json_t *config, const char *name, double otherwise) {
    const double value = number(config, name, otherwise);
    if (value < 1 || value > 1e7) die("config.json: %s is %g", name, value);
    return (int)value;
}

/* transformers 5 has the rotary embedding's numbers in an object of their own. */
static double read_theta(const json_t *config) {
    const json_t *rope = json_object_get(config, "rope_parameters"); /* NULL, or null: there is none */
    const char *type = json_string_value(json_object_get(rope, "rope_type"));
    if (json_is_object(json_object_get(config, "rope_scaling")) || (type && strcmp(type, "default") != 0))
        die("config.json: the rotary embedding is scaled, which this engine does not do");
    return number(json_is_object(rope) ? rope : config, "rope_theta", 10000);
}

/* A number, a list of them, or null. */
static void read_end_tokens(model *m, const json_t *config) {
    const json_t *given = json_object_get(config, "eos_token_id");
    const size_t one = given && !json_is_null(given), count = json_is_array(given) ? json_array_size(given) : one;
    if (count > MOST_END_TOKENS) die("config.json: %zu eos_token_id; at most %d are taken", count, MOST_END_TOKENS);
    for (size_t i = 0; i < count; i++) {
        const json_t *token = json_is_array(given) ? json_array_get(given, i) : given;
        if (!json_is_integer(token)) die("config.json: an eos_token_id is no whole number");
        m->end_tokens[m->num_end_tokens++] = (int32_t)json_integer_value(token);
    }
}

/* Models of other kinds would get wrong words, not an error. */
static void check_config(const json_t *config) {
    const char *activation = json_string_value(json_object_get(config, "hidden_act"));
    const json_t *window = json_object_get(config, "sliding_window");
    if (activation && strcmp(activation, "silu") != 0)
        die("config.json: hidden_act is '%s'; this engine has silu", activation);
    if (window && !json_is_null(window) && !json_is_false(json_object_get(config, "use_sliding_window")))
        die("config.json: there is a sliding_window, which this engine does not do");
}

static void read_config(model *m, const char *folder) {
    char path[4096];
    json_error_t error;
    snprintf(path, sizeof path, "%s/config.json", folder);
    json_t *config = json_load_file(path, 0, &error);
    if (!config) die("%s: %s", path, error.text);
    check_config(config);
    m->width = size(config, "hidden_size", NAN);
    m->heads = size(config, "num_attention_heads", NAN);
    m->kv_heads = size(config, "num_key_value_heads", m->heads);
    m->head_dim = size(config, "head_dim", (double)m->width / m->heads);
    m->hidden = size(config, "intermediate_size", NAN);
    m->words = size(config, "vocab_size", NAN);
    m->num_layers = size(config, "num_hidden_layers", NAN);
    m->positions = size(config, "max_position_embeddings", 2048);
    m->epsilon = number(config, "rms_norm_eps", 1e-6);
    m->theta = read_theta(config);
    read_end_tokens(m, config);
    json_decref(config);
}

/* ---- model.safetensors ---- */

/* A tensor of `count` floats by its name, as printf makes it; it lies in the mapped file. NULL: there is none. */
static const float *find(const model *m, size_t count, const char *format, ...) __attribute__((format(printf, 3, 4)));
static const float *find(const model *m, size_t count, const char *format, ...) {
    char name[128];
    va_list list;
    va_start(list, format);
    vsnprintf(name, sizeof name, format, list);
    va_end(list);
    const safetensor *one = safetensors_find(&m->file, name);
    if (!one) return NULL;
    if (one->dtype != ATTUNE_F32 || one->bytes != count * sizeof(float) || one->offset % sizeof(float))
        die("'%s' is no tensor of %zu aligned floats", name, count);
    return (const float *)(const void *)(m->file.file + one->offset);
}

static const float *need(const float *found, const char *what, int number) {
    if (!found) die("layer %d has no %s", number, what);
    return found;
}

void model_block(const model *m, attune_problem *problem) {
    *problem = (attune_problem)ATTUNE_PROBLEM_INIT;
    problem->embed_dim = m->width;
    problem->num_heads = m->heads;
    problem->num_kv_heads = m->kv_heads;
    problem->head_dim = problem->rotary_dim = m->head_dim;
    problem->is_causal = problem->has_kv_lens = 1;
    problem->causal_align = ATTUNE_BOTTOM_RIGHT;
    problem->page_size = PAGE;
    problem->seq_q = problem->seq_new = 1;
    problem->seq_kv = ATTUNE_DYNAMIC;
    if (m->layers[0].q_norm) problem->qk_norm_eps = m->epsilon;
}

/* The four matrices of a block become one blob, which prefill and decoding share. */
static void open_attention(model *m, layer *l, int number) {
    static const char *const names[] = {"q", "k", "v", "o"};
    const size_t width = (size_t)m->width, q = (size_t)(m->heads * m->head_dim),
                 kv = (size_t)(m->kv_heads * m->head_dim), outputs[] = {q, kv, kv, q};
    attune_problem problem;
    attune_mha_weights weights;
    model_block(m, &problem);
    check(attune_mha_weights_init(&weights, &problem, ATTUNE_OUT_IN));
    for (int i = 0; i < 4; i++) {
        weights.tensor[ATTUNE_Q_WEIGHT + i].data =
            need(find(m, outputs[i] * width, "model.layers.%d.self_attn.%s_proj.weight", number, names[i]), names[i],
                 number);
        weights.tensor[ATTUNE_Q_BIAS + i].data =
            find(m, i == 3 ? width : outputs[i], "model.layers.%d.self_attn.%s_proj.bias", number, names[i]);
    }
    check(attune_packed_weights_size(&problem, &m->attention_bytes));
    l->attention = allocate(m->attention_bytes);
    check(attune_pack_weights(&problem, &weights, l->attention, m->attention_bytes));
}

static void open_layer(model *m, layer *l, int number) {
    const size_t width = (size_t)m->width, matrix = width * (size_t)m->hidden, dim = (size_t)m->head_dim;
    const size_t cache = (size_t)m->num_pages * (size_t)m->kv_heads * PAGE * dim * sizeof(float);
    l->attention_norm = need(find(m, width, "model.layers.%d.input_layernorm.weight", number), "norm", number);
    l->mlp_norm = need(find(m, width, "model.layers.%d.post_attention_layernorm.weight", number), "norm", number);
    l->q_norm = find(m, dim, "model.layers.%d.self_attn.q_norm.weight", number);
    l->k_norm = find(m, dim, "model.layers.%d.self_attn.k_norm.weight", number);
    if (!l->q_norm != !l->k_norm || !l->q_norm != !m->layers[0].q_norm)
        die("layer %d has q_norm or k_norm without the other, or unlike layer 0", number);
    open_attention(m, l, number);
    l->k = allocate(cache);
    l->v = allocate(cache);
    const float *gate = find(m, matrix, "model.layers.%d.mlp.gate_proj.weight", number);
    const float *up = find(m, matrix, "model.layers.%d.mlp.up_proj.weight", number);
    const float *down = find(m, matrix, "model.layers.%d.mlp.down_proj.weight", number);
    if (!gate || !up || !down) die("layer %d has no MLP", number);
    linear_open(&l->gate_up, LINEAR_SWIGLU, m->width, m->hidden, gate, up);
    linear_open(&l->down, LINEAR_ADD, m->hidden, m->width, down, NULL);
}

/* In f32, as transformers has them. */
static void make_angles(model *m) {
    const int half = m->head_dim / 2;
    m->cos = allocate((size_t)m->positions * (size_t)half * sizeof(float));
    m->sin = allocate((size_t)m->positions * (size_t)half * sizeof(float));
    for (int i = 0; i < half; i++) {
        const float frequency = 1.0f / powf((float)m->theta, (float)(2 * i) / (float)m->head_dim);
        for (int p = 0; p < m->positions; p++) {
            m->cos[(size_t)p * (size_t)half + (size_t)i] = cosf((float)p * frequency);
            m->sin[(size_t)p * (size_t)half + (size_t)i] = sinf((float)p * frequency);
        }
    }
}

void model_open(model *m, const char *folder, int64_t num_pages) {
    char path[4096], message[ATTUNE_MESSAGE_BYTES];
    *m = (model){.num_pages = num_pages};
    read_config(m, folder);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    if (!safetensors_open(path, &m->file, message)) die("%s", message);
    const size_t words = (size_t)m->words * (size_t)m->width;
    m->embedding = find(m, words, "model.embed_tokens.weight");
    m->last_norm = find(m, (size_t)m->width, "model.norm.weight");
    if (!m->embedding || !m->last_norm) die("%s has no embedding, or no last norm", path);
    m->layers = allocate((size_t)m->num_layers * sizeof *m->layers);
    for (int i = 0; i < m->num_layers; i++) open_layer(m, &m->layers[i], i);
    const float *head = find(m, words, "lm_head.weight");
    linear_open(&m->head, LINEAR_STORE, m->width, m->words, head ? head : m->embedding, NULL);
    make_angles(m);
}

void model_close(model *m) {
    for (int i = 0; i < m->num_layers; i++) {
        layer *l = &m->layers[i];
        linear_close(&l->gate_up), linear_close(&l->down);
        free(l->attention), free(l->k), free(l->v);
    }
    linear_close(&m->head);
    free(m->layers), free(m->cos), free(m->sin);
    safetensors_close(&m->file);
}
