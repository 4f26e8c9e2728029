/* The actions of `attune cache` that take more than a few lines. */
#ifndef ATTUNE_TOOLS_CACHE_H
#define ATTUNE_TOOLS_CACHE_H

#include "loop_ir/ir_call.h"

typedef struct cache_options {
    tool_common common;
    const char *action, *argument; /* a problem or a directory, of an action that takes one */
    const char *schedule;
    const char *output, *pack; /* of pack; and a pack that is looked at in the cache's place */
    binding_list numbers;      /* of a file of loop IR */
    uint64_t max_bytes;        /* UINT64_MAX: the cap */
    int64_t sample;
    int64_t seed;
    bool json, has_seed;
} cache_options;

/* Each does one action and returns an exit code. */
int cache_list(const cache_options *o, attune_context *context, const attune_machine_info *machine);
int cache_verify(const cache_options *o, attune_context *context, const attune_machine_info *machine);
int cache_why(const cache_options *o, attune_context *context, const attune_machine_info *machine);
int cache_audit(const cache_options *o, attune_context *context, const attune_machine_info *machine);
int cache_export(const cache_options *o, attune_context *context, const attune_machine_info *machine);
int cache_import(const cache_options *o, attune_context *context, const attune_machine_info *machine);
int cache_add(const cache_options *o, attune_context *context, const attune_machine_info *machine);
int cache_pack(const cache_options *o, attune_context *context, const attune_machine_info *machine);
int cache_seal(const cache_options *o, attune_context *context, const attune_machine_info *machine);
int cache_index(const cache_options *o, attune_context *context, const attune_machine_info *machine);

/* What was copied. Returns an exit code. */
int cache_print_copied(const cache_options *o, const attune_cache_copied *c, const char *from, const char *to,
                       const attune_machine_info *machine, bool is_import);

/* "s", or "" after 1: kernel%s. */
const char *cache_s(uint64_t count);

/* "2026-01-31 12:00" in `text`, or "". */
enum { CACHE_TIME_BYTES = 32 };
const char *cache_time(int64_t seconds, char text[CACHE_TIME_BYTES]);

#endif
