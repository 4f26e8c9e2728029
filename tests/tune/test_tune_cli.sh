#!/usr/bin/env bash
# `attune tune` from outside: results as text and JSON, kept and found again, and one clear sentence for what is wrong.
# Needs ATTUNE, the command, and an ATTUNE_CACHE_DIR of its own.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/cli.sh
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
attune=$ATTUNE
small=num_heads=2,seq_q=24,head_dim=16
export ATTUNE_CACHE_DIR=$work/cache

expect "a search says what it found" 0 'schedules timed in' "$attune" tune --budget=0.5 $small
[ -s "$work/cache/tuning.db" ]
report $? "its results are kept"
expect "JSON holds the ratio's interval" 0 '"ratio_high"' "$attune" tune --budget=0.3s --json $small
expect "no kernel was wrong" 0 '"wrong": 0' "$attune" tune --budget=0.3s --json $small
printf '# two problems\n%s\n\n  num_heads=1,seq_q=8,head_dim=8 # small\n' $small >"$work/problems"
expect "a file of problems" 0 'num_heads=1,seq_q=8' "$attune" tune --budget=0.1 "$work/problems"
expect "a block" 0 'schedules timed' "$attune" tune --budget=0.3 embed_dim=32,num_heads=2,seq_q=16
expect "run-time sizes" 0 'schedules timed' "$attune" tune --budget=0.2 --sizes=seq_q=9,seq_kv=11 \
    num_heads=2,seq_q=-1,seq_kv=-1,head_dim=16
expect "rotary positions as many as needed" 0 'schedules timed' "$attune" tune --budget=0.1 \
    rotary_dim=8,num_heads=2,seq_q=16,head_dim=8
if [ "$(nproc)" -gt 1 ]; then
    expect "two threads" 0 'schedules timed' "$attune" tune --threads=2 --budget=0.2 $small
    grep -qE '^  threads +2$' "$work/stdout"
    report $? "which are told"
else
    for name in "two threads" "which are told"; do skip "$name" "this process may use one CPU"; done
fi
# A slow machine, or a sanitizer, needs longer to time enough schedules for a figure.
for budget in 1 5 20; do
    "$attune" tune --budget=$budget $small >"$work/stdout" 2>"$work/stderr"
    grep -qE '^  (time|before) +[0-9.]+ (n|µ|m)s ± [0-9.]+ %, [0-9.]+ % of the peak of' "$work/stdout" && break
done
report $? "times and the share of the peak"

"$attune" tune --export="$work/out.db" >"$work/stdout" 2>"$work/stderr" && [ -s "$work/out.db" ]
report $? "export"
refuse "a second export to the same file" 'out.db exists already; name another file, or remove it' \
    "$attune" tune --export="$work/out.db"
refuse "an export to a file that exists, before anything is tuned" 'out.db exists already' \
    "$attune" tune --budget=0.1 --export="$work/out.db" $small
ln -s "$work/out.db" "$work/link.db"
expect "JSON counts what is imported, here by a link" 0 '"searches": [1-9]' \
    env ATTUNE_CACHE_DIR="$work/counted" "$attune" tune --json --import="$work/link.db"
expect "import elsewhere" 0 '^[1-9][0-9]* new searches .* [1-9][0-9]* of them for this tuning class' \
    env ATTUNE_CACHE_DIR="$work/elsewhere" "$attune" tune --import="$work/out.db"
expect "importing again takes nothing" 0 '^0 new searches' \
    env ATTUNE_CACHE_DIR="$work/elsewhere" "$attune" tune --import="$work/out.db"
refuse "importing what is no database, which is named" 'problems could not be read: .*not a database' "$attune" tune \
    --import="$work/problems"
refuse "importing nothing" 'cannot be read' "$attune" tune --import="$work/nothing"
refuse "a file of problems that is missing" 'nothing' "$attune" tune "$work/nothing"
refuse "a bad problem" 'head_dim is -3' "$attune" tune num_heads=2,seq_q=4,head_dim=-3

# Whatever the database is, kernels compile; only tuning needs it.
printf 'no database %.0s' {1..300} >"$work/cache/tuning.db"
rm -f "$work"/cache/tuning.db-*
expect "a damaged database is named, and does not stop a compile" 0 'tuning results are not used.*not a database' \
    "$attune" compile num_heads=3,seq_q=7,head_dim=8
refuse "tuning with a damaged database" 'not a database' "$attune" tune --budget=0.1 $small
expect "without a disk cache a search still tells" 0 'schedules timed' \
    env ATTUNE_CACHE_DIR= "$attune" tune --budget=0.1 $small
expect "a budget that is too short" 2 '0\.05s to' "$attune" tune --budget=0.01 $small
expect "a budget for no comparison" 0 'too short for one comparison.*; 0 of' \
    env ATTUNE_CACHE_DIR= "$attune" tune --budget=0.05 embed_dim=256,num_heads=4,seq_q=128
expect "one schedule only" 0 'nothing to choose.*; 0 of 1 ' \
    env ATTUNE_CACHE_DIR= "$attune" tune --budget=0.1 op=merge,num_heads=2,num_parts=2,seq_q=8,head_dim=16
printf '%s | strategy=d_lanes\n%s\n' $small $small >"$work/recorded"
expect "schedules of a recorded list are left out, which is said" 0 \
    '1 of 2 problems come with a schedule, which is ignored' \
    env ATTUNE_CACHE_DIR= "$attune" tune --budget=0.1 "$work/recorded"
[ "$(grep -c '[0-9] of [0-9]* schedules timed' "$work/stdout")" -eq 1 ]
report $? "and what is left of it is tuned once"
printf '%s\n%s\n' $small num_heads=1,seq_q=8,head_dim=8 >"$work/two"
expect "nothing to do" 2 'is needed' "$attune" tune

# Ctrl-C ends the search and keeps what it found.
rm -f "$work"/cache/tuning.db*
"$attune" tune --budget=100 $small >"$work/stdout" 2>"$work/stderr" </dev/null &
pid=$!
soon catches $pid INT && sleep 3
kill -INT $pid
wait $pid
status=$?
[ $status -eq 0 ] && grep -q 'schedules timed' "$work/stdout" && [ -s "$work/cache/tuning.db" ]
report $? "an interrupted search keeps what it found"

"$attune" tune --budget=100 "$work/two" >"$work/stdout" 2>"$work/stderr" </dev/null &
pid=$!
soon catches $pid TERM && sleep 3
kill -TERM $pid
wait $pid
status=$?
[ $status -eq 1 ] && grep -q 'schedules timed' "$work/stdout" && grep -q '1 of 2 problems was not tuned' "$work/stderr"
report $? "one of a list says what is left"

# A second one does not wait, here for a compiler that gives no answer.
printf '#!/bin/sh\nexec cat >/dev/null\n' >"$work/silent" && chmod +x "$work/silent"
ATTUNE_COMPILE=worker ATTUNE_CODEGEN_WORKER=$work/silent "$attune" tune --budget=100 $small >"$work/stdout" \
    2>"$work/stderr" </dev/null &
pid=$!
soon catches $pid TERM
kill -TERM $pid
soon catches_not $pid TERM
kill -0 $pid
first=$?
kill -TERM $pid
wait $pid
[ $? -eq 143 ] && [ $first -eq 0 ] && [ ! -s "$work/stdout" ]
report $? "the first signal is noted, the second ends at once"
echo "1..$number"
