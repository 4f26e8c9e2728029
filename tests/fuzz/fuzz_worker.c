/* What a worker process says: any bytes as its replies to two requests, and, where the first byte is even, as its
 * greeting before them. Nothing is believed that is not a frame, and memory is asked for by the length of a frame
 * only. */
#define _GNU_SOURCE
#include "fuzz.h"

#include "compiler/worker_client.h"

#include <errno.h>
#include <sys/socket.h>
#include <unistd.h>

enum { MOST_BYTES = 1 << 20 };

static void *small_alloc(void *user, size_t bytes, size_t align) {
    return bytes > MOST_BYTES ? NULL : at_default_allocator()->alloc(user, bytes, align);
}
static void small_free(void *user, void *pointer) { at_default_allocator()->free(user, pointer); }
static const attune_allocator small = {small_alloc, small_free, NULL};

/* The end of a socket that a worker with these last words would have left. */
static const uint8_t *words;
static size_t num_words;
static int other_end = -1;

static int open_pair(int domain, int type, int protocol, int fds[2]) {
    if (other_end >= 0) close(other_end);
    other_end = -1;
    if (socketpair(domain, type, protocol, fds)) return -1;
    other_end = dup(fds[1]); /* what is sent stays unread, and nobody has gone */
    FUZZ_REQUIRE(send(fds[1], words, num_words, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)num_words);
    FUZZ_REQUIRE(other_end >= 0 && shutdown(fds[1], SHUT_WR) == 0);
    return 0;
}

static void compile(at_workers *workers, const char *path) {
    static const at_codegen_request request = {"kernel", 6, "x86-64", ATTUNE_STAGE_IMAGE};
    void *data = NULL;
    size_t bytes = 0;
    at_error err = {0};
    at_codegen_file program, plugin = {0};
    at_codegen_name(path, &program);
    const attune_status status = at_workers_compile(workers, &program, &plugin, &request, &small, &data, &bytes, &err);
    FUZZ_REQUIRE((status == ATTUNE_OK) == (data != NULL) && status == err.status);
    FUZZ_REQUIRE(status == ATTUNE_OK || (status < ATTUNE_STATUS_COUNT && bytes == 0));
    FUZZ_REQUIRE(bytes <= num_words && (!data || ((const char *)data)[bytes] == '\0'));
    at_free(&small, data);
}

/* A worker that is no child of this process, so nobody is killed or waited for. */
static void add_idle(at_workers *workers, const at_io *io) {
    int fds[2];
    FUZZ_REQUIRE(io->socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) == 0);
    close(fds[1]);
    workers->places[0].worker = (at_worker){.pid = getpid(), .fd = fds[0]};
    FUZZ_REQUIRE(fstat(fds[0], &workers->places[0].worker.opened) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const at_log silent = {0};
    at_io io = *at_default_io();
    at_workers workers;
    if (!size) return 0;
    words = data + 1;
    num_words = size - 1;
    io.socketpair = open_pair;
    at_workers_init(&workers, 1, 0, &io, &silent);
    if (data[0] % 2) add_idle(&workers, &io);
    /* A program that says nothing itself: its end of the socket has said it all. */
    compile(&workers, data[0] % 2 ? "" : "/bin/true");
    if (workers.places[0].worker.fd >= 0) compile(&workers, "");
    at_workers_free(&workers);
    if (other_end >= 0) close(other_end);
    other_end = -1;
    return 0;
}
