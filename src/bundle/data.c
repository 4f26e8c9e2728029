/* The object with a bundle's data (target/bundle_abi.h) and the functions of its header. */
#include "bundle/bundle.h"

#include "generator_id.h"

#include <elf.h>
#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 384 };

typedef struct data {
    const at_bundle_plan *plan;
    at_object object;
    uint32_t text, constants, pointers, texts, states; /* sections; `pointers`: constants with pointers */
    uint32_t kernels;                                  /* symbol of the array of at_bundle_kernel */
} data;

/* ---- Pieces ---- */

static uint32_t symbol_of(data *d, uint32_t section) { return d->object.sections[section].symbol; }

static uint64_t put_text(data *d, const char *text) {
    return at_object_append(&d->object, d->texts, text, strlen(text) + 1, 1);
}

/* An offset in the constants, to a place of a section. */
static void refer(data *d, uint64_t at, uint32_t section, uint64_t offset) {
    at_object_distance(&d->object, d->constants, at, symbol_of(d, section), (int64_t)offset);
}

static void refer_to_text(data *d, uint64_t at, const char *text) { refer(d, at, d->texts, put_text(d, text)); }

/* A pointer to a place of a section. */
static void point(data *d, uint64_t at, uint32_t section, uint64_t offset) {
    at_object_pointer(&d->object, d->pointers, at, symbol_of(d, section), (int64_t)offset);
}

static void point_to_text(data *d, uint64_t at, const char *text) { point(d, at, d->texts, put_text(d, text)); }

static uint32_t outside(data *d, const char *name) {
    return at_object_symbol_add(&d->object,
                                &(at_object_symbol){.name = name, .binding = STB_GLOBAL, .visibility = STV_HIDDEN});
}

/* An offset to an entry of a kernel's code, which is in another object. */
static void refer_to_entry(data *d, uint64_t at, size_t kernel, size_t aim, const char *entry) {
    char name[NAME_BYTES];
    const at_bundle_plan *plan = d->plan;
    snprintf(name, sizeof name, "%s.%s%s.%s", plan->name, plan->parts[kernel].name, plan->aims[aim].suffix, entry);
    at_object_distance(&d->object, d->constants, at, outside(d, name), 0);
}

/* ---- A kernel ---- */

static uint64_t put_signature(data *d, const at_signature *signature) {
    const uint64_t at = at_object_append(&d->object, d->pointers, NULL, sizeof *signature, _Alignof(at_signature));
    at_signature copy;
    memcpy(&copy, signature, sizeof copy);
    for (size_t i = 0; i < copy.count; i++) copy.tensors[i].name = NULL;
    if (!d->object.sections[d->pointers].data.failed)
        memcpy(d->object.sections[d->pointers].data.data + at, &copy, sizeof copy);
    for (size_t i = 0; i < signature->count; i++)
        point_to_text(d, at + offsetof(at_signature, tensors) + i * sizeof(mha_tensor) + offsetof(mha_tensor, name),
                      signature->tensors[i].name);
    return at;
}

static uint64_t put_phases(data *d, size_t kernel, size_t aim, const at_image_header *image) {
    const uint64_t at = at_object_append(&d->object, d->constants, NULL, 0, 8);
    for (uint32_t p = 0; p < image->num_phases; p++) {
        const at_bundle_phase phase = {.scratch_bytes = at_image_phases(image)[p].scratch_bytes};
        char entry[24];
        snprintf(entry, sizeof entry, "phase%u", p);
        const uint64_t place = at_object_append(&d->object, d->constants, &phase, sizeof phase, 8);
        refer_to_entry(d, place + offsetof(at_bundle_phase, run), kernel, aim, entry);
    }
    return at;
}

static uint64_t max_scratch(const at_image_header *image) {
    uint64_t most = 0;
    for (uint32_t p = 0; p < image->num_phases; p++)
        if (at_image_phases(image)[p].scratch_bytes > most) most = at_image_phases(image)[p].scratch_bytes;
    return most;
}

static uint64_t put_codes(data *d, size_t kernel) {
    const at_bundle_plan *plan = d->plan;
    uint64_t phases[AT_BUNDLE_MOST_CODES];
    for (size_t a = 0; a < plan->num_aims; a++)
        phases[a] = put_phases(d, kernel, a, plan->parts[kernel].images[a].image);
    const uint64_t first = at_object_append(&d->object, d->constants, NULL, 0, 8);
    for (size_t a = 0; a < plan->num_aims; a++) {
        const at_image_header *image = plan->parts[kernel].images[a].image;
        const at_bundle_code code = {.max_scratch = max_scratch(image),
                                     .code_bytes = image->code_bytes,
                                     .required = image->required,
                                     .num_phases = image->num_phases,
                                     .num_shared = image->num_shared};
        const uint64_t at = at_object_append(&d->object, d->constants, &code, sizeof code, 8);
        refer_to_text(d, at + offsetof(at_bundle_code, target), plan->aims[a].target->name);
        refer_to_text(d, at + offsetof(at_bundle_code, machine), plan->aims[a].machine);
        refer_to_text(d, at + offsetof(at_bundle_code, name), plan->aims[a].name);
        refer_to_text(d, at + offsetof(at_bundle_code, schedule), plan->parts[kernel].images[a].schedule);
        refer_to_entry(d, at + offsetof(at_bundle_code, plan), kernel, a, "plan");
        refer(d, at + offsetof(at_bundle_code, phases), d->constants, phases[a]);
    }
    return first;
}

static uint32_t put_fields(data *d, const at_bundle_part *part, uint64_t *at) {
    at_bundle_member members[AT_BUNDLE_MOST_MEMBERS];
    const size_t count = at_bundle_members(part, members);
    *at = at_object_append(&d->object, d->constants, NULL, 0, 8);
    for (size_t i = 0; i < count; i++)
        at_object_append(&d->object, d->constants, &members[i].field, sizeof members[i].field, 2);
    return (uint32_t)count;
}

/* What only the functions of the header need. */
static void put_call(data *d, const at_bundle_part *part, at_bundle_kernel *kernel, uint64_t at) {
    uint64_t fields;
    kernel->num_fields = put_fields(d, part, &fields);
    const uint64_t signature = put_signature(d, &part->signature);
    const uint64_t state = at_object_append(&d->object, d->states, NULL, sizeof(at_bundle_state), 8);
    refer(d, at + offsetof(at_bundle_kernel, signature), d->pointers, signature);
    refer(d, at + offsetof(at_bundle_kernel, fields), d->constants, fields);
    refer(d, at + offsetof(at_bundle_kernel, state), d->states, state);
}

static void put_kernel(data *d, size_t number, uint64_t at) {
    const at_bundle_part *part = &d->plan->parts[number];
    at_bundle_kernel kernel = {.num_codes = (uint32_t)d->plan->num_aims, .is_described = part->described != NULL};
    char problem[MHA_PROBLEM_TEXT];
    if (!d->plan->kernels_only) put_call(d, part, &kernel, at);
    const uint64_t codes = put_codes(d, number);
    if (!part->described) attune_problem_print(&part->signature.problem, problem, sizeof problem);
    at_string *constants = &d->object.sections[d->constants].data;
    if (!constants->failed) memcpy(constants->data + at, &kernel, sizeof kernel);
    refer_to_text(d, at + offsetof(at_bundle_kernel, name), part->name);
    refer_to_text(d, at + offsetof(at_bundle_kernel, problem), part->described ? part->text : problem);
    refer(d, at + offsetof(at_bundle_kernel, codes), d->constants, codes);
}

/* ---- Functions ---- */

/* The functions of a kernel: what their names end with, the function of the run time, and which of its parameters the
 * kernel is (-1: none). */
static const struct {
    const char *suffix, *run;
    int parameter;
} functions[] = {
    {"", "run", 1},         {"_check", "check", 3},    {"_workspace", "workspace", 3}, {"_target", "target", 0},
    {"_begin", "begin", 3}, {"_phases", "phases", -1}, {"_tasks", "tasks", -1},        {"_execute", "execute", -1},
};
enum { NUM_FUNCTIONS = sizeof functions / sizeof *functions };

static void put_function(data *d, const char *name, const char *run, int parameter, uint32_t value) {
    char target[NAME_BYTES];
    snprintf(target, sizeof target, "%s.run.%s", d->plan->name, run);
    const uint64_t at = at_thunk_call(&d->object, d->text, parameter, value, outside(d, target));
    at_object_symbol_add(&d->object, &(at_object_symbol){.name = name,
                                                         .section = d->text,
                                                         .offset = at,
                                                         .size = AT_THUNK_BYTES,
                                                         .type = STT_FUNC,
                                                         .binding = STB_GLOBAL});
}

static void put_functions(data *d, size_t number, uint64_t at) {
    const at_bundle_plan *plan = d->plan;
    char name[NAME_BYTES];
    snprintf(name, sizeof name, "%s.%s", plan->name, plan->parts[number].name);
    const at_object_symbol kernel = {
        .name = name, .section = d->constants, .offset = at, .size = sizeof(at_bundle_kernel), .type = STT_OBJECT};
    const uint32_t symbol = at_object_symbol_add(&d->object, &kernel);
    for (int f = 0; f < NUM_FUNCTIONS; f++) {
        snprintf(name, sizeof name, "%s_%s%s", plan->name, plan->parts[number].name, functions[f].suffix);
        put_function(d, name, functions[f].run, functions[f].parameter, symbol);
    }
}

/* ---- The whole ---- */

static void put_bundle(data *d, uint64_t kernels) {
    char name[NAME_BYTES];
    const at_bundle bundle = {.version = AT_BUNDLE_VERSION, .num_kernels = (uint32_t)d->plan->num_parts};
    const uint64_t at = at_object_append(&d->object, d->pointers, &bundle, sizeof bundle, 8);
    point_to_text(d, at + offsetof(at_bundle, name), d->plan->name);
    point_to_text(d, at + offsetof(at_bundle, generator_id), ATTUNE_GENERATOR_ID);
    point(d, at + offsetof(at_bundle, kernels), d->constants, kernels);
    snprintf(name, sizeof name, "%s_bundle", d->plan->name);
    at_object_symbol symbol = {
        .name = name, .section = d->pointers, .offset = at, .size = sizeof bundle, .type = STT_OBJECT};
    symbol.binding = STB_GLOBAL;
    at_object_symbol_add(&d->object, &symbol);
    /* A symbol that others may replace could not be addressed in a shared library. */
    snprintf(name, sizeof name, "%s.bundle", d->plan->name);
    symbol.binding = STB_LOCAL;
    const uint32_t local = at_object_symbol_add(&d->object, &symbol);
    snprintf(name, sizeof name, "%s_use", d->plan->name);
    if (!d->plan->kernels_only) put_function(d, name, "use", 1, local);
}

attune_status at_bundle_data_object(const at_bundle_plan *plan, at_string *out, at_error *err) {
    data d = {.plan = plan};
    at_object *o = &d.object;
    at_object_init(o, plan->machine, plan->allocator);
    d.text = at_object_section_add(o, ".text", SHT_PROGBITS, SHF_ALLOC | SHF_EXECINSTR, 16);
    d.constants = at_object_section_add(o, ".rodata", SHT_PROGBITS, SHF_ALLOC, 16);
    d.pointers = at_object_section_add(o, ".data.rel.ro", SHT_PROGBITS, SHF_ALLOC | SHF_WRITE, 16);
    /* The linker keeps one of equal texts. */
    d.texts = at_object_section_add(o, ".rodata.str1.1", SHT_PROGBITS, SHF_ALLOC | SHF_MERGE | SHF_STRINGS, 1);
    d.states = at_object_section_add(o, ".bss", SHT_NOBITS, SHF_ALLOC | SHF_WRITE, 8);
    const uint64_t kernels = at_object_append(o, d.constants, NULL, plan->num_parts * sizeof(at_bundle_kernel), 16);
    for (size_t k = 0; k < plan->num_parts; k++) {
        put_kernel(&d, k, kernels + k * sizeof(at_bundle_kernel));
        if (!plan->kernels_only) put_functions(&d, k, kernels + k * sizeof(at_bundle_kernel));
    }
    put_bundle(&d, kernels);
    at_unwind_add_plain(o, at_unwind_section_add(o), d.text, 0, o->sections[d.text].data.length);
    at_object_add_notes(o);
    const attune_status status = at_object_finish(o, out, err);
    at_object_free(o);
    return status;
}
