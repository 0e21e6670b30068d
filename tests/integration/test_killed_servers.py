"""The database's server or the broker is killed with signal 9 while trainings are claimed, run and
end: no device is leased twice, no training is lost or finished twice.
"""

from __future__ import annotations

from pathlib import Path

import sqlalchemy as sa
from own_servers import Postgresql, Redis, running
from service_runs import Service
from support import until

from drumline.database import open_database
from drumline.database.migrate import upgrade
from drumline.jobs.leases import Leases
from drumline.jobs.states import ACTIVE, State

KILLS = 3


def assert_each_succeeded_once(service: Service, ids: list[str]) -> None:
    for training_id in ids:
        training = service.training(training_id)
        assert training.state is State.SUCCEEDED, training.verdict
        causes = [a.exit_cause for a in service.trainings.attempts(training_id)]
        assert causes.count("done") == 1
        assert (training.step, training.steps) == (60, 60)
    assert Leases(service.database).held() == {}


def test_a_database_killed_in_the_middle_of_transactions_loses_and_doubles_nothing(
    tmp_path: Path, activations: Path
) -> None:
    with running(Postgresql) as server:
        database = open_database(server.url)
        upgrade(database)
        database.close()
        service = Service(server.url, tmp_path, activations)
        ids = [service.queue(gpus=2) for _ in range(6)]
        left = iter(range(KILLS))
        uncommitted = sa.text("UPDATE trainings SET verdict = 'not committed' WHERE id = :id")
        with service.quick_agent() as agent:

            def all_ended() -> bool:
                states = [service.training(training_id).state for training_id in ids]
                active = [one for one, state in zip(ids, states, strict=True) if state in ACTIVE]
                if active and next(left, None) is not None:
                    engine = sa.create_engine(server.url)
                    with engine.connect() as connection:
                        connection.execute(uncommitted, {"id": active[-1]})
                        server.kill()
                        connection.invalidate()
                    engine.dispose()
                    server.start()
                assert State.FAILED not in states, [service.training(one).verdict for one in ids]
                return all(state is State.SUCCEEDED for state in states)

            until("all trainings to end", all_ended, alive=agent.assert_running)
            until("the end of their processes", lambda: not any(map(service.processes, ids)))
        assert next(left, None) is None, "the server was killed as often as it should be"
        assert_each_succeeded_once(service, ids)
        service.clear()


def test_a_broker_killed_while_trainings_run_loses_nothing(
    sqlite_url: str, tmp_path: Path, activations: Path
) -> None:
    service = Service(sqlite_url, tmp_path, activations)
    with running(Redis) as broker, service.quick_agent(DRUMLINE_BROKER_URL=broker.url) as agent:
        ids = [service.queue(gpus=2) for _ in range(4)]
        service.wait_for_step(ids[0], 5, agent)
        broker.kill()
        service.wait_for(ids[0], State.SUCCEEDED, agent=agent)
        broker.start()
        for training_id in ids:
            service.wait_for(training_id, State.SUCCEEDED, agent=agent)
        until("the end of their processes", lambda: not any(map(service.processes, ids)))
        assert_each_succeeded_once(service, ids)
    service.clear()
