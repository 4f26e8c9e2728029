#include "weights.h"

#include "attune_torch.h"
#include "weights_print.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* A record belongs to four tensors. It is found by the addresses of PyTorch's objects, which are not used again while
 * the tensors live: Python tells when one of them dies (watch). The blob is valid while neither their memory nor their
 * versions nor the prints of their values change. */
enum { BUCKETS = 256, MAX_RECORDS = 4096, LITTLE_USE = 8, MUCH_USE = 64, OLD_AGE = 4096 };

struct weights_blob {
    atomic_int references;
    size_t bytes;
    void *packed;
};

typedef struct record {
    struct record *next;
    const void *object[WEIGHTS_COUNT];
    int64_t embed_dim, num_heads;
    attune_dtype dtype;
    weights_state state; /* of the blob; without one, of the last call */
    weights_blob *blob;
    uint32_t calls;   /* with this state; with a blob, those that it has served */
    uint32_t changes; /* in a row after which the blob was of little use */
    uint64_t last_used;
    bool is_packing, is_watched, is_parameter;
} record;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static record *buckets[BUCKETS];
static uint32_t num_records;
static uint64_t now;       /* calls so far */
static uint32_t temporary; /* blobs of little use in a row whose weights were no parameters: autocast makes such */
static atomic_size_t packed_bytes; /* of all blobs, those in use by calls included */
static size_t most_bytes = (size_t)1 << 30;
static atomic_int verify_all;

/* ---- Blobs ---- */

static weights_blob *new_blob(size_t bytes) {
    weights_blob *const blob = malloc(sizeof *blob);
    void *const packed = blob ? aligned_alloc(64, (bytes + 63) & ~(size_t)63) : NULL;
    if (!packed) {
        free(blob);
        return NULL;
    }
    atomic_init(&blob->references, 1);
    blob->bytes = bytes;
    blob->packed = packed;
    atomic_fetch_add(&packed_bytes, bytes);
    return blob;
}

void weights_release(weights_blob *blob) {
    if (!blob || atomic_fetch_sub(&blob->references, 1) != 1) return;
    atomic_fetch_sub(&packed_bytes, blob->bytes);
    free(blob->packed);
    free(blob);
}

const void *weights_packed(const weights_blob *blob) { return blob->packed; }

/* ---- Records ---- */

static record **bucket_of(const void *object) {
    const uint64_t mixed = (uint64_t)(uintptr_t)object * 0x9e3779b97f4a7c15u;
    return &buckets[mixed >> 56];
}

static record *find(const weights_request *r, const void *const object[WEIGHTS_COUNT]) {
    for (record *e = *bucket_of(object[0]); e; e = e->next)
        if (!memcmp(e->object, object, sizeof e->object) && e->num_heads == r->problem->num_heads &&
            e->embed_dim == r->problem->embed_dim && e->dtype == r->problem->dtype)
            return e;
    return NULL;
}

/* How many calls run as stock before weights are packed (again), after so many blobs in a row of little use. */
static uint32_t waiting(uint32_t blobs) { return blobs < 4 ? 0 : blobs < 10 ? 1u << (blobs - 4) : 64; }

/* Takes the blob away after its weights have changed. */
static void drop_blob(record *e) {
    if (!e->blob) return;
    if (e->calls < LITTLE_USE) e->changes++;
    if (e->calls >= MUCH_USE) e->changes = 0;
    weights_release(e->blob);
    e->blob = NULL;
}

static void unlink_record(record **link) {
    record *const e = *link;
    *link = e->next;
    num_records--;
    weights_release(e->blob);
    free(e);
}

/* Removes the record that has not been used for the longest time, if that is long ago. */
static bool evict_oldest(bool with_blob) {
    record **oldest = NULL;
    for (int i = 0; i < BUCKETS; i++)
        for (record **link = &buckets[i]; *link; link = &(*link)->next)
            if (!(*link)->is_packing && (!with_blob || (*link)->blob) &&
                (!oldest || (*link)->last_used < (*oldest)->last_used))
                oldest = link;
    if (!oldest || now - (*oldest)->last_used < OLD_AGE) return false;
    unlink_record(oldest);
    return true;
}

static record *add(const weights_request *r, const void *const object[WEIGHTS_COUNT]) {
    if (num_records >= MAX_RECORDS && !evict_oldest(false)) return NULL;
    record *const e = calloc(1, sizeof *e);
    if (!e) return NULL;
    memcpy(e->object, object, sizeof e->object);
    e->embed_dim = r->problem->embed_dim;
    e->num_heads = r->problem->num_heads;
    e->dtype = r->problem->dtype;
    e->next = *bucket_of(object[0]);
    *bucket_of(object[0]) = e;
    num_records++;
    return e;
}

/* ---- Packing ---- */

static weights_blob *pack(const weights_request *r, attune_status *status) {
    attune_mha_weights weights;
    weights_blob *blob = NULL;
    size_t bytes = 0;
    *status = attune_mha_weights_init(r->problem, ATTUNE_OUT_IN, &weights);
    if (!*status) *status = attune_packed_weights_size(r->problem, &bytes);
    if (*status || !(blob = new_blob(bytes))) return NULL;
    weights.tensor[ATTUNE_QKV_WEIGHT].data = r->data[WEIGHTS_QKV];
    weights.tensor[ATTUNE_QKV_BIAS].data = r->data[WEIGHTS_QKV_BIAS];
    weights.tensor[ATTUNE_OUT_WEIGHT].data = r->data[WEIGHTS_OUT];
    weights.tensor[ATTUNE_OUT_BIAS].data = r->data[WEIGHTS_OUT_BIAS];
    *status = attune_pack_weights(r->problem, &weights, blob->packed, bytes);
    if (!*status) return blob;
    weights_release(blob);
    return NULL;
}

static bool has_room(const weights_request *r) {
    size_t bytes = 0;
    if (attune_packed_weights_size(r->problem, &bytes)) return true; /* packing says why */
    while (atomic_load(&packed_bytes) + bytes > most_bytes)
        if (!evict_oldest(true)) return false;
    return true;
}

/* Python keeps weak references, calls attune_torch_forget when a tensor dies, and returns whether all are parameters. A
 * record that cannot be watched goes at once: other tensors may get the same addresses. */
static void watch(const weights_request *r, const void *const object[WEIGHTS_COUNT]) {
    torch_value stack[WEIGHTS_COUNT];
    for (int i = 0; i < WEIGHTS_COUNT; i++) {
        torch_tensor owned = NULL;
        torch.aoti_torch_new_tensor_handle(r->tensor[i], &owned);
        stack[i] = torch_value_of(owned);
    }
    if (torch.torch_call_dispatcher("attune::_watch_weights", "", stack, TORCH_ABI_2_10)) {
        attune_torch_forget(object[0]);
        return;
    }
    pthread_mutex_lock(&lock);
    record *const e = find(r, object);
    if (e) e->is_parameter = torch_bool_of(stack[0]);
    if (e && e->is_parameter) temporary = 0;
    pthread_mutex_unlock(&lock);
}

/* Decides under the lock. WEIGHTS_CHANGING without *pack_now is an answer. */
static weights_outcome decide(const weights_request *r, const void *const object[WEIGHTS_COUNT],
                              const weights_state *state, weights_blob **blob, bool *pack_now) {
    record *e = find(r, object);
    if (!e) e = add(r, object);
    if (!e) return WEIGHTS_FULL;
    e->last_used = ++now;
    if (!weights_state_equal(&e->state, state)) {
        drop_blob(e);
        e->state = *state;
        e->calls = 0;
    }
    e->calls += e->calls < UINT32_MAX;
    if (e->blob) {
        atomic_fetch_add(&e->blob->references, 1);
        *blob = e->blob;
        return WEIGHTS_READY;
    }
    if (e->is_packing) return WEIGHTS_BUSY;
    if (e->calls <= waiting(e->changes) || e->calls <= waiting(temporary)) return WEIGHTS_CHANGING;
    if (!has_room(r)) return WEIGHTS_FULL;
    *pack_now = e->is_packing = true;
    return WEIGHTS_CHANGING;
}

/* Gives the record its blob, unless the weights have changed or died in the meantime. */
static bool store(const weights_request *r, const void *const object[WEIGHTS_COUNT], const weights_state *state,
                  weights_blob *blob) {
    record *const e = find(r, object);
    if (!e) return false;
    e->is_packing = false;
    if (!blob || !weights_state_equal(&e->state, state)) return false;
    weights_release(e->blob);
    e->blob = blob;
    e->calls = 1;
    atomic_fetch_add(&blob->references, 1);
    const bool watched = e->is_watched;
    e->is_watched = true;
    return !watched;
}

weights_outcome weights_get(const weights_request *r, weights_blob **blob, attune_status *status) {
    const void *object[WEIGHTS_COUNT];
    weights_state state;
    bool pack_now = false;
    *blob = NULL;
    for (int i = 0; i < WEIGHTS_COUNT; i++) object[i] = torch_object_of(r->tensor[i]);
    weights_state_read(r, atomic_load_explicit(&verify_all, memory_order_relaxed), &state);
    pthread_mutex_lock(&lock);
    const weights_outcome outcome = decide(r, object, &state, blob, &pack_now);
    pthread_mutex_unlock(&lock);
    if (!pack_now) return outcome;

    weights_blob *const packed = pack(r, status);
    pthread_mutex_lock(&lock);
    const bool is_new = store(r, object, &state, packed);
    pthread_mutex_unlock(&lock);
    if (is_new) watch(r, object);
    if (!packed) return *status ? WEIGHTS_FAILED : WEIGHTS_FULL;
    ADAPTER_COUNT("block.packed");
    *blob = packed;
    return WEIGHTS_READY;
}

/* ---- For Python ---- */

void attune_torch_forget(const void *object) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < BUCKETS; i++)
        for (record **link = &buckets[i]; *link;) {
            record *const e = *link;
            bool belongs = !object;
            for (int t = 0; t < WEIGHTS_COUNT; t++) belongs = belongs || e->object[t] == object;
            if (belongs && object && e->blob && !e->is_parameter) temporary = e->calls < LITTLE_USE ? temporary + 1 : 0;
            if (belongs)
                unlink_record(link);
            else
                link = &e->next;
        }
    pthread_mutex_unlock(&lock);
}

void attune_torch_verify_weights(int all) { atomic_store(&verify_all, all); }

size_t attune_torch_packed_bytes(void) { return atomic_load(&packed_bytes); }

size_t attune_torch_limit_packed(size_t bytes) {
    pthread_mutex_lock(&lock);
    const size_t before = most_bytes;
    most_bytes = bytes;
    pthread_mutex_unlock(&lock);
    return before;
}

/* ---- fork ---- */

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void in_parent(void) { pthread_mutex_unlock(&lock); }
static void in_child(void) {
    for (int i = 0; i < BUCKETS; i++)
        for (record *e = buckets[i]; e; e = e->next) e->is_packing = false; /* that thread is not here */
    pthread_mutex_unlock(&lock);
}

const char *weights_open(void) {
    static bool is_open;
    const char *const failure = weights_print_open();
    if (!failure && !is_open) is_open = !pthread_atfork(before_fork, in_parent, in_child);
    return failure;
}
