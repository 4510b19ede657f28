"""All that nodes can be asked to do in a run, by name: the method's steps, and those of the run itself."""

from __future__ import annotations

from dataclasses import dataclass, field

from polyfed.errors import MethodError
from polyfed.federation.method import Method, Step, StepOwner
from polyfed.federation.wire import Wire

METHOD = "method"


@dataclass(frozen=True)
class Program:
    """A method, whatever else has steps in its runs, and how what they send is packed.

    A step is called OWNER.STEP: `method.train`, `evaluation.score`.
    """

    method: Method
    others: dict[str, StepOwner] = field(default_factory=dict)
    wire: Wire = field(default_factory=Wire)

    @property
    def keeps(self) -> frozenset[str]:
        """What of a client lasts from one step to the next: what the method keeps, and what packing left out."""
        declared = self.method.declared
        left = self.wire.leaves_residuals(declared.kinds_up)
        return frozenset({*declared.keeps, *(["residuals"] if left else [])})

    def wire_up(self, owner: StepOwner) -> Wire:
        """How replies are packed: the method's as the run says; what is fetched to look at models is exact."""
        return self.wire if owner is self.method else Wire()

    def owner(self, name: str) -> StepOwner:
        """Whose step this is."""
        owner = name.partition(".")[0]
        return self.method if owner == METHOD else self.others[owner]

    def step(self, name: str) -> Step:
        """The step of this name."""
        owner = self.owner(name)
        short = step_name(name)
        step = getattr(owner, short, None)
        if not (getattr(step, "is_client_step", False) or getattr(step, "is_server_step", False)):
            raise MethodError(f"{type(owner).__name__} has no step '{short}'")
        assert step is not None
        return step  # type: ignore[no-any-return]

    def name_of(self, step: Step) -> str:
        """The name of a step, as `self.train` in a method's round."""
        owner = getattr(step, "__self__", None)
        if owner is self.method:
            return f"{METHOD}.{step.__name__}"
        for name, other in self.others.items():
            if owner is other:
                return f"{name}.{step.__name__}"
        raise MethodError(f"'{step.__name__}' is not a step of this run's method")


def step_name(name: str) -> str:
    """`train`, of `method.train`."""
    return name.partition(".")[2]
