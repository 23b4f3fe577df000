"""What is lost, and what the target itself cannot tell: kept by name over tenures, until a person speaks."""

from sinkruntime.api import Answer, CommitRequest
from sinkruntime.coordinator.wishes import Wishes
from sinkruntime.protocol.events import RaiseToken
from sinkruntime.protocol.ledger import Ledger, PartState
from tests.protocol.build import part_of
from tests.unit.coordinator.world import Target, World, play, settled

LOST = (PartState.HELD, "CommittableLost")
DOUBTED = (PartState.IN_DOUBT, "InDoubt")


class Gone(Target):
    """Neither staged nor visible: a first commit tells a loss, a probe after that or after a crash cannot."""

    def _answer(self, operation: str, sink: str, request: CommitRequest, said: Answer | None) -> None:
        if operation == "commit":
            request.reply(Answer.REFUSED, "CommittableLost", "file x is gone")
        else:
            request.reply(Answer.UNKNOWN, "InDoubt", "file x is gone, or was taken away")


def state(ledger: Ledger) -> tuple[PartState, str]:
    part = part_of(ledger, 1, "a")
    return part.state, part.reason


async def lose(world: World) -> None:
    await world.begin()
    async with world.working():
        await world.decide(1)
        await world.until(lambda ledger: state(ledger) == LOST)


def test_a_loss_stays_a_loss_when_a_new_tenure_tries_it_again() -> None:
    async def scene(world: World) -> None:
        await lose(world)
        async with world.working(Wishes(retry_held=True)):
            await world.until(lambda ledger: world.target.count("probe") > 0 and state(ledger) == LOST)

    assert play(scene, target=Gone()).target.count("probe") > 0


def test_a_loss_that_a_person_accepts_in_a_new_tenure_is_given_up() -> None:
    async def scene(world: World) -> None:
        await lose(world)
        async with world.working(Wishes(1, frozenset({"CommittableLost"}), retry_held=True)):
            assert (await world.until(settled)).sinks["a"].committed == 0

    assert play(scene, target=Gone()).target.visible == set()


def test_what_a_probe_cannot_tell_is_in_doubt_by_name_until_a_person_takes_it_as_landed() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        await world.decide(1)  # and its coordinator dies
        async with world.working():
            await world.until(lambda ledger: state(ledger) == DOUBTED)
        async with world.working(Wishes(1, frozenset({"InDoubt"}))):
            assert (await world.until(settled)).sinks["a"].committed == 1

    assert play(scene, target=Gone()).target.count("commit") == 0


def test_a_new_tenure_forgets_what_an_earlier_one_was_told_of_a_doubt() -> None:
    async def scene(world: World) -> None:
        await world.begin()
        await world.decide(1)
        async with world.working():
            await world.until(lambda ledger: state(ledger) == DOUBTED)
        raised = await world.happen(lambda ledger: RaiseToken(2, "next") if ledger.token == 1 else None)
        assert state(raised) == (PartState.IN_DOUBT, "")

    play(scene, target=Gone())
