/* The public functions on the disk cache as a whole. */
#include "runtime/context.h"

attune_status attune_cache_visit(attune_context *context, attune_cache_visit_fn *visit, void *user) {
    at_error err = {0};
    if (!context || !visit)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_cache_visit was given NULL");
    else
        at_disk_cache_visit(&context->disk, visit, user, &err);
    return at_report(&err);
}

attune_status attune_cache_clear(attune_context *context, uint64_t *removed) {
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
