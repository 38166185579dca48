"""The `ncluster` and `fastgpu` packages against a real server, on machines of this one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import muster
from muster._fastgpu import shell
from muster._fastgpu.fanout import FailedAssertions, Failures
from muster._fastgpu.settings import SETTINGS

os.environ.setdefault("NCLUSTER_DISABLE_PDB_HANDLER", "1")
import fastgpu
import ncluster

SCRIPTS = Path(__file__).parent / "scripts"
HERE = os.pathsep.join(str(path) for path in (Path(__file__).parents[1] / "src", *sys.path))


def name_of(kind: str) -> str:
    return f"{kind}-{uuid.uuid4().hex[:6]}"


@pytest.fixture(scope="module")
def pair(place: Path) -> Iterator[Any]:
    """Two machines."""
    SETTINGS._client = None
    name = name_of("pair")
    job = ncluster.make_job(name=name, run_name=name, num_tasks=2, instance_type="ecs.gn6v-c10g1.20xlarge")
    yield job
    job.kill()


@pytest.fixture
def job(pair: Any, work: Path) -> Iterator[Any]:
    """The same, with shells as they are at the beginning."""
    again = ncluster.make_job(name=pair.name, run_name=pair.run_name, num_tasks=2)
    assert all(task.instance_reuse for task in again.tasks)
    yield again
    for task in again.tasks:
        task._tidy()


def test_commands_behave_as_in_one_shell(job: Any) -> None:
    job.run("mkdir -p deep")
    job.run("cd deep")
    job.run("export SEED=7; greet() { echo hello $1; }")
    assert job.tasks[0].run("greet $(basename $PWD) && echo $SEED", return_output=True) == "hello deep\n7\n"
    assert job.tasks[1].run("basename $PWD", return_output=True) == "deep\n"
    assert job.run("echo $SEED", return_output=True) == ["7\n", "7\n"]


def test_names_addresses_and_attributes_are_what_scripts_read(job: Any) -> None:
    first, second = job.tasks
    assert [task.name for task in job.tasks] == [f"task0.{job.name}", f"task1.{job.name}"]
    assert first.ip and first.ip != second.ip
    assert first.instance.instance_name() == first.name
    assert first.instance.instance_id() == "node_local"
    assert first.num_gpus == 8, "of the table of instance types"
    assert first.tmux_session == first.name.replace(".", "=")
    assert first.homedir == first.run("pwd", return_output=True).strip()
    assert first.remote_scratch.startswith(f"/tmp/ncluster/{first.name}-")
    assert Path(first.local_scratch).is_dir()
    assert first.job is job
    assert job.kwargs["num_tasks"] == 2


def test_statuses_outputs_and_return_values(job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    task = job.tasks[0]
    assert task.run("# nothing but a comment") == ""
    assert task.run("true") is None
    assert task.run("true", non_blocking=True) == "nonblocking"
    with pytest.raises(RuntimeError, match=r"Command echo oops; false returned status 1"):
        task.run("echo oops; false")
    shown = capsys.readouterr().out
    assert "*" * 80 in shown and "oops" in shown and f" {task.name}: tmux> echo oops; false" in shown
    assert task.last_status == 1
    task.run("sh -c 'exit 9'", ignore_errors=True)
    assert task.last_status == 9
    assert task.run(["echo one", "echo two  # with a comment\n"], return_output=True) == "one\ntwo\n"
    with pytest.raises(RuntimeError):
        task.run(["false", "echo never"])
    task.run("export SECRET=abcdefghijklmnopqrstuvwxyz", sanitized=True)
    assert "wxyz" not in capsys.readouterr().out
    for wrong in ("sleep 1 & sleep 2", "sleep 1 &"):
        with pytest.raises(AssertionError, match="non_blocking"):
            task.run(wrong)
    task.run("echo kept")
    assert task.output == "kept\n"
    assert task.run(f"cat {task._out_fn}", return_output=True) == "kept\n"


def test_commands_queue_behind_one_another_and_are_joined(job: Any) -> None:
    task = job.tasks[0]
    task.run("sleep 0.3; echo first > order", non_blocking=True)
    task.run("echo second >> order", non_blocking=True)
    assert task.join() == 0
    assert task.read("order") == "first\nsecond\n"
    task.run("false", non_blocking=True)
    with pytest.raises(RuntimeError, match="returned status 1"):
        task.join()
    assert task.join(ignore_errors=True) == 1


def test_output_can_be_seen_as_it_comes(job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    job.tasks[0].run("echo live", show_realtime=True)
    job.tasks[0].run("echo stream", stream_output=True)
    shown = capsys.readouterr().out
    assert "\nlive\n" in shown and "\nstream\n" in shown


def test_the_newer_generation_returns_what_a_command_wrote(job: Any) -> None:
    newer = fastgpu.make_job(name=job.name, num_tasks=2)
    task = newer.tasks[0]
    assert task.run("echo out") == "out\n"
    assert task.run("echo quiet", return_output=False) is None
    assert task.run("true", non_blocking=True) == "nonblocking"
    assert task.run("echo shown", show_realtime=True) == "shown\n"
    assert newer.run("echo both") is None
    assert newer.run("echo both", return_output=True) == ["both\n", "both\n"]
    older = ncluster.make_job(name=job.name, num_tasks=2)
    assert older.tasks[0].run("echo out") is None


def test_a_command_that_takes_long_is_told_every_minute_with_its_question(
    job: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shell, "REMINDER_SECONDS", 0.3)
    task = job.tasks[0]
    asks = "printf 'reading lists\\nDo you want to continue? [Y/n] '"
    task.run(f"{asks}; until [ -e answered ]; do sleep 0.05; done", non_blocking=True)
    threading.Timer(1.5, lambda: task._look("touch answered")).start()
    task.join()
    said = [line for line in capsys.readouterr().out.splitlines() if "still waiting for " in line]
    assert len(said) >= 2, said
    assert f" {task.name}: still waiting for printf" in said[-1]
    assert said[-1].endswith(" s); it shows: Do you want to continue? [Y/n]")
    monkeypatch.setattr(shell, "REMINDER_SECONDS", 60)
    with pytest.raises(muster.Timeout, match=r"not over after 0\.5 s"):
        task.run("sleep 3", max_wait_sec=0.5)
    task.run("true")
    assert "still waiting" not in capsys.readouterr().out


def test_outputs_come_apart(job: Any) -> None:
    task = job.tasks[0]
    assert task.run_with_output("echo out; echo err >&2") == ("out\n", "err\n")
    with pytest.raises(RuntimeError, match="status 3"):
        task.run_with_output("sh -c 'exit 3'")
    assert task.run_with_output("echo x; sh -c 'exit 3'", ignore_errors=True) == ("x\n", "")
    assert task._run_raw("echo raw; echo e >&2") == ("raw\n", "e\n")
    with pytest.raises(AssertionError):
        task._run_raw("exit 3")


def test_every_failure_of_a_fan_out_is_told(job: Any) -> None:
    with pytest.raises(Failures) as caught:
        job.run("sh -c 'exit 5'")
    assert [task.name for task, _ in caught.value.failures] == [task.name for task in job.tasks]
    assert str(caught.value).count("returned status 5") == 2
    with pytest.raises(FailedAssertions):
        job.upload("no-such-file")
    # One alone is what it is.
    job.tasks[0].run("cd deep 2>/dev/null || mkdir deep; true")
    with pytest.raises(RuntimeError, match=r"^Command .* returned status"):
        job.run('[ "$(hostname)" ] && [ "$MUSTER_RANK" = 0 ]')


def test_a_shell_that_ends_is_an_error_at_once(job: Any) -> None:
    with pytest.raises(RuntimeError, match="lost"):
        job.tasks[0].run("exit 3")
    with pytest.raises(RuntimeError, match="over"):
        job.tasks[0].run("true")
    job.tasks[1].run("true")


def test_windows_have_shells_of_their_own(job: Any) -> None:
    task = job.tasks[0]
    task.run("export WHERE=first")
    task.switch_window(2)
    assert task.tmux_available_window_ids == [0, 1, 2]
    assert task.run("echo ${WHERE-nowhere}", return_output=True) == "nowhere\n"
    task.switch_window(0)
    assert task.run("echo $WHERE", return_output=True) == "first\n"


def test_variables_of_the_launcher_are_passed_on(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN_OF_MINE", "it's $PATH")
    job.propagate_env(["TOKEN_OF_MINE", "NOT_SET_ANYWHERE"])
    assert job.tasks[1].run('echo "$TOKEN_OF_MINE"', return_output=True) == "it's $PATH\n"


def test_files_go_to_the_home_and_back(job: Any, work: Path) -> None:
    (work / "code").mkdir()
    (work / "code/a.py").write_text("1")
    (work / "script.sh").write_text("#!/bin/sh\necho runs\n")
    (work / "script.sh").chmod(0o755)
    job.run("cd /")
    job.upload("code")
    job.upload("script.sh")
    task = job.tasks[1]
    assert task.exists("code/a.py") and task.isdir("code") and not task.isdir("script.sh")
    assert task.run(f"{task.homedir}/script.sh", return_output=True) == "runs\n"
    (work / "code/b.py").write_text("2")
    (work / "code/a.py").write_text("changed")
    job.upload("code")
    assert (task.read("code/a.py"), task.read("code/b.py")) == ("changed", "2")
    assert not task.exists("code/code")
    task.upload("code", "other")
    task.upload("code", "other")
    assert task.exists("other/b.py") and not task.exists("other/code")
    task.upload("script.sh", "other")
    assert task.exists("other/script.sh"), "a file onto a directory goes inside"
    task.upload("*.sh", "other/")
    with pytest.raises(AssertionError, match="does not exist"):
        task.upload("script.sh", "missing/script.sh")
    job.write("note", "first")
    (work / "note").write_text("second")
    task.upload("note", dont_overwrite=True)
    assert task.read("note") == "first"
    task.download("code/b.py")
    assert (work / "b.py").read_text() == "2"
    task.download("other", "fetched")
    assert (work / "fetched/a.py").read_text() == "changed"
    job.download("note", "all")
    assert (work / "all" / task.name / "note").read_text() == "first"


def test_the_current_directory_is_copied_into_the_home(job: Any, work: Path) -> None:
    (work / "deep").mkdir()
    (work / "deep/data").write_text("data")
    (work / ".hidden").write_text("hidden")
    (work / "-main.py").write_text("main")
    job.run("cd /")
    job.upload(".")
    task = job.tasks[1]
    assert (task.read("deep/data"), task.read(".hidden"), task.read("./-main.py")) == ("data", "hidden", "main")
    assert not task.exists(work.name)
    (work / "deep/data").write_text("changed")
    job.rsync(".")
    assert task.read("deep/data") == "changed"
    assert not task.exists(work.name)
    job.upload("./", "elsewhere")
    assert task.read("elsewhere/deep/data") == "changed"


def test_rsync_leaves_caches_out(job: Any, work: Path) -> None:
    (work / "tree/__pycache__").mkdir(parents=True)
    (work / "tree/__pycache__/x.pyc").write_text("x")
    (work / "tree/main.py").write_text("x")
    job.rsync("tree")
    assert job.exists("tree/main.py")
    assert not job.tasks[0].exists("tree/__pycache__")


def test_files_can_be_waited_for_and_followed(job: Any, capsys: pytest.CaptureFixture[str]) -> None:
    task = job.tasks[0]
    began = time.monotonic()
    assert not task.wait_for_file("never", max_wait_sec=0.2)
    assert time.monotonic() - began < 5
    threading.Timer(0.2, lambda: task._look("echo line > appears")).start()
    assert task.wait_for_file("appears", max_wait_sec=30)
    tail = task.tail_file("appears", "log> ")
    deadline = time.monotonic() + 20
    seen = ""
    while "log> line\n" not in seen and time.monotonic() < deadline:
        seen += capsys.readouterr().out
        time.sleep(0.02)
    tail.close()
    assert "log> line\n" in seen


def test_the_run_directory_is_made_once_and_never_taken_twice(job: Any, place: Path) -> None:
    SETTINGS.logdirs.clear()
    base = place / "data/ncluster/runs" / job.run_name
    first = job.logdir
    assert first == job.logdir == job.tasks[1].logdir
    assert Path(first).is_dir()
    assert first == str(base) or Path(first).name.startswith(f"{base.name}.")
    SETTINGS.logdirs.clear()
    again = ncluster.make_job(name=job.name, run_name=job.run_name, num_tasks=2)
    suffix = 1 if first == str(base) else int(first[-2:]) + 1
    assert again.logdir == f"{base}.{suffix:02}"
    assert ncluster.make_job(name=job.name, num_tasks=2).logdir == "/tmp"


def test_a_name_that_is_another_group_is_refused(job: Any) -> None:
    with pytest.raises(AssertionError, match=r"instance_type.*another name"):
        ncluster.make_job(name=job.name, num_tasks=2, instance_type="ecs.gn7.large")
    with pytest.raises(AssertionError, match="image_name"):
        ncluster.make_job(name=job.name, num_tasks=2, image_name="aiacc.vhd")
    with pytest.raises(AssertionError, match="only 2 exist"):
        ncluster.make_job(name=job.name, num_tasks=3)
    assert len(ncluster.make_job(name=job.name, num_tasks=1).tasks) == 1
    for wrong in ("Upper", "x" * 128):
        with pytest.raises(AssertionError, match="run name"):
            ncluster.make_job(name="x", run_name=wrong)
    with pytest.raises(AssertionError, match="skip_setup"):
        ncluster.make_job(name=name_of("none"), skip_setup=True)
    with pytest.raises(AssertionError, match="num_tasks"):
        ncluster.make_job(name="x", num_tasks=0)


def test_stop_waits_for_what_is_queued_and_start_finds_the_files(
    place: Path, work: Path, capsys: pytest.CaptureFixture[str], client: muster.Client
) -> None:
    name = name_of("life")
    job = fastgpu.make_job(name=name, run_name="", install_script="echo installed >> installs")
    job.tasks[0].run("sleep 0.5; echo trained > result", non_blocking=True)
    job.stop()
    assert "waiting for 1 command before it stops: sleep 0.5" in capsys.readouterr().out
    assert client.job(name).state == "suspended"
    again = fastgpu.make_job(name=name, install_script="echo installed >> installs")
    assert "is stopped: starting it" in capsys.readouterr().out
    assert again.tasks[0].read("result") == "trained\n"
    assert again.tasks[0].read("installs") == "installed\n", "once for each machine"
    again.tasks[0].run("sleep 600", non_blocking=True)
    began = time.monotonic()
    again.kill()
    assert time.monotonic() - began < 20, "kill does not wait"
    again.kill()


def test_one_machine_of_a_group_is_stopped_started_and_killed_alone(
    place: Path, work: Path, capsys: pytest.CaptureFixture[str], client: muster.Client
) -> None:
    name = name_of("one")
    job = ncluster.make_job(name=name, num_tasks=2)
    job.run("cd /tmp; export A=set")
    first, second = job.tasks
    second.write("kept", "kept")
    second.run("sleep 0.3", non_blocking=True)
    second.stop()
    said = capsys.readouterr().out
    assert "waiting for 1 command before it stops: sleep 0.3" in said
    assert f"task1.{name} is stopped; `ecluster start task1.{name}` starts it" in said
    assert first.run("echo $PWD $A", return_output=True) == "/tmp set\n", "the other goes on"
    assert client.job(name).state == "running"
    second.start()
    assert second.read("kept") == "kept"
    assert second.run("echo $A", return_output=True) == "\n", "its shell is a new one"
    job.tasks[0].stop()
    again = ncluster.make_job(name=name, num_tasks=2)
    assert f"task0.{name} is stopped: starting it" in capsys.readouterr().out
    again.run("true")
    again.tasks[0].stop()
    again.stop()
    assert client.job(name).state == "suspended"
    again = ncluster.make_job(name=name, num_tasks=2)
    again.tasks[1].kill()
    again.tasks[1].kill()
    assert client.job(name).state == "running"
    with pytest.raises(AssertionError, match=rf"task1\.{name} was killed"):
        ncluster.make_job(name=name, num_tasks=2)
    again.tasks[0].kill()
    assert client.job(name).state == "stopped"


def test_a_machine_alone_reaches_itself_by_ssh(place: Path, work: Path) -> None:
    job = ncluster.make_job(name=name_of("alone"))
    task = job.tasks[0]
    assert task.run(f"ssh {task.ip} 'echo rank $MUSTER_RANK'", return_output=True) == "rank 0\n"
    job.kill()


def test_a_run_is_done_on_all_of_its_jobs(place: Path, work: Path, client: muster.Client) -> None:
    name = name_of("run")
    run = ncluster.make_run(name)
    worker, server = run.make_job("worker", num_tasks=2), run.make_job("ps")
    (work / "code.py").write_text("code")
    run.upload("code.py")
    run.run("cp code.py copied.py")
    assert worker.read("copied.py") == ["code", "code"] and server.read("copied.py") == ["code"]
    assert run.run_with_output("echo out") == [[("out\n", "")] * 2, [("out\n", "")]]
    with pytest.raises(Failures):
        run.run("sh -c 'exit 5'")
    run.stop()
    assert [client.job(job._remote.id).state for job in run.jobs] == ["suspended", "suspended"]
    run.kill()
    assert [client.job(job._remote.id).state for job in run.jobs] == ["stopped", "stopped"]


def test_a_run_may_have_a_long_name(place: Path, work: Path) -> None:
    name = f"{name_of('fastgpu-aiacc-image-classification')}-1"
    job = ncluster.make_job(name=name, run_name=name)
    assert Path(job.logdir).name == name
    job.kill()


def test_single_machines_and_runs(place: Path, work: Path) -> None:
    run = ncluster.make_run("myrun")
    job = run.make_job("worker", num_tasks=1)
    assert job.tasks[0].name == "task0.worker.myrun"
    assert "/ncluster/runs/myrun" in run.logdir
    task = ncluster.make_task("task0.worker.myrun")
    assert task.run("echo same", return_output=True) == "same\n"
    task.run("sleep 0.1", non_blocking=True)
    ncluster.join([task])
    alone = ncluster.make_task(name_of("alone"))
    alone.run("true")
    alone.kill()
    task.kill()


def test_backends_and_regions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SETTINGS, "task_launched", False)
    monkeypatch.setattr(SETTINGS, "backend", "aliyun")
    monkeypatch.setenv("ALIYUN_DEFAULT_REGION", "cn-beijing")
    assert ncluster.get_region() == "cn-beijing"
    monkeypatch.delenv("ALIYUN_DEFAULT_REGION")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    assert fastgpu.get_region() == "us-east-1"
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("MUSTER_MACHINES", "ssh/gpu")
    assert (ncluster.get_region(), ncluster.get_zone()) == ("ssh/gpu", "ssh/gpu"), "as `ecluster ls` prints it"
    ncluster.set_backend("local")
    assert (fastgpu.get_region(), fastgpu.get_zone()) == ("local", "local")
    with pytest.raises(AssertionError, match="unknown backend"):
        ncluster.set_backend("mainframe")
    monkeypatch.setattr(SETTINGS, "task_launched", True)
    ncluster.set_backend("local")
    with pytest.raises(AssertionError, match="cannot change"):
        ncluster.set_backend("aliyun")
    ncluster.ncluster_globals.set_should_disable_nas(True)
    assert fastgpu.fastgpu_globals.should_disable_nas()
    ncluster.ncluster_globals.set_should_disable_nas(False)


def test_the_names_that_older_scripts_take_are_there(work: Path, monkeypatch: pytest.MonkeyPatch, place: Path) -> None:
    monkeypatch.setattr(SETTINGS, "task_launched", False)
    monkeypatch.setattr(SETTINGS, "backend", "local")
    for package in (ncluster, fastgpu):
        package.use_aliyun()
        assert package.get_backend() == "aliyun"
        assert callable(package.util.assert_script_in_current_directory)
    assert ncluster.aws_backend.GENERIC_SMALL_IMAGE.startswith("amzn2-ami")
    assert ncluster.aws_backend.INSTANCE_INFO["p3.16xlarge"]["gpus"] == 8
    assert ncluster.aws_backend.Task is ncluster.aws_util.Task is ncluster.Task
    for script, is_here in ((work / "train.py", True), (work / "deep/train.py", False)):
        monkeypatch.setattr(sys, "argv", [str(script)])
        if is_here:
            ncluster.util.assert_script_in_current_directory()
            continue
        with pytest.raises(AssertionError, match="change into the directory of"):
            ncluster.util.assert_script_in_current_directory()


def test_mpirun_is_put_together_as_the_demos_do(work: Path) -> None:
    prefix = fastgpu.get_mpi_prefix(16, 8, "10.0.0.1:8,10.0.0.2:8")
    assert prefix.startswith("mpirun --allow-run-as-root -np 16 --npernode 8 --host 10.0.0.1:8,10.0.0.2:8 ")
    assert prefix.endswith(" -x LD_LIBRARY_PATH ")
    file = ncluster.gen_command_file("echo it is $OMPI_COMM_WORLD_RANK")
    shown: dict[str, str] = {}
    for rank in ("0", "1"):
        variables = {**os.environ, "OMPI_COMM_WORLD_RANK": rank}
        done = subprocess.run(["bash", f"./{file}"], capture_output=True, text=True, env=variables, check=True)
        shown[rank] = done.stdout
    assert (file, shown) == ("command.sh", {"0": "it is 0\n", "1": ""})


def test_importing_says_the_version_and_takes_any_variable(place: Path) -> None:
    code = "import ncluster.ncluster_globals, fastgpu, signal, sys; print(signal.getsignal(signal.SIGQUIT))"
    for quiet in ("0", "1"):
        variables = {
            **os.environ,
            "NCLUSTER_OF_TOMORROW": "1",
            "NCLUSTER_DISABLE_PDB_HANDLER": quiet,
            "PYTHONPATH": HERE,
        }
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables, check=True)
        lines = done.stdout.splitlines()
        assert lines[:2] == [f"ncluster version {muster.__version__}", f"fastgpu version {muster.__version__}"]
        assert ("_on_quit" in lines[2]) == (quiet == "0")


STAND_INS = {
    "apt": "exit 0",
    "yum": "exit 0",
    "conda": "exit 0",
    "unzip": 'mkdir -p "${1%.zip}"',
    "wget": 'for last; do :; done; mkdir -p toutiao_data; tar cf "${last##*/}" toutiao_data',
    "mpirun": 'echo "$@" > trained',
}
# What the snippets take for granted.
PRELUDE = """
import argparse
parser = argparse.ArgumentParser()
IMAGE_NAME = "aiacc.vhd"
mpi_cmd = ["mpirun"]
"""


@pytest.fixture
def alibaba(place: Path, work: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder as the tutorials leave it, and programs that stand in for those that need the network or GPUs."""
    (work / "perseus-bert").mkdir()
    (work / "perseus-bert/run_classifier.py").write_text("print('classified')\n")
    (work / "programs").mkdir()
    for name, text in STAND_INS.items():
        program = work / "programs" / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{work / 'programs'}:{os.environ['PATH']}")
    monkeypatch.setenv("ALIYUN_DEFAULT_REGION", "cn-beijing")
    monkeypatch.setenv("PYTHONPATH", HERE)
    return work


def logdir_in(printed: str) -> Path:
    line = next(line for line in printed.splitlines() if line.startswith("Logging to "))
    return Path(line[len("Logging to ") :])


def test_the_published_training_script_runs_to_the_end(alibaba: Path, client: muster.Client) -> None:
    script = [sys.executable, str(SCRIPTS / "train_news_classifier.py"), "--machines", "2"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "backend 'aliyun': machines are on this machine" in done.stdout
    assert "training deploy time is: " in done.stdout
    logdir = logdir_in(done.stdout)
    assert logdir.name == "perseus-bert-2"
    command = (logdir / "task-cmd").read_text()
    assert command.startswith("mpirun --allow-run-as-root -np 16 --npernode 8 --host 127.")
    machines = client.job("perseus-bert")
    hosts = ",".join(f"{task.ip}:8" for task in machines.tasks)
    assert f"--host {hosts} " in command
    shell = muster.Session(client._transport, machines.id, 0)
    assert shell.commands()[-1].wait().exit_status == 0, "the training goes on without the script"
    assert "run_classifier.py" in machines.exec("cat perseus-bert/trained").stdout
    machines.stop()
    machines.wait(check=False, timeout=60)


def test_the_published_snippets_run_to_the_end(alibaba: Path, client: muster.Client) -> None:
    parts = [path.read_text() for path in sorted((SCRIPTS / "snippets").iterdir())]
    (alibaba / "train_news_classifier_spot.py").write_text("\n".join([PRELUDE, *parts]))
    script = [sys.executable, "train_news_classifier_spot.py", "--machines", "2"]
    done = subprocess.run(script, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    logdir = logdir_in(done.stdout)
    assert logdir.name == "fastgpu-perseus-bert-2" and "/fastgpu/runs/" in str(logdir)
    assert (logdir / "task-cmd").read_text().startswith("mpirun python run_classifier.py --task_name=news")
    machines = client.job("fastgpu-perseus-bert")
    assert machines.state == "suspended"
    machines.stop()
    machines.wait(check=False, timeout=60)
