/* attune-fetch URL BYTES: writes the pack that the URL gives to stdout, at most so many bytes, and no more than its
 * header says. What came is not trusted, and is verified by the process that asked. */
#include <curl/curl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CONNECT_SECONDS = 10, STALL_SECONDS = 30, STALL_BYTES = 100, MOST_SECONDS = 3600, MOST_REDIRECTIONS = 5 };

/* The header of a pack begins so, and has its size as 8 bytes in little-endian order (src/cache/pack_format.h). */
static const char magic[] = {'a', 't', 't', 'n', 'p', 'a', 'c', 'k'};
enum { SIZE_AT = 16, HEADER_BYTES = SIZE_AT + 8 };

typedef struct fetch {
    unsigned long long left;
    unsigned char header[HEADER_BYTES]; /* as much of it as has come */
    size_t have;
    bool is_no_pack, is_too_large, is_too_long, is_unwritable;
} fetch;

static unsigned long long size_in(const unsigned char *header) {
    unsigned long long size = 0;
    for (int i = HEADER_BYTES - 1; i >= SIZE_AT; i--) size = size << 8 | header[i];
    return size;
}

/* Bounds what may come by what the header says, once that is there. */
static void read_header(fetch *f, const char *data, size_t bytes) {
    const size_t room = HEADER_BYTES - f->have, take = bytes < room ? bytes : room;
    if (!room) return;
    memcpy(f->header + f->have, data, take);
    f->have += take;
    f->is_no_pack = memcmp(f->header, magic, f->have < sizeof magic ? f->have : sizeof magic) != 0;
    if (f->have < HEADER_BYTES || f->is_no_pack) return;
    const unsigned long long size = size_in(f->header), came = HEADER_BYTES - take; /* before these bytes */
    f->is_too_large = size > came + f->left;
    if (!f->is_too_large) f->left = size > came ? size - came : 0;
}

static size_t take(char *data, size_t size, size_t count, void *user) {
    fetch *const f = user;
    const size_t bytes = size * count;
    read_header(f, data, bytes);
    f->is_too_long = bytes > f->left;
    if (f->is_no_pack || f->is_too_large || f->is_too_long) return 0;
    f->left -= bytes;
    f->is_unwritable = fwrite(data, 1, bytes, stdout) != bytes;
    return f->is_unwritable ? 0 : bytes;
}

static bool set_options(CURL *curl, const char *url, fetch *f, char message[CURL_ERROR_SIZE]) {
    bool good = !curl_easy_setopt(curl, CURLOPT_URL, url);
#if LIBCURL_VERSION_NUM >= 0x075500
    good = good && !curl_easy_setopt(curl, CURLOPT_PROTOCOLS_STR, "http,https");
#else
    good = good && !curl_easy_setopt(curl, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTP | CURLPROTO_HTTPS));
#endif
    return good && !curl_easy_setopt(curl, CURLOPT_FOLLOWLOCATION, 1L) &&
           !curl_easy_setopt(curl, CURLOPT_MAXREDIRS, (long)MOST_REDIRECTIONS) &&
           !curl_easy_setopt(curl, CURLOPT_FAILONERROR, 1L) && !curl_easy_setopt(curl, CURLOPT_NOSIGNAL, 1L) &&
           !curl_easy_setopt(curl, CURLOPT_TIMEOUT, (long)MOST_SECONDS) &&
           !curl_easy_setopt(curl, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_SECONDS) &&
           !curl_easy_setopt(curl, CURLOPT_LOW_SPEED_LIMIT, (long)STALL_BYTES) &&
           !curl_easy_setopt(curl, CURLOPT_LOW_SPEED_TIME, (long)STALL_SECONDS) &&
           !curl_easy_setopt(curl, CURLOPT_ERRORBUFFER, message) &&
           !curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, take) && !curl_easy_setopt(curl, CURLOPT_WRITEDATA, f);
}

static const char *get(const char *url, fetch *f, char message[CURL_ERROR_SIZE]) {
    CURL *const curl = curl_easy_init();
    if (!curl) return "libcurl does not start";
    CURLcode code = CURLE_FAILED_INIT;
    message[0] = '\0';
    if (set_options(curl, url, f, message)) code = curl_easy_perform(curl);
    curl_easy_cleanup(curl);
    if (f->is_no_pack) return "it is no pack";
    if (f->is_too_large) return "it is larger than the limit";
    if (f->is_too_long) return f->have < HEADER_BYTES ? "it is too long" : "it is longer than its header says";
    if (f->is_unwritable) return "the file cannot be written here";
    if (code) return *message ? message : curl_easy_strerror(code);
    return fflush(stdout) ? "the file cannot be written here" : NULL;
}

int main(int argc, char **argv) {
    char message[CURL_ERROR_SIZE];
    if (argc != 3) {
        fputs("usage: attune-fetch URL BYTES\n", stderr);
        return 2;
    }
    fetch f = {.left = strtoull(argv[2], NULL, 10)};
    const char *const why = get(argv[1], &f, message);
    if (why) fprintf(stderr, "attune: %s cannot be fetched: %s\n", argv[1], why);
    return why != NULL;
}
