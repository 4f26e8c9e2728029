/* NumPy's .npy files, versions 1 to 3, little-endian: the usual files for attention tensors. */
#ifndef ATTUNE_TOOLS_NPY_H
#define ATTUNE_TOOLS_NPY_H

#include <attune.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum npy_type {
    NPY_F4,
    NPY_F8,
    NPY_I4,
    NPY_I8,
    NPY_F2,
    NPY_V2, /* bfloat16: NumPy does not know it, and saves it as two raw bytes */
    NPY_U2,
    NPY_I1,
    NPY_U1,
    NPY_B1,
    NPY_I2,
    NPY_U4,
    NPY_U8,
    NPY_TYPE_COUNT
} npy_type;

enum { NPY_MAX_RANK = 8 };

typedef struct npy_header {
    npy_type type;
    size_t rank;
    int64_t shape[NPY_MAX_RANK];
    size_t count;    /* elements */
    size_t offset;   /* of the data in the file */
    bool is_fortran; /* the file has the first index fastest; in memory the last one always is */
} npy_header;

typedef struct npy_array {
    npy_header header;
    void *data; /* 64-byte aligned */
} npy_array;

const char *npy_type_name(npy_type type); /* as in the file: "<f4" */
size_t npy_type_bytes(npy_type type);

/* An element of any type as a number. 64-bit integers beyond 2^53 are rounded. */
double npy_element(const npy_array *array, size_t index);

/* Reads the header of a file that lies in memory and checks that exactly its data follows. `message` says what is
 * wrong, without the file's name. Reads nothing beyond `size`. */
bool npy_parse_header(const void *file, size_t size, npy_header *header, char message[ATTUNE_MESSAGE_BYTES]);

/* Reads a file, or standard input as "-", and nothing beyond the array; `message` names the file. Data in Fortran order
 * is put into C order. Free with npy_free. */
bool npy_read(const char *path, npy_array *array, char message[ATTUNE_MESSAGE_BYTES]);

/* An array of zeros in memory. Free with npy_free. */
bool npy_create(npy_type type, size_t rank, const int64_t *shape, npy_array *array, char message[ATTUNE_MESSAGE_BYTES]);
void npy_free(npy_array *array);

/* Writes a file in whole or not at all; "-" is stdout. */
bool npy_write(const char *path, npy_type type, size_t rank, const int64_t *shape, const void *data,
               char message[ATTUNE_MESSAGE_BYTES]);

/* "(2, 12, 512, 64)". Returns `text`. */
enum { NPY_SHAPE_TEXT = 200 };
const char *npy_print_shape(size_t rank, const int64_t *shape, char text[NPY_SHAPE_TEXT]);

#endif
