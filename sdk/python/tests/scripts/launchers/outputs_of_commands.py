"""Reads what commands wrote: as they run, as a value, and from the file of the last one."""

import argparse

import fastgpu

parser = argparse.ArgumentParser()
parser.add_argument("--machines", type=int, default=1)
args = parser.parse_args()

fastgpu.fastgpu_globals.set_should_disable_nas(True)
fastgpu.set_backend("aliyun")
job = fastgpu.make_job(
    name="outputs-of-commands",
    run_name="outputs",
    num_tasks=args.machines,
    instance_type="ecs.gn6v-c10g1.20xlarge",
    image_name="aiacc-dlimg-centos7:1.3.0.post3",
)
task = job.tasks[-1]
print("instance:", task.instance.instance_name(), bool(task.instance.instance_id()))
printed = task.run("echo epoch 1; echo loss 0.5", show_realtime=True)
print("returned:", repr(printed))
print("file:", repr(task.read(task._out_fn)))
try:
    task.run("sh -c 'exit 3'")
except RuntimeError as error:
    print("refused:", error)
job.kill()
