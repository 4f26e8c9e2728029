/* The case.json of a conformance case, beside arrays of the names that operators have (Q.npy, K.npy, …). A case that is
 * accepted is made a call, which the interpreter runs, and whose results are compared; a refusal has a message. */
#include "files.h"

#include "conform/conform_call.h"

static void write_array(const char *name, npy_type type, size_t rank, const int64_t *shape) {
    char path[FUZZ_PATH_CHARS], file[64], message[ATTUNE_MESSAGE_BYTES];
    npy_array array;
    FUZZ_REQUIRE(npy_create(type, rank, shape, &array, message));
    for (size_t i = 0; i < array.header.count && type == NPY_F4; i++) ((float *)array.data)[i] = (float)i / 8 - 1;
    for (size_t i = 0; i < array.header.count && type == NPY_I8; i++) ((int64_t *)array.data)[i] = (int64_t)i + 1;
    snprintf(file, sizeof file, "%s.npy", name);
    fuzz_path(file, path);
    FUZZ_REQUIRE(npy_write(path, type, rank, shape, array.data, message));
    npy_free(&array);
}

/* Of 2 heads and 3 tokens; those with a 3 in their names have heads and columns in one dimension. */
static void write_arrays(void) {
    static const int64_t plain[] = {1, 2, 3, 4}, packed[] = {1, 3, 8}, square[] = {3, 3}, table[] = {5, 2};
    static const char *const names[] = {"Q", "K", "V", "Y", "past_key", "past_value", "X"};
    static const int64_t twice[] = {1, 2, 6, 4}, scores[] = {1, 2, 3, 3}, positions[] = {1, 3}, one[] = {1};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char name[64];
        write_array(names[i], NPY_F4, 4, plain);
        snprintf(name, sizeof name, "%s3", names[i]);
        write_array(name, NPY_F4, 3, packed);
        snprintf(name, sizeof name, "%sh", names[i]);
        write_array(name, NPY_F2, 4, plain);
    }
    write_array("present_key", NPY_F4, 4, twice);
    write_array("present_value", NPY_F4, 4, twice);
    write_array("qk_matmul_output", NPY_F4, 4, scores);
    write_array("attn_mask", NPY_B1, 2, square);
    write_array("nonpad_kv_seqlen", NPY_I8, 1, one);
    write_array("cos_cache", NPY_F4, 2, table);
    write_array("sin_cache", NPY_F4, 2, table);
    write_array("position_ids", NPY_I8, 2, positions);
}

static attune_context *open_context(void) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context;
    options.cache_dir = "";
    options.max_workers = 1;
    FUZZ_REQUIRE(attune_context_create(&options, &context) == ATTUNE_OK);
    return context;
}

static void compute(attune_context *context, const conform_case *c, char message[ATTUNE_MESSAGE_BYTES]) {
    conform_call call;
    bool is_good = conform_call_create(c, &call, message);
    if (is_good) {
        is_good = conform_call_run(&call, context, ATTUNE_ENGINE_INTERPRETER);
        /* Every kind of call is one that attune computes: the arrays are small, and none is a table. */
        if (!is_good) dprintf(STDERR_FILENO, "%s\n", message);
        FUZZ_REQUIRE(is_good);
        is_good = conform_compare(c, call.outputs, message);
    }
    FUZZ_REQUIRE(is_good || message[0] != '\0');
    conform_call_free(&call);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static attune_context *context;
    char path[FUZZ_PATH_CHARS], message[ATTUNE_MESSAGE_BYTES] = "";
    if (!context) {
        context = open_context();
        write_arrays();
    }
    fuzz_path("case.json", path);
    fuzz_write(path, data, size);
    conform_case c;
    if (conform_case_read(path, &c, message))
        compute(context, &c, message);
    else
        FUZZ_REQUIRE(message[0] != '\0');
    conform_case_free(&c);
    return 0;
}
