#!/usr/bin/env python
"""News classification on several machines, as FastGPU's tutorial trains BERT: one script, from machines to model.

It is the tutorial's in its shape; what is trained here is small enough for a CPU and some seconds.
"""

import argparse
import time

import fastgpu

NUM_PROCESSES = 1  # On each machine; with GPUs, one for each.
CONDA_ENV = "base"

fastgpu.set_backend("aliyun")
parser = argparse.ArgumentParser()
parser.add_argument("--name", default="news-classifier", help="name of the machines and of the run")
parser.add_argument("--machines", type=int, default=2, help="how many machines to use")
parser.add_argument("--epochs", type=int, default=6, help="how often to go through the data")
args = parser.parse_args()


def main() -> None:
    start_time = time.time()
    # 1. Create infrastructure.
    job = fastgpu.make_job(name=args.name, run_name=f"{args.name}-{args.machines}", num_tasks=args.machines)

    # 2. Upload the code, and activate the environment where there is one.
    job.upload("news-classifier")
    job.run(f"if command -v conda >/dev/null; then conda activate {CONDA_ENV}; fi")

    # 3. Download the dataset.
    job.run('python3 news-classifier/download.py "${NEWS_URL:-}" news_data')

    # 4. Run the training on all machines.
    job.run("cd news-classifier")
    hosts = ",".join(f"{task.ip}:{NUM_PROCESSES}" for task in job.tasks)
    mpi_cmd = [
        "mpirun --allow-run-as-root",
        f"-np {args.machines * NUM_PROCESSES}",
        f"--npernode {NUM_PROCESSES}",
        f"--host {hosts}",
        "--bind-to none",
        "-x PATH",
    ]
    classifier_cmd = [
        "python3 run_classifier.py",
        "--data_dir=../news_data",
        f"--master={job.tasks[0].ip}",
        f"--num_train_epochs={args.epochs}",
        f"--output_dir={job.logdir}",
    ]
    cmd = " ".join(mpi_cmd + classifier_cmd)
    log = f"{job.logdir}/train.log"
    job.tasks[0].run(f"echo {cmd} > {job.logdir}/task-cmd")
    job.tasks[0].run(f"{cmd} > {log} 2>&1", non_blocking=True)
    print(f"Logging to {job.logdir}")
    print(f"training deploy time is: {time.time() - start_time} s.")

    # 5. See what came of it.
    status = job.tasks[0].join(ignore_errors=True)
    print(job.tasks[0].read(log), end="")

    # 6. Stop the machines: the same name starts them again. job.kill() would release them.
    job.stop()
    if status != 0:
        raise SystemExit(f"the training ended with status {status}")


if __name__ == "__main__":
    main()
