/* The image of a model: sizes, packed weights and tables in one file, as a machine that only runs it needs them. */
#include "engine.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char magic[8] = "engine1";

/* What the file begins with. */
typedef struct header {
    char magic[8];
    int32_t width, heads, kv_heads, head_dim, hidden, words, num_layers, positions;
    int32_t num_end_tokens, has_norms;
    int32_t end_tokens[MOST_END_TOKENS];
    double epsilon, theta;
    uint64_t attention_bytes;
} header;

typedef struct image {
    FILE *file;
    const char *path;
    bool is_read;
} image;

static void move(image *i, void *data, size_t bytes) {
    const size_t moved = i->is_read ? fread(data, 1, bytes, i->file) : fwrite(data, 1, bytes, i->file);
    if (moved != bytes) die("%s is %s", i->path, i->is_read ? "too short" : strerror(errno));
}

/* One part: it is written, or allocated and read. */
static void floats(image *i, const float **part, size_t count) {
    if (i->is_read) *part = allocate(count * sizeof **part);
    move(i, (void *)(uintptr_t)*part, count * sizeof **part);
}

static void product(image *i, linear *l, linear_kind kind, int inputs, int outputs) {
    const size_t panels = (size_t)outputs / (kind == LINEAR_SWIGLU ? PANEL / 2 : PANEL);
    const float *packed = l->packed;
    if (i->is_read) *l = (linear){.kind = kind, .inputs = inputs, .outputs = outputs};
    floats(i, &packed, panels * (size_t)inputs * PANEL);
    l->packed = (float *)(uintptr_t)packed;
}

static void move_layer(image *i, const model *m, layer *l, bool has_norms) {
    const size_t width = (size_t)m->width, dim = (size_t)m->head_dim;
    floats(i, &l->attention_norm, width);
    floats(i, &l->mlp_norm, width);
    if (has_norms) floats(i, &l->q_norm, dim);
    if (has_norms) floats(i, &l->k_norm, dim);
    if (i->is_read) l->attention = allocate(m->attention_bytes);
    move(i, l->attention, m->attention_bytes);
    product(i, &l->gate_up, LINEAR_SWIGLU, m->width, m->hidden);
    product(i, &l->down, LINEAR_ADD, m->hidden, m->width);
}

/* All parts, in the order of the file. */
static void move_parts(image *i, model *m, bool has_norms) {
    const size_t angles = (size_t)m->positions * (size_t)(m->head_dim / 2);
    const float *cos = m->cos, *sin = m->sin;
    floats(i, &m->embedding, (size_t)m->words * (size_t)m->width);
    floats(i, &m->last_norm, (size_t)m->width);
    for (int n = 0; n < m->num_layers; n++) move_layer(i, m, &m->layers[n], has_norms);
    product(i, &m->head, LINEAR_STORE, m->width, m->words);
    floats(i, &cos, angles);
    floats(i, &sin, angles);
    m->cos = (float *)(uintptr_t)cos, m->sin = (float *)(uintptr_t)sin;
}

static void open_image(image *i, const char *path, const char *mode) {
    *i = (image){fopen(path, mode), path, *mode == 'r'};
    if (!i->file) die("%s: %s", path, strerror(errno));
}

void model_save(model *m, const char *path) {
    image i;
    header h = {.width = m->width, .heads = m->heads, .kv_heads = m->kv_heads, .head_dim = m->head_dim};
    h.hidden = m->hidden, h.words = m->words, h.num_layers = m->num_layers, h.positions = m->positions;
    h.num_end_tokens = m->num_end_tokens, h.has_norms = m->layers[0].q_norm != NULL;
    h.epsilon = m->epsilon, h.theta = m->theta, h.attention_bytes = m->attention_bytes;
    memcpy(h.magic, magic, sizeof magic);
    memcpy(h.end_tokens, m->end_tokens, sizeof h.end_tokens);
    open_image(&i, path, "wb");
    move(&i, &h, sizeof h);
    move_parts(&i, m, h.has_norms);
    if (fclose(i.file)) die("%s: %s", path, strerror(errno));
}

static void check_header(const header *h, const char *path) {
    const int32_t sizes[] = {h->width,  h->heads, h->kv_heads,   h->head_dim,
                             h->hidden, h->words, h->num_layers, h->positions};
    if (memcmp(h->magic, magic, sizeof magic)) die("%s is no image of a model, as --save writes it", path);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] < 1 || sizes[i] > 10000000) die("%s: a size is %d", path, sizes[i]);
    if (h->num_end_tokens < 0 || h->num_end_tokens > MOST_END_TOKENS || h->attention_bytes > SIZE_MAX / 2)
        die("%s: a number is out of range", path);
}

void model_load(model *m, const char *path, int64_t num_pages) {
    image i;
    header h;
    open_image(&i, path, "rb");
    move(&i, &h, sizeof h);
    check_header(&h, path);
    *m = (model){.width = h.width, .heads = h.heads, .kv_heads = h.kv_heads, .head_dim = h.head_dim};
    m->hidden = h.hidden, m->words = h.words, m->num_layers = h.num_layers, m->positions = h.positions;
    m->num_end_tokens = h.num_end_tokens, m->epsilon = h.epsilon, m->theta = h.theta;
    m->attention_bytes = h.attention_bytes, m->num_pages = num_pages;
    memcpy(m->end_tokens, h.end_tokens, sizeof m->end_tokens);
    m->layers = allocate((size_t)m->num_layers * sizeof *m->layers);
    move_parts(&i, m, h.has_norms);
    fclose(i.file);
    const size_t cache = (size_t)num_pages * (size_t)m->kv_heads * PAGE * (size_t)m->head_dim * sizeof(float);
    for (int n = 0; n < m->num_layers; n++) {
        m->layers[n].k = allocate(cache);
        m->layers[n].v = allocate(cache);
    }
}

bool model_ends(const model *m, int32_t token) {
    for (int i = 0; i < m->num_end_tokens; i++)
        if (m->end_tokens[i] == token) return true;
    return false;
}
