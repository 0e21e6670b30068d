"""Trainings go on while the database or the broker is away, and nothing is missing afterwards."""

from __future__ import annotations

import json
import os
import secrets
import signal
from pathlib import Path

import pytest
import redis
import sqlalchemy as sa
from cut_line import CutLine
from service_runs import LEASE_S, Service
from support import Running, started, until

from drumline.database import now_ms
from drumline.events import read_events
from drumline.jobs import wakeups
from drumline.jobs.leases import Leases
from drumline.jobs.reports import Reports
from drumline.jobs.states import State
from service_databases import redis_database

REDIS = redis_database(6)


def through(line: CutLine, url: str) -> str:
    """The same database at the end of the line."""
    parsed = sa.make_url(url).set(host="127.0.0.1", port=line.port)
    return parsed.render_as_string(hide_password=False)


def test_a_training_that_ends_while_the_database_is_away_has_succeeded_when_it_is_back(
    postgresql_url: str, tmp_path: Path, activations: Path
) -> None:
    service = Service(postgresql_url, tmp_path, activations)
    server = sa.make_url(postgresql_url)
    with CutLine(str(server.host), server.port or 5432) as line:
        url = through(line, postgresql_url)
        training_id = service.queue()
        quick = {"DRUMLINE_DATABASE_URL": url, "DRUMLINE_QUICK_STEPS": "200"}
        with service.quick_agent(**quick) as agent:
            under_way = service.wait_for_step(training_id, 5, agent)
            line.cut()
            assert under_way.run_dir is not None
            log = Path(under_way.run_dir) / "events.jsonl"
            until("its end", lambda: [e for e in read_events(log) if e["kind"] == "run_ended"])
            lease = service.attempt(training_id).lease_until_ms
            until("a lease that has run out", lambda: now_ms() > lease + 1000 * LEASE_S)
            assert service.training(training_id).state is State.RUNNING, "nobody knows yet"
            line.mend()
            ended = service.wait_for(training_id, State.SUCCEEDED, State.FAILED, agent=agent)
            until("the end of its processes", lambda: not service.processes(training_id))
    assert ended.state is State.SUCCEEDED, ended.verdict
    assert [a.exit_cause for a in service.trainings.attempts(training_id)] == ["done"]
    losses = {e["step"]: e["loss"] for e in read_events(log) if e["kind"] == "step"}
    points = Reports(service.database).metrics(training_id, ["loss"], points=10_000)["loss"]
    assert {point.step: point.mean for point in points} == pytest.approx(losses)
    assert Leases(service.database).held() == {}
    service.clear()


def test_killed_connections_in_the_middle_of_transactions_lose_and_double_nothing(
    postgresql_url: str, tmp_path: Path, activations: Path
) -> None:
    """All backends of the database are ended again and again while trainings are claimed, run and
    end.
    """
    service = Service(postgresql_url, tmp_path, activations)
    kill = sa.text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
        "WHERE datname = current_database() AND pid != pg_backend_pid()"
    )
    ids = [service.queue(gpus=2) for _ in range(6)]
    own = sa.create_engine(postgresql_url)
    with service.quick_agent() as agent, own.connect() as connection:

        def all_ended() -> bool:
            connection.execute(kill)
            connection.rollback()
            query = sa.text("SELECT count(*) FROM trainings WHERE ended_ms IS NULL")
            count = connection.execute(query).scalar_one()
            connection.rollback()
            return bool(count == 0)

        until("all trainings to end", all_ended, alive=agent.assert_running)
        until("the end of their processes", lambda: not any(map(service.processes, ids)))
    own.dispose()
    for training_id in ids:
        training = service.training(training_id)
        assert training.state is State.SUCCEEDED, training.verdict
        causes = [a.exit_cause for a in service.trainings.attempts(training_id)]
        assert causes.count("done") == 1
        assert (training.step, training.steps) == (60, 60)
    assert Leases(service.database).held() == {}
    service.clear()


def test_redis_may_be_away_at_the_start_go_and_come_back(
    sqlite_url: str, tmp_path: Path, activations: Path
) -> None:
    service = Service(sqlite_url, tmp_path, activations)
    server = sa.make_url(REDIS)
    with CutLine(str(server.host), server.port or 6379) as line:
        line.cut()
        broker = f"redis://127.0.0.1:{line.port}/{server.database}"
        with service.quick_agent(DRUMLINE_BROKER_URL=broker) as agent:
            first = service.queue()
            service.wait_for(first, State.SUCCEEDED, agent=agent)
            line.mend()
            second = service.queue()
            service.wait_for(second, State.RUNNING, State.SUCCEEDED, agent=agent)
            line.cut()
            service.wait_for(second, State.SUCCEEDED, agent=agent)
    service.clear()


LISTENS = """
import json, sys, threading, time
from drumline.jobs import wakeups
url, host = sys.argv[1:]
app = wakeups.make_app(url, host)
told = lambda name: lambda: print(json.dumps(name), flush=True)
tasks = {name: told(name) for name in (wakeups.WAKE, wakeups.SWEEP, wakeups.ROLL_UP)}
wakeups.Worker(app, tasks, {wakeups.SWEEP: 0.2}).start()
print(json.dumps("ready"), flush=True)
threading.Event().wait()
"""


def test_a_wake_up_through_redis_reaches_every_host_again_after_an_outage(tmp_path: Path) -> None:
    server = sa.make_url(REDIS)
    hosts = [f"host-{secrets.token_hex(4)}" for _ in range(2)]
    with CutLine(str(server.host), server.port or 6379) as line:
        url = f"redis://127.0.0.1:{line.port}/{server.database}"
        sender = wakeups.Sender(wakeups.make_app(url, "sender"))
        runs = [started(["-c", LISTENS, url, host], tmp_path / host) for host in hosts]
        with runs[0] as one, runs[1] as two:

            def all_woken(times: int) -> bool:
                sender.wake()
                return all(_told(host).count(wakeups.WAKE) >= times for host in (one, two))

            until("a wake-up everywhere", lambda: all_woken(1))
            until("sweeps everywhere", lambda: all(wakeups.SWEEP in _told(h) for h in (one, two)))
            line.cut()
            sender.wake()  # does not wait, does not raise
            before = [_told(host).count(wakeups.WAKE) for host in (one, two)]
            line.mend()
            until("a wake-up after the outage", lambda: all_woken(max(before) + 1))
        sender.stop()
    client = redis.Redis.from_url(REDIS)
    left = [key.decode() for key in client.scan_iter(match="drumline:*")]
    assert not [key for key in left if key.endswith(tuple(hosts))], "nothing piles up"
    for key in left:
        client.delete(key)


def _told(running: Running) -> list[str]:
    return [json.loads(line) for line in running.printed().splitlines()]


def test_a_supervisor_whose_lease_was_taken_over_ends_its_processes_and_changes_nothing(
    sqlite_url: str, tmp_path: Path, activations: Path
) -> None:
    service = Service(sqlite_url, tmp_path, activations)
    training_id = service.queue(max_attempts=1)
    with service.quick_agent(DRUMLINE_QUICK_STEPS="100000") as agent:
        service.wait_for_step(training_id, 20, agent)
        agent.signal(signal.SIGKILL)
        agent.finish()
    attempt = service.attempt(training_id)
    os.kill(attempt.process_id or 0, signal.SIGSTOP)
    until_ms = service.attempt(training_id).lease_until_ms
    until("a lease that has run out", lambda: now_ms() > until_ms)
    leases = Leases(service.database)
    assert [one.id for one in leases.expired(attempt.host_id)] == [attempt.id]
    os.kill(attempt.process_id or 0, signal.SIGCONT)
    until("the end of its processes", lambda: not service.processes(training_id))
    assert service.training(training_id).state is State.RUNNING, "that is for the agent to say"
    assert leases.reclaim(attempt.id) is State.FAILED
    assert leases.held() == {}
    service.clear()
