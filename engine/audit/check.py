"""One check: a name, what holds when it passes, and the function that looks for contradictions."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from engine.audit.records import MAX_FAULTS, CheckResult, Fault, Finding, Note, Outcome, Waiting
from engine.audit.view import View
from engine.config import ModelConfig
from engine.inventory import Tensors


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """Something that must hold in a sound checkpoint, decided without payload."""

    name: str
    title: str
    judge: Callable[[View], Iterable[Finding]]
    """Everything found: faults fail the check, what is waited for leaves it undecided, notes change nothing."""
    derived: bool = True
    """Whether it compares with what the config demands, and is undecided without one."""

    def run(self, view: View, *, require_complete: bool) -> CheckResult:
        """Judge the view. With `require_complete` an undecided check has failed."""
        findings: Iterable[Finding]
        findings = self.judge(view) if not self.derived or view.expected is not None else _no_config(view)
        faults: list[Fault] = []
        waiting: dict[str, None] = {}
        notes: list[str] = []
        n_faults = 0
        for finding in findings:
            match finding:
                case Fault():
                    n_faults += 1
                    if n_faults <= MAX_FAULTS:
                        faults.append(finding)
                case Waiting():
                    waiting.setdefault(finding.what)
                case Note():
                    notes.append(finding.text)
        outcome = Outcome.FAIL if faults else Outcome.UNDECIDED if waiting else Outcome.PASS
        if outcome is Outcome.UNDECIDED and require_complete:
            outcome, n_faults = Outcome.FAIL, 1
            faults = [Fault(message="undecided, and a complete checkpoint was demanded")]
        return CheckResult(
            check=self.name,
            title=self.title,
            outcome=outcome,
            faults=tuple(faults),
            n_faults=n_faults,
            waiting=tuple(waiting),
            notes=tuple(notes),
        )


def _no_config(view: View) -> Iterator[Finding]:
    yield Waiting(what="a sound config" if view.config is not None else "a readable config")


def demands(view: View) -> tuple[ModelConfig, Tensors]:
    """The config and what it demands; only for checks that are `derived`."""
    assert view.config is not None and view.expected is not None
    return view.config, view.expected


def having(view: View, accept: Callable[[str], bool], *, stage: bool = False) -> list[str]:
    """The demanded tensors whose role `accept` takes: of draft stages, or of all else."""
    roles = view.roles.items()
    return [name for (of_stage, role), names in roles if of_stage == stage and accept(role) for name in names]


def exactly(view: View, roles: frozenset[str]) -> Iterator[Finding]:
    """A fault for each tensor of these roles that is missing or extra, over all backbone layers."""
    yield from view.demand(having(view, roles.__contains__))
    for name, place in view.extras.items():
        if place is not None and not place.stage and place.role in roles:
            yield view.unexpected(name)
