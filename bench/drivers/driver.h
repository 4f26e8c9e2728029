/* What the drivers written in C have in common: a driver is a process that computes one problem at a time by one
 * program or library, as lines on its standard input ask. docs/bench.md has the protocol. */
#ifndef BENCH_DRIVER_H
#define BENCH_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { DRIVER_TEXT = 512 };

typedef enum driver_kind {
    DRIVER_ATTENTION, /* q, k, v -> out */
    DRIVER_BLOCK,     /* x -> out: projections, attention, projection */
    DRIVER_PRODUCTS   /* x -> out: (x W1^T + b1) W2^T + b2 */
} driver_kind;

typedef struct driver_problem {
    driver_kind kind;
    char method[64];        /* one of the driver's own */
    char data[DRIVER_TEXT]; /* folder of the inputs */
    char kv[8];             /* dtype of keys and values: f32, bf16, f16, i8, f8; "": as the rest */
    char scales[8];         /* of i8 and f8: "head", "token" or "" */
    int64_t batch, heads, kv_heads, rows, keys, dim, embed;
    int64_t threads; /* at most so many; 0: all */
    bool is_causal, is_bf16;
} driver_problem;

/* Elements of the tensors of a problem. */
int64_t driver_out_count(const driver_problem *p);
double driver_scale(const driver_problem *p);

/* The input `name` of the problem, `count` numbers, 64-byte aligned; the caller frees it. NULL after writing why into
 * `text`, as all below. */
float *driver_read(const driver_problem *p, const char *name, int64_t count, char text[DRIVER_TEXT]);
/* The same, rounded to bf16 (inputs of bf16 problems are such numbers). */
uint16_t *driver_read_bf16(const driver_problem *p, const char *name, int64_t count, char text[DRIVER_TEXT]);
/* The same in f16. */
uint16_t *driver_read_f16(const driver_problem *p, const char *name, int64_t count, char text[DRIVER_TEXT]);
/* The codes of an input whose dtype is i8 or f8, a byte each. */
uint8_t *driver_read_codes(const driver_problem *p, const char *name, int64_t count, char text[DRIVER_TEXT]);
void *driver_alloc(size_t bytes, char text[DRIVER_TEXT]);
float driver_from_bf16(uint16_t bits);

typedef struct driver {
    const char *methods; /* separated by commas */
    const char *version;
    /* Makes ready. true, and in `text` a remark or nothing; or false, and there why not. */
    bool (*prepare)(const driver_problem *problem, char text[DRIVER_TEXT]);
    /* One call. false after writing why. */
    bool (*call)(char text[DRIVER_TEXT]);
    /* The result of the last call: [batch, heads, rows, dim], or [batch, rows, embed]. */
    void (*output)(float *out);
    void (*drop)(void); /* what prepare made, of which there may be a part or nothing */
    /* A question of its own, the whole line, answered in `text`; NULL: there are none. */
    bool (*ask)(const char *line, char text[DRIVER_TEXT]);
} driver;

/* Answers lines until the input ends. What main returns. */
int driver_serve(const driver *d);

#ifdef __cplusplus
}
#endif

#endif
