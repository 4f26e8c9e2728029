#define _GNU_SOURCE
#include "support/problems.h"
#include "support/calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

attune_context *sample_context;

int sample_context_open(void **state) {
    (void)state;
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    options.cache_dir = "";
    return attune_context_create(&options, &sample_context) != ATTUNE_OK;
}

int sample_context_close(void **state) {
    (void)state;
    attune_context_destroy(sample_context);
    return 0;
}

static void set_sizes(attune_arguments *a, const char *text) {
    const struct {
        const char *name;
        int64_t *field;
    } sizes[] = {
        {"seq_q", &a->seq_q},
        {"seq_kv", &a->seq_kv},
        {"seq_new", &a->seq_new},
        {"num_rows", &a->num_rows},
        {"num_ids", &a->num_ids},
        {"total_q", &a->total_q},
        {"total_kv", &a->total_kv},
        {"num_pages", &a->num_pages},
        {"max_pages", &a->max_pages},
        {"mask_seq_kv", &a->mask_seq_kv},
        {"bias_seq_kv", &a->bias_seq_kv},
        {"rotary_positions", &a->rotary_positions},
        {"rotary_batch_stride", &a->rotary_batch_stride},
    };
    char name[32];
    for (int n = 0; text && *text; text += n) {
        long long value;
        if (sscanf(text, "%31[a-z_]=%lld%n", name, &value, &n) != 2) fail_msg("sizes: %s", text);
        size_t i = 0;
        while (i < sizeof sizes / sizeof *sizes && strcmp(sizes[i].name, name)) i++;
        if (i == sizeof sizes / sizeof *sizes) fail_msg("no size is called %s", name);
        *sizes[i].field = value;
        n += text[n] == ',';
    }
}

/* ---- Memory ---- */

static size_t element_bytes(attune_dtype dtype) {
    if (dtype == ATTUNE_I8 || dtype == ATTUNE_F8) return 1;
    return dtype == ATTUNE_BOOL ? 1 : dtype == ATTUNE_F16 || dtype == ATTUNE_BF16 ? 2 : dtype == ATTUNE_F64 ? 8 : 4;
}

static size_t extent(const attune_tensor *t) {
    int64_t elements = 1;
    for (int d = 0; d < t->rank; d++) {
        if (t->dims[d] == 0) return 0;
        elements += (t->dims[d] - 1) * t->strides[d];
    }
    return (size_t)elements * element_bytes(t->dtype);
}

static void allocate(tensor_memory *m, size_t bytes, size_t align, placement where) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), inside = (bytes + page - 1) / page * page;
    *m = (tensor_memory){.bytes = bytes};
    if (where == ON_THE_HEAP) {
        /* No byte more than asked for: sanitizers watch the end. */
        assert_int_equal(posix_memalign(&m->data, align, bytes ? bytes : 1), 0);
        return;
    }
    m->map_bytes = inside + 2 * page;
    m->map = mmap(NULL, m->map_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(m->map, MAP_FAILED);
    if (inside) assert_int_equal(mprotect((char *)m->map + page, inside, PROT_READ | PROT_WRITE), 0);
    m->data = (char *)m->map + page + (where == BEFORE_A_GUARD ? inside - bytes : 0);
}

static void make_read_only(const tensor_memory *m) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (m->map_bytes > 2 * page)
        assert_int_equal(mprotect((char *)m->map + page, m->map_bytes - 2 * page, PROT_READ), 0);
}

/* ---- Data ---- */

static unsigned next(unsigned *seed) {
    *seed = *seed * 1103515245u + 12345u;
    return *seed >> 16 & 0x7fff;
}

static void fill(attune_dtype dtype, void *data, size_t bytes, unsigned seed) {
    const size_t size = element_bytes(dtype);
    for (size_t i = 0; i < bytes / size; i++) {
        char *at = (char *)data + i * size;
        const unsigned random = next(&seed);
        const float number = (float)random / 16384.0f - 1.0f;
        const double wide = (double)number;
        const uint16_t half = (uint16_t)(0x3800u | (random & 0x3ffu) | (random & 0x400u) << 5); /* +-[0.5, 1) */
        /* Of a byte: true or false, or a code, which of f8 is at most 0.875. */
        const uint8_t flag = dtype == ATTUNE_BOOL ? random % 4 != 0 : (uint8_t)(random % 0x37 | (random & 0x400) >> 3);
        const void *from = size == 1   ? (const void *)&flag
                           : size == 2 ? (const void *)&half
                           : size == 8 ? (const void *)&wide
                                       : (const void *)&number;
        memcpy(at, from, size);
    }
}

/* All weights and biases that the problem has. */
static void fill_weights(const attune_problem *p, const tensor_memory *m) {
    attune_mha_weights weights;
    void *data[ATTUNE_NUM_WEIGHTS] = {NULL};
    if (attune_mha_weights_init(&weights, p, ATTUNE_OUT_IN)) fail_msg("%s", attune_last_message());
    for (int i = 0; i < ATTUNE_NUM_WEIGHTS; i++) {
        const attune_weight *w = &weights.tensor[i];
        if (w->rank == 0 || i == ATTUNE_QKV_WEIGHT || i == ATTUNE_QKV_BIAS) continue;
        int64_t elements = 1;
        for (int d = 0; d < w->rank; d++) elements *= w->dims[d];
        const size_t bytes = (size_t)elements * element_bytes(w->dtype);
        weights.tensor[i].data = data[i] = malloc(bytes);
        assert_non_null(data[i]);
        fill(w->dtype, data[i], bytes, 100u + (unsigned)i);
    }
    if (attune_pack_weights(p, &weights, m->data, m->bytes)) fail_msg("%s", attune_last_message());
    for (int i = 0; i < ATTUNE_NUM_WEIGHTS; i++) free(data[i]);
}

static void fill_cumulative(int32_t *table, const int lengths[SAMPLE_ENTRIES], int64_t entries) {
    table[0] = 0;
    for (int64_t b = 0; b < entries; b++) table[b + 1] = table[b] + lengths[b];
}

/* Pages from the last to the first; columns that no key lies in hold no page. */
static void fill_pages(const attune_tensor *t, int32_t *table, const sample *from, int64_t page_size) {
    int32_t page = 0;
    for (int64_t b = 0; b < t->dims[0]; b++)
        for (int64_t c = 0; c < t->dims[1]; c++) table[b * t->dims[1] + c] = c * page_size < from->kv[b] ? page++ : -7;
    for (int64_t i = 0; i < t->dims[0] * t->dims[1]; i++)
        if (table[i] >= 0) table[i] = page - 1 - table[i];
}

/* Lists of keys in no order, of different lengths up to 249. */
static void fill_lists(const attune_tensor *t, int32_t *table, const sample *from, const attune_problem *p) {
    const bool is_ids = t->rank == 3;
    const int64_t lists = t->dims[0] * t->dims[1], places = is_ids ? t->dims[2] : 1;
    for (int64_t list = 0, b = 0, end = from->q[0]; list < lists; list++) {
        while (p->is_ragged && list >= end && b < SAMPLE_ENTRIES - 1) end += from->q[++b];
        if (!p->is_ragged) b = list / t->dims[1];
        for (int64_t i = 0; i < places; i++)
            table[list * places + i] = is_ids ? (int32_t)((i * 7 + list * 3) % (from->kv[b] ? from->kv[b] : 1))
                                              : (int32_t)((list * 211 + 137) % 250);
    }
}

static void fill_table(const attune_tensor *t, void *data, const sample *from, const attune_problem *p) {
    int32_t *table = data;
    const int64_t count = t->dims[0] * (t->rank == 2 ? t->dims[1] : 1);
    if (!strcmp(t->name, "cu_seqlens_q")) {
        fill_cumulative(table, from->q, t->dims[0] - 1);
    } else if (!strcmp(t->name, "cu_seqlens_kv")) {
        fill_cumulative(table, from->kv, t->dims[0] - 1);
    } else if (!strcmp(t->name, "block_table")) {
        fill_pages(t, table, from, p->page_size);
    } else if (!strncmp(t->name, "kv_id", 5)) {
        fill_lists(t, table, from, p);
    } else {
        const bool lens = !strcmp(t->name, "kv_lens");
        for (int64_t i = 0; i < count; i++) table[i] = lens ? from->kv[i] : (int32_t)(i * 5 % 4);
    }
}

void sample_call_open(sample_call *c, const sample *from, placement where) {
    *c = (sample_call){.problem = ATTUNE_PROBLEM_INIT};
    if (attune_problem_parse(&c->problem, from->problem) || attune_arguments_init(&c->arguments, &c->problem))
        fail_msg("%s: %s", from->problem, attune_last_message());
    set_sizes(&c->arguments, from->sizes);
    if (attune_tensors(&c->problem, &c->arguments, c->tensors, SAMPLE_TENSORS, &c->count))
        fail_msg("%s: %s", from->problem, attune_last_message());
    for (size_t i = 0; i < c->count; i++) {
        const attune_tensor *t = &c->tensors[i];
        tensor_memory *m = &c->memory[i];
        const bool packed = !strcmp(t->name, "packed_weights");
        allocate(m, extent(t), packed ? 64 : 16, where);
        if (packed)
            fill_weights(&c->problem, m);
        else if (t->dtype == ATTUNE_I32)
            fill_table(t, m->data, from, &c->problem);
        else
            fill(t->dtype, m->data, m->bytes, (unsigned)i + 1);
        /* Codes become numbers of about 1. */
        const size_t scales = strcmp(t->name, "k_scale") && strcmp(t->name, "v_scale") ? 0 : m->bytes / sizeof(float);
        for (size_t n = 0; n < scales; n++) ((float *)m->data)[n] /= 64;
        if (!t->is_output) make_read_only(m);
        memcpy((char *)&c->arguments + t->pointer_offset, &m->data, sizeof m->data);
    }
}

void sample_call_close(sample_call *c) {
    for (size_t i = 0; i < c->count; i++) {
        if (c->memory[i].map)
            munmap(c->memory[i].map, c->memory[i].map_bytes);
        else
            free(c->memory[i].data);
    }
}

void sample_call_run(attune_context *context, const sample_call *call, const mha_schedule *schedule) {
    attune_kernel *kernel = NULL;
    attune_status status = attune_compile(context, &call->problem, TEXT_OF(schedule), &kernel);
    if (!status) status = attune_run(context, kernel, &call->arguments);
    if (status) fail_msg("%s", attune_last_message());
    attune_kernel_release(kernel);
}

const attune_tensor *sample_call_tensor(const sample_call *c, const char *name) {
    for (size_t i = 0; i < c->count; i++)
        if (!strcmp(c->tensors[i].name, name)) return &c->tensors[i];
    return NULL;
}

void *sample_call_find(const sample_call *c, const char *name, size_t *bytes) {
    const attune_tensor *const tensor = sample_call_tensor(c, name);
    const tensor_memory *const memory = tensor ? &c->memory[tensor - c->tensors] : NULL;
    if (bytes) *bytes = memory ? memory->bytes : 0;
    return memory ? memory->data : NULL;
}

void *sample_call_data(const sample_call *c, const char *name) {
    void *const data = sample_call_find(c, name, NULL);
    if (!data) fail_msg("there is no tensor %s", name);
    return data;
}

void sample_tensors_text(const attune_tensor *tensors, size_t count, char *text, size_t capacity) {
    static const char *const dtypes[] = {"?", "f32", "f16", "bf16", "f64", "bool", "i32", "i8", "f8"};
    size_t n = 0;
    text[0] = '\0';
    for (size_t i = 0; i < count; i++) {
        const attune_tensor *t = &tensors[i];
        n += (size_t)snprintf(text + n, capacity - n, "%s %s ", t->name, dtypes[t->dtype]);
        for (int d = 0; d < t->rank; d++)
            n += (size_t)snprintf(text + n, capacity - n, "%s%lld", d ? "x" : "", (long long)t->dims[d]);
        for (int d = 0; d < t->rank; d++)
            n += (size_t)snprintf(text + n, capacity - n, "%c%lld", d ? ':' : ' ', (long long)t->strides[d]);
        n += (size_t)snprintf(text + n, capacity - n, "%s%s\n", t->is_input ? " in" : "", t->is_output ? " out" : "");
    }
}

void sample_call_assert_refused(attune_context *context, const sample_call *c, const attune_arguments *arguments,
                                const char *part) {
    sample_call before = *c;
    for (size_t i = 0; i < c->count; i++) {
        before.memory[i].data = malloc(c->memory[i].bytes + 1);
        memcpy(before.memory[i].data, c->memory[i].data, c->memory[i].bytes);
    }
    const attune_status status = attune_run_interpreted(context, &c->problem, NULL, arguments);
    if (status != ATTUNE_INVALID_ARGUMENT || !strstr(attune_last_message(), part))
        fail_msg("expected \"%s\", got %s: %s", part, attune_status_name(status), attune_last_message());
    assert_true(sample_calls_agree(c, &before));
    for (size_t i = 0; i < c->count; i++) free(before.memory[i].data);
}

bool sample_calls_agree(const sample_call *a, const sample_call *b) {
    assert_int_equal(a->count, b->count);
    for (size_t i = 0; i < a->count; i++)
        if (a->tensors[i].is_output && memcmp(a->memory[i].data, b->memory[i].data, a->memory[i].bytes)) return false;
    return true;
}
