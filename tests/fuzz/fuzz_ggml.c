/* The plug-in of ggml: nodes and masks from random bytes. The reader of nodes judges shapes, strides and types of all
 * kinds. What it accepts is computed on tensors that are exactly as large as they must be, by a kernel that only
 * touches what the call's arguments name, so an address beyond a tensor is one that AddressSanitizer reports. */
#include "fuzz.h"

#include "attend.h"
#include "call.h"
#include "kernels.h"

#include "attune.h"

#include <stdbool.h>

ggml_host host;
void host_log(int level, const char *format, ...) { (void)level, (void)format; }

/* ---- A kernel that touches what it would read and write ---- */

typedef enum library { COMPILES_ALL, HAS_GENERAL, COMPILES_LATER } library;
static library kernels_are;
static ggml_kind kind;
static const common_plan plan;
static volatile unsigned touched;

kernel_state kernel_of(const ggml_kind *wanted, const common_plan **found) {
    const kernel_class c = (kernel_class)wanted->class;
    const bool is_general = c == KERNEL_ONE || c == KERNEL_CAUSAL || c == KERNEL_WINDOW || c == KERNEL_PAGES ||
                            c == KERNEL_GROUPS || c == KERNEL_ALIBI;
    if (kernels_are != COMPILES_ALL && !is_general)
        return kernels_are == HAS_GENERAL ? KERNEL_REFUSED : KERNEL_COMPILES;
    kind = *wanted;
    *found = &plan;
    return KERNEL_READY;
}

static void touch(const void *data, int64_t bytes) {
    const unsigned char *const b = data;
    touched += b[0] + b[bytes / 2] + b[bytes - 1];
}

static void touch_cache(const attune_mutable_view *t, int64_t sequence, int64_t head, int64_t key, int cache,
                        int64_t columns) {
    const cache_format *const f = &cache_formats[cache];
    touch((const char *)t->data + (sequence * t->strides[0] + head * t->strides[1] + key * t->strides[2]) * f->unit,
          columns / f->columns * f->bytes);
}

static void touch_keys(const attune_arguments *a, int64_t sequence, int64_t keys) {
    const bool is_paged = kind.class == KERNEL_PAGES || kind.class == KERNEL_GROUPS;
    for (int64_t head = 0; head < a->num_kv_heads; head++)
        for (int64_t j = 0; j < keys; j++) {
            const int64_t page = is_paged ? a->block_table[sequence * a->max_pages + j] : sequence;
            FUZZ_REQUIRE(!is_paged || (page >= 0 && page < a->num_pages && j < a->max_pages));
            touch_cache(&a->k, page, head, is_paged ? 0 : j, kind.k_cache, kind.dim);
            touch_cache(&a->v, page, head, is_paged ? 0 : j, kind.v_cache, kind.dim_v);
        }
}

static void touch_rows(const attune_arguments *a, int64_t sequence, int64_t begin, int64_t end) {
    for (int64_t head = 0; head < a->num_heads; head++)
        for (int64_t row = begin; row < end; row++) {
            const int64_t *const q = a->q.strides, *const out = a->out.strides;
            touch((const float *)a->q.data + sequence * q[0] + head * q[1] + row * q[2], kind.dim * 4);
            memset((float *)a->out.data + sequence * out[0] + head * out[1] + row * out[2], 0, (size_t)kind.dim_v * 4);
        }
}

static void touch_lists(const attune_arguments *a) {
    for (int64_t row = 0; row < a->seq_q; row++) {
        FUZZ_REQUIRE(a->kv_id_lens[row] >= 0 && a->kv_id_lens[row] <= a->num_ids);
        for (int64_t i = 0; i < a->kv_id_lens[row]; i++) {
            const int32_t key = a->kv_ids[row * a->num_ids + i];
            FUZZ_REQUIRE(key >= 0 && key < a->seq_kv);
        }
    }
}

static void touch_mask(const attune_arguments *a) {
    const bool has_lists = kind.class >= KERNEL_LISTS && kind.class <= KERNEL_LISTS_HEADS_BIAS;
    const int64_t columns = has_lists ? a->num_ids : a->seq_kv, bytes = kind.class == KERNEL_LISTS_HEADS_BIAS ? 4 : 2;
    const int numbers = kind.class == KERNEL_RANGES ? 2 : kind.class == KERNEL_HOLES ? 4 : 0;
    if (has_lists) touch_lists(a);
    for (int64_t row = 0; row < a->seq_q; row++) {
        const int64_t *const bias = a->attn_bias.strides;
        for (int64_t head = 0; a->attn_bias.data && head < a->num_heads; head++)
            touch((const char *)a->attn_bias.data + (head * bias[1] + row * bias[2]) * bytes, columns * bytes);
        for (int i = 0; i < numbers; i++) {
            const int32_t key = ((const int32_t *)a->tensors[i].data)[row];
            FUZZ_REQUIRE(key >= 0 && key <= a->seq_kv);
        }
        if (kind.class == KERNEL_SLOPES)
            touch((const uint16_t *)a->tensors[1].data + row * a->tensors[1].strides[0], columns * 2);
    }
    if (kind.class == KERNEL_SLOPES) touch(a->tensors[0].data, a->num_heads * 4);
    if (a->alibi_slopes) touch(a->alibi_slopes, a->num_heads * 4);
    if (kind.has_sinks) touch(a->sinks, a->num_heads * 4);
}

attune_status runner_run(runner *threads, const common_plan *p, const attune_arguments *a, const char **message) {
    (void)threads, (void)p, (void)message;
    const bool is_ragged = kind.class == KERNEL_GROUPS;
    FUZZ_REQUIRE(a->num_heads == a->num_kv_heads * kind.group);
    for (int64_t s = 0; s < a->batch; s++) {
        const int64_t keys = a->kv_lens ? a->kv_lens[s] : a->seq_kv;
        FUZZ_REQUIRE(keys >= 0 && keys <= a->seq_kv);
        touch_keys(a, s, keys);
        if (is_ragged)
            touch_rows(a, 0, a->cu_seqlens_q[s], a->cu_seqlens_q[s + 1]);
        else
            touch_rows(a, s, 0, a->seq_q);
    }
    if (is_ragged) FUZZ_REQUIRE(!a->cu_seqlens_q[0] && a->cu_seqlens_q[a->batch] == a->total_q);
    if (!is_ragged) touch_mask(a);
    return ATTUNE_OK;
}

void runner_loop(const runner *threads, attune_range_fn *fn, void *argument, int64_t n) {
    (void)threads;
    fn(argument, 0, n, 0);
}

/* ---- Tensors ---- */

static const uint8_t *input;
static size_t left;

static int64_t byte(void) { return left ? left--, *input++ : 0; }

/* Mostly few, sometimes blocks of a quantised type, rarely what no tensor has. */
static int64_t some(void) {
    static const int64_t odd[] = {0, -1, (int64_t)1 << 31, (int64_t)1 << 40, 300};
    const int64_t b = byte();
    return b < 200 ? 1 + b % 9 : b < 230 ? b - 190 : b < 251 ? 32 * (b % 9 + 1) : odd[b - 251];
}

static cache_format format_of(int type) { return cache_formats[type >= 0 && type < GGML_NUM_CACHES ? type : GGML_F16]; }

/* How a tensor may be spoiled: any stride, any size, a gap between rows. */
enum { SPOIL_STRIDE = 4, SPOIL_SIZE = 8, HAS_GAP = 16 };

static ggml_tensor *make(int type, const int64_t ne[4], int64_t how) {
    static const int orders[4][4] = {{0, 1, 2, 3}, {0, 2, 1, 3}, {0, 1, 3, 2}, {0, 3, 2, 1}};
    const cache_format f = format_of(type);
    ggml_tensor *const t = calloc(1, sizeof *t);
    size_t bytes = (size_t)f.bytes;
    if (!t) abort();
    t->type = type;
    for (int i = 0; i < 4; i++) {
        const int d = orders[how & 3][i];
        t->ne[d] = ne[d];
        t->nb[d] = bytes;
        bytes *= (size_t)(d ? ne[d] : ne[d] / f.columns);
        if (!i && how & HAS_GAP) bytes += 3 * (size_t)f.bytes;
    }
    if (how & SPOIL_STRIDE) t->nb[byte() % 4] = (size_t)(byte() * 2);
    if (how & SPOIL_SIZE) t->ne[byte() % 4] = some();
    return t;
}

/* Allocates what the tensor spans, if that is little. */
static bool allocate(ggml_tensor *t) {
    enum { MOST = 1 << 20 };
    const cache_format f = format_of(t->type);
    size_t span = (size_t)f.bytes;
    for (int d = 0; d < 4; d++) {
        const int64_t count = d ? t->ne[d] : t->ne[0] / f.columns;
        if (count < 1 || count > MOST || t->nb[d] > MOST) return false;
        span += (size_t)(count - 1) * t->nb[d];
    }
    t->data = span <= MOST ? malloc(span) : NULL;
    for (size_t i = 0; t->data && i < span; i++) ((uint8_t *)t->data)[i] = (uint8_t)(7 * i);
    return t->data != NULL;
}

static void free_node(ggml_tensor *op) {
    for (int i = 0; i < GGML_ABI_SOURCES; i++) {
        if (op->src[i] && !op->src[i]->view_src) free(op->src[i]->data);
        free(op->src[i]);
    }
    free(op->data);
    free(op);
}

/* ---- Masks ---- */

typedef struct mask_form {
    int64_t form, a, b, c;
} mask_form;

static bool is_visible(const mask_form *m, int64_t rows, int64_t keys, int64_t row, int64_t key) {
    const int64_t at = m->a % (keys + 1), age = ((at + row - key) % keys + keys) % keys;
    switch (m->form % 12) {
    case 0: return true;
    case 1: return key < at;
    case 2: return key <= row + at;
    case 3: return key <= row + at && key + m->b % 30 > row + at;
    case 4: return age < m->b % (keys + 1);
    case 5: return key % (1 + m->b % 4) == row % (1 + m->b % 4);
    case 6: return byte() % (1 + m->b) < m->c;
    case 7: return key >= row - m->b % 20 && key <= row + m->c % 20;
    case 8: return key < at ? key % 4 == 0 : key - at <= row;
    case 9: return key != (at + row) % keys && key != m->b % keys;
    case 10: return row % 3 && key <= row + at;
    default: return row < rows / 2 ? key < at : key >= at;
    }
}

/* Visible keys have 0, a byte's number, or ALiBi's 0 at the row's own key. */
static void fill_mask(ggml_tensor *t) {
    const mask_form m = {byte(), byte(), byte(), byte()};
    const int64_t kind_of_bias = byte() % 4, rows = t->ne[1], keys = t->ne[0];
    for (int64_t s = 0; s < t->ne[3]; s++)
        for (int64_t h = 0; h < t->ne[2]; h++)
            for (int64_t row = 0; row < rows; row++)
                for (int64_t key = 0; key < keys; key++) {
                    const size_t offset = (size_t)key * t->nb[0] + (size_t)row * t->nb[1] + (size_t)h * t->nb[2];
                    uint16_t x = kind_of_bias == 3 ? (uint16_t)(byte() << 8) : 0;
                    if (!is_visible(&m, rows, keys, row, key)) x = 0xfc00;
                    memcpy((char *)t->data + offset + (size_t)s * t->nb[3], &x, sizeof x);
                }
}

/* ---- Nodes ---- */

static int some_type(void) {
    enum { UNKNOWN = 40 };
    const int64_t b = byte() % (GGML_NUM_CACHES + 4);
    return b < GGML_NUM_CACHES ? (int)b : b == GGML_NUM_CACHES ? UNKNOWN : GGML_F16;
}

static ggml_tensor *make_node(void) {
    const int64_t streams = 1 + byte() % 3, kv_heads = some(), group = 1 + byte() % 6, rows = some(), keys = some();
    const int64_t dim = some(), dim_v = byte() % 4 ? dim : some(), heads = kv_heads * group;
    const int64_t spoiled = byte() % 8; /* that tensor may be of any kind */
    const int k_type = some_type(), v_type = byte() % 4 ? k_type : some_type();
    int64_t how[5];
    for (int i = 0; i < 5; i++) how[i] = byte() & (i == spoiled ? 31 : 3 + HAS_GAP);
    ggml_tensor *const op = make(GGML_F32, (int64_t[]){dim_v, heads, rows, streams}, spoiled == 5 ? byte() & 31 : 0);
    op->src[0] = make(spoiled == 6 ? some_type() : GGML_F32, (int64_t[]){dim, rows, heads, streams}, how[0]);
    op->src[1] = make(k_type, (int64_t[]){dim, keys, kv_heads, streams}, how[1]);
    op->src[2] = make(v_type, (int64_t[]){dim_v, keys, kv_heads, streams}, how[2]);
    const int64_t mask = byte();
    if (mask % 4)
        op->src[3] = make(mask == 1 ? GGML_F32 : GGML_F16,
                          (int64_t[]){keys, rows + mask % 3, mask & 64 ? heads : 1, mask & 128 ? streams : 1},
                          how[3] & (SPOIL_STRIDE + SPOIL_SIZE + HAS_GAP));
    if (byte() % 3 == 0) op->src[4] = make(GGML_F32, (int64_t[]){heads, 1, 1, 1}, how[4] & (SPOIL_STRIDE + SPOIL_SIZE));
    const float numbers[] = {0.125F, byte() % 3 ? 0 : 8, byte() % 4 ? 0 : 3};
    memcpy(op->op_params, numbers, sizeof numbers);
    if (spoiled == 7)
        for (size_t i = 0; i < sizeof numbers; i++) ((uint8_t *)op->op_params)[i] = (uint8_t)byte();
    return op;
}

static bool allocate_all(ggml_tensor *op, bool v_in_k) {
    ggml_tensor *const k = op->src[1], *const v = op->src[2];
    if (v_in_k && k->type == v->type && v->ne[0] <= k->ne[0]) {
        memcpy(v->nb, k->nb, sizeof v->nb);
        v->view_src = k;
    }
    for (int i = 0; i < 5; i++)
        if (op->src[i] && !op->src[i]->view_src && !allocate(op->src[i])) return false;
    if (v->view_src) v->data = k->data;
    return allocate(op);
}

static void compute(ggml_tensor *op) {
    attend_state state = {.threads.n_threads = 1};
    ggml_node node;
    const char *reason = node_read(op, &node);
    if (reason) return;
    kernels_are = (library)(byte() % 3);
    if (!allocate_all(op, byte() % 8 == 0)) return;
    if (op->src[3]) fill_mask(op->src[3]);
    if (!attend(&state, &node, &reason)) FUZZ_REQUIRE(reason && *reason);
    attend_free(&state);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    for (int c = 0; c < GGML_NUM_CACHES; c++) host.caches[c] = c;
    input = data;
    left = size;
    ggml_tensor *const op = make_node();
    compute(op);
    free_node(op);
    return 0;
}
