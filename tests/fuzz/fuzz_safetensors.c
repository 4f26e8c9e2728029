/* The safetensors header: what is accepted describes exactly the bytes that are there. */
#include "fuzz.h"

#include "weights/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    safetensors t;
    char message[ATTUNE_MESSAGE_BYTES] = "";
    if (!safetensors_parse(data, size, &t, message)) {
        FUZZ_REQUIRE(message[0] != '\0' && !t.list && !t.dims && !t.json);
        return 0;
    }
    uint64_t header = 0;
    for (int i = 7; i >= 0; i--) header = header << 8 | data[i];
    size_t end = 8 + (size_t)header;
    for (size_t i = 0; i < t.count; i++) {
        const safetensor *const one = &t.list[i];
        FUZZ_REQUIRE(one->offset == end && one->bytes <= size - end);
        end += one->bytes;
        FUZZ_REQUIRE(safetensors_find(&t, one->name) == one);
        /* Where an element is whole bytes, their number follows from the shape, in arithmetic that cannot wrap: */
        unsigned __int128 elements = 1;
        for (size_t d = 0; d < one->rank; d++) {
            FUZZ_REQUIRE(one->shape[d] >= 0);
            if (one->shape[d] == 0) elements = 0;
        }
        for (size_t d = 0; d < one->rank && elements; d++) {
            elements *= (uint64_t)one->shape[d];
            FUZZ_REQUIRE(elements <= 8 * (unsigned __int128)size);
        }
        if (one->dtype == ATTUNE_F32 || one->dtype == ATTUNE_I32) FUZZ_REQUIRE(elements * 4 == one->bytes);
        if (one->dtype == ATTUNE_F64) FUZZ_REQUIRE(elements * 8 == one->bytes);
        if (one->dtype == ATTUNE_F16 || one->dtype == ATTUNE_BF16) FUZZ_REQUIRE(elements * 2 == one->bytes);
    }
    FUZZ_REQUIRE(end == size);
    safetensors_close(&t);
    return 0;
}
