/* Compares the version that PyTorch counts up at each write, and a sample of the bytes, because writes through .data
 * are not counted. */
#define _GNU_SOURCE
#include "weights_print.h"

#include <dlfcn.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

/* at::TensorBase::_version() and torch::autograd::impl::version_counter(). No C function is fast enough for every call:
 * the dispatcher takes 1 us for each, and writes to stderr when it fails. Their mangled names have the types of their
 * parameters. The second returns a reference to a smart pointer, which is null in a tensor without a version, for which
 * _version() would throw. Tensors of inference_mode have no version, even after their .data was replaced. */
static int64_t (*version_of)(torch_tensor);
static const void *const *(*counter_of)(torch_tensor);

const char *weights_print_open(void) {
    void *const library = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_NOLOAD);
    if (!library) return "PyTorch's libtorch_cpu.so is not loaded in this process";
    *(void **)&version_of = dlsym(library, "_ZNK2at10TensorBase8_versionEv");
    *(void **)&counter_of = dlsym(library, "_ZN5torch8autograd4impl15version_counterERKN2at6TensorE");
    dlclose(library);
    return version_of && counter_of ? NULL : "this PyTorch does not tell the versions of tensors";
}

/* A handle is a pointer to an at::Tensor, which is a pointer to the object. */
const void *torch_object_of(torch_tensor tensor) { return *(const void *const *)tensor; }

enum { SAMPLES = 64 };

/* Samples 64 words of 8 bytes, one in each 64th of the tensor. */
static uint64_t sample(const char *data, size_t bytes, uint64_t sum) {
    const size_t words = bytes / sizeof(uint64_t), stripe = words / SAMPLES;
    if (!stripe) return XXH3_64bits_withSeed(data, bytes, sum);
    uint64_t random = 0x9e3779b97f4a7c15u, taken[SAMPLES];
    for (size_t i = 0; i < SAMPLES; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        memcpy(&taken[i], data + (i * stripe + (random >> 33) % stripe) * sizeof(uint64_t), sizeof(uint64_t));
    }
    return XXH3_64bits_withSeed(taken, sizeof taken, sum);
}

void weights_state_read(const weights_request *r, bool all, weights_state *state) {
    state->print = 0;
    for (int i = 0; i < WEIGHTS_COUNT; i++) {
        state->data[i] = r->data[i];
        const bool has_none = !*counter_of(r->tensor[i]);
        state->version[i] = has_none ? -1 : version_of(r->tensor[i]);
        all = all || has_none;
    }
    for (int i = 0; i < WEIGHTS_COUNT; i++)
        state->print = all ? XXH3_64bits_withSeed(r->data[i], r->bytes[i], state->print)
                           : sample(r->data[i], r->bytes[i], state->print);
}

bool weights_state_equal(const weights_state *a, const weights_state *b) {
    return !memcmp(a->data, b->data, sizeof a->data) && !memcmp(a->version, b->version, sizeof a->version) &&
           a->print == b->print;
}
