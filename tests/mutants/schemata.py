"""Build the kernels with all mutants compiled in; KERNEL_MUTANT selects one by number.

    python schemata.py LOCATIONS    in the folder of setup.py

LOCATIONS is a JSON list of [file, line, column, token, number]. Each expression becomes a conditional
between itself and its mutant. Those that must be constants in Cython are excluded and printed.
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


def mutated(node: Any, token: str) -> Any:
    """Return the node with its operator, name or number replaced, or None."""
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


def chosen(pos: Any, number: int) -> Any:
    """Return the condition that a mutant is selected."""
    return ExprNodes.PrimaryCmpNode(
        pos,
        operator="==",
        operand1=ExprNodes.NameNode(pos, name=StringEncoding.EncodedString("ndtool_mutant")),
        operand2=ExprNodes.IntNode(pos, value=str(number)),
    )


def truth(node: Any) -> Any:
    """Return a condition as a C boolean: numbers and comparisons have no common C type."""
    inner = ExprNodes.NotNode(node.pos, operand=node)
    return ExprNodes.NotNode(node.pos, operand=inner)


def in_package(filename: str) -> str:
    """Return a source's path relative to the package."""
    return Path(filename).as_posix().rpartition("ndtool/")[2]


class Choices(VisitorTransform):
    """Inserts a conditional at each mutant."""

    def __init__(self, locations: dict[Location, tuple[str, int]]) -> None:
        super().__init__()
        self.locations = locations
        self.done: set[int] = set()

    def path_in_package(self, pos: Any) -> tuple[str, int] | None:
        return self.locations.get((in_package(pos[0].filename), pos[1], pos[2]))

    def wrap(self, node: Any, pairs: list[tuple[Any, tuple[str, int]]]) -> Any:
        """Return the node with its mutants, each a change of the original node."""
        for other, (_, number) in pairs:
            self.done.add(number)
            condition = chosen(node.pos, number)
            node = ExprNodes.CondExprNode(
                node.pos, condition=condition, true_val=other, false_val=node
            )
        return node

    def visit_Node(self, node: Any) -> Any:  # noqa: N802
        self.visitchildren(node)
        return node

    def visit_ExprNode(self, node: Any) -> Any:  # noqa: N802
        site = self.path_in_package(node.pos)
        other = mutated(clone(node), site[0]) if site else None
        self.visitchildren(node)
        return self.wrap(node, [(other, site)] if site and other else [])

    def visit_BoolBinopNode(self, node: Any) -> Any:  # noqa: N802
        """A condition on a fused type must be constant; another has one type, whatever it compares."""
        operands = node.operand1, node.operand2
        comparisons = [one for one in operands if isinstance(one, ExprNodes.PrimaryCmpNode)]
        if any(one.operator == "is" for one in comparisons):
            return node
        if comparisons:
            node.operand1, node.operand2 = map(truth, operands)
        return self.visit_ExprNode(node)

    def visit_IntNode(self, node: Any) -> Any:  # noqa: N802
        source, line, column = node.pos
        sites = [self.path_in_package(node.pos), self.path_in_package((source, line, column - 1))]
        if "-" not in node.value:
            sites.pop()
        return self.wrap(node, [(mutated(clone(node), site[0]), site) for site in sites if site])

    def visit_SimpleCallNode(self, node: Any) -> Any:  # noqa: N802
        site = self.path_in_package(node.function.pos)
        pairs = [(mutated(clone(node), site[0]), site)] if site else []
        self.visitchildren(node)
        return self.wrap(node, pairs)

    def visit_PrimaryCmpNode(self, node: Any) -> Any:  # noqa: N802
        pairs, link, depth = [], node, 0
        while link is not None:
            if site := self.path_in_package(link.pos):
                other = clone(node)
                at = other
                for _ in range(depth):
                    at = at.cascade
                at.operator = site[0]
                pairs.append((other, site))
            link, depth = link.cascade, depth + 1
        self.visitchildren(node)
        return self.wrap(node, pairs)

    def visit_CascadedCmpNode(self, node: Any) -> Any:  # noqa: N802
        self.visitchildren(node)
        return node

    def visit_CArrayDeclaratorNode(self, node: Any) -> Any:  # noqa: N802
        """The length of an array must be constant."""
        return node

    def visit_ForInStatNode(self, node: Any) -> Any:  # noqa: N802
        """The step of a range must be constant."""
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
    choices = Choices(locations)
    parse = Main.Context.parse

    def parsed(*arguments: Any, **options: Any) -> Any:
        return choices.visit(parse(*arguments, **options))

    Main.Context.parse = parsed
    sys.argv[:] = ["setup.py", "-q", "build_ext", "--inplace"]
    runpy.run_path("setup.py", run_name="__main__")
    print(json.dumps(sorted({number for _, number in locations.values()} - choices.done)))


if __name__ == "__main__":
    main()
