/* The forward pass: every thread runs it, on the tasks and rows that it takes. */
#include "engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void runner_open(runner *r, model *m, int num_threads, int64_t most_tokens, int32_t max_pages) {
    const size_t rows = (size_t)most_tokens, row = (size_t)m->width * sizeof(float);
    batch *b = &r->batch;
    *r = (runner){.model = m, .team = {.num_threads = num_threads}};
    model_block(m, &r->problem);
    *b = (batch){.max_pages = max_pages};
    b->lengths = allocate(MOST_SEQUENCES * sizeof *b->lengths);
    b->begins = allocate((MOST_SEQUENCES + 1) * sizeof *b->begins);
    b->pages = allocate(MOST_SEQUENCES * (size_t)max_pages * sizeof *b->pages);
    b->tokens = allocate(rows * sizeof *b->tokens);
    b->x = allocate(rows * row), b->y = allocate(rows * row), b->attended = allocate(rows * row);
    b->wide = allocate(rows * (size_t)m->hidden * sizeof(float));
    b->last = allocate(MOST_SEQUENCES * row);
    b->logits = allocate(MOST_SEQUENCES * (size_t)m->words * sizeof(float));
    check(attune_context_create(NULL, &r->context));
    r->linear = linear_operator(r->context);
}

void runner_close(runner *r) {
    batch *b = &r->batch;
    for (int i = 0; i <= MOST_SEQUENCES; i++) attune_kernel_release(r->kernels[i]);
    model_close(r->model);
    attune_context_destroy(r->context);
    free(b->lengths), free(b->begins), free(b->pages), free(b->tokens);
    free(b->x), free(b->y), free(b->attended), free(b->wide), free(b->last), free(b->logits);
}

/* The kernel of a step, and the arguments that all its layers share. */
void runner_begin(runner *r) {
    const batch *b = &r->batch;
    const model *m = r->model;
    const int32_t n = b->num_sequences, tokens = b->begins[n];
    const bool decodes = tokens == n;
    attune_problem problem = r->problem;
    problem.batch = n;
    if (!decodes) {
        problem.is_ragged = 1;
        problem.seq_q = problem.seq_new = ATTUNE_DYNAMIC;
    }
    attune_kernel **const kernel = &r->kernels[decodes ? n : 0];
    if (!*kernel) check(attune_compile(r->context, &problem, NULL, kernel));
    r->kernel = *kernel;
    attune_arguments *const a = &r->arguments;
    check(attune_arguments_init(a, &problem));
    a->x.data = b->y, a->out.data = b->attended;
    a->cos = m->cos, a->sin = m->sin, a->rotary_positions = m->positions;
    a->kv_lens = b->lengths;
    a->block_table = b->pages, a->num_pages = m->num_pages, a->max_pages = b->max_pages;
    if (!decodes) a->cu_seqlens_q = b->begins, a->total_q = tokens;
}

/* y = x * weights / sqrt(mean of x^2 + eps). */
static void norm_row(const model *m, const float *x, const float *weights, float *y) {
    enum { LANES = 16 };
    float lanes[LANES] = {0}, squares = 0;
    for (int i = 0; i < m->width; i++) lanes[i % LANES] += x[i] * x[i];
    for (int l = 0; l < LANES; l++) squares += lanes[l];
    const float factor = 1.0f / sqrtf(squares / (float)m->width + (float)m->epsilon);
    for (int i = 0; i < m->width; i++) y[i] = x[i] * factor * weights[i];
}

/* Rows of words. */
static void embed(runner *r, int64_t rows) {
    const model *m = r->model;
    const size_t width = (size_t)m->width;
    int64_t begin, end;
    while (team_take(&r->team, rows, 16, &begin, &end))
        for (size_t row = (size_t)begin; row < (size_t)end; row++)
            memcpy(r->batch.x + row * width, m->embedding + (size_t)r->batch.tokens[row] * width,
                   width * sizeof(float));
}

/* x += added, unless that is NULL; y = norm(x). */
static void norm(runner *r, const float *added, const float *weights, int64_t rows) {
    const int width = r->model->width;
    int64_t begin, end;
    while (team_take(&r->team, rows, 4, &begin, &end))
        for (int64_t row = begin; row < end; row++) {
            float *const x = r->batch.x + row * width;
            for (int i = 0; added && i < width; i++) x[i] += added[row * width + i];
            norm_row(r->model, x, weights, r->batch.y + row * width);
        }
}

static void begin_attention(runner *r, const layer *l) {
    attune_arguments *const a = &r->arguments;
    a->k.data = l->k, a->v.data = l->v;
    a->q_norm = l->q_norm, a->k_norm = l->k_norm;
    a->packed_weights = l->attention;
    check(attune_call_begin(r->context, r->kernel, a, (uint32_t)r->team.num_threads, &r->calls[0]));
}

static attune_call *begin_linear(runner *r, linear *l, const float *x, float *y, int64_t rows) {
    return linear_begin(l, r->context, r->linear, x, y, rows, r->team.num_threads);
}

/* Thread 0 begins calls before the barrier after which all threads execute them. */
static void run_layer(runner *r, int thread, layer *l, int64_t rows) {
    const batch *b = &r->batch;
    norm(r, NULL, l->attention_norm, rows);
    if (thread == 0) begin_attention(r, l);
    team_barrier(&r->team);
    team_execute(&r->team, thread, r->calls[0]);
    norm(r, b->attended, l->mlp_norm, rows);
    if (thread == 0) {
        r->calls[0] = begin_linear(r, &l->gate_up, b->y, b->wide, rows);
        r->calls[1] = begin_linear(r, &l->down, b->wide, b->x, rows);
    }
    team_barrier(&r->team);
    team_execute(&r->team, thread, r->calls[0]);
    team_execute(&r->team, thread, r->calls[1]);
}

static int32_t largest(const float *logits, int words) {
    int32_t best = 0;
    for (int32_t i = 1; i < words; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

/* The word after each sequence's last token. */
static void choose_words(runner *r, int thread) {
    batch *const b = &r->batch;
    const model *m = r->model;
    int64_t begin, end;
    while (team_take(&r->team, b->num_sequences, 1, &begin, &end))
        norm_row(m, b->x + (int64_t)(b->begins[end] - 1) * m->width, m->last_norm, b->last + begin * m->width);
    if (thread == 0) r->calls[0] = begin_linear(r, &r->model->head, b->last, b->logits, b->num_sequences);
    team_barrier(&r->team);
    team_execute(&r->team, thread, r->calls[0]);
    while (team_take(&r->team, b->num_sequences, 1, &begin, &end))
        b->next[begin] = largest(b->logits + begin * m->words, m->words);
    team_barrier(&r->team);
}

void runner_forward(runner *r, int thread) {
    const int64_t rows = r->batch.begins[r->batch.num_sequences];
    embed(r, rows);
    team_barrier(&r->team);
    for (int i = 0; i < r->model->num_layers; i++) run_layer(r, thread, &r->model->layers[i], rows);
    choose_words(r, thread);
}
