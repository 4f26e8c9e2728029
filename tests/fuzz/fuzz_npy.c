/* The .npy header: what is accepted describes exactly the bytes that are there. */
#include "fuzz.h"

#include "common/npy.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    npy_header header;
    char message[ATTUNE_MESSAGE_BYTES] = "";
    if (!npy_parse_header(data, size, &header, message)) {
        FUZZ_REQUIRE(message[0] != '\0');
        return 0;
    }
    FUZZ_REQUIRE(header.rank <= NPY_MAX_RANK && header.offset <= size);
    size_t count = 1;
    for (size_t i = 0; i < header.rank; i++) {
        FUZZ_REQUIRE(header.shape[i] >= 0);
        count *= (size_t)header.shape[i];
    }
    FUZZ_REQUIRE(count == header.count && count * npy_type_bytes(header.type) == size - header.offset);
    char text[NPY_SHAPE_TEXT];
    FUZZ_REQUIRE(strlen(npy_print_shape(header.rank, header.shape, text)) < sizeof text);
    return 0;
}
