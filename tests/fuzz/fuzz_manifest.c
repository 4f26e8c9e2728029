/* A file with a problem in each line, as the environment variable ATTUNE_RECORD writes it, and the keys and values of
 * its problems. A refusal has a message; an accepted line means the same when it is read again. */
#include "files.h"

#include "common/manifest.h"
#include "common/sizes.h"
#include "sweep/sweep_keys.h"

static void check_entries(const manifest *list) {
    manifest again = {0};
    for (size_t i = 0; i < list->count; i++) {
        const manifest_kernel *const one = &list->kernels[i];
        FUZZ_REQUIRE(one->text && !strpbrk(one->text, "\n#|") && one->line > 0);
        FUZZ_REQUIRE(i == 0 || one->line > list->kernels[i - 1].line);
        FUZZ_REQUIRE(manifest_add(&again, one->text, NULL, 0) && again.count == i + 1);
        FUZZ_REQUIRE(memcmp(&again.kernels[i].problem, &one->problem, sizeof one->problem) == 0);
    }
    manifest_free(&again);
}

static void check_keys(const manifest *list) {
    sweep_keys keys;
    FUZZ_REQUIRE(sweep_keys_open(&keys, list) && keys.problems == list->count);
    for (size_t p = 0; p < list->count; p++) {
        for (size_t k = 0; k < keys.count; k++) {
            const char *const value = sweep_keys_value(&keys, p, k);
            FUZZ_REQUIRE(keys.names[k][0] && (!value || value[0]));
        }
        for (int varies = 0; varies < 2; varies++) {
            char *const text = sweep_keys_text(&keys, p, varies, SIZE_MAX);
            FUZZ_REQUIRE(text);
            free(text);
        }
    }
    sweep_keys_close(&keys);
}

static void check_sizes(const uint8_t *data, size_t size) {
    char *const text = fuzz_text(data, size), printed[SIZES_TEXT], again_printed[SIZES_TEXT];
    call_sizes sizes = CALL_SIZES_NONE, again = CALL_SIZES_NONE;
    fuzz_capture();
    if (sizes_parse(text, &sizes)) {
        sizes_print(&sizes, printed);
        FUZZ_REQUIRE(!*printed || sizes_parse(printed, &again));
        FUZZ_REQUIRE(strcmp(sizes_print(&again, again_printed), printed) == 0);
    } else {
        FUZZ_REQUIRE(fuzz_was_told());
    }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char path[FUZZ_PATH_CHARS];
    manifest list = {0};
    fuzz_path("manifest", path);
    fuzz_write(path, data, size);
    fuzz_capture();
    if (!manifest_add_file(&list, path)) FUZZ_REQUIRE(fuzz_was_told());
    check_entries(&list);
    if (list.count) check_keys(&list);
    manifest_free(&list);
    check_sizes(data, size);
    return 0;
}
