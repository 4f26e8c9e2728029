/* Data for serving.c: four requests, rows of q, k and v in place of a model's projections, and the check of what comes
 * out by the formula in double. serving_data.py has the same in Python. */
#ifndef SERVING_DATA_H
#define SERVING_DATA_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { HEADS = 8, KV_HEADS = 2, DIM = 64, REQUESTS = 4, NEW_TOKENS = 12, LONGEST = 300 };
static const int prompts[REQUESTS] = {150, 7, LONGEST, 64}; /* their lengths */
static float outputs[REQUESTS][LONGEST + NEW_TOKENS][HEADS][DIM];

typedef uint16_t bf16;
typedef enum { Q, K, V } tensor;

/* Multiples of 1/128 from -1 to 1: bf16 holds them exactly. */
static float value(tensor t, int request, int token, int head, int column) {
    uint32_t x = (((uint32_t)t * 4 + (uint32_t)request) * 512 + (uint32_t)token) * 8 + (uint32_t)head;
    x = (x * 64 + (uint32_t)column) * 2654435761u;
    return (float)(int)((x ^ x >> 16) % 257u) / 128 - 1;
}

/* Writes a token's row, [head, column]. */
static void fill(bf16 *to, tensor t, int request, int token) {
    for (int i = 0; i < (t == Q ? HEADS : KV_HEADS) * DIM; i++) {
        const float x = value(t, request, token, i / DIM, i % DIM);
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        to[i] = (bf16)(bits >> 16);
    }
}

/* Keeps a token's row of the output for the check. */
static void keep(const bf16 *row, int request, int token) {
    for (int i = 0; i < HEADS * DIM; i++) {
        const uint32_t bits = (uint32_t)row[i] << 16;
        memcpy(&outputs[request][token][i / DIM][i % DIM], &bits, sizeof bits);
    }
}

static double difference(int request, int token, int head) {
    double sum = 0, expected[DIM] = {0}, largest = 0;
    const int kv_head = head / (HEADS / KV_HEADS);
    for (int j = 0; j <= token; j++) {
        double dot = 0;
        for (int d = 0; d < DIM; d++) dot += value(Q, request, token, head, d) * value(K, request, j, kv_head, d);
        const double p = exp(dot / sqrt(DIM));
        sum += p;
        for (int d = 0; d < DIM; d++) expected[d] += p * value(V, request, j, kv_head, d);
    }
    for (int d = 0; d < DIM; d++) largest = fmax(largest, fabs(expected[d] / sum - outputs[request][token][head][d]));
    return largest;
}

/* Prints the largest difference from the formula. With a path it also writes the outputs there, as f32 [request, token,
 * head, column]. Returns 0 if all is well. */
static int check(const char *path) {
    double largest = 0;
    for (int r = 0; r < REQUESTS; r++)
        for (int token = 0; token < prompts[r] + NEW_TOKENS; token++)
            for (int head = 0; head < HEADS; head++) largest = fmax(largest, difference(r, token, head));
    printf("largest difference from the formula: %.1e\n", largest);
    FILE *const file = path ? fopen(path, "wb") : NULL;
    if (path && (!file || fwrite(outputs, sizeof outputs, 1, file) != 1 || fclose(file))) return perror(path), 1;
    return largest > 4e-3; /* bf16 keeps 8 bits */
}

#endif
