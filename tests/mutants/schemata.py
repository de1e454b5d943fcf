"""Build the kernels with all mutants compiled in; KERNEL_MUTANT selects one by number.

    python schemata.py LOCATIONS    in the folder of setup.py

LOCATIONS is a JSON list of [file, line, column, token, number]. Each expression becomes a conditional
expression that selects it or its mutant. Prints the numbers of mutants that are not compiled in
because Cython requires a constant.
"""

import copy
import json
import runpy
import sys
from pathlib import Path
from typing import Any

from Cython.Compiler import ExprNodes, Main, StringEncoding
from Cython.Compiler.Visitor import VisitorTransform

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
Location = tuple[str, int, int]  # file, line from 1, column from 0


def replace_token(node: Any, token: str) -> Any:
    """Return the node with its operator, name or number replaced by a token, or None."""
    if isinstance(node, (ExprNodes.PrimaryCmpNode, ExprNodes.CascadedCmpNode)):
        node.operator = token
        return node
    if isinstance(node, ExprNodes.BoolBinopNode):
        return ExprNodes.BoolBinopNode(
            node.pos, operator=token, operand1=node.operand1, operand2=node.operand2
        )
    if isinstance(node, ExprNodes.BinopNode):
        return ExprNodes.binop_node(node.pos, token, node.operand1, node.operand2)
    if isinstance(node, ExprNodes.UnaryMinusNode):
        return node.operand
    if isinstance(node, ExprNodes.SimpleCallNode):
        node.function.name = StringEncoding.EncodedString(token)
        return node
    if isinstance(node, ExprNodes.IntNode):  # -1 is a constant, too
        value = node.value.replace("-", "") if token == "+" else "-" * ("-" in node.value) + token
        return ExprNodes.IntNode(node.pos, value=value)
    return None


def is_selected(pos: Any, number: int) -> Any:
    """Return the condition that a mutant is selected."""
    return ExprNodes.PrimaryCmpNode(
        pos,
        operator="==",
        operand1=ExprNodes.NameNode(pos, name=StringEncoding.EncodedString("ndtool_mutant")),
        operand2=ExprNodes.IntNode(pos, value=str(number)),
    )


def as_boolean(node: Any) -> Any:
    """Return a condition as a C boolean, the common type of numbers and comparisons."""
    negated = ExprNodes.NotNode(node.pos, operand=node)
    return ExprNodes.NotNode(node.pos, operand=negated)


def path_in_package(filename: str) -> str:
    """Return a source's path relative to the package."""
    return Path(filename).as_posix().rpartition("ndtool/")[2]


class MutantInserter(VisitorTransform):
    """Inserts a conditional expression at each mutant."""

    def __init__(self, locations: dict[Location, tuple[str, int]]) -> None:
        super().__init__()
        self.locations = locations
        self.inserted: set[int] = set()

    def mutant_at(self, pos: Any) -> tuple[str, int] | None:
        """Return the token and number of the mutant at a position."""
        return self.locations.get((path_in_package(pos[0].filename), pos[1], pos[2]))

    def wrap(self, node: Any, pairs: list[tuple[Any, tuple[str, int]]]) -> Any:
        """Return the node with its mutants, each a change of the original node."""
        for mutant, (_, number) in pairs:
            self.inserted.add(number)
            condition = is_selected(node.pos, number)
            node = ExprNodes.CondExprNode(
                node.pos, condition=condition, true_val=mutant, false_val=node
            )
        return node

    def visit_Node(self, node: Any) -> Any:  # noqa: N802
        self.visitchildren(node)
        return node

    def visit_ExprNode(self, node: Any) -> Any:  # noqa: N802
        token_and_number = self.mutant_at(node.pos)
        mutant = replace_token(clone(node), token_and_number[0]) if token_and_number else None
        self.visitchildren(node)
        return self.wrap(node, [(mutant, token_and_number)] if token_and_number and mutant else [])

    def visit_BoolBinopNode(self, node: Any) -> Any:  # noqa: N802
        """Skip conditions on fused types, which must be constant; convert the others to booleans."""
        operands = node.operand1, node.operand2
        comparisons = [
            operand for operand in operands if isinstance(operand, ExprNodes.PrimaryCmpNode)
        ]
        if any(operand.operator == "is" for operand in comparisons):
            return node
        if comparisons:
            node.operand1, node.operand2 = map(as_boolean, operands)
        return self.visit_ExprNode(node)

    def visit_IntNode(self, node: Any) -> Any:  # noqa: N802
        source, line, column = node.pos
        tokens_and_numbers = [self.mutant_at(node.pos), self.mutant_at((source, line, column - 1))]
        if "-" not in node.value:
            tokens_and_numbers.pop()
        return self.wrap(
            node,
            [
                (replace_token(clone(node), token_and_number[0]), token_and_number)
                for token_and_number in tokens_and_numbers
                if token_and_number
            ],
        )

    def visit_SimpleCallNode(self, node: Any) -> Any:  # noqa: N802
        token_and_number = self.mutant_at(node.function.pos)
        pairs = (
            [(replace_token(clone(node), token_and_number[0]), token_and_number)]
            if token_and_number
            else []
        )
        self.visitchildren(node)
        return self.wrap(node, pairs)

    def visit_PrimaryCmpNode(self, node: Any) -> Any:  # noqa: N802
        pairs, comparison, depth = [], node, 0
        while comparison is not None:
            if token_and_number := self.mutant_at(comparison.pos):
                mutant = clone(node)
                target = mutant
                for _ in range(depth):
                    target = target.cascade
                target.operator = token_and_number[0]
                pairs.append((mutant, token_and_number))
            comparison, depth = comparison.cascade, depth + 1
        self.visitchildren(node)
        return self.wrap(node, pairs)

    def visit_CascadedCmpNode(self, node: Any) -> Any:  # noqa: N802
        self.visitchildren(node)
        return node

    def visit_CArrayDeclaratorNode(self, node: Any) -> Any:  # noqa: N802
        """Skip the length of an array, which must be constant."""
        return node

    def visit_ForInStatNode(self, node: Any) -> Any:  # noqa: N802
        """Skip the step of a range, which must be constant."""
        call = node.iterator.sequence
        steps = call.args[2:] if isinstance(call, ExprNodes.SimpleCallNode) else []
        if steps:
            call.args = call.args[:2]
        self.visitchildren(node)
        if steps:
            node.iterator.sequence.args = [*call.args, *steps]
        return node


def clone(node: Any) -> Any:
    return copy.deepcopy(node, {id(node.pos[0]): node.pos[0]})


def main() -> None:
    locations = {
        (file, line, column): (token, number)
        for file, line, column, token, number in json.loads(Path(sys.argv[1]).read_text())
    }
    for name in {file for file, _, _ in locations}:
        with Path("ndtool", name).open("a") as file:
            file.write(SELECTOR)
    inserter = MutantInserter(locations)
    parse = Main.Context.parse

    def parse_and_insert(*arguments: Any, **options: Any) -> Any:
        return inserter.visit(parse(*arguments, **options))

    Main.Context.parse = parse_and_insert
    sys.argv[:] = ["setup.py", "-q", "build_ext", "--inplace"]
    runpy.run_path("setup.py", run_name="__main__")
    print(json.dumps(sorted({number for _, number in locations.values()} - inserter.inserted)))


if __name__ == "__main__":
    main()
