/* A hash table by the addresses of tensor objects. Weights that keep changing are packed less and less often, and
 * records that nobody has used for long go first. */
#include "weights.h"

#include "attune_torch.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

/* A record of packed weights. Its key is the addresses of four of PyTorch's tensor objects. The blob is valid as long
 * as their memory, their versions and the fingerprints of their values do not change. Other tensors may get the same
 * addresses and memory later, so Python reports when a tensor's memory is freed (watch). */
enum { BUCKETS = 256, MAX_RECORDS = 4096, LITTLE_USE = 8, MUCH_USE = 64, OLD_AGE = 4096 };

struct weights_blob {
    atomic_int references;
    size_t bytes;
    void *packed;
};

/* What the weights are. Weights that are no parameters may exist for one call only, as with autocast. */
typedef enum owner { OWNER_UNKNOWN = 0, OWNER_MODULE, OWNER_OTHER } owner;

typedef struct record {
    struct record *next;
    const void *object[WEIGHTS_COUNT];
    int64_t embed_dim, num_heads;
    attune_dtype dtype;
    weights_state state; /* of the blob; without a blob, of the last call */
    weights_blob *blob;
    uint32_t calls;   /* calls with this state; with a blob, calls that have used it */
    uint32_t changes; /* consecutive blobs that were hardly used */
    uint64_t last_used;
    uint64_t generation; /* a number that is unique among all records */
    bool is_packing;
    owner owner;
} record;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static record *buckets[BUCKETS];
static uint32_t num_records;
static uint64_t now; /* calls so far */
static uint64_t last_generation;
static uint32_t temporary;         /* consecutive blobs that were hardly used, of weights that were no parameters */
static atomic_size_t packed_bytes; /* of all blobs, including those in use by calls */
static size_t most_bytes = (size_t)1 << 30;

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

/* How many calls PyTorch's kernel computes before weights are packed (again), after `blobs` consecutive blobs that
 * were hardly used. */
static uint32_t waiting(uint32_t blobs) { return blobs < 4 ? 0 : blobs < 10 ? 1u << (blobs - 4) : 64; }

/* Drops the blob after its weights have changed. */
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

/* Removes the least recently used record, if its last use is long ago. */
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
    e->generation = ++last_generation;
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
    *status = attune_mha_weights_init(&weights, r->problem, ATTUNE_OUT_IN);
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

/* Calls an operator of _block.py with the weights. False after a failure. */
static bool ask_python(const char *name, const weights_request *r, bool *answer) {
    torch_value stack[WEIGHTS_COUNT];
    for (int i = 0; i < WEIGHTS_COUNT; i++) {
        torch_tensor owned = NULL;
        torch.aoti_torch_new_tensor_handle(r->tensor[i], &owned);
        stack[i] = torch_value_of(owned);
    }
    if (torch.torch_call_dispatcher(name, "", stack, TORCH_ABI_2_10)) return false;
    *answer = torch_bool_of(stack[0]);
    return true;
}

/* Makes Python call attune_torch_forget_memory when a tensor's memory is freed. A record that cannot be watched is
 * removed immediately. */
static void watch(const weights_request *r, const void *const object[WEIGHTS_COUNT]) {
    bool are_parameters = false;
    const bool is_watched = ask_python("attune::_watch_weights", r, &are_parameters);
    pthread_mutex_lock(&lock);
    record *const e = find(r, object);
    if (e) e->owner = is_watched && are_parameters ? OWNER_MODULE : OWNER_OTHER;
    pthread_mutex_unlock(&lock);
    if (!is_watched) attune_torch_forget(object[0]);
}

/* Finds the record of a call, and counts the call. NULL if there is no room. */
static record *enter(const weights_request *r, const void *const object[WEIGHTS_COUNT], const weights_state *state) {
    record *e = find(r, object);
    if (!e) e = add(r, object);
    if (!e) return NULL;
    e->last_used = ++now;
    if (!weights_state_equal(&e->state, state)) {
        drop_blob(e);
        e->state = *state;
        e->calls = 0;
        e->owner = OWNER_UNKNOWN;
    }
    e->calls += e->calls < UINT32_MAX;
    return e;
}

/* What a call that has found its record must do. With STEP_PACK, is_packing is set. */
typedef enum step { STEP_ANSWER = 0, STEP_ASK, STEP_PACK } step;

static step decide(const weights_request *r, record *e, weights_blob **blob, weights_outcome *outcome) {
    *outcome = WEIGHTS_CHANGING;
    if (e->blob) {
        atomic_fetch_add(&e->blob->references, 1);
        *blob = e->blob;
        *outcome = WEIGHTS_READY;
    } else if (e->is_packing) {
        *outcome = WEIGHTS_BUSY;
    } else if (e->calls > waiting(e->changes)) {
        const bool waits = e->owner != OWNER_MODULE && e->calls <= waiting(temporary);
        if (waits) return e->owner == OWNER_UNKNOWN ? STEP_ASK : STEP_ANSWER;
        if (has_room(r)) {
            e->is_packing = true;
            return STEP_PACK;
        }
        *outcome = WEIGHTS_FULL;
    }
    return STEP_ANSWER;
}

/* The record of a call, if it has not been replaced since the call has begun. */
static record *find_again(const weights_request *r, const void *const object[WEIGHTS_COUNT], uint64_t generation) {
    record *const e = find(r, object);
    return e && e->generation == generation ? e : NULL;
}

/* Stores the blob in the record, unless the weights have been changed, freed or dropped in the meantime. */
static bool store(record *e, const weights_state *state, weights_blob *blob) {
    if (!e) return false;
    e->is_packing = false;
    if (!blob || !weights_state_equal(&e->state, state)) return false;
    weights_release(e->blob);
    e->blob = blob;
    e->calls = 1;
    atomic_fetch_add(&blob->references, 1);
    return true;
}

static weights_outcome pack_now(const weights_request *r, const void *const object[WEIGHTS_COUNT], uint64_t generation,
                                const weights_state *state, weights_blob **blob, attune_status *status) {
    weights_blob *const packed = pack(r, status);
    pthread_mutex_lock(&lock);
    const bool is_stored = store(find_again(r, object, generation), state, packed);
    pthread_mutex_unlock(&lock);
    if (is_stored) watch(r, object);
    if (!packed) return *status ? WEIGHTS_FAILED : WEIGHTS_FULL;
    ADAPTER_COUNT("block.packed");
    *blob = packed;
    return WEIGHTS_READY;
}

weights_outcome weights_get(const weights_request *r, weights_blob **blob, attune_status *status) {
    const void *object[WEIGHTS_COUNT];
    weights_state state;
    weights_outcome outcome = WEIGHTS_FULL;
    *blob = NULL;
    for (int i = 0; i < WEIGHTS_COUNT; i++) object[i] = torch_object_of(r->tensor[i]);
    weights_state_read(r, adapter_is_on(ADAPTER_VERIFY), &state);
    pthread_mutex_lock(&lock);
    record *e = enter(r, object, &state);
    const uint64_t generation = e ? e->generation : 0;
    step next = e ? decide(r, e, blob, &outcome) : STEP_ANSWER;
    pthread_mutex_unlock(&lock);
    if (next == STEP_ASK) {
        bool are_parameters = false;
        ask_python("attune::_are_parameters", r, &are_parameters);
        pthread_mutex_lock(&lock);
        e = find_again(r, object, generation);
        if (e) e->owner = are_parameters ? OWNER_MODULE : OWNER_OTHER;
        next = e ? decide(r, e, blob, &outcome) : STEP_ANSWER;
        pthread_mutex_unlock(&lock);
    }
    return next == STEP_PACK ? pack_now(r, object, generation, &state, blob, status) : outcome;
}

/* ---- For Python ---- */

static bool belongs_to(const void *const all[WEIGHTS_COUNT], const void *one) {
    for (int i = 0; i < WEIGHTS_COUNT; i++)
        if (all[i] == one) return true;
    return false;
}

void attune_torch_forget(const void *object) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < BUCKETS; i++)
        for (record **link = &buckets[i]; *link;) {
            if (!object || belongs_to((*link)->object, object))
                unlink_record(link);
            else
                link = &(*link)->next;
        }
    pthread_mutex_unlock(&lock);
}

void attune_torch_forget_memory(const void *data) {
    pthread_mutex_lock(&lock);
    for (int i = 0; i < BUCKETS; i++)
        for (record **link = &buckets[i]; *link;) {
            record *const e = *link;
            if (!belongs_to(e->state.data, data)) {
                link = &e->next;
                continue;
            }
            if (e->blob && e->owner != OWNER_MODULE) temporary = e->calls < LITTLE_USE ? temporary + 1 : 0;
            unlink_record(link);
        }
    pthread_mutex_unlock(&lock);
}

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
