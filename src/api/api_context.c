/* The public functions on a context. */
#include "base/fpenv.h"
#include "engine/create.h"
#include "engine/probe_file.h"
#include "generator_id.h"
#include "tune/tuning.h"

const char *attune_version(void) { return ATTUNE_VERSION_STRING; }

/* ---- Making one ---- */

attune_status attune_context_options_init(attune_context_options *options, size_t struct_size) {
    at_error err = {0};
    at_struct_init(&at_context_options, options, struct_size, &err);
    return at_report(&err);
}

attune_status attune_runner_init(attune_runner *runner, size_t struct_size) {
    at_error err = {0};
    at_struct_init(&at_runner_struct, runner, struct_size, &err);
    return at_report(&err);
}

attune_status attune_context_create(const attune_context_options *options, attune_context **context) {
    AT_DEFAULT_FPENV;
    static const at_context_hooks hooks = {.find_tuned = at_tuning_find};
    return at_context_create(options, &hooks, context);
}

void attune_context_destroy(attune_context *context) {
    AT_DEFAULT_FPENV;
    if (context) at_context_destroy(context);
}

attune_status attune_context_add_bundle(attune_context *context, const struct at_bundle *bundle) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    if (!context || !bundle)
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_context_add_bundle was given NULL");
    else
        at_bundles_add(&context->bundles, bundle, &err);
    return at_report(&err);
}

/* ---- What happened, what there is ---- */

attune_status attune_get_statistics(const attune_context *context, attune_statistics *statistics) {
    at_error err = {0};
    if (!context || !statistics) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_get_statistics was given NULL");
        return at_report(&err);
    }
    const at_memory_cache_counts counts = at_memory_cache_count((at_memory_cache *)&context->memory);
    const attune_statistics full = {
        .memory_hits = counts.hits,
        .disk_hits = atomic_load(&context->disk_hits),
        .compiles = atomic_load(&context->compiles),
        .compile_failures = atomic_load(&context->compile_failures),
        .memory_evictions = counts.evictions,
        .disk_evictions = atomic_load(&context->disk.evictions),
        .damaged_files = atomic_load(&context->disk.damaged),
        .disk_write_failures = atomic_load(&context->disk.write_failures),
        .worker_restarts = atomic_load(&context->codegen.workers.restarts),
        .memory_kernels = counts.nodes,
        .memory_code_bytes = counts.bytes,
        .stand_ins = atomic_load(&context->stand_ins),
        .pack_hits = atomic_load(&context->pack_hits),
        .bundle_hits = atomic_load(&context->bundle_hits),
        .tier0_hits = atomic_load(&context->tier0_hits),
    };
    at_copy_out(statistics, &full, sizeof full, "attune_statistics", &err);
    return at_report(&err);
}

attune_status attune_get_machine_info(const attune_context *context, attune_machine_info *info) {
    AT_DEFAULT_FPENV;
    at_error err = {0};
    if (!context || !info) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_get_machine_info was given NULL");
        return at_report(&err);
    }
    at_codegen_search((at_codegen *)&context->codegen);
    const attune_machine_info full = {
        .cpu = at_cpu_name(),
        .isa = context->target->name,
        .isas = context->isas,
        .llvm = ATTUNE_LLVM_VERSION,
        .cache_dir = context->disk.path,
        .codegen_path = context->codegen.plugin.file.path,
        .worker_path = context->codegen.worker.path,
        .generator_id = ATTUNE_GENERATOR_ID,
        .max_workers = context->team.max_workers,
        .cache_base = context->disk.base_path,
        .cpu_description = at_cpu_description(),
        .cpu_family = at_cpu_identity_here()->family,
        .cpu_model = at_cpu_identity_here()->model,
        .cpu_stepping = at_cpu_identity_here()->stepping,
        .machine = context->machine_class.name,
        .machine_source = context->machine_class.source,
        .cache_refusal = context->disk.refusals[0],
        .cache_base_refusal = context->disk.refusals[1],
        .machine_description = context->machine_class.text,
        .cache_pack = context->disk.pack_path,
        .cache_pack_refusal = context->disk.refusals[2],
    };
    at_copy_out(info, &full, sizeof full, "attune_machine_info", &err);
    return at_report(&err);
}

void attune_drop_memory_cache(attune_context *context) {
    AT_DEFAULT_FPENV;
    if (context) at_memory_cache_drop(&context->memory);
}

attune_status attune_probe_machine(attune_context *context, attune_machine_probe *probe) {
    AT_DEFAULT_FPENV;
    static _Thread_local at_machine_class machine; /* the caller gets its strings */
    at_error err = {0};
    at_core_measures measures;
    const char *kept = NULL;
    if (!context || !probe) {
        at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_probe_machine was given NULL");
        return at_report(&err);
    }
    if (at_check_out(probe, sizeof *probe, "attune_machine_probe", &err) ||
        at_machine_measure(&measures, &machine, &kept, &err))
        return at_report(&err);
    attune_machine_probe full = {.machine = machine.name,
                                 .fma = measures.fma,
                                 .fma_wide = measures.fma_wide,
                                 .add = measures.add,
                                 .description = machine.text};
    at_probe_keep(&context->disk, kept, &full.is_kept, &err);
    at_copy_out(probe, &full, sizeof full, "attune_machine_probe", NULL);
    return at_report(&err);
}
