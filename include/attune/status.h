/* What every function of attune returns: a status, and a sentence about the last failure. */
#ifndef ATTUNE_STATUS_H
#define ATTUNE_STATUS_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define ATTUNE_API __attribute__((visibility("default")))
#define ATTUNE_CHECKED ATTUNE_API __attribute__((warn_unused_result)) /* a status that must be looked at */
#else
#define ATTUNE_API
#define ATTUNE_CHECKED ATTUNE_API
#endif

/* ---- Status ---- */

typedef enum attune_status {
    ATTUNE_OK = 0,
    ATTUNE_INVALID_ARGUMENT,  /* a pointer, size or option that the call does not accept */
    ATTUNE_INVALID_PROBLEM,   /* a problem whose fields contradict each other or are out of range */
    ATTUNE_INVALID_SCHEDULE,  /* a schedule that is not legal for the problem or the ISA */
    ATTUNE_INVALID_IR,        /* loop IR that does not parse or does not verify */
    ATTUNE_UNSUPPORTED,       /* well formed, but this build or this CPU cannot do it */
    ATTUNE_OUT_OF_MEMORY,
    ATTUNE_WORKSPACE_TOO_SMALL,
    ATTUNE_IO_ERROR,          /* a file or directory could not be read or written */
    ATTUNE_BAD_FILE,          /* a file was read, but is truncated, damaged or of another kind */
    ATTUNE_CODEGEN_MISSING,   /* the code generator could not be loaded or started, or is of another version;
                               * also for lack of descriptors or processes: a later call may succeed */
    ATTUNE_CODEGEN_FAILED,    /* the code generator or its worker process failed */
    ATTUNE_NO_EXEC_MEMORY,    /* the system refused executable memory */
    ATTUNE_CHECK_FAILED,      /* the interpreter found an access out of bounds or a read of unwritten memory */
    ATTUNE_INTERNAL,          /* a bug in attune */
    ATTUNE_NOT_CACHED,        /* strict mode forbids compiling, and no cache has the kernel */
    ATTUNE_CANCELLED,         /* the call's cancel flag was set: its outputs are undefined. In an event: a compile in
                               * the background was abandoned, because its plan or its context ends */
    ATTUNE_STATUS_COUNT
} attune_status;

#define ATTUNE_MESSAGE_BYTES 512

/* A short name of the status such as "out of memory". Static storage; never NULL. */
ATTUNE_API const char *attune_status_name(attune_status status);

/* One sentence about the last failure on the calling thread, or "" after no failure. Valid until the next attune call
 * on the same thread. */
ATTUNE_API const char *attune_last_message(void);

#ifdef __cplusplus
/* C++ has no designated initialisers before C++20, so there the ATTUNE_…_INIT macros are calls with the same result.
 * The linkage is named because a program may include this header within extern "C". */
extern "C++" {
template <typename type> inline type attune_initial(attune_status (*init)(type *, size_t)) {
    type initial;
    init(&initial, sizeof initial);
    return initial;
}
/* A struct that a function fills in. */
template <typename type> inline type attune_sized() {
    type initial = type();
    initial.struct_size = sizeof initial;
    return initial;
}
}
}
#define ATTUNE_RESULT_INIT(type) attune_sized<type>()
#else
#define ATTUNE_RESULT_INIT(type) { .struct_size = sizeof(type) }
#endif

#endif
