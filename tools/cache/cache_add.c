/* attune cache add: takes in the kernels of a signed pack, from a file or from a server. */
#define _GNU_SOURCE
#include "cache/cache.h"
#include "common/plugin_file.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

#define MOST_BYTES "4294967296" /* of a pack from a server */
static const char fetcher[] = "attune-fetch";

static bool is_url(const char *argument) {
    return strncmp(argument, "http://", 7) == 0 || strncmp(argument, "https://", 8) == 0;
}

/* A file without a name: it is gone with this process, however that ends. */
static int open_nameless(void) {
    const char *const directory = secure_getenv("TMPDIR");
    char path[] = "/tmp/attune-XXXXXX";
    int fd = open(directory && *directory ? directory : "/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0) return fd;
    fd = mkostemp(path, O_CLOEXEC);
    if (fd >= 0) unlink(path);
    return fd;
}

static bool run_fetcher(const char *program, const char *url, int fd) {
    char *const arguments[] = {(char *)fetcher, (char *)url, MOST_BYTES, NULL};
    posix_spawn_file_actions_t actions;
    pid_t child;
    int status = 0;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fd, STDOUT_FILENO);
    const int failure = posix_spawn(&child, program, &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    if (failure) {
        tool_error("%s cannot be started: %s", program, strerror(failure));
        return false;
    }
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    if (WIFSIGNALED(status)) tool_error("%s was ended by signal %d", fetcher, WTERMSIG(status));
    return WIFEXITED(status) && !WEXITSTATUS(status);
}

/* A descriptor of what came; -1 after a message. */
static int fetch(const char *url) {
    tool_file program;
    tool_file_find(fetcher, &program);
    if (!program.path[0]) {
        if (program.refused[0])
            tool_error("%s", program.refused);
        else
            tool_error("packs are fetched by %s, which was not found; install it, or fetch the file by other means",
                       fetcher);
        return -1;
    }
    const int fd = open_nameless();
    if (fd < 0)
        tool_error("there is no room for a temporary file: %s", strerror(errno));
    else if (run_fetcher(program.path, url, fd))
        return fd;
    if (fd >= 0) close(fd);
    return -1;
}

int cache_add(const cache_options *o, attune_context *context, const attune_machine_info *machine) {
    attune_cache_copied copied = {.struct_size = sizeof copied};
    char path[32];
    const bool is_remote = is_url(o->argument);
    const int fd = is_remote ? fetch(o->argument) : -1;
    if (is_remote && fd < 0) return TOOL_FAILED;
    snprintf(path, sizeof path, "/dev/fd/%d", fd);
    const attune_status status = attune_cache_add(context, is_remote ? path : o->argument, &copied);
    if (fd >= 0) close(fd);
    if (status) return tool_library_error(is_remote ? o->argument : NULL);
    return cache_print_copied(o, &copied, o->argument, machine->cache_dir, machine, true);
}
