//! Command lines and small trees, and what is found in them.

use std::collections::BTreeMap;

use muster_model::spec::Command;
use muster_model::{Face, Framework};
use proptest::prelude::*;

use super::*;

/// A code directory in memory.
struct Tree(BTreeMap<&'static str, &'static str>);

impl Code for Tree {
    fn read(&self, path: &str) -> Option<String> {
        self.0.get(path).map(|text| (*text).to_owned())
    }
}

fn tree<const N: usize>(files: [(&'static str, &'static str); N]) -> Tree {
    Tree(files.into())
}

fn line(script: &str) -> Command {
    Command::Shell(script.to_owned())
}

fn argv(words: &[&str]) -> Command {
    Command::Argv(words.iter().map(|word| (*word).to_owned()).collect())
}

/// `pytorch (train.py imports torch)`, one for each that was found.
fn found(command: &str, tree: &Tree) -> String {
    let found = detect(&line(command), tree).frameworks;
    let shown: Vec<String> = found.iter().map(|it| format!("{} ({})", it.what, it.why)).collect();
    shown.join(", ")
}

#[test]
fn launchers_are_found_behind_whatever_stands_before_them() {
    use Launcher::{
        Accelerate, Composer, Deepspeed, Fabric, Horovodrun, Mpirun, Msrun, Paddle, Torchrun, Tune,
    };
    for (command, expected) in [
        ("torchrun --nproc-per-node 8 train.py", Some(Torchrun)),
        ("/opt/conda/bin/torchrun train.py", Some(Torchrun)),
        ("FOO=1 BAR='a b' torchrun train.py", Some(Torchrun)),
        ("env A=b torchrun train.py", Some(Torchrun)),
        ("env -i -u X A=b torchrun train.py", Some(Torchrun)),
        ("env -S 'A=b torchrun train.py'", Some(Torchrun)),
        ("env -u X -S 'A=b torchrun train.py'", Some(Torchrun)),
        ("env - A=b torchrun train.py", Some(Torchrun)),
        ("python -m torch.distributed.run train.py", Some(Torchrun)),
        ("python3.11 -u -X faulthandler -m torch.distributed.launch --nproc_per_node=8 t.py", Some(Torchrun)),
        ("python -um torch.distributed.run train.py", Some(Torchrun)),
        ("/usr/bin/python3 /usr/lib/python3/torch/distributed/launch.py t.py", Some(Torchrun)),
        ("python $(which torchrun) train.py", Some(Torchrun)),
        ("$(command -v torchrun) train.py", Some(Torchrun)),
        ("bash -c 'exec \"$@\"' sh torchrun train.py", Some(Torchrun)),
        ("bash -c '\"$2\" train.py' sh -x torchrun", Some(Torchrun)),
        ("bash -c '\"$@\"' torchrun train.py", None),
        ("python /opt/bin/torchrun train.py", Some(Torchrun)),
        ("$PYTHON -m torch.distributed.run x.py", Some(Torchrun)),
        ("accelerate launch --num_processes 8 train.py", Some(Accelerate)),
        ("accelerate-launch train.py", Some(Accelerate)),
        ("python -m accelerate.commands.launch train.py", Some(Accelerate)),
        ("accelerate config", None),
        ("axolotl train config.yml", Some(Accelerate)),
        ("axolotl preprocess config.yml", None),
        ("trl sft --model_name_or_path x", Some(Accelerate)),
        ("trl env", None),
        ("llamafactory-cli train x.yaml", Some(Torchrun)),
        ("llamafactory-cli webui", None),
        ("fabric run train.py", Some(Fabric)),
        ("fabric consolidate x", None),
        ("tune run full_finetune_distributed --config x", Some(Tune)),
        ("tune download x", None),
        ("composer -n 8 train.py", Some(Composer)),
        ("composer install", None),
        ("deepspeed --num_gpus 8 train.py --deepspeed ds.json", Some(Deepspeed)),
        ("horovodrun -np 16 -H a:8,b:8 python train.py", Some(Horovodrun)),
        ("/usr/bin/mpirun -n 16 ./a.out", Some(Mpirun)),
        ("mpiexec.hydra -n 2 ./a.out", Some(Mpirun)),
        ("mpiexec -n 2 ./a.out", Some(Mpirun)),
        ("orterun -n 2 ./a.out", Some(Mpirun)),
        ("mpirun.openmpi -n 2 ./a.out", Some(Mpirun)),
        ("msrun --worker_num 8 train.py", Some(Msrun)),
        ("python -m paddle.distributed.launch --gpus 0,1 train.py", Some(Paddle)),
        ("python -m paddle.distributed.fleet.launch train.py", Some(Paddle)),
        ("fleetrun --ips=a,b train.py", Some(Paddle)),
        ("exec torchrun train.py", Some(Torchrun)),
        ("time -p torchrun train.py", Some(Torchrun)),
        ("nice -n 5 torchrun train.py", Some(Torchrun)),
        ("nice -5 ionice -c 2 -n 0 torchrun train.py", Some(Torchrun)),
        ("sudo -E -u ann A=b torchrun train.py", Some(Torchrun)),
        ("uv run torchrun train.py", Some(Torchrun)),
        ("uv run --with numpy -p 3.12 -- torchrun train.py", Some(Torchrun)),
        ("uv run -m torch.distributed.run train.py", Some(Torchrun)),
        ("uv pip install torchrun", None),
        ("poetry run torchrun train.py", Some(Torchrun)),
        ("conda run -n x --no-capture-output torchrun train.py", Some(Torchrun)),
        ("numactl --cpunodebind=0 -m 0 torchrun train.py", Some(Torchrun)),
        ("taskset -c 0-3 timeout -k 5 10m torchrun train.py", Some(Torchrun)),
        ("taskset 0xf torchrun train.py", Some(Torchrun)),
        ("stdbuf -oL -eL torchrun train.py", Some(Torchrun)),
        ("stdbuf -o L nohup setsid torchrun train.py &", Some(Torchrun)),
        ("bash -c 'cd x && torchrun train.py'", Some(Torchrun)),
        ("bash -lc \"sh -c 'torchrun x'\"", Some(Torchrun)),
        ("bash -euxo pipefail -c 'torchrun x'", Some(Torchrun)),
        ("eval torchrun x", Some(Torchrun)),
        ("nsys profile -o out -t cuda torchrun train.py", Some(Torchrun)),
        ("pip install deepspeed && torchrun train.py", Some(Torchrun)),
        (
            "cd ~ && mkdir -p ~/c && horovodrun -np 8 -p $DLWS_SD_worker0_SSH_PORT python t.py",
            Some(Horovodrun),
        ),
        ("make data; torchrun a.py | tee log", Some(Torchrun)),
        ("if true; then torchrun a.py; fi", Some(Torchrun)),
        ("L='torchrun --nnodes 2'\n$L train.py", Some(Torchrun)),
        ("(torchrun a.py)", Some(Torchrun)),
        ("echo torchrun", None),
        ("echo 'a; torchrun b'", None),
        ("grep mpirun log", None),
        ("which torchrun", None),
        ("python torchrun.py", None),
        ("python train.py --launcher torchrun", None),
        ("my-torchrun x", None),
        ("exec", None),
        ("env", None),
        ("sudo", None),
        ("uv", None),
        ("timeout 5", None),
        ("bash -c", None),
        ("", None),
    ] {
        assert_eq!(launcher(&line(command)), expected, "{command}");
    }
    assert_eq!(launcher(&argv(&["bash", "-c", "torchrun x"])), Some(Torchrun));
    assert_eq!(launcher(&argv(&["echo", "a; torchrun b"])), None);
}

#[test]
fn only_those_that_reach_the_other_nodes_lead() {
    for (command, leads) in [
        ("torchrun x", false),
        ("deepspeed x", true),
        ("mpirun x", true),
        ("horovodrun x", true),
        ("msrun x", false),
    ] {
        assert_eq!(launcher(&line(command)).is_some_and(Launcher::leads), leads, "{command}");
    }
}

#[test]
fn scripts_are_followed_to_what_they_import() {
    let code = tree([
        ("train.py", "import torch\nimport torch.distributed as dist\n"),
        ("merely.py", "import torch\n"),
        ("both.py", "import jax\nimport torch\n"),
        ("ds.py", "import torch\nimport torch.distributed\nimport deepspeed\n"),
        ("hvd.py", "import tensorflow as tf\nimport horovod.tensorflow as hvd\n"),
        ("maybe.py", "try:\n    import deepspeed\nexcept ImportError:\n    pass\nimport torch\n"),
        ("mpi.py", "import torch\nfrom mpi4py import MPI\n"),
        ("far.py", "from model import net\nfrom pkg import data\n"),
        ("model.py", "import jax\n"),
        ("pkg/__init__.py", ""),
        ("pkg/data.py", "import numpy\n"),
        ("pkg/main.py", "from . import loop\n"),
        ("pkg/loop.py", "import mindspore\n"),
        ("near.py", "import paddle\nimport model\n"),
        ("run.sh", "#!/bin/bash\nset -e\ncd sub\npython $(dirname $0)/inner.py --x\n"),
        ("sub/inner.py", "from accelerate import Accelerator\n"),
        ("launch.sh", "ARGS='--nproc_per_node 8'\ntorchrun $ARGS train.py\n"),
        ("outer", "#!/usr/bin/env bash\n./launch.sh\n"),
        ("loop.sh", "./loop.sh\n. ./loop.sh\n"),
        ("none.py", "print('import torch')\n"),
        ("tf.py", "import tensorflow as tf\nstrategy = tf.distribute.MirroredStrategy()\nimport torch\n"),
    ]);
    for (command, expected) in [
        ("python train.py", "pytorch (train.py imports torch.distributed)"),
        ("python -u ./train.py --a b", "pytorch (train.py imports torch.distributed)"),
        ("./train.py", "pytorch (train.py imports torch.distributed)"),
        ("train.py", "pytorch (train.py imports torch.distributed)"),
        ("uv run train.py", "pytorch (train.py imports torch.distributed)"),
        ("python merely.py", "pytorch (merely.py imports torch)"),
        ("python both.py", "jax (both.py imports jax), pytorch (both.py imports torch)"),
        ("python ds.py", "deepspeed (ds.py imports deepspeed)"),
        ("python hvd.py", "horovod (hvd.py imports horovod)"),
        ("python maybe.py", "pytorch (maybe.py imports torch)"),
        ("python mpi.py", "mpi (mpi.py imports mpi4py)"),
        ("python far.py", "jax (model.py imports jax)"),
        ("python -m pkg.main", "mindspore (pkg/loop.py imports mindspore)"),
        ("python near.py", "paddle (near.py imports paddle)"),
        ("bash run.sh", "pytorch (sub/inner.py imports accelerate)"),
        ("cd sub && python inner.py", "pytorch (sub/inner.py imports accelerate)"),
        ("bash launch.sh", "pytorch (launch.sh starts torchrun)"),
        ("./outer", "pytorch (launch.sh starts torchrun)"),
        ("bash loop.sh", ""),
        ("python none.py", ""),
        ("python tf.py", "tensorflow (tf.py uses tf.distribute)"),
        ("python missing.py", ""),
        ("python -c 'import jax'", "jax (the command imports jax)"),
        ("python both.py && torchrun train.py", "pytorch (the command starts torchrun)"),
        ("mpirun python hvd.py", "mpi (the command starts mpirun)"),
        ("true", ""),
    ] {
        assert_eq!(found(command, &code), expected, "{command}");
    }
    assert_eq!(detect(&line("bash launch.sh"), &code).launcher, Some(Launcher::Torchrun));
}

#[test]
fn platforms_are_found_in_the_command_and_in_what_it_runs() {
    let code = tree([
        ("run.sh", "torchrun --nnodes=$WORLD_SIZE --node_rank=$RANK train.py\n"),
        ("train.py", "import os\nprint(os.environ['VC_TASK_INDEX'])\n"),
    ]);
    let faces = |command: &str| -> Vec<(Face, String)> {
        detect(&line(command), &code).faces.into_iter().map(|it| (it.what, it.why)).collect()
    };
    assert_eq!(
        faces("bash run.sh -p $DLWS_SSH_PORT"),
        [
            (Face::Dlws, "the command uses DLWS_SSH_PORT".to_owned()),
            (Face::Dlc, "run.sh uses WORLD_SIZE for the number of nodes".to_owned()),
            (Face::Modelarts, "train.py uses VC_TASK_INDEX".to_owned()),
        ]
    );
    assert_eq!(faces("python other.py"), []);
    let seed = "bash /home/work/run_train.sh python /home/work/user-job-dir/paddle/run.sh";
    let found = detect(&line(seed), &Nothing).faces;
    assert_eq!(
        found,
        [Found { what: Face::Modelarts, why: "the command uses /home/work/run_train.sh".to_owned() }]
    );
}

#[test]
fn the_files_of_a_platforms_code_folder_are_those_of_the_code_directory() {
    let code = tree([("run.sh", "python -m paddle.distributed.launch ${config} train.py\n")]);
    assert_eq!(
        found("python /home/work/user-job-dir/paddle/run.sh", &code),
        "paddle (run.sh starts python -m paddle.distributed.launch)"
    );
    assert_eq!(
        found("bash /home/work/run_train.sh python /home/work/user-job-dir/run.sh", &code),
        "paddle (run.sh starts python -m paddle.distributed.launch)"
    );
}

/// `program`, `launcher`, or why it is unclear.
fn started(command: &Command, code: &dyn Code) -> String {
    match starts(command, code) {
        Starts::Program => "program".into(),
        Starts::Launcher(_) => "launcher".into(),
        Starts::Unclear(why) => why,
    }
}

#[test]
fn one_program_is_seen_behind_what_only_runs_it() {
    for command in [
        "python t.py",
        "env X=1 python t.py",
        "env -u A X=1 nice -n 5 python t.py",
        "numactl --cpunodebind=0 python t.py",
        "conda run -n x python t.py",
        "uv run t.py",
        "uv run -m pkg.train",
        "sudo -E nice python t.py",
        "nohup stdbuf -oL taskset -c 0-3 time ./train",
        "bash -c 'python t.py --lr 1'",
        "bash -lc 'exec env A=1 python t.py'",
        "cd src && export A=1 && python t.py >> log 2>&1",
        "source venv/bin/activate; mkdir -p out; echo start; python t.py",
        "if [ -n \"$A\" ]; then export B=1; fi\npython t.py",
        "echo $RANK",
        "A=1 python -c pass",
        "eval \"$(conda shell.bash hook)\"; conda activate x; python t.py",
        "source $(conda info --base)/etc/profile.d/conda.sh && conda activate x && python t.py",
        "export MASTER_ADDR=$(hostname -I | awk '{print $1}' | tr -d ' '); python t.py 2>&1 | grep -v WARN",
    ] {
        assert_eq!(started(&line(command), &Nothing), "program", "{command}");
    }
    for (command, why) in [
        ("make train", "the command starts make"),
        ("python a.py; python b.py", "the command starts a.py and b.py"),
        ("python a.py | tee log", "the command starts a.py and tee"),
        (
            "python a.py > log",
            "the command writes what is printed into a file, which each process would make anew",
        ),
        ("eval \"$(cat start)\"", "the command starts what a variable names"),
        ("sed -i s/a/b/ c; python a.py", "the command starts sed and a.py"),
        ("for i in 1 2; do python a.py; done", "the command has a loop, a function or a choice in it"),
        ("sudo python a.py", "`sudo` hides the variables of the task, and so its rank"),
        ("env -i python a.py", "`env` hides the variables of the task, and so its rank"),
        ("env -u X -i python a.py", "`env` hides the variables of the task, and so its rank"),
        ("env --unset X -C /tmp - A=1 python a.py", "`env` hides the variables of the task, and so its rank"),
        ("bash run.sh", "the command starts run.sh, which is not in the code"),
        ("./run.sh", "the command starts ./run.sh, which is not in the code"),
        ("bash", "the command starts bash"),
        ("ssh worker-1 python a.py", "the command starts ssh"),
        ("a; b; c; d; e; f", "the command starts a, b, c, d and 2 more"),
    ] {
        assert_eq!(started(&line(command), &Nothing), why, "{command}");
    }
    assert_eq!(started(&line("pip install x; torchrun a.py"), &Nothing), "launcher");
    assert_eq!(started(&argv(&["make", "train"]), &Nothing), "the command starts make");
    assert_eq!(started(&argv(&["bash", "-c", "python t.py"]), &Nothing), "program");
}

#[test]
fn one_program_is_seen_in_the_scripts_that_start_it() {
    let code = tree([
        ("run.sh", "#!/bin/bash\nset -euo pipefail\nexport A=1\ncd src\npython t.py \"$@\"\n"),
        ("src/t.py", "import torch\n"),
        ("outer.sh", "echo begin\nbash run.sh --lr 1\n"),
        ("train", "#!/bin/sh\nexec python t.py\n"),
        ("two.sh", "pip install -r requirements.txt\npython t.py\n"),
        ("launch.sh", "mkdir out\ntorchrun t.py\n"),
        ("loop.sh", "bash loop.sh\n"),
        ("set.sh", ". ./env.sh\npython t.py\n"),
        ("env.sh", "export A=1\n"),
    ]);
    for (command, expected) in [
        ("bash run.sh", "program"),
        ("./run.sh --lr 1", "program"),
        ("env X=1 bash -e run.sh", "program"),
        ("bash outer.sh", "program"),
        ("./train", "program"),
        ("bash set.sh", "program"),
        ("python src/t.py", "program"),
        ("bash two.sh", "two.sh starts pip and t.py"),
        ("bash run.sh && bash run.sh", "run.sh starts t.py and t.py"),
        ("bash launch.sh", "launcher"),
        ("bash loop.sh", "loop.sh runs scripts that run scripts"),
        ("bash missing.sh", "the command starts missing.sh, which is not in the code"),
    ] {
        assert_eq!(started(&line(command), &code), expected, "{command}");
    }
}

#[test]
fn the_arguments_of_a_script_say_what_it_starts() {
    let code = tree([
        ("run.sh", "#!/bin/bash\nset -euo pipefail\nexec \"$@\"\n"),
        ("python.sh", "python \"$@\"\n"),
        ("first.sh", "[ $# -gt 0 ] || exit 1\nN=$1\nshift\ntorchrun --nproc_per_node $N \"$@\"\n"),
        ("outer.sh", "bash run.sh $1 --nnodes 2 \"${@:2}\"\n"),
        ("function.sh", "start() {\n  \"$@\"\n}\nstart python t.py\n"),
        ("variable.sh", "$LAUNCH t.py\n"),
        ("t.py", "import torch.distributed\n"),
    ]);
    for (command, expected) in [
        ("bash run.sh torchrun t.py", "launcher"),
        ("bash outer.sh torchrun t.py", "launcher"),
        ("bash first.sh 4 t.py", "launcher"),
        ("bash run.sh python t.py", "program"),
        ("bash python.sh t.py --lr 1", "program"),
        ("bash -c 'exec \"$@\"' sh python t.py", "program"),
        ("./run.sh make", "run.sh starts make"),
        ("bash function.sh", "function.sh starts what a variable names"),
        ("bash variable.sh", "variable.sh starts what a variable names"),
        ("$LAUNCH t.py", "the command starts what a variable names"),
        ("$LAUNCH", "the command starts what a variable names"),
    ] {
        assert_eq!(started(&line(command), &code), expected, "{command}");
    }
    for command in
        ["bash python.sh t.py", "bash run.sh python t.py", "bash python.sh x.py; bash python.sh t.py"]
    {
        assert_eq!(found(command, &code), "pytorch (t.py imports torch.distributed)", "{command}");
    }
    for (command, place, arguments) in [
        ("bash first.sh 4 t.py --lr 1", "first.sh", "--nproc_per_node 4 t.py --lr 1"),
        ("bash outer.sh torchrun t.py", "run.sh", "--nnodes 2 t.py"),
    ] {
        let call = detect(&line(command), &code).call.unwrap();
        assert_eq!((call.why.as_str(), call.what.arguments.join(" ").as_str()), (place, arguments));
    }
}

#[test]
fn code_is_found_in_folders_that_only_a_run_could_name() {
    let code = tree([
        ("scripts/run.sh", "cd \"$(dirname \"$0\")\"\npython train.py\n"),
        ("scripts/above.sh", "cd \"$(dirname \"$0\")/..\" || exit\npython top.py\n"),
        ("scripts/here.sh", "HERE=$(cd $(dirname $0); pwd)\npython $HERE/train.py\n"),
        ("scripts/train.py", "import torch.distributed\n"),
        ("top.py", "import torch.distributed\n"),
        (
            "copies.sh",
            "for i in 0 1; do\n  mkdir train$i; cp *.py train$i; cd ./train$i\n  python top.py &\n  cd ..\ndone\n",
        ),
        ("work.sh", "cd $WORK\npython top.py\n"),
        ("outer.sh", "DIR=$(dirname $0)\nbash $DIR/scripts/run.sh\n"),
    ]);
    for (command, file) in [
        ("bash scripts/run.sh", "scripts/train.py"),
        ("bash outer.sh", "scripts/train.py"),
        ("bash scripts/above.sh", "top.py"),
        ("bash scripts/here.sh", "scripts/train.py"),
        ("bash copies.sh", "top.py"),
        ("bash work.sh", "top.py"),
        ("cd $WORK; python top.py", "top.py"),
    ] {
        assert_eq!(found(command, &code), format!("pytorch ({file} imports torch.distributed)"), "{command}");
    }
}

#[test]
fn the_script_of_apulis_guide_for_mindspore_is_recognised() {
    let script = "\
if [ $# != 2 ]
then
    echo \"Usage: sh run_distribute_train.sh [MINDSPORE_HCCL_CONFIG_PATH] [DATASET_PATH]\"
exit 1
fi
get_real_path(){
  if [ \"${1:0:1}\" == \"/\" ]; then
    echo \"$1\"
  else
    echo \"$(realpath -m $PWD/$1)\"
  fi
}
PATH1=$(get_real_path $1)
export MINDSPORE_HCCL_CONFIG_PATH=$PATH1
for((i=0; i<${DEVICE_NUM}; i++))
do
    export DEVICE_ID=$i
    cp *.py ./train_parallel$i
    cd ./train_parallel$i || exit
    python train.py --do_train=True &
    cd ..
done
trap \"trap - SIGTERM && kill -- -$$\" SIGINT SIGTERM EXIT
wait
";
    let code = tree([("run_distribute_train.sh", script), ("train.py", "import mindspore\n")]);
    let command = line("sudo -E bash -c 'cd . && sh run_distribute_train.sh hccl.json /data'");
    let found = detect(&command, &code);
    assert_eq!(found.framework(), Some(Framework::Mindspore));
    assert_eq!(found.faces.iter().map(|face| face.what).collect::<Vec<_>>(), [Face::Dlws]);
    let why = "run_distribute_train.sh has a loop, a function or a choice in it";
    assert_eq!(starts(&command, &code), Starts::Unclear(why.into()));
}

fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

const VOCABULARY: &[&str] = &[
    "torchrun",
    "mpirun",
    "python",
    "-m",
    "torch.distributed.run",
    "env",
    "A=b",
    "sudo",
    "-E",
    "nice",
    "-n",
    "5",
    "bash",
    "-c",
    "torchrun x",
    "uv",
    "run",
    "--",
    "conda",
    "if",
    "then",
    "exec",
    "timeout",
    "accelerate",
    "launch",
    "x.py",
    "a b",
    "",
];

proptest! {
    #[test]
    fn nothing_makes_detection_panic(command in any::<String>(), script in any::<String>(), code in any::<String>()) {
        struct Anything(String, String);
        impl Code for Anything {
            fn read(&self, path: &str) -> Option<String> {
                Some(if path.ends_with(".py") { self.1.clone() } else { self.0.clone() })
            }
        }
        let code = Anything(script, code);
        detect(&Command::Shell(command.clone()), &code);
        detect(&Command::Argv(command.split(' ').map(str::to_owned).collect()), &code);
        detect(&line("bash a.sh; python b.py"), &code);
        starts(&Command::Shell(command.clone()), &code);
        starts(&Command::Argv(command.split(' ').map(str::to_owned).collect()), &code);
        starts(&line("bash a.sh; python b.py"), &code);
    }

    #[test]
    fn words_and_the_same_words_quoted_start_the_same(
        words in proptest::collection::vec(proptest::sample::select(VOCABULARY), 1..8),
    ) {
        let script: Vec<String> = words.iter().map(|word| quoted(word)).collect();
        prop_assert_eq!(launcher(&argv(&words)), launcher(&line(&script.join(" "))), "{:?}", words);
    }
}

#[test]
fn a_launcher_says_whose_it_is() {
    assert_eq!(found("deepspeed x.py", &tree([])), "deepspeed (the command starts deepspeed)");
    let detection = detect(&line("accelerate launch x.py"), &Nothing);
    assert_eq!(detection.framework(), Some(Framework::Pytorch));
}

#[test]
fn who_goes_to_other_tasks_is_found_and_who_goes_elsewhere_is_not() {
    let tree = tree([("run.sh", "set -e\nfor i in 0 1; do\n  ssh -p 22 root@worker-$i hostname\ndone\n")]);
    let why = |command: &str| detect(&line(command), &tree).peers;
    for (command, program) in [
        ("pdsh -w worker-[0-1] uptime", "pdsh"),
        ("ssh worker-1 hostname", "ssh"),
        ("timeout 9 scp -r out ib-worker-0:/tmp/", "scp"),
        ("rsync -a task0.bert:data .", "rsync"),
        ("sftp \"worker-$NEXT\"", "sftp"),
        ("ssh ps-0 true", "ssh"),
    ] {
        assert_eq!(why(command), Some(format!("the command starts {program}")), "{command}");
    }
    assert_eq!(why("bash run.sh").as_deref(), Some("run.sh starts ssh"));
    for command in
        ["ssh storage cat data", "rsync -a nfs:/data/worker-1 .", "echo ssh worker-1", "scp task.py host:"]
    {
        assert_eq!(why(command), None, "{command}");
    }
}

#[test]
fn shells_in_shells_whose_text_doubles_are_read_in_no_time() {
    let mut script = "torchrun train.py;".to_owned();
    for name in ["a", "b", "c", "d"] {
        let doubled = format!("{name}=\"${name}${name}\";").repeat(8);
        let quoted = script.replace('\'', "'\\''");
        script = format!("{name}='{quoted}';{doubled}eval \"${name}\";");
    }
    let started_at = std::time::Instant::now();
    let command = line(&format!("torchrun train.py; {script}"));
    assert_eq!(detect(&command, &Nothing).launcher, Some(Launcher::Torchrun));
    assert_eq!(starts(&command, &Nothing), Starts::Launcher(Launcher::Torchrun));
    starts(&argv(&["sudo", "-u"].repeat(100_000)), &Nothing);
    let spent = started_at.elapsed();
    assert!(spent < std::time::Duration::from_secs(20), "{spent:?}");
}
