/* A directory is listed and a file's header read at once; contents are read when a tensor is asked for. */
#define _GNU_SOURCE
#include "weights/weights_source.h"

#include "common/tool.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_RANK = 4 }; /* of attune_weight */

/* ---- Listing ---- */

static const char extension[] = ".npy";

static int is_npy(const struct dirent *entry) {
    const size_t length = strlen(entry->d_name), end = sizeof extension - 1;
    return length > end && strcmp(entry->d_name + length - end, extension) == 0;
}

static int compare_names(const void *left, const void *right) {
    return strcmp(*(char *const *)left, *(char *const *)right);
}

static bool out_of_memory(const weights_source *source) {
    tool_error("%s: out of memory for a list of %zu tensors", source->path, source->count);
    return false;
}

static bool list_directory(weights_source *source) {
    struct dirent **entries = NULL;
    const int found = scandir(source->path, &entries, is_npy, NULL);
    if (found < 0) {
        tool_error("%s: cannot read: %s", source->path, strerror(errno));
        return false;
    }
    const size_t count = (size_t)found;
    source->names = calloc(count + 1, sizeof *source->names);
    source->arrays = calloc(count + 1, sizeof *source->arrays);
    bool good = source->names && source->arrays;
    for (size_t i = 0; i < count; i++) {
        if (good) {
            char *const name = strdup(entries[i]->d_name);
            good = name != NULL;
            if (name) {
                name[strlen(name) - (sizeof extension - 1)] = '\0';
                source->names[source->count++] = name;
            }
        }
        free(entries[i]);
    }
    free(entries);
    return good || out_of_memory(source);
}

static bool list_file(weights_source *source) {
    char message[ATTUNE_MESSAGE_BYTES];
    if (!safetensors_open(source->path, &source->tensors, message)) {
        tool_error("%s", message);
        return false;
    }
    source->names = calloc(source->tensors.count + 1, sizeof *source->names);
    source->copies = calloc(source->tensors.count + 1, sizeof *source->copies);
    bool good = source->names && source->copies;
    for (size_t i = 0; i < source->tensors.count && good; i++) {
        char *const name = strdup(source->tensors.list[i].name);
        good = name != NULL;
        if (name) source->names[source->count++] = name;
    }
    return good || out_of_memory(source);
}

bool weights_source_open(weights_source *source, const char *path) {
    struct stat status;
    *source = (weights_source){.path = path};
    const bool is_directory = stat(path, &status) == 0 && S_ISDIR(status.st_mode);
    if (!(is_directory ? list_directory(source) : list_file(source))) {
        weights_source_close(source);
        return false;
    }
    qsort(source->names, source->count, sizeof *source->names, compare_names);
    return true;
}

void weights_source_close(weights_source *source) {
    for (size_t i = 0; i < source->count; i++) free(source->names[i]);
    for (size_t i = 0; i < source->count && source->arrays; i++) npy_free(&source->arrays[i]);
    for (size_t i = 0; i < source->count && source->copies; i++) free(source->copies[i]);
    free(source->names);
    free(source->arrays);
    free(source->copies);
    safetensors_close(&source->tensors);
    *source = (weights_source){.path = NULL};
}

/* ---- One tensor ---- */

bool weights_source_is(const weights_source *source, size_t index, const char *prefix, const char *rest) {
    const char *name = source->names[index];
    const size_t length = strlen(prefix);
    if (strncmp(name, prefix, length) != 0) return false;
    for (name += length; *name && *rest; name++, rest++)
        if (*name != *rest && !(*rest == '/' && *name == '.')) return false;
    return *name == *rest;
}

bool weights_source_find(const weights_source *source, const char *prefix, const char *name, size_t *index) {
    for (*index = 0; *index < source->count; ++*index)
        if (weights_source_is(source, *index, prefix, name)) return true;
    return false;
}

static attune_dtype npy_dtype(npy_type type) {
    switch (type) {
    case NPY_F4: return ATTUNE_F32;
    case NPY_F8: return ATTUNE_F64;
    case NPY_F2: return ATTUNE_F16;
    case NPY_V2: return ATTUNE_BF16;
    default: return ATTUNE_DTYPE_DEFAULT;
    }
}

static bool accept(const weights_source *source, size_t index, const char *type, size_t rank, const int64_t *shape,
                   attune_weight *weight) {
    if (weight->dtype < ATTUNE_F32 || weight->dtype > ATTUNE_F64) {
        tool_error("%s: tensor '%s' has the dtype %s; weights are of f32, f16, bf16 or f64", source->path,
                   source->names[index], type);
        return false;
    }
    if (rank < 1 || rank > MAX_RANK) {
        tool_error("%s: tensor '%s' has %zu dimensions; weights have from 1 to %d", source->path, source->names[index],
                   rank, MAX_RANK);
        return false;
    }
    weight->rank = (int)rank;
    memcpy(weight->dims, shape, rank * sizeof *shape);
    return true;
}

static bool get_array(weights_source *source, size_t index, attune_weight *weight) {
    char message[ATTUNE_MESSAGE_BYTES], *path = NULL;
    npy_array *const array = &source->arrays[index];
    if (!array->data) {
        if (asprintf(&path, "%s/%s%s", source->path, source->names[index], extension) < 0) return out_of_memory(source);
        const bool read = npy_read(path, array, message);
        free(path);
        if (!read) {
            tool_error("%s", message);
            return false;
        }
    }
    const npy_header *const h = &array->header;
    *weight = (attune_weight){.data = array->data, .dtype = npy_dtype(h->type)};
    return accept(source, index, npy_type_name(h->type), h->rank, h->shape, weight);
}

/* Files may put tensors anywhere. */
static bool align(weights_source *source, size_t index, size_t bytes, attune_weight *weight) {
    const size_t size = weight->dtype == ATTUNE_F64 ? 8 : weight->dtype == ATTUNE_F32 ? 4 : 2;
    if ((uintptr_t)weight->data % size == 0) return true;
    void *const copy = source->copies[index] ? source->copies[index] : malloc(bytes + 1);
    if (!copy) {
        tool_error("%s: out of memory for a copy of '%s'", source->path, source->names[index]);
        return false;
    }
    memcpy(copy, weight->data, bytes);
    weight->data = source->copies[index] = copy;
    return true;
}

bool weights_source_get(weights_source *source, size_t index, attune_weight *weight) {
    if (source->arrays) return get_array(source, index, weight);
    const safetensor *const one = safetensors_find(&source->tensors, source->names[index]);
    *weight = (attune_weight){.data = source->tensors.file + one->offset, .dtype = one->dtype};
    return accept(source, index, one->type, one->rank, one->shape, weight) && align(source, index, one->bytes, weight);
}
