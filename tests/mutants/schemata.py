"""Sources of the kernels with all mutants in them: KERNEL_MUTANT selects one by its number."""

import re
from collections.abc import Sequence

SELECTOR = '''
cdef extern from *:
    """
    #ifndef NDTOOL_MUTANTS
    #define NDTOOL_MUTANTS
    #include <stdlib.h>
    static int ndtool_mutant = -1;
    __attribute__((constructor)) static void ndtool_choose(void) {
        char const *number = getenv("KERNEL_MUTANT");
        if (number) ndtool_mutant = atoi(number);
    }
    #endif
    """
    int ndtool_mutant
'''
Change = tuple[int, str, str, int]  # offset, token, replacement, number of the mutant
CONDITION = re.compile(r"\s*(?:if|elif|while) (.*):$", re.DOTALL)
FUNCTION = re.compile(r"(cdef class|cdef (?!enum|struct|extern).*\)|def |class )", re.DOTALL)
RANGE = re.compile(r"\s*for \w+ in range\((.*)\):$", re.DOTALL)


def blank(match: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", match[0])


def code_of(text: str) -> str:
    """Return a source with blanks in place of its strings and comments."""
    text = re.sub(r'""".*?"""', blank, text, flags=re.DOTALL)
    return re.sub(r'"[^"\n]*"|\'[^\'\n]*\'|#.*', blank, text)


def insert_mutants(
    text: str, mutants: dict[int, tuple[int, int, str, str]]
) -> tuple[str, list[range], set[int]]:
    """Return the source with mutants, given by line, column, token and replacement.

    Also return, for each line, the original lines of its statement, and the inserted mutants. In a
    condition or an initial value a mutant is a conditional expression, else a branch of an if.
    """
    lines, code = text.splitlines(), code_of(text).splitlines()
    emitted: list[str] = []
    origins: list[range] = []
    inserted: set[int] = set()
    start, is_function = 0, False
    while start < len(lines):
        stop = start + 1
        while stop < len(lines) and sum(depth_changes("\n".join(code[start:stop]))) > 0:
            stop += 1
        statement, plain = "\n".join(lines[start:stop]), "\n".join(code[start:stop]).rstrip()
        is_top = plain[:1].strip() != ""
        if is_top:
            is_function = FUNCTION.match(plain) is not None
        offsets = {
            start + 1 + i: len("\n".join([*lines[start : start + i], ""]))
            for i in range(stop - start)
        }
        changes = [
            (offsets[line] + column, token, replacement, number)
            for number, (line, column, token, replacement) in mutants.items()
            if is_function and not is_top and line in offsets
        ]
        if plain.endswith(":") or plain.lstrip().startswith("cdef "):
            statement, numbers = with_expressions(statement, plain, changes)
        else:
            statement, numbers = (
                with_branches(statement, changes),
                {change[3] for change in changes},
            )
        inserted |= numbers
        emitted += statement.split("\n")
        origins += [range(start + 1, stop + 1)] * (len(emitted) - len(origins))
        start = stop
    return "\n".join(emitted) + SELECTOR, origins, inserted


def depth_changes(plain: str) -> list[int]:
    return [(char in "([{") - (char in ")]}") for char in plain]


def replaced(text: str, change: Change, start: int = 0) -> str:
    offset, token, replacement, _ = change
    return text[: offset - start] + replacement + text[offset - start + len(token) :]


def with_branches(statement: str, changes: Sequence[Change]) -> str:
    """Return a statement as the last branch of an if, whose other branches are mutants."""
    indent = re.match(" *", statement)[0]
    text = "".join(
        f"{indent}{'elif' if i else 'if'} ndtool_mutant == {change[3]}:\n{indented(replaced(statement, change))}\n"
        for i, change in enumerate(changes)
    )
    return f"{text}{indent}else:\n{indented(statement)}" if changes else statement


def indented(statement: str) -> str:
    return re.sub("^", "    ", statement, flags=re.MULTILINE)


def with_expressions(statement: str, plain: str, changes: Sequence[Change]) -> tuple[str, set[int]]:
    """Return a statement with conditional expressions, and the numbers of their mutants."""
    by_span: dict[tuple[int, int], list[Change]] = {}
    for change in changes:
        if span := span_of(plain, change[0]):
            by_span.setdefault(span, []).append(change)
    for (start, stop), here in sorted(by_span.items(), reverse=True):
        original = expression = statement[start:stop]
        for change in here:
            mutated = replaced(original, change, start)
            expression = f"(({mutated}) if ndtool_mutant == {change[3]} else ({expression}))"
        statement = statement[:start] + expression + statement[stop:]
    return statement, {change[3] for here in by_span.values() for change in here}


def span_of(plain: str, offset: int) -> tuple[int, int] | None:
    """Return the position of the condition, range or initial value at an offset."""
    if match := CONDITION.match(plain) or RANGE.match(plain):
        start, stop = match.span(1)
        is_constant = re.search(r"\bis\b", match[1])  # a condition on a fused type
        if is_constant or (match.re is RANGE and top_level_commas(match[1])):
            return None
    elif plain.endswith(":"):
        return None
    else:  # of a cdef: between = and a comma
        commas = top_level_commas(plain)
        stop = min((i for i in commas if i > offset), default=len(plain))
        start = plain.rfind(" = ", max((i for i in commas if i < offset), default=0), stop) + 3
        if start < 3:
            return None
    return (start, stop) if start <= offset < stop else None


def top_level_commas(plain: str) -> list[int]:
    commas = [match.start() for match in re.finditer(",", plain)]
    return [i for i in commas if not sum(depth_changes(plain[:i]))]
