#!/usr/bin/env bash
# The places where the library looks for its code generator, the files that it refuses, and the variables that a program
# with raised privileges ignores. The program is linked statically, so its directory is the library's.
set -u
[ -z "${SANITIZE:-}" ] || { echo "1..0"; exit 77; } # a sanitized library needs a sanitized program
cd "$(dirname "$0")/../.." || exit 1
work=$(realpath "$(mktemp -d)")
trap 'rm -rf "$work"' EXIT
umask 022
# shellcheck source=tests/support/cli.sh
source tests/support/cli.sh
cc=${CC:-cc}
plugin=libattune-codegen.so worker=attune-codegen-worker
unset ATTUNE_CODEGEN ATTUNE_CODEGEN_WORKER LD_LIBRARY_PATH

cat >"$work/program.c" <<'PROGRAM'
#include <attune.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
static char why[ATTUNE_MESSAGE_BYTES]; /* nothing was compiled */
static void tell(void *user, attune_log_level level, const char *message) {
    static const char vm[] = "the virtual machine runs this kernel: ";
    (void)user;
    if (!strncmp(message, vm, sizeof vm - 1))
        snprintf(why, sizeof why, "%s", message + sizeof vm - 1);
    else if (level == ATTUNE_LOG_WARNING)
        printf("log: %s\n", message);
}
int main(int argc, char **argv) {
    attune_context *context = NULL;
    attune_kernel *kernel = NULL;
    attune_problem problem = ATTUNE_PROBLEM_INIT;
    attune_context_options options = ATTUNE_CONTEXT_OPTIONS_INIT;
    attune_machine_info info = {.struct_size = sizeof info};
    options.log = tell;
    problem.seq_q = problem.head_dim = 8;
    if (argc > 1 && !strcmp(argv[1], "by-worker")) options.compile_mode = ATTUNE_COMPILE_WORKER;
    if (attune_context_create(&options, &context)) return puts(attune_last_message()), 1;
    attune_get_machine_info(context, &info);
    printf("secure: %lu\nplug-in: %s\nworker: %s\ncache: %s\nbase: %s\n", getauxval(AT_SECURE), info.codegen_path,
           info.worker_path, info.cache_dir, info.cache_base);
    if (argc > 2 && system(argv[2])) return puts("the command failed"), 1;
    puts(attune_compile(context, &problem, NULL, &kernel) ? attune_last_message() : why[0] ? why : "compiled");
    attune_kernel_release(kernel);
    attune_context_destroy(context);
    return 0;
}
PROGRAM
cat >"$work/planted.c" <<PLANTED
#include <stdio.h>
__attribute__((constructor)) static void run(void) { fclose(fopen("$work/it-ran", "w")); }
PLANTED
mkdir -p "$work/app/attune" "$work/lib/attune"
$cc "$work/program.c" -Iinclude "$BUILD/libattune.a" -pthread -ldl -lm -o "$work/app/program" &&
    $cc -shared -fPIC "$work/planted.c" -o "$work/planted.so"
report $? "a program and a plug-in that somebody planted"

export ATTUNE_CACHE_DIR=
program() { "$work/app/program" "$@"; }
none_ran() { [ ! -e "$work/it-ran" ] || { echo "the planted plug-in ran" >&2; return 1; }; }
clear_app() { rm -rf "$work/app/attune" "$work/app/$plugin" "$work/app/$worker" && mkdir "$work/app/attune"; }
give() { cp "$1" "$2" && chmod 755 "$2"; }

# ---- Places ----

for place in "$work" "$work/lib/attune" "$work/lib"; do
    give "$work/planted.so" "$place/$plugin"
    printf '#!/bin/sh\n: >%s/it-ran\n' "$work" >"$place/$worker"
    chmod 755 "$place/$worker"
done
elsewhere() { program "$@" | tee "$work/said" && ! grep -q "^\(plug-in\|worker\): $work" "$work/said" && none_ran; }
expect "above the library nothing is looked for" 0 '^plug-in: ' elsewhere
expect "nor for the worker" 0 '^worker: ' elsewhere by-worker
for place in "$work/app/attune" "$work/app"; do
    give "$BUILD/$plugin" "$place/$plugin"
    give "$BUILD/$worker" "$place/$worker"
    expect "the plug-in in ${place#"$work"/} is found" 0 "^plug-in: $place/$plugin\$" program
    expect "and compiles" 0 '^compiled$' program
    expect "so is the worker" 0 "^worker: $place/$worker\$" program by-worker
    expect "and compiles" 0 '^compiled$' program by-worker
done

# ---- Trust ----

clear_app
refused() { program "$@" && none_ran; }
give "$work/planted.so" "$work/app/$plugin"
chmod 757 "$work/app/$plugin"
expect "a plug-in that all users may write to is refused" 0 \
    "^$work/app/$plugin is not used: all users may write to it\$" refused
expect "the log has it, too" 0 "^log: $work/app/$plugin is not used: all users may write to it\$" refused
give "$BUILD/$plugin" "$work/app/attune/$plugin"
expect "and the next place is looked at" 0 "^plug-in: $work/app/attune/$plugin\$" refused
printf '#!/bin/sh\n: >%s/it-ran\n' "$work" >"$work/app/$worker"
chmod 777 "$work/app/$worker"
expect "a worker is refused in the same way" 0 \
    "^$work/app/$worker is not used: all users may write to it\$" refused by-worker
rm "$work/app/$plugin"
mkdir "$work/app/$plugin"
expect "a directory is no plug-in" 0 "^log: $work/app/$plugin is not used: it is not a regular file\$" refused
rmdir "$work/app/$plugin"
give "$BUILD/$plugin" "$work/writable.so"
chmod 777 "$work/writable.so"
expect "the plug-in that the environment names is taken as it is" 0 '^compiled$' \
    env ATTUNE_CODEGEN="$work/writable.so" "$work/app/program"
relative() { (cd "$work" && ATTUNE_CODEGEN=writable.so ATTUNE_CODEGEN_WORKER=named app/program by-worker); }
give "$BUILD/$worker" "$work/named"
expect "relative names are those of the host's directory" 0 '^compiled$' relative

# ---- The directory ----

for mode in 757 1777; do
    for way in "" by-worker; do
        clear_app
        give "$work/planted.so" "$work/app/attune/$plugin"
        printf '#!/bin/sh\n: >%s/it-ran\n' "$work" >"$work/app/attune/$worker"
        chmod 755 "$work/app/attune/$worker"
        chmod "$mode" "$work/app/attune"
        file=$plugin
        [ -z "$way" ] || file=$worker
        expect "a ${way:-plug-in} in a directory of mode $mode is refused" 0 \
            "^$work/app/attune/$file is not used: all users may write to its directory\$" refused $way
    done
done
clear_app
mkdir "$work/open"
give "$work/planted.so" "$work/open/$plugin"
chmod 777 "$work/open"
ln -s "$work/open/$plugin" "$work/app/$plugin"
expect "so is one that a link leads to" 0 \
    "^$work/open/$plugin is not used: all users may write to its directory\$" refused

# ---- Exchanged between the search and the first compile ----

exchanged() {
    clear_app
    rm -rf "$work/real" "$work/it-ran"
    mkdir "$work/real"
    give "$BUILD/$plugin" "$work/real/$plugin"
    give "$BUILD/$worker" "$work/real/$worker"
    ln -s "$work/real/$plugin" "$work/real/$worker" "$work/app/"
    program "$@" && none_ran
}
for way in in-process by-worker; do
    expect "a link that is exchanged after the search does no harm ($way)" 0 '^compiled$' exchanged "$way" \
        "ln -sfn $work/planted.so $work/app/$plugin; ln -sfn $work/lib/$worker $work/app/$worker"
    expect "a file that all users may write to by now is refused ($way)" 0 \
        "^$work/real/$plugin is not used: all users may write to it\$" exchanged "$way" "chmod 777 $work/real/$plugin"
    expect "and a directory ($way)" 0 "is not used: all users may write to its directory\$" exchanged "$way" \
        "chmod 777 $work/real"
    expect "a link in the file's place is no file ($way)" 0 \
        "^$work/real/$plugin is not used: it is not a regular file\$" exchanged "$way" \
        "ln -sfn $work/planted.so $work/real/$plugin"
done
expect "a worker that all users may write to by now is refused" 0 \
    "^$work/real/$worker is not used: all users may write to it\$" exchanged by-worker "chmod 777 $work/real/$worker"
rm -f "$work/it-ran"

# ---- Groups and users ----

other_group=
for group in $(id -G) $([ "$(id -u)" != 0 ] || echo 1); do
    [ "$group" = "$(id -u)" ] || [ "$group" = "$(id -g)" ] || other_group=$group
done
clear_app
give "$BUILD/$plugin" "$work/app/$plugin"
if [ "$(id -g)" = "$(id -u)" ] && { [ "$(id -u)" = 0 ] || [ "$(id -u)" -ge 1000 ]; }; then
    chmod g+w "$work/app/$plugin"
    expect "the group of the owner alone may write to it" 0 '^compiled$' refused
fi
if [ -n "$other_group" ]; then
    give "$work/planted.so" "$work/app/$plugin"
    chgrp "$other_group" "$work/app/$plugin"
    chmod g+w "$work/app/$plugin"
    expect "another group may not" 0 "^$work/app/$plugin is not used: group $other_group may write to it\$" refused
fi
if [ "$(id -u)" = 0 ]; then
    give "$work/planted.so" "$work/app/$plugin"
    chown 12345 "$work/app/$plugin"
    expect "another user's plug-in is refused" 0 \
        "^$work/app/$plugin is not used: it belongs to user 12345, neither root nor this user\$" refused
    give "$BUILD/$plugin" "$work/app/$plugin"
    chown 12345 "$work/app/$plugin" "$work/app/program"
    expect "but not if the library is that user's as well" 0 '^compiled$' refused
    chown 12345:0 "$work/app/$plugin"
    chmod 775 "$work/app/$plugin"
    expect "root's group may write to it" 0 '^compiled$' refused
    chown 12345:12345 "$work/app/$plugin"
    expect "and that user's private group" 0 '^compiled$' refused
    chown 12:12 "$work/app/$plugin" "$work/app/program"
    expect "but no group of the system, even of the owner's number" 0 \
        "^$work/app/$plugin is not used: group 12 may write to it\$" refused
    chown 0:0 "$work/app/program"
    give "$work/planted.so" "$work/app/attune/$plugin"
    rm "$work/app/$plugin"
    chown 12345 "$work/app/attune"
    expect "a directory of another user is refused" 0 \
        "^$work/app/attune/$plugin is not used: its directory belongs to user 12345, neither root nor this user\$" \
        refused
    chown 0:12 "$work/app/attune"
    chmod 775 "$work/app/attune"
    expect "and one of another group" 0 \
        "^$work/app/attune/$plugin is not used: group 12 may write to its directory\$" refused
fi

# ---- Raised privileges: a program of another group ----

clear_app
give "$work/planted.so" "$work/app/$plugin"
mkdir "$work/base"
raised() {
    env HOME="$work/home" XDG_CACHE_HOME="$work/xdg" ATTUNE_CACHE_DIR="$work/cache" ATTUNE_CACHE_BASE="$work/base" \
        ATTUNE_RECORD="$work/record" ATTUNE_COMPILE_TIMEOUT_MS=soon \
        ATTUNE_CODEGEN="$work/planted.so" ATTUNE_CODEGEN_WORKER="$work/app/$worker" \
        "$work/app/program" "$@"
}
left() { for file in home xdg cache record it-ran; do [ ! -e "$work/$file" ] || echo "left $file"; done; }
expect "without them the environment counts" 0 "^base: $work/base\$" raised
expect "for the plug-in, the cache and the record" 0 '^left cache left record left it-ran $' eval 'left | tr "\n" " "'
rm -rf "$work/cache" "$work/record" "$work/it-ran"
if [ -n "$other_group" ] && chgrp "$other_group" "$work/app/program" && chmod g+s "$work/app/program" &&
    raised | grep -qx 'secure: 1'; then
    rm -rf "$work/cache" "$work/record" "$work/it-ran"
    expect "with raised privileges there is no cache" 0 '^cache: $' raised
    expect "and no base" 0 '^base: $' raised
    unnamed() { raised "$@" | tee "$work/said" && ! grep -q "^\(plug-in\|worker\): $work" "$work/said"; }
    expect "neither the environment nor the program's place names a plug-in" 0 '^plug-in: ' unnamed
    expect "nor a worker" 0 '^worker: ' unnamed by-worker
    expect "a bad timeout is ignored" 0 '^secure: 1$' raised by-worker
    expect "and nothing was written or run" 0 '^none $' eval 'left | tr "\n" " "; echo "none "'
else
    number=$((number + 1))
    echo "ok $number - raised privileges # SKIP this user has no other group, or programs here do not raise"
fi
echo "1..$number"
