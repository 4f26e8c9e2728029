/* What the rest of the adapter shares: the context, PyTorch's element types, and what happens after a failure: a
 * warning once, and PyTorch's own kernel. */
#include "adapter.h"

#include "attune_torch.h"
#include "common/context.h"
#include "runner.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

size_t attune_torch_stats(char *text, size_t capacity) { return adapter_counters(text, capacity); }

/* All layers of a model call the same plan. Few models have more layers than `repeats`, so no kernel is compiled for a
 * repeated length before the second token, when it is still unknown whether that length will recur. */
const common_engine_info common_engine = {.has_threads = true, .has_stock = true, .max_plans = 4096, .repeats = 64};

void *attune_torch_context(void) {
    attune_status status;
    const char *message;
    attune_context *const context = common_context(&status, &message);
    if (!context) adapter_broken("context", status, message);
    return context;
}

void attune_torch_runner(void *runner) { *(attune_runner *)runner = torch_runner(); }

attune_dtype adapter_dtype(int32_t dtype) {
    return dtype == torch.f32       ? ATTUNE_F32
           : dtype == torch.bf16    ? ATTUNE_BF16
           : dtype == torch.f16     ? ATTUNE_F16
           : dtype == torch.f64     ? ATTUNE_F64
           : dtype == torch.boolean ? ATTUNE_BOOL
           : dtype == torch.i8      ? ATTUNE_I8
                                    : ATTUNE_DTYPE_DEFAULT;
}

/* ---- Failures ---- */

int adapter_is_unsupported(attune_status status) {
    return status == ATTUNE_UNSUPPORTED || status == ATTUNE_INVALID_PROBLEM || status == ATTUNE_INVALID_ARGUMENT;
}

/* Once per status. */
static void warn(const char *op, attune_status status, const char *happens) {
    static atomic_uint warned;
    const unsigned bit = 1u << (unsigned)status;
    if (atomic_fetch_or(&warned, bit) & bit) return;
    char text[ATTUNE_MESSAGE_BYTES + 160];
    snprintf(text, sizeof text, "attune: %s runs as stock PyTorch from now on where this happens: %s", op, happens);
    torch.aoti_torch_warn(__func__, __FILE__, __LINE__, text);
}

void adapter_broken(const char *op, attune_status status, const char *message) {
    char text[ATTUNE_MESSAGE_BYTES + 64];
    ADAPTER_COUNT("broken");
    snprintf(text, sizeof text, "%s (%s)", message, attune_status_name(status));
    warn(op, status, text);
}

bool adapter_is_not_compiled(const char *op, attune_status status) {
    const char *const mode = getenv("ATTUNE_COMPILE");
    if (status != ATTUNE_CODEGEN_MISSING || !mode || strcmp(mode, "never") != 0) return false;
    warn(op, status, "ATTUNE_COMPILE=never, and no cache has the kernel");
    return true;
}

void adapter_throw(const char *message) { torch.aoti_torch_check(false, __func__, __FILE__, __LINE__, message); }

void adapter_rethrow(const char *op) {
    char text[ATTUNE_MESSAGE_BYTES];
    if (torch.torch_exception_get_what_without_backtrace)
        snprintf(text, sizeof text, "%s", torch.torch_exception_get_what_without_backtrace());
    else
        snprintf(text, sizeof text, "%s failed in PyTorch, which has written the reason to stderr", op);
    adapter_throw(text);
}

/* ---- Enabling ---- */

const char *adapter_override(const char *name, torch_kernel_fn *kernel) {
    torch_library library; /* never freed */
    if (torch.aoti_torch_library_init_impl("aten", "CPU", __FILE__, __LINE__, &library))
        return "PyTorch refused a library of kernels; its reason is on stderr";
    if (!torch.torch_library_impl(library, name, kernel, TORCH_ABI_2_10)) return NULL;
    torch.aoti_torch_delete_library_object(library);
    return "PyTorch refused a kernel; its reason is on stderr";
}

static const struct {
    unsigned bit;
    const char *(*register_)(void);
} overrides[] = {{ADAPTER_SDPA, sdpa_register}, {ADAPTER_BLOCK, block_register}};

static pthread_mutex_t state_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint enabled, registered;

bool adapter_is_on(unsigned bits) { return (atomic_load_explicit(&enabled, memory_order_relaxed) & bits) == bits; }

bool adapter_is_reproducible(void) { return adapter_is_on(ADAPTER_REPRODUCIBLE); }

static void before_fork(void) { pthread_mutex_lock(&state_lock); }
static void after_fork(void) { pthread_mutex_unlock(&state_lock); }

static const char *open_once(void) {
    const char *failure = torch_abi_open();
    if (!failure) failure = ops_define();
    if (!failure && pthread_atfork(before_fork, after_fork, after_fork)) failure = "there is no memory";
    return failure;
}

const char *attune_torch_open(void) {
    static bool is_open;
    const char *failure = NULL;
    pthread_mutex_lock(&state_lock);
    if (!is_open) failure = open_once();
    if (!failure) is_open = true;
    pthread_mutex_unlock(&state_lock);
    return failure;
}

unsigned attune_torch_registered(void) { return atomic_load(&registered); }

const char *attune_torch_set_enabled(unsigned bits) {
    const char *failure = NULL;
    pthread_mutex_lock(&state_lock);
    for (size_t i = 0; i < sizeof overrides / sizeof *overrides && !failure; i++)
        if (bits & ~registered & overrides[i].bit && !(failure = overrides[i].register_()))
            atomic_fetch_or(&registered, overrides[i].bit);
    if (!failure) atomic_store(&enabled, bits);
    pthread_mutex_unlock(&state_lock);
    return failure;
}
