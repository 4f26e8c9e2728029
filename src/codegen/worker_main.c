/* The worker process: the code generator behind a pipe, so that an abort inside LLVM ends only this process.
 * The protocol is in target/codegen_abi.h. Ends with 0 at the end of input, with 1 when the host does not speak the
 * protocol or went away. */
#include "codegen/exports.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads exactly `bytes`; *ended: the input ended before the first of them. */
static bool read_all(int fd, void *to, size_t bytes, bool *ended) {
    *ended = false;
    for (size_t done = 0; done < bytes;) {
        const ssize_t n = read(fd, (char *)to + done, bytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) {
            *ended = n == 0 && done == 0;
            return false;
        }
        done += (size_t)n;
    }
    return true;
}

static bool write_all(int fd, const void *from, size_t bytes) {
    for (size_t done = 0; done < bytes;) {
        const ssize_t n = write(fd, (const char *)from + done, bytes - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        done += (size_t)n;
    }
    return true;
}

static bool say_hello(int fd, const char *generator_id) {
    const uint32_t words[] = {AT_WORKER_MAGIC, AT_CODEGEN_ABI, (uint32_t)strlen(generator_id)};
    return write_all(fd, words, sizeof words) && write_all(fd, generator_id, words[2]);
}

static bool send_reply(int fd, const at_codegen_reply *reply) {
    const bool ok = reply->status == ATTUNE_OK;
    const void *payload = ok ? reply->data : reply->message;
    const size_t bytes = ok ? reply->bytes : strlen(reply->message);
    if (bytes > UINT32_MAX) return false;
    const uint32_t words[] = {AT_WORKER_MAGIC, (uint32_t)reply->status, (uint32_t)bytes, 0};
    return write_all(fd, words, sizeof words) && write_all(fd, payload, bytes);
}

/* One request and its reply. */
static bool serve(int in, int out, const at_codegen_exports *codegen, bool *ended) {
    uint32_t words[4]; /* magic, stage, bytes of the target's name, bytes of IR */
    bool cut;
    if (!read_all(in, words, sizeof words, ended)) return false;
    if (words[0] != AT_WORKER_MAGIC || words[2] > AT_WORKER_MAX_TARGET || words[3] > AT_WORKER_MAX_IR) return false;
    char target[AT_WORKER_MAX_TARGET + 1] = {0};
    char *ir = malloc((size_t)words[3] + 1);
    if (!ir) return false;
    at_codegen_reply reply = {0};
    bool served = read_all(in, target, words[2], &cut) && read_all(in, ir, words[3], &cut);
    if (served) {
        const at_codegen_request request = {ir, words[3], target, (int)words[1]};
        codegen->compile(&request, &reply);
        served = send_reply(out, &reply);
        codegen->release(&reply);
    }
    free(ir);
    return served;
}

/* Only frames may reach the host: what LLVM prints on stdout goes to stderr from here on. */
static int take_stdout(void) {
    const int out = dup(STDOUT_FILENO);
    if (out < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) return -1;
    return out;
}

int main(void) {
    const at_codegen_exports *codegen = attune_codegen_exports();
    const int out = take_stdout();
    if (out < 0 || !say_hello(out, codegen->generator_id)) return 1;
    bool ended = false;
    while (serve(STDIN_FILENO, out, codegen, &ended)) {
    }
    return ended ? 0 : 1;
}
