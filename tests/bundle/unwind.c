/* A kernel of a bundle reads memory that it must not. The handler of the signal goes up its stack, as a profiler or a
 * debugger does, and must come to the function that called. Exit status 0: it did. */
#include "one.h"

#include <execinfo.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { COUNT = 4 * 45 * 16 };
static float data[COUNT], out[4 * 20 * 16];
static _Alignas(64) unsigned char workspace[1 << 20];

static __attribute__((noinline)) int call(one_attn_args *args) {
    const int status = one_attn(args);
    __asm__ volatile("" ::: "memory"); /* no tail call */
    return status;
}

static void look(int number) {
    void *frames[64];
    const int count = backtrace(frames, 64);
    int found = 0;
    (void)number;
    for (int i = 0; i < count; i++) {
        const char *const at = frames[i], *const begin = (const char *)(void *)call;
        found += at > begin && at < begin + 128;
    }
    _exit(found == 1 ? 0 : 2);
}

int main(int argc, char **argv) {
    void *frames[4];
    one_attn_args args = ONE_ATTN_ARGS;
    const size_t bytes = sizeof data;
    float *const hidden = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (hidden == MAP_FAILED || backtrace(frames, 4) < 1) return 3; /* loads what it needs beforehand */
    signal(SIGSEGV, look);
    if (argc > 1 && one_use(argv[1])) return 77; /* not for this CPU */
    args.q = data, args.k = data, args.v = hidden, args.out = out;
    args.workspace = workspace, args.workspace_bytes = sizeof workspace;
    return call(&args) ? 4 : 5; /* it did not read it */
}
