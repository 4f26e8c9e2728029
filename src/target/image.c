/* Checks an image before it is mapped as code: an image may come from a file.
 *
 *     header | phases | zeros up to code_offset | code and constants, and last the unwind table
 */
#include "target/kernel_abi.h"

#include <string.h>

static bool all_zero(const unsigned char *bytes, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (bytes[i]) return false;
    return true;
}

static const char *check_phases(const at_image_header *header, const unsigned char *bytes) {
    const uint64_t end = header->unwind_bytes ? header->unwind_offset : header->code_bytes;
    if (header->plan_entry >= end) return "the entry of the plan is outside the code";
    for (uint32_t p = 0; p < header->num_phases; p++) {
        at_image_phase phase;
        memcpy(&phase, bytes + sizeof *header + p * sizeof phase, sizeof phase);
        if (phase.entry >= end) return "the entry of a phase is outside the code";
        if (phase.reserved) return "a reserved field is not 0";
        if (phase.scratch_bytes % 64) return "a scratch size is not a multiple of 64";
        if (phase.scratch_bytes > AT_MAX_SCRATCH) return "a scratch size is too large";
    }
    return NULL;
}

const char *at_image_check(const void *image, size_t bytes) {
    at_image_header header;
    if (bytes < sizeof header) return "shorter than its header";
    memcpy(&header, image, sizeof header);
    if (memcmp(header.magic, AT_IMAGE_MAGIC, sizeof header.magic) != 0) return "not an image (wrong magic)";
    if (header.version != AT_IMAGE_VERSION) return "an image of another version";
    if (header.num_phases < 1 || header.num_phases > AT_MAX_PHASES) return "the number of phases is out of range";
    if (header.num_shared > AT_MAX_SHARED) return "the number of shared buffers is out of range";
    if (header.num_buffers > AT_MAX_PARAMS || header.num_scalars > AT_MAX_PARAMS)
        return "the number of parameters is out of range";

    size_t table_end = sizeof header + header.num_phases * sizeof(at_image_phase);
    if (header.code_offset < table_end) return "the code overlaps the table of phases";
    if (header.code_offset % 64) return "the code is not aligned to 64 bytes";
    if (header.code_offset > bytes) return "the code begins behind the end";
    if (header.code_bytes == 0) return "no code";
    if (header.code_bytes != bytes - header.code_offset) return "the size of the code is not what follows the header";
    if (header.code_bytes > UINT32_MAX) return "the code is too large";
    if (header.unwind_offset % 4 || header.unwind_bytes % 4) return "the unwind table is not aligned";
    if (header.unwind_offset > header.code_bytes || header.unwind_bytes > header.code_bytes - header.unwind_offset)
        return "the unwind table is outside the code";
    if (header.unwind_bytes && header.unwind_offset + header.unwind_bytes != header.code_bytes)
        return "the unwind table is not the end of the code";
    if (!all_zero((const unsigned char *)image + table_end, header.code_offset - table_end))
        return "the padding before the code is not 0";
    return check_phases(&header, image);
}
