/* The worker process: the code generator at the other end of a pipe, so that an abort inside LLVM ends this process
 * only. The protocol is in target/codegen_abi.h. The exit status is 0 at the end of input, and 1 if the host does not
 * speak the protocol or has gone, in the middle of a compile, too.
 *
 *     attune-codegen-worker [PLUGIN]
 *
 * A small program that loads the plug-in. Without a plug-in it runs too, and each reply says why there is none. The
 * host names the plug-in that it has found. If that is "", the host found none, and the worker looks for one beside
 * itself. Without an argument it searches as the library does. Only then does it read the environment: a host with
 * raised privileges does not trust that, and the worker, which has none, cannot tell. */
#include "compiler/codegen_path.h"
#include "compiler/plugin.h"

#include "generator_id.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
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

static bool say_hello(int fd) {
    static const char id[] = ATTUNE_GENERATOR_ID;
    const uint32_t words[] = {AT_WORKER_MAGIC, AT_CODEGEN_ABI, sizeof id - 1};
    return write_all(fd, words, sizeof words) && write_all(fd, id, words[2]);
}

static bool send_reply(int fd, attune_status status, const void *payload, size_t bytes) {
    if (bytes > UINT32_MAX) return false;
    const uint32_t words[] = {AT_WORKER_MAGIC, (uint32_t)status, (uint32_t)bytes, 0};
    return write_all(fd, words, sizeof words) && write_all(fd, payload, bytes);
}

/* The plug-in, or why there is none. */
typedef struct generator {
    const at_codegen_exports *exports;
    at_error missing;
} generator;

static void load(generator *codegen, const char *given) {
    at_codegen_file file;
    if (given && *given)
        at_codegen_name(given, &file);
    else
        at_codegen_find(given ? NULL : "ATTUNE_CODEGEN", "libattune-codegen.so", &file);
    at_plugin_load(&file, "this worker", &codegen->exports, &codegen->missing);
}

static bool answer(int out, const generator *codegen, const at_codegen_request *request) {
    if (!codegen->exports)
        return send_reply(out, codegen->missing.status, codegen->missing.message, strlen(codegen->missing.message));
    at_codegen_reply reply = {0};
    codegen->exports->compile(request, &reply);
    const bool sent = reply.status ? send_reply(out, reply.status, reply.message, strlen(reply.message))
                                   : send_reply(out, ATTUNE_OK, reply.data, reply.bytes);
    codegen->exports->release(&reply);
    return sent;
}

/* One request and its reply. */
static bool serve(int in, int out, const generator *codegen, bool *ended) {
    uint32_t words[4]; /* magic, stage, bytes of the target's name, bytes of IR */
    bool cut;
    if (!read_all(in, words, sizeof words, ended)) return false;
    if (words[0] != AT_WORKER_MAGIC || words[2] > AT_WORKER_MAX_TARGET || words[3] > AT_WORKER_MAX_IR) return false;
    char target[AT_WORKER_MAX_TARGET + 1] = {0};
    char *ir = malloc((size_t)words[3] + 1);
    if (!ir) return false;
    const at_codegen_request request = {ir, words[3], target, (int)words[1]};
    const bool served =
        read_all(in, target, words[2], &cut) && read_all(in, ir, words[3], &cut) && answer(out, codegen, &request);
    free(ir);
    return served;
}

/* Only frames may reach the host. From here on, LLVM's output on stdout goes to stderr. */
static int take_stdout(void) {
    const int out = dup(STDOUT_FILENO);
    if (out < 0 || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) return -1;
    return out;
}

/* Nobody reads the replies any more: the host has ended, or has abandoned the compile that is under way. */
static void *end_with_host(void *user) {
    struct pollfd output = {.fd = *(const int *)user};
    while (poll(&output, 1, -1) < 0 && errno == EINTR) {
    }
    _exit(1);
}

int main(int argc, char **argv) {
    generator codegen = {0};
    pthread_t watcher;
    const int out = take_stdout();
    if (out < 0 || !say_hello(out)) return 1;
    if (!pthread_create(&watcher, NULL, end_with_host, (void *)&out)) pthread_detach(watcher);
    load(&codegen, argc > 1 ? argv[1] : NULL);
    bool ended = false;
    while (serve(STDIN_FILENO, out, &codegen, &ended)) {
    }
    return ended ? 0 : 1;
}
