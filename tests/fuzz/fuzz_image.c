/* Images: any bytes, as found, and with magic, version and sizes made right. One that is well formed is mapped, and
 * named for perf and gdb; it is never executed. Then it is the content of a file in the disk cache, whose name, key and
 * checksum are right, where nothing may be compiled: a kernel comes of it, or it is missing. */
#define _GNU_SOURCE
#include "files.h"

#include "engine/kernel.h"
#include "target/kernel_abi.h"

static const char problem_text[] = "num_heads=1,seq_q=2,head_dim=4";

static attune_context *open_context(void) {
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_context *context;
    options.cache_dir = fuzz_directory();
    options.max_workers = 1;
    setenv("ATTUNE_STRICT", "1", 1);
    FUZZ_REQUIRE(attune_context_create(&options, &context) == ATTUNE_OK);
    context->symbols.enabled = true;
    return context;
}

static void forget_perf_map(void) {
    char path[64];
    snprintf(path, sizeof path, "/tmp/perf-%ld.map", (long)getpid());
    unlink(path);
}

static bool load(attune_context *context, const void *image, size_t bytes) {
    attune_kernel *kernel = NULL;
    at_error err = {0};
    const char *const why = at_image_check(image, bytes);
    const attune_status status = at_kernel_new(context, image, bytes, "a name", &kernel, &err);
    FUZZ_REQUIRE((status == ATTUNE_OK) == (kernel != NULL) && (kernel || err.message[0] != '\0'));
    FUZZ_REQUIRE(!kernel || !why);
    if (!kernel) return false;
    const char *const base = kernel->code.base, *const end = base + kernel->code_bytes;
    FUZZ_REQUIRE((const char *)(void *)kernel->plan >= base && (const char *)(void *)kernel->plan < end);
    for (uint32_t p = 0; p < kernel->num_phases; p++) {
        const char *const entry = (const char *)(void *)kernel->phases[p].run;
        FUZZ_REQUIRE(entry >= base && entry < end);
    }
    FUZZ_REQUIRE(kernel->code.bytes >= kernel->code_bytes && kernel->code_bytes < bytes);
    at_kernel_destroy(&kernel->node);
    return true;
}

static void find_on_disk(attune_context *context, const void *image, size_t bytes) {
    attune_problem problem = ATTUNE_PROBLEM_INIT, canonical;
    at_key key;
    attune_kernel *kernel = NULL;
    at_image_header header = {0};
    memcpy(&header, image, bytes < sizeof header ? bytes : sizeof header);
    FUZZ_REQUIRE(mha_problem_parse(problem_text, &problem, NULL) == ATTUNE_OK);
    FUZZ_REQUIRE(mha_canonicalize(&problem, &canonical, NULL) == ATTUNE_OK);
    at_key_make(&key, at_attention_of(&canonical), NULL, &context->machine);
    const at_cache_file entry = {.required = header.required,
                                 .key = key.bytes,
                                 .key_bytes = key.size,
                                 .problem = problem_text,
                                 .schedule = "kv_tile=8",
                                 .isa = context->target->name,
                                 .image = image,
                                 .image_bytes = bytes};
    at_disk_cache_replace(&context->disk, &key, &entry);
    const attune_status status = attune_compile(context, &problem, NULL, &kernel);
    FUZZ_REQUIRE((status == ATTUNE_OK) == (kernel != NULL));
    /* Whatever is in the file, the kernel would be compiled instead. */
    FUZZ_REQUIRE(kernel || status == ATTUNE_NOT_CACHED);
    if (kernel) FUZZ_REQUIRE(kernel->origin == ATTUNE_FROM_DISK);
    attune_kernel_release(kernel);
    at_memory_cache_remove(&context->memory, &key);
}

static void mend(unsigned char *image, size_t bytes) {
    at_image_header header;
    memcpy(&header, image, sizeof header);
    memcpy(header.magic, AT_IMAGE_MAGIC, sizeof header.magic);
    header.version = AT_IMAGE_VERSION;
    header.required &= at_cpu_features();
    if (header.code_offset < bytes) header.code_bytes = bytes - header.code_offset;
    memcpy(image, &header, sizeof header);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static attune_context *context;
    if (!context) context = open_context();
    unsigned char *const image = malloc(size ? size : 1);
    FUZZ_REQUIRE(image);
    memcpy(image, data, size);
    load(context, image, size);
    if (size >= sizeof(at_image_header) && data[size - 1] & 1) mend(image, size);
    if (load(context, image, size) || (size && data[size - 1] & 2)) find_on_disk(context, image, size);
    forget_perf_map();
    free(image);
    return 0;
}
