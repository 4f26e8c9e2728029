# What tests of the command share; to be sourced. Needs $work, a directory of the test's own. $number counts the cases.
number=0

# report STATUS NAME: one TAP line, with what the command said if it failed.
report() {
    number=$((number + 1))
    if [ "$1" -eq 0 ]; then echo "ok $number - $2"; return; fi
    echo "not ok $number - $2"
    sed 's/^/# stdout: /' "$work/stdout" | head -n 20
    sed 's/^/# stderr: /' "$work/stderr" | head -n 20
}

# skip NAME WHY: the case cannot be tried here.
skip() {
    number=$((number + 1))
    echo "ok $number - $1 # SKIP $2"
}

# has_python: Python is there, and new enough for what tests write in it.
has_python() { python3 -c 'import sys; sys.exit(sys.version_info < (3, 7))' 2>/dev/null; }

# expect NAME STATUS PATTERN COMMAND…: exit status, and an extended regex in what went to stdout and stderr together.
expect() {
    local name=$1 wanted=$2 pattern=$3 status=0
    shift 3
    "$@" >"$work/stdout" 2>"$work/stderr" </dev/null || status=$?
    [ "$status" -eq "$wanted" ] && cat "$work/stdout" "$work/stderr" | grep -Eq -- "$pattern"
    report $? "$name"
}

# refuse NAME PATTERN COMMAND…: exit status 1 and exactly one line, on stderr.
refuse() {
    local name=$1 pattern=$2 status=0
    shift 2
    "$@" >"$work/stdout" 2>"$work/stderr" </dev/null || status=$?
    [ "$status" -eq 1 ] && [ ! -s "$work/stdout" ] && [ "$(wc -l <"$work/stderr")" -eq 1 ] &&
        grep -Eq -- "^attune: .*$pattern" "$work/stderr"
    report $? "refused: $name"
}

# catches PID SIGNAL: whether this process is the command, and has a handler for the signal.
catches() {
    local caught
    caught=$(sed -n 's/^SigCgt:[[:space:]]*//p' "/proc/$1/status" 2>&1) || return
    [ "$(cat "/proc/$1/comm")" = attune ] && ((0x${caught:-0} >> ($(kill -l "$2") - 1) & 1))
}
catches_not() { ! catches "$@"; }

# without_fma FILE: an example of loop IR with products and sums in place of fma, which plain x86-64 does not have.
without_fma() { sed -E 's/fma\((left|splat.*), (packed.*:x8|right), (sum.*)\)$/\1 * \2 + \3/' "$1"; }

# can_run ISA: whether this CPU runs the instruction set.
can_run() { "$ATTUNE" info | grep -qE "^runs (.* )?$1( |$)"; }

# soon COMMAND…: waits until it succeeds, five minutes at most.
soon() {
    local i
    for ((i = 0; i < 3000; i++)); do
        "$@" && return
        sleep 0.1
    done
    return 1
}

# checked NAME OPTIONS…: `attune-lab check` finds nothing wrong with a problem, on two threads.
checked() { expect "$1" 0 '^[0-9]+ passed, 0 failed' "$ATTUNE-lab" check --threads=2 "${@:2}"; }

# same NAME FILE FILE…: all files hold the same bytes.
same() {
    local name=$1 first=$2 file status=0
    shift 2
    for file in "$@"; do cmp "$first" "$file" >"$work/stdout" 2>&1 || status=1; done
    report $status "$name"
}

# number_bytes NUMBER BYTES: a whole number, little-endian.
number_bytes() {
    local i
    for ((i = 0; i < $2; i++)); do printf "\\x$(printf '%02x' $(($1 >> (8 * i) & 255)))"; done
}

# real_bytes BYTES: real numbers, as float32 from a model.
real_bytes() { tail -c "$1" examples/minilm/q.npy; }

# make_npy FILE DESCR FORTRAN_ORDER SHAPE BYTES: a file with a header like NumPy's and that many bytes of real data.
make_npy() {
    local header="{'descr': '$2', 'fortran_order': $3, 'shape': $4, }"
    { printf '\x93NUMPY\x01\x00' && number_bytes ${#header} 2 && printf '%s' "$header" && real_bytes "$5"; } >"$1"
}

# make_safetensors FILE HEADER BYTES: a safetensors file with this JSON and that many bytes of real data.
make_safetensors() { { number_bytes ${#2} 8 && printf '%s' "$2" && real_bytes "$3"; } >"$1"; }
