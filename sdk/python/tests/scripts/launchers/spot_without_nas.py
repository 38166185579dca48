"""Takes spot machines without NAS, trains in the background, and gives the machines back in two steps."""

import argparse

import ncluster

parser = argparse.ArgumentParser()
parser.add_argument("--machines", type=int, default=1)
args = parser.parse_args()

ncluster.ncluster_globals.set_should_disable_nas(True)
ncluster.set_backend("aliyun")
job = ncluster.make_job(
    name="spot-without-nas",
    run_name=f"spot-without-nas-{args.machines}",
    num_tasks=args.machines,
    instance_type="ecs.gn6v-c10g1.20xlarge",
    image_type="aiacc",
    disable_nas=True,
    spot=True,
    install_script="",
)
job.upload("classify")
job.upload("classify/train.py", "/tmp/spot-without-nas.py")
job.run(["cd classify", "ls"])
job.tasks[0].run("python3 train.py > trained", non_blocking=True)
job.tasks[0].join()
print("trained:", job.tasks[0].read("classify/trained").strip())
print("sent:", job.tasks[-1].exists("/tmp/spot-without-nas.py"))
job.stop()
job.kill()
