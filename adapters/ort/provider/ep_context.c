/* Three parts: what the session's options wish for, the pack of kernels beside or inside the model, and the nodes that
 * name it. */
#define _GNU_SOURCE
#include "ep_context.h"

#include "common/context.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char source[] = "AttuneExecutionProvider";
enum { MOST_BYTES = 1 << 30, MAX_VALUES = 64, MAX_ATTRIBUTES = 8 };

__attribute__((format(printf, 2, 3))) static bool refuse(char *message, const char *format, ...) {
    va_list list;
    va_start(list, format);
    vsnprintf(message, ATTUNE_MESSAGE_BYTES, format, list);
    va_end(list);
    return false;
}

static bool done(const ort_api *api, ort_status *status, char *message) {
    if (!status) return true;
    if (message) snprintf(message, ATTUNE_MESSAGE_BYTES, "%s", api->GetErrorMessage(status));
    api->ReleaseStatus(status);
    return false;
}

/* ---- Options ---- */

static void read_entry(const ort_api *api, const ort_session_options *options, const char *key,
                       char text[EP_CONTEXT_PATH]) {
    size_t size = EP_CONTEXT_PATH;
    if (!done(api, api->GetSessionConfigEntry(options, key, text, &size), NULL)) text[0] = '\0';
}

void ep_context_read_wish(const ort_api *api, const ort_session_options *options, ep_context_wish *wish) {
    char text[EP_CONTEXT_PATH];
    read_entry(api, options, "ep.context_enable", text);
    wish->is_made = !strcmp(text, "1");
    read_entry(api, options, "ep.context_embed_mode", text);
    wish->is_embedded = !strcmp(text, "1");
    read_entry(api, options, "ep.context_file_path", wish->file);
    read_entry(api, options, "ep.attuneexecutionprovider.context_pack", wish->pack);
}

/* ---- Files ---- */

typedef struct bytes {
    char *data; /* to be freed */
    size_t count;
} bytes;

static bool read_file(const char *path, bytes *read, char *message) {
    FILE *const file = fopen(path, "rb");
    *read = (bytes){0};
    if (!file) return refuse(message, "%s cannot be opened: %s", path, strerror(errno));
    const bool is_sized = !fseek(file, 0, SEEK_END);
    const long end = is_sized ? ftell(file) : -1;
    if (end > 0 && end <= MOST_BYTES && !fseek(file, 0, SEEK_SET) && (read->data = malloc((size_t)end)))
        read->count = fread(read->data, 1, (size_t)end, file);
    fclose(file);
    if (read->count && read->count == (size_t)end) return true;
    free(read->data);
    return refuse(message, "%s cannot be read", path);
}

static bool write_all(int fd, const char *data, size_t count) {
    while (count) {
        const ssize_t written = write(fd, data, count);
        if (written < 0 && errno == EINTR) continue;
        if (written <= 0) return false;
        data += written, count -= (size_t)written;
    }
    return true;
}

/* Writes a temporary file and renames it: a session that reads the previous pack keeps it, and a failure loses nothing.
 */
static bool write_file(const char *path, const bytes *b, char *message) {
    char part[EP_CONTEXT_PATH + 8];
    snprintf(part, sizeof part, "%s.XXXXXX", path);
    const int fd = mkostemp(part, O_CLOEXEC);
    if (fd < 0) return refuse(message, "%s cannot be written: %s", path, strerror(errno));
    bool is_written = write_all(fd, b->data, b->count) && !fchmod(fd, 0644) && !fsync(fd);
    int reason = errno;
    if (close(fd) && is_written) is_written = false, reason = errno;
    if (is_written && rename(part, path)) is_written = false, reason = errno;
    if (is_written) return true;
    unlink(part);
    return refuse(message, "%s cannot be written: %s", path, strerror(reason));
}

/* The directory of a model's path, with the slash; "" is the working directory. */
static int directory_bytes(const char *path) {
    const char *const slash = strrchr(path, '/');
    return slash ? (int)(slash + 1 - path) : 0;
}

static const char *model_path(const ort_api *api, const ep_context_wish *wish, const ort_graph *graph) {
    const char *path = "";
    return done(api, api->Graph_GetModelPath(graph, &path), NULL) && *path ? path : wish->file;
}

/* ---- Making ---- */

/* The path beside the model that ONNX Runtime will write: MODEL_ctx_attune.pack. */
static bool name_pack(const ort_api *api, const ep_context_wish *wish, const ort_graph *graph,
                      char path[EP_CONTEXT_PATH], char *message) {
    const bool is_said = *wish->file;
    const char *const model = is_said ? wish->file : model_path(api, wish, graph);
    const size_t length = strlen(model),
                 stem = length > 5 && !strcmp(model + length - 5, ".onnx") ? length - 5 : length;
    if (!length) return refuse(message, "the model has no path: ep.context_file_path must say where its context goes");
    if (snprintf(path, EP_CONTEXT_PATH, "%.*s%s_attune.pack", (int)stem, model, is_said ? "" : "_ctx") <
        EP_CONTEXT_PATH)
        return true;
    return refuse(message, "the path of the model is too long");
}

/* It lives as long as the context, which is never destroyed. */
static const char *pack_in_use(void) {
    attune_machine_info info = {.struct_size = sizeof info};
    attune_context *const context = common_context(NULL, NULL);
    return context && !attune_get_machine_info(context, &info) ? info.cache_pack : "";
}

/* The main node's ep_cache_context: the pack, or the name of its file. */
static bool make_content(const ort_api *api, const ep_context_wish *wish, const ort_graph *graph, bytes *content,
                         char *message) {
    char path[EP_CONTEXT_PATH];
    const char *const pack = *wish->pack ? wish->pack : pack_in_use();
    if (!*pack)
        return refuse(message, "a context needs a signed pack of kernels: the provider's option context_pack or "
                               "ATTUNE_CACHE_PACK must name one");
    attune_context *const trusted = common_context_of_pack(pack, message);
    if (!trusted) return false;
    attune_context_destroy(trusted);
    if (!read_file(pack, content, message)) return false;
    if (wish->is_embedded) return true;
    if (name_pack(api, wish, graph, path, message) && write_file(path, content, message)) {
        free(content->data);
        *content = (bytes){.data = strdup(path + directory_bytes(path))};
        content->count = content->data ? strlen(content->data) : 0;
        return content->data || refuse(message, "there is no memory");
    }
    free(content->data);
    return false;
}

typedef struct attributes {
    const ort_api *api;
    ort_attribute *all[MAX_ATTRIBUTES];
    size_t count;
    bool is_whole;
    char *message;
} attributes;

static void add(attributes *a, const char *name, int type, const void *data, size_t count) {
    a->is_whole =
        a->is_whole && done(a->api, a->api->CreateOpAttr(name, data, (int)count, type, &a->all[a->count]), a->message);
    a->count += a->is_whole;
}

static void add_text(attributes *a, const char *name, const char *text) {
    add(a, name, ORT_ATTRIBUTE_STRING, text, strlen(text));
}

static size_t names_of(const ort_api *api, const ort_node *n,
                       const ort_value_info *(*value_of)(const ort_api *, const ort_node *, size_t),
                       const char *names[MAX_VALUES]) {
    const ort_value_info *value;
    size_t count = 0;
    while (count < MAX_VALUES && (value = value_of(api, n, count))) names[count++] = graph_name(api, value);
    return count;
}

ort_node *ep_context_make(const ort_api *api, const ep_context_wish *wish, const ort_graph *graph,
                          const ort_node *fused, const note *n, bool is_main, char message[ATTUNE_MESSAGE_BYTES]) {
    const char *inputs[MAX_VALUES], *outputs[MAX_VALUES], *name = "";
    const int64_t main_context = is_main, embed_mode = wish->is_embedded;
    attributes a = {.api = api, .is_whole = true, .message = message};
    ort_node *made = NULL;
    bytes content = {0};
    if (is_main && !make_content(api, wish, graph, &content, message)) return NULL;
    add(&a, "main_context", ORT_ATTRIBUTE_INT, &main_context, 1);
    add(&a, "embed_mode", ORT_ATTRIBUTE_INT, &embed_mode, 1);
    add_text(&a, "source", source);
    add_text(&a, "ep_sdk_version", ATTUNE_VERSION_STRING);
    add_text(&a, "notes", n->text);
    if (is_main) add(&a, "ep_cache_context", ORT_ATTRIBUTE_STRING, content.data, content.count);
    const size_t num_inputs = names_of(api, fused, graph_input, inputs);
    const size_t num_outputs = names_of(api, fused, graph_output, outputs);
    if (a.is_whole && done(api, api->Node_GetName(fused, &name), message))
        done(api,
             api->GetModelEditorApi()->CreateNode("EPContext", "com.microsoft", name, inputs, num_inputs, outputs,
                                                  num_outputs, a.all, a.count, &made),
             message);
    for (size_t i = 0; i < a.count; i++) api->ReleaseOpAttr(a.all[i]);
    free(content.data);
    return made;
}

/* ---- Reading ---- */

static const ort_attribute *find_attribute(const ort_api *api, const ort_node *n, const char *wanted) {
    const ort_attribute *all[MAX_VALUES];
    const char *name;
    size_t count;
    if (!done(api, api->Node_GetNumAttributes(n, &count), NULL) || count > MAX_VALUES ||
        !done(api, api->Node_GetAttributes(n, all, count), NULL))
        return NULL;
    for (size_t i = 0; i < count; i++)
        if (done(api, api->OpAttr_GetName(all[i], &name), NULL) && !strcmp(name, wanted)) return all[i];
    return NULL;
}

/* A NUL follows the bytes. False if there is no such attribute. */
static bool read_text(const ort_api *api, const ort_node *n, const char *name, bytes *text) {
    const ort_attribute *const attribute = find_attribute(api, n, name);
    size_t size = 0;
    *text = (bytes){0};
    if (!attribute) return false;
    done(api, api->ReadOpAttr(attribute, ORT_ATTRIBUTE_STRING, NULL, 0, &size), NULL); /* tells the size */
    if (size > MOST_BYTES || !(text->data = calloc(1, size + 1))) return false;
    text->count = size;
    if (!size || done(api, api->ReadOpAttr(attribute, ORT_ATTRIBUTE_STRING, text->data, size, &size), NULL))
        return true;
    free(text->data);
    return false;
}

static int64_t read_whole(const ort_api *api, const ort_node *n, const char *name, int64_t otherwise) {
    const ort_attribute *const attribute = find_attribute(api, n, name);
    int64_t value;
    size_t size;
    return attribute && done(api, api->ReadOpAttr(attribute, ORT_ATTRIBUTE_INT, &value, sizeof value, &size), NULL)
               ? value
               : otherwise;
}

bool ep_context_is_own(const ort_api *api, const ort_node *n) {
    bytes text;
    if (!graph_is_contributed(api, n, "EPContext") || !read_text(api, n, "source", &text)) return false;
    const bool is_own = !strcmp(text.data, source);
    free(text.data);
    return is_own;
}

bool ep_context_is_main(const ort_api *api, const ort_node *n) { return read_whole(api, n, "main_context", 1) == 1; }

bool ep_context_note(const ort_api *api, const ort_node *n, note *read, char message[ATTUNE_MESSAGE_BYTES]) {
    bytes text;
    bool is_right = false;
    if (read_text(api, n, "notes", &text)) {
        read->length = text.count;
        if (text.count < NOTE_BYTES) memcpy(read->text, text.data, text.count + 1);
        is_right = note_is_right(read);
        free(text.data);
    }
    return is_right || refuse(message, "its notes are none of this version of attune");
}

/* The path of a file in the model's directory. A model may not name other files. */
static bool place_beside(const ort_api *api, const ep_context_wish *wish, const ort_graph *graph, const bytes *name,
                         char path[EP_CONTEXT_PATH], char *message) {
    const char *const model = model_path(api, wish, graph);
    if (!name->count || strlen(name->data) != name->count || strchr(name->data, '/') || !strcmp(name->data, "..") ||
        !strcmp(name->data, "."))
        return refuse(message, "ep_cache_context names no file beside the model");
    if (snprintf(path, EP_CONTEXT_PATH, "%.*s%s", directory_bytes(model), model, name->data) < EP_CONTEXT_PATH)
        return true;
    return refuse(message, "the path of the model is too long");
}

/* Packs are read from files, so these bytes are put into an unnamed one. */
static attune_context *open_embedded(const bytes *pack, char *message) {
    char path[64];
    attune_context *context = NULL;
    const int fd = memfd_create("attune-context", MFD_CLOEXEC);
    size_t done_bytes = 0;
    while (fd >= 0 && done_bytes < pack->count) {
        const ssize_t n = write(fd, pack->data + done_bytes, pack->count - done_bytes);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) break;
        done_bytes += (size_t)n;
    }
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (fd >= 0 && done_bytes == pack->count)
        context = common_context_of_pack(path, message);
    else
        refuse(message, "there is no memory for its kernels: %s", strerror(errno));
    if (fd >= 0) close(fd);
    return context;
}

attune_context *ep_context_open(const ort_api *api, const ep_context_wish *wish, const ort_graph *graph,
                                const ort_node *n, char message[ATTUNE_MESSAGE_BYTES]) {
    char path[EP_CONTEXT_PATH];
    attune_context *context = NULL;
    bytes content;
    if (!read_text(api, n, "ep_cache_context", &content)) return refuse(message, "it has no ep_cache_context"), NULL;
    if (read_whole(api, n, "embed_mode", 1) == 1)
        context = open_embedded(&content, message);
    else if (place_beside(api, wish, graph, &content, path, message))
        context = common_context_of_pack(path, message);
    free(content.data);
    return context;
}
