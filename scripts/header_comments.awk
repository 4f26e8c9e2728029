# Doxygen's input filter for the public headers, whose comments are plain C: turns them into Doxygen's and keeps all
# lines where they are.
#   the comment at the top             the main page (attune.h), or the description of the file (attune/*.h)
#   "/* ---- Title ---- */"            a group that lasts until the next one
#   a comment on lines of its own      that of the declaration below, and of all that follow without a blank line
#   a comment after a declaration      that of everything the declaration declares
#   lines indented within a comment    as they are: formulas, tables, code

# Text in which nothing is a command, a tag or a link of Doxygen's.
function plain(line) {
    gsub(/\\/, "\\\\", line)
    gsub(/@/, "\\@", line)
    gsub(/&/, "\\&amp;", line)
    gsub(/</, "\\&lt;", line)
    gsub(/>/, "\\&gt;", line)
    gsub(/#/, "\\#", line)
    gsub(/%/, "\\%", line)
    gsub(/"/, "\\&quot;", line)
    return linked(quoted(line))
}

# `This` in the type of code.
function quoted(line, result) {
    while (match(line, /`[^`]*`/)) {
        result = result substr(line, 1, RSTART - 1) "<code>" substr(line, RSTART + 1, RLENGTH - 2) "</code>"
        line = substr(line, RSTART + RLENGTH)
    }
    return result line
}

# Names of functions, which Doxygen makes links of where parentheses follow.
function linked(line, result, name) {
    while (match(line, /attune_[a-z0-9_]+/)) {
        name = substr(line, RSTART, RLENGTH)
        result = result substr(line, 1, RSTART - 1) name
        line = substr(line, RSTART + RLENGTH)
        if ((name in functions) && line !~ /^\(/) result = result "()"
    }
    return result line
}

# Before the header is filtered: its lines that are underlined as headings, and the names of all headers' functions.
BEGIN {
    while ((getline line < ARGV[1]) > 0) {
        lines++
        if (line ~ /^ \* -+$/) headings[lines - 1] = 1
    }
    close(ARGV[1])
    while (("cat include/attune.h include/attune/*.h include/attune/expert/*.h" | getline line) > 0)
        if (line ~ /^(ATTUNE_API|ATTUNE_CHECKED|static inline) / && match(line, /attune_[a-z0-9_]+\(/))
            functions[substr(line, RSTART, RLENGTH - 1)] = 1
    is_main = ARGV[1] ~ /attune\.h$/
    file = ARGV[1]
    gsub(/^.*\/|\.h$/, "", file)
}

# Of "type a, b[4]; " all names get the comment: each becomes a declaration of its own, in one line.
function declare(code, comment, type, names, count, i, out) {
    if (code !~ /^    [a-z_0-9]+( [a-z_0-9]+)* \**[a-z_0-9\[\]A-Z]+(, \**[a-z_0-9\[\]A-Z]+)+; *$/)
        return code "/**< " comment " */"
    sub(/; *$/, "", code)
    count = split(code, names, /, /)
    type = names[1]
    sub(/\**[A-Za-z_0-9\[\]]+$/, "", type)
    out = names[1] "; /**< " comment " */"
    for (i = 2; i <= count; i++) out = out type names[i] "; /**< " comment " */"
    return out
}

# A comment that follows code, perhaps over several lines: kept until its end, then written behind its declarations.
function trailer(code, comment) {
    if (comment !~ /\*\//) {
        kept_code = code
        kept = comment
        in_trailer = 1
        empty_lines = 0
        return
    }
    sub(/[ \t]*\*\/.*$/, "", comment)
    print declare(code, plain(comment))
}

NR == 1 && is_main {
    sub(/^\/\* /, "/** @file */ /** @mainpage ")
    print
    in_comment = 1
    next
}

NR == 1 {
    in_comment = $0 !~ /\*\/$/
    ending = " @file"
    gsub(/^\/\* | \*\/$/, "")
    print "/** " plain($0) (in_comment ? "" : ending " */")
    next
}

in_trailer {
    line = $0
    is_end = line ~ /\*\//
    sub(/^[ \t]*\* ?/, "", line)
    sub(/[ \t]*\*\/.*$/, "", line)
    kept = kept " " line
    empty_lines++
    if (is_end) {
        in_trailer = 0
        print declare(kept_code, plain(kept))
        while (empty_lines-- > 0) print ""
    }
    next
}

in_comment {
    is_end = $0 ~ /\*\/[ \t]*$/
    sub(/[ \t]*\*\/[ \t]*$/, "")
    sub(/^[ \t]*\* ?/, "")
    if (/^    +[^ ]/) {
        printf "%s", verbatim ? "" : " @verbatim "
        verbatim = 1
        print substr($0, 5) (is_end ? " @endverbatim" ending " */" : "")
    } else {
        if (verbatim) printf " @endverbatim "
        verbatim = 0
        if (/^-+$/) $0 = ""
        print (NR in headings ? "<b>" $0 "</b>" : plain($0)) (is_end ? ending " */" : "")
        said = said " " plain($0)
    }
    if (is_end) { in_comment = 0; verbatim = 0; is_fresh = 1; ending = "" }
    next
}

/^\/\* ---- .* ---- \*\/$/ {
    title = $0
    gsub(/^\/\* ---- | ---- \*\/$/, "", title)
    print (groups++ ? "/** @} */ " : "") "/** @defgroup " file groups " " title " */ /** @{ */"
    next
}

/^[ \t]*\/\*/ {
    indent = $0
    sub(/\/\*.*$/, "", indent)
    line = $0
    sub(/^[ \t]*\/\* */, "", line)
    said = ""
    if (line ~ /\*\/[ \t]*$/) {
        sub(/[ \t]*\*\/[ \t]*$/, "", line)
        said = plain(line)
        print indent "/** " plain(line) " */"
        is_fresh = 1
    } else {
        said = plain(line)
        print indent "/** " plain(line)
        in_comment = 1
    }
    next
}

/[;,{] *\/\*|^    [A-Z_0-9a-z =]+ *\/\*/ {
    code = $0
    sub(/\/\*.*$/, "", code)
    comment = $0
    sub(/^.*\/\* */, "", comment)
    trailer(code, comment)
    next
}

# A function right below another has the same comment.
/^ATTUNE_(API|CHECKED) / && was_end && !is_fresh && said != "" { print "/** " said " */ " $0; was_end = /;$/; next }
/^$/ { was_end = 0 }
/;$/ { was_end = 1; is_fresh = 0 }
{ print }

END { if (groups) print "/** @} */" }
