"""Asks for the region before the backend, takes an image by its type, and sets what the cloud reads from variables."""

import argparse
import os
import time

import fastgpu

parser = argparse.ArgumentParser()
parser.add_argument("--machines", type=int, default=1)
args = parser.parse_args()

os.environ["FASTGPU_SKIP_COST_CONFORM"] = "1"
os.environ["ALIYUN_DATA_DISK_SIZE"] = "500"
REGION = fastgpu.get_region()
INSTALL = "echo installed >> installed.txt"

began = time.time()
fastgpu.set_backend("aliyun")
job = fastgpu.make_job(
    name="region-first",
    run_name=f"region-first-image-classification-{args.machines}",
    num_tasks=args.machines,
    instance_type="ecs.gn6v-c10g1.20xlarge",
    image_type="aiacc",
    install_script=INSTALL,
)
job.upload("classify")
job.run("cd classify && cat ../installed.txt")
hosts = ",".join(f"{task.ip}:8" for task in job.tasks)
job.tasks[0].run(f"echo mpirun -np {8 * args.machines} --host {hosts} > command", show_realtime=True)
print(f"region {REGION}, logdir {job.logdir}")
print("command:", job.tasks[0].read("classify/command").strip())
print(f"deploy time {time.time() - began:.0f} s")
job.stop()
