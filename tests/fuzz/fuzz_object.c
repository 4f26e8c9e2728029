/* The object linker: any bytes as an object, under a header that other bytes choose. What links is a well-formed image.
 * The input is the object; its last byte chooses the number of phases, and the machine. */
#include "fuzz.h"

#include "codegen/object_link.h"
#include "target/target.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    uint64_t scratch[AT_MAX_PHASES];
    for (size_t i = 0; i < AT_MAX_PHASES; i++) scratch[i] = 100 * i;
    const uint8_t last = size ? data[size - 1] : 0;
    const at_image_header header = {.required = last & 0x80 ? AT_CPU_AARCH64 : AT_CPU_X86_64,
                                    .num_phases = last % AT_MAX_PHASES + 1u,
                                    .num_buffers = 4,
                                    .num_scalars = 16};
    void *image = NULL;
    size_t bytes = 0;
    at_error err = {0};
    if (cg_link_object(data, size, &header, scratch, NULL, &image, &bytes, &err) != ATTUNE_OK) {
        FUZZ_REQUIRE(err.status == ATTUNE_CODEGEN_FAILED && err.message[0] != '\0');
        return 0;
    }
    FUZZ_REQUIRE(at_image_check(image, bytes) == NULL);
    at_free(at_default_allocator(), image);
    return 0;
}
