"""A plan under way: the kernel so far, the steps that led to it, and why each was taken."""

from __future__ import annotations

from dataclasses import replace

from aril.codegen.analysis import Nest, nest_of
from aril.codegen.steps import Id, Split, Step, StepError, Upcast, Vectorize, loops_of
from aril.renderer.base import Renderer
from aril.uop.args import KernelInfo
from aril.uop.node import UOp


class Plan:
    """Steps applied one after another.

    `renames` follows loops that a step split, for those who know them by their old id. `stopped` says why the choice
    ended early, if it did.
    """

    def __init__(self, sink: UOp, renderer: Renderer) -> None:
        self.sink = sink
        self.renderer = renderer
        self.steps: list[Step] = []
        self.reasons: list[str] = []
        self.renames: dict[Id, Id] = {}
        self.stopped = ""
        self.shares = True  # whether loops may become the launch index

    def do(self, step: Step, why: str = "asked for") -> None:
        """Apply a step. Errors: StepError."""
        if not isinstance(step, Step):
            raise StepError(f"{step!r} is no optimisation step: see aril.codegen.steps")
        self.sink = step.apply(self.sink)
        self.steps.append(step)
        self.reasons.append(why)

    def vectorise(self, id: Id, lanes: int, vectors: int, why: str) -> None:
        """All turns of the loop `id` at once: as `vectors` vectors of `lanes` each. Errors: StepError."""
        if vectors > 1:
            self.do(Split(id, lanes), "independent vectors")
            self.do(Upcast((*id, 0)), "independent vectors")
            id = (*id, 1)
        self.do(Vectorize(id), why)

    def mark(self) -> tuple[UOp, int, dict[Id, Id]]:
        """Where the plan stands, for `undo`."""
        return self.sink, len(self.steps), dict(self.renames)

    def undo(self, mark: tuple[UOp, int, dict[Id, Id]]) -> None:
        """Take back the steps since `mark`."""
        self.sink, count, self.renames = mark
        del self.steps[count:], self.reasons[count:]

    def rename(self, old: Id, new: Id) -> None:
        """The loop known as `old` is now `new`."""
        self.renames[old] = new

    def nest(self, index: int) -> Nest:
        """The nest number `index` as it is now."""
        return nest_of(self.sink.src[index])

    def loop(self, id: Id) -> UOp:
        """The loop `id` (or what it was renamed to)."""
        found = loops_of(self.sink).get(self.renames.get(id, id))
        if found is None:
            raise StepError(f"loop {id} is no loop any more: an earlier step took it")
        return found

    def find(self, loops: tuple[UOp, ...], id: Id) -> UOp:
        """That of `loops` whose id is `id`, or what it was renamed to."""
        id = self.renames.get(id, id)
        return next(r for r in loops if r.arg.id == id)

    def finish(self, info: KernelInfo) -> UOp:
        """The kernel with the steps noted in its KernelInfo."""
        return self.sink.replace(arg=replace(info, applied=tuple(self.steps)))

    def __str__(self) -> str:
        lines = [f"  {step}  # {why}" for step, why in zip(self.steps, self.reasons, strict=True)]
        lines += [f"  stopped: {self.stopped}"] if self.stopped else []
        return "\n".join(["steps:", *lines]) if lines else "no steps"
