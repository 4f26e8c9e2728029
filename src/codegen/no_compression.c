/* Linked into a plug-in that contains LLVM: stubs of the zlib and zstd functions that LLVM's archives call. They fail.
 *
 * LLVM only compresses debug sections, and attune's objects have none. With these stubs the plug-in needs neither
 * library, and cannot be bound to a copy in the process. The version script hides them from other libraries. */
#include <stddef.h>
#include <stdint.h>

enum { Z_STREAM_ERROR = -2 };

unsigned long compressBound(unsigned long bytes);
int compress2(unsigned char *to, unsigned long *to_bytes, const unsigned char *from, unsigned long bytes, int level);
int uncompress(unsigned char *to, unsigned long *to_bytes, const unsigned char *from, unsigned long bytes);
unsigned long crc32(unsigned long sum, const unsigned char *from, unsigned bytes);
size_t ZSTD_compressBound(size_t bytes);
size_t ZSTD_compress2(void *context, void *to, size_t capacity, const void *from, size_t bytes);
size_t ZSTD_decompress(void *to, size_t capacity, const void *from, size_t bytes);
size_t ZSTD_CCtx_setParameter(void *context, int parameter, int value);
void *ZSTD_createCCtx(void);
size_t ZSTD_freeCCtx(void *context);
unsigned ZSTD_isError(size_t code);
const char *ZSTD_getErrorName(size_t code);

static const size_t zstd_error = (size_t)-1;

unsigned long compressBound(unsigned long bytes) { return bytes; }

int compress2(unsigned char *to, unsigned long *to_bytes, const unsigned char *from, unsigned long bytes, int level) {
    (void)to, (void)to_bytes, (void)from, (void)bytes, (void)level;
    return Z_STREAM_ERROR;
}

int uncompress(unsigned char *to, unsigned long *to_bytes, const unsigned char *from, unsigned long bytes) {
    (void)to, (void)to_bytes, (void)from, (void)bytes;
    return Z_STREAM_ERROR;
}

/* LLVM takes checksums by this function, too, so it computes them. */
unsigned long crc32(unsigned long sum, const unsigned char *from, unsigned bytes) {
    uint32_t rest = ~(uint32_t)sum;
    for (unsigned i = 0; i < bytes; i++) {
        rest ^= from[i];
        for (int bit = 0; bit < 8; bit++) rest = rest >> 1 ^ (rest & 1 ? 0xedb88320u : 0);
    }
    return (uint32_t)~rest;
}

size_t ZSTD_compressBound(size_t bytes) { return bytes; }

size_t ZSTD_compress2(void *context, void *to, size_t capacity, const void *from, size_t bytes) {
    (void)context, (void)to, (void)capacity, (void)from, (void)bytes;
    return zstd_error;
}

size_t ZSTD_decompress(void *to, size_t capacity, const void *from, size_t bytes) {
    (void)to, (void)capacity, (void)from, (void)bytes;
    return zstd_error;
}

size_t ZSTD_CCtx_setParameter(void *context, int parameter, int value) {
    (void)context, (void)parameter, (void)value;
    return zstd_error;
}

void *ZSTD_createCCtx(void) { return NULL; }

size_t ZSTD_freeCCtx(void *context) {
    (void)context;
    return 0;
}

unsigned ZSTD_isError(size_t code) { return code == zstd_error; }

const char *ZSTD_getErrorName(size_t code) {
    (void)code;
    return "attune's code generator has no zstd";
}
