/* A node is computed stream by stream: read what the stream's mask says, look for a kernel of that kind, call it.
 * Neighbouring streams whose masks say the same go into one call. Without a compiler there are only general kernels, so
 * other masks are told again as lists of keys (regroup), and rows of encoders are passed as heads (run_as_heads). */
#include "attend.h"

#include "call.h"
#include "rows.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Returns a buffer of at least so many bytes, whose old content may be lost. NULL: there is no memory. */
static void *reserve(struct attend_buffer *b, int64_t bytes) {
    if ((size_t)bytes > b->bytes) {
        free(b->data);
        b->bytes = (size_t)bytes + (size_t)bytes / 4 + 64;
        b->data = malloc(b->bytes);
        if (!b->data) b->bytes = 0;
    }
    return b->data;
}

void attend_free(attend_state *s) {
    struct attend_buffer *const buffers[] = {&s->rows,   &s->table,  &s->list_bias, &s->slopes,
                                             &s->k_rows, &s->v_rows, &s->lens};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) free(buffers[i]->data);
    free(s->distances_end ? s->distances_end - s->num_distances : NULL);
    pages_free(s->pages);
}

/* ---- ALiBi ---- */

/* The slopes of ggml_compute_forward_flash_attn_ext: of Press et al., "Train short, test long", 2022. */
static const float *slopes_of(attend_state *s, const ggml_node *n) {
    float *const slopes = reserve(&s->slopes, n->heads * (int64_t)sizeof(float));
    if (!slopes || (s->slopes_heads == n->heads && s->slopes_bias == n->max_bias)) return slopes;
    int64_t power = 1;
    while (2 * power <= n->heads) power *= 2;
    const float first = powf(2.0F, -n->max_bias / (float)power), second = powf(2.0F, -n->max_bias / 2 / (float)power);
    for (int64_t h = 0; h < n->heads; h++)
        slopes[h] = h < power ? powf(first, (float)(h + 1)) : powf(second, (float)(2 * (h - power) + 1));
    s->slopes_heads = n->heads;
    s->slopes_bias = n->max_bias;
    return slopes;
}

static const uint16_t *distances_of(attend_state *s, int64_t count) {
    enum { LARGEST = 65504 };
    if (count > LARGEST) return NULL;
    if (count <= s->num_distances) return s->distances_end;
    free(s->distances_end ? s->distances_end - s->num_distances : NULL);
    const int64_t more = 2 * count < LARGEST ? 2 * count : LARGEST;
    uint16_t *const begin = malloc((size_t)more * sizeof *begin);
    s->num_distances = begin ? more : 0;
    s->distances_end = begin ? begin + more : NULL;
    if (begin) mask_distances(s->distances_end, more);
    return s->distances_end;
}

/* ---- Masks ---- */

/* Elements of a table of keys, and of biases of heads for such a table. */
enum { MOST_LISTED = 1 << 24, MOST_HEADS_BIAS = 1 << 22 };

/* Reads the mask of stream c->first. */
static bool read_stream(attend_state *s, ggml_call *c) {
    const ggml_node *const n = c->node;
    const ggml_tensor *const m = n->mask;
    int32_t *const room = reserve(&s->rows, MASK_ROOM * n->rows * (int64_t)sizeof *room);
    if (!room) return false;
    c->rows = (mask_rows){.class = MASK_NONE, .keys = n->keys, .longest = n->keys};
    mask_place(&c->rows, room, n->rows);
    if (!m) return true;
    c->mask = (const uint16_t *)((const char *)m->data + (size_t)(c->first % m->ne[3]) * m->nb[3]);
    c->mask_stride = (int64_t)(m->nb[1] / sizeof *c->mask);
    if (m->ne[2] != 1) {
        c->rows.class = MASK_DENSE;
        return true;
    }
    mask_read(c->mask, n->rows, n->keys, c->mask_stride, &c->rows);
    if (c->rows.class == MASK_LISTS && n->rows * c->rows.longest > MOST_LISTED) c->rows.class = MASK_DENSE;
    if (!c->rows.has_bias || n->max_bias <= 0) return true;
    const uint16_t *const distances = distances_of(s, c->rows.keys);
    if (distances) c->alibi = mask_alibi_of(c->mask, n->rows, c->mask_stride, &c->rows, distances);
    c->slopes = slopes_of(s, n);
    /* Lists with slopes need a bias for each head and key: memory, and the time of one thread. */
    if (c->rows.class == MASK_LISTS && n->heads * n->rows * c->rows.longest > MOST_HEADS_BIAS)
        c->rows.class = MASK_DENSE;
    return c->slopes != NULL;
}

static bool is_simple(const ggml_call *c) {
    return c->rows.class == MASK_NONE || c->rows.class == MASK_CAUSAL || c->alibi;
}

/* Adds the streams after the first one that the same call can compute. */
static bool join_streams(attend_state *s, ggml_call *c) {
    const ggml_node *const n = c->node;
    c->count = 1;
    if (!is_simple(c)) return true;
    if (!n->mask || n->mask->ne[3] == 1) {
        c->count = n->streams - c->first;
        return true;
    }
    const ggml_call one = *c;
    int32_t *const lens = reserve(&s->lens, n->streams * (int64_t)sizeof *lens);
    if (!lens) return false;
    lens[0] = (int32_t)one.rows.keys;
    while (c->first + c->count < n->streams) {
        ggml_call next = {.node = n, .first = c->first + c->count};
        if (!read_stream(s, &next)) return false;
        if (next.rows.class != one.rows.class || next.alibi != one.alibi || next.rows.begin != one.rows.begin) break;
        if (next.rows.keys != one.rows.keys) c->lens = lens;
        if (next.rows.keys > c->rows.keys) c->rows.keys = next.rows.keys;
        lens[c->count++] = (int32_t)next.rows.keys;
    }
    return true;
}

/* The bias of each head for each listed key: slope times bias in f32, as in ggml. */
static void add_slopes(const ggml_call *c, int64_t listed, const uint16_t *bias, float *of_heads) {
    for (int64_t h = 0; h < c->node->heads; h++)
        for (int64_t i = 0; i < listed; i++) *of_heads++ = c->slopes[h] * rows_number(bias[i]);
}

static bool make_lists(attend_state *s, ggml_call *c) {
    if (c->rows.class != MASK_LISTS && c->rows.class != MASK_GROUPS) return true;
    const int64_t rows = c->node->rows, lists = c->rows.class == MASK_GROUPS ? c->rows.groups : rows;
    const int64_t listed = lists * mask_columns(&c->rows);
    const int64_t heads_bytes = c->slopes ? c->node->heads * listed * (int64_t)sizeof(float) : 0;
    int32_t *const table = reserve(&s->table, listed * (int64_t)sizeof *table);
    char *const biases = c->rows.has_bias ? reserve(&s->list_bias, heads_bytes + 2 * listed) : NULL;
    if (!table || (c->rows.has_bias && !biases)) return false;
    uint16_t *const bias = biases ? (uint16_t *)(biases + heads_bytes) : NULL;
    mask_list(c->mask, rows, c->mask_stride, &c->rows, table, bias);
    if (heads_bytes) add_slopes(c, listed, bias, (float *)biases);
    c->table = table;
    c->list_bias = biases; /* those of the heads lie before the mask's */
    return true;
}

/* ---- Converting rows ---- */

typedef struct conversion {
    const ggml_call *call;
    const ggml_tensor *tensor;
    ggml_cache cache;
    char *to; /* [streams, KV heads, keys, row]; only the rows that the call reads are written */
} conversion;

static void convert_rows(void *argument, int64_t begin, int64_t end, uint32_t worker) {
    (void)worker;
    const conversion *const c = argument;
    const ggml_tensor *const t = c->tensor;
    const int64_t bytes = (int64_t)rows_bytes(c->cache, t->ne[0]), keys = c->call->rows.keys;
    for (int64_t i = begin; i < end; i++) {
        const int64_t key = c->call->rows.begin + i % keys, head = i / keys % t->ne[2];
        const int64_t stream = c->call->first + i / keys / t->ne[2];
        rows_convert(c->cache,
                     (const char *)t->data + (size_t)stream * t->nb[3] + (size_t)head * t->nb[2] +
                         (size_t)key * t->nb[1],
                     c->to + ((stream * t->ne[2] + head) * t->ne[1] + key) * bytes, t->ne[0]);
    }
}

static bool convert(attend_state *s, struct attend_buffer *buffer, const ggml_call *call, const ggml_tensor *t,
                    ggml_cache cache, const void **rows) {
    if (cache_formats[cache].becomes == cache) return true;
    conversion c = {.call = call, .tensor = t, .cache = cache};
    c.to = reserve(buffer, (int64_t)rows_bytes(cache, t->ne[0]) * t->ne[1] * t->ne[2] * t->ne[3]);
    *rows = c.to;
    if (c.to) runner_loop(&s->threads, convert_rows, &c, call->count * t->ne[2] * call->rows.keys);
    return c.to != NULL;
}

/* ---- The node ---- */

static void clear(const ggml_node *n, int64_t stream, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row++)
        for (int64_t head = 0; head < n->heads; head++)
            memset((char *)n->out->data + (size_t)stream * n->out->nb[3] + (size_t)row * n->out->nb[2] +
                       (size_t)head * n->out->nb[1],
                   0, (size_t)n->dim_v * sizeof(float));
}

/* The plug-in's own kernels have no ranges, holes and kv_ids, so such masks become groups of rows with lists. Groups
 * also compute lists while a kernel for those is compiled. */
static bool regroup(attend_state *s, ggml_call *c, kernel_state state) {
    const bool is_read = c->mask && c->node->mask->ne[2] == 1;
    if (!is_read || c->rows.has_bias || is_simple(c) || c->rows.class == MASK_GROUPS) return false;
    if (state == KERNEL_COMPILES && c->rows.class != MASK_LISTS) return false;
    return mask_group(c->mask, c->node->rows, c->mask_stride, &c->rows) &&
           c->rows.groups * c->rows.listed <= MOST_LISTED && make_lists(s, c);
}

/* The rows from `begin` on that attend to the same keys. `stream` counts from the call's first. */
static call_rows same_rows(const ggml_call *c, int64_t stream, int64_t begin) {
    const mask_rows *const m = &c->rows;
    if (m->class == MASK_NONE) return (call_rows){stream, begin, c->node->rows, 0, c->lens ? c->lens[stream] : m->keys};
    call_rows r = {stream, begin, begin + 1, m->lo[begin], m->hi[begin]};
    while (r.end < c->node->rows && m->lo[r.end] == r.lo && m->hi[r.end] == r.hi) r.end++;
    return r;
}

/* Computes such rows in pieces whose sizes are powers of two, so that they are of few kinds. */
static bool run_same_rows(attend_state *s, const ggml_call *c, call_rows r) {
    enum { LARGEST_PIECE = 64 };
    int64_t piece = LARGEST_PIECE;
    for (const int64_t end = r.end; r.begin < end; r.begin = r.end) {
        ggml_kind kind;
        const common_plan *plan;
        const char *reason;
        while (r.begin + piece > end) piece /= 2;
        r.end = r.begin + piece;
        call_rows_kind(c, &r, &kind);
        if (kernel_of(&kind, &plan) != KERNEL_READY) return false;
        for (int64_t head = 0; head < c->node->heads / c->node->kv_heads; head++) {
            attune_arguments a = plan->arguments;
            call_rows_bind(c, &r, head, &kind, &a);
            if (runner_run(&s->threads, plan, &a, &reason)) return false;
        }
    }
    return true;
}

/* Encoders without a compiler. Their rows attend to later keys, too, for which there is no general kernel. But many
 * neighbouring rows attend to the same keys, as the heads of a single row do. Not with sinks, which differ by head. */
static bool run_as_heads(attend_state *s, const ggml_call *c) {
    enum { LEAST_ROWS = 8 };
    int64_t count = 0;
    if (c->node->sinks || (c->rows.class != MASK_NONE && c->rows.class != MASK_RANGES)) return false;
    for (int64_t row = 0; row < c->node->rows; row = same_rows(c, 0, row).end) count++;
    if (count > 1 && c->node->rows < LEAST_ROWS * count) return false;
    for (int64_t stream = 0; stream < c->count; stream++)
        for (call_rows r = {0}; r.end < c->node->rows;) {
            r = same_rows(c, stream, r.end);
            if (r.lo == r.hi) clear(c->node, c->first + stream, r.begin, r.end);
            if (r.lo < r.hi && !run_same_rows(s, c, r)) return false;
        }
    return true;
}

static bool run(attend_state *s, ggml_call *c, const char **reason) {
    ggml_kind kind;
    const common_plan *plan;
    const mask_class read = c->rows.class; /* regroup may change it even if groups have no kernel, or are too many */
    call_kind(c, &kind);
    kernel_state state = kernel_of(&kind, &plan);
    if (state != KERNEL_READY && regroup(s, c, state)) {
        call_kind(c, &kind);
        state = kernel_of(&kind, &plan);
    }
    if (state == KERNEL_REFUSED) {
        c->rows.class = read;
        if (run_as_heads(s, c)) return true;
    }
    *reason = state == KERNEL_COMPILES ? "its kernel is being compiled" : "attune has no kernel for it";
    if (state != KERNEL_READY) return false;
    attune_arguments a = plan->arguments;
    call_bind(c, &kind, &a);
    return !runner_run(&s->threads, plan, &a, reason);
}

/* Computes stream c->first and those that join it, c->count in all. */
static bool attend_streams(attend_state *s, ggml_call *c, const char **reason) {
    *reason = "there is no memory";
    if (!read_stream(s, c)) return false;
    if (c->rows.class == MASK_EMPTY) {
        c->count = 1;
        clear(c->node, c->first, 0, c->node->rows);
        return true;
    }
    const ggml_node *const n = c->node;
    return join_streams(s, c) && make_lists(s, c) && convert(s, &s->k_rows, c, n->k, n->k_cache, &c->k_rows) &&
           convert(s, &s->v_rows, c, n->v, n->v_cache, &c->v_rows) && run(s, c, reason);
}

bool attend(attend_state *s, const ggml_node *n, const char **reason) {
    pages_ask(&s->pages, n);
    for (int64_t stream = 0; stream < n->streams;) {
        ggml_call c = {.node = n, .first = stream};
        if (!attend_streams(s, &c, reason)) return false;
        stream += c.count;
    }
    return true;
}
