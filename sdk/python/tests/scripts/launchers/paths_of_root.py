"""Has paths of root's home in it, which is where commands start and files arrive on machines of the cloud."""

import argparse

import fastgpu

parser = argparse.ArgumentParser()
parser.add_argument("--machines", type=int, default=1)
args = parser.parse_args()

fastgpu.set_backend("aliyun")


def make() -> fastgpu.Job:
    return fastgpu.make_job(
        name="paths-of-root",
        run_name="paths-of-root",
        num_tasks=args.machines,
        instance_type="ecs.gn6v-c10g1.20xlarge",
        image_name="aiacc-dlimg-centos7:1.3.0.post3",
    )


job = make()
job.run("mkdir -p /root/muster-paths")
job.upload("classify", "/root/muster-paths/classify")
job.run("cd /root/muster-paths/classify && python3 train.py > /root/muster-paths/result.txt")
for task in job.tasks:
    task.write("/root/muster-paths/rank.txt", f"{task.rank}\n")
    task.upload("classify/train.py", "~/muster-paths/again.py")
print("home:", {task.homedir for task in job.tasks})
print("results:", [task.run("cat ~/muster-paths/result.txt").strip() for task in job.tasks])
print("ranks:", [task.read("muster-paths/rank.txt").strip() for task in job.tasks])
job.stop()

job = make()
print("kept:", [task.run("cat /root/muster-paths/rank.txt /root/muster-paths/again.py").split() for task in job.tasks])
other = job.tasks[-1].ip
print("by ssh:", job.tasks[0].run(f"ssh {other} cat /root/muster-paths/rank.txt").strip())
job.run("rm -r /root/muster-paths")
print("left:", [task.exists("/root/muster-paths") for task in job.tasks])
job.kill()
