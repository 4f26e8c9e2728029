/* A file of results that `attune sweep -o` continues: as found, and with the settings of this sweep put in so that the
 * checks after those are reached. A file that is accepted is printed, and accepted again with the same results. */
#include "files.h"

#include "sweep/sweep_file.h"
#include "sweep/sweep_keys.h"
#include "sweep/sweep_table.h"

static const sweep_settings settings = {.threads = 1, .samples = 1, .sizes = CALL_SIZES_NONE};
static const attune_machine_info machine = {.struct_size = sizeof machine,
                                            .cpu = "a CPU",
                                            .cpu_description = "a CPU (family 1)",
                                            .machine = "generic",
                                            .isa = "x86-64",
                                            .llvm = "19",
                                            .generator_id = "0"};

/* The problems that the results are of, as far as they can be read. */
static void list_problems(const sweep_file *file, manifest *list) {
    const char *text;
    json_t *result;
    json_object_foreach(file->index, text, result) manifest_add(list, text, NULL, 0);
    for (size_t i = 0; i < list->count; i++) list->kernels[i].line = (int)i + 1;
}

static void print(const sweep_file *file) {
    manifest list = {0};
    sweep_keys keys;
    list_problems(file, &list);
    if (list.count) {
        FUZZ_REQUIRE(sweep_keys_open(&keys, &list));
        sweep_print_table(&keys, &list, file);
        sweep_keys_close(&keys);
    }
    FUZZ_REQUIRE(sweep_file_count(file, &list) <= list.count);
    manifest_free(&list);
}

/* A new reference to the results, or NULL after a message. */
static json_t *open_one(const char *path) {
    sweep_file file;
    json_t *results = NULL;
    fuzz_capture();
    if (sweep_file_open(&file, path, &settings, &machine)) {
        print(&file);
        results = json_incref(json_object_get(file.root, "results"));
        FUZZ_REQUIRE(json_array_size(results) == json_object_size(file.index));
        FUZZ_REQUIRE(sweep_file_set_cache(&file, 1, 2, 3.0));
    } else {
        FUZZ_REQUIRE(fuzz_was_told());
    }
    sweep_file_close(&file);
    return results;
}

static void open_twice(const uint8_t *data, size_t size) {
    char path[FUZZ_PATH_CHARS];
    fuzz_path("sweep.json", path);
    fuzz_write(path, data, size);
    json_t *const first = open_one(path), *const second = first ? open_one(path) : NULL;
    FUZZ_REQUIRE(!first || (second && json_array_size(first) == json_array_size(second)));
    json_decref(first);
    json_decref(second);
}

/* What an empty file becomes, without its results. */
static json_t *usual_settings(void) {
    sweep_file file;
    FUZZ_REQUIRE(sweep_file_open(&file, NULL, &settings, &machine));
    json_t *const root = json_deep_copy(file.root);
    json_object_del(root, "results");
    sweep_file_close(&file);
    return root;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static json_t *usual;
    if (!usual) usual = usual_settings();
    open_twice(data, size);
    json_t *const root = json_loadb((const char *)data, size, 0, NULL);
    if (json_is_object(root)) {
        json_object_update(root, usual);
        char *const text = json_dumps(root, 0);
        if (text) open_twice((const uint8_t *)text, strlen(text));
        free(text);
    }
    json_decref(root);
    return 0;
}
