#include "ggml_host.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

fake_ggml fake;

/* ---- Functions that the plug-in finds by name ---- */

#pragma GCC visibility push(default)
const char *ggml_version(void);
const char *ggml_op_name(int op);
const char *ggml_type_name(int type);
void ggml_log_internal(int level, const char *format, ...);
bool ggml_backend_buft_is_host(ggml_buffer_type *type);
ggml_buffer_type *ggml_backend_cpu_buffer_type(void);
ggml_buffer_type *ggml_backend_buffer_get_type(void *buffer);
void *ggml_backend_buffer_get_base(void *buffer);
size_t ggml_backend_buffer_get_size(void *buffer);
ggml_backend *ggml_backend_init_by_type(int type, const char *params);
void ggml_backend_free(ggml_backend *backend);
int ggml_backend_graph_compute(ggml_backend *backend, ggml_graph *graph);
ggml_device *ggml_backend_get_device(ggml_backend *backend);
ggml_reg *ggml_backend_dev_backend_reg(ggml_device *device);
void *ggml_backend_reg_get_proc_address(ggml_reg *reg, const char *name);
#pragma GCC visibility pop

const char *ggml_version(void) { return fake.version; }

const char *ggml_op_name(int op) {
    static const char *const names[] = {"NONE",    "PERMUTE",   "ADD",      "VIEW",
                                        "RESHAPE", "TRANSPOSE", "SOFT_MAX", "FLASH_ATTN_EXT"};
    return names[op]; /* as ggml: whoever asks for more reads beyond the end */
}

const char *ggml_type_name(int type) {
    static const char *const names[] = {"f16", "iq4_nl", "q4_1", "f32", "bf16", "q5_1", "q4_0", "q5_0", NULL, "q8_0"};
    return names[type];
}

void ggml_log_internal(int level, const char *format, ...) {
    const size_t length = strlen(fake.log);
    va_list list;
    (void)level;
    va_start(list, format);
    vsnprintf(fake.log + length, sizeof fake.log - length, format, list);
    va_end(list);
}

static char cpu_memory;
bool ggml_backend_buft_is_host(ggml_buffer_type *type) { return (char *)type == &cpu_memory; }
ggml_buffer_type *ggml_backend_cpu_buffer_type(void) { return (ggml_buffer_type *)&cpu_memory; }

ggml_buffer_type *ggml_backend_buffer_get_type(void *buffer) {
    return ((const fake_buffer *)buffer)->is_foreign ? NULL : ggml_backend_cpu_buffer_type();
}
void *ggml_backend_buffer_get_base(void *buffer) { return ((const fake_buffer *)buffer)->base; }
size_t ggml_backend_buffer_get_size(void *buffer) { return ((const fake_buffer *)buffer)->size; }

static ggml_reg cpu_reg;
static ggml_device cpu_device = {.reg = &cpu_reg};

ggml_backend *ggml_backend_init_by_type(int type, const char *params) {
    (void)params;
    ggml_backend *const backend = type == GGML_ABI_CPU ? calloc(1, sizeof *backend) : NULL;
    if (backend) backend->device = &cpu_device, fake.live_backends++;
    return backend;
}

void ggml_backend_free(ggml_backend *backend) {
    fake.live_backends--;
    free(backend);
}

ggml_device *ggml_backend_get_device(ggml_backend *backend) { return backend->device; }
ggml_reg *ggml_backend_dev_backend_reg(ggml_device *device) { return device->reg; }

static void set_cpu_threads(ggml_backend *backend, int n) { (void)backend, fake.cpu_threads = n; }
static void set_cpu_abort(ggml_backend *backend, ggml_abort_callback *callback, void *data) {
    (void)backend, (void)data;
    fake.cpu_abort = callback;
}

void *ggml_backend_reg_get_proc_address(ggml_reg *reg, const char *name) {
    ggml_set_n_threads *const threads = set_cpu_threads;
    ggml_set_abort_callback *const abort_callback = set_cpu_abort;
    void *found = NULL;
    if (reg != &cpu_reg) return NULL;
    if (!strcmp(name, "ggml_backend_set_n_threads")) memcpy(&found, &threads, sizeof found);
    if (!strcmp(name, "ggml_backend_set_abort_callback")) memcpy(&found, &abort_callback, sizeof found);
    return found;
}

int ggml_backend_graph_compute(ggml_backend *backend, ggml_graph *graph) {
    if (backend->device != &cpu_device) return GGML_ABI_FAILED;
    for (int i = 0; i < graph->n_nodes; i++, fake.cpu_nodes++)
        if (graph->nodes[i]->op == OP_FLASH_ATTN_EXT) reference(graph->nodes[i], graph->nodes[i]->data);
    return GGML_ABI_SUCCESS;
}

void fake_reset(void) { fake = (fake_ggml){.version = "0.25.3"}; }

/* ---- Numbers ---- */

double number_of_f16(uint16_t bits) {
    const int exponent = bits >> 10 & 31, fraction = bits & 1023;
    const double magnitude = exponent == 31 ? (fraction ? (double)NAN : (double)INFINITY)
                             : exponent     ? ldexp(1024 + fraction, exponent - 25)
                                            : ldexp(fraction, -24);
    return bits & 0x8000 ? -magnitude : magnitude;
}

uint16_t f16_of(double number) {
    const uint16_t sign = signbit(number) ? 0x8000 : 0;
    int exponent;
    if (number == 0) return sign;
    const double fraction = frexp(fabs(number), &exponent);
    if (exponent < -13) return (uint16_t)(sign + (uint16_t)nearbyint(ldexp(fraction, exponent + 24)));
    return (uint16_t)(sign + ((exponent + 14) << 10) + (int)nearbyint(ldexp(fraction, 11)) - 1024);
}

typedef struct block {
    int columns, bytes, values, minimum; /* where values begin; bytes 2 and 3 are a minimum */
} block;

static block block_of(int type) {
    switch (type) {
    case F32: return (block){1, 4, 0, 0};
    case Q8_0: return (block){32, 34, 2, 0};
    case Q4_0:
    case IQ4_NL: return (block){32, 18, 2, 0};
    case Q4_1: return (block){32, 20, 4, 1};
    case Q5_0: return (block){32, 22, 6, 0};
    case Q5_1: return (block){32, 24, 8, 1};
    default: return (block){1, 2, 0, 0};
    }
}

static double quantised(int type, const uint8_t *b, int column) {
    static const int table[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    const block f = block_of(type);
    uint16_t scale, least = 0;
    memcpy(&scale, b, 2);
    if (f.minimum) memcpy(&least, b + 2, 2);
    const double s = number_of_f16(scale), m = number_of_f16(least);
    if (type == Q8_0) return s * (int8_t)b[2 + column];
    const int half = column < 16 ? b[f.values + column] & 15 : b[f.values + column - 16] >> 4;
    const int fifth = f.values > 5 ? b[f.values - 4 + column / 8] >> column % 8 & 1 : 0;
    switch (type) {
    case Q4_0: return s * (half - 8);
    case IQ4_NL: return s * table[half];
    case Q5_0: return s * (half + 16 * fifth - 16);
    default: return s * (half + 16 * fifth) + m;
    }
}

static double element(int type, const char *row, int64_t column) {
    const block f = block_of(type);
    const char *const b = row + column / f.columns * f.bytes;
    uint16_t half;
    uint32_t word;
    float number;
    if (f.columns > 1) return quantised(type, (const uint8_t *)b, (int)(column % f.columns));
    memcpy(&half, b, 2);
    if (type == F16) return number_of_f16(half);
    if (type == F32)
        memcpy(&word, b, 4);
    else
        word = (uint32_t)half << 16;
    memcpy(&number, &word, 4);
    return number;
}

/* ---- Tensors ---- */

static uint64_t seed;

static uint32_t draw(void) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33);
}

static void fill_row(int type, char *row, int64_t columns) {
    const block f = block_of(type);
    for (int64_t j = 0; j < columns; j += f.columns, row += f.bytes) {
        const float number = (float)((double)draw() / 0x1p31 * 2 - 1);
        const uint16_t half = f16_of(number), scale = f16_of(type == Q8_0 || type == IQ4_NL ? 0x1p-7 : 0x1p-4),
                       least = f16_of(-0.75);
        uint32_t word;
        memcpy(&word, &number, 4);
        word >>= 16;
        for (int i = 0; i < f.bytes; i++) row[i] = (char)draw();
        if (f.columns > 1) memcpy(row, &scale, 2);
        if (f.minimum) memcpy(row + 2, &least, 2);
        if (type == F32) memcpy(row, &number, 4);
        if (type == F16) memcpy(row, &half, 2);
        if (type == BF16) memcpy(row, &word, 2);
    }
}

static void spoil_row(int type, char *row, int64_t columns) {
    const block f = block_of(type);
    const uint16_t nan = type == BF16 ? 0x7fc0 : 0x7e00;
    const float wide = NAN;
    for (int64_t j = 0; j < columns; j += f.columns, row += f.bytes) {
        if (type == F32)
            memcpy(row, &wide, 4);
        else
            memcpy(row, &nan, 2);
        if (f.minimum) memcpy(row + 2, &nan, 2);
    }
}

/* Dims in the order in which they lie; `order` has which of ne each one is. */
static ggml_tensor *make_tensor(int type, const int64_t ne[4], const int order[4]) {
    const block f = block_of(type);
    ggml_tensor *const t = calloc(1, sizeof *t);
    size_t bytes = (size_t)f.bytes;
    t->type = type;
    for (int i = 0; i < 4; i++) {
        const int d = order[i];
        t->ne[d] = ne[d];
        t->nb[d] = bytes;
        bytes *= (size_t)(d ? ne[d] : ne[d] / f.columns);
    }
    t->data = malloc(bytes);
    memset(t->data, 0xff, bytes); /* NaN, of whatever type */
    return t;
}

static char *row_of(const ggml_tensor *t, int64_t i1, int64_t i2, int64_t i3) {
    return (char *)t->data + (size_t)i1 * t->nb[1] + (size_t)i2 * t->nb[2] + (size_t)i3 * t->nb[3];
}

static void fill(ggml_tensor *t) {
    for (int64_t i3 = 0; i3 < t->ne[3]; i3++)
        for (int64_t i2 = 0; i2 < t->ne[2]; i2++)
            for (int64_t i1 = 0; i1 < t->ne[1]; i1++) fill_row(t->type, row_of(t, i1, i2, i3), t->ne[0]);
}

static bool is_seen(const fake_case *c, int64_t stream, int64_t row, int64_t key) {
    return !c->sees || c->sees(c, stream, row, key);
}

static void spoil_unseen(const fake_case *c, ggml_tensor *t) {
    for (int64_t s = 0; s < t->ne[3]; s++)
        for (int64_t key = 0; key < t->ne[1]; key++) {
            bool seen = false;
            for (int64_t row = 0; row < c->rows && !seen; row++) seen = is_seen(c, s, row, key);
            for (int64_t h = 0; h < t->ne[2] && !seen; h++) spoil_row(t->type, row_of(t, key, h, s), t->ne[0]);
        }
}

static ggml_tensor *make_mask(const fake_case *c) {
    const int order[] = {0, 1, 2, 3};
    const int64_t ne[] = {c->keys, c->mask_rows ? c->mask_rows : c->rows, c->is_mask_of_heads ? c->heads : 1,
                          c->is_one_mask ? 1 : c->streams};
    ggml_tensor *const t = make_tensor(F16, ne, order);
    for (int64_t s = 0; s < ne[3]; s++)
        for (int64_t h = 0; h < ne[2]; h++)
            for (int64_t row = 0; row < ne[1]; row++)
                for (int64_t key = 0; key < ne[0]; key++) {
                    uint16_t x = 0x7e00;
                    if (row < c->rows) x = !is_seen(c, s, row, key) ? 0xfc00 : c->bias ? c->bias(c, h, row, key) : 0;
                    memcpy(row_of(t, row, h, s) + 2 * key, &x, 2);
                }
    return t;
}

ggml_tensor *make_node(const fake_case *given) {
    fake_case c = *given;
    const int by_token[] = {0, 2, 1, 3}, by_number[] = {0, 1, 2, 3};
    int64_t *const sizes[] = {&c.streams, &c.heads, &c.kv_heads, &c.rows, &c.keys, &c.dim};
    for (int i = 0; i < 6; i++)
        if (!*sizes[i]) *sizes[i] = 1;
    if (!c.dim_v) c.dim_v = c.dim;
    ggml_tensor *const node = make_tensor(F32, (int64_t[]){c.dim_v, c.heads, c.rows, c.streams}, by_number);
    seed = 1;
    node->op = OP_FLASH_ATTN_EXT;
    node->flags = GGML_ABI_COMPUTE;
    snprintf(node->name, sizeof node->name, "node");
    node->src[0] = make_tensor(F32, (int64_t[]){c.dim, c.rows, c.heads, c.streams}, by_token);
    node->src[1] = make_tensor(c.k_type, (int64_t[]){c.dim, c.keys, c.kv_heads, c.streams}, by_token);
    node->src[2] = make_tensor(c.v_type, (int64_t[]){c.dim_v, c.keys, c.kv_heads, c.streams}, by_token);
    for (int i = 0; i < 3; i++) fill(node->src[i]);
    for (int i = 1; i < 3; i++) spoil_unseen(&c, node->src[i]);
    if (c.v_in_k) {
        free(node->src[2]->data);
        node->src[2]->data = node->src[1]->data;
        memcpy(node->src[2]->nb, node->src[1]->nb, sizeof node->src[2]->nb);
        node->src[2]->view_src = node->src[1];
    }
    if (!c.has_no_mask) node->src[3] = make_mask(&c);
    if (c.has_sinks) fill(node->src[4] = make_tensor(F32, (int64_t[]){c.heads, 1, 1, 1}, by_number));
    const float numbers[] = {1 / sqrtf((float)c.dim), c.max_bias, c.soft_cap};
    memcpy(node->op_params, numbers, sizeof numbers);
    return node;
}

void free_node(ggml_tensor *node) {
    for (int i = 0; i < GGML_ABI_SOURCES; i++) {
        if (!node->src[i]) continue;
        if (!node->src[i]->view_src) free(node->src[i]->data);
        free(node->src[i]);
    }
    free(node->data);
    free(node);
}

/* ---- The operator ---- */

static double slope_of(int64_t head, int64_t heads, double max_bias) {
    const double power = exp2(floor(log2((double)heads)));
    if ((double)head < power) return pow(exp2(-max_bias / power), (double)head + 1);
    return pow(exp2(-max_bias / 2 / power), 2 * ((double)head - power) + 1);
}

static void attend_row(const ggml_tensor *node, int64_t s, int64_t h, int64_t row, const float p[3], float *out) {
    const ggml_tensor *const q = node->src[0], *const k = node->src[1], *const v = node->src[2];
    const ggml_tensor *const mask = node->src[3], *const sinks = node->src[4];
    const int64_t kv_head = h / (q->ne[2] / k->ne[2]), keys = k->ne[1];
    const char *const mask_row = mask ? row_of(mask, row, h % mask->ne[2], s % mask->ne[3]) : NULL;
    double *const score = malloc((size_t)keys * sizeof *score);
    double most = sinks ? element(F32, sinks->data, h) : (double)-INFINITY, sum = 0;
    for (int64_t j = 0; j < keys; j++) {
        const double m = mask ? element(F16, mask_row, j) : 0;
        double x = 0;
        score[j] = (double)-INFINITY;
        if (m == (double)-INFINITY) continue;
        for (int64_t d = 0; d < q->ne[0]; d++)
            x += element(F32, row_of(q, row, h, s), d) * element(k->type, row_of(k, j, kv_head, s), d);
        x *= p[0];
        if (p[2] > 0) x = p[2] * tanh(x / p[2]);
        score[j] = x + (p[1] > 0 ? slope_of(h, q->ne[2], p[1]) : 1) * m;
        most = fmax(most, score[j]);
    }
    for (int64_t j = 0; j < keys; j++) sum += score[j] == (double)-INFINITY ? 0 : exp(score[j] - most);
    if (sinks) sum += exp(element(F32, sinks->data, h) - most);
    for (int64_t d = 0; d < v->ne[0]; d++) {
        double x = 0;
        for (int64_t j = 0; j < keys; j++)
            if (score[j] != (double)-INFINITY)
                x += exp(score[j] - most) / sum * element(v->type, row_of(v, j, kv_head, s), d);
        out[d] = (float)x;
    }
    free(score);
}

void reference(const ggml_tensor *node, float *out) {
    float p[3];
    memcpy(p, node->op_params, sizeof p);
    for (int64_t s = 0; s < node->ne[3]; s++)
        for (int64_t row = 0; row < node->ne[2]; row++)
            for (int64_t h = 0; h < node->ne[1]; h++, out += node->ne[0]) attend_row(node, s, h, row, p, out);
}

double worst_difference(const ggml_tensor *node, const float *expected) {
    const float *const result = node->data;
    double worst = 0;
    for (int64_t i = 0; i < node->ne[0] * node->ne[1] * node->ne[2] * node->ne[3]; i++) {
        const double difference = fabs((double)result[i] - (double)expected[i]) / fmax(1, fabs((double)expected[i]));
        if (!(difference <= worst)) worst = isnan(difference) ? (double)INFINITY : difference;
    }
    return worst;
}
