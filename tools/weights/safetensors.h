/* Files of tensors in the safetensors format: eight bytes with the length of a header, the header, which is JSON and
 * tells name, dtype, shape and place of each tensor, then the tensors' bytes, little-endian and in C order.
 *
 * Nothing in the header is believed: what is accepted describes exactly the bytes that are there, each byte of the
 * data belonging to one tensor. Values are not looked at. */
#ifndef ATTUNE_TOOLS_SAFETENSORS_H
#define ATTUNE_TOOLS_SAFETENSORS_H

#include <attune.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct safetensor {
    const char *name;
    const char *type;   /* as in the file: "F32". Static storage */
    attune_dtype dtype; /* ATTUNE_DTYPE_DEFAULT: one that attune does not know */
    size_t rank, bytes; /* bytes: of the data */
    const int64_t *shape;
    size_t offset; /* of the data in the file; it need not be a multiple of the element's size */
} safetensor;

typedef struct safetensors {
    const unsigned char *file; /* all of it */
    size_t size;               /* of the file */
    safetensor *list;          /* in the order of their data */
    size_t count;
    int64_t *dims;       /* shapes point into it */
    struct json_t *json; /* names point into it */
    bool is_mapped;
} safetensors;

/* Reads the header of a file that lies in memory, and stays there. `message` says what is wrong, without the file's
 * name. Free with safetensors_close. */
bool safetensors_parse(const void *file, size_t size, safetensors *tensors, char message[ATTUNE_MESSAGE_BYTES]);

/* Maps a file; `message` names it. The file must not shrink until safetensors_close. */
bool safetensors_open(const char *path, safetensors *tensors, char message[ATTUNE_MESSAGE_BYTES]);
void safetensors_close(safetensors *tensors);

/* NULL if there is none of that name. */
const safetensor *safetensors_find(const safetensors *tensors, const char *name);

#endif
