/* The tables from family and model to a class, and the rates by which a probe tells classes apart. A model that is in
 * no table is generic. */
#include "target/tuning_class.h"

#include "base/nearest.h"

#include <stdio.h>
#include <string.h>

const char at_class_generic[] = "generic";

/* Classes of one line are generations of one maker's cores for one purpose. */
typedef enum class_line {
    AMD,
    INTEL,
    INTEL_SERVER,
    INTEL_SMALL,
    ARM,
    NEOVERSE_N,
    NEOVERSE_V,
    AMPERE,
    APPLE,
    OTHER_ARM
} class_line;

typedef struct tuning_class {
    const char *name;
    class_line line;
    at_core_measures measures;
} tuning_class;

/* Within a line the oldest first. The measures are latency times throughput of published tables of instructions; those
 * of zen4 were measured too. */
static const tuning_class classes[] = {
    {"zen1", AMD, {5, 0, 0.6}},
    {"zen2", AMD, {10, 0, 0.6}},
    {"zen3", AMD, {8, 0, 0.75}},
    {"zen4", AMD, {8, 4, 0.75}},
    {"zen5", AMD, {8, 8, 0.5}},
    {"haswell", INTEL, {10, 0, 0.6}},
    {"broadwell", INTEL, {10, 0, 0.6}},
    {"skylake", INTEL, {8, 0, 1}},
    {"icelake-client", INTEL, {8, 4, 1}},
    {"tigerlake", INTEL, {8, 4, 1}},
    {"alderlake", INTEL, {8, 0, 0.5}},
    {"arrowlake", INTEL, {0, 0, 0}},
    {"skylake-x", INTEL_SERVER, {8, 8, 1}},
    {"icelake-server", INTEL_SERVER, {8, 8, 1}},
    {"sapphire-rapids", INTEL_SERVER, {8, 8, 0.5}},
    {"granite-rapids", INTEL_SERVER, {8, 8, 0.5}},
    {"gracemont", INTEL_SMALL, {0, 0, 0}},
    {"sierra-forest", INTEL_SMALL, {0, 0, 0}},
    {"cortex-a53", ARM, {0, 0, 0}},
    {"cortex-a72", ARM, {0, 0, 0}},
    {"cortex-a76", ARM, {0, 0, 0}},
    {"cortex-x1", ARM, {0, 0, 0}},
    {"cortex-x4", ARM, {0, 0, 0}},
    {"neoverse-n1", NEOVERSE_N, {0, 0, 0}},
    {"neoverse-n2", NEOVERSE_N, {0, 0, 0}},
    {"neoverse-n3", NEOVERSE_N, {0, 0, 0}},
    {"neoverse-v1", NEOVERSE_V, {0, 0, 0}},
    {"neoverse-v2", NEOVERSE_V, {0, 0, 0}},
    {"neoverse-v3", NEOVERSE_V, {0, 0, 0}},
    {"ampere1", AMPERE, {0, 0, 0}},
    {"apple-m1", APPLE, {0, 0, 0}},
    {"apple-m2", APPLE, {0, 0, 0}},
    {"apple-m3", APPLE, {0, 0, 0}},
    {"a64fx", OTHER_ARM, {0, 0, 0}},
    {"thunderx2", OTHER_ARM, {0, 0, 0}},
    {"tsv110", OTHER_ARM, {0, 0, 0}},
    {"oryon", OTHER_ARM, {0, 0, 0}},
};
enum { COUNT = sizeof classes / sizeof *classes };
_Static_assert((int)COUNT < (int)AT_MAX_CLASSES, "neighbours are all classes but one, and generic");

/* Models from first to last, inclusive. */
typedef struct model_range {
    uint32_t family, first, last;
    const char *class_name;
} model_range;

/* In family 25 the model distinguishes Zen 3 from Zen 4. The missing models of family 26 are Zen 6, of which nothing is
 * known. */
static const model_range amd[] = {
    {23, 0x00, 0x2f, "zen1"}, {23, 0x30, 0xaf, "zen2"}, {24, 0x00, 0xff, "zen1"}, {25, 0x00, 0x0f, "zen3"},
    {25, 0x10, 0x1f, "zen4"}, {25, 0x20, 0x5f, "zen3"}, {25, 0x60, 0x7f, "zen4"}, {25, 0xa0, 0xaf, "zen4"},
    {26, 0x00, 0x2f, "zen5"}, {26, 0x40, 0x4f, "zen5"}, {26, 0x60, 0x7f, "zen5"}, {26, 0xd0, 0xd7, "zen5"},
};

static const model_range intel[] = {
    {6, 0x3c, 0x3c, "haswell"},        {6, 0x3f, 0x3f, "haswell"},         {6, 0x45, 0x46, "haswell"},
    {6, 0x3d, 0x3d, "broadwell"},      {6, 0x47, 0x47, "broadwell"},       {6, 0x4f, 0x4f, "broadwell"},
    {6, 0x56, 0x56, "broadwell"},      {6, 0x4e, 0x4e, "skylake"},         {6, 0x5e, 0x5e, "skylake"},
    {6, 0x8e, 0x8e, "skylake"},        {6, 0x9e, 0x9e, "skylake"},         {6, 0xa5, 0xa6, "skylake"},
    {6, 0x55, 0x55, "skylake-x"},      {6, 0x7d, 0x7e, "icelake-client"},  {6, 0xa7, 0xa7, "icelake-client"},
    {6, 0x8c, 0x8d, "tigerlake"},      {6, 0x97, 0x97, "alderlake"},       {6, 0x9a, 0x9a, "alderlake"},
    {6, 0xaa, 0xaa, "alderlake"},      {6, 0xac, 0xac, "alderlake"},       {6, 0xb7, 0xb7, "alderlake"},
    {6, 0xba, 0xba, "alderlake"},      {6, 0xbf, 0xbf, "alderlake"},       {6, 0xb5, 0xb5, "arrowlake"},
    {6, 0xbd, 0xbd, "arrowlake"},      {6, 0xc5, 0xc6, "arrowlake"},       {6, 0x6a, 0x6a, "icelake-server"},
    {6, 0x6c, 0x6c, "icelake-server"}, {6, 0x8f, 0x8f, "sapphire-rapids"}, {6, 0xcf, 0xcf, "sapphire-rapids"},
    {6, 0xad, 0xae, "granite-rapids"}, {6, 0xbe, 0xbe, "gracemont"},       {6, 0xaf, 0xaf, "sierra-forest"},
    {6, 0xb6, 0xb6, "sierra-forest"},
};

/* The family is the implementer, the models are parts. */
static const model_range arm[] = {
    {0x41, 0xd03, 0xd03, "cortex-a53"},  {0x41, 0xd05, 0xd05, "cortex-a53"},  {0x41, 0xd07, 0xd09, "cortex-a72"},
    {0x41, 0xd0a, 0xd0b, "cortex-a76"},  {0x41, 0xd0d, 0xd0e, "cortex-a76"},  {0x41, 0xd41, 0xd42, "cortex-a76"},
    {0x41, 0xd4b, 0xd4b, "cortex-a76"},  {0x41, 0xd44, 0xd44, "cortex-x1"},   {0x41, 0xd4c, 0xd4c, "cortex-x1"},
    {0x41, 0xd48, 0xd48, "cortex-x1"},   {0x41, 0xd4e, 0xd4e, "cortex-x4"},   {0x41, 0xd82, 0xd82, "cortex-x4"},
    {0x41, 0xd85, 0xd85, "cortex-x4"},   {0x41, 0xd0c, 0xd0c, "neoverse-n1"}, {0x41, 0xd49, 0xd49, "neoverse-n2"},
    {0x6d, 0xd49, 0xd49, "neoverse-n2"}, {0x41, 0xd8e, 0xd8e, "neoverse-n3"}, {0x41, 0xd40, 0xd40, "neoverse-v1"},
    {0x41, 0xd4f, 0xd4f, "neoverse-v2"}, {0x41, 0xd83, 0xd84, "neoverse-v3"}, {0xc0, 0xac3, 0xac5, "ampere1"},
    {0x61, 0x020, 0x029, "apple-m1"},    {0x61, 0x030, 0x039, "apple-m2"},    {0x61, 0x048, 0x049, "apple-m3"},
    {0x46, 0x001, 0x001, "a64fx"},       {0x42, 0x516, 0x516, "thunderx2"},   {0x43, 0x0af, 0x0af, "thunderx2"},
    {0x48, 0xd01, 0xd01, "tsv110"},      {0x51, 0x001, 0x001, "oryon"},
};

/* ---- By what a CPU says of itself ---- */

static const tuning_class *find(const char *name) {
    for (size_t i = 0; i < COUNT; i++)
        if (strcmp(classes[i].name, name) == 0) return &classes[i];
    return NULL;
}

static const char *look_up(const model_range *ranges, size_t count, const at_cpu_identity *cpu) {
    for (size_t i = 0; i < count; i++)
        if (ranges[i].family == cpu->family && cpu->model >= ranges[i].first && cpu->model <= ranges[i].last)
            return find(ranges[i].class_name)->name;
    return at_class_generic;
}

static bool is_amd(const at_cpu_identity *cpu) {
    return !strcmp(cpu->vendor, "AuthenticAMD") || !strcmp(cpu->vendor, "HygonGenuine");
}

static bool is_intel(const at_cpu_identity *cpu) { return !strcmp(cpu->vendor, "GenuineIntel"); }

const char *at_class_of(const at_cpu_identity *cpu) {
    if (cpu->is_arm) return look_up(arm, sizeof arm / sizeof *arm, cpu);
    if (is_amd(cpu)) return look_up(amd, sizeof amd / sizeof *amd, cpu);
    if (is_intel(cpu)) return look_up(intel, sizeof intel / sizeof *intel, cpu);
    return at_class_generic;
}

/* ---- By name ---- */

const char *at_class_find(const char *name) {
    if (strcmp(name, at_class_generic) == 0) return at_class_generic;
    const tuning_class *found = find(name);
    return found ? found->name : NULL;
}

static bool is_of_arm(const tuning_class *c) { return c->line >= ARM; }

bool at_class_is_of(const char *name, bool arm_wanted) {
    const tuning_class *found = find(name);
    return !found || is_of_arm(found) == arm_wanted;
}

attune_status at_class_refuse(const char *what, const char *name, bool is_arm, at_error *err) {
    char list[ATTUNE_MESSAGE_BYTES];
    char meant[AT_CLASS_BYTES + 24] = "";
    size_t length = 0;
    at_nearest nearest = at_nearest_to(name, strlen(name));
    for (size_t i = 0; i < COUNT; i++) {
        if (is_of_arm(&classes[i]) != is_arm) continue;
        at_nearest_try(&nearest, classes[i].name);
        length += (size_t)snprintf(list + length, sizeof list - length, "%s, ", classes[i].name);
    }
    if (nearest.word) snprintf(meant, sizeof meant, " (did you mean \"%s\"?)", nearest.word);
    return at_fail(err, ATTUNE_INVALID_ARGUMENT,
                   "unknown %s \"%.40s\"%s; there are: %sand %s, which may be used on any CPU", what, name, meant, list,
                   at_class_generic);
}

size_t at_class_neighbours(const char *name, const char *order[AT_MAX_CLASSES]) {
    const tuning_class *own = find(name);
    size_t count = 0;
    for (ptrdiff_t distance = 1; own && distance < COUNT; distance++)
        for (int side = 1; side >= -1; side -= 2) { /* the newer one first */
            const ptrdiff_t i = own - classes + side * distance;
            if (i >= 0 && i < COUNT && classes[i].line == own->line) order[count++] = classes[i].name;
        }
    if (strcmp(name, at_class_generic)) order[count++] = at_class_generic;
    for (size_t i = 0; i < COUNT; i++)
        if (!own || (classes[i].line != own->line && is_of_arm(&classes[i]) == is_of_arm(own)))
            order[count++] = classes[i].name;
    return count;
}

/* ---- By what was measured ---- */

static bool is_near(double known, double measured) {
    return known == measured || (known > 0 && measured > known * 0.9 && measured < known * 1.1);
}

static bool may_be(const tuning_class *c, const at_cpu_identity *cpu) {
    if (is_of_arm(c) || cpu->is_arm) return false; /* no measures are known of these */
    return is_amd(cpu) ? c->line == AMD : is_intel(cpu) ? c->line != AMD : true;
}

const char *at_class_round(const at_cpu_identity *cpu, const at_core_measures *m) {
    for (size_t i = COUNT; i-- > 0;) {
        const at_core_measures *known = &classes[i].measures;
        if (may_be(&classes[i], cpu) && known->fma > 0 && is_near(known->fma, m->fma) &&
            is_near(known->fma_wide, m->fma_wide) && is_near(known->add, m->add))
            return classes[i].name;
    }
    return at_class_generic;
}
