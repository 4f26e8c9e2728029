/* The first call makes the object and leaves it in the node; a later one takes it if its description is the same byte
 * for byte. */
#include "kept.h"

#include <stdlib.h>
#include <string.h>

typedef struct kept {
    const kept_kind *kind;
    void *object, *desc;
    bool is_kept; /* by the node, until it ends */
} kept;

static kept *make(call *c, const kept_kind *kind, const void *desc) {
    kept *const k = calloc(1, sizeof *k);
    void *const copy = malloc(kind->bytes);
    if (k && copy) {
        memcpy(copy, desc, kind->bytes);
        *k = (kept){.kind = kind, .desc = copy};
        if (!kind->create(c->n->plans.context, desc, &k->object)) return k;
        call_fail(c, "%s", attune_last_message());
    }
    call_fail(c, "there is no memory");
    free(copy);
    free(k);
    return NULL;
}

static kept *find(call *c, const kept_kind *kind, const void *desc) {
    kept *first = atomic_load(&c->n->kept);
    if (first && first->kind == kind && !memcmp(first->desc, desc, kind->bytes)) return first;
    kept *const k = make(c, kind, desc);
    if (!k || first) return k;
    k->is_kept = true;
    if (!atomic_compare_exchange_strong(&c->n->kept, &first, k)) k->is_kept = false; /* another thread was faster */
    return k;
}

static void discard(kept *k) {
    k->kind->destroy(k->object);
    free(k->desc);
    free(k);
}

/* Frees an object that was created for one call. */
static void release(kept **k) {
    if (*k && !(*k)->is_kept) discard(*k);
}

bool kept_run(call *c, const kept_kind *kind, const void *desc, const void *step) {
    c->code = ORT_FAIL;
    /* Released even if ONNX Runtime throws. */
    __attribute__((cleanup(release))) kept *k = find(c, kind, desc);
    return k && (!kind->run(k->object, step) || call_fail(c, "%s", attune_last_message()));
}

void kept_free(node *n) {
    kept *const k = atomic_load(&n->kept);
    if (k) discard(k);
}
