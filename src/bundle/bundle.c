/* Compiles each problem for each target of a bundle, in contexts of its own, and writes archive and header. */
#include "bundle/bundle.h"

#include "base/fpenv.h"
#include "bundle/archive.h"
#include "engine/create.h"
#include "engine/kernel.h"
#include "operator/operator.h"
#include "schedule/schedule.h"

#include <elf.h>
#include <stdio.h>
#include <string.h>

/* ---- Compiling ---- */

/* A context for one aim: as the caller's, with its tuning results and its compiler, and never its memory of kernels.
 * Every kernel is compiled, so the files of a pack are not read. */
static attune_status open_context(const attune_context *caller, const at_bundle_aim *aim, attune_context **context,
                                  at_error *err) {
    const attune_context_options options = {.struct_size = sizeof options,
                                            .allocator = &caller->allocator,
                                            .log = caller->log.fn,
                                            .log_user = caller->log.user,
                                            .target = aim->target->name,
                                            .machine = aim->machine,
                                            .compile_mode = ATTUNE_COMPILE_IN_PROCESS, /* the hooks say how */
                                            .cache_dir = caller->disk.path,
                                            .cache_base = caller->disk.base_path,
                                            .cache_pack = "",
                                            .max_workers = 1};
    const at_context_hooks hooks = {.io = caller->io,
                                    .compile = caller->codegen.compile,
                                    .compile_user = caller->codegen.user,
                                    .find_tuned = caller->find_tuned};
    const attune_status status = at_context_create(&options, &hooks, context);
    return status ? at_fail(err, status, "%s", attune_last_message()) : ATTUNE_OK;
}

/* The operation of a part, and the schedule that its line wishes (else *wish is NULL). */
static attune_status settle(attune_context *context, const at_bundle_part *part, at_operation *operation,
                            mha_schedule *schedule, const mha_schedule **wish, at_error *err) {
    attune_operator *op;
    *wish = NULL;
    if (part->described) {
        if (at_described_operator(part->described, context, &op, err)) return err->status;
        *operation = at_own_operation(&op->own, part->text);
        return ATTUNE_OK;
    }
    *operation = at_attention_of(&part->signature.problem);
    if (part->schedule) *wish = schedule;
    return at_wish(context, &part->signature.problem, part->schedule, schedule, err);
}

static attune_status build(attune_context *context, at_bundle_part *part, at_bundle_image *out, at_error *err) {
    at_operation operation;
    mha_schedule schedule;
    const mha_schedule *wish;
    at_arena arena;
    at_built built;
    if (settle(context, part, &operation, &schedule, &wish, err)) return err->status;
    at_arena_init(&arena, &context->allocator);
    if (!at_build_image(context, &arena, operation, wish, &built, &out->image, &out->bytes, err))
        operation.op->schedule_print(operation, &built.schedule, out->schedule, sizeof out->schedule);
    at_arena_free(&arena);
    return err->status;
}

static attune_status build_for(at_bundle_plan *plan, const attune_context *caller, size_t aim, at_error *err) {
    attune_context *context = NULL;
    attune_status status = open_context(caller, &plan->aims[aim], &context, err);
    for (size_t k = 0; k < plan->num_parts && !status; k++) {
        at_error why = {0};
        status = build(context, &plan->parts[k], &plan->parts[k].images[aim], &why);
        if (status) at_fail(err, status, "%s for %s: %.400s", plan->parts[k].name, plan->aims[aim].name, why.message);
    }
    attune_context_destroy(context);
    return status;
}

/* ---- Writing ---- */

/* The functions of the header come first, then the code, target by target, then the run time. */
static attune_status write_members(const at_bundle_plan *plan, at_archive_member *members, at_error *err) {
    snprintf(members[0].name, sizeof members->name, "%s.o", plan->name);
    attune_status status = at_bundle_data_object(plan, &members[0].object, err);
    for (size_t a = 0; a < plan->num_aims && !status; a++) {
        snprintf(members[1 + a].name, sizeof members->name, "%s%.12s.o", plan->name, plan->aims[a].suffix);
        status = at_bundle_code_object(plan, a, &members[1 + a].object, err);
    }
    if (plan->kernels_only) return status;
    at_archive_member *last = &members[1 + plan->num_aims];
    snprintf(last->name, sizeof last->name, "%s.run.o", plan->name);
    return status ? status : at_bundle_run_object(plan, &last->object, err);
}

static attune_status write_archive(const at_bundle_plan *plan, at_string *out, at_error *err) {
    const size_t count = plan->num_aims + (plan->kernels_only ? 1 : 2);
    at_archive_member *members = at_alloc(plan->allocator, count * sizeof *members);
    if (!members) return at_fail_memory(err, count * sizeof *members);
    for (size_t i = 0; i < count; i++) at_string_init(&members[i].object, plan->allocator);
    attune_status status = write_members(plan, members, err);
    if (!status) status = at_archive_write(members, count, out, err);
    for (size_t i = 0; i < count; i++) at_string_free(&members[i].object);
    at_free(plan->allocator, members);
    return status;
}

/* ---- The whole ---- */

static attune_status take_kernel(at_bundle_plan *plan, const attune_bundle_kernel *kernel, attune_problem *problem,
                                 at_error *err) {
    at_bundle_part *const part = &plan->parts[plan->num_parts];
    attune_problem canonical;
    at_error why = {0};
    if (!kernel->problem)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the problem of kernel %zu is NULL", plan->num_parts);
    plan->num_parts++;
    *part = (at_bundle_part){.name = kernel->name, .schedule = kernel->schedule, .given = problem};
    attune_status status = at_copy_in(&mha_problem_struct, kernel->problem, problem, &why);
    if (!status) status = mha_canonicalize(problem, &canonical, &why);
    if (status) return at_fail(err, status, "%.60s: %.400s", part->name ? part->name : "", why.message);
    at_bundle_signature(part, &canonical);
    return ATTUNE_OK;
}

/* A description's kernels. If there are several, the name of each ends with its own. */
static attune_status take_description(at_bundle_plan *plan, const attune_bundle_description *d, at_error *err) {
    at_described_text parsed;
    at_error why = {0};
    const char *const name = d->name ? d->name : "";
    const at_described_op *const of = d->text ? at_described_op_of(d->text) : NULL;
    if (!*name)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the description '%.200s' has no name", d->text ? d->text : "");
    if (!of)
        return at_fail(err, ATTUNE_INVALID_PROBLEM, "%.60s: '%.200s' is no description of one of attune's operators",
                       name, d->text ? d->text : "");
    const attune_status status = at_described_parse(of->table, d->text, &parsed, &why);
    if (status) return at_fail(err, status, "%.60s: %.400s", name, why.message);
    for (uint32_t i = 0; i < parsed.count; i++) {
        at_bundle_part *const part = &plan->parts[plan->num_parts++];
        *part = (at_bundle_part){.name = name, .described = of};
        at_described_print(of->table, &parsed.desc, parsed.kernels[i], part->text);
        if (parsed.count == 1) continue;
        snprintf(part->made_name, sizeof part->made_name, "%.63s_%s", name, of->table->kernels[parsed.kernels[i]]);
        part->name = part->made_name;
    }
    return ATTUNE_OK;
}

static attune_status take_all(at_bundle_plan *plan, const attune_bundle_options *options,
                              const attune_bundle_kernel *kernels, size_t count, attune_problem *problems,
                              at_error *err) {
    for (size_t k = 0; k < count; k++)
        if (take_kernel(plan, &kernels[k], &problems[k], err)) return err->status;
    for (size_t k = 0; k < options->num_descriptions; k++)
        if (take_description(plan, &options->descriptions[k], err)) return err->status;
    return at_bundle_check_names(plan, err);
}

static attune_status make(const attune_context *context, at_bundle_plan *plan, const attune_bundle_options *options,
                          const attune_bundle_kernel *kernels, size_t count, at_string files[2], at_error *err) {
    const size_t most = count + options->num_descriptions * AT_MOST_KERNELS;
    attune_problem *problems = at_alloc(plan->allocator, (count + 1) * sizeof *problems);
    plan->parts = at_alloc(plan->allocator, most * sizeof *plan->parts);
    attune_status status = problems && plan->parts ? ATTUNE_OK : at_fail_memory(err, most * sizeof *plan->parts);
    if (!status) status = take_all(plan, options, kernels, count, problems, err);
    if (!status) status = at_bundle_parse_targets(plan, options->targets, err);
    for (size_t a = 0; a < plan->num_aims && !status; a++) status = build_for(plan, context, a, err);
    if (!status) status = write_archive(plan, &files[0], err);
    if (!status && !plan->kernels_only) status = at_bundle_header(plan, &files[1], err);
    for (size_t k = 0; k < plan->num_parts; k++)
        for (size_t a = 0; a < plan->num_aims; a++) at_free(plan->allocator, plan->parts[k].images[a].image);
    at_free(plan->allocator, plan->parts);
    at_free(plan->allocator, problems);
    return status;
}

static const at_struct options_struct = {"attune_bundle_options", "start from ATTUNE_BUNDLE_OPTIONS_INIT",
                                         sizeof(attune_bundle_options), NULL, 24};

attune_status attune_bundle_options_init(attune_bundle_options *options, size_t struct_size) {
    at_error err = {0};
    at_struct_init(&options_struct, options, struct_size, &err);
    return at_report(&err);
}

static attune_status check(const attune_bundle_options *options, const attune_bundle_kernel *kernels, size_t count,
                           at_error *err) {
    const size_t described = options->num_descriptions, all = count + described;
    if ((!kernels && count) || (!options->descriptions && described))
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "attune_bundle_make was given NULL");
    if (all < 1 || count > AT_BUNDLE_MOST_KERNELS || described > AT_BUNDLE_MOST_KERNELS)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "a bundle has from 1 to %d kernels, not %zu",
                       AT_BUNDLE_MOST_KERNELS, all);
    if (described && !options->kernels_only)
        return at_fail(
            err, ATTUNE_INVALID_ARGUMENT,
            "there are descriptions, but kernels_only is 0; a bundle has no functions for described kernels");
    if ((options->kernels_only != 0 && options->kernels_only != 1) || options->reserved)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "kernels_only is %d; it must be 0 or 1, and reserved 0",
                       options->kernels_only);
    if (options->targets && *options->targets) return ATTUNE_OK;
    return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the targets of the bundle are not named");
}

attune_status attune_bundle_make(attune_context *context, const attune_bundle_options *given,
                                 const attune_bundle_kernel *kernels, size_t count, attune_bundle_files *out) {
    AT_DEFAULT_FPENV;
    attune_bundle_options options;
    at_error err = {0};
    if (!context || !given || !out) at_fail(&err, ATTUNE_INVALID_ARGUMENT, "attune_bundle_make was given NULL");
    if (err.status || at_copy_in(&options_struct, given, &options, &err) || check(&options, kernels, count, &err))
        return at_report(&err);
    at_bundle_plan *plan = at_alloc(&context->allocator, sizeof *plan);
    if (!plan) at_fail_memory(&err, sizeof *plan);
    if (!plan) return at_report(&err);
    at_string files[2];
    plan->allocator = &context->allocator;
    plan->name = options.name;
    plan->kernels_only = options.kernels_only;
    for (int i = 0; i < 2; i++) at_string_init(&files[i], &context->allocator);
    *out = (attune_bundle_files){0};
    if (make(context, plan, &options, kernels, count, files, &err) == ATTUNE_OK) {
        *out = (attune_bundle_files){files[0].data, files[0].length, files[1].data, files[1].length};
    } else {
        for (int i = 0; i < 2; i++) at_string_free(&files[i]);
    }
    at_free(&context->allocator, plan);
    return at_report(&err);
}
