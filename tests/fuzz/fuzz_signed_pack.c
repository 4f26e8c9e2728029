/* A pack of many kernels as its signer left it: header, index and the text of a signature. All are taken apart in
 * memory of exactly their size. */
#include "fuzz.h"

#include "cache/pack_format.h"

static void take_apart(const uint8_t *data, size_t size, const at_pack_sizes *sizes) {
    if (sizes->signed_bytes > size) return;
    uint8_t *const copy = malloc(sizes->signed_bytes);
    if (!copy) abort();
    memcpy(copy, data, sizes->signed_bytes);
    if (!at_pack_index_check(copy, sizes)) {
        at_pack_record record;
        for (uint32_t i = 0; i < sizes->count; i++) {
            at_pack_record_get(copy, i, &record);
            FUZZ_REQUIRE(at_pack_find(copy, sizes->count, record.name) == i);
            FUZZ_REQUIRE(record.offset + record.bytes <= sizes->file_bytes);
        }
    }
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    at_pack_sizes sizes;
    at_signature_of signature;
    at_public_key key;
    char *const text = malloc(size ? size : 1);
    if (!text) abort();
    memcpy(text, data, size);
    if (!at_signature_parse(text, size, &signature))
        FUZZ_REQUIRE(signature.comment + signature.comment_bytes < text + size);
    at_public_key_parse(text, size, &key);
    free(text);
    /* The file is as long as its header says: otherwise nothing would pass. */
    if (size < AT_PACK_HEADER_BYTES) return 0;
    uint64_t file_bytes = 0;
    for (int i = 8; i-- > 0;) file_bytes = file_bytes << 8 | data[16 + i];
    if (!at_pack_header_check(data, file_bytes, &sizes)) take_apart(data, size, &sizes);
    return 0;
}
