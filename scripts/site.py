"""Prepares the pages of the site: usage: site.py OUT. `make html` runs Sphinx on them with scripts/site_conf.py, and
then site.py --check SITE, which fails if a link or a picture of the site leads nowhere.

Pages lie in OUT as in the sources, so that links between them hold. Links to files that are no pages lead to copies of
them. The reference has a page for each public header, which Breathe fills from Doxygen's XML, and one for each Python
module, made here from the docstrings of what it exports.
"""

import ast
import re
import shutil
import sys
import textwrap
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlparse

TOP = Path(__file__).resolve().parents[1]
PACKAGE = TOP / "python/attune"
STYLE = """
table.docutils { font-size: 0.86em; }
table.docutils td, table.docutils th { vertical-align: top; }
@media (min-width: 46em) {
    table.docutils td:first-child { min-width: 9em; }
    :is(section, li) > p code.literal .pre { white-space: nowrap; }
}
@media (max-width: 46em) {
    table.docutils td { min-width: 4em; }
    table.docutils :is(td:first-child, td:last-child) { min-width: 8em; }
    table.docutils td:first-child:has(code), table.docutils td:has(code) { min-width: 11em; }
    article p:has(> img) { overflow-x: auto; }
    article p > img { max-width: none; width: 44em; }
}
table.docutils td code { overflow-wrap: anywhere; }
.highlight pre { font-size: 0.775rem; }
.content { width: 59em; }
.highlight .err { border: 0; color: inherit; }
article img[src$=".svg"] { background: #fff; border-radius: 4px; padding: 0.4em; }
.breathe-sectiondef dl .breathe-sectiondef-title { display: none; }
dl.c { margin-bottom: 1.2em; }
"""


# ---- Pages ----


def pages():
    found = [*TOP.glob("*.md"), *TOP.glob("docs/*.md"), *TOP.glob("bench/*.md"), *TOP.glob("examples/*/*.md")]
    return sorted(path.relative_to(TOP) for path in found)


def linked(target, page, known, out):
    """Where a link of a page leads on the site."""
    path, hash_, anchor = target.partition("#")
    if not path or re.match(r"[a-z]+:", path):
        return target
    there = (TOP / page.parent / path).resolve()
    if not there.is_relative_to(TOP) or not there.exists():
        raise SystemExit(f"site: {page}: {target} leads nowhere")
    name = there.relative_to(TOP)
    up = "../" * len(page.parent.parts)
    if name == Path("README.md"):
        return f"{up}index.md"
    if name in known or name.suffix in (".svg", ".png"):
        return target
    if str(name).startswith("include/") and name.suffix == ".h":
        return f"{up}reference/c-{name.stem}.md"
    if name.is_dir():
        return f"{up}{name}/README.md" if name / "README.md" in known else target
    copy = out / "linked/files" / f"{name}.txt"
    copy.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(there, copy)
    return f"{up}files/{name}.txt"


def as_page(page, known, out):
    def link(match):
        target = linked(match[2], page, known, out)
        return f"{match[1]}({target})" if not target.split("#")[0].endswith(".txt") else html_link(match, target)

    def html_link(match, target):
        return f'<a href="{target}">{match[1][1:-1]}</a>'

    parts = re.split(r"(^```.*?^```$)", (TOP / page).read_text(), flags=re.M | re.S)
    for i in range(0, len(parts), 2):  # what is no code
        parts[i] = re.sub(r"(!?\[[^\]]*\])\(([^)\s]+)\)", link, parts[i])
    return "".join(parts)


# ---- The reference of Python ----


def defined(module, name):
    """The node that defines an exported name, which another file may hold; None: it is a value."""
    tree = ast.parse(module.read_text())
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            return node
        if isinstance(node, ast.ImportFrom) and node.level:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    folder = module.parents[node.level - 1]
                    return defined(folder / f"{node.module}.py", alias.name)
    return None


def signature(node, name):
    if isinstance(node, ast.ClassDef):
        made = [one for one in node.body if isinstance(one, ast.FunctionDef) and one.name in ("__init__", "__new__")]
        fields = [one for one in node.body if isinstance(one, ast.AnnAssign)]
        if not made:
            return f"class {name}({', '.join(ast.unparse(one.target) for one in fields)})"
        arguments, result, word = made[0].args, None, "class "
    else:
        arguments, result, word = node.args, node.returns, ""
    text = ast.unparse(arguments)
    text = re.sub(r"^(self|cls)(, )?", "", text)
    end = f" -> {ast.unparse(result)}" if result is not None else ""
    one_line = f"{word}{name}({text}){end}"
    if len(one_line) <= 88:
        return one_line
    parts, depth, start = [], 0, 0
    for i, letter in enumerate(text):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and not depth:
            parts.append(text[start:i].strip())
            start = i + 1
    parts.append(text[start:].strip())
    return f"{word}{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){end}"


def plain(text):
    """Text in which nothing but `code` is markup."""
    parts = re.split(r"(``?[^`]+``?)", text)
    for i in range(0, len(parts), 2):
        parts[i] = re.sub(r"([*<\[\]_|])", r"\\\1", parts[i])
    return "".join(parts)


_ITEM = re.compile(r"^([a-z_][a-z0-9_]*(?:, [a-z_][a-z0-9_]*)*): ")


def markdown(docstring):
    """A docstring as Markdown: paragraphs, indented code, and arguments as a list."""
    made = []
    for block in re.split(r"\n\s*\n", textwrap.dedent(docstring).strip("\n")):
        lines = block.split("\n")
        if all(line.startswith("    ") for line in lines):
            code = textwrap.dedent(block)
            is_table = all(re.search(r"\S {2,}\S", line) for line in code.split("\n"))
            made.append(f"```{'none' if is_table else 'python'}\n{code}\n```")
        elif made and any(_ITEM.match(line) for line in lines):
            made.append(items(lines))
        else:
            made.append(plain(" ".join(line.strip() for line in lines)))
    return "\n\n".join(made)


def items(lines):
    text = []
    for line in lines:
        item = _ITEM.match(line)
        if item:
            text.append(f"* **{item[1]}**: {plain(line[item.end():])}")
        elif re.match(r'^ {8}"\w+": ', line):
            text.append(f"    * {plain(line.strip())}")
        elif re.match(r'^ {4}"\w+": ', line):
            text.append(f"    * {plain(line.strip())}")
        elif text:
            text[-1] += " " + plain(line.strip())
        else:
            text.append(plain(line.strip()))
    head = [one for one in text if not one.lstrip().startswith("*")]
    rest = [one for one in text if one.lstrip().startswith("*")]
    return "\n".join([*head, *([""] if head else []), *rest])


def python_entry(node, name, level):
    made = [f"{'#' * level} {name.rpartition('.')[2]}", "", "```python", signature(node, name), "```", ""]
    made += [markdown(ast.get_docstring(node) or ""), ""]
    if isinstance(node, ast.ClassDef):
        for one in node.body:
            if isinstance(one, ast.FunctionDef) and not one.name.startswith("_") and ast.get_docstring(one):
                made += ["```python", signature(one, f"{name.rpartition('.')[2]}.{one.name}"), "```", ""]
                made += [markdown(ast.get_docstring(one)), ""]
    return "\n".join(made)


def python_page(module, title):
    tree = ast.parse(module.read_text())
    names = next((ast.literal_eval(node.value) for node in tree.body if isinstance(node, ast.Assign)
                  and getattr(node.targets[0], "id", "") == "__all__"), [])
    made = [f"# {title}", "", markdown(ast.get_docstring(tree) or ""), ""]
    for name in names:
        node = defined(module, name)
        if node is not None:
            made.append(python_entry(node, f"{title}.{name}", 2))
    return "\n".join(made)


# ---- The reference of C ----


def c_page(header):
    sections = "briefdescription detaileddescription define enum typedef innerclass public-attrib func"
    reference = f".. doxygenfile:: {header.name}\n   :sections: {sections}\n"
    return f"# {header}\n\n```{{highlight}} c\n```\n\n```{{eval-rst}}\n{reference}```\n"


def tree(caption, names):
    title = f":caption: {caption}\n" if caption else ""
    return f"\n```{{toctree}}\n:hidden:\n{title}\n" + "\n".join(names) + "\n```\n"


def navigation(index):
    """The pages of each part of docs/index.md, in its order."""
    parts = re.split(r"^#+ (.*)$", index, flags=re.M)
    seen = set()
    for title, text in zip(["By task", *parts[3::2]], parts[2::2]):
        names = []
        for name in re.findall(r"\]\(([^)#]+\.md)", text):
            path = str((Path("docs") / name)).replace("docs/../", "")
            if path not in seen and path != "README.md" and (TOP / path).exists():
                seen.add(path)
                names.append(f"/{path[:-3]}")
        if names:
            yield title, names


def main(out):
    known = pages()
    reference = out / "reference"
    reference.mkdir(parents=True)
    for page in known:
        if page == Path("README.md"):  # index.md has it
            continue
        (out / page).parent.mkdir(parents=True, exist_ok=True)
        (out / page).write_text(as_page(page, known, out))
    for picture in [*TOP.glob("docs/*.svg"), *TOP.glob("docs/*.png")]:
        shutil.copy(picture, out / "docs")
    include = TOP / "include"
    headers = [path.relative_to(include) for pattern in ("*.h", "attune/*.h", "attune/expert/*.h")
               for path in sorted(include.glob(pattern))]
    for header in headers:
        (reference / f"c-{header.stem}.md").write_text(c_page(header))
    modules = {"attune": PACKAGE / "__init__.py"}
    for path in sorted([*PACKAGE.glob("*.py"), *PACKAGE.glob("*/__init__.py")]):
        name = path.parent.name if path.name == "__init__.py" else path.stem
        if not name.startswith("_") and "__all__" in path.read_text() and path != modules["attune"]:
            modules[f"attune.{name}"] = path
    for name, path in modules.items():
        (reference / f"{name}.md").write_text(python_page(path, name))
    index = (TOP / "docs/index.md").read_text()
    text = "# attune\n\n" + as_page(Path("README.md"), known, out).partition("\n")[2]
    text += tree("", ["/docs/index"])
    text += "".join(tree(title, names) for title, names in navigation(index))
    text += tree("", ["/bench/README"])
    text += tree("C", [f"/reference/c-{header.stem}" for header in headers])
    text += tree("Python", [f"/reference/{name}" for name in modules])
    (out / "index.md").write_text(text)
    (out / "style").mkdir(exist_ok=True)
    (out / "style/site.css").write_text(STYLE)


# ---- The site, when it is there ----


class Page(HTMLParser):
    """The links of a page, and what they can lead to in it."""

    def __init__(self, path):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name in ("href", "src") and value:
                self.links.append(value)
            elif name == "id" or (tag, name) == ("a", "name"):
                self.anchors.add(value)


def broken(site):
    """Links within the site that lead nowhere, in words."""
    found = {path: Page(path) for path in sorted(site.rglob("*.html"))}
    for path, page in found.items():
        for link in page.links:
            url = urlparse(link)
            if url.scheme or url.netloc:
                continue
            there = (path.parent / unquote(url.path)).resolve() if url.path else path
            if not there.is_file():
                yield f"{path.relative_to(site)}: there is no {link}"
            elif url.fragment and there in found and unquote(url.fragment) not in found[there].anchors:
                yield f"{path.relative_to(site)}: {link} has no such heading"


def check(site):
    said = list(broken(site.resolve()))
    print("".join(f"site: {line}\n" for line in said), end="", file=sys.stderr)
    return 1 if said else 0


if __name__ == "__main__":
    if sys.argv[1] == "--check":
        sys.exit(check(Path(sys.argv[2])))
    main(Path(sys.argv[1]))
