/* The plug-in's interface (target/codegen_abi.h): text in, bytes or a message out. */
#include "codegen/exports.h"

#include "codegen/compile.h"
#include "ir/text.h"
#include "ir/verify.h"

#include "generator_id.h"

#include <llvm/Config/llvm-config.h>
#include <string.h>

static attune_status compile_text(const at_codegen_request *request, at_arena *arena, at_codegen_reply *reply,
                                  at_error *err) {
    const at_target *target = at_target_find(request->target);
    if (!target) return at_fail(err, ATTUNE_INVALID_ARGUMENT, "unknown ISA '%.40s'", request->target);
    if (request->stage < ATTUNE_STAGE_LLVM || request->stage > ATTUNE_STAGE_IMAGE)
        return at_fail(err, ATTUNE_INVALID_ARGUMENT, "the code generator has no stage %d", request->stage);
    const ir_kernel *kernel = ir_parse(arena, request->ir, request->ir_bytes, err);
    if (!kernel) return err->status;
    const attune_status status = ir_verify(kernel, IR_LOWERED, target, err);
    if (status) return status;
    return cg_compile(kernel, target, (attune_stage)request->stage, &reply->data, &reply->bytes, err);
}

static void compile(const at_codegen_request *request, at_codegen_reply *reply) {
    at_error err = {0};
    at_arena arena;
    *reply = (at_codegen_reply){0};
    at_arena_init(&arena, NULL);
    reply->status = compile_text(request, &arena, reply, &err);
    if (reply->status) memcpy(reply->message, err.message, sizeof reply->message);
    at_arena_free(&arena);
}

static void release(at_codegen_reply *reply) {
    at_free(NULL, reply->data);
    reply->data = NULL;
    reply->bytes = 0;
}

const at_codegen_exports *attune_codegen_exports(void) {
#ifdef ATTUNE_OWN_LLVM
    enum { HAS_DESTRUCTORS = 0 }; /* no_destructors.c */
#else
    enum { HAS_DESTRUCTORS = 1 };
#endif
    static const at_codegen_exports table = {AT_CODEGEN_ABI, ATTUNE_GENERATOR_ID, LLVM_VERSION_STRING, compile,
                                             release,        HAS_DESTRUCTORS};
    return &table;
}
