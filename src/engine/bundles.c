/* Registered bundles are a list that only grows, so a look-up takes no lock. */
#include "engine/bundles.h"

#include "generator_id.h"
#include "problem/mha.h"

#include <stdatomic.h>
#include <string.h>

typedef struct registered_kernel {
    const at_bundle_kernel *kernel;
    size_t key_bytes;
    uint8_t key[MHA_KEY_BYTES];
} registered_kernel;

struct at_registered {
    at_registered *next;
    uint32_t count;
    registered_kernel kernels[];
};

void at_bundles_init(at_bundles *bundles, const attune_allocator *allocator) {
    bundles->allocator = allocator;
    atomic_init(&bundles->first, NULL);
}

void at_bundles_free(at_bundles *bundles) {
    for (at_registered *r = atomic_load(&bundles->first), *next; r; r = next) {
        next = r->next;
        at_free(bundles->allocator, r);
    }
}

/* Attention has its key; the text of a described kernel names it. */
static size_t key_of(at_operation o, uint8_t key[MHA_KEY_BYTES]) {
    if (!at_own_of(o.op)) return mha_key(o.problem, key);
    const size_t bytes = strlen(o.problem);
    memcpy(key, o.problem, bytes);
    return bytes;
}

/* ---- Adding ---- */

static attune_status check_bundle(const at_bundle *bundle, at_error *err) {
    if (bundle->version != AT_BUNDLE_VERSION)
        return at_fail(err, ATTUNE_UNSUPPORTED, "the bundle is of version %u, and this attune knows version %d",
                       bundle->version, AT_BUNDLE_VERSION);
    if (strcmp(bundle->generator_id, ATTUNE_GENERATOR_ID) == 0) return ATTUNE_OK;
    return at_fail(err, ATTUNE_UNSUPPORTED,
                   "the bundle %.60s was made by another version of attune (generator %.32s, and this is %s)",
                   bundle->name, bundle->generator_id, ATTUNE_GENERATOR_ID);
}

static attune_status read_key(registered_kernel *kernel, at_error *err) {
    const char *const text = at_bundle_problem(kernel->kernel);
    attune_problem problem = ATTUNE_PROBLEM_INIT, canonical;
    if (kernel->kernel->is_described) {
        kernel->key_bytes = strnlen(text, sizeof kernel->key);
        memcpy(kernel->key, text, kernel->key_bytes);
        return ATTUNE_OK;
    }
    if (mha_problem_parse(text, &problem, err) || mha_canonicalize(&problem, &canonical, err)) return err->status;
    kernel->key_bytes = mha_key(&canonical, kernel->key);
    return ATTUNE_OK;
}

static attune_status fill(at_registered *r, const at_bundle *bundle, at_error *err) {
    for (r->count = 0; r->count < bundle->num_kernels; r->count++) {
        r->kernels[r->count].kernel = &bundle->kernels[r->count];
        if (read_key(&r->kernels[r->count], err)) return err->status;
    }
    return ATTUNE_OK;
}

attune_status at_bundles_add(at_bundles *bundles, const at_bundle *bundle, at_error *err) {
    attune_status status = check_bundle(bundle, err);
    if (status) return status;
    const size_t bytes = sizeof(at_registered) + bundle->num_kernels * sizeof(registered_kernel);
    at_registered *r = at_alloc(bundles->allocator, bytes);
    if (!r) return at_fail_memory(err, bytes);
    status = fill(r, bundle, err);
    if (status) {
        at_free(bundles->allocator, r);
        return status;
    }
    r->next = atomic_load(&bundles->first);
    while (!atomic_compare_exchange_weak(&bundles->first, &r->next, r)) {
    }
    return ATTUNE_OK;
}

/* ---- Finding ---- */

bool at_bundles_are_empty(const at_bundles *bundles) { return !atomic_load(&bundles->first); }

static const at_bundle_code *find_code(const at_bundle_kernel *kernel, const char *target, const char *machine,
                                       const char *schedule) {
    const at_bundle_code *const end = at_bundle_codes(kernel) + kernel->num_codes;
    for (const at_bundle_code *code = at_bundle_codes(kernel); code < end; code++) {
        if (strcmp(at_bundle_code_target(code), target) != 0) continue;
        if (!schedule) return at_bundle_nearest(code, end, machine);
        if (strcmp(at_bundle_code_schedule(code), schedule) == 0) return code;
    }
    return NULL;
}

const at_bundle_code *at_bundles_find(const at_bundles *bundles, at_operation operation, const char *target,
                                      const char *machine, const char *schedule, const at_bundle_kernel **kernel) {
    const at_registered *r = atomic_load(&bundles->first);
    uint8_t key[MHA_KEY_BYTES];
    if (!r) return NULL;
    const size_t bytes = key_of(operation, key);
    const bool is_described = at_own_of(operation.op) != NULL;
    for (; r; r = r->next)
        for (uint32_t k = 0; k < r->count; k++) {
            const registered_kernel *const known = &r->kernels[k];
            if (known->kernel->is_described != is_described || known->key_bytes != bytes ||
                memcmp(known->key, key, bytes) != 0)
                continue;
            const at_bundle_code *code = find_code(known->kernel, target, machine, schedule);
            if (code && kernel) *kernel = known->kernel;
            if (code) return code;
        }
    return NULL;
}
