/* all-MiniLM-L6-v2 reads a paragraph: a BERT encoder of six layers. The attention block of each layer, with its four
 * projections, is attune's; the rest (embeddings, layer norm, feed-forward) is plain C below. What attune computes is
 * compared, layer by layer, with what PyTorch computed (capture.py), and so is the sentence embedding at the end.
 *
 *     encoder WEIGHTS RECORDED [LAYER X.npy]
 *
 * WEIGHTS is the folder with model.safetensors, RECORDED the one with tokens.npy, blocks.npy and embedding.npy. With
 * the other two what layer LAYER reads goes to X.npy. Exit status 1 if something differs by more than rounding. */
#include "common/npy.h"
#include "weights/safetensors.h"

#include <attune.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LAYERS = 6, EMBED = 384, HEADS = 12, HIDDEN = 1536, WORDS = 30522, PLACES = 512 };
enum { EVERY = 4 }; /* of the rows of a block is recorded */

/* Rounding alone, summed over the layers, is a hundred times less; anything else is a hundred times more. */
static const double tolerance = 1e-4;

static void die(const char *message) {
    fprintf(stderr, "encoder: %s\n", message);
    exit(1);
}

static void try(attune_status status) {
    if (status != ATTUNE_OK) die(attune_last_message());
}

static float *new_floats(size_t count) {
    float *data = aligned_alloc(64, (count * sizeof(float) + 63) / 64 * 64);
    if (!data) die("out of memory");
    return data;
}

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* ---- The model's file ---- */

static safetensors model;

/* A tensor of `count` floats by its name, which is put together as printf does. It lies in the mapped file. */
static const float *weight(size_t count, const char *format, ...) __attribute__((format(printf, 2, 3)));
static const float *weight(size_t count, const char *format, ...) {
    char name[128];
    va_list list;
    va_start(list, format);
    vsnprintf(name, sizeof name, format, list);
    va_end(list);
    const safetensor *one = safetensors_find(&model, name);
    if (!one || one->dtype != ATTUNE_F32 || one->bytes != count * sizeof(float) || one->offset % sizeof(float)) {
        fprintf(stderr, "encoder: the model has no tensor '%s' of %zu floats\n", name, count);
        exit(1);
    }
    return (const float *)(const void *)(model.file + one->offset);
}

/* ---- All but attention: rows of `x`, one after the other ---- */

/* y = x W^T + b, eight columns at a time: eight sums that do not wait for each other. */
static void linear(const float *x, int64_t rows, int inputs, int outputs, const float *w, const float *b, float *y) {
    for (int64_t row = 0; row < rows; row++)
        for (int column = 0; column < outputs; column += 8) {
            float sum[8];
            for (int c = 0; c < 8; c++) sum[c] = b[column + c];
            for (int i = 0; i < inputs; i++)
                for (int c = 0; c < 8; c++) sum[c] += x[row * inputs + i] * w[(size_t)(column + c) * inputs + i];
            memcpy(y + row * outputs + column, sum, sizeof sum);
        }
}

static void layer_norm(float *x, int64_t rows, const float *scale, const float *shift) {
    for (int64_t row = 0; row < rows; row++, x += EMBED) {
        double mean = 0, variance = 0;
        for (int i = 0; i < EMBED; i++) mean += (double)x[i] / EMBED;
        for (int i = 0; i < EMBED; i++) variance += ((double)x[i] - mean) * ((double)x[i] - mean) / EMBED;
        for (int i = 0; i < EMBED; i++)
            x[i] = (float)(((double)x[i] - mean) / sqrt(variance + 1e-12)) * scale[i] + shift[i];
    }
}

static void add(float *x, const float *y, int64_t rows) {
    for (int64_t i = 0; i < rows * EMBED; i++) x[i] += y[i];
}

static void feed_forward(int layer, float *x, int64_t rows) {
    float *hidden = new_floats((size_t)rows * HIDDEN), *y = new_floats((size_t)rows * EMBED);
    linear(x, rows, EMBED, HIDDEN, weight(HIDDEN * EMBED, "encoder.layer.%d.intermediate.dense.weight", layer),
           weight(HIDDEN, "encoder.layer.%d.intermediate.dense.bias", layer), hidden);
    for (int64_t i = 0; i < rows * HIDDEN; i++) hidden[i] = 0.5f * hidden[i] * (1 + erff(hidden[i] * 0.70710678f));
    linear(hidden, rows, HIDDEN, EMBED, weight(EMBED * HIDDEN, "encoder.layer.%d.output.dense.weight", layer),
           weight(EMBED, "encoder.layer.%d.output.dense.bias", layer), y);
    add(x, y, rows);
    layer_norm(x, rows, weight(EMBED, "encoder.layer.%d.output.LayerNorm.weight", layer),
               weight(EMBED, "encoder.layer.%d.output.LayerNorm.bias", layer));
    free(hidden);
    free(y);
}

static float *embed(const npy_array *tokens) {
    const int64_t rows = tokens->header.shape[0];
    const float *words = weight((size_t)WORDS * EMBED, "embeddings.word_embeddings.weight");
    const float *places = weight(PLACES * EMBED, "embeddings.position_embeddings.weight");
    const float *kind = weight(2 * EMBED, "embeddings.token_type_embeddings.weight");
    float *x = new_floats((size_t)rows * EMBED);
    for (int64_t row = 0; row < rows; row++) {
        const int32_t word = ((const int32_t *)tokens->data)[row];
        if (word < 0 || word >= WORDS || row >= PLACES) die("tokens.npy: beyond the model's words or places");
        for (int i = 0; i < EMBED; i++)
            x[row * EMBED + i] = words[(size_t)word * EMBED + i] + places[row * EMBED + i] + kind[i];
    }
    layer_norm(x, rows, weight(EMBED, "embeddings.LayerNorm.weight"), weight(EMBED, "embeddings.LayerNorm.bias"));
    return x;
}

/* ---- Attention, by attune ---- */

/* The block of a layer: its weights go to attune as they lie in the file, which PyTorch wrote. All layers are one
 * problem, so all but the first find their kernel compiled. */
static attune_mha *make_block(attune_context *context, const attune_problem *problem, int layer) {
    static const char *const names[] = {"self.query", "self.key", "self.value", "output.dense"};
    attune_mha_weights weights;
    attune_mha *block = NULL;
    try(attune_mha_weights_init(&weights, problem, ATTUNE_OUT_IN));
    for (int i = 0; i < 4; i++) {
        weights.tensor[ATTUNE_Q_WEIGHT + i].data =
            weight(EMBED * EMBED, "encoder.layer.%d.attention.%s.weight", layer, names[i]);
        weights.tensor[ATTUNE_Q_BIAS + i].data = weight(EMBED, "encoder.layer.%d.attention.%s.bias", layer, names[i]);
    }
    try(attune_mha_create(context, problem, NULL, &weights, &block));
    return block;
}

/* Runs it a few times; the best time in microseconds. */
static double attend(const attune_problem *problem, const attune_mha *block, const float *x, float *out) {
    attune_arguments arguments;
    double best = INFINITY;
    try(attune_arguments_init(&arguments, problem));
    arguments.x.data = x;
    arguments.out.data = out;
    for (int i = 0; i < 10; i++) {
        const double begin = now_us();
        try(attune_mha_run(block, &arguments, NULL));
        best = fmin(best, now_us() - begin);
    }
    return best;
}

/* ---- Comparing ---- */

typedef struct difference {
    double largest, rms, size; /* size: the root mean square of what was expected */
} difference;

/* Every `step`th row of `values` and the rows of `expected`. A NaN is as wrong as can be. */
static difference compare(const float *values, int64_t step, const float *expected, int64_t rows) {
    difference d = {0, 0, 0};
    for (int64_t row = 0; row < rows; row++)
        for (int i = 0; i < EMBED; i++) {
            const double wanted = (double)expected[row * EMBED + i];
            const double error = fabs((double)values[row * step * EMBED + i] - wanted);
            if (!(error <= d.largest)) d.largest = isnan(error) ? INFINITY : error;
            d.rms += error * error;
            d.size += wanted * wanted;
        }
    d.rms = sqrt(d.rms / (double)(rows * EMBED));
    d.size = sqrt(d.size / (double)(rows * EMBED));
    return d;
}

/* The mean of the rows, of length 1: what the model gives for the paragraph. */
static void pool(const float *x, int64_t rows, float *embedding) {
    double length = 0;
    for (int i = 0; i < EMBED; i++) {
        double sum = 0;
        for (int64_t row = 0; row < rows; row++) sum += (double)x[row * EMBED + i];
        embedding[i] = (float)(sum / (double)rows);
        length += (double)embedding[i] * (double)embedding[i];
    }
    for (int i = 0; i < EMBED; i++) embedding[i] /= (float)sqrt(length);
}

static npy_array read_array(const char *folder, const char *name, npy_type type, size_t rank, int64_t columns) {
    char path[1024], message[ATTUNE_MESSAGE_BYTES];
    npy_array array;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    if (!npy_read(path, &array, message)) die(message);
    const npy_header *h = &array.header;
    if (h->type != type || h->rank != rank || (columns && h->shape[rank - 1] != columns)) die(path);
    return array;
}

static void write_rows(const char *path, const float *x, int64_t rows) {
    char message[ATTUNE_MESSAGE_BYTES];
    const int64_t shape[2] = {rows, EMBED};
    if (!npy_write(path, NPY_F4, 2, shape, x, message)) die(message);
}

/* ---- The encoder ---- */

static void print_line(const char *name, double us, const difference *d) {
    char time[32] = "";
    if (us > 0) snprintf(time, sizeof time, "%.0f us", us);
    printf("%-10s %10s %14.1e %14.1e %14.3f\n", name, time, d->largest, d->rms, d->size);
}

static int layer_number(const char *text) {
    if (text[0] < '0' || text[0] >= '0' + LAYERS || text[1]) die("LAYER must be from 0 to 5");
    return text[0] - '0';
}

int main(int argc, char **argv) {
    char path[1024], message[ATTUNE_MESSAGE_BYTES];
    if (argc != 3 && argc != 5) die("usage: encoder WEIGHTS RECORDED [LAYER X.npy]");
    const int written = argc == 5 ? layer_number(argv[3]) : LAYERS;
    snprintf(path, sizeof path, "%s/model.safetensors", argv[1]);
    if (!safetensors_open(path, &model, message)) die(message);
    npy_array tokens = read_array(argv[2], "tokens.npy", NPY_I4, 1, 0);
    npy_array blocks = read_array(argv[2], "blocks.npy", NPY_F4, 3, EMBED);
    npy_array expected = read_array(argv[2], "embedding.npy", NPY_F4, 1, EMBED);
    const int64_t rows = tokens.header.shape[0], recorded = blocks.header.shape[1];
    if (blocks.header.shape[0] != LAYERS || recorded != (rows + EVERY - 1) / EVERY) die("blocks.npy: wrong shape");

    attune_context *context = NULL;
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    problem.embed_dim = EMBED, problem.num_heads = HEADS, problem.seq_q = rows;
    try(attune_context_create(NULL, &context));
    float *x = embed(&tokens), *attended = new_floats((size_t)rows * EMBED), embedding[EMBED];
    int wrong = 0;
    printf("%-10s %10s %14s %14s %14s\n", "", "time", "max error", "RMS error", "RMS of values");
    for (int layer = 0; layer < LAYERS; layer++) {
        char name[24];
        if (layer == written) write_rows(argv[4], x, rows);
        attune_mha *block = make_block(context, &problem, layer);
        const double us = attend(&problem, block, x, attended);
        attune_mha_destroy(block);
        const difference d = compare(attended, EVERY, (const float *)blocks.data + layer * recorded * EMBED, recorded);
        wrong |= !(d.largest <= tolerance);
        snprintf(name, sizeof name, "block %d", layer);
        print_line(name, us, &d);
        add(x, attended, rows);
        layer_norm(x, rows, weight(EMBED, "encoder.layer.%d.attention.output.LayerNorm.weight", layer),
                   weight(EMBED, "encoder.layer.%d.attention.output.LayerNorm.bias", layer));
        feed_forward(layer, x, rows);
    }
    pool(x, rows, embedding);
    const difference d = compare(embedding, 1, expected.data, 1);
    wrong |= !(d.largest <= tolerance);
    print_line("embedding", 0, &d);
    if (wrong) fprintf(stderr, "encoder: this differs from PyTorch's result by more than rounding\n");

    free(x), free(attended);
    npy_free(&tokens), npy_free(&blocks), npy_free(&expected);
    safetensors_close(&model);
    attune_context_destroy(context);
    return wrong;
}
