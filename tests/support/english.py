"""Checks comments, docstrings, pages and commit subjects for wording that readers stumble over.

python tests/support/english.py                    # reports each problem; `make lint` runs this
python tests/support/english.py --share [--list]   # the fraction of such sentences per folder
python tests/support/english.py --message FILE     # checks a commit message, as a hook of Git
"""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
# These have no right use in this project: the pattern, and what to write instead.
REPLACEMENTS = {
    r"\banew\b": "again",
    r"\bbut for (the|its|this|that|these|those)\b": "except",
    r"\bfor want of\b": "without",
    r"\bof one's own\b": "custom, its own",
    r"\bwithout a word\b": "silently",
    r"\belsewhere than\b": "on other",
    r"\bbe it an?\b": "whether",
    r"\bworth (its|one's|the) while\b": "faster, useful",
    r"\b(is|are|was|were) told (of|by)\b": "reported, inferred from",
    r"\btold apart\b": "distinguished",
    r"\bnear caches?\b": "L1 cache, L2 cache",
    r"\bfloating numbers?\b": "floating-point values",
    r"\bnobody (knows|has|needs|asks|wants)\b": "unknown, unused",
    r"\bwhat there is not\b": "limits",
}
# Often a habit, sometimes right: counted, and not reported.
HABITS = [
    *REPLACEMENTS,
    r"^(Of|As|By|What|Where|Whether|Those|All of|How|That) ",
    r"\b(tells?|told)\b(?! (you|it to|pytest|the compiler))",
    r", (whose|of which|for which|which there)\b",
    r"\b(asks|knows|wants|bites|meets)\b",
    r"\b(nothing|nobody|none of (which|them)|no one)\b (is|are|has|have|waits?|does)\b",
    r"\bbeside\b",
    r"\bpictures?\b",
    r"\b(is|are) (refused|left out|passed over)\b",
    r"\bso that\b.*\bso that\b",
]
SUBJECT = re.compile(r"(?=.{1,72}$)([\w./+-]+(, )?)+: [a-z].*[^.]$|(Merge|Revert) .*$")
# The commits that a branch adds.
BRANCH = "origin/main..HEAD"
SENTENCE = re.compile(r"(?<=[.:;!?])\s+(?=[A-Z`\"(])")
Sentence = tuple[int, str]


def sentences(line: int, text: str) -> Iterator[Sentence]:
    for part in SENTENCE.split(" ".join(text.split())):
        if len(part.split()) > 2:
            yield line, part


def python_sentences(text: str) -> Iterator[Sentence]:
    documented_nodes = ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, documented_nodes) and (docstring := ast.get_docstring(node)):
            line = node.body[0].lineno
            prose = re.sub(r"^\s*(>>>|\.\.\.).*$|``.*?``", "", docstring, flags=re.M)
            for paragraph in re.split(r"\n\s*\n|\n(?=\s*\w+: )", prose):
                yield from sentences(line, re.sub(r"^\s*\w+: ", "", paragraph))
    comments = [
        (token.start[0], token.string.lstrip("# "))
        for token in tokenize.generate_tokens(io.StringIO(text).readline)
        if token.type == tokenize.COMMENT
    ]
    yield from merge_lines(comments)


def cpp_sentences(text: str) -> Iterator[Sentence]:
    comments = re.finditer(r"//(?: (.*))?$", text, re.M)
    yield from merge_lines([(text.count("\n", 0, m.start()) + 1, m[1] or "") for m in comments])


def merge_lines(comments: list[Sentence]) -> Iterator[Sentence]:
    """Joins comments on consecutive lines."""
    block: list[Sentence] = []
    for line, text in [*comments, (-1, "")]:
        if block and line != block[-1][0] + 1:
            yield from sentences(block[0][0], " ".join(part for _, part in block))
            block = []
        block.append((line, text))


def markdown_sentences(text: str) -> Iterator[Sentence]:
    blank = lambda m: "\n" * m[0].count("\n")  # noqa: E731, keeps the line numbers
    text = re.sub(r"^```.*?^```$|<!--.*?-->|`[^`\n]*`", blank, text, flags=re.M | re.S)
    text = re.sub(r"^    .*$", "", text, flags=re.M)
    line = 1
    for paragraph in re.split(r"(\n\s*\n|\n(?=[|#*-]))", text):
        yield from sentences(line + paragraph.count("\n", 0, 1), paragraph.strip("|#*- \n"))
        line += paragraph.count("\n")


SPLITTERS = {".py": python_sentences, ".md": markdown_sentences} | dict.fromkeys(
    (".h", ".cpp", ".inl", ".cu", ".cuh"), cpp_sentences
)


def files() -> list[Path]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [Path(name) for name in listed.splitlines()]
    return [p for p in paths if p.suffix in SPLITTERS and (ROOT / p).is_file()]


def all_sentences() -> Iterator[tuple[Path, int, str]]:
    for path in files():
        for line, sentence in SPLITTERS[path.suffix]((ROOT / path).read_text()):
            yield path, line, sentence


def print_statistics(list_sentences: bool) -> None:
    habit = re.compile("|".join(HABITS), re.I)
    sizes: Counter[str] = Counter()
    problems: dict[str, list[str]] = defaultdict(list)
    for path, line, sentence in all_sentences():
        sizes[path.parts[0]] += 1
        if habit.search(sentence):
            problems[path.parts[0]].append(f"{path}:{line}: {sentence}")
    for folder, size in sizes.most_common():
        print(
            f"{len(problems[folder]):5d} of {size:6d} {len(problems[folder]) / size:6.1%} {folder}"
        )
    total = sum(map(len, problems.values()))
    print(f"{total:5d} of {sizes.total():6d} {total / sizes.total():6.1%} all")
    if list_sentences:
        print(*(line for lines in problems.values() for line in lines), sep="\n")


def subjects() -> list[str]:
    """Returns the subjects of the branch's commits; none where Git does not know the branch."""
    command = ["git", "log", "--format=%s", BRANCH]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True).stdout.splitlines()


def subject_problems(subject: str) -> list[str]:
    if SUBJECT.match(subject):
        return []
    return [f"commit subject: expected 'scope: imperative', at most 72 characters: {subject}"]


def problems() -> Iterator[str]:
    for path, line, sentence in all_sentences():
        for pattern, replacement in REPLACEMENTS.items():
            if re.search(pattern, sentence, re.I):
                yield f"{path}:{line}: write {replacement!r}: {sentence}"
    for subject in subjects():
        yield from subject_problems(subject)


def main(arguments: list[str]) -> int:
    if "--share" in arguments:
        print_statistics("--list" in arguments)
        return 0
    if "--message" in arguments:
        lines = subject_problems(Path(arguments[-1]).read_text().partition("\n")[0])
    else:
        lines = list(problems())
    for line in lines:
        print(line)
    return bool(lines)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
