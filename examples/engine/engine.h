/* A small engine for decoders of the Llama family: what its files share. README.md says how they fit together. */
#ifndef ENGINE_H
#define ENGINE_H

#include "weights/safetensors.h"

#include <attune.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { PAGE = 16 }; /* tokens of a page of the caches */

/* Prints a message and ends the program. */
void die(const char *format, ...) __attribute__((format(printf, 1, 2), noreturn));
/* Dies of what the library says. */
void check(attune_status status);
void *allocate(size_t bytes); /* 64-byte aligned */

/* ---- team.c: threads that all run the same program ---- */

typedef struct team {
    int num_threads;
    _Atomic int arrived;
    _Atomic unsigned epoch; /* how many barriers there were */
    _Atomic int64_t next;   /* the first task, or row, that nobody has taken since the last barrier */
} team;

/* Runs program(user, thread) on each thread; the caller is thread 0. Returns when all have returned. */
void team_run(team *t, void (*program)(void *user, int thread), void *user);
void team_barrier(team *t);
/* Takes up to `count` of what is left of `all`: from *begin to before *end. false: nothing is left. */
bool team_take(team *t, int64_t all, int64_t count, int64_t *begin, int64_t *end);
/* All phases of a call, each with a barrier after it; thread 0 ends the call. Every thread calls this. */
void team_execute(team *t, int thread, attune_call *call);

/* ---- linear.c: products with weights, an operator in loop IR ---- */

enum { PANEL = 32 }; /* columns of a panel of packed weights */

typedef enum linear_kind {
    LINEAR_STORE,  /* y = x W^T */
    LINEAR_ADD,    /* y = y + x W^T */
    LINEAR_SWIGLU, /* y = silu(x G^T) * (x U^T): panels have 16 columns of each */
    NUM_LINEAR_KINDS
} linear_kind;

typedef struct linear {
    linear_kind kind;
    int inputs, outputs;
    float *packed;
    attune_kernel *kernels[9]; /* by the rows of a register tile; NULL: not compiled yet */
} linear;

attune_operator *linear_operator(attune_context *context);
/* `up` is for LINEAR_SWIGLU. The matrices are [outputs][inputs]. */
void linear_open(linear *l, linear_kind kind, int inputs, int outputs, const float *weights, const float *up);
attune_call *linear_begin(linear *l, attune_context *context, attune_operator *op, const float *x, float *y,
                          int64_t rows, int num_threads);
void linear_close(linear *l);

/* ---- model.c: weights, caches and the forward pass ---- */

typedef struct layer {
    const float *attention_norm, *mlp_norm, *q_norm, *k_norm;
    void *attention; /* packed weights of the block */
    float *k, *v;    /* caches: [num_pages, kv_heads, PAGE, head_dim] */
    linear gate_up, down;
} layer;

enum { MOST_END_TOKENS = 16 };

typedef struct model {
    safetensors file;
    int width, heads, kv_heads, head_dim, hidden, words, num_layers, positions;
    double epsilon, theta;
    int32_t end_tokens[MOST_END_TOKENS];
    int num_end_tokens;
    const float *embedding, *last_norm;
    float *cos, *sin;
    layer *layers;
    linear head;
    int64_t num_pages;
    size_t attention_bytes; /* of each layer's packed weights */
} model;

/* FOLDER has config.json and model.safetensors, of f32, as transformers writes them. */
void model_open(model *m, const char *folder, int64_t num_pages);
void model_close(model *m);
/* image.c: a file of the whole model, its weights packed. model_load takes the place of model_open. */
void model_save(model *m, const char *path);
void model_load(model *m, const char *path, int64_t num_pages);
/* Whether a text ends with the token. */
bool model_ends(const model *m, int32_t token);
/* The block of each layer, for one token of each sequence. */
void model_block(const model *m, attune_problem *problem);

enum { MOST_SEQUENCES = 64 };

/* One call of the model: rows of tokens, one request after the other. */
typedef struct batch {
    int32_t num_sequences, max_pages;
    int32_t *lengths;               /* of each sequence's keys, new ones included: kv_lens */
    int32_t *begins;                /* of its tokens: cu_seqlens_q */
    int32_t *pages;                 /* block_table [num_sequences][max_pages] */
    int32_t *tokens;                /* all of them */
    int32_t next[MOST_SEQUENCES];   /* the result: the word after each sequence's last token */
    float *x, *y, *attended, *wide; /* [tokens][width]; wide: [tokens][hidden] */
    float *last, *logits;           /* of each sequence's last token: [num_sequences][width], [num_sequences][words] */
} batch;

typedef struct runner {
    model *model;
    team team;
    batch batch;
    attune_context *context;
    attune_operator *linear;
    attune_problem problem; /* of the block; for prefill ragged, for decoding one token of each sequence */
    attune_kernel *kernels[MOST_SEQUENCES + 1]; /* [0] prefill; decoding by the number of sequences */
    const attune_kernel *kernel;                /* of this step */
    attune_arguments arguments;
    attune_call *calls[2]; /* that all threads execute next */
} runner;

void runner_open(runner *r, model *m, int num_threads, int64_t most_tokens, int32_t max_pages);
void runner_close(runner *r);
/* Thread 0, when the batch is filled in: chooses the kernel. */
void runner_begin(runner *r);
/* All threads: from tokens to the next words. */
void runner_forward(runner *r, int thread);

#endif
