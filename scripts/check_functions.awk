# Fails on a function that is longer than 100 lines, or nested deeper than 4, and names it.
#
# Nesting is read off the layout, which is clang-format's: a control statement, or a macro that opens a block of loop IR,
# is on level n if it is indented by 4 n columns. A function whose loop has an `if` in it has 2.
BEGIN {
    ours = "IR_(FOR|IF|ELSE|LOOP|UNROLLED|PHASE|GUARD)|(MHA|DL)_(CHUNKS|COLUMNS|ROWS|STEPS|VECTORS)"
    control = "^ +(} )?(else|for|if|while|do|switch|" ours ")[ (]"
}
# A head may take several lines; it ends with a brace.
/^[a-z_].*\(/ && !/;$/ { head = FNR }
head && !inside && /{$/ { inside = 1; deepest = 0 }
head && !inside && /[;}]$/ { head = 0 }
inside && $0 ~ control {
    match($0, /^ +/)
    if (RLENGTH / 4 > deepest) deepest = RLENGTH / 4
}
inside && /^}/ {
    lines = FNR - head + 1
    functions++
    if (lines > 100) { print FILENAME ":" head ": " lines " lines; 100 are the most"; wrong++ }
    if (deepest > 4) { print FILENAME ":" head ": nested " deepest " deep; 4 is the most"; wrong++ }
    inside = head = 0
}
END {
    print "check-functions: " functions + 0 " functions, " wrong + 0 " too long or too deep"
    exit wrong > 0 || !functions
}
