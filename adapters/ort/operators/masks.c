/* Masks and biases over the keys of a call. */
#include "call.h"

#include <string.h>

/* ---- Padding ---- */

/* A mask that hides all keys hides none: ONNX Runtime adds the same large number to all scores then. */
static void keep_or_all(const int32_t *given, uint8_t *kept, int64_t count) {
    bool any = false;
    for (int64_t i = 0; i < count; i++) any |= (kept[i] = given[i] != 0);
    if (!any) memset(kept, 1, (size_t)count);
}

/* The number of keys before the first padding; -1 if there are keys after it. */
static int64_t prefix(const int32_t *given, int64_t count) {
    int64_t length = 0;
    while (length < count && given[length]) length++;
    for (int64_t i = length; i < count; i++)
        if (given[i]) return -1;
    return length ? length : count;
}

static bool mask_by_length(call *c, const int32_t *lengths) {
    int32_t *const own = call_scratch(c, (size_t)c->q.dims[0] * sizeof *own);
    if (!own) return false;
    for (int64_t b = 0; b < c->q.dims[0]; b++)
        own[b] = lengths[b] <= 0 || lengths[b] > c->keys ? (int32_t)c->keys : lengths[b];
    c->kv_lens = own;
    return true;
}

/* rows: 1, or the queries, each with a mask of its own. */
static bool mask_by_keys(call *c, const int32_t *given, int64_t rows) {
    const int64_t batch = c->q.dims[0], keys = c->keys;
    uint8_t *const kept = call_scratch(c, (size_t)(batch * rows * keys));
    if (!kept) return false;
    for (int64_t i = 0; i < batch * rows; i++) keep_or_all(given + i * keys, kept + i * keys, keys);
    c->mask = (call_mask){
        .data = kept, .dtype = ATTUNE_BOOL, .strides = {rows * keys, 0, rows > 1 ? keys : 0, 1}, .columns = keys};
    return true;
}

/* Lengths, unless there are keys after the padding. */
static bool mask_of_each(call *c, const int32_t *given) {
    const int64_t batch = c->q.dims[0], keys = c->keys;
    int32_t *const lengths = call_scratch(c, (size_t)batch * sizeof *lengths);
    if (!lengths) return false;
    bool is_full = true;
    for (int64_t b = 0; b < batch; b++) {
        const int64_t length = prefix(given + b * keys, keys);
        if (length < 0) return mask_by_keys(c, given, 1);
        lengths[b] = (int32_t)length;
        is_full &= length == keys;
    }
    if (!is_full) c->kv_lens = lengths;
    return true;
}

bool call_padding(call *c, const char *name, const tensor *mask) {
    const int64_t batch = c->q.dims[0], keys = c->keys;
    if (!mask->is_given || !batch || !keys) return true;
    if (mask->type != ORT_INT32) return call_fail(c, "%s must be int32", name);
    if (mask->rank == 1 && mask->dims[0] == batch) return mask_by_length(c, mask->data);
    if (mask->rank == 1 && mask->dims[0] == 3 * batch + 2) {
        c->code = ORT_NOT_IMPLEMENTED;
        return call_fail(c, "%s of [3 * batch + 2], lengths and starts of sequences, is not supported", name);
    }
    if (mask->rank == 3)
        return call_expect(c, name, mask, 3, (int64_t[]){batch, c->q.dims[2], keys}) &&
               mask_by_keys(c, mask->data, c->q.dims[2]);
    if (!call_expect(c, name, mask, 2, (int64_t[]){batch, keys})) return false;
    return mask_of_each(c, mask->data);
}

/* ---- Biases ---- */

bool call_bias(call *c, const char *name, const tensor *t) {
    const int64_t full[4] = {c->q.dims[0], c->q.dims[1], c->q.dims[2], c->keys};
    const bool fits = t->rank == 4 && (t->dims[0] == full[0] || t->dims[0] == 1) &&
                      (t->dims[1] == full[1] || t->dims[1] == 1) && t->dims[2] == full[2] && t->dims[3] == full[3];
    char have[128], want[128];
    if (!fits)
        return call_fail(c, "%s is of shape [%s]; it must be of shape [%s], or 1 in place of the first two", name,
                         call_print_dims(t->rank, t->dims, have), call_print_dims(4, full, want));
    const int64_t matrix = full[2] * full[3];
    c->bias =
        (call_mask){.data = t->data,
                    .dtype = t->dtype,
                    .strides = {t->dims[0] == 1 ? 0 : t->dims[1] * matrix, t->dims[1] == 1 ? 0 : matrix, full[3], 1},
                    .columns = full[3]};
    return true;
}

/* A single column, written out for all keys. */
static const void *repeat(call *c, const tensor *t) {
    const size_t bytes = adapter_type_bytes(t->dtype);
    const int64_t rows = tensor_count(t);
    char *const wide = call_scratch(c, (size_t)(rows * c->keys) * bytes);
    for (int64_t i = 0; wide && i < rows * c->keys; i++)
        memcpy(wide + (size_t)i * bytes, (const char *)t->data + (size_t)(i / c->keys) * bytes, bytes);
    return wide;
}

bool call_any_bias(call *c, const char *name, const tensor *t) {
    const int64_t full[4] = {c->q.dims[0], c->q.dims[1], c->q.dims[2], c->keys};
    bool fits = t->rank >= 1 && t->rank <= 4;
    for (int i = 0; fits && i < t->rank; i++) fits = t->dims[i] == 1 || t->dims[i] == full[4 - t->rank + i];
    char have[128], want[128];
    if (!fits)
        return call_fail(c, "%s is of shape [%s]; it must broadcast to [%s]", name,
                         call_print_dims(t->rank, t->dims, have), call_print_dims(4, full, want));
    c->bias = (call_mask){.data = t->data, .dtype = t->dtype, .strides = {0, 0, 0, 1}, .columns = c->keys};
    if (t->dims[t->rank - 1] != c->keys && !(c->bias.data = repeat(c, t))) return false;
    int64_t stride = c->keys;
    for (int i = t->rank - 2; i >= 0; i--) {
        c->bias.strides[4 - t->rank + i] = t->dims[i] == 1 ? 0 : stride;
        stride *= t->dims[i];
    }
    return true;
}
