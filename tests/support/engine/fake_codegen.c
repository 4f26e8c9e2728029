#define _GNU_SOURCE
#include "support/engine/fake_codegen.h"

#include "target/kernel_abi.h"

#include <string.h>
#include <unistd.h>

uint32_t fake_marker(const char *ir, size_t bytes) {
    uint32_t hash = 2166136261u;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ (uint8_t)ir[i]) * 16777619u;
    return hash;
}

#if defined(__aarch64__)
/* mov w8, 1; str x8, [x1]; ret */
static const uint32_t plan[] = {0x52800028, 0xf9000028, 0xd65f03c0};

static void write_phase(uint8_t *code, uint32_t marker) {
    /* ldr x8, [x0, 24]; ldr w9, marker; str w9, [x8]; ret; marker: */
    const uint32_t phase[] = {0xf9400c08, 0x18000069, 0xb9000109, 0xd65f03c0, marker};
    memcpy(code, phase, sizeof phase);
}
#else
/* mov qword [rsi], 1; ret */
static const uint8_t plan[] = {0x48, 0xc7, 0x06, 1, 0, 0, 0, 0xc3};

static void write_phase(uint8_t *code, uint32_t marker) {
    /* mov rax, [rdi + 24]; mov dword [rax], marker; ret */
    uint8_t phase[] = {0x48, 0x8b, 0x47, 0x18, 0xc7, 0x00, 0, 0, 0, 0, 0xc3};
    memcpy(phase + 6, &marker, 4);
    memcpy(code, phase, sizeof phase);
}
#endif

size_t fake_image(uint8_t image[FAKE_IMAGE_BYTES], uint32_t num_buffers, uint32_t num_scalars, uint32_t marker) {
    enum { CODE = 128, PLAN = 0, PHASE = 16, CODE_BYTES = 64 };
    const at_image_header header = {.magic = "attimg\0",
                                    .version = AT_IMAGE_VERSION,
                                    .num_phases = 1,
                                    .num_buffers = num_buffers,
                                    .num_scalars = num_scalars,
                                    .plan_entry = PLAN,
                                    .code_offset = CODE,
                                    .code_bytes = CODE_BYTES};
    const at_image_phase entry = {.entry = PHASE, .scratch_bytes = 64};
    memset(image, 0, FAKE_IMAGE_BYTES);
    memcpy(image, &header, sizeof header);
    memcpy(image + sizeof header, &entry, sizeof entry);
    memcpy(image + CODE + PLAN, plan, sizeof plan);
    write_phase(image + CODE + PHASE, marker);
    return CODE + CODE_BYTES;
}

/* Counts the parameters of a kernel's text: "name: f32[…] …" is a buffer, "name: idx" a scalar. */
static void count_parameters(const char *ir, size_t bytes, uint32_t *buffers, uint32_t *scalars) {
    const char *end = memmem(ir, bytes, ") {", 3);
    *buffers = *scalars = 0;
    for (const char *c = ir; end && (c = memmem(c, (size_t)(end - c), ": ", 2)); c += 2) {
        const size_t word = strspn(c + 2, "abcdefghijklmnopqrstuvwxyz0123456789");
        ++*(c[2 + word] == '[' ? buffers : scalars);
    }
}

attune_status fake_compile(void *user, const at_codegen_request *request, const attune_allocator *allocator,
                           void **data, size_t *bytes, at_error *err) {
    fake_codegen *fake = user;
    uint8_t image[FAKE_IMAGE_BYTES];
    atomic_fetch_add(&fake->compiles, 1);
    if (fake->sleep_us) usleep((unsigned)fake->sleep_us);
    if (fake->failure) return at_fail(err, fake->failure, "the fake compiler fails as told");
    uint32_t buffers, scalars;
    count_parameters(request->ir, request->ir_bytes, &buffers, &scalars);
    *bytes = fake_image(image, buffers, scalars, fake_marker(request->ir, request->ir_bytes));
    return at_codegen_copy(allocator, image, *bytes, data, err);
}
