/* A program as users of a bundle write it, in the common part of C99 and C++11: two bundles, whose kernels have the
 * same name. It prints, for each target that the CPU runs, a hash of the results' bits. test_bundle_users.sh compiles
 * it in many ways. */
#include "one.h"
#include "two.h"

#include <stdio.h>
#include <string.h>

#if defined(FILTERED)
#include <stddef.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* From here on a process that maps executable memory, opens a file or starts a thread is killed. */
static int forbid(void) {
    static struct sock_filter rules[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mprotect, 5, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_mmap, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_openat, 4, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone, 3, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clone3, 2, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof rules / sizeof *rules, rules};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
}
#else
static int forbid(void) { return 0; }
#endif

enum { Q = 4 * 20 * 16, KV = 4 * 45 * 16 };
static float q[Q], k[KV], v[KV], out[Q];
static union {
    double alignment[2];
    unsigned char bytes[1 << 20];
} memory;

static void fill(float *to, int count, uint32_t seed) {
    int i;
    for (i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        to[i] = (float)(int32_t)(seed >> 8 & 0xffff) / 65536.0f - 0.5f;
    }
}

static uint32_t hash(uint32_t before, const void *data, size_t bytes) {
    size_t i;
    for (i = 0; i < bytes; i++) before = (before ^ ((const unsigned char *)data)[i]) * 16777619u;
    return before;
}

static void *workspace(void) { return memory.bytes + (64 - (uintptr_t)memory.bytes % 64) % 64; }

static int run(uint32_t *bits) {
    one_attn_args first = ONE_ATTN_ARGS;
    two_attn_args second = TWO_ATTN_ARGS;
    int status;
    first.q = second.q = q;
    first.k = second.k = k;
    first.v = second.v = v;
    first.out = second.out = out;
    first.workspace = second.workspace = workspace();
    second.seq_q = 13;
    second.seq_kv = 45;
    status = one_attn_workspace(&first, 1, &first.workspace_bytes);
    if (!status) status = two_attn_workspace(&second, 1, &second.workspace_bytes);
    if (first.workspace_bytes + 64 > sizeof memory || second.workspace_bytes + 64 > sizeof memory) return 100;
    if (!status) status = one_attn(&first);
    *bits = hash(2166136261u, out, 4 * 20 * 16 * sizeof *out);
    if (!status) status = two_attn(&second);
    *bits = hash(*bits, out, 4 * 13 * 16 * sizeof *out);
    return status;
}

int main(int argc, char **argv) {
    int i;
    fill(q, Q, 1);
    fill(k, KV, 2);
    fill(v, KV, 3);
    if (forbid()) return 3;
    for (i = 1; i < argc; i++) {
        uint32_t bits = 0;
        int status = one_use(argv[i]);
        if (!status) status = two_use(argv[i]);
        if (!status) status = run(&bits);
        if (!status && strcmp(one_attn_target(), argv[i])) return 4;
        printf("%s %d %08x\n", argv[i], status, (unsigned)bits);
    }
    if (argc == 1) printf("%s\n", one_attn_target() ? one_attn_target() : "none");
    return 0;
}
