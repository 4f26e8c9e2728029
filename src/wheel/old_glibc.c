/* Linked into libattune.so.0 and the adapters for the wheel only (make wheel), which must load with glibc 2.28.
 *
 * glibc 2.29 to 2.34 gave many functions a new version, mostly because libpthread and libdl became part of libc. A
 * library that is built with a newer glibc asks for the new versions. The linker's --wrap sends such calls here, and
 * here the oldest version of each function is named. Newer glibc still have these. Functions that glibc 2.28 lacks are
 * looked up when they are called. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/stat.h>

#if defined(__x86_64__)
#define SINCE(x86_64) x86_64
#define STAT_VERSION  1
#elif defined(__aarch64__)
#define SINCE(x86_64) "GLIBC_2.17" /* the first glibc for it */
#define STAT_VERSION  0
#endif

/* FORWARD(result, name, version, parameters, arguments): __wrap_NAME calls NAME@version. */
#define FORWARD(result, name, version, parameters, arguments)                                                          \
    __asm__(".symver old_" #name "," #name "@" SINCE(version));                                                        \
    result old_##name parameters;                                                                                      \
    result __wrap_##name parameters;                                                                                   \
    result __wrap_##name parameters { return old_##name arguments; }

#define BASE "GLIBC_2.2.5"

FORWARD(double, exp, BASE, (double x), (x))
FORWARD(double, log, BASE, (double x), (x))

FORWARD(void *, dlopen, BASE, (const char *path, int flags), (path, flags))
FORWARD(void *, dlsym, BASE, (void *handle, const char *name), (handle, name))
FORWARD(int, dlclose, BASE, (void *handle), (handle))
FORWARD(char *, dlerror, BASE, (void), ())
FORWARD(int, dladdr1, "GLIBC_2.3.3", (const void *address, Dl_info *info, void **extra, int flags),
        (address, info, extra, flags))

FORWARD(int, pthread_create, BASE,
        (pthread_t * thread, const pthread_attr_t *attributes, void *(*start)(void *), void *argument),
        (thread, attributes, start, argument))
FORWARD(int, pthread_join, BASE, (pthread_t thread, void **result), (thread, result))
FORWARD(int, pthread_once, BASE, (pthread_once_t * once, void (*first)(void)), (once, first))
FORWARD(int, pthread_sigmask, BASE, (int how, const sigset_t *set, sigset_t *before), (how, set, before))
FORWARD(int, pthread_setname_np, "GLIBC_2.12", (pthread_t thread, const char *name), (thread, name))
FORWARD(int, pthread_attr_setstacksize, BASE, (pthread_attr_t * attributes, size_t bytes), (attributes, bytes))
FORWARD(int, pthread_attr_setaffinity_np, "GLIBC_2.3.4",
        (pthread_attr_t * attributes, size_t bytes, const cpu_set_t *cpus), (attributes, bytes, cpus))
FORWARD(int, pthread_getaffinity_np, "GLIBC_2.3.4", (pthread_t thread, size_t bytes, cpu_set_t *cpus),
        (thread, bytes, cpus))
FORWARD(int, pthread_setaffinity_np, "GLIBC_2.3.4", (pthread_t thread, size_t bytes, const cpu_set_t *cpus),
        (thread, bytes, cpus))
FORWARD(int, pthread_condattr_setclock, "GLIBC_2.3.3", (pthread_condattr_t * attributes, clockid_t clock),
        (attributes, clock))
FORWARD(int, pthread_mutexattr_init, BASE, (pthread_mutexattr_t * attributes), (attributes))
FORWARD(int, pthread_mutexattr_destroy, BASE, (pthread_mutexattr_t * attributes), (attributes))
FORWARD(int, pthread_mutexattr_settype, BASE, (pthread_mutexattr_t * attributes, int kind), (attributes, kind))

/* stat and its like were inline functions around these. */
FORWARD(int, __xstat, BASE, (int version, const char *path, struct stat *status), (version, path, status))
FORWARD(int, __lxstat, BASE, (int version, const char *path, struct stat *status), (version, path, status))
FORWARD(int, __fxstat, BASE, (int version, int fd, struct stat *status), (version, fd, status))
FORWARD(int, __fxstatat, "GLIBC_2.4", (int version, int dir, const char *path, struct stat *status, int flags),
        (version, dir, path, status, flags))

int __wrap_stat(const char *path, struct stat *status);
int __wrap_lstat(const char *path, struct stat *status);
int __wrap_fstat(int fd, struct stat *status);
int __wrap_fstatat(int dir, const char *path, struct stat *status, int flags);

int __wrap_stat(const char *path, struct stat *status) { return old___xstat(STAT_VERSION, path, status); }

int __wrap_lstat(const char *path, struct stat *status) { return old___lxstat(STAT_VERSION, path, status); }

int __wrap_fstat(int fd, struct stat *status) { return old___fxstat(STAT_VERSION, fd, status); }

int __wrap_fstatat(int dir, const char *path, struct stat *status, int flags) {
    return old___fxstatat(STAT_VERSION, dir, path, status, flags);
}

/* Both are for the worker. It needs a newer glibc than the library, so there they are found. */
int __wrap_posix_spawn_file_actions_addchdir_np(posix_spawn_file_actions_t *actions, const char *path);
int __wrap_posix_spawn_file_actions_addclosefrom_np(posix_spawn_file_actions_t *actions, int from);

int __wrap_posix_spawn_file_actions_addchdir_np(posix_spawn_file_actions_t *actions, const char *path) {
    int (*add)(posix_spawn_file_actions_t *, const char *);
    *(void **)&add = old_dlsym(RTLD_DEFAULT, "posix_spawn_file_actions_addchdir_np");
    return add ? add(actions, path) : ENOSYS;
}

int __wrap_posix_spawn_file_actions_addclosefrom_np(posix_spawn_file_actions_t *actions, int from) {
    int (*add)(posix_spawn_file_actions_t *, int);
    *(void **)&add = old_dlsym(RTLD_DEFAULT, "posix_spawn_file_actions_addclosefrom_np");
    return add ? add(actions, from) : ENOSYS;
}
