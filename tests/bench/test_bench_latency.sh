#!/usr/bin/env bash
# bench/latency runs, prints each of its measurements, leaves no process of its load, and refuses what it does not know.
set -uo pipefail
latency=$BUILD/bench/latency
failed=0 number=0
echo 1..4
check() { # check NAME STATUS
    number=$((number + 1))
    if [ "$2" -eq 0 ]; then echo "ok $number - $1"; else echo "not ok $number - $1"; failed=1; fi
}

out=$("$latency" --workers 2 --seconds 0.4 --microseconds 20 2>&1)
check "it runs" $?
for part in "Beside a busy process" "A call each 20 ms" "A new context, 2 workers" "The smallest call"; do
    grep -qF "$part" <<<"$out" || { echo "# missing: $part"; false; }
done && [ "$(grep -cE 'p50 +[0-9.]+ .*p99 +[0-9.]+' <<<"$out")" -eq 10 ]
check "each measurement has its percentiles" $?
! readlink /proc/[0-9]*/exe 2>/dev/null | grep -qxF "$(realpath "$latency")"
check "the load has ended" $?
! "$latency" --workers 0 >/dev/null 2>&1 && ! "$latency" --seconds soon >/dev/null 2>&1 &&
    ! "$latency" more >/dev/null 2>&1
check "nonsense is refused" $?
exit $failed
