"""Sends the folder that it stands in, and starts something on the other machines by ssh."""

import argparse

import ncluster

parser = argparse.ArgumentParser()
parser.add_argument("--machines", type=int, default=1)
args = parser.parse_args()

ncluster.set_backend("aliyun")
job = ncluster.make_job(name="whole-folder", run_name="", num_tasks=args.machines, instance_type="ecs.gn6v-c10g1.20xlarge")
job.upload(".")
job.rsync(".")
first = job.tasks[0]
first.run("test -f whole_folder.py && test -f classify/train.py")
for task in job.tasks:
    print("reached:", first.run(f"ssh {task.ip} 'echo rank $MUSTER_RANK'", return_output=True).strip())
first.run("export SEED=7; cd classify")
print("state:", first.run("echo $SEED $(basename $PWD)", return_output=True).strip())
job.kill()
