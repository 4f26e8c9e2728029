#include "support/ir/jit_run.h"

#include "codegen/compile.h"
#include "ir/eval.h"
#include "target/kernel_abi.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { GUARD_BYTES = 64, GARBAGE = 0xff /* NaN in every float */ };

typedef struct running {
    const at_image_header *header;
    unsigned char *code;
    int64_t sizes[AT_MAX_PHASES + AT_MAX_SHARED];
    void *buffers[AT_MAX_PARAMS];
    const int64_t *scalars;
    int64_t range;
} running;

static unsigned char *guarded_alloc(size_t bytes) {
    unsigned char *memory = at_alloc_aligned(NULL, bytes + GUARD_BYTES, 64);
    if (memory) memset(memory, GARBAGE, bytes + GUARD_BYTES);
    return memory;
}

static bool guard_is_whole(const unsigned char *memory, size_t bytes) {
    for (size_t i = 0; i < GUARD_BYTES; i++)
        if (memory[bytes + i] != GARBAGE) return false;
    return true;
}

static attune_status run_phase(running *r, uint32_t number, at_error *err) {
    const at_image_phase *phase = &at_image_phases(r->header)[number];
    unsigned char *scratch = guarded_alloc(phase->scratch_bytes);
    if (!scratch) return at_fail_memory(err, phase->scratch_bytes);
    at_phase_fn *const run = (at_phase_fn *)(void *)(r->code + phase->entry);
    const int64_t tasks = r->sizes[number], step = r->range ? r->range : tasks;
    for (int64_t begin = tasks ? (tasks - 1) / step * step : -1; begin >= 0; begin -= step)
        run(r->buffers, r->scalars, begin, begin + step < tasks ? begin + step : tasks, scratch);
    const bool whole = guard_is_whole(scratch, phase->scratch_bytes);
    at_free(NULL, scratch);
    return whole ? ATTUNE_OK : at_fail(err, ATTUNE_CHECK_FAILED, "phase %u wrote beyond its scratch", number);
}

static attune_status run_phases(running *r, at_error *err) {
    attune_status status = ATTUNE_OK;
    const int64_t *shared_bytes = r->sizes + r->header->num_phases;
    for (uint32_t s = 0; s < r->header->num_shared; s++)
        r->buffers[r->header->num_buffers + s] = guarded_alloc((size_t)shared_bytes[s]);
    for (uint32_t p = 0; p < r->header->num_phases && !status; p++) status = run_phase(r, p, err);
    for (uint32_t s = 0; s < r->header->num_shared; s++) {
        unsigned char *memory = r->buffers[r->header->num_buffers + s];
        if (!guard_is_whole(memory, (size_t)shared_bytes[s]))
            status = at_fail(err, ATTUNE_CHECK_FAILED, "shared buffer %u was overrun", s);
        at_free(NULL, memory);
    }
    return status;
}

attune_status jit_run_image(const void *image, size_t bytes, void *const *buffers, const int64_t *scalars,
                            int64_t range, at_error *err) {
    const char *wrong = at_image_check(image, bytes);
    if (wrong) return at_fail(err, ATTUNE_BAD_FILE, "bad image: %s", wrong);
    if (!at_cpu_request(((const at_image_header *)image)->required))
        return at_fail(err, ATTUNE_UNSUPPORTED, "this CPU cannot run the image");
    running *r = at_alloc(NULL, sizeof *r);
    if (!r) return at_fail_memory(err, sizeof *r);
    r->header = image;
    r->scalars = scalars;
    r->range = range;
    const size_t code_bytes = r->header->code_bytes;
    r->code = mmap(NULL, code_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    attune_status status = ATTUNE_OK;
    if (r->code == MAP_FAILED) {
        status = at_fail_memory(err, code_bytes);
    } else {
        memcpy(r->code, (const char *)image + r->header->code_offset, code_bytes);
        __builtin___clear_cache((char *)r->code, (char *)r->code + code_bytes);
        mprotect(r->code, code_bytes, PROT_READ | PROT_EXEC);
        memcpy(r->buffers, buffers, r->header->num_buffers * sizeof *buffers);
        ((at_plan_fn *)(void *)(r->code + r->header->plan_entry))(scalars, r->sizes);
        status = run_phases(r, err);
        munmap(r->code, code_bytes);
    }
    at_free(NULL, r);
    return status;
}

attune_status jit_run(const ir_kernel *kernel, const at_target *target, void *const *buffers, const int64_t *scalars,
                      int64_t range, at_error *err) {
    void *image = NULL;
    size_t bytes = 0;
    attune_status status = cg_compile(kernel, target, ATTUNE_STAGE_IMAGE, &image, &bytes, err);
    if (!status) status = jit_run_image(image, bytes, buffers, scalars, range, err);
    at_free(NULL, image);
    return status;
}
