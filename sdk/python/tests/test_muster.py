"""The `muster` package against a real server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import muster

# Tests are sentences; pytest wants them to begin with `test_`.


@pytest.fixture(scope="module")
def box(place: Path) -> Iterator[muster.Job]:
    """Two tasks that only hold their place."""
    os.chdir(place / "home")
    job = muster.Client().run(["sleep", "infinity"], name="box", nodes=2, spec={"framework": "plain"})
    job.wait_until_running(timeout=60)
    yield job
    job.stop()
    job.wait(check=False, timeout=60)


def test_a_job_runs_and_its_output_is_there(client: muster.Client, work: Path) -> None:
    (work / "train.py").write_text("import os\nprint('rank', os.environ['RANK'], os.environ['RATE'])\n")
    job = client.run([sys.executable, "train.py"], nodes=2, env={"RATE": "0.1"})
    assert job.wait(timeout=60).state == "succeeded"
    assert job.exit_code == 0
    assert sorted(job.logs()) == ["rank 0 0.1", "rank 1 0.1"]
    assert [line.task for line in job.logs(task=1)] == [1]
    assert job.output(task=1) == "rank 1 0.1\n"
    assert "task0 | rank 0 0.1" in job.output()


def test_a_job_is_found_by_its_display_name(client: muster.Client) -> None:
    job = client.run("echo $MUSTER_JOB_NAME $MUSTER_JOB_DISPLAY_NAME", display_name="训练/任务 1")
    assert job.wait(timeout=60).state == "succeeded"
    assert (job.name, job.display_name) == ("echo", "训练/任务 1")
    assert client.job("训练/任务 1").id == job.id
    assert job.output() == "echo 训练/任务 1\n"
    assert client.run("true", name="学习").wait(timeout=60).display_name == "学习"
    with pytest.raises(muster.Error) as caught:
        client.run("true", display_name="a\u202eb")
    assert "display_name" in str(caught.value)


def test_logs_can_be_followed_while_it_runs(client: muster.Client, work: Path) -> None:
    job = client.run("for i in 1 2 3; do echo line $i; done; printf 'no end'; echo oops >&2")
    lines = list(job.logs(follow=True))
    assert [line for line in lines if line.stream == "stdout"] == ["line 1", "line 2", "line 3", "no end"]
    assert [line for line in lines if line.stream == "stderr"] == ["oops"]


def test_a_job_that_fails_is_an_exception_with_its_reason(client: muster.Client, work: Path) -> None:
    job = client.run("echo broken; exit 7")
    with pytest.raises(muster.JobFailed, match="exited with code 7") as caught:
        job.wait(timeout=60)
    assert caught.value.code == "exit_code"
    assert caught.value.job.exit_code == 7
    assert job.why()["code"] == "exit_code"
    assert job.wait(check=False).state == "failed"


def test_waiting_has_a_limit_and_the_job_goes_on(client: muster.Client, work: Path) -> None:
    job = client.run("sleep 600")
    began = time.monotonic()
    with pytest.raises(muster.Timeout):
        job.wait(timeout=0.5)
    assert time.monotonic() - began < 10
    assert not job.is_over
    job.stop()
    assert job.wait(check=False, timeout=60).state == "stopped"


def test_a_wrong_spec_says_every_field_with_code_and_hint(client: muster.Client, work: Path) -> None:
    with pytest.raises(muster.Error) as caught:
        client.run("true", nodes=0, spec={"comand": "x"})
    assert caught.value.code == "invalid_fields"
    assert "nodes" in str(caught.value)
    assert "did you mean `command`" in str(caught.value)
    with pytest.raises(muster.NotFound) as missing:
        client.job("no-such-job")
    assert missing.value.code == "job_not_found"
    assert missing.value.status == 404


def test_commands_in_a_task_have_both_outputs_and_a_status(box: muster.Job) -> None:
    done = box.exec("echo out $RANK; echo err >&2; exit 3", task=1, check=False)
    assert (done.exit_code, done.stdout, done.stderr) == (3, "out 1\n", "err\n")
    with pytest.raises(muster.CommandFailed) as caught:
        box.exec("exit 3")
    assert caught.value.exit_status == 3
    assert box.exec(["cat"], stdin="through").stdout == "through"


def test_files_go_both_ways(box: muster.Job, work: Path) -> None:
    (work / "data").mkdir()
    (work / "data/a.txt").write_text("a")
    (work / "odd:name").write_text("odd")
    box.upload("data", "odd:name", to="")
    assert box.exec("cat data/a.txt odd:name", task=1).stdout == "aodd"
    box.download("data", to="back", task=1)
    assert (work / "back/a.txt").read_text() == "a"
    assert any(entry["path"].startswith("data") for entry in box.files(task=1))
    with pytest.raises(muster.Error, match="missing"):
        box.upload("missing")


def test_sessions_keep_their_state_and_say_how_commands_ended(box: muster.Job) -> None:
    shell = box.session("steps")
    shell.run("mkdir -p deep && cd deep && export SEED=5")
    assert shell.run("echo $(basename $PWD) $SEED").output == "deep 5\n"
    with pytest.raises(muster.CommandFailed) as caught:
        shell.run("echo why; false")
    assert "why" in caught.value.output
    seen: list[str] = []
    shell.run("echo one; sleep 0.2; echo two", on_output=seen.append)
    assert "".join(seen) == "one\ntwo\n"
    slow = shell.start("sleep 600")
    with pytest.raises(muster.Timeout):
        slow.wait(timeout=0.3)
    shell.signal()
    assert slow.wait(check=False, timeout=30).exit_status == 130


def test_what_is_followed_has_a_limit_too(box: muster.Job) -> None:
    shell = box.session("silent")
    seen: list[str] = []
    with pytest.raises(muster.Timeout):
        shell.run("echo begun; sleep 600", on_output=seen.append, timeout=0.5)
    assert "".join(seen) == "begun\n"
    shell.close()


def test_machines_are_held_parked_and_renamed(client: muster.Client, work: Path) -> None:
    machine = client.machine("held", labels={"team": "vision"})
    assert machine.exec("echo $MUSTER_JOB_NAME").stdout == "held\n"
    assert [job.id for job in client.jobs(kind="machine", label="team=vision")] == [machine.id]
    machine.suspend()
    machine._wait_for(frozenset({"suspended"}), 60)
    machine.rename("kept")
    machine.resume()
    assert machine.wait_until_running(timeout=60).name == "kept"
    machine.stop()
    machine.wait(check=False, timeout=60)


def test_a_shell_that_ends_is_an_error_and_not_a_hang(box: muster.Job) -> None:
    shell = box.session("ends")
    with pytest.raises(muster.CommandLost, match="status 4"):
        shell.run("exit 4", timeout=30)
    with pytest.raises(muster.SessionOver):
        shell.run("true")
    assert box.session("ends", fresh=True).run("echo new").output == "new\n"


def test_reprs_are_for_people(client: muster.Client, box: muster.Job) -> None:
    assert repr(box).startswith(f"Job({box.id}, 'box', 2 tasks, running")
    assert "<table>" in box._repr_html_()
    assert "box" in repr(client.jobs(name="box"))
    assert "<td" in client.jobs(name="box")._repr_html_()
    assert repr(client.jobs(name="nothing-of-this-name")) == "no jobs"
    assert repr(box.tasks[1]) == f"Task({box.id}/1, running on node_local)"


def test_the_private_server_is_started_when_it_is_needed(client: muster.Client, binary: Path, work: Path) -> None:
    job = client.run("sleep 600")
    subprocess.run([binary, "server", "stop"], check=True, capture_output=True)
    assert job.state in ("queued", "starting", "running"), "the next request finds a new server"
    job.stop()
    job.wait(check=False, timeout=60)


def test_a_server_that_is_killed_under_a_wait_is_waited_for(client: muster.Client, work: Path) -> None:
    job = client.run("sleep 1; echo survived")
    os.kill(client.server()["pid"], signal.SIGKILL)
    assert job.wait(timeout=60).state == "succeeded"
    assert list(job.logs(follow=True)) == ["survived"]


def test_nobody_there_is_said_with_the_address(work: Path) -> None:
    with pytest.raises(muster.Error, match="not the address"):
        muster.Client("node1:80")


LOOP = """
import sys
sys.path[:0] = {path!r}
import muster
muster.should_stop()
print("ready", flush=True)
while not muster.should_stop():
    pass
print("saved", flush=True)
"""


def test_a_loop_learns_that_it_should_stop(client: muster.Client, work: Path) -> None:
    (work / "loop.py").write_text(LOOP.format(path=[path for path in sys.path if path]))
    job = client.run([sys.executable, "loop.py"])
    lines = job.logs(follow=True)
    assert next(lines) == "ready"
    job.stop()
    assert list(lines) == ["saved"]
    assert job.wait(check=False, timeout=60).state == "stopped"


NOTICED = """
import signal, sys
sys.path[:0] = {path!r}
import muster
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
assert muster.stop_notice() is None and not muster.should_stop()
print("ready", flush=True)
while not muster.should_stop():
    pass
notice = muster.stop_notice()
print(notice.reason, (notice.kill_at - notice.at).total_seconds(), flush=True)
muster.saved()
"""


def test_a_loop_learns_why_and_says_that_it_saved(client: muster.Client, work: Path) -> None:
    (work / "noticed.py").write_text(NOTICED.format(path=[path for path in sys.path if path]))
    job = client.run([sys.executable, "noticed.py"], grace=50, spec={"stop_signal": "USR1"})
    lines = job.logs(follow=True)
    assert next(lines) == "ready"
    job.stop()
    assert list(lines) == ["stopped_by_user 50.0"]
    task = job.wait(check=False, timeout=60).tasks[0]
    assert task.notice is not None and task.saved_at is not None
    assert (task.notice["reason"], task.notice["killed"]) == ("stopped_by_user", False)
    assert task.saved_at >= task.notice["at"]


def test_should_stop_says_where_it_belongs() -> None:
    caught: list[BaseException] = []

    def elsewhere() -> None:
        try:
            muster.should_stop()
        except muster.Error as error:
            caught.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert "main thread" in str(caught[0])


def test_a_data_directory_that_every_account_may_write_to_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    home.chmod(0o777)
    with pytest.raises(muster.Error, match="every account") as refused:
        muster.Client(home=str(home))
    assert refused.value.code == "home_unusable"
