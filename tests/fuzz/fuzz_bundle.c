/* What a bundle is made of, up to the compiler: the first line is the bundle's name and its targets, the others are a
 * manifest, whose lines may have names. A refusal has a message; what is accepted gives a header of whole comments, in
 * which no name stands for two things. */
#include "files.h"

#include "bundle/bundle.h"
#include "common/manifest.h"

static size_t count_of(const char *text, const char *part) {
    size_t count = 0;
    for (const char *at = text; (at = strstr(at, part)); at += strlen(part)) count++;
    return count;
}

/* The members of a kernel's arguments follow each other without gaps, and their names differ. */
static void check_members(const at_bundle_part *part) {
    at_bundle_member members[AT_BUNDLE_MOST_MEMBERS];
    const size_t count = at_bundle_members(part, members);
    uint32_t end = 0;
    FUZZ_REQUIRE(count > 0 && count <= AT_BUNDLE_MOST_MEMBERS);
    for (size_t i = 0; i < count; i++) {
        FUZZ_REQUIRE(members[i].field.from == end && members[i].initial[0]);
        end += members[i].field.bytes;
        for (size_t other = 0; other < i; other++) {
            const char *const a = strrchr(members[i].declaration, ' '), *const b =
                                                                            strrchr(members[other].declaration, ' ');
            FUZZ_REQUIRE(a && b && strcmp(a, b) != 0);
        }
    }
}

static void check_header(const at_bundle_plan *plan) {
    at_string header;
    at_error err = {0};
    at_string_init(&header, plan->allocator);
    FUZZ_REQUIRE(at_bundle_header(plan, &header, &err) == ATTUNE_OK);
    at_string_append(&header, "", 1);
    FUZZ_REQUIRE(count_of(header.data, "/*") == count_of(header.data, "*/"));
    FUZZ_REQUIRE(count_of(header.data, "{") == count_of(header.data, "}"));
    at_string_free(&header);
}

/* As attune_bundle_make takes them. */
static bool take(at_bundle_plan *plan, const manifest *list) {
    for (size_t k = 0; k < list->count; k++) {
        at_bundle_part *const part = &plan->parts[k];
        attune_problem canonical;
        *part = (at_bundle_part){.name = list->kernels[k].name ? list->kernels[k].name : "k",
                                 .schedule = list->kernels[k].schedule,
                                 .given = &list->kernels[k].problem};
        FUZZ_REQUIRE(mha_canonicalize(part->given, &canonical, NULL) == ATTUNE_OK);
        at_bundle_signature(part, &canonical);
    }
    return true;
}

static void make(const manifest *list, const char *name, const char *targets) {
    static at_bundle_plan plan; /* large */
    at_error err = {0};
    plan = (at_bundle_plan){.allocator = at_default_allocator(), .name = name, .num_parts = list->count};
    plan.parts = calloc(list->count, sizeof *plan.parts);
    if (!plan.parts) abort();
    if (take(&plan, list) && at_bundle_check_names(&plan, &err) == ATTUNE_OK &&
        at_bundle_parse_targets(&plan, targets, &err) == ATTUNE_OK) {
        FUZZ_REQUIRE(plan.num_aims > 0 && plan.num_aims <= AT_BUNDLE_MOST_CODES);
        for (size_t k = 0; k < plan.num_parts; k++) check_members(&plan.parts[k]);
        check_header(&plan);
    } else {
        FUZZ_REQUIRE(err.message[0]);
    }
    free(plan.parts);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    enum { MOST_KERNELS = 16 };
    char path[FUZZ_PATH_CHARS], *const text = fuzz_text(data, size), *const line = strchr(text, '\n');
    manifest list = {0};
    if (line) {
        *line = '\0';
        char *targets = strchr(text, ' ');
        if (targets) *targets++ = '\0';
        const size_t first = (size_t)(line + 1 - text);
        fuzz_path("bundle", path);
        fuzz_write(path, data + first, size - first);
        fuzz_capture();
        if (manifest_add_file(&list, path) && list.count <= MOST_KERNELS) make(&list, text, targets ? targets : "");
        manifest_free(&list);
    }
    free(text);
    return 0;
}
