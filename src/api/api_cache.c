/* The public functions on the disk cache as a whole. */
#include "engine/context.h"

#include "base/fpenv.h"

#include <string.h>

attune_status attune_cache_visit(attune_context *context, attune_cache_visit_fn *visit, void *user) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    if (!context || !visit)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_cache_visit was given NULL");
    else
        at_disk_cache_visit(&context->disk, visit, user, &err);
    return at_report(&err);
}

attune_status attune_cache_clear(attune_context *context, uint64_t *removed) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    uint64_t count = 0;
    if (!context)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_cache_clear was given no context");
    else
        at_disk_cache_clear(&context->disk, &count, &err);
    if (removed) *removed = count;
    return at_report(&err);
}

attune_status attune_cache_gc(attune_context *context, uint64_t max_bytes, attune_cache_collected *collected) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_cache_collected full = {0};
    if (!context)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_cache_gc was given no context");
    else
        at_disk_cache_collect(&context->disk, max_bytes, &full, &err);
    if (collected) at_copy_out(collected, &full, sizeof full, "attune_cache_collected", &err);
    return at_report(&err);
}

typedef attune_status copy_fn(at_disk_cache *cache, const char *directory, const char *machine,
                              attune_cache_copied *copied, at_error *err);

static attune_status copy(copy_fn *function, const char *name, attune_context *context, const char *directory,
                          attune_cache_copied *copied) {
    at_error err = {0};
    attune_cache_copied full = {0};
    if (!context || !directory)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "%s was given no %s", name, context ? "directory" : "context");
    else
        function(&context->disk, directory, context->machine_class.name, &full, &err);
    if (copied) at_copy_out(copied, &full, sizeof full, "attune_cache_copied", &err);
    return at_report(&err);
}

attune_status attune_cache_export(attune_context *context, const char *directory, attune_cache_copied *copied) {
    return copy(at_disk_cache_export, "attune_cache_export", context, directory, copied);
}

attune_status attune_cache_import(attune_context *context, const char *directory, attune_cache_copied *copied) {
    return copy(at_disk_cache_import, "attune_cache_import", context, directory, copied);
}

attune_status attune_cache_add(attune_context *context, const char *path, attune_cache_copied *copied) {
    return copy(at_disk_cache_add, "attune_cache_add", context, path, copied);
}

attune_status attune_cache_pack(attune_context *context, const char *path, const char *const *keys, size_t num_keys,
                                attune_cache_copied *copied) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    attune_cache_copied full = {0};
    if (!context || !path)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_cache_pack was given no %s", context ? "path" : "context");
    else
        at_disk_cache_pack(&context->disk, path, keys, num_keys, &full, &err);
    if (copied) at_copy_out(copied, &full, sizeof full, "attune_cache_copied", &err);
    return at_report(&err);
}

attune_status attune_cache_seal(attune_context *context, const char *path, const char *signature_path) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    if (!context || !path || !signature_path)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_cache_seal was given NULL");
    else
        at_disk_cache_seal(&context->disk, path, signature_path, &err);
    return at_report(&err);
}

/* A copy that ends with a NUL. */
static void *copy_text(const attune_allocator *allocator, const void *text, size_t bytes) {
    char *const out = at_alloc(allocator, bytes + 1);
    if (!out) return NULL;
    memcpy(out, text, bytes);
    out[bytes] = '\0';
    return out;
}

attune_status attune_cache_pack_parts(attune_context *context, const char *path, void **signed_part, size_t *bytes,
                                      char **signature) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    at_pack pack;
    if (!context || !path || !signed_part || !bytes || !signature) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_cache_pack_parts was given NULL");
        return at_report(&err);
    }
    *signed_part = *signature = NULL;
    if (at_pack_open(&pack, path, context->io, &context->allocator, &err)) return at_report(&err);
    *bytes = pack.sizes.signed_bytes;
    *signed_part = copy_text(&context->allocator, pack.signed_part, *bytes);
    *signature = copy_text(&context->allocator, pack.signature, strlen(pack.signature));
    if (!*signed_part || !*signature) {
        at_fail_memory(&err, *bytes);
        at_free(&context->allocator, *signed_part);
        at_free(&context->allocator, *signature);
        *signed_part = *signature = NULL;
    }
    at_pack_close(&pack);
    return at_report(&err);
}
