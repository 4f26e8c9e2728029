/* A layer of an encoder and one of a decoder (Vaswani et al., "Attention Is All You Need", 2017, figure 1): attention
 * is attune's, all else is plain C. Nothing here tells the encoder where a token stands, so two things can be checked:
 * the order of the source does not matter, and no target token sees a later one.
 *     cc layers.c $(pkg-config --cflags --libs attune) -lm -o layers */
#include <attune.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SOURCE = 20, TARGET = 12, EMBED = 64, HIDDEN = 256 };

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        if ((call) != ATTUNE_OK) {                                                                                     \
            fprintf(stderr, "%s\n", attune_last_message());                                                            \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static void fill(float *data, size_t count) {
    for (size_t i = 0; i < count; i++) data[i] = ((float)rand() / (float)RAND_MAX - 0.5f) * 0.25f;
}

/* ---- Attention ---- */

typedef struct attention {
    attune_problem problem;
    attune_mha *mha;
} attention;

static attention attention_new(attune_context *context, const char *text) {
    attention a = {.problem = ATTUNE_PROBLEM_INIT};
    attune_mha_weights weights;
    TRY(attune_problem_parse(&a.problem, text));
    TRY(attune_mha_weights_init(&weights, &a.problem, ATTUNE_OUT_IN));
    static float matrix[4][EMBED * EMBED]; /* packed into the block, so the next one may have it */
    for (int i = ATTUNE_Q_WEIGHT; i <= ATTUNE_OUT_WEIGHT; i++) {
        fill(matrix[i], EMBED * EMBED);
        weights.tensor[i].data = matrix[i];
    }
    TRY(attune_mha_create(context, &a.problem, NULL, &weights, &a.mha));
    return a;
}

/* x_kv NULL: to x itself. */
static void attend(const attention *a, float x[][EMBED], float x_kv[][EMBED], float out[][EMBED]) {
    attune_arguments arguments;
    TRY(attune_arguments_init(&arguments, &a->problem));
    arguments.x.data = x;
    arguments.x_kv.data = x_kv;
    arguments.out.data = out;
    TRY(attune_mha_run(a->mha, &arguments, NULL));
}

/* ---- The rest of a layer ---- */

/* x becomes LayerNorm(x + change), row by row. */
static void add_and_norm(float x[][EMBED], float change[][EMBED], int rows) {
    for (int r = 0; r < rows; r++) {
        float mean = 0, variance = 0;
        for (int e = 0; e < EMBED; e++) mean += (x[r][e] += change[r][e]) / EMBED;
        for (int e = 0; e < EMBED; e++) variance += (x[r][e] - mean) * (x[r][e] - mean) / EMBED;
        for (int e = 0; e < EMBED; e++) x[r][e] = (x[r][e] - mean) / sqrtf(variance + 1e-5f);
    }
}

typedef struct feed_forward {
    float up[HIDDEN][EMBED], down[EMBED][HIDDEN];
} feed_forward;

static void feed(const feed_forward *f, float x[][EMBED], float out[][EMBED], int rows) {
    for (int r = 0; r < rows; r++) {
        float hidden[HIDDEN];
        for (int h = 0; h < HIDDEN; h++) {
            hidden[h] = 0;
            for (int e = 0; e < EMBED; e++) hidden[h] += f->up[h][e] * x[r][e];
            hidden[h] = fmaxf(hidden[h], 0);
        }
        for (int e = 0; e < EMBED; e++) {
            out[r][e] = 0;
            for (int h = 0; h < HIDDEN; h++) out[r][e] += f->down[e][h] * hidden[h];
        }
    }
}

/* ---- The two layers ---- */

typedef struct model {
    attune_context *context;
    attention encoder_self, decoder_self, cross;
    feed_forward encoder_feed, decoder_feed;
} model;

static void encode(const model *m, float x[SOURCE][EMBED]) {
    float change[SOURCE][EMBED];
    attend(&m->encoder_self, x, NULL, change);
    add_and_norm(x, change, SOURCE);
    feed(&m->encoder_feed, x, change, SOURCE);
    add_and_norm(x, change, SOURCE);
}

static void decode(const model *m, float x[TARGET][EMBED], float memory[SOURCE][EMBED]) {
    float change[TARGET][EMBED];
    attend(&m->decoder_self, x, NULL, change);
    add_and_norm(x, change, TARGET);
    attend(&m->cross, x, memory, change);
    add_and_norm(x, change, TARGET);
    feed(&m->decoder_feed, x, change, TARGET);
    add_and_norm(x, change, TARGET);
}

static void transform(const model *m, float source[SOURCE][EMBED], float target[TARGET][EMBED],
                      float result[TARGET][EMBED]) {
    float memory[SOURCE][EMBED];
    memcpy(memory, source, sizeof memory);
    memcpy(result, target, sizeof(float[TARGET][EMBED]));
    encode(m, memory);
    decode(m, result, memory);
}

/* Of any number, at most. */
static float difference(float a[TARGET][EMBED], float b[TARGET][EMBED]) {
    float most = 0;
    for (int t = 0; t < TARGET; t++)
        for (int e = 0; e < EMBED; e++) most = fmaxf(most, fabsf(a[t][e] - b[t][e]));
    return most;
}

int main(void) {
    static model m;
    static float source[SOURCE][EMBED], target[TARGET][EMBED], reversed[SOURCE][EMBED];
    static float result[TARGET][EMBED], other[TARGET][EMBED];
    TRY(attune_context_create(NULL, &m.context));
    m.encoder_self = attention_new(m.context, "embed_dim=64,num_heads=4,seq_q=20");
    m.decoder_self = attention_new(m.context, "embed_dim=64,num_heads=4,seq_q=12,is_causal=1");
    m.cross = attention_new(m.context, "embed_dim=64,num_heads=4,seq_q=12,seq_kv=20,is_cross=1");
    fill(m.encoder_feed.up[0], sizeof m.encoder_feed / sizeof(float));
    fill(m.decoder_feed.up[0], sizeof m.decoder_feed / sizeof(float));
    fill(source[0], SOURCE * EMBED);
    fill(target[0], TARGET * EMBED);
    transform(&m, source, target, result);

    for (int t = 0; t < SOURCE; t++) memcpy(reversed[SOURCE - 1 - t], source[t], sizeof source[t]);
    transform(&m, reversed, target, other);
    const float by_order = difference(result, other);
    fill(source[0], EMBED);
    transform(&m, source, target, other);
    const float by_token = difference(result, other);
    printf("the result changes by %.1g at most if the source is reversed, by %.1g if one token of it is another\n",
           (double)by_order, (double)by_token);

    transform(&m, reversed, target, result);
    fill(target[TARGET - 1], EMBED);
    transform(&m, reversed, target, other);
    const int unseen = !memcmp(result, other, (TARGET - 1) * sizeof *result);
    const int changed = memcmp(result[TARGET - 1], other[TARGET - 1], sizeof *result) != 0;
    printf("another last token of the target: the tokens before it %s\n", unseen ? "have the same bits" : "change");
    attune_mha_destroy(m.encoder_self.mha);
    attune_mha_destroy(m.decoder_self.mha);
    attune_mha_destroy(m.cross.mha);
    attune_context_destroy(m.context);
    return !(by_order < 1e-5f && by_token > 1e-3f && unseen && changed);
}
