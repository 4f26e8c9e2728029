/* The first call makes the object and leaves it in the node; a later one takes it if its description is the same byte
 * for byte. */
#include "kept.h"

#include <stdlib.h>
#include <string.h>

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

kept *kept_find(call *c, const kept_kind *kind, const void *desc) {
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

void kept_release(kept *k) {
    if (k && !k->is_kept) discard(k);
}

void kept_free(node *n) {
    kept *const k = atomic_load(&n->kept);
    if (k) discard(k);
}
