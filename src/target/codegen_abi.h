/* The boundary to LLVM: lowered IR text and a target's name in, bytes or a message out. libattune-codegen.so exports
 * the two functions below; the worker process speaks the same in frames over a pipe. */
#ifndef ATTUNE_TARGET_CODEGEN_ABI_H
#define ATTUNE_TARGET_CODEGEN_ABI_H

#include <attune.h>

enum { AT_CODEGEN_ABI = 1 };

/* The form of the result. The values are those of attune_stage from LLVM on. */
typedef struct at_codegen_request {
    const char *ir; /* lowered IR text */
    size_t ir_bytes;
    const char *target; /* at_target.name */
    int stage;          /* ATTUNE_STAGE_LLVM, _ASM, _OBJECT or _IMAGE */
} at_codegen_request;

typedef struct at_codegen_reply {
    attune_status status;
    void *data; /* free with at_codegen_exports.release; NULL on failure */
    size_t bytes;
    char message[ATTUNE_MESSAGE_BYTES]; /* "" when status is ATTUNE_OK */
} at_codegen_reply;

/* The plug-in's one symbol: a function returning its table. */
typedef struct at_codegen_exports {
    uint32_t abi;                                                                /* AT_CODEGEN_ABI */
    const char *generator_id;                                                    /* must equal the library's */
    const char *llvm_version;                                                    /* that it was built for */
    void (*compile)(const at_codegen_request *request, at_codegen_reply *reply); /* thread-safe */
    void (*release)(at_codegen_reply *reply);
    int has_destructors; /* exit() ends objects of LLVM: no compile may be under way then */
} at_codegen_exports;

#define AT_CODEGEN_SYMBOL "attune_codegen_exports"
typedef const at_codegen_exports *at_codegen_exports_fn(void);

/* Worker protocol, little-endian, over stdin/stdout of `attune-codegen-worker`:
 *   at start the worker sends a hello frame; then for each request frame one reply frame; end of input ends it.
 *   hello:   u32 magic, u32 abi, u32 n, n bytes generator id
 *   request: u32 magic, u32 stage, u32 n, u32 m, n bytes target name, m bytes IR text
 *   reply:   u32 magic, u32 status, u32 n, u32 0, n bytes: the data, or the message if status is not 0 */
#define AT_WORKER_MAGIC 0x4b577441u                              /* "AtWK" */
enum { AT_WORKER_MAX_TARGET = 64, AT_WORKER_MAX_IR = 64 << 20 }; /* bytes that a worker accepts */

#endif
